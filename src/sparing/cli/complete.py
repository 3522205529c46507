"""Tab completion of recipes, corpora and run folders, without importing them."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from sparing.data.corpora import CORPORA

RECIPES = Path(__file__).parents[1] / "runs" / "recipes"
RECIPE = re.compile(r"^def ([a-z]\w*)\(\) -> RunConfig", re.MULTILINE)
MOST = 50
"""Most run folders to offer."""


def complete_recipes(incomplete: str) -> list[str]:
    """Names of recipes, read from their files: importing them takes seconds."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(RECIPES.glob("*.py"))]
    return [name for text in texts for name in RECIPE.findall(text) if name.startswith(incomplete)]


def complete_corpora(incomplete: str) -> list[str]:
    """Names of corpora."""
    return [name for name in CORPORA if name.startswith(incomplete)]


def complete_runs(incomplete: str) -> list[str]:
    """Run folders that begin like this, at most two folders further down."""
    parent, _, start = incomplete.rpartition("/")
    above = Path(f"{parent}/" if parent or incomplete.startswith("/") else ".")
    try:
        found = [each for each in sorted(above.iterdir()) if each.name.startswith(start)]
        return [str(path) for path in islice((run for each in found for run in _runs(each)), MOST)]
    except OSError:
        return []


def complete_recipes_and_runs(incomplete: str) -> list[str]:
    """Recipes and run folders."""
    return [*complete_recipes(incomplete), *complete_runs(incomplete)]


def _runs(folder: Path, depth: int = 2) -> Iterator[Path]:
    if folder.name.startswith(".") or not folder.is_dir():
        return
    if (folder / "config.json").is_file():
        yield folder
    elif depth:
        for below in sorted(folder.iterdir()):
            yield from _runs(below, depth - 1)
