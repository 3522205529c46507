"""What an export starts from and what it reports, and the new folder that it writes."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparing.data.vocab import Vocab
from sparing.errors import UserError
from sparing.files import atomic_folder
from sparing.models.api import LanguageModel


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A trained model and what is known about it."""

    model: LanguageModel
    vocab: Vocab
    settings: dict[str, Any]
    """Those of its run, as they are stored."""
    results: dict[str, Any]
    records: Mapping[str, Any]
    """Other JSON files of its run, by their names without suffix."""
    checkpoint: str
    step: int


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    files: int
    size_bytes: int
    parameters: int
    largest_difference: float
    """Of the logits, between the exported model and the model itself."""


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield an empty temporary folder that becomes `out`, unless the block fails."""
    with atomic_folder(out) as scratch:
        written = os.stat(scratch)
        yield scratch
    if not os.path.samestat(written, os.stat(out)):
        raise UserError(f"another process has just created {out}; nothing was written")
