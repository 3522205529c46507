"""Everything that decides a run, as one value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic

from typing_extensions import TypeVar

from sparing import config
from sparing.data.tokens import DataConfig
from sparing.errors import UserError, unknown_name
from sparing.files import read_object
from sparing.models import FAMILIES
from sparing.models.api import ModelConfig
from sparing.training.config import TrainConfig
from sparing.training.optim import OptimConfig
from sparing.training.schedule import ScheduleConfig

M = TypeVar("M", bound=ModelConfig, default=ModelConfig, covariant=True)


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
class RunConfig(Generic[M]):
    """A complete description of a run, from which it can be repeated."""

    recipe: str
    """The recipe this run started from."""
    family: str
    """Model family."""
    model: M
    """The family's own config."""
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must agree on to be loaded."""
        return {"family": self.family, "model": config.to_json(self.model)}


def complete_identity(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The identity in a checkpoint, with the settings that it does not name at their defaults."""
    family = FAMILIES.get(str(stored.get("family")))
    if family is None:
        return dict(stored)
    try:
        model = config.from_json(family.config, stored.get("model", {}), "model")
    except UserError:
        # Settings that this version does not know: another model, whatever they say.
        return dict(stored)
    return {**stored, "model": config.to_json(model)}


def to_json(run: RunConfig) -> dict[str, Any]:
    """A plain dict from which `from_json` builds an equal config."""
    return config.to_json(run)


def from_json(data: Mapping[str, Any]) -> RunConfig:
    """Read a run's config, checking names and types; missing settings get their defaults."""
    family = str(data.get("family"))
    if family not in FAMILIES:
        raise unknown_name("model family", family, FAMILIES)
    model = data.get("model")
    if not isinstance(model, Mapping):
        raise UserError("setting model must be a group of settings")
    built = config.from_json(FAMILIES[family].config, model, "model")
    return config.from_json(RunConfig, {**data, "model": built})


def read_config(path: Path) -> RunConfig:
    """Read the settings of a run, or a recipe such as `sparing derive` writes, from a JSON file."""
    stored = read_object(path)
    try:
        return from_json(stored)
    except UserError as problem:
        raise UserError(f"{path}: {problem}") from None


def with_settings(run: RunConfig[M], settings: Sequence[str]) -> RunConfig[M]:
    """Apply `a.b=3` assignments."""
    if any(setting.partition("=")[0].strip() == "family" for setting in settings):
        raise UserError("the family of a recipe cannot be set; name another recipe")
    return config.with_settings(run, settings)


def for_vocab(run: RunConfig[M], size: int) -> RunConfig[M]:
    """The same run with the size that the vocabulary of its data turned out to have."""
    with config.refusals_named("model"):
        return replace(run, model=replace(run.model, vocab_size=size))


def with_memory(run: RunConfig[M], length: int) -> RunConfig[M]:
    """The same run with every setting called `memory`, of the model or its blocks, at `length`."""
    paths = (path for path, _, _ in config.described(run.model, "model."))
    return with_settings(run, [f"{path}={length}" for path in paths if path.endswith(".memory")])
