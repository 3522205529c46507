"""A small training in memory: a tiny model, a repeating text, callbacks without a disk."""

import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparing.data.stream import Cursor, Stream, StreamConfig
from sparing.data.tokens import Split
from sparing.device import Hardware
from sparing.models.api import LanguageModel, Output, State
from sparing.models.sha_rnn.config import SHARNNConfig
from sparing.models.sha_rnn.model import SHARNN
from sparing.models.stack.config import (
    FeedForwardConfig,
    MTPConfig,
    StackConfig,
    WindowedAttentionConfig,
)
from sparing.models.stack.model import Stack
from sparing.training import journal
from sparing.training.checkpoint import Checkpoint
from sparing.training.config import TrainConfig
from sparing.training.distributed.world import SegmentLoss
from sparing.training.journal import TIMINGS, Journal
from sparing.training.optim import OptimConfig, build_optimizer
from sparing.training.progress import ProgressBar
from sparing.training.schedule import ScheduleConfig
from sparing.training.state import Callbacks, Training

CPU = Hardware(torch.device("cpu"), "float32")
MODEL = SHARNNConfig(
    vocab_size=7,
    dim=8,
    depth=2,
    boom_dim=16,
    attention_at=(1,),
    memory=16,
    dropout_input=0.0,
    dropout_hidden=0.0,
    dropout_output=0.0,
)
PLAIN = ScheduleConfig(shape="constant")
STACK = StackConfig(
    vocab_size=7,
    pattern="[l f a]",
    rounds=2,
    dim=8,
    feedforward=FeedForwardConfig(dim=16),
    windowed=WindowedAttentionConfig(
        heads=2, head_dim=4, span_limit=64, span_starts=(4.0, 12.0), ramp=4, key_shift=True
    ),
    mtp=MTPConfig(tokens=1),
)


def text(tokens: int = 400) -> Split:
    ids = np.resize(np.array([0, 1, 2, 3, 4, 5, 6, 2, 2, 1], np.uint8), tokens)
    return Split(ids, tokens, tokens // 5, 0)


def toy_training(
    model: LanguageModel | None = None, cursor: Cursor | None = None, *, batch: int = 4
) -> Training:
    torch.manual_seed(1)
    model = SHARNN(MODEL) if model is None else model
    stream = Stream(text(), StreamConfig(batch=batch, segment=6), cursor=cursor or Cursor())
    return Training(
        model=model,
        loss=SegmentLoss(model),
        optimizer=build_optimizer(model, OptimConfig(name="adamw", lr=1e-2)),
        stream=stream,
        hardware=CPU,
        state=model.initial_state(batch),
        clip=1.0,
    )


class Shelf:
    """Checkpoints in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, Checkpoint] = {}

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        tensors = {
            stem: {key: tensor.detach().clone() for key, tensor in group.items()}
            for stem, group in checkpoint.tensors.items()
        }
        self.kept[name] = Checkpoint(tensors, dict(checkpoint.cursor))

    def update(self, name: str, checkpoint: Checkpoint) -> None:
        tensors = {**self.kept[name].tensors, **checkpoint.tensors}
        self.save(name, Checkpoint(tensors, checkpoint.cursor))


def callbacks(
    folder: Path, shelf: Shelf, validate: Callable[[LanguageModel], dict[str, Any]] | None = None
) -> Callbacks:
    figures = {"bits_per_byte": 1.0, "nats_per_token": 1.0, "tokens": 1, "elapsed_s": 0.0}
    return Callbacks(
        journal=Journal(folder / "metrics.jsonl"),
        bar=ProgressBar(shown=False),
        save=shelf.save,
        update_checkpoint=shelf.update,
        load=shelf.kept.get,
        validate=validate or (lambda model: figures),
    )


def budget(**settings: Any) -> TrainConfig:
    defaults: dict[str, Any] = {"batch": 4, "segment": 6, "steps": 20, "log_every": 1}
    return TrainConfig(**(defaults | settings))


def sha_training(dropout: float) -> Training:
    return toy_training(SHARNN(replace(MODEL, dropout_hidden=dropout)))


def stack_training(dropout: float = 0.0) -> Training:
    training = toy_training(Stack(replace(STACK, dropout=dropout)))
    training.optimizer = build_optimizer(training.model, OptimConfig(name="muon", lr=2e-2))
    return training


def entries(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The journal without its timings."""
    return [
        {key: value for key, value in entry.items() if key not in TIMINGS}
        for entry in journal.read(folder / "metrics.jsonl")
        if kind in (None, entry["kind"])
    ]


def interrupt_at(
    training: Training, hooks: Callbacks, at: int, number: int = signal.SIGINT
) -> Callbacks:
    """The same callbacks, which send a signal after step `at`."""
    original = hooks.bar.update

    def strike(share: float, text: str) -> None:
        original(share, text)
        if training.counters.step == at:
            os.kill(os.getpid(), number)

    hooks.bar.update = strike  # type: ignore[method-assign]
    return hooks


class Steep(SHARNN):
    """Its loss is finite, but for some calls the gradient is not."""

    bad, calls = range(0), 0

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        out = super().forward(tokens_BT, state)
        type(self).calls += 1
        if self.calls in self.bad:
            out.hidden_BTD.register_hook(lambda gradient: gradient * math.inf)
        return out


def steep(bad: range) -> Steep:
    Steep.bad, Steep.calls = bad, 0
    torch.manual_seed(1)
    return Steep(MODEL)
