"""A corpus as numbers, made once: a folder of memory-mapped files and a manifest."""

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
from sparing.data.fetch import home
from sparing.data.local import SPLITS, building
from sparing.data.splits import check_source, fingerprint, read_splits
from sparing.data.text import count_words, unsigned
from sparing.data.vocab import Kind, Vocab, learn, vocab_from_json
from sparing.errors import UserError, unknown
from sparing.files import read_object, write_bytes, write_json
from sparing.units import counted

FORMAT = 1
BYTE_LIKE = ("bytes", "symbols", "characters")
"""Vocabularies in which a newline is one token of its own."""
ENTRY = {"tokens": int, "bytes": int, "words": int, "dtype": str, "text_sha256": str}
"""What is read of a split's entry in the manifest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Which text, and how it becomes numbers."""

    corpus: str = "python-stdlib"
    """A name from `sparing data list`, or a path to a file or folder of text."""
    vocab: Kind = "bytes"
    """What one token is."""
    vocab_size: int | None = None
    """How many pieces to learn (pieces and par-pieces only); none: 8192, or 12000 for par."""
    symbol_order: Literal["frequency", "appearance"] = "frequency"
    """Order of the ids of `symbols`: SHA-RNN's, or that of Adaptive Span's released models."""
    newlines: bool = True
    """False: newlines are removed before tokenising, as Transformer-XL does for enwik8."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A run of tokens and the text it stands for."""

    ids: npt.NDArray[Any]
    size_bytes: int
    """Bytes of text before tokenising; a lossy vocabulary may have dropped some of them."""
    words: int
    """Words between whitespace plus one for each line end: what word perplexity divides by."""
    start: int
    """The id fed before the first token."""


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """A prepared corpus."""

    folder: Path
    vocab: Vocab
    config: DataConfig
    manifest: Mapping[str, Any]

    def split(self, name: str) -> Split:
        """Map one of train, valid and test; nothing is read before it is used."""
        if name not in SPLITS:
            raise unknown("split", name, SPLITS)
        about = self.manifest["splits"][name]
        ids = np.memmap(self.folder / f"{name}.bin", np.dtype(about["dtype"]), "r")
        return Split(ids, about["bytes"], about["words"], self.vocab.start)

    def texts(self) -> dict[str, str]:
        """The SHA-256 of each split's text, as it was before tokenising."""
        return {name: self.manifest["splits"][name]["text_sha256"] for name in SPLITS}


def prepare(config: DataConfig, source: Path | None = None, *, progress: bool = True) -> Tokens:
    """Tokenise a corpus, or open what an earlier call has made."""
    if config.vocab_size is not None and not config.vocab.endswith("pieces"):
        raise UserError(f"data.vocab_size is for pieces; data.vocab={config.vocab} finds its own")
    if source is not None:
        check_source(config.corpus, source)
    folder = place(config, source)
    if not folder.exists():
        texts = read_splits(config.corpus, source, progress=progress)
        _build(folder, config, texts, progress)
    return open_tokens(folder)


def place(config: DataConfig, source: Path | None = None) -> Path:
    """Where the tokens of a corpus are kept, whether there are any yet or not."""
    return home() / "tokens" / _folder_name(config, source)


def open_tokens(folder: Path) -> Tokens:
    """Open a prepared corpus; a UserError when a file of it is missing or cut short."""
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
                size = counted(found, "byte")
                raise UserError(f"{path} has {size} instead of {expected:,}; {remedy}")
    except (KeyError, TypeError, AttributeError, ValueError) as problem:
        raise UserError(f"{folder / 'meta.json'} is damaged: {problem!r}; {remedy}") from None
    return Tokens(folder, vocab, config, manifest)


def _expected_bytes(about: Mapping[str, Any]) -> int:
    """The size of a split's file; a TypeError where the manifest's entry is not as written."""
    for name, kind in ENTRY.items():
        if type(about[name]) is not kind:
            raise TypeError(f"{name} is {about[name]!r}")
    return int(about["tokens"] * np.dtype(about["dtype"]).itemsize)


def tokens_from_text(text: bytes, vocab: Vocab) -> Split:
    """A text held in memory as a split, for scoring it."""
    if not text:
        raise UserError("there is no text to score: it is empty")
    return Split(vocab.encode(text), len(text), count_words(text), vocab.start)


def without_newlines(split: Split, vocab: Vocab) -> Split:
    """The same split under the `no-newlines` protocol: line ends neither read nor predicted."""
    if vocab.kind not in BYTE_LIKE:
        raise UserError(
            f"the no-newlines protocol needs newlines as tokens of their own; "
            f"data.vocab={vocab.kind} has none, use one of {', '.join(BYTE_LIKE)}"
        )
    if vocab.token_bytes(vocab.start) != b"\n":
        return split
    ids = split.ids[split.ids != vocab.start]
    dropped = split.ids.size - ids.size
    return dataclasses.replace(
        split, ids=ids, size_bytes=split.size_bytes - dropped, words=split.words - dropped
    )


def first_bytes(split: Split, count: int, vocab: Vocab) -> Split:
    """The tokens that lie wholly in the first `count` bytes of the text, as `vocab` writes it."""
    if count >= split.size_bytes:
        return split
    lengths = np.array([len(vocab.token_bytes(id)) for id in range(vocab.size)], np.int64)
    ends = np.cumsum(lengths[split.ids[:count]])
    tokens = int(np.searchsorted(ends, count, side="right"))
    if not tokens:
        raise UserError(f"no whole token in the first {counted(count, 'byte')}; ask for more")
    text = b"".join(vocab.token_bytes(id) for id in split.ids[:tokens].tolist())
    return Split(split.ids[:tokens], len(text), count_words(text), split.start)


def _folder_name(config: DataConfig, source: Path | None) -> str:
    identity = json.dumps([FORMAT, to_json(config), fingerprint(config.corpus, source)])
    digest = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(config.corpus).name).strip("-")[:40]
    return f"{name or 'text'}-{config.vocab}-{digest}"


def _build(folder: Path, config: DataConfig, texts: dict[str, bytes], progress: bool) -> None:
    if not config.newlines:
        texts = {split: text.replace(b"\n", b"") for split, text in texts.items()}
    if config.vocab not in ("bytes", "symbols") and any(b"\0" in text for text in texts.values()):
        raise UserError(f"{config.corpus} holds NUL bytes, so it is not text; set data.vocab=bytes")
    vocab = learn(config.vocab, texts["train"], config.vocab_size, symbol_order=config.symbol_order)
    with building(folder) as scratch:
        # None: tqdm stays silent where nobody watches, as in a log.
        silent = None if progress else True
        bar = tqdm(SPLITS, f"tokenising {config.corpus}", disable=silent, leave=False)
        manifest = {
            "format": FORMAT,
            "config": to_json(config),
            "vocab": vocab.to_json(),
            "splits": {split: _write(scratch, split, texts[split], vocab) for split in bar},
        }
        write_json(scratch / "meta.json", manifest)


def _write(folder: Path, split: str, text: bytes, vocab: Vocab) -> dict[str, Any]:
    ids = vocab.encode(text)
    if not ids.size:
        raise UserError(f"the {split} split holds no tokens; the corpus is too small")
    dtype = unsigned(vocab.size)
    write_bytes(folder / f"{split}.bin", ids.astype(dtype, copy=False).data)
    return {
        "tokens": int(ids.size),
        "bytes": len(text),
        "words": count_words(text),
        "dtype": dtype.str,
        "sha256": hashlib.sha256(ids.data).hexdigest(),
        "text_sha256": hashlib.sha256(text).hexdigest(),
    }
