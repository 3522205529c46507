"""Checkpoints that are told apart by a number: their step, and all of their weights."""

from pathlib import Path

import torch

from sparing.training import checkpoint
from sparing.training.checkpoint import Checkpoint

IDENTITY = {"family": "toy", "dim": 3, "layers": (1, 2)}


def number(value: int) -> Checkpoint:
    tensors = {"model": {"w": torch.full((3,), float(value))}, "state": {"s": torch.ones(2)}}
    return Checkpoint(tensors, {"step": value})


def weights(value: int) -> Checkpoint:
    whole = number(value)
    return Checkpoint({"model": whole.tensors["model"]}, whole.cursor)


def step_of(folder: Path, name: str = "last") -> int:
    loaded = checkpoint.load(folder, name, IDENTITY)
    assert loaded.tensors["model"]["w"].tolist() == [float(loaded.cursor["step"])] * 3
    return int(loaded.cursor["step"])
