"""Models, streams and trainings built from settings."""

from contextlib import nullcontext

import torch

from sparing.data.stream import Cursor, Stream, StreamConfig
from sparing.data.tokens import Split, Tokens
from sparing.device import Hardware, seed_everything
from sparing.errors import UserError
from sparing.launch import current_launch
from sparing.models import FAMILIES
from sparing.models.api import LanguageModel
from sparing.runs.config import RunConfig
from sparing.training.distributed.world import SegmentLoss, World
from sparing.training.optim import build_optimizer, freeze_others
from sparing.training.state import LossScale, Training, initial_state

RANK_STRIDE = 1_000_003
"""Distance between the dropout seeds of two ranks."""


def build_model(run: RunConfig, device: torch.device | str = "cpu") -> LanguageModel:
    """A newly initialised model; the device `meta` builds it without weights.

    Weights are drawn on the CPU, so that a seed gives the same weights on every device.
    """
    family = FAMILIES[run.family]
    on_meta = str(device) == "meta"
    try:
        with torch.device("meta") if on_meta else nullcontext():
            model = family.model(run.model)
    except ValueError as problem:
        # Modules check what a config cannot; their message is written for the user.
        raise UserError(f"bad setting: {problem}") from None
    return model if on_meta else model.to(device)


def prepare_for(hardware: Hardware, model: LanguageModel, *, compiled: bool) -> LanguageModel:
    """Compile the parts of a model that benefit from it, on a GPU only."""
    if compiled and hardware.device.type == "cuda":
        # Training and evaluation, empty and full memories are compiled separately, and beyond the
        # default limit torch would silently stop compiling.
        torch._dynamo.config.recompile_limit = 64
        model.compile_parts()
    return model


def build_training(
    run: RunConfig, text: Split, hardware: Hardware, world: World, *, head_start_s: float = 0.0
) -> Training:
    """A training before its first step. All ranks have the same weights, but other lanes."""
    seed_everything(run.train.seed)
    model = prepare_for(hardware, build_model(run, hardware.device), compiled=run.train.compiled)
    freeze_others(model, run.optim.trainable)
    # The same weights on every rank, but not the same dropout.
    if world.rank:
        seed_everything((run.train.seed + RANK_STRIDE * world.rank) % (1 << 63))
    # Before the optimizer is built, as wrapping may shard the parameters.
    loss = world.wrap(SegmentLoss(model))
    lanes = world.lanes(run.train.batch)
    return Training(
        model=model,
        loss=loss,
        optimizer=build_optimizer(model, run.optim),
        stream=_stream(text, stream_config(run, pad_last=model.static_shapes), world, Cursor()),
        hardware=hardware,
        state=initial_state(model, loss, hardware, world, len(lanes)),
        world=world,
        scale=LossScale.for_precision(hardware.precision),
        clip=run.optim.clip,
        bytes_per_token=text.size_bytes / len(text.ids),
        head_start_s=head_start_s,
        launched=current_launch().id is not None,
    )


def stream_config(run: RunConfig, *, pad_last: bool = False) -> StreamConfig:
    """How the text of a run is split into lanes and segments."""
    t = run.train
    return StreamConfig(
        batch=t.batch,
        segment=t.segment,
        randomised=t.randomised,
        length_std=t.length_std,
        halved=t.halved,
        longest=t.longest,
        seed=t.seed,
        random_epoch_offset=t.random_epoch_offset,
        shuffle_chunk=t.shuffle_chunk,
        shuffle_reset=t.shuffle_reset,
        pad_last=pad_last,
    )


def build_stream(
    tokens: Tokens, config: StreamConfig, world: World, cursor: Cursor | None = None
) -> Stream:
    """The lanes of this rank in the training text, starting at `cursor`."""
    return _stream(tokens.split("train"), config, world, cursor or Cursor())


def _stream(text: Split, config: StreamConfig, world: World, cursor: Cursor) -> Stream:
    stream = Stream(text, config, world.lanes(config.batch), cursor)
    # Raises an error for a text that is too small, before anything is written.
    stream.segments()
    return stream
