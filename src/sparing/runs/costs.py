"""What a model of a run consists of and costs: parameters, FLOPs and carried state."""

from typing import Any

from sparing.data.vocab import ONE_BYTE
from sparing.models.cost import cost
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig


def costs(run: RunConfig) -> dict[str, Any]:
    """Family, parameters, FLOPs per token (and per byte, where that is the same), state bytes."""
    found = cost(build_model(run, "meta"))
    return {
        "family": run.family,
        "parameters": {
            "training": found.parameters_training,
            "deployed": found.parameters_deployed,
        },
        "flops_per_token": found.flops_per_token,
        **({"flops_per_byte": found.flops_per_token} if run.data.vocab in ONE_BYTE else {}),
        "state_bytes": found.state_bytes,
    }


def named_parameters(run: RunConfig) -> list[dict[str, Any]]:
    """Name, shape and count of every parameter, those that only training needs included."""
    return [
        {"name": name, "shape": list(parameter.shape), "count": parameter.numel()}
        for name, parameter in build_model(run, "meta").named_parameters()
    ]
