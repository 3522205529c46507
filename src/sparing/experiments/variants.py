"""Variants: complete settings under a name, and how they are written on the command line."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sparing.config import differences
from sparing.errors import UserError
from sparing.runs.config import RunConfig, with_settings

RECIPE = "recipe"
"""Name of the variant that is the recipe as it is."""
SEPARATOR = re.compile(r";|,(?=\s*\w+(?:\.\w+)+\s*=)")
"""Between two settings; a comma inside a value is not followed by `group.name=`."""
SHARED = (
    "recipe:", "family:", "model.vocab_size:", "data.", "evaluate.", "train.evaluate_bytes:",
    "train.steps:", "train.epochs:", "train.minutes:", "train.seed:",
)  # fmt: skip
"""Settings in which variants may not differ, or their results could not be compared.

That includes the vocabulary, which may drop white space or case and so leave less to predict.
"""
FOLDER_CHARS = 80
"""Most characters of a folder's name."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Complete settings under a name."""

    name: str
    run: RunConfig
    settings: tuple[str, ...] = ()
    """What it changes in the recipe, as written on the command line."""

    @property
    def folder(self) -> str:
        """Its name as the first part of a folder's name."""
        bare = re.sub(r"[()\[\]]", "", self.name)
        safe = re.sub(r"[^A-Za-z0-9_.=+-]+", "-", bare).strip("-.")
        if safe and len(safe) <= FOLDER_CHARS:
            return safe
        digest = hashlib.sha256(self.name.encode()).hexdigest()[:8]
        return f"{safe[: FOLDER_CHARS - 9]}-{digest}".lstrip("-")

    def with_seed(self, seed: int) -> RunConfig:
        """The settings of trial number `seed`, counted from 0."""
        return with_settings(self.run, [f"train.seed={self.run.train.seed + seed}"])


def read_variants(base: RunConfig, texts: Sequence[str]) -> list[Variant]:
    """The recipe as it is, and a variant for each text; no two may be the same."""
    if not texts:
        example = '--variant "model.dim=256; optim.lr=1e-3"'
        raise UserError(f"name at least one --variant, such as {example}")
    found = [Variant(RECIPE, base)]
    for text in texts:
        one = _read_variant(base, text)
        for other in found:
            _refuse_duplicates(one, other)
        found.append(one)
    return found


def _read_variant(base: RunConfig, text: str) -> Variant:
    """Parse `NAME: a.b=1; c.d=2`; without a name, the settings are the name."""
    head, colon, rest = text.partition(":")
    name, words = (head, rest) if colon and "=" not in head else ("", text)
    settings = [each.strip() for each in SEPARATOR.split(words) if each.strip()]
    name = " ".join(name.split()) or "; ".join(settings)
    if not settings or not name.isprintable():
        raise UserError(f'cannot read variant {text!r}; write "a.b=1; c.d=2" or "name: a.b=1"')
    try:
        run = with_settings(base, settings)
    except UserError as problem:
        raise UserError(f"{name}: {problem}") from None
    if fixed := [each for each in differences(base, run) if each.startswith(SHARED)]:
        raise UserError(
            f"variant {name!r} cannot change {fixed[0]}: all variants share it; use --set"
        )
    return Variant(name, run, tuple(settings))


def _refuse_duplicates(one: Variant, other: Variant) -> None:
    if one.run == other.run:
        raise UserError(f"variant {one.name!r} has the settings of {other.name!r}; leave one out")
    if one.folder == other.folder:
        raise UserError(f"two variants would be called {one.folder!r}; give one another `NAME:`")
