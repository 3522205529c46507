"""A recipe small enough for tests, with dropout and memory."""

from dataclasses import replace

import torch

from sparing.device import Hardware
from sparing.runs.config import RunConfig, with_settings
from sparing.runs.recipes import recipe

CPU = Hardware(torch.device("cpu"), "float32")
SETTINGS = [
    "model.dim=8",
    "model.boom_dim=16",
    "model.depth=2",
    "model.attention_at=1,",
    "model.memory=20",
    "train.batch=4",
    "train.segment=6",
]


def small_run(*more: str) -> RunConfig:
    return with_settings(recipe("enwik8_sha_rnn"), [*SETTINGS, *more])


def small_stack(pattern: str) -> RunConfig:
    """A stack whose attention has windows of 256 positions and reads 6 at a time."""
    settings = [f"pattern={pattern}", "dim=8", "windowed.heads=2", "windowed.head_dim=4"]
    spans = ["windowed.span_limit=64", "windowed.span_starts=16,48", "mtp.tokens=0"]
    run = with_settings(
        recipe("enwik8_20min_span"), [f"model.{each}" for each in (*settings, *spans)]
    )
    return replace(run, train=replace(run.train, batch=4, segment=6, compiled=False))
