"""Objects from settings."""

from contextlib import nullcontext

import torch

from sparing.data.stream import Cursor, Stream, StreamConfig
from sparing.data.tokens import Split, Tokens
from sparing.device import Hardware, seed_everything
from sparing.errors import UserError
from sparing.launch import launch
from sparing.models import FAMILIES
from sparing.models.api import LanguageModel, State
from sparing.runs.config import RunConfig
from sparing.train.distributed.world import Loss, World
from sparing.train.loss_scale import LossScale
from sparing.train.optim import build_optimizer
from sparing.train.state import Training

RANK_STRIDE = 1_000_003
"""Between the seeds of two ranks' dropout."""


def build_model(run: RunConfig, device: torch.device | str = "cpu") -> LanguageModel:
    """A freshly initialised model; `meta` builds its shape without its weights.

    Weights are drawn on the CPU, so that a seed means the same weights on every device.
    """
    family = FAMILIES[run.family]
    on_meta = str(device) == "meta"
    try:
        with torch.device("meta") if on_meta else nullcontext():
            model = family.model(run.model)
    except ValueError as problem:
        # Bricks refuse what no config can foresee; their sentence is meant for the user.
        raise UserError(f"bad setting: {problem}") from None
    return model if on_meta else model.to(device)


def prepare_for(hardware: Hardware, model: LanguageModel, *, compiled: bool) -> LanguageModel:
    """Compile what gains, where it gains: on a GPU."""
    if compiled and hardware.device.type == "cuda":
        # Training and evaluation, empty and full memories: each is a version of its own, and the
        # default limit would send the later ones back to plain execution without a word.
        torch._dynamo.config.recompile_limit = 64
        model.compile_parts()
    return model


def build_training(run: RunConfig, text: Split, hardware: Hardware, world: World) -> Training:
    """A training before its first step; ranks share weights, and have lanes and dropout apart."""
    seed_everything(run.train.seed)
    model = prepare_for(hardware, build_model(run, hardware.device), compiled=run.train.compiled)
    # The same weights everywhere, but not the same dropout.
    if world.rank:
        seed_everything((run.train.seed + RANK_STRIDE * world.rank) % (1 << 63))
    loss = world.wrap(Loss(model))
    training = Training(
        model=model,
        loss=loss,
        optimizer=build_optimizer(model, run.optim),
        stream=_stream(text, stream_config(run, filled=model.static_shapes), world, Cursor()),
        hardware=hardware,
        scale=LossScale.for_precision(hardware.precision),
        state=State(),
        clip=run.optim.clip,
        bytes_per_token=text.size_bytes / len(text.ids),
        world=world,
        launched=launch().id is not None,
    )
    training.state = training.fresh_state(len(world.lanes(run.train.batch)))
    return training


def stream_config(run: RunConfig, *, filled: bool = False) -> StreamConfig:
    """How a run's text is cut into lanes and segments."""
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
        filled=filled,
    )


def build_stream(
    tokens: Tokens, cutting: StreamConfig, world: World, cursor: Cursor | None = None
) -> Stream:
    """A rank's lanes of the text to train on, from `cursor` on."""
    return _stream(tokens.split("train"), cutting, world, cursor or Cursor())


def _stream(text: Split, cutting: StreamConfig, world: World, cursor: Cursor) -> Stream:
    stream = Stream(text, cutting, world.lanes(cutting.batch), cursor)
    # Too small a text is refused here, before anything is written.
    stream.segments()
    return stream
