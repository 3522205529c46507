"""Several processes train one model with the same numbers, whatever their number."""

import itertools
import math
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.tiny import CONFIGS, VOCAB
from tests.training.toy import CPU, MODEL, Shelf, budget, callbacks
from tests.training.workers import Workers, world_of
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from sparing.data.stream import Stream, StreamConfig
from sparing.data.tokens import Split
from sparing.errors import LostProcessError, UserError
from sparing.evaluation.loss import evaluate_streams, evaluate_windows
from sparing.host_copy import AsyncHostCopy
from sparing.launch import Launch
from sparing.models import FAMILIES
from sparing.models.api import LanguageModel, Output, State
from sparing.models.sha_rnn.model import SHARNN
from sparing.training import checkpoint, journal
from sparing.training.capture import broadcast_checkpoint, restore
from sparing.training.checkpoint import Checkpoint
from sparing.training.distributed.dtensor import to_local
from sparing.training.distributed.init import init_world
from sparing.training.distributed.world import SegmentLoss, World, WorldConfig
from sparing.training.loop import fit
from sparing.training.optim import OptimConfig, build_optimizer
from sparing.training.schedule import ScheduleConfig
from sparing.training.state import Training, initial_state
from sparing.training.step import compute_gradients
from sparing.training.stopping import Clock, Stop

SHARED = [
    name for name, (family, _) in CONFIGS.items() if not FAMILIES[family].model.single_process
]
PLAIN = ScheduleConfig(shape="constant")
OF_EACH_KIND = (
    "sha_rnn", "adaptive_span", "adaptive_span expire", "all-attention", "transformer_xl adaptive",
    "awd_lstm", "mlstm", "stack",
)  # fmt: skip
OPTIMIZERS = {
    "lamb": OptimConfig(name="lamb", lr=2e-3, weight_decay=1e-3, clip=0.5),
    "adagrad": OptimConfig(name="adagrad", lr=0.02, tensor_clip=0.03),
    "muon": OptimConfig(name="muon", lr=3e-3, weight_decay=0.1, clip=1.0),
    "adam": OptimConfig(name="adam", lr=3e-3, eps=1e-4, lookahead=True),
    "sgd": OptimConfig(name="sgd", lr=0.3, momentum=0.5),
    "asgd": OptimConfig(name="asgd", lr=0.3),
    "averages": OptimConfig(lr=3e-3, eps=1e-4, ema_decay=(0.5, 0.9), ema_update_every=2),
}
BATCH = 8


@pytest.fixture(scope="module")
def two() -> Iterator[Workers]:
    group = Workers(2)
    yield group
    group.close()


@pytest.fixture(scope="module")
def four() -> Iterator[Workers]:
    group = Workers(4)
    yield group
    group.close()


@dataclass(frozen=True)
class Plan:
    """A small training."""

    name: str = "sha_rnn"
    steps: int = 50
    split: int = 1
    resumed: bool = False
    optim: OptimConfig = field(
        default_factory=lambda: OptimConfig(name="adamw", lr=3e-3, eps=1e-4, clip=1.0)
    )
    settings: dict[str, Any] = field(default_factory=dict)
    dropout: float = 0.0
    memory: int = 64
    state_reset: float = 0.0


def text() -> Split:
    ids = np.random.default_rng(3).integers(0, VOCAB, 1003).cumsum() % VOCAB
    return Split(ids.astype(np.uint8), ids.size, 0, 0)


def model_of(plan: Plan) -> LanguageModel:
    torch.manual_seed(11)
    family, config = CONFIGS[plan.name]
    if plan.name == "sha_rnn":
        config = replace(config, dropout_hidden=plan.dropout, memory=plan.memory)
    return FAMILIES[family].model(config)


def plan_training(plan: Plan, world: World, model: LanguageModel | None = None) -> Training:
    model = model or model_of(plan)
    loss = world.wrap(SegmentLoss(model))
    torch.manual_seed(100 + world.rank)
    settings = StreamConfig(batch=BATCH, segment=6, randomised=True, length_std=1.0, longest=8)
    return Training(
        model=model,
        loss=loss,
        optimizer=build_optimizer(model, plan.optim),
        stream=Stream(text(), settings, world.lanes(BATCH)),
        hardware=CPU,
        state=initial_state(model, loss, CPU, world, len(world.lanes(BATCH))),
        clip=plan.optim.clip,
        world=world,
    )


