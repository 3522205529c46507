"""The training loop: what it computes, when it stops, what it writes."""

import itertools
import math
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.training.toy import (
    MODEL,
    PLAIN,
    Shelf,
    budget,
    callbacks,
    entries,
    interrupt_at,
    sha_training,
    stack_training,
    text,
    toy_training,
)
from torch import Tensor

from sparing.data.stream import Cursor, Stream, StreamConfig
from sparing.models.api import Output, State
from sparing.models.sha_rnn.model import SHARNN
from sparing.training import journal
from sparing.training.capture import restore, start_second_pass
from sparing.training.checkpoint import Checkpoint
from sparing.training.distributed.world import World
from sparing.training.loop import fit, reset_lanes
from sparing.training.optim import OptimConfig, build_optimizer
from sparing.training.schedule import ScheduleConfig
from sparing.training.state import Training


def test_it_learns_a_text_that_repeats(tmp_path: Path) -> None:
    assert fit(toy_training(), budget(steps=150), PLAIN, callbacks(tmp_path, Shelf())) == 0
    losses = [entry["nats_per_token"] for entry in entries(tmp_path, "train")]
    assert losses[0] == pytest.approx(math.log(7), abs=0.2)
    assert losses[-1] < 0.3


@pytest.mark.parametrize("state_reset", [0.0, 0.3])
@pytest.mark.parametrize(
    ("start", "stop_at"),
    [(sha_training, 1), (sha_training, 7), (sha_training, 13), (stack_training, 7)],
)
def test_stopped_and_resumed_the_numbers_are_bit_equal(
    start: Callable[[float], Training], stop_at: int, state_reset: float, tmp_path: Path
) -> None:
    config = budget(steps=20, log_every=3, state_reset=state_reset)
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    torch.manual_seed(5)
    fit(start(0.3), config, PLAIN, callbacks(one, Shelf()))
    shelf = Shelf()
    torch.manual_seed(5)
    first = start(0.3)
    # By a signal, as multi-token prediction depends on the number of steps.
    assert (
        fit(first, config, PLAIN, interrupt_at(first, callbacks(two, shelf), stop_at))
        == signal.SIGINT
    )
    torch.manual_seed(99)
    second = start(0.3)
    restore(second, shelf.kept["last"])
    assert second.counters.step == stop_at
    second.stream.cursor = second.counters.cursor
    fit(second, config, PLAIN, callbacks(two, shelf))
    assert entries(two, "train") == entries(one, "train")


class LanesToReset(SHARNN):
    """Returns the lanes to reset as its state."""

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        return {"lanes": lanes_B}


def chosen(step: int = 0, world: World | None = None, **settings: Any) -> list[bool]:
    training = toy_training(LanesToReset(MODEL))
    training.counters.step, training.world = step, world or World()
    config = budget(**settings)
    state = reset_lanes(training, config)
    lanes: list[bool] = (
        state["lanes"].tolist() if state is not training.state else [False] * config.batch
    )
    return lanes


def test_which_lanes_are_reset_depends_on_seed_and_step_alone() -> None:
    first = chosen(7, batch=64, state_reset=0.5)
    assert chosen(7, batch=64, state_reset=0.5) == first
    assert chosen(8, batch=64, state_reset=0.5) != first
    assert chosen(7, batch=64, state_reset=0.5, seed=5) != first
    training = toy_training(LanesToReset(MODEL))
    before = torch.get_rng_state()
    reset_lanes(training, budget(state_reset=0.5))
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_reset_lane_the_state_is_the_same_object() -> None:
    training = toy_training()
    assert reset_lanes(training, budget(state_reset=1e-9)) is training.state


@pytest.mark.parametrize("state_reset", [0.01, 0.3])
def test_as_many_lanes_are_reset_as_configured(state_reset: float) -> None:
    found = [sum(chosen(step, batch=2000, state_reset=state_reset)) for step in range(10)]
    assert sum(found) / 20_000 == pytest.approx(state_reset, abs=4 * (state_reset / 20_000) ** 0.5)
    assert len(set(found)) > 1


