"""Several processes train as one: the same numbers, whatever their number."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tests.models.tiny import CONFIGS, VOCAB
from tests.train.crew import crew
from tests.train.toy import CPU, Shelf, budget, desk

from sparing.data.stream import Stream, StreamConfig
from sparing.data.tokens import Split
from sparing.launch import Launch
from sparing.models import FAMILIES
from sparing.models.api import LanguageModel
from sparing.train import checkpoint, journal
from sparing.train.capture import handed_out, restore
from sparing.train.checkpoint import Checkpoint
from sparing.train.distributed import Joining, Loss, Ranks, together
from sparing.train.loop import fit
from sparing.train.optim import OptimConfig, build_optimizer
from sparing.train.scale import LossScale
from sparing.train.schedule import ScheduleConfig
from sparing.train.training import Training

PLAIN = ScheduleConfig(shape="constant")
OF_EACH_KIND = (
    "sha_rnn", "adaptive_span", "adaptive_span expire", "all-attention", "transformer_xl adaptive",
    "awd_lstm", "mlstm",
)  # fmt: skip
BATCH = 8


@dataclass(frozen=True)
class Plan:
    """A small training."""

    name: str
    steps: int = 50
    split: int = 1
    resumed: bool = False
    optim: OptimConfig = OptimConfig(name="adamw", lr=3e-3, eps=1e-4, clip=1.0)  # noqa: RUF009


def text() -> Split:
    ids = np.random.default_rng(3).integers(0, VOCAB, 1003).cumsum() % VOCAB
    return Split(ids.astype(np.uint8), ids.size, 0, 0)


def model_of(name: str) -> LanguageModel:
    torch.manual_seed(11)
    family, config = CONFIGS[name]
    return FAMILIES[family].model(config)


def training(plan: Plan, ranks: Ranks, model: LanguageModel | None = None) -> Training:
    model = model or model_of(plan.name)
    loss = ranks.wrapped(Loss(model))
    settings = StreamConfig(batch=BATCH, segment=6, randomised=True, length_std=1.0, longest=8)
    run = Training(
        model=model,
        loss=loss,
        optimizer=build_optimizer(model, plan.optim),
        stream=Stream(text(), settings, ranks.lanes(BATCH)),
        hardware=CPU,
        scale=LossScale(),
        state={},
        clip=plan.optim.clip,
        ranks=ranks,
    )
    run.state = run.fresh_state(len(ranks.lanes(BATCH)))
    return run


def follow(ranks: Ranks, path: Path, plan: Plan) -> list[float]:
    """Train, save at the end, and tell the losses this process has noted."""
    folder, shelf, run = path / str(ranks.rank), path / "checkpoints", training(plan, ranks)
    folder.mkdir(parents=True, exist_ok=True)

    def save(name: str, saved: Checkpoint) -> None:
        if ranks.rank == 0:
            checkpoint.save(shelf, name, saved, {})

    if plan.resumed:
        found = checkpoint.load(shelf, "last", {}) if ranks.rank == 0 else None
        saved = handed_out(ranks, found)
        assert saved is not None
        restore(run, saved)
        run.stream.cursor = run.progress.cursor
        journal.rewind(folder / "metrics.jsonl", 0)
    place = replace(desk(folder, Shelf()), save=save)
    config = budget(batch=BATCH, steps=plan.steps, batch_split=plan.split)
    assert fit(run, config, PLAIN, place) == 0
    entries = journal.read(folder / "metrics.jsonl")
    return [entry["nats_per_token"] for entry in entries if entry["kind"] == "train"]


def follow_all(
    launch: Launch, path: Path, plans: Sequence[Plan], *, sharded: bool = False
) -> list[list[float]]:
    with together(launch, CPU.device, Joining(timeout_s=60, sharded=sharded)) as ranks:
        return [follow(ranks, path / str(number), plan) for number, plan in enumerate(plans)]


def same(found: Sequence[float], wanted: Sequence[float], name: str) -> None:
    worst = max(abs(a - b) for a, b in zip(found, wanted, strict=True))
    assert worst < 1e-5, f"{name}: {worst}"


def compare(tmp_path: Path, names: Sequence[str], sizes: Sequence[int], steps: int) -> None:
    plans = [Plan(name, steps, split) for name, split in itertools.product(names, (1, 4))]
    answers = {}
    for size in (1, *sizes):
        ranks = crew(follow_all, size, tmp_path / str(size), plans)
        assert all(each == ranks[0] for each in ranks)
        answers[size] = ranks[0]
    for size in sizes:
        for plan, found, wanted in zip(plans, answers[size], answers[1], strict=True):
            assert len(found) == steps
            same(found, wanted, f"{plan.name}, {size} processes, split {plan.split}")


def test_two_processes_see_the_losses_of_one(tmp_path: Path) -> None:
    compare(tmp_path, OF_EACH_KIND, (2,), 50)


OPTIMIZERS = {
    "lamb": OptimConfig(name="lamb", lr=2e-3, weight_decay=1e-3, clip=0.5),
    "adagrad": OptimConfig(name="adagrad", lr=0.02, tensor_clip=0.03),
    "muon": OptimConfig(name="muon", lr=3e-3, weight_decay=0.1, clip=1.0),
    "adam": OptimConfig(name="adam", lr=3e-3, eps=1e-4, lookahead=True),
    "sgd": OptimConfig(name="sgd", lr=0.3, momentum=0.5),
    "asgd": OptimConfig(name="asgd", lr=0.3),
}


def test_sharded_weights_take_the_same_steps(tmp_path: Path) -> None:
    plans = [Plan("sha_rnn", 12, 2, optim=optim) for optim in OPTIMIZERS.values()]
    plans += [Plan(name, 12, 2) for name in OF_EACH_KIND]
    wanted = crew(follow_all, 1, tmp_path / "1", plans)[0]
    found = crew(partial(follow_all, sharded=True), 2, tmp_path / "2", plans)
    assert found[0] == found[1]
    for plan, losses, expected in zip(plans, found[0], wanted, strict=True):
        same(losses, expected, f"{plan.name} by {plan.optim.name}")