def follow(launch: Launch, path: Path, plan: Plan) -> list[float]:
    """Train, save at the end, and return the losses in this process's journal."""
    world = world_of(launch, **plan.settings)
    folder, shelf, training = (
        path / f"of {launch.rank}",
        path / "checkpoints",
        plan_training(plan, world),
    )
    folder.mkdir(parents=True, exist_ok=True)
    journal.rewind(folder / "metrics.jsonl", 0)

    def save(name: str, saved: Checkpoint) -> None:
        if launch.rank == 0:
            checkpoint.save(shelf, name, saved, {})

    def update_checkpoint(name: str, saved: Checkpoint) -> None:
        if launch.rank == 0:
            checkpoint.update(shelf, name, saved, {})

    if plan.resumed:
        saved = broadcast_checkpoint(
            world, None if launch.rank else checkpoint.load(shelf, "last", {})
        )
        assert saved is not None
        restore(training, saved)
        training.stream.cursor = training.counters.cursor
    config = budget(
        batch=BATCH, steps=plan.steps, micro_batches=plan.split, state_reset=plan.state_reset
    )
    hooks = replace(callbacks(folder, Shelf()), save=save, update_checkpoint=update_checkpoint)
    assert fit(training, config, PLAIN, hooks) == 0
    entries = journal.read(folder / "metrics.jsonl")
    return [entry["nats_per_token"] for entry in entries if entry["kind"] == "train"]


def follow_all(launch: Launch, path: Path, plans: Sequence[Plan]) -> list[list[float]]:
    return [follow(launch, path / str(number), plan) for number, plan in enumerate(plans)]


def alone(path: Path, plans: Sequence[Plan]) -> list[list[float]]:
    return follow_all(Launch(), path, [replace(plan, settings={}) for plan in plans])


def same(found: Sequence[Sequence[float]], wanted: Any, plans: Sequence[Plan]) -> None:
    for plan, losses, expected in zip(plans, found, wanted, strict=True):
        worst = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
        assert worst < 1e-5, f"{plan}: {worst}"


def test_two_processes_see_the_losses_of_one(two: Workers, tmp_path: Path) -> None:
    plans = [Plan(name, 20, split=4) for name in OF_EACH_KIND]
    plans += [Plan("sha_rnn", 50), Plan("awd_lstm", 20)]
    plans += [Plan(name, 10, state_reset=0.3) for name in (*OF_EACH_KIND, "adaptive_span masked")]
    found = two(follow_all, tmp_path / "2", plans)
    assert found[0] == found[1]
    assert [len(losses) for losses in found[0]] == [plan.steps for plan in plans]
    same(found[0], alone(tmp_path / "1", plans), plans)


def test_sharded_weights_take_the_same_steps(two: Workers, tmp_path: Path) -> None:
    plans = [Plan(steps=6, split=4, optim=optim) for optim in OPTIMIZERS.values()]
    plans += [Plan(name, steps=5, state_reset=0.3) for name in OF_EACH_KIND]
    plans = [replace(plan, settings={"sharded": True}) for plan in plans]
    found = two(follow_all, tmp_path / "2", plans)
    assert found[0] == found[1]
    same(found[0], alone(tmp_path / "1", plans), plans)


def test_weights_without_a_gradient_are_allowed(two: Workers, tmp_path: Path) -> None:
    plans = [Plan(steps=5, memory=0), Plan(steps=5, memory=0, settings={"sharded": True})]
    found = two(follow_all, tmp_path / "2", plans)
    same(found[0], alone(tmp_path / "1", plans), plans)


@pytest.mark.soak
@pytest.mark.parametrize("sharded", [False, True])
def test_four_processes_see_the_losses_of_one_for_every_config(
    sharded: bool, two: Workers, four: Workers, tmp_path: Path
) -> None:
    plans = [
        Plan(name, split=split, settings={"sharded": sharded})
        for name, split in itertools.product(SHARED, (1, 4))
    ]
    wanted = alone(tmp_path / "1", plans)
    for group in (two, four):
        found = group(follow_all, tmp_path / str(group.size), plans)
        assert all(each == found[0] for each in found)
        same(found[0], wanted, plans)


