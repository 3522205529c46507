"""What a run folder stores as JSON beside its settings: provenance, results and texts."""

from pathlib import Path
from typing import Any, TypedDict

from sparing.documents import Count, read_document
from sparing.training.journal import Figures


class Provenance(TypedDict, total=False):
    """The fields of provenance.json that are read again."""

    commit: str | None
    source_sha256: str
    """Of the package's Python files."""
    device: str | None
    precision: str | None
    launch: str | None
    """Identifies the torchrun launch."""
    paced: bool
    """Whether the pace of another run took the place of the clock."""
    imported: str
    """The file of another program that the weights come from."""
    init: dict[str, Any]
    """Where the weights at the start come from, unless they were drawn."""
    resumed: list["Provenance"]


class Result(Figures, total=False):
    """The fields of an entry of results.json that are read again."""

    step: Count
    steps: Count
    checkpoint: str


class Texts(TypedDict):
    """The fields of data.json that are read again."""

    text_sha256: dict[str, str]
    """By split."""


def read_provenance(run: Path) -> Provenance:
    """The provenance of a run; empty if it is not recorded."""
    path = run / "provenance.json"
    return read_document(path, Provenance) if path.exists() else {}


def read_results(run: Path) -> dict[str, Result]:
    """The results of a run by their labels; empty if there are none."""
    path = run / "results.json"
    found = read_document(path, dict[str, Result | None]) if path.exists() else {}
    return {label: result for label, result in found.items() if result is not None}


def read_texts(run: Path) -> dict[str, str] | None:
    """The SHA-256 of the texts a run was trained on; None for a run that was trained elsewhere."""
    path = run / "data.json"
    return read_document(path, Texts)["text_sha256"] if path.exists() else None