@pytest.mark.parametrize("state_reset", [-0.1, 1.0, math.inf, math.nan])
def test_a_state_reset_that_is_no_probability_is_refused(state_reset: float) -> None:
    with pytest.raises(ValueError, match=r"train\.state_reset must be at least 0 and below 1, not"):
        budget(state_reset=state_reset)


@pytest.mark.parametrize("size", [2, 3])
def test_which_lanes_are_reset_does_not_depend_on_the_number_of_processes(size: int) -> None:
    class One(World):
        def __init__(self, rank: int) -> None:
            self.rank, self.size = rank, size

    settings: dict[str, Any] = {"batch": 12, "state_reset": 0.5}
    parts = [chosen(3, One(rank), **settings) for rank in range(size)]
    assert [lane for part in parts for lane in part] == chosen(3, **settings)


def losses(folder: Path, *, dropout: float = 0.0, **settings: Any) -> list[float]:
    """Of every step."""
    folder.mkdir()
    torch.manual_seed(5)
    training = toy_training(SHARNN(replace(MODEL, dropout_hidden=dropout)))
    fit(training, budget(**settings), PLAIN, callbacks(folder, Shelf()))
    return [entry["nats_per_token"] for entry in entries(folder, "train")]


def test_without_state_resets_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never, often = (
        losses(tmp_path / str(share), dropout=0.3, state_reset=share) for share in (1e-12, 0.5)
    )
    monkeypatch.setattr(SHARNN, "reset_lanes", None)
    assert losses(tmp_path / "without", dropout=0.3) == never != often


def test_state_resets_do_not_depend_on_micro_batches(tmp_path: Path) -> None:
    whole, cut = (losses(tmp_path / str(n), state_reset=0.3, micro_batches=n) for n in (1, 4))
    assert cut == pytest.approx(whole, rel=1e-4)


def test_lanes_are_reset_before_their_segment_is_read(tmp_path: Path) -> None:
    class Watched(SHARNN):
        found: ClassVar[list[list[bool]]] = []

        def forward(self, tokens_BT: Tensor, state: State) -> Output:
            self.found.append((~state["blocks.0.hidden"].any(1)).tolist())
            return super().forward(tokens_BT, state)

    fit(
        toy_training(Watched(MODEL)),
        budget(steps=9, state_reset=0.4),
        PLAIN,
        callbacks(tmp_path, Shelf()),
    )
    wanted = [chosen(step, state_reset=0.4) for step in range(1, 9)]
    assert Watched.found == [[True] * 4, *wanted]
    assert any(map(any, wanted))


def test_lanes_that_begin_a_chunk_are_reset_with_those_drawn() -> None:
    training = toy_training(LanesToReset(MODEL))
    config, begins = budget(), np.array([False, True, False, True])
    assert reset_lanes(training, config, begins)["lanes"].tolist() == begins.tolist()
    often = budget(state_reset=0.9)
    drawn = np.array(reset_lanes(training, often)["lanes"].tolist())
    both = reset_lanes(training, often, begins)["lanes"].tolist()
    assert both == (drawn | begins).tolist()


@pytest.mark.parametrize("reset", [True, False])
def test_the_state_is_carried_across_the_joints_of_chunks_unless_it_is_reset(
    tmp_path: Path, *, reset: bool
) -> None:
    class Watched(SHARNN):
        found: ClassVar[list[list[bool]]] = []

        def forward(self, tokens_BT: Tensor, state: State) -> Output:
            self.found.append((~state["blocks.0.hidden"].any(1)).tolist())
            return super().forward(tokens_BT, state)

    training = toy_training(Watched(MODEL))
    stream = StreamConfig(batch=4, segment=6, shuffle_chunk=24, shuffle_reset=reset)
    training.stream = Stream(text(), stream)
    config = budget(steps=17, shuffle_chunk=24, shuffle_reset=reset)
    fit(training, config, PLAIN, callbacks(tmp_path, Shelf()))
    wanted = [segment.begins_B for segment in Stream(text(), stream).one_epoch()]
    fresh = [[False] * 4 if begins is None else begins.tolist() for begins in wanted[1:17]]
    assert Watched.found[:17] == [[True] * 4, *fresh]
    assert any(map(any, fresh)) == reset


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"shuffle_chunk": 25}, "must be a multiple of train.segment 6"),
        ({"shuffle_chunk": 0}, "at least 1"),
        ({"shuffle_reset": True}, "needs train.shuffle_chunk"),
        ({"shuffle_chunk": 24, "shuffle_reset": True, "randomised": True}, "randomised=false"),
    ],
)
def test_chunks_that_cannot_be_read_are_refused(settings: dict[str, Any], answer: str) -> None:
    with pytest.raises(ValueError, match=answer):
        budget(**settings)


