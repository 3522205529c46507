"""Sizes a recipe is measured at: its own, or a small one that a CPU gets through in seconds."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch

from sparing.models.sha_rnn import SHARNNConfig
from sparing.runs.config import RunConfig

Size = Literal["auto", "small", "full"]
Purpose = Literal["train", "generate"]

DIM: Mapping[Purpose, int] = {"train": 256, "generate": 64}
"""Generation reads a million tokens on its way, so it has to be narrower."""
BATCH, SEGMENT, MEMORY = 16, 128, 512


def settle(size: Size, device: torch.device) -> Literal["small", "full"]:
    """What `auto` means: small on a CPU, full elsewhere."""
    if size == "auto":
        return "small" if device.type == "cpu" else "full"
    return size


def small(run: RunConfig, purpose: Purpose) -> RunConfig:
    """The run at a size for CPUs; nothing is ever enlarged."""
    train = replace(
        run.train,
        batch=min(run.train.batch, BATCH),
        segment=min(run.train.segment, SEGMENT),
        batch_split=1,
    )
    shrink = SHRINK.get(run.family)
    return replace(run, train=train, model=shrink(run.model, DIM[purpose]) if shrink else run.model)


def small_sha_rnn(config: SHARNNConfig, dim: int) -> SHARNNConfig:
    """At most `dim` wide, with a shorter memory; Boom stays as many times wider as it was."""
    dim = min(config.dim, dim)
    return replace(
        config,
        dim=dim,
        boom_dim=config.boom_dim // config.dim * dim,
        memory=min(config.memory, MEMORY),
    )


SHRINK: Mapping[str, Callable[[Any, int], Any]] = {"sha_rnn": small_sha_rnn}
