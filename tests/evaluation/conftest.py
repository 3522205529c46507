"""Fixtures: the CPU, a small model and random splits."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from tests.evaluation.gru import Tiny
from tests.evaluation.gru import tiny as make

from sparing.data.tokens import Split
from sparing.device import Hardware


@pytest.fixture
def cpu() -> Hardware:
    return Hardware(torch.device("cpu"), "float32")


@pytest.fixture
def tiny() -> Callable[..., Tiny]:
    """Make a model; see `tests.evaluation.gru`."""
    return partial(make, vocab_size=11)


@pytest.fixture
def split() -> Callable[[int], Split]:
    """Make a split of `count` tokens, two bytes each."""

    def make(count: int) -> Split:
        ids = np.random.default_rng(1).integers(0, 11, count).astype(np.uint8)
        return Split(ids=ids, size_bytes=2 * count, words=count // 5, start=10)

    return make
