"""Contestants of a comparison: a recipe as it is, and what is tried instead."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sparing.config import differences
from sparing.errors import UserError
from sparing.runs.config import RunConfig, with_settings

RECIPE = "recipe"
"""The variant that is the recipe as it is."""
SEPARATOR = re.compile(r";|,(?=\s*\w+(?:\.\w+)+\s*=)")
"""Between two settings; a comma inside a value is followed by no `group.name=`."""
ALIKE = (
    "recipe:", "family:", "model.vocab_size:", "data.", "evaluate.", "train.evaluate_bytes:",
    "train.steps:", "train.epochs:", "train.minutes:", "train.seed:",
)  # fmt: skip
"""Settings in which variants may not differ, or their figures would not compare.

A vocabulary may drop white space or case, so that less is left to predict.
"""
LONGEST = 80
"""Characters of a folder's name."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Complete settings under a name."""

    name: str
    run: RunConfig
    settings: tuple[str, ...] = ()
    """What was tried, as it was written."""

    @property
    def folder(self) -> str:
        """The name as the start of a folder's name."""
        bare = re.sub(r"[()\[\]]", "", self.name)
        safe = re.sub(r"[^A-Za-z0-9_.=+-]+", "-", bare).strip("-.")
        if safe and len(safe) <= LONGEST:
            return safe
        digest = hashlib.sha256(self.name.encode()).hexdigest()[:8]
        return f"{safe[: LONGEST - 9]}-{digest}".lstrip("-")

    def seeded(self, seed: int) -> RunConfig:
        """The settings of its training number `seed`, counted from 0."""
        return with_settings(self.run, [f"train.seed={self.run.train.seed + seed}"])


def variants(base: RunConfig, tries: Sequence[str]) -> list[Variant]:
    """The recipe as it is, and one more for every try; refused where two are the same."""
    if not tries:
        raise UserError('name at least one --try, such as --try "model.dim=256; optim.lr=1e-3"')
    found = [Variant(RECIPE, base)]
    for text in tries:
        one = _read(base, text)
        for other in found:
            _refuse_twins(one, other)
        found.append(one)
    return found


def _read(base: RunConfig, text: str) -> Variant:
    """`NAME: a.b=1; c.d=2`; without a name, the settings are the name."""
    head, colon, rest = text.partition(":")
    name, words = (head, rest) if colon and "=" not in head else ("", text)
    settings = [each.strip() for each in SEPARATOR.split(words) if each.strip()]
    name = " ".join(name.split()) or "; ".join(settings)
    if not settings or not name.isprintable():
        raise UserError(f'cannot read try {text!r}; write it as "a.b=1; c.d=2" or "name: a.b=1"')
    try:
        run = with_settings(base, settings)
    except UserError as problem:
        raise UserError(f"{name}: {problem}") from None
    if unlike := [each for each in differences(base, run) if each.startswith(ALIKE)]:
        raise UserError(f"try {name!r} cannot change {unlike[0]}: that is the same for all (--set)")
    return Variant(name, run, tuple(settings))


def _refuse_twins(one: Variant, other: Variant) -> None:
    if one.run == other.run:
        raise UserError(f"try {one.name!r} has the settings of {other.name!r}; leave one out")
    if one.folder == other.folder:
        raise UserError(f"two variants would be called {one.folder!r}; write `NAME:` before one")
