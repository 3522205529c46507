"""Everything that decides a run, as one value."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sparing import config
from sparing.data.tokens import DataConfig
from sparing.errors import UserError, unknown_name
from sparing.models import FAMILIES
from sparing.train.config import TrainConfig
from sparing.train.optim import OptimConfig
from sparing.train.schedule import ScheduleConfig

YOUNG = [("rounds", 1), ("key_shift", False), ("rotary_fraction", 1.0)]
"""Settings younger than some checkpoints, as these have them: they do not name them, nor do we."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateConfig:
    """How the run's own figures are measured."""

    batch: int = 8
    """Carried streams the split is cut into."""
    segment: int = 1024
    """Tokens read at a time."""

    def __post_init__(self) -> None:
        if min(self.batch, self.segment) < 1:
            raise ValueError("evaluate.batch and evaluate.segment must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """A complete, re-runnable description."""

    recipe: str
    """The recipe this run started from."""
    family: str
    """Model family."""
    model: Any
    """The family's own config."""
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must agree on to be loaded."""
        model = config.to_json(self.model)
        named = {name: value for name, value in model.items() if (name, value) not in YOUNG}
        return {"family": self.family, **named}


def to_json(run: RunConfig) -> dict[str, Any]:
    """A plain dict that `from_json` turns back into an equal config."""
    return config.to_json(run)


def from_json(data: Mapping[str, Any]) -> RunConfig:
    """Read a run's config, checking every name and type."""
    family = data.get("family")
    if family not in FAMILIES:
        raise unknown_name("model family", str(family), FAMILIES)
    model = data.get("model")
    if not isinstance(model, Mapping):
        raise UserError("setting model must be a group of settings")
    with _complaints():
        built = config.from_json(FAMILIES[family].config, model, "model.")
        return config.from_json(RunConfig, {**data, "model": built})


def with_settings(run: RunConfig, settings: Sequence[str]) -> RunConfig:
    """Apply `a.b=3` assignments."""
    if any(setting.partition("=")[0].strip() == "family" for setting in settings):
        raise UserError("the family of a recipe cannot be set; name another recipe")
    with _complaints():
        return config.with_settings(run, settings)


def for_vocab(run: RunConfig, size: int) -> RunConfig:
    """The same run with the vocabulary its data turned out to have."""
    with _complaints():
        return replace(run, model=replace(run.model, vocab_size=size))


@contextmanager
def _complaints() -> Iterator[None]:
    """A config that refuses its values says so with ValueError; the user gets the sentence."""
    try:
        yield
    except ValueError as problem:
        raise UserError(f"bad setting: {problem}") from None
