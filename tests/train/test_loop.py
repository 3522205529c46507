"""The loop: what it computes, what it survives, what it writes down."""

import itertools
import math
import os
import signal
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.train.toy import MODEL, Shelf, budget, callbacks, text, training
from torch import Tensor

from sparing.data.stream import Cursor, Stream, StreamConfig
from sparing.errors import UserError
from sparing.models.api import Output, State
from sparing.models.sha_rnn import SHARNN
from sparing.models.stack.config import StackConfig
from sparing.models.stack.model import Stack
from sparing.train import journal
from sparing.train.capture import restore, second_pass
from sparing.train.checkpoint import Checkpoint
from sparing.train.distributed.world import World
from sparing.train.journal import TIMINGS
from sparing.train.loop import backward, fit, reset_lanes, update
from sparing.train.loss_scale import LossScale
from sparing.train.optim import OptimConfig, build_optimizer
from sparing.train.recovery import roll_back
from sparing.train.schedule import ScheduleConfig
from sparing.train.state import Callbacks, Training

PLAIN = ScheduleConfig(shape="constant")
# With all that a stack carries, repeats or foretells.
STACK = StackConfig(
    vocab_size=7,
    pattern="[l f a]",
    rounds=2,
    dim=8,
    heads=2,
    head_dim=4,
    ff_dim=16,
    span_limit=64,
    span_starts=(4.0, 12.0),
    ramp=4,
    key_shift=True,
    mtp=1,
)


def sha_run(dropout: float) -> Training:
    return training(SHARNN(replace(MODEL, dropout_hidden=dropout)))


def stack_run(dropout: float = 0.0) -> Training:
    run = training(Stack(replace(STACK, dropout=dropout)))
    run.optimizer = build_optimizer(run.model, OptimConfig(name="muon", lr=2e-2))
    return run


def lively_run() -> Training:
    """A stack whose branches say something from the start."""
    torch.manual_seed(5)
    run = stack_run()
    for parameter in run.model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return run


