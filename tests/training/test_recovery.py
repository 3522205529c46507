"""Recovery: skipped steps, rollback and too little memory."""

import math
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from tests.training.toy import (
    MODEL,
    PLAIN,
    Shelf,
    Steep,
    budget,
    callbacks,
    entries,
    interrupt_at,
    sha_training,
    steep,
    toy_training,
)
from torch import Tensor

from sparing.errors import UserError
from sparing.models.api import Output, State
from sparing.models.sha_rnn.model import SHARNN
from sparing.training.capture import restore, start_second_pass
from sparing.training.checkpoint import Checkpoint
from sparing.training.loop import fit
from sparing.training.recovery import roll_back
from sparing.training.state import LossScale, Training


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
    # Whatever ran before, two of them have the same weights.
    torch.manual_seed(1)
    return Poisoned(MODEL)


def test_a_non_finite_loss_skips_its_step_and_is_reported(tmp_path: Path) -> None:
    training = toy_training(poisoned(range(5, 7)))
    fit(training, budget(steps=10), PLAIN, callbacks(tmp_path, Shelf()))
    assert [entry["step"] for entry in entries(tmp_path, "event")] == [5, 6]
    assert all(parameter.isfinite().all() for parameter in training.model.parameters())
    assert all(tensor.isfinite().all() for tensor in training.state.values())
    assert entries(tmp_path, "train")[-1]["nats_per_token"] < 3


def test_three_bad_steps_roll_back_to_the_last_checkpoint(tmp_path: Path) -> None:
    shelf, training = Shelf(), toy_training(poisoned(range(7, 10)))
    fit(training, budget(steps=9, checkpoint_every=5), PLAIN, callbacks(tmp_path, shelf))
    events = [entry["what"] for entry in entries(tmp_path, "event")]
    assert events[-1] == "rolled back to the weights of step 5"
    assert training.counters.rollbacks == 1
    assert training.counters.step == 9
    five = fitted(tmp_path / "five", 5)
    for name, parameter in training.model.named_parameters():
        torch.testing.assert_close(parameter, five[name], rtol=0, atol=0)


def test_a_run_that_reaches_its_next_checkpoint_has_recovered(tmp_path: Path) -> None:
    often = [call for first in range(7, 68, 10) for call in range(first, first + 3)]
    training = toy_training(poisoned(often))
    fit(training, budget(steps=71, checkpoint_every=5), PLAIN, callbacks(tmp_path, Shelf()))
    events = [entry["what"] for entry in entries(tmp_path, "event")]
    assert sum(what.startswith("rolled back") for what in events) == 7
    assert training.counters.rollbacks == 0


def test_a_checkpoint_of_an_earlier_pass_is_not_rolled_back_to(tmp_path: Path) -> None:
    shelf, training = Shelf(), toy_training()
    hooks = callbacks(tmp_path, shelf)
    fit(training, budget(steps=4, checkpoint_every=2), PLAIN, hooks)
    shelf.save("previous", Checkpoint(shelf.kept["last"].tensors, {"step": 2, "pass_step": 0}))
    for pass_step, step in ((0, 2), (3, 4)):
        training.counters.pass_step, training.counters.no_progress = pass_step, True
        roll_back(training, hooks, 4)
        said = entries(tmp_path, "event")[-1]["what"]
        assert said == f"rolled back to the weights of step {step}"


def test_a_second_pass_starts_without_rollbacks() -> None:
    training = toy_training()
    before = replace(training.counters, bad_steps=2, rollbacks=5, no_progress=True)
    saved = Checkpoint(
        {"model": dict(training.model.named_parameters())},
        {**asdict(before), "cursor": [0, 0, 0], "loss_scale": None},
    )
    start_second_pass(training, saved)
    p = training.counters
    assert (p.bad_steps, p.rollbacks, p.no_progress) == (0, 0, False)


def fitted(folder: Path, steps: int) -> dict[str, Tensor]:
    """Weights after that many undisturbed steps."""
    folder.mkdir()
    training = toy_training(poisoned(range(0)))
    fit(training, budget(steps=steps), PLAIN, callbacks(folder, Shelf()))
    return dict(training.model.named_parameters())


