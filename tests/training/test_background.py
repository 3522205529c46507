"""Checkpoints written in the background: what they hold, in which order, and what may fail."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
import torch
from tests.training.toy import PLAIN, Shelf, budget, callbacks, entries, toy_training
from torch import Tensor

from sparing.training import journal
from sparing.training.background import BackgroundWriter, copy_to_host
from sparing.training.checkpoint import Checkpoint
from sparing.training.loop import fit
from sparing.training.state import Callbacks, Training

PATIENCE_S = 60.0
"""How long a test waits for what another thread is sure to do."""


Write = Callable[[str, Checkpoint], None]


def in_background(folder: Path, shelf: Shelf, write: Write) -> Callbacks:
    """Callbacks whose saves go through a writer, as those of a run do."""
    plain, writer = callbacks(folder, shelf), BackgroundWriter(write)

    def update(name: str, checkpoint: Checkpoint) -> None:
        writer.wait()
        shelf.update(name, checkpoint)

    return Callbacks(
        journal=plain.journal,
        bar=plain.bar,
        save=writer.save,
        update_checkpoint=update,
        load=plain.load,
        validate=plain.validate,
        writer=writer,
    )


def small(value: float = 0.0) -> Checkpoint:
    return Checkpoint({"model": {"a": torch.full((3,), value)}}, {"step": 1})


def test_steps_go_on_while_a_checkpoint_is_being_written(tmp_path: Path) -> None:
    training, shelf, steps = toy_training(), Shelf(), dict[str, int]()
    # The first `last` is waited for; here is one already.
    training.saved_step, reached = 0, Event()

    def slow_disk(name: str, checkpoint: Checkpoint) -> None:
        if checkpoint.cursor["step"] == 3 and name == "last":
            # Without a thread of its own, this would wait for ever.
            assert reached.wait(PATIENCE_S)
            steps["written"] = training.counters.step
        shelf.save(name, checkpoint)

    hooks, update = in_background(tmp_path, shelf, slow_disk), training.model.before_step

    def watched(step: int, share: float) -> None:
        if step == 5:
            reached.set()
        update(step, share)

    training.model.before_step = watched  # type: ignore[method-assign]
    assert fit(training, budget(steps=9, checkpoint_every=3), PLAIN, hooks) == 0
    assert steps["written"] >= 5
    assert shelf.kept["last"].cursor["step"] == 9


def third_checkpoint(folder: Path, *, late: bool) -> Checkpoint:
    """The checkpoint of step 3; `late`, it is written while steps 4 to 6 are made."""
    folder.mkdir()
    training, shelf, go_on = toy_training(), Shelf(), Event()
    training.saved_step = 0

    def write(name: str, checkpoint: Checkpoint) -> None:
        if late:
            assert go_on.wait(PATIENCE_S)
        if checkpoint.cursor["step"] == 3:
            shelf.save(name, checkpoint)

    training.model.before_step = release_at(training, 6, go_on)  # type: ignore[method-assign]
    hooks = in_background(folder, shelf, write)
    hooks = replace(hooks, update_checkpoint=lambda *_: None)
    hooks = hooks if late else replace(hooks, save=write)
    fit(training, budget(steps=7, checkpoint_every=3), PLAIN, hooks)
    return shelf.kept["last"]


def test_what_is_written_is_what_was_there_when_it_was_saved(tmp_path: Path) -> None:
    saved, wanted = (third_checkpoint(tmp_path / str(late), late=late) for late in (True, False))
    timeless = dict.fromkeys(("elapsed_s", "logged_s", "spent_s", "journal_bytes"))
    assert saved.cursor | timeless == wanted.cursor | timeless
    for stem, tensors in wanted.tensors.items():
        assert all(torch.equal(saved.tensors[stem][name], each) for name, each in tensors.items())


def release_at(training: Training, step: int, event: Event) -> Callable[[int, float], None]:
    original = training.model.before_step

    def watched(now: int, share: float) -> None:
        if now >= step - 1:
            event.set()
        original(now, share)

    return watched


def test_there_is_one_copy_at_a_time_and_writes_keep_their_order() -> None:
    written, copies = list[str](), list[weakref.ref[Tensor]]()

    def write(name: str, checkpoint: Checkpoint) -> None:
        gc.collect()
        copies.append(weakref.ref(checkpoint.tensors["model"]["a"]))
        alive = [copy for copy in copies if copy() is not None]
        written.append(f"{name} with {len(alive)}")

    writer = BackgroundWriter(write)
    for name in ("best", "last", "best", "last"):
        writer.save(name, small())
    writer.wait()
    assert written == ["best with 1", "last with 1", "best with 1", "last with 1"]


@pytest.mark.parametrize("last", [False, True])
def test_a_write_that_fails_ends_the_run(tmp_path: Path, *, last: bool) -> None:
    training, shelf, failed = toy_training(), Shelf(), Event()

    def full_disk(name: str, checkpoint: Checkpoint) -> None:
        if checkpoint.cursor["step"] == (20 if last else 3):
            failed.set()
            raise OSError(28, "No space left on device")

    hooks = in_background(tmp_path, shelf, full_disk)
    with pytest.raises(OSError, match="No space left"):
        fit(training, budget(steps=20, checkpoint_every=3), PLAIN, hooks)
    hooks.close()
    assert failed.is_set()
    # While there is no `last`, no step is made beyond it.
    assert training.counters.step == (20 if last else 3)


def test_a_failure_is_raised_once_by_whatever_comes_next() -> None:
    def fail(name: str, checkpoint: Checkpoint) -> None:
        raise OSError(name)

    writer = BackgroundWriter(fail)
    for again in (writer.wait, lambda: writer.save("second", small())):
        writer.save("first", small())
        with pytest.raises(OSError, match="first"):
            again()
        writer.check()
        writer.wait()
    writer.save("third", small())
    # After an error elsewhere, which is the one to report.
    writer.join()


def test_a_journal_that_cannot_be_closed_does_not_leave_a_write_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk() -> None:
        raise OSError(28, "No space left on device")

    hooks, written = in_background(tmp_path, Shelf(), lambda *_: None), list[int]()
    assert hooks.writer is not None
    monkeypatch.setattr(hooks.journal, "close", full_disk)
    monkeypatch.setattr(hooks.writer, "join", lambda: written.append(1))
    with pytest.raises(OSError, match="No space left"):
        hooks.close()
    assert written == [1]


def test_nothing_is_raised_for_a_write_that_is_under_way() -> None:
    go_on = Event()

    def fail(name: str, checkpoint: Checkpoint) -> None:
        assert go_on.wait(PATIENCE_S)
        raise OSError(name)

    writer = BackgroundWriter(fail)
    writer.save("slow", small())
    writer.check()
    go_on.set()
    with pytest.raises(OSError, match="slow"):
        writer.wait()


def test_a_copy_shares_no_memory_with_its_original() -> None:
    original = small(1.0)
    view = Checkpoint({"model": {"a": torch.arange(6.0).reshape(2, 3).t()}}, {"step": 1})
    copied, arrived = copy_to_host(original)
    turned, _ = copy_to_host(view)
    arrived()
    original.tensors["model"]["a"].fill_(2.0)
    assert copied.tensors["model"]["a"].tolist() == [1.0] * 3
    assert turned.tensors["model"]["a"].is_contiguous()
    assert torch.equal(turned.tensors["model"]["a"], view.tensors["model"]["a"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_copy_from_a_gpu_is_that_of_the_moment() -> None:
    tensor = torch.zeros(1 << 26, device="cuda")
    torch.cuda._sleep(100_000_000)
    tensor.add_(1)
    copied, arrived = copy_to_host(Checkpoint({"model": {"a": tensor}}, {}))
    tensor.add_(1)
    arrived()
    assert copied.tensors["model"]["a"].is_pinned()
    assert bool((copied.tensors["model"]["a"] == 1).all())


def test_the_journal_says_which_share_of_the_time_were_steps(tmp_path: Path) -> None:
    training = toy_training()
    training.head_start_s = 100.0
    fit(training, budget(steps=4, evaluate_every=2), PLAIN, callbacks(tmp_path, Shelf()))
    spent = training.counters.spent_s
    assert spent.keys() == {"start", "steps", "validation", "checkpoints"}
    assert spent["start"] == 100.0
    assert 0 < spent["steps"] < training.counters.elapsed_s - 100.0
    assert len(entries(tmp_path, "train")) == 4
    shares = [entry["steps_share"] for entry in journal.read(tmp_path / "metrics.jsonl")[:2]]
    assert all(0 < share < 0.5 for share in shares)


# The last step may have been saved already, as it is in the course of training.
@pytest.mark.parametrize("every", [3, 2])
@pytest.mark.parametrize("keep_state", [True, False])
def test_the_state_of_a_finished_run_is_saved_if_it_is_wanted(
    tmp_path: Path, *, keep_state: bool, every: int
) -> None:
    shelf = Shelf()
    config = budget(steps=4, checkpoint_every=every, keep_state=keep_state)
    fit(toy_training(), config, PLAIN, callbacks(tmp_path, shelf))
    assert (shelf.kept["last"].tensors.keys() == {"model"}) != keep_state
    assert shelf.kept["last"].cursor["validated_step"] == 4
