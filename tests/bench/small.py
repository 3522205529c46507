"""A recipe small enough for tests, with dropout and memory."""

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