def test_gradients_that_are_not_finite_count_as_zero_and_are_reported(tmp_path: Path) -> None:
    training = toy_training(steep(range(5, 7)))
    fit(training, budget(steps=10, log_every=3), PLAIN, callbacks(tmp_path, Shelf()))
    what = "gradients are not finite; replaced by zeros"
    assert [(e["step"], e["what"]) for e in entries(tmp_path, "event")] == [(5, what), (6, what)]
    assert [entry["step"] for entry in entries(tmp_path, "train")] == [3, 6, 9]
    assert entries(tmp_path, "train")[1]["grad_norm"] is None
    order = [(entry["kind"], entry["step"]) for entry in entries(tmp_path)]
    assert order[1:4] == [("event", 5), ("event", 6), ("train", 6)]
    assert all(parameter.isfinite().all() for parameter in training.model.parameters())
    assert training.counters.bad_steps == 0


def test_bad_gradients_roll_back_too(tmp_path: Path) -> None:
    training = toy_training(steep(range(7, 10)))
    fit(training, budget(steps=12, checkpoint_every=5), PLAIN, callbacks(tmp_path, Shelf()))
    events = [(entry["step"], entry["what"]) for entry in entries(tmp_path, "event")]
    # Of the ninth step's gradients the loop hears while it is busy with the tenth.
    assert events[-1] == (10, "rolled back to the weights of step 5")
    assert [step for step, _ in events[:-1]] == [7, 8, 9]
    assert not training.counters.no_progress


def test_a_step_that_was_rolled_back_is_no_progress(tmp_path: Path) -> None:
    training = toy_training(steep(range(7, 10)))
    fit(training, budget(steps=10, checkpoint_every=5), PLAIN, callbacks(tmp_path, Shelf()))
    assert training.counters.rollbacks == 1
    assert training.counters.no_progress


def test_an_overflow_under_a_loss_scale_skips_the_step(tmp_path: Path) -> None:
    training = toy_training(steep(range(5, 7)))
    training.scale = LossScale(1024.0, 0, True)
    weights: list[Tensor] = []
    hooks = callbacks(tmp_path, Shelf())
    hooks.bar.update = lambda share, text: weights.append(  # type: ignore[method-assign]
        next(training.model.parameters()).detach().clone()
    )
    fit(training, budget(steps=8), PLAIN, hooks)
    assert [step for step in range(1, 8) if torch.equal(weights[step], weights[step - 1])] == [4, 5]
    assert training.scale.value == 256
    assert training.counters.bad_steps == 0
    what = "gradients overflowed; loss scale halved, step skipped"
    assert [(e["step"], e["what"]) for e in entries(tmp_path, "event")] == [(5, what), (6, what)]


def test_a_bad_step_is_reported_before_validation_and_not_saved(tmp_path: Path) -> None:
    training, steps = toy_training(steep(range(4, 5))), []
    hooks = replace(
        callbacks(tmp_path, Shelf()),
        save=lambda name, saved: steps.append(
            (name, saved.cursor["step"], saved.cursor["bad_steps"])
        ),
        update_checkpoint=lambda name, saved: None,
    )
    config = budget(steps=6, evaluate_every=4, checkpoint_every=1, log_every=100)
    fit(training, config, PLAIN, hooks)
    order = [(entry["kind"], entry["step"]) for entry in entries(tmp_path)]
    assert order == [("event", 4), ("valid", 4), ("valid", 6)]
    assert [(name, step) for name, step, _ in steps] == [
        *(("last", step) for step in (1, 2, 3)),
        ("best", 4),
        *(("last", step) for step in (5, 6)),
    ]
    assert steps[3] == ("best", 4, 1)


@pytest.mark.parametrize("stop", [6, 7, 8])
def test_resumed_between_bad_gradients_it_is_bit_equal(stop: int, tmp_path: Path) -> None:
    config = budget(steps=14, checkpoint_every=5, log_every=4)
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole, shelf = toy_training(steep(range(7, 9))), Shelf()
    fit(whole, config, PLAIN, callbacks(tmp_path / "whole", Shelf()))
    first = toy_training(steep(range(7, 9)))
    fit(first, replace(config, steps=stop), PLAIN, callbacks(tmp_path / "parts", shelf))
    Steep.calls = stop
    again = toy_training(Steep(MODEL))
    restore(again, shelf.kept["last"])
    again.stream.cursor = again.counters.cursor
    fit(again, config, PLAIN, callbacks(tmp_path / "parts", shelf))
    for name, parameter in again.model.named_parameters():
        assert torch.equal(parameter, whole.model.get_parameter(name)), name
    assert entries(tmp_path / "parts", "event") == entries(tmp_path / "whole", "event")


