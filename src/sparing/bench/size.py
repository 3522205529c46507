"""Sizes at which a recipe is measured: its own, or a small one that a CPU runs in seconds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch

from sparing.models.api import SizeLimit
from sparing.runs.config import RunConfig

Size = Literal["auto", "small", "full"]
Purpose = Literal["train", "generate", "evaluate"]

DIM: Mapping[Purpose, int] = {"train": 512, "generate": 64, "evaluate": 512}
"""As near to the real widths as two cores manage in a minute, since the share of matrix work grows
with the width. Generation reads a million tokens, so it has to be narrower."""
BATCH, SEGMENT = 8, 128


def resolve_size(size: Size, device: torch.device) -> Literal["small", "full"]:
    """What `auto` stands for: small on a CPU, full elsewhere."""
    if size == "auto":
        return "small" if device.type == "cpu" else "full"
    return size


def small(run: RunConfig, purpose: Purpose) -> RunConfig:
    """The run at a size for CPUs; a model that is small already stays as it is."""
    model = run.model.smaller(SizeLimit(dim=DIM[purpose]))
    if model == run.model:
        return run
    train = replace(
        run.train,
        batch=min(run.train.batch, BATCH),
        segment=min(run.train.segment, SEGMENT),
        micro_batches=1,
    )
    return replace(run, train=train, model=model)
