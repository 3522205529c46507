"""Learning rate schedules: a factor on the base rate for every step."""

import math
from dataclasses import dataclass
from typing import Literal

from sparing.errors import UserError

Shape = Literal["constant", "cosine", "linear", "cooldown", "drops"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """The learning rate schedule of a run."""

    shape: Shape = "cosine"
    """What follows the warm-up: one of the shapes below."""
    warmup: int = 0
    """Steps of linear warm-up; the rate of the first step is not zero."""
    cooldown: int = 0
    """`cooldown` only: full rate until this step, then linearly to zero at twice that step."""
    floor: float = 0.0
    """`cosine` and `linear` only: the factor at the end of the decay."""
    hold: float = 0.0
    """`cosine` and `linear` only: the share of the run at full rate before the decay begins."""
    end: float = 1.0
    """`cosine` and `linear` only: the share of the run after which the rate stays at the floor."""
    drops: tuple[float, ...] = ()
    """`drops` only: shares of the run at which the rate is divided by ten."""

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.cooldown < 0:
            raise UserError("schedule: warmup and cooldown are numbers of steps, at least 0")
        if not 0.0 <= self.floor <= 1.0:
            raise UserError(f"schedule: floor must be between 0 and 1, not {self.floor}")
        if not 0.0 <= self.hold < 1.0:
            raise UserError(f"schedule: hold must be at least 0 and below 1, not {self.hold}")
        if not self.hold < self.end <= 1.0:
            raise UserError(f"schedule: end must be above hold and at most 1, not {self.end}")
        if not all(0.0 <= share <= 1.0 for share in self.drops):
            raise UserError(f"schedule: drops are shares of the run, not {self.drops}")


def lr_factor(config: ScheduleConfig, step: int, fraction: float) -> float:
    """The factor on the base rate at `step`, counted from 1.

    `fraction` is the share of the run that is done, in steps or, for a time budget, in minutes.
    """
    warm = min(step, config.warmup) / config.warmup if config.warmup else 1.0
    if config.shape == "constant":
        return warm
    if config.shape == "cooldown":
        return max(0.0, warm - _cool(config.cooldown, step))
    if config.shape == "drops":
        # A pass ends when its last token is read: rounding must not keep the rate up for a step.
        return warm * 0.1 ** sum(fraction >= share - 1e-9 for share in config.drops)
    return warm * _decay(config, fraction)


def _cool(cooldown: int, step: int) -> float:
    return _clip((step - cooldown) / cooldown) if cooldown else 0.0


def _decay(config: ScheduleConfig, fraction: float) -> float:
    done = _clip((fraction - config.hold) / (config.end - config.hold))
    left = 0.5 * (1.0 + math.cos(math.pi * done)) if config.shape == "cosine" else 1.0 - done
    return config.floor + (1.0 - config.floor) * left


def _clip(share: float) -> float:
    return min(1.0, max(0.0, share))