def test_no_checkpoint_is_written_while_the_loss_is_not_finite(tmp_path: Path) -> None:
    shelf = Shelf()
    training = toy_training(poisoned(range(5, 7)))
    hooks = callbacks(tmp_path, shelf)
    steps: list[int] = []
    hooks = replace(
        hooks,
        save=lambda name, saved: steps.append(saved.cursor["step"]),
        update_checkpoint=lambda name, saved: None,
    )
    fit(training, budget(steps=8, checkpoint_every=1), PLAIN, hooks)
    assert 5 not in steps
    assert 6 not in steps
    assert {4, 7, 8} <= set(steps)


def test_a_run_with_nothing_but_nan_ends_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not finite at step 3; lower optim\.lr"):
        fit(toy_training(poisoned(range(1, 99))), budget(), PLAIN, callbacks(tmp_path, Shelf()))
    shelf, training = Shelf(), toy_training(poisoned(range(4, 999)))
    with pytest.raises(UserError, match="not finite"):
        fit(training, budget(steps=200, checkpoint_every=2), PLAIN, callbacks(tmp_path, shelf))
    assert int(shelf.kept["last"].cursor["step"]) < 40


class Narrow(SHARNN):
    """Has memory for `capacity` lanes at a time, and once for one more."""

    capacity, spare = 1, 1

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        """As its parent."""
        missing = max(0, tokens_BT.size(0) - self.capacity)
        if missing > self.spare:
            raise torch.OutOfMemoryError("out of memory")
        # So that a second micro-batch can fail when the first already has its gradients.
        self.spare -= missing
        return super().forward(tokens_BT, state)


def test_a_batch_too_large_for_memory_is_split_and_learns_the_same(tmp_path: Path) -> None:
    last = []
    for capacity in (99, 1):
        training = toy_training()
        training.model.__class__ = Narrow
        training.model.capacity = capacity
        folder = tmp_path / str(capacity)
        folder.mkdir()
        fit(
            training, replace(budget(steps=20), evaluate_every=0), PLAIN, callbacks(folder, Shelf())
        )
        last.append(entries(folder, "train")[-1]["nats_per_token"])
    assert last[1] == pytest.approx(last[0], rel=1e-4)
    said = [event["what"] for event in entries(tmp_path / "1", "event")]
    assert said[-1].startswith("memory is too small; using 4 micro-batches")


def test_a_resumed_run_keeps_its_micro_batches_and_dropout(tmp_path: Path) -> None:
    def narrow() -> Training:
        torch.manual_seed(5)
        training = sha_training(0.3)
        training.model.__class__ = Narrow
        return training

    one, two, shelf = tmp_path / "one", tmp_path / "two", Shelf()
    one.mkdir(), two.mkdir()
    config = budget(steps=12, log_every=3)
    fit(narrow(), config, PLAIN, callbacks(one, Shelf()))
    first, second = narrow(), narrow()
    fit(first, config, PLAIN, interrupt_at(first, callbacks(two, shelf), 6))
    restore(second, shelf.kept["last"])
    second.stream.cursor = second.counters.cursor
    fit(second, config, PLAIN, callbacks(two, shelf))
    assert entries(two, "train") == entries(one, "train")


def test_memory_too_small_for_one_lane_is_an_error(tmp_path: Path) -> None:
    training = toy_training()
    training.model.__class__ = Narrow
    training.model.capacity = 0
    with pytest.raises(UserError, match="memory is too small"):
        fit(training, budget(steps=3), PLAIN, callbacks(tmp_path, Shelf()))


def test_a_model_with_fixed_micro_batches_is_not_split_further(tmp_path: Path) -> None:
    training = toy_training()
    training.model.__class__ = Narrow
    training.model.fixed_micro_batches = True
    with pytest.raises(UserError, match=r"raise train\.micro_batches"):
        fit(training, budget(steps=3), PLAIN, callbacks(tmp_path, Shelf()))
