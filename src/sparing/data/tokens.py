"""Tokenized corpora: a folder of memory-mapped files and a manifest, made once per corpus."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from sparing.config import from_json, to_json
from sparing.data.corpora import SPLITS
from sparing.data.splits import cache_dir, check_source, fingerprint, read_splits
from sparing.data.text import count_words, smallest_dtype
from sparing.data.vocab import Vocab, VocabKind, train_vocab, vocab_from_json
from sparing.errors import UserError, unknown_name
from sparing.files import atomic_folder, read_object, write_bytes, write_json
from sparing.terminal import escape_line
from sparing.units import pluralize

FORMAT = 1
BYTE_LIKE = ("bytes", "symbols", "characters")
"""Vocabularies in which a newline is a token of its own."""
ENTRY_TYPES = {"tokens": int, "bytes": int, "words": int, "dtype": str, "text_sha256": str}
"""Fields of a split's entry in the manifest and their types."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Which text to use and how to tokenize it."""

    corpus: str = "python-stdlib"
    """A name from `sparing data list`, or a path to a file or folder of text."""
    vocab: VocabKind = "bytes"
    """What one token is."""
    vocab_size: int | None = None
    """Number of pieces to train (pieces and par-pieces only); None: 8192, or 12000 for
    par-pieces."""
    symbol_order: Literal["frequency", "appearance"] = "frequency"
    """Order of the ids of `symbols`: by frequency (SHA-RNN) or by first appearance (the released
    models of Adaptive Span)."""
    newlines: bool = True
    """False: remove newlines before tokenizing, as Transformer-XL does for enwik8."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The tokens of a text and the size of that text."""

    ids: npt.NDArray[Any]
    size_bytes: int
    """Bytes of text before tokenizing; a lossy vocabulary may have dropped some of them."""
    words: int
    """Words between whitespace plus one per line end; word perplexity divides by this."""
    start: int
    """The id fed before the first token."""


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """A tokenized corpus."""

    folder: Path
    vocab: Vocab
    config: DataConfig
    manifest: Mapping[str, Any]

    def split(self, name: str) -> Split:
        """Memory-map one of train, valid and test."""
        if name not in SPLITS:
            raise unknown_name("split", name, SPLITS)
        about = self.manifest["splits"][name]
        ids = np.memmap(self.folder / f"{name}.bin", np.dtype(about["dtype"]), "r")
        return Split(ids, about["bytes"], about["words"], self.vocab.start)

    def text_sha256(self) -> dict[str, str]:
        """SHA-256 of each split's text before tokenizing."""
        return {name: self.manifest["splits"][name]["text_sha256"] for name in SPLITS}


def prepare(config: DataConfig, source: Path | None = None, *, progress: bool = True) -> Tokens:
    """Tokenize a corpus, or open the result of an earlier call."""
    if config.vocab_size is not None and not config.vocab.endswith("pieces"):
        raise UserError(f"data.vocab_size is for pieces only, not for data.vocab={config.vocab}")
    if source is not None:
        check_source(config.corpus, source)
    folder = tokens_folder(config, source)
    if not folder.exists():
        texts = read_splits(config.corpus, source, progress=progress)
        _tokenize(folder, config, texts, progress)
    return open_tokens(folder)


def tokens_folder(config: DataConfig, source: Path | None = None) -> Path:
    """The folder for the tokens of a corpus; it may not exist yet."""
    return cache_dir() / "tokens" / _folder_name(config, source)


def open_tokens(folder: Path) -> Tokens:
    """Open a tokenized corpus; raise a UserError if a file is missing or damaged."""
    manifest = read_object(folder / "meta.json")
    remedy = "delete the folder and prepare it again"
    if manifest.get("format") != FORMAT:
        raise UserError(f"{folder} is not of token format {FORMAT}; {remedy}")
    try:
        config = from_json(DataConfig, manifest["config"])
        vocab = vocab_from_json(manifest["vocab"])
        for split in SPLITS:
            expected, path = _expected_bytes(manifest["splits"][split]), folder / f"{split}.bin"
            found = path.stat().st_size if path.exists() else 0
            if found != expected:
                size = pluralize(found, "byte")
                raise UserError(f"{path} has {size} instead of {expected:,}; {remedy}")
    except (KeyError, TypeError, AttributeError, ValueError) as problem:
        raise UserError(f"{folder / 'meta.json'} is damaged: {problem!r}; {remedy}") from None
    return Tokens(folder, vocab, config, manifest)


