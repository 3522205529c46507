"""Sizes a recipe is measured at: its own, or a small one that a CPU gets through in seconds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch

from sparing.runs.config import RunConfig

Size = Literal["auto", "small", "full"]
Purpose = Literal["train", "generate", "evaluate"]

DIM: Mapping[Purpose, int] = {"train": 512, "generate": 64, "evaluate": 512}
"""As near to the real widths as two cores get through in a minute, for the share of matrix work
grows with the width; generation reads a million tokens on its way, so it has to be narrower."""
BATCH, SEGMENT, DEPTH = 8, 128, 2
MOST = {"memory": 512, "span_limit": 512, "persistent": 512, "vocab_size": 40_000}
"""What no small model has more of."""
WIDTHS = ("dim", "hidden_dim", "head_dim", "ff_dim", "boom_dim")


def settle(size: Size, device: torch.device) -> Literal["small", "full"]:
    """What `auto` means: small on a CPU, full elsewhere."""
    if size == "auto":
        return "small" if device.type == "cpu" else "full"
    return size


def small(run: RunConfig, purpose: Purpose) -> RunConfig:
    """The run at a size for CPUs; nothing is enlarged, and a model made for them stays as it is."""
    model = small_model(run.model, DIM[purpose])
    if model == run.model:
        return run
    train = replace(
        run.train,
        batch=min(run.train.batch, BATCH),
        segment=min(run.train.segment, SEGMENT),
        micro_batches=1,
    )
    return replace(run, train=train, model=model)


def small_model(config: Any, dim: int) -> Any:
    """At most `dim` wide, few layers, short memories, fewer words; its proportions stay."""
    lengths = {
        name: min(getattr(config, name), most)
        for name, most in MOST.items()
        if hasattr(config, name)
    }
    return replace(config, **lengths, **_widths(config, dim), **_layers(config), **_cuts(config))


def _widths(config: Any, dim: int) -> dict[str, int]:
    """All of them times what brings the recurrent layers, or else the stream, down to `dim`."""
    own = getattr(config, "hidden_dim", config.dim)
    found = {name: getattr(config, name, None) for name in WIDTHS}
    return {name: max(1, width * min(own, dim) // own) for name, width in found.items() if width}


def _layers(config: Any) -> dict[str, Any]:
    """Two layers of a Transformer, two branches of every kind in a stack; LSTMs are few anyhow."""
    if hasattr(config, "pattern"):
        return {"pattern": _first_of_each(config.letters), "rounds": 1}
    return {"depth": min(config.depth, DEPTH)} if hasattr(config, "heads") else {}


def _first_of_each(letters: str) -> str:
    kept = (at for at, each in enumerate(letters) if letters[:at].count(each) < DEPTH)
    return "".join(letters[at] for at in kept)


def _cuts(config: Any) -> dict[str, Any]:
    cutoffs = getattr(config, "cutoffs", ())
    kept = tuple(cut for cut in cutoffs if cut < MOST["vocab_size"])
    return {"cutoffs": kept} if cutoffs else {}
