"""A training in memory: a tiny model, a text that repeats, a callbacks without a disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparing.data.stream import Cursor, Stream, StreamConfig
from sparing.data.tokens import Split
from sparing.device import Hardware
from sparing.models.api import LanguageModel
from sparing.models.sha_rnn import SHARNN, SHARNNConfig
from sparing.train.checkpoint import Checkpoint
from sparing.train.config import TrainConfig
from sparing.train.journal import Journal
from sparing.train.loss_scale import LossScale
from sparing.train.optim import OptimConfig, build_optimizer
from sparing.train.progress import Bar
from sparing.train.state import Callbacks, Training

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


def text(tokens: int = 400) -> Split:
    ids = np.resize(np.array([0, 1, 2, 3, 4, 5, 6, 2, 2, 1], np.uint8), tokens)
    return Split(ids, tokens, tokens // 5, 0)


def training(
    model: LanguageModel | None = None, cursor: Cursor | None = None, *, batch: int = 4
) -> Training:
    torch.manual_seed(1)
    model = SHARNN(MODEL) if model is None else model
    stream = Stream(text(), StreamConfig(batch=batch, segment=6), cursor=cursor or Cursor())
    return Training(
        model=model,
        optimizer=build_optimizer(model, OptimConfig(name="adamw", lr=1e-2)),
        stream=stream,
        hardware=CPU,
        scale=LossScale(),
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

    def amend(self, name: str, checkpoint: Checkpoint) -> None:
        tensors = {**self.kept[name].tensors, **checkpoint.tensors}
        self.save(name, Checkpoint(tensors, checkpoint.cursor))


def callbacks(
    folder: Path, shelf: Shelf, judge: Callable[[LanguageModel], dict[str, Any]] | None = None
) -> Callbacks:
    figures = {"bits_per_byte": 1.0, "nats_per_token": 1.0, "tokens": 1, "elapsed_s": 0.0}
    return Callbacks(
        journal=Journal(folder / "metrics.jsonl"),
        bar=Bar(shown=False),
        save=shelf.save,
        amend=shelf.amend,
        load=shelf.kept.get,
        judge=judge or (lambda model: figures),
    )


def budget(**settings: Any) -> TrainConfig:
    defaults: dict[str, Any] = {"batch": 4, "segment": 6, "steps": 20, "log_every": 1}
    return TrainConfig(**(defaults | settings))
