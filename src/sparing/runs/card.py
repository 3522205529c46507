"""The model that comes with the package, as its JSON files describe it: without importing torch."""

from pathlib import Path
from typing import Any

from sparing.files import read_object

HOME = Path(__file__).parents[1] / "bundled"
"""A run folder without a journal: settings, vocabulary, provenance, results, best weights."""
COSTS = "costs"
"""Its file of what `runs.costs.costs` computes; that of a search holds block times instead."""


def read_card(home: Path = HOME) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Settings and costs of the bundled model; None where they are not stored."""
    if not ((home / "config.json").is_file() and (home / f"{COSTS}.json").is_file()):
        return None
    return read_object(home / "config.json"), read_object(home / f"{COSTS}.json")