def test_losses_of_different_texts_are_not_compared(tmp_path: Path) -> None:
    shelf, best = Shelf(), []
    results = iter([(1.0, 800), (2.0, 800), (3.0, 900), (2.5, 900), (2.7, 900)])

    def validate(_: Any) -> dict[str, Any]:
        best.append(shelf.kept["best"].cursor["step"] if "best" in shelf.kept else 0)
        nats, size = next(results)
        return {"nats_per_token": nats, "bits_per_byte": nats, "bytes": size, "tokens": 1} | {
            "elapsed_s": 0.0
        }

    fit(
        toy_training(),
        budget(steps=5, evaluate_every=1),
        PLAIN,
        callbacks(tmp_path, shelf, validate),
    )
    assert best == [0, 1, 1, 3, 4]
    assert shelf.kept["best"].cursor["step"] == 4
    entry = journal.best(entries(tmp_path))
    assert entry is not None
    assert entry["step"] == 4


def test_validation_losses_of_an_averaging_optimizer_are_saved(tmp_path: Path) -> None:
    shelf, training = Shelf(), toy_training()
    training.optimizer = build_optimizer(training.model, OptimConfig(name="ntasgd", lr=1e-2))
    training.counters.best_nats = 0.5
    fit(training, budget(steps=5, checkpoint_every=100), PLAIN, callbacks(tmp_path, shelf))
    last = shelf.kept["last"]
    assert last.tensors["optimizer"]["averaging/losses"][-1] == 1.0
    assert last.cursor["journal_bytes"] == (tmp_path / "metrics.jsonl").stat().st_size


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_with_a_checkpoint(number: int, tmp_path: Path) -> None:
    shelf, training = Shelf(), toy_training()
    hooks = interrupt_at(training, callbacks(tmp_path, shelf), 4, number)
    # These tests themselves may run under nohup.
    before = signal.signal(number, signal.SIG_DFL)
    assert fit(training, budget(steps=50), PLAIN, hooks) == number
    signal.signal(number, before)
    assert shelf.kept["last"].cursor["step"] == 4
    assert not entries(tmp_path, "valid")


def test_a_budget_in_epochs_reads_every_token_once_per_epoch(tmp_path: Path) -> None:
    training = toy_training()
    fit(training, budget(steps=None, epochs=2), PLAIN, callbacks(tmp_path, Shelf()))
    assert training.counters.tokens == 2 * 400
    assert training.counters.cursor == Cursor(2, 0, 0)
    assert [entry["step"] for entry in entries(tmp_path, "valid")] == [17, 34]


def test_a_budget_in_minutes_anneals_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(
        "sparing.training.stopping.Clock.elapsed_s", lambda clock: float(next(ticks))
    )
    config = budget(steps=None, minutes=1.0)
    fit(toy_training(), config, ScheduleConfig(shape="linear"), callbacks(tmp_path, Shelf()))
    rates = [entry["lr"] for entry in entries(tmp_path, "train")]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(1e-2, rel=0.05)
    # Every look at the clock is a second here, and a step takes three of the sixty.
    assert rates[-1] < 1e-2 * 3.5 / 60


def test_time_spent_before_training_counts_against_the_budget(tmp_path: Path) -> None:
    training = toy_training()
    training.head_start_s = 120
    fit(training, budget(steps=None, minutes=1.0), PLAIN, callbacks(tmp_path, Shelf()))
    assert training.counters.step == 0


