"""Fixtures: the CPU and a small model."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tests.evaluation.gru import Tiny
from tests.evaluation.gru import tiny as make

from sparing.device import Hardware


@pytest.fixture
def cpu() -> Hardware:
    return Hardware(torch.device("cpu"), "float32")


@pytest.fixture
def tiny() -> Callable[..., Tiny]:
    """Make a model; see `tests.evaluation.gru`."""
    return partial(make, vocab_size=256)
