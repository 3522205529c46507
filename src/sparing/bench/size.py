"""Sizes a recipe is measured at: its own, or a small one that a CPU gets through in seconds."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch

from sparing.models.sha_rnn import SHARNNConfig
from sparing.models.transformer_xl import TransformerXLConfig
from sparing.runs.config import RunConfig

Size = Literal["auto", "small", "full"]
Purpose = Literal["train", "generate", "evaluate"]

DIM: Mapping[Purpose, int] = {"train": 512, "generate": 64, "evaluate": 512}
"""As near to the real widths as two cores get through in a minute, for the share of matrix work
grows with the width; generation reads a million tokens on its way, so it has to be narrower."""
BATCH, SEGMENT, MEMORY, DEPTH = 8, 128, 512, 2


def settle(size: Size, device: torch.device) -> Literal["small", "full"]:
    """What `auto` means: small on a CPU, full elsewhere."""
    if size == "auto":
        return "small" if device.type == "cpu" else "full"
    return size


def small(run: RunConfig, purpose: Purpose) -> RunConfig:
    """The run at a size for CPUs; nothing is enlarged, and a model made for them stays as it is."""
    shrink = SHRINK.get(run.family)
    model = shrink(run.model, DIM[purpose]) if shrink else run.model
    if shrink and model == run.model:
        return run
    train = replace(
        run.train,
        batch=min(run.train.batch, BATCH),
        segment=min(run.train.segment, SEGMENT),
        batch_split=1,
    )
    return replace(run, train=train, model=model)


def small_sha_rnn(config: SHARNNConfig, dim: int) -> SHARNNConfig:
    """At most `dim` wide, with a shorter memory; Boom stays as many times wider as it was."""
    dim = min(config.dim, dim)
    return replace(
        config,
        dim=dim,
        boom_dim=config.boom_dim // config.dim * dim,
        memory=min(config.memory, MEMORY),
    )


def small_transformer_xl(config: TransformerXLConfig, dim: int) -> TransformerXLConfig:
    """At most `dim` wide, few layers, a shorter memory; proportions inside a layer stay."""
    dim = min(config.dim, dim)
    return replace(
        config,
        dim=dim,
        depth=min(config.depth, DEPTH),
        head_dim=max(1, config.head_dim * dim // config.dim),
        ff_dim=config.ff_dim * dim // config.dim,
        memory=min(config.memory, MEMORY),
    )


SHRINK: Mapping[str, Callable[[Any, int], Any]] = {
    "sha_rnn": small_sha_rnn,
    "transformer_xl": small_transformer_xl,
}
