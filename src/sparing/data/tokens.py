"""Tokenized corpora: a folder of memory-mapped files and a manifest, made once per corpus."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import numpy as np
import numpy.typing as npt

from sparing.config import to_json
from sparing.data.corpora import SPLITS
from sparing.data.splits import check_source, fingerprint, read_splits
from sparing.data.text import Text, count_words
from sparing.data.textfile import Unpacking, cache_dir
from sparing.data.tokenize import (
    FileEntry,
    SplitEntry,
    check_readable,
    verify_file,
    watched_texts,
    without_newlines,
    write_split,
)
from sparing.data.vocab import ONE_BYTE, Vocab, VocabKind, train_vocab, vocab_from_json
from sparing.documents import conform, damage_named
from sparing.errors import UserError, unknown_name
from sparing.files import atomic_folder, read_object, write_json
from sparing.units import pluralize

FORMAT = 2
BYTE_LIKE = ("bytes", "symbols", "characters")
"""Vocabularies in which a newline is a token of its own."""
VERIFIED = "verified.json"
"""Size and time of the files whose checksums have been verified."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Which text to use and how to tokenize it."""

    corpus: str = "python-stdlib"
    """A name from `sparing data list`, or a path to a file or folder of text."""
    vocab: VocabKind = "bytes"
    """Type of token."""
    vocab_size: int | None = None
    """Number of pieces to train (pieces and par-pieces only); None: 8192, or 12000 for
    par-pieces."""
    symbol_order: Literal["frequency", "appearance"] = "frequency"
    """Order of the ids of `symbols`: by frequency (SHA-RNN) or by first appearance (the released
    models of Adaptive Span)."""
    newlines: bool = True
    """False: remove newlines before tokenizing, as Transformer-XL does for enwik8."""
    text_column: str = "text"
    """The column of .parquet files, and the field of .jsonl files, that holds the text."""

    @property
    def protocol(self) -> str:
        """What figures of this text are labelled with: `bytes`, or `no-newlines`."""
        return "bytes" if self.newlines else "no-newlines"


class Splits(TypedDict):
    """The splits of a corpus."""

    train: SplitEntry
    valid: SplitEntry
    test: SplitEntry


class TokensManifest(TypedDict):
    """The content of meta.json."""

    format: int
    config: DataConfig
    vocab: dict[str, Any]
    splits: Splits


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The tokens of a text and the size of that text."""

    ids: npt.NDArray[Any]
    size_bytes: int
    """Bytes of text before tokenizing; a lossy vocabulary may have dropped some of them."""
    words: int
    """Words between whitespace plus one per line end, by which word perplexity divides; 0 if tokens
    are bytes or characters, of which it would have ten digits."""
    start: int
    """The id fed before the first token."""
    ends: npt.NDArray[Any] | None = None
    """Bytes of the text up to the end of each token; None if the vocabulary is lossless."""


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """A tokenized corpus."""

    folder: Path
    vocab: Vocab
    config: DataConfig
    manifest: TokensManifest

    def split(self, name: str) -> Split:
        """Memory-map one of train, valid and test."""
        about = self.about(name)
        arrays = {
            Path(file).suffix: np.memmap(self.folder / file, entry["dtype"], "r")
            for file, entry in about["files"].items()
        }
        ids, ends = arrays[".bin"], arrays.get(".ends")
        words = 0 if self.vocab.kind in BYTE_LIKE else about["words"]
        return Split(ids, about["bytes"], words, self.vocab.start, ends)

    def files(self) -> dict[str, FileEntry]:
        """The files of all splits, by name."""
        return {
            name: about for split in SPLITS for name, about in self.about(split)["files"].items()
        }

    def text_sha256(self) -> dict[str, str]:
        """SHA-256 of each split's text before tokenizing."""
        return {name: self.about(name)["text_sha256"] for name in SPLITS}

    def about(self, split: str) -> SplitEntry:
        """What the manifest says about a split."""
        if split not in SPLITS:
            raise unknown_name("split", split, SPLITS)
        return cast("dict[str, SplitEntry]", self.manifest["splits"])[split]


def prepare(
    config: DataConfig,
    source: Path | None = None,
    *,
    progress: bool = True,
    max_bytes: int | None = None,
    vocab: Vocab | None = None,
) -> Tokens:
    """Tokenize a corpus, or open the result of an earlier call.

    `max_bytes` limits the size of the text, unpacked; None: half of the disk space that is free.
    `vocab` is a vocabulary made elsewhere; None: one is made from the training text.
    """
    if config.vocab_size is not None and not config.vocab.endswith("pieces"):
        raise UserError(f"data.vocab_size is for pieces only, not for data.vocab={config.vocab}")
    if source is not None:
        check_source(config.corpus, source)
    folder = tokens_folder(config, source, vocab)
    if not folder.exists():
        column = config.text_column
        how = Unpacking.of(max_bytes, progress=progress, text_column=column)
        _tokenize(folder, config, read_splits(config.corpus, source, how), how, vocab)
    return open_tokens(folder)


def tokens_folder(data: DataConfig, source: Path | None = None, vocab: Vocab | None = None) -> Path:
    """The folder for the tokens of a corpus; it may not exist yet."""
    # As before there were columns, so that texts are not tokenized again.
    default = ("text_column", DataConfig().text_column)
    config = dict(pair for pair in to_json(data).items() if pair != default)
    # All vocabularies of bytes are the same, wherever they were made.
    given = [] if vocab is None or vocab.kind == data.vocab == "bytes" else [vocab.to_json()]
    identity = json.dumps([FORMAT, config, fingerprint(data.corpus, source), *given])
    digest = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(data.corpus).name).strip("-")[:40]
    return cache_dir() / "tokens" / f"{name or 'text'}-{data.vocab}-{digest}"