def follow_with(group: Workers | None, path: Path, plan: Plan) -> list[float]:
    """The losses of a plan followed by a group, or by a single process."""
    if group is None:
        return follow(Launch(), path, replace(plan, settings={}))
    losses: list[float] = group(follow, path, plan)[0]
    return losses


def resumed_elsewhere(
    first: Workers | None, second: Workers | None, path: Path, plan: Plan
) -> None:
    """Half of a run by one group and the rest by another give the losses of a single process."""
    half = replace(plan, steps=plan.steps // 2)
    wanted = follow(Launch(), path / "whole", replace(plan, settings={}))
    began = follow_with(first, path / "run", half)
    ended = follow_with(second, path / "run", replace(plan, resumed=True))
    same([[*began, *ended]], [wanted], [plan])


@pytest.mark.parametrize("name", ["sha_rnn", "adaptive_span expire"])
def test_saved_by_two_it_is_resumed_by_one(name: str, two: Workers, tmp_path: Path) -> None:
    resumed_elsewhere(two, None, tmp_path, Plan(name, 30))


def test_a_model_without_state_is_resumed_by_two(two: Workers, tmp_path: Path) -> None:
    resumed_elsewhere(two, two, tmp_path, Plan("stack dense", 8))


def test_saved_by_one_it_is_resumed_by_two_sharded(two: Workers, tmp_path: Path) -> None:
    resumed_elsewhere(None, two, tmp_path, Plan(steps=16, settings={"sharded": True}))


def test_saved_sharded_it_is_resumed_by_one(two: Workers, tmp_path: Path) -> None:
    plan = Plan("adaptive_span", 16, optim=OPTIMIZERS["lamb"], settings={"sharded": True})
    resumed_elsewhere(two, None, tmp_path, plan)


@pytest.mark.soak
def test_saved_by_two_it_is_resumed_by_four(two: Workers, four: Workers, tmp_path: Path) -> None:
    resumed_elsewhere(two, four, tmp_path, Plan(steps=24))


# What fades with the share of the budget done is another thing in half a training.
@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in SHARED if "mtp" not in name])
def test_every_config_is_resumed_by_one_and_by_four(
    name: str, two: Workers, four: Workers, tmp_path: Path
) -> None:
    resumed_elsewhere(two, None, tmp_path / "1", Plan(name))
    resumed_elsewhere(two, four, tmp_path / "4", Plan(name))


def test_resumed_by_as_many_processes_dropout_is_the_same(two: Workers, tmp_path: Path) -> None:
    plan = Plan(steps=12, dropout=0.3)
    whole = two(follow, tmp_path / "whole", plan)[0]
    began = two(follow, tmp_path / "run", replace(plan, steps=5))[0]
    assert [*began, *two(follow, tmp_path / "run", replace(plan, resumed=True))[0]] == whole


def messages(launch: Launch, settings: dict[str, Any], split: int) -> list[dict[str, int]]:
    """The collective calls of each of three updates."""
    world = world_of(launch, **settings)
    training = plan_training(Plan(split=split), world)
    world.attach(Stop(), Clock(0.0))
    found = []
    for segment in itertools.islice(training.stream.segments(), 3):
        with profile(activities=[ProfilerActivity.CPU]) as watched:
            _, _, training.state = compute_gradients(
                training, segment, world.micro_batches(BATCH, split)
            )
            training.optimizer.step()
        training.optimizer.zero_grad()
        names = (event.name for event in watched.events() or ())
        found.append(dict(Counter(name for name in names if name.startswith("c10d::"))))
    return found


@pytest.mark.parametrize("split", [1, 4])
def test_an_update_takes_one_all_reduce_and_one_all_gather(split: int, two: Workers) -> None:
    for calls in two(messages, {}, split):
        # In the second update DDP also broadcasts the order in which gradients are ready.
        calls[1].pop("c10d::broadcast_")
        assert calls == [{"c10d::allreduce_": 1, "c10d::allgather_": 1}] * 3


def test_a_sharded_update_takes_one_reduce_scatter_per_part(two: Workers) -> None:
    parts = 1 + len(model_of(Plan()).shard_parts())
    for calls in two(messages, {"sharded": True}, 4):
        assert [update["c10d::_reduce_scatter_base_"] for update in calls] == [parts] * 3


