"""How the learning rate moves: a factor on the base rate for every step."""

import math
from dataclasses import dataclass
from typing import Literal

from sparing.errors import UserError

Shape = Literal["constant", "cosine", "linear", "cooldown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """The course of the learning rate over a run."""

    shape: Shape = "cosine"
    """What follows the warm-up."""
    warmup: int = 0
    """Steps of linear warm-up; the first step already moves."""
    cooldown: int = 0
    """`cooldown` only: full rate until this step, then linearly to zero at twice that step."""
    drop_at: int = 0
    """`constant` only: after this step the rate is `drop` of what it was; 0 means never."""
    drop: float = 0.1
    """The factor after `drop_at`."""
    floor: float = 0.0
    """`cosine` and `linear` only: the factor at the end of the run."""
    hold: float = 0.0
    """`cosine` and `linear` only: the share of the run at full rate before the decay begins."""

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.cooldown < 0:
            raise UserError("schedule: warmup and cooldown are numbers of steps, at least 0")
        if self.drop_at < 0 or not 0.0 <= self.drop <= 1.0:
            raise UserError("schedule: drop_at is a step, at least 0, drop between 0 and 1")
        if not 0.0 <= self.floor <= 1.0:
            raise UserError(f"schedule: floor must be between 0 and 1, not {self.floor}")
        if not 0.0 <= self.hold < 1.0:
            raise UserError(f"schedule: hold must be at least 0 and below 1, not {self.hold}")


def factor(config: ScheduleConfig, step: int, fraction: float) -> float:
    """The factor on the base rate at `step`, counted from 1.

    `fraction` is the share of the run that is done, in steps or, for a time budget, in minutes.
    """
    warm = min(step, config.warmup) / config.warmup if config.warmup else 1.0
    if config.shape == "constant":
        return warm * config.drop if 0 < config.drop_at < step else warm
    if config.shape == "cooldown":
        return max(0.0, warm - _cool(config.cooldown, step))
    return warm * _decay(config, fraction)


def _cool(cooldown: int, step: int) -> float:
    return _clip((step - cooldown) / cooldown) if cooldown else 0.0


def _decay(config: ScheduleConfig, fraction: float) -> float:
    done = _clip((fraction - config.hold) / (1.0 - config.hold))
    left = 0.5 * (1.0 + math.cos(math.pi * done)) if config.shape == "cosine" else 1.0 - done
    return config.floor + (1.0 - config.floor) * left


def _clip(share: float) -> float:
    return min(1.0, max(0.0, share))