def open_tokens(folder: Path) -> Tokens:
    """Open a tokenized corpus; raise a UserError if a file is missing or damaged."""
    path = folder / "meta.json"
    try:
        stored = read_object(path)
        if stored.get("format") != FORMAT:
            raise UserError(f"{folder} is not of token format {FORMAT}")
        if stored.get("sha256") != _checksum(stored):
            raise UserError(f"{path} is damaged: its checksum is wrong")
        with damage_named(path):
            manifest: TokensManifest = conform(stored, TokensManifest)
            vocab = vocab_from_json(manifest["vocab"])
        tokens = Tokens(folder, vocab, manifest["config"], manifest)
        _verify_files(tokens)
    except UserError as problem:
        raise UserError(f"{problem}; delete the folder {folder} to prepare it again") from None
    return tokens


def _verify_files(tokens: Tokens) -> None:
    """Compare files with their checksums, unless size and time are those of an earlier time."""
    folder, files = tokens.folder, tokens.files()
    try:
        before = read_object(folder / VERIFIED)
    except UserError:
        before = {}
    found = {
        name: verify_file(folder / name, about["sha256"], before.get(name))
        for name, about in files.items()
    }
    if found != before:
        # In a folder of somebody else, they are verified every time.
        with suppress(OSError):
            write_json(folder / VERIFIED, found)


def _checksum(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of all of a manifest but its checksum."""
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode("ascii")).hexdigest()


def split_from_text(text: bytes, vocab: Vocab) -> Split:
    """Encode a text in memory as a split."""
    if not text:
        raise UserError("the text is empty; give at least one character")
    words = 0 if vocab.kind in BYTE_LIKE else count_words(text)
    return Split(vocab.encode(text), len(text), words, vocab.start, vocab.ends(text))


def drop_newlines(split: Split, vocab: Vocab) -> Split:
    """Return the split for the `no-newlines` protocol: newlines are neither read nor predicted."""
    if vocab.kind not in BYTE_LIKE:
        raise UserError(
            "the no-newlines protocol needs a vocabulary in which a newline is one token: "
            f"{', '.join(BYTE_LIKE)}; this run has data.vocab={vocab.kind}"
        )
    if vocab.token_bytes(vocab.start) != b"\n":
        return split
    ids = split.ids[split.ids != vocab.start]
    dropped = split.ids.size - ids.size
    return dataclasses.replace(split, ids=ids, size_bytes=split.size_bytes - dropped)


def truncate_split(split: Split, size_bytes: int, vocab: Vocab) -> Split:
    """Return the tokens that lie entirely within the first `size_bytes` of the text."""
    if size_bytes >= split.size_bytes:
        return split
    ends = _decoded_ends(split, size_bytes, vocab) if split.ends is None else split.ends
    # With a number of another type, numpy would read and convert the whole array.
    limit = ends.dtype.type(max(0, size_bytes))
    tokens = int(np.searchsorted(ends, limit, side="right"))
    if not tokens:
        raise UserError(
            f"there is no whole token in the first {pluralize(size_bytes, 'byte')}; use more"
        )
    return Split(
        split.ids[:tokens],
        int(ends[tokens - 1]),
        _words_in(split.ids[:tokens], vocab),
        split.start,
        None if split.ends is None else split.ends[:tokens],
    )


def _words_in(ids: npt.NDArray[Any], vocab: Vocab) -> int:
    """Words of the text of some tokens; 0 if they do not say."""
    if vocab.lossless and vocab.kind not in BYTE_LIKE:
        return count_words(vocab.decode(ids))
    return len(ids) if vocab.kind == "words" else 0


def _decoded_ends(split: Split, size_bytes: int, vocab: Vocab) -> npt.NDArray[np.int64]:
    """Where the first tokens of a lossless vocabulary end; none of them is empty."""
    lengths = np.array([len(vocab.token_bytes(id)) for id in range(vocab.size)], np.int64)
    return np.cumsum(lengths[split.ids[:size_bytes]])


def _tokenize(
    folder: Path,
    config: DataConfig,
    texts: Mapping[str, Text],
    how: Unpacking,
    vocab: Vocab | None,
) -> None:
    name = Path(config.corpus).name
    if config.vocab not in ONE_BYTE:
        with watched_texts(texts, f"checking {name}", how) as watched:
            check_readable(watched, config.corpus)
    if not config.newlines:
        texts = without_newlines(texts, name, how)
    if vocab is None:
        with watched_texts({"train": texts["train"]}, f"vocabulary of {name}", how) as watched:
            kind, order = config.vocab, config.symbol_order
            vocab = train_vocab(kind, watched["train"], config.vocab_size, symbol_order=order)
    with atomic_folder(folder) as scratch:
        with watched_texts(texts, f"tokenizing {name}", how) as watched:
            entries = {
                split: write_split(scratch, split, watched[split], vocab) for split in SPLITS
            }
        manifest = {
            "format": FORMAT,
            "config": to_json(config),
            "vocab": vocab.to_json(),
            "splits": entries,
        }
        write_json(scratch / "meta.json", {**manifest, "sha256": _checksum(manifest)})