def held(launch: Launch) -> tuple[float, float]:
    """Numbers of weights and of optimizer state in this process, over those of the model."""
    training = plan_training(Plan(optim=OPTIMIZERS["lamb"]), world_of(launch, sharded=True))
    weights = list(training.model.parameters())
    states = [tensor for tensor in training.optimizer.tensors().values() if tensor.ndim]
    return tuple(
        sum(to_local(tensor).numel() for tensor in tensors)
        / sum(tensor.numel() for tensor in tensors)
        for tensors in (weights, states)
    )  # type: ignore[return-value]


def test_each_process_holds_its_shard(two: Workers) -> None:
    shares = two(held)
    assert sum(weights for weights, _ in shares) == pytest.approx(1)
    assert all(share == pytest.approx(0.5, abs=0.05) for pair in shares for share in pair)


def evaluated_first(launch: Launch) -> tuple[float, float]:
    """The loss before the first step and after two."""
    training = plan_training(Plan(), world_of(launch, sharded=True))
    found = []
    for _ in range(2):
        with training.world.full_params(training.loss):
            found.append(
                evaluate_streams(
                    training.model, text(), CPU, batch=3, world=training.world
                ).loss_nats
            )
        for segment in itertools.islice(training.stream.segments(), 2):
            compute_gradients(training, segment, 1)
            training.optimizer.step()
            training.optimizer.zero_grad()
    return found[0], found[1]


def test_sharded_weights_can_be_evaluated_at_any_time(two: Workers) -> None:
    wanted = evaluated_first(Launch())
    assert wanted[0] != wanted[1]
    for found in two(evaluated_first):
        assert found == pytest.approx(wanted, rel=1e-6)


class Poisoned(SHARNN):
    """Returns NaN for some calls of one rank."""

    def __init__(self, rank: int, bad: range) -> None:
        super().__init__(MODEL)
        self.bad, self.calls = bad if rank == 1 else range(0), 0

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        out, self.calls = super().forward(tokens_BT % 7, state), self.calls + 1
        factor = math.nan if self.calls in self.bad else 1.0
        return Output(out.hidden_BTD * factor, out.state, out.penalty)


def poisoned(launch: Launch, path: Path) -> tuple[list[Any], bool, int]:
    torch.manual_seed(1)
    world = world_of(launch)
    training = plan_training(Plan(), world, Poisoned(launch.rank, range(3, 5)))
    training.stream.split.ids[:] %= 7
    folder, shelf = path / str(launch.rank), Shelf()
    folder.mkdir()
    fit(training, budget(batch=BATCH, steps=8), PLAIN, callbacks(folder, shelf))
    events = [e["what"] for e in journal.read(folder / "metrics.jsonl") if e["kind"] == "event"]
    tensors = (*training.model.parameters(), *training.state.values())
    return events, all(bool(t.isfinite().all()) for t in tensors), training.counters.step


def test_a_nan_on_one_rank_is_skipped_by_all(two: Workers, tmp_path: Path) -> None:
    what = "loss is not finite on rank 1; step skipped"
    assert two(poisoned, tmp_path) == [([what] * 2, True, 8)] * 2


def struck(launch: Launch, path: Path) -> tuple[int, int, list[int]]:
    world, shelf = world_of(launch), Shelf()
    training = plan_training(Plan(), world)
    folder = path / str(launch.rank)
    folder.mkdir()
    hooks = callbacks(folder, shelf)
    original = hooks.bar.update

    def strike(share: float, text: str) -> None:
        original(share, text)
        if training.counters.step == 4 and launch.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    hooks.bar.update = strike  # type: ignore[method-assign]
    number = fit(training, budget(batch=BATCH, steps=50), PLAIN, hooks)
    last = shelf.kept["last"]
    kept = [tensor for name, tensor in last.tensors["state"].items() if "state." in name]
    return number, int(last.cursor["step"]), [len(tensor) for tensor in kept]


def test_a_signal_to_one_rank_stops_all_after_the_same_step(two: Workers, tmp_path: Path) -> None:
    first, second = two(struck, tmp_path)
    assert first[:2] == second[:2] == (signal.SIGTERM, 5)
    assert set(first[2]) == {BATCH}


