"""The cost of a model: parameters in training and deployed, FLOPs, carried state."""

import copy
from dataclasses import dataclass

from sparing.models.api import LanguageModel


@dataclass(frozen=True, slots=True)
class Cost:
    """Sizes and operations of one model."""

    parameters_training: int
    parameters_deployed: int
    flops_per_token: float
    state_bytes: int
    """Carried per lane in float32 once every memory is full."""


def cost(model: LanguageModel) -> Cost:
    """Return the cost of `model`, which is not changed."""
    deployed = copy.deepcopy(model)
    deployed.collapse()
    deployed.refresh()
    return Cost(
        parameters_training=_count(model),
        parameters_deployed=_count(deployed),
        flops_per_token=deployed.flops_per_token(),
        state_bytes=4 * deployed.state_numbers(),
    )


def _count(model: LanguageModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
