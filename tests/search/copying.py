"""A text that needs attention once, and dense blocks after it.

Every token follows from the one twelve places before it: copied, or passed through a permutation
that the present token names. So something must reach back, and only then can the two be combined,
which is more work than one narrow dense block can do: attention belongs into the first slot.
"""

from pathlib import Path

import numpy as np
import torch
from tests.training.toy import CPU, Shelf, callbacks

from sparing.data.stream import Stream, StreamConfig
from sparing.data.tokens import Split
from sparing.models.stack.config import FeedForwardConfig, RelativeAttentionConfig
from sparing.models.stack.patterns import likeliest_pattern
from sparing.models.supernet.config import SearchConfig, SupernetConfig
from sparing.models.supernet.model import Supernet
from sparing.training.config import TrainConfig
from sparing.training.distributed.world import SegmentLoss
from sparing.training.loop import fit
from sparing.training.optim import OptimConfig, build_optimizer
from sparing.training.schedule import ScheduleConfig
from sparing.training.state import Training

VOCAB, DISTANCE, NOISE = 24, 12, 0.1
BATCH, SEGMENT = 16, 24
NEEDED = "xff"


def text(tokens: int, seed: int) -> Split:
    table = np.random.default_rng(1)
    passed = [np.arange(VOCAB) if n % 2 else table.permutation(VOCAB) for n in range(VOCAB)]
    random = np.random.default_rng(seed)
    ids = random.integers(0, VOCAB, tokens)
    noisy = random.random(tokens) < NOISE
    for at in range(DISTANCE, tokens):
        if not noisy[at]:
            ids[at] = passed[ids[at - 1]][ids[at - DISTANCE]]
    return Split(ids.astype(np.uint8), tokens, tokens, 0)


def search(folder: Path, seed: int, steps: int = 1000) -> str:
    """The pattern that a search with this seed finds."""
    torch.manual_seed(seed)
    config = SupernetConfig(
        vocab_size=VOCAB,
        pattern=NEEDED,
        dim=32,
        relative=RelativeAttentionConfig(heads=2, head_dim=16, memory=16),
        feedforward=FeedForwardConfig(dim=8),
        embedding_skip=False,
        search=SearchConfig(
            tau_end=0.3, weights_only=0.3, costs=(5.0, 1.0, 0.0), budget=1.3, price=0.05
        ),
    )
    model = Supernet(config)
    run = Training(
        model=model,
        loss=SegmentLoss(model),
        optimizer=build_optimizer(model, OptimConfig(name="adamw", lr=0.01, architecture_lr=0.02)),
        stream=Stream(text(60_000, seed), StreamConfig(batch=BATCH, segment=SEGMENT)),
        hardware=CPU,
        state=model.initial_state(BATCH),
        clip=1.0,
    )
    budget = TrainConfig(
        batch=BATCH, segment=SEGMENT, steps=steps, log_every=steps, evaluate_every=steps
    )
    schedule = ScheduleConfig(shape="linear", warmup=20, hold=0.6)
    fit(run, budget, schedule, callbacks(folder, Shelf()))
    costs = config.search.costs_by_letter
    return likeliest_pattern(model.log_probs(), costs, config.cost_limit)