def test_gradients_can_be_reduced_in_bfloat16(two: Workers, tmp_path: Path) -> None:
    plan = Plan(steps=20, settings={"reduction": "bfloat16"})
    found, wanted = two(follow, tmp_path / "2", plan)[0], alone(tmp_path / "1", [plan])[0]
    assert found == pytest.approx(wanted, abs=5e-3)
    assert found != pytest.approx(wanted, abs=1e-6)


def deserted(launch: Launch, reduction: str) -> str:
    """Rank 1 sends its gradients only once."""
    settings: dict[str, Any] = {"timeout_s": 1, "reduction": reduction}
    model, inputs = model_of(Plan()), torch.zeros(1, 4, dtype=torch.long)
    try:
        with init_world(launch, CPU.device, WorldConfig(**settings)) as world:
            loss = world.wrap(SegmentLoss(model))
            for _ in range(2 - launch.rank):
                loss(inputs, inputs, model.initial_state(1))[0].backward()
            # Longer than rank 0 waits.
            time.sleep(2)
    except LostProcessError as problem:
        return str(problem)
    return "continued"


@pytest.mark.parametrize("reduction", ["float32", "bfloat16"])
def test_a_lost_reduction_is_an_error(reduction: str) -> None:
    group = Workers(2)
    try:
        first, _ = group(deserted, reduction)
    finally:
        group.close()
    assert first.startswith("rank 0 of 2 lost another process")


def scored(launch: Launch) -> list[tuple[float, str]]:
    """Five streams, one, and windows."""
    model, world = model_of(Plan()), world_of(launch)
    found = [evaluate_streams(model, text(), CPU, batch=n, segment=16, world=world) for n in (5, 1)]
    found.append(evaluate_windows(model, text(), CPU, window=20, stride=9, world=world))
    return [(each.loss_nats, each.how) for each in found]


def test_an_evaluation_split_between_processes_gives_the_same_numbers(two: Workers) -> None:
    wanted = scored(Launch())
    for found in two(scored):
        assert [how for _, how in found] == [how for _, how in wanted]
        figures = [nats for nats, _ in wanted]
        assert [nats for nats, _ in found] == pytest.approx(figures, rel=1e-7)


def frozen(launch: Launch) -> str:
    """Rank 1 stops for longer than rank 0 waits."""
    try:
        with init_world(launch, CPU.device, WorldConfig(timeout_s=1)) as world:
            world.attach(Stop(), Clock(0.0))
            if launch.rank == 1:
                subprocess.Popen(["sh", "-c", f"sleep 3; kill -CONT {os.getpid()}"])
                os.kill(os.getpid(), signal.SIGSTOP)
            world.sync_step(AsyncHostCopy(torch.zeros(())), torch.zeros(()))
            world.sync_step(AsyncHostCopy(torch.zeros(())), torch.zeros(()))
    except LostProcessError as problem:
        return str(problem)
    return "continued"


def test_a_frozen_process_is_an_error_after_the_timeout() -> None:
    group = Workers(2)
    try:
        first, second = group(frozen)
    finally:
        group.close()
    assert first.startswith("rank 0 of 2 lost another process (no answer in time)")
    assert second.startswith("rank 1 of 2 lost another process")
    assert "\n" not in first + second


def differing(launch: Launch) -> str:
    world = world_of(launch)
    world.check_equal("settings", {"batch": 8})
    try:
        world.check_equal("settings", {"batch": 8 + launch.rank})
    except UserError as problem:
        return str(problem)
    return "agreed"


def test_processes_with_different_settings_are_refused(two: Workers) -> None:
    assert two(differing) == ["rank 1 has other settings than rank 0; they must be the same"] * 2


@pytest.mark.parametrize(
    ("size", "split", "wanted"),
    [(1, 1, 1), (1, 4, 4), (2, 4, 2), (4, 4, 1), (8, 4, 1), (2, 1, 1), (4, 8, 2)],
)
def test_micro_batches_are_no_larger_than_with_one_process(
    size: int, split: int, wanted: int
) -> None:
    world = World()
    world.size = size
    assert world.micro_batches(BATCH, split) == wanted


def test_every_lane_belongs_to_exactly_one_process() -> None:
    for size, batch in itertools.product(range(1, 6), range(1, 12)):
        found = []
        for rank in range(size):
            world = World()
            world.rank, world.size = rank, size
            found += list(world.lanes(batch))
        assert found == list(range(batch))
