"""The training loop: what it computes, when it stops, what it writes."""

import itertools
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

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

from sparing.data.stream import Cursor, Stream, StreamConfig
from sparing.models.sha_rnn.model import SHARNN
from sparing.training import journal
from sparing.training.capture import restore, start_second_pass
from sparing.training.checkpoint import Checkpoint
from sparing.training.loop import fit
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