def test_a_kill_after_the_last_validation_does_not_log_it_twice(tmp_path: Path) -> None:
    class Every(Shelf):
        def __init__(self) -> None:
            super().__init__()
            self.all: list[Checkpoint] = []

        def save(self, name: str, checkpoint: Checkpoint) -> None:
            super().save(name, checkpoint)
            self.all += [self.kept[name]] if name == "last" else []

    shelf, config = Every(), budget(steps=20, checkpoint_every=20)
    fit(toy_training(), config, PLAIN, callbacks(tmp_path, shelf))
    whole = entries(tmp_path)
    before_validation, after = shelf.all
    assert after.cursor["validated_step"] == 20 != before_validation.cursor["validated_step"]
    again = toy_training()
    restore(again, before_validation)
    again.stream.cursor = again.counters.cursor
    journal.rewind(tmp_path / "metrics.jsonl", again.counters.journal_bytes)
    fit(again, config, PLAIN, callbacks(tmp_path, shelf))
    assert entries(tmp_path) == whole


def test_the_best_weights_have_their_own_checkpoint(tmp_path: Path) -> None:
    losses = iter([3.0, 1.0, 2.0])

    def validate(model: Any) -> dict[str, Any]:
        loss = next(losses)
        return {"nats_per_token": loss, "bits_per_byte": loss, "tokens": 1, "elapsed_s": 0.0}

    shelf = Shelf()
    fit(
        toy_training(),
        budget(steps=6, evaluate_every=2),
        PLAIN,
        callbacks(tmp_path, shelf, validate),
    )
    assert shelf.kept["best"].cursor["step"] == 4
    assert shelf.kept["last"].cursor["best_nats"] == 1.0
    assert set(shelf.kept["best"].tensors) == {"model"}


def test_a_second_pass_keeps_the_weights_and_nothing_else(tmp_path: Path) -> None:
    shelf, training = Shelf(), toy_training()
    warm = ScheduleConfig(shape="constant", warmup=4)
    fit(training, budget(steps=8), warm, callbacks(tmp_path, shelf))
    again = toy_training()
    start_second_pass(again, shelf.kept["last"])
    again.stream.cursor = again.counters.cursor
    for name, parameter in again.model.named_parameters():
        torch.testing.assert_close(parameter, shelf.kept["last"].tensors["model"][name])
    assert not any(tensor.any() for tensor in again.optimizer.tensors().values())
    fit(again, budget(steps=16), warm, callbacks(tmp_path, shelf))
    rates = [entry["lr"] for entry in entries(tmp_path, "train")]
    assert rates == pytest.approx([1e-2 * min(1.0, n / 4) for n in [*range(1, 9)] * 2])


def test_the_learning_rate_can_follow_the_length_of_the_segment(tmp_path: Path) -> None:
    lengths = (6, 6, 6, 5)
    for number, (by_length, filled) in enumerate(((True, False), (False, False), (True, True))):
        folder = tmp_path / str(number)
        folder.mkdir()
        training = toy_training()
        training.stream = Stream(text(92), StreamConfig(batch=4, segment=6, pad_last=filled))
        fit(training, budget(steps=4, lr_by_length=by_length), PLAIN, callbacks(folder, Shelf()))
        rates = [entry["lr"] for entry in entries(folder, "train")]
        expected = [1e-2 * (length / 6 if by_length else 1) for length in lengths]
        assert rates == pytest.approx(expected)


def test_the_model_is_called_before_every_step_and_may_end_training(tmp_path: Path) -> None:
    class Attentive(SHARNN):
        heard: ClassVar[list[tuple[int, float]]] = []

        def before_step(self, step: int, share: float) -> None:
            self.heard.append((step, share))

        @property
        def converged(self) -> bool:
            return len(self.heard) == 5

    training = toy_training(Attentive(MODEL))
    assert fit(training, budget(), ScheduleConfig(), callbacks(tmp_path, Shelf())) == 0
    assert Attentive.heard == [(step, step / 20) for step in range(5)]
    assert training.counters.step == 5