def _expected_bytes(about: Mapping[str, Any]) -> int:
    """The size of a split's file; raise a TypeError if the manifest's entry is damaged."""
    for name, kind in ENTRY_TYPES.items():
        if type(about[name]) is not kind:
            raise TypeError(f"{name} is {about[name]!r}")
    return int(about["tokens"] * np.dtype(about["dtype"]).itemsize)


def split_from_text(text: bytes, vocab: Vocab) -> Split:
    """Encode a text in memory as a split."""
    if not text:
        raise UserError("the text is empty; give at least one character")
    return Split(vocab.encode(text), len(text), count_words(text), vocab.start)


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
    return dataclasses.replace(
        split, ids=ids, size_bytes=split.size_bytes - dropped, words=split.words - dropped
    )


def truncate_split(split: Split, size_bytes: int, vocab: Vocab) -> Split:
    """Return the tokens that lie entirely within the first `size_bytes` of the text."""
    if size_bytes >= split.size_bytes:
        return split
    lengths = np.array([len(vocab.token_bytes(id)) for id in range(vocab.size)], np.int64)
    ends = np.cumsum(lengths[split.ids[:size_bytes]])
    tokens = int(np.searchsorted(ends, size_bytes, side="right"))
    if not tokens:
        raise UserError(
            f"there is no whole token in the first {pluralize(size_bytes, 'byte')}; use more"
        )
    text = b"".join(vocab.token_bytes(id) for id in split.ids[:tokens].tolist())
    return Split(split.ids[:tokens], len(text), count_words(text), split.start)


def _folder_name(config: DataConfig, source: Path | None) -> str:
    identity = json.dumps([FORMAT, to_json(config), fingerprint(config.corpus, source)])
    digest = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(config.corpus).name).strip("-")[:40]
    return f"{name or 'text'}-{config.vocab}-{digest}"


def _tokenize(folder: Path, config: DataConfig, texts: dict[str, bytes], progress: bool) -> None:
    if not config.newlines:
        texts = {split: text.replace(b"\n", b"") for split, text in texts.items()}
    if config.vocab not in ("bytes", "symbols") and any(b"\0" in text for text in texts.values()):
        raise UserError(f"{config.corpus} holds NUL bytes, so it is not text; set data.vocab=bytes")
    order = config.symbol_order
    vocab = train_vocab(config.vocab, texts["train"], config.vocab_size, symbol_order=order)
    with atomic_folder(folder) as scratch:
        # With None, tqdm prints only to a terminal.
        silent = None if progress else True
        bar = tqdm(SPLITS, f"tokenizing {escape_line(config.corpus)}", disable=silent, leave=False)
        manifest = {
            "format": FORMAT,
            "config": to_json(config),
            "vocab": vocab.to_json(),
            "splits": {split: _write_split(scratch, split, texts[split], vocab) for split in bar},
        }
        write_json(scratch / "meta.json", manifest)


def _write_split(folder: Path, split: str, text: bytes, vocab: Vocab) -> dict[str, Any]:
    ids = vocab.encode(text)
    if not ids.size:
        raise UserError(f"the {split} split holds no tokens; use a larger corpus")
    dtype = smallest_dtype(vocab.size)
    write_bytes(folder / f"{split}.bin", ids.astype(dtype, copy=False).data)
    return {
        "tokens": int(ids.size),
        "bytes": len(text),
        "words": count_words(text),
        "dtype": dtype.str,
        "sha256": hashlib.sha256(ids.data).hexdigest(),
        "text_sha256": hashlib.sha256(text).hexdigest(),
    }