def entries(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The journal without its timings."""
    return [
        {key: value for key, value in entry.items() if key not in TIMINGS}
        for entry in journal.read(folder / "metrics.jsonl")
        if kind in (None, entry["kind"])
    ]


def test_it_learns_a_text_that_repeats(tmp_path: Path) -> None:
    assert fit(training(), budget(steps=150), PLAIN, callbacks(tmp_path, Shelf())) == 0
    losses = [entry["nats_per_token"] for entry in entries(tmp_path, "train")]
    assert losses[0] == pytest.approx(math.log(7), abs=0.2)
    assert losses[-1] < 0.3


@pytest.mark.parametrize("pieces", [2, 4])
@pytest.mark.parametrize("start", [training, lively_run])
def test_splitting_the_batch_changes_no_gradient_and_no_state(
    start: Callable[[], Training], pieces: int
) -> None:
    whole, cut = start(), start()
    for segment in (next(whole.stream.segments()), *[next(whole.stream.segments())] * 2):
        nats, norm, state = backward(whole, segment, 1)
        cut_nats, cut_norm, cut_state = backward(cut, segment, pieces)
        assert cut_nats == pytest.approx(nats, rel=1e-5)
        assert cut_norm.number() == pytest.approx(norm.number(), rel=1e-5)
        for name in state:
            torch.testing.assert_close(cut_state[name], state[name])
        for (name, p), q in zip(
            whole.model.named_parameters(), cut.model.parameters(), strict=True
        ):
            torch.testing.assert_close(q.grad, p.grad, msg=name)
        whole.state, cut.state = state, cut_state
        whole.optimizer.zero_grad()
        cut.optimizer.zero_grad()


def struck(run: Training, place: Callbacks, at: int, number: int = signal.SIGINT) -> Callbacks:
    """The same callbacks; a signal arrives after that step."""
    original = place.bar.update

    def strike(share: float, words: str) -> None:
        original(share, words)
        if run.progress.step == at:
            os.kill(os.getpid(), number)

    place.bar.update = strike  # type: ignore[method-assign]
    return place


@pytest.mark.parametrize("restart", [0.0, 0.3])
@pytest.mark.parametrize(
    ("start", "stop_at"), [(sha_run, 1), (sha_run, 7), (sha_run, 13), (stack_run, 7)]
)
def test_stopped_and_resumed_the_numbers_are_bit_equal(
    start: Callable[[float], Training], stop_at: int, restart: float, tmp_path: Path
) -> None:
    config = budget(steps=20, log_every=3, state_reset=restart)
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    torch.manual_seed(5)
    fit(start(0.3), config, PLAIN, callbacks(one, Shelf()))
    shelf = Shelf()
    torch.manual_seed(5)
    first = start(0.3)
    # By a signal: with fewer steps to go, foretelling would weigh less.
    assert fit(first, config, PLAIN, struck(first, callbacks(two, shelf), stop_at)) == signal.SIGINT
    torch.manual_seed(99)
    second = start(0.3)
    restore(second, shelf.kept["last"])
    assert second.progress.step == stop_at
    second.stream.cursor = second.progress.cursor
    fit(second, config, PLAIN, callbacks(two, shelf))
    assert entries(two, "train") == entries(one, "train")


class Telling(SHARNN):
    """Says which lanes it was asked to restart."""

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        return {"lanes": lanes_B}


@pytest.mark.parametrize(("pieces", "sheets"), [(1, 1), (2, 3)])
def test_a_memory_is_written_on_and_copied_only_where_the_batch_is_split(
    pieces: int, sheets: int
) -> None:
    config = StackConfig(vocab_size=7, pattern="a", dim=8, heads=1, head_dim=8, span_limit=200)
    run = training(Stack(config))
    memories = []
    for segment in itertools.islice(run.stream.segments(), 3):
        _, _, run.state = backward(run, segment, pieces)
        memories.append(run.state["blocks.0.entries"])
    assert len({memory.untyped_storage().data_ptr() for memory in memories}) == sheets


def chosen(step: int = 0, world: World | None = None, **settings: Any) -> list[bool]:
    run = training(Telling(MODEL))
    run.progress.step, run.world = step, world or World()
    config = budget(**settings)
    told = reset_lanes(run, config)
    lanes: list[bool] = told["lanes"].tolist() if told is not run.state else [False] * config.batch
    return lanes


def test_which_lanes_restart_follows_from_seed_and_step_alone() -> None:
    first = chosen(7, batch=64, state_reset=0.5)
    assert chosen(7, batch=64, state_reset=0.5) == first
    assert chosen(8, batch=64, state_reset=0.5) != first
    assert chosen(7, batch=64, state_reset=0.5, seed=5) != first
    run = training(Telling(MODEL))
    before = torch.get_rng_state()
    reset_lanes(run, budget(state_reset=0.5))
    assert torch.equal(torch.get_rng_state(), before)


def test_where_no_lane_restarts_the_state_stays_what_it_is() -> None:
    run = training()
    assert reset_lanes(run, budget(state_reset=1e-9)) is run.state


@pytest.mark.parametrize("restart", [0.01, 0.3])
def test_as_many_lanes_restart_as_asked_for(restart: float) -> None:
    found = [sum(chosen(step, batch=2000, state_reset=restart)) for step in range(10)]
    assert sum(found) / 20_000 == pytest.approx(restart, abs=4 * (restart / 20_000) ** 0.5)
    assert len(set(found)) > 1


@pytest.mark.parametrize("restart", [-0.1, 1.0, math.inf, math.nan])
def test_what_is_no_chance_of_a_restart_is_refused(restart: float) -> None:
    with pytest.raises(ValueError, match=r"train\.state_reset must be at least 0 and below 1, not"):
        budget(state_reset=restart)


@pytest.mark.parametrize("size", [2, 3])
def test_a_lane_s_fate_does_not_depend_on_the_number_of_processes(size: int) -> None:
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
    run = training(SHARNN(replace(MODEL, dropout_hidden=dropout)))
    fit(run, budget(**settings), PLAIN, callbacks(folder, Shelf()))
    return [entry["nats_per_token"] for entry in entries(folder, "train")]


def test_without_restarts_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never, often = (
        losses(tmp_path / str(share), dropout=0.3, state_reset=share) for share in (1e-12, 0.5)
    )
    monkeypatch.setattr(SHARNN, "reset_lanes", None)
    assert losses(tmp_path / "without", dropout=0.3) == never != often


def test_restarts_are_the_same_however_the_batch_is_split(tmp_path: Path) -> None:
    whole, cut = (losses(tmp_path / str(n), state_reset=0.3, micro_batches=n) for n in (1, 4))
    assert cut == pytest.approx(whole, rel=1e-4)


def test_lanes_restart_before_their_segment_is_read(tmp_path: Path) -> None:
    class Watched(SHARNN):
        found: ClassVar[list[list[bool]]] = []

        def forward(self, tokens_BT: Tensor, state: State) -> Output:
            self.found.append((~state["blocks.0.hidden"].any(1)).tolist())
            return super().forward(tokens_BT, state)

    fit(
        training(Watched(MODEL)),
        budget(steps=9, state_reset=0.4),
        PLAIN,
        callbacks(tmp_path, Shelf()),
    )
    wanted = [chosen(step, state_reset=0.4) for step in range(1, 9)]
    assert Watched.found == [[True] * 4, *wanted]
    assert any(map(any, wanted))


class Poisoned(SHARNN):
    """Returns NaN for the chosen calls."""

    bad: Collection[int] = ()
    calls = 0

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        out = super().forward(tokens_BT, state)
        type(self).calls += 1
        factor = math.nan if self.calls in self.bad else 1.0
        return Output(out.hidden_BTD * factor, out.state, out.penalty)


def poisoned(bad: Collection[int]) -> Poisoned:
    Poisoned.bad, Poisoned.calls = bad, 0
    return Poisoned(MODEL)


def test_a_non_finite_loss_skips_its_step_and_is_reported(tmp_path: Path) -> None:
    run = training(poisoned(range(5, 7)))
    fit(run, budget(steps=10), PLAIN, callbacks(tmp_path, Shelf()))
    assert [entry["step"] for entry in entries(tmp_path, "event")] == [5, 6]
    assert all(parameter.isfinite().all() for parameter in run.model.parameters())
    assert all(tensor.isfinite().all() for tensor in run.state.values())
    assert entries(tmp_path, "train")[-1]["nats_per_token"] < 3


def test_three_in_a_row_go_back_to_the_last_checkpoint(tmp_path: Path) -> None:
    shelf, run = Shelf(), training(poisoned(range(7, 10)))
    fit(run, budget(steps=9, checkpoint_every=5), PLAIN, callbacks(tmp_path, shelf))
    events = [entry["what"] for entry in entries(tmp_path, "event")]
    assert events[-1] == "went back to the weights of step 5"
    assert run.progress.rollbacks == 1
    assert run.progress.step == 9
    five = fitted(tmp_path / "five", 5)
    for name, parameter in run.model.named_parameters():
        torch.testing.assert_close(parameter, five[name], rtol=0, atol=0)


def test_a_run_that_reaches_its_next_checkpoint_has_recovered(tmp_path: Path) -> None:
    often = [call for first in range(7, 68, 10) for call in range(first, first + 3)]
    run = training(poisoned(often))
    fit(run, budget(steps=71, checkpoint_every=5), PLAIN, callbacks(tmp_path, Shelf()))
    events = [entry["what"] for entry in entries(tmp_path, "event")]
    assert sum(what.startswith("went back") for what in events) == 7
    assert run.progress.rollbacks == 0


def test_a_checkpoint_of_an_earlier_pass_is_no_place_to_go_back_to(tmp_path: Path) -> None:
    shelf, run = Shelf(), training()
    place = callbacks(tmp_path, shelf)
    fit(run, budget(steps=4, checkpoint_every=2), PLAIN, place)
    shelf.save("previous", Checkpoint(shelf.kept["last"].tensors, {"step": 2, "pass_step": 0}))
    for pass_step, step in ((0, 2), (3, 4)):
        run.progress.pass_step, run.progress.fruitless = pass_step, True
        roll_back(run, place, 4)
        said = entries(tmp_path, "event")[-1]["what"]
        assert said == f"went back to the weights of step {step}"


def test_a_second_pass_has_not_gone_back_yet() -> None:
    run = training()
    before = replace(run.progress, bad=2, rollbacks=5, fruitless=True)
    saved = Checkpoint(
        {"model": dict(run.model.named_parameters())},
        {**asdict(before), "cursor": [0, 0, 0], "loss_scale": None},
    )
    second_pass(run, saved)
    p = run.progress
    assert (p.bad, p.rollbacks, p.fruitless) == (0, 0, False)


def test_the_best_is_looked_for_anew_where_the_loss_is_of_another_text(tmp_path: Path) -> None:
    shelf, best = Shelf(), []
    told = iter([(1.0, 800), (2.0, 800), (3.0, 900), (2.5, 900), (2.7, 900)])

    def judge(_: Any) -> dict[str, Any]:
        best.append(shelf.kept["best"].cursor["step"] if "best" in shelf.kept else 0)
        nats, size = next(told)
        return {"nats_per_token": nats, "bits_per_byte": nats, "bytes": size, "tokens": 1} | {
            "elapsed_s": 0.0
        }

    fit(training(), budget(steps=5, evaluate_every=1), PLAIN, callbacks(tmp_path, shelf, judge))
    assert best == [0, 1, 1, 3, 4]
    assert shelf.kept["best"].cursor["step"] == 4
    entry = journal.best(entries(tmp_path))
    assert entry is not None
    assert entry["step"] == 4


def fitted(folder: Path, steps: int) -> dict[str, Tensor]:
    """Weights after that many undisturbed steps."""
    folder.mkdir()
    run = training(poisoned(range(0)))
    fit(run, budget(steps=steps), PLAIN, callbacks(folder, Shelf()))
    return dict(run.model.named_parameters())


class Steep(SHARNN):
    """Its loss is finite, but for some calls the gradient is not."""

    bad, calls = range(0), 0

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        out = super().forward(tokens_BT, state)
        type(self).calls += 1
        if self.calls in self.bad:
            out.hidden_BTD.register_hook(lambda gradient: gradient * math.inf)
        return out


def steep(bad: range) -> Steep:
    Steep.bad, Steep.calls = bad, 0
    torch.manual_seed(1)
    return Steep(MODEL)


def test_gradients_that_are_not_finite_count_as_zero_and_are_reported(tmp_path: Path) -> None:
    run = training(steep(range(5, 7)))
    fit(run, budget(steps=10, log_every=3), PLAIN, callbacks(tmp_path, Shelf()))
    what = "gradients are not finite; taken for zero"
    assert [(e["step"], e["what"]) for e in entries(tmp_path, "event")] == [(5, what), (6, what)]
    assert [entry["step"] for entry in entries(tmp_path, "train")] == [3, 6, 9]
    assert entries(tmp_path, "train")[1]["grad_norm"] is None
    order = [(entry["kind"], entry["step"]) for entry in entries(tmp_path)]
    assert order[1:4] == [("event", 5), ("event", 6), ("train", 6)]
    assert all(parameter.isfinite().all() for parameter in run.model.parameters())
    assert run.progress.bad == 0


def test_gradients_that_are_never_finite_go_back_too(tmp_path: Path) -> None:
    run = training(steep(range(7, 10)))
    fit(run, budget(steps=12, checkpoint_every=5), PLAIN, callbacks(tmp_path, Shelf()))
    events = [(entry["step"], entry["what"]) for entry in entries(tmp_path, "event")]
    # Of the ninth step's gradients the loop hears while it is busy with the tenth.
    assert events[-1] == (10, "went back to the weights of step 5")
    assert [step for step, _ in events[:-1]] == [7, 8, 9]
    assert not run.progress.fruitless


def test_what_was_thrown_away_by_going_back_proves_nothing(tmp_path: Path) -> None:
    run = training(steep(range(7, 10)))
    fit(run, budget(steps=10, checkpoint_every=5), PLAIN, callbacks(tmp_path, Shelf()))
    assert run.progress.rollbacks == 1
    assert run.progress.fruitless


def after_two_updates(bad: range, *, zeroed: bool) -> list[Tensor]:
    run = training(steep(bad))
    for number, segment in enumerate(itertools.islice(run.stream.segments(), 2)):
        nats, norm, _ = backward(run, segment, 1)
        for parameter in run.model.parameters() if zeroed and number else ():
            if parameter.grad is not None:
                parameter.grad.zero_()
        assert update(run, nats, norm)
    return list(run.model.parameters())


def test_an_update_without_finite_gradients_is_one_with_zeros() -> None:
    wanted = after_two_updates(range(0), zeroed=True)
    found = after_two_updates(range(2, 3), zeroed=False)
    assert all(map(torch.equal, found, wanted))


def test_under_a_loss_scale_they_skip_the_step(tmp_path: Path) -> None:
    run = training(steep(range(5, 7)))
    run.scale = LossScale(1024.0, 0, True)
    weights: list[Tensor] = []
    place = callbacks(tmp_path, Shelf())
    place.bar.update = lambda share, words: weights.append(  # type: ignore[method-assign]
        next(run.model.parameters()).detach().clone()
    )
    fit(run, budget(steps=8), PLAIN, place)
    assert [step for step in range(1, 8) if torch.equal(weights[step], weights[step - 1])] == [4, 5]
    assert run.scale.value == 256
    assert run.progress.bad == 0
    what = "gradients overflowed; scale halved, step skipped"
    assert [(e["step"], e["what"]) for e in entries(tmp_path, "event")] == [(5, what), (6, what)]


def test_a_bad_step_is_told_of_before_it_is_judged_and_is_not_saved(tmp_path: Path) -> None:
    run, steps = training(steep(range(4, 5))), []
    place = replace(
        callbacks(tmp_path, Shelf()),
        save=lambda name, saved: steps.append((name, saved.cursor["step"], saved.cursor["bad"])),
        amend=lambda name, saved: None,
    )
    config = budget(steps=6, evaluate_every=4, checkpoint_every=1, log_every=100)
    fit(run, config, PLAIN, place)
    order = [(entry["kind"], entry["step"]) for entry in entries(tmp_path)]
    assert order == [("event", 4), ("valid", 4), ("valid", 6)]
    assert [(name, step) for name, step, _ in steps] == [
        *(("last", step) for step in (1, 2, 3)),
        ("best", 4),
        *(("last", step) for step in (5, 6)),
    ]
    assert steps[3] == ("best", 4, 1)


def test_what_judging_taught_an_averaging_optimizer_is_kept(tmp_path: Path) -> None:
    shelf, run = Shelf(), training()
    run.optimizer = build_optimizer(run.model, OptimConfig(name="ntasgd", lr=1e-2))
    run.progress.best_nats = 0.5
    fit(run, budget(steps=5, checkpoint_every=100), PLAIN, callbacks(tmp_path, shelf))
    last = shelf.kept["last"]
    assert last.tensors["optimizer"]["averaging/losses"][-1] == 1.0
    assert last.cursor["journal_bytes"] == (tmp_path / "metrics.jsonl").stat().st_size


@pytest.mark.parametrize("stop", [6, 7, 8])
def test_stopped_amid_bad_gradients_it_goes_on_as_if_never_stopped(
    stop: int, tmp_path: Path
) -> None:
    config = budget(steps=14, checkpoint_every=5, log_every=4)
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole, shelf = training(steep(range(7, 9))), Shelf()
    fit(whole, config, PLAIN, callbacks(tmp_path / "whole", Shelf()))
    first = training(steep(range(7, 9)))
    fit(first, replace(config, steps=stop), PLAIN, callbacks(tmp_path / "parts", shelf))
    Steep.calls = stop
    again = training(Steep(MODEL))
    restore(again, shelf.kept["last"])
    again.stream.cursor = again.progress.cursor
    fit(again, config, PLAIN, callbacks(tmp_path / "parts", shelf))
    for name, parameter in again.model.named_parameters():
        assert torch.equal(parameter, whole.model.get_parameter(name)), name
    assert entries(tmp_path / "parts", "event") == entries(tmp_path / "whole", "event")


def test_no_checkpoint_is_written_while_the_loss_is_not_finite(tmp_path: Path) -> None:
    shelf = Shelf()
    run = training(poisoned(range(5, 7)))
    place = callbacks(tmp_path, shelf)
    steps: list[int] = []
    place = replace(
        place,
        save=lambda name, saved: steps.append(saved.cursor["step"]),
        amend=lambda name, saved: None,
    )
    fit(run, budget(steps=8, checkpoint_every=1), PLAIN, place)
    assert 5 not in steps
    assert 6 not in steps
    assert {4, 7, 8} <= set(steps)


def test_a_run_that_only_yields_nan_ends_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not finite at step 3; lower optim\.lr"):
        fit(training(poisoned(range(1, 99))), budget(), PLAIN, callbacks(tmp_path, Shelf()))
    shelf, run = Shelf(), training(poisoned(range(4, 999)))
    with pytest.raises(UserError, match="not finite"):
        fit(run, budget(steps=200, checkpoint_every=2), PLAIN, callbacks(tmp_path, shelf))
    assert int(shelf.kept["last"].cursor["step"]) < 40


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_a_checkpoint(number: int, tmp_path: Path) -> None:
    shelf, run = Shelf(), training()
    place = struck(run, callbacks(tmp_path, shelf), 4, number)
    assert fit(run, budget(steps=50), PLAIN, place) == number
    assert shelf.kept["last"].cursor["step"] == 4
    assert not entries(tmp_path, "valid")


def test_a_budget_in_epochs_reads_every_token_that_often(tmp_path: Path) -> None:
    run = training()
    fit(run, budget(steps=None, epochs=2), PLAIN, callbacks(tmp_path, Shelf()))
    assert run.progress.tokens == 2 * 400
    assert run.progress.cursor == Cursor(2, 0, 0)
    assert [entry["step"] for entry in entries(tmp_path, "valid")] == [17, 34]


def test_a_budget_in_minutes_anneals_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr("sparing.train.progress.Clock.elapsed_s", lambda clock: float(next(ticks)))
    config = budget(steps=None, minutes=1.0)
    fit(training(), config, ScheduleConfig(shape="linear"), callbacks(tmp_path, Shelf()))
    rates = [entry["lr"] for entry in entries(tmp_path, "train")]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(1e-2, rel=0.05)
    # Every look at the clock is a second here, and a step takes three of the sixty.
    assert rates[-1] < 1e-2 * 3.5 / 60


def test_time_spent_before_training_counts_against_the_budget(tmp_path: Path) -> None:
    run = training()
    run.head_start_s = 120
    fit(run, budget(steps=None, minutes=1.0), PLAIN, callbacks(tmp_path, Shelf()))
    assert run.progress.step == 0


def test_killed_after_the_last_evaluation_it_is_noted_once(tmp_path: Path) -> None:
    class Every(Shelf):
        def __init__(self) -> None:
            super().__init__()
            self.all: list[Checkpoint] = []

        def save(self, name: str, checkpoint: Checkpoint) -> None:
            super().save(name, checkpoint)
            self.all += [self.kept[name]] if name == "last" else []

    shelf, config = Every(), budget(steps=20, checkpoint_every=20)
    fit(training(), config, PLAIN, callbacks(tmp_path, shelf))
    whole = entries(tmp_path)
    before_judging, after = shelf.all
    assert after.cursor["judged_step"] == 20 != before_judging.cursor["judged_step"]
    again = training()
    restore(again, before_judging)
    again.stream.cursor = again.progress.cursor
    journal.rewind(tmp_path / "metrics.jsonl", again.progress.journal_bytes)
    fit(again, config, PLAIN, callbacks(tmp_path, shelf))
    assert entries(tmp_path) == whole


def test_the_best_weights_are_kept_apart(tmp_path: Path) -> None:
    losses = iter([3.0, 1.0, 2.0])

    def judge(model: Any) -> dict[str, Any]:
        loss = next(losses)
        return {"nats_per_token": loss, "bits_per_byte": loss, "tokens": 1, "elapsed_s": 0.0}

    shelf = Shelf()
    fit(training(), budget(steps=6, evaluate_every=2), PLAIN, callbacks(tmp_path, shelf, judge))
    assert shelf.kept["best"].cursor["step"] == 4
    assert shelf.kept["last"].cursor["best_nats"] == 1.0
    assert set(shelf.kept["best"].tensors) == {"model"}


def test_a_second_pass_keeps_the_weights_and_nothing_else(tmp_path: Path) -> None:
    shelf, run = Shelf(), training()
    warm = ScheduleConfig(shape="constant", warmup=4)
    fit(run, budget(steps=8), warm, callbacks(tmp_path, shelf))
    again = training()
    second_pass(again, shelf.kept["last"])
    again.stream.cursor = again.progress.cursor
    for name, parameter in again.model.named_parameters():
        torch.testing.assert_close(parameter, shelf.kept["last"].tensors["model"][name])
    assert not any(tensor.any() for tensor in again.optimizer.tensors().values())
    fit(again, budget(steps=16), warm, callbacks(tmp_path, shelf))
    rates = [entry["lr"] for entry in entries(tmp_path, "train")]
    assert rates == pytest.approx([1e-2 * min(1.0, n / 4) for n in [*range(1, 9)] * 2])


def test_the_rate_can_follow_the_length_of_the_segment(tmp_path: Path) -> None:
    lengths = (6, 6, 6, 5)
    for number, (by_length, filled) in enumerate(((True, False), (False, False), (True, True))):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = training()
        run.stream = Stream(text(92), StreamConfig(batch=4, segment=6, filled=filled))
        fit(run, budget(steps=4, lr_by_length=by_length), PLAIN, callbacks(folder, Shelf()))
        rates = [entry["lr"] for entry in entries(folder, "train")]
        expected = [1e-2 * (length / 6 if by_length else 1) for length in lengths]
        assert rates == pytest.approx(expected)


def test_the_loss_scale_halves_on_overflow_and_doubles_after_patience() -> None:
    scale = LossScale.for_precision("float16")
    scale.after_step(finite=False)
    assert scale.value == 32768
    for _ in range(2000):
        scale.after_step(finite=True)
    assert scale.value == 65536
    inert = LossScale.for_precision("bfloat16")
    inert.after_step(finite=False)
    assert inert.value == 1


def test_gradients_do_not_depend_on_the_loss_scale() -> None:
    plain, scaled = training(), training()
    scaled.scale = LossScale(1024.0, 0, True)
    segment = next(plain.stream.segments())
    norms = [backward(run, segment, 1)[1].number() for run in (plain, scaled)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    for p, q in zip(plain.model.parameters(), scaled.model.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_the_model_hears_of_every_step_and_may_call_it_a_day(tmp_path: Path) -> None:
    class Attentive(SHARNN):
        heard: ClassVar[list[tuple[int, float]]] = []

        def before_step(self, step: int, share: float) -> None:
            self.heard.append((step, share))

        @property
        def settled(self) -> bool:
            return len(self.heard) == 5

    run = training(Attentive(MODEL))
    assert fit(run, budget(), ScheduleConfig(), callbacks(tmp_path, Shelf())) == 0
    assert Attentive.heard == [(step, step / 20) for step in range(5)]
    assert run.progress.step == 5


class Narrow(SHARNN):
    """Has room for so many lanes at a time, and once for one more."""

    room, spare = 1, 1

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        """As its parent."""
        missing = max(0, tokens_BT.size(0) - self.room)
        if missing > self.spare:
            raise torch.OutOfMemoryError("no room")
        # So that a second piece can fail, when the first has its gradients.
        self.spare -= missing
        return super().forward(tokens_BT, state)


def test_a_batch_that_does_not_fit_goes_in_pieces_and_learns_the_same(tmp_path: Path) -> None:
    last = []
    for room in (99, 1):
        run = training()
        run.model.__class__ = Narrow
        run.model.room = room
        folder = tmp_path / str(room)
        folder.mkdir()
        fit(run, replace(budget(steps=20), evaluate_every=0), PLAIN, callbacks(folder, Shelf()))
        last.append(entries(folder, "train")[-1]["nats_per_token"])
    assert last[1] == pytest.approx(last[0], rel=1e-4)
    said = [event["what"] for event in entries(tmp_path / "1", "event")]
    assert said[-1].startswith("memory is too small; the batch goes in 4 pieces")


def test_resumed_it_goes_in_as_many_pieces_and_draws_the_same_dropout(tmp_path: Path) -> None:
    def narrow() -> Training:
        torch.manual_seed(5)
        run = sha_run(0.3)
        run.model.__class__ = Narrow
        return run

    one, two, shelf = tmp_path / "one", tmp_path / "two", Shelf()
    one.mkdir(), two.mkdir()
    config = budget(steps=12, log_every=3)
    fit(narrow(), config, PLAIN, callbacks(one, Shelf()))
    first, second = narrow(), narrow()
    fit(first, config, PLAIN, struck(first, callbacks(two, shelf), 6))
    restore(second, shelf.kept["last"])
    second.stream.cursor = second.progress.cursor
    fit(second, config, PLAIN, callbacks(two, shelf))
    assert entries(two, "train") == entries(one, "train")


def test_memory_too_small_for_one_lane_is_told_in_one_line(tmp_path: Path) -> None:
    run = training()
    run.model.__class__ = Narrow
    run.model.room = 0
    with pytest.raises(UserError, match="memory is too small"):
        fit(run, budget(steps=3), PLAIN, callbacks(tmp_path, Shelf()))


def test_a_model_that_keeps_lanes_apart_is_not_cut_into_other_pieces(tmp_path: Path) -> None:
    run = training()
    run.model.__class__ = Narrow
    run.model.fixed_micro_batches = True
    with pytest.raises(UserError, match=r"raise train\.micro_batches"):
        fit(run, budget(steps=3), PLAIN, callbacks(tmp_path, Shelf()))
