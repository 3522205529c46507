"""An engine without memory, or with a broken model: who fails, and how it goes on."""

import queue
import threading
import weakref
from typing import Any

import pytest
import torch
from tests.serve.conftest import LIMITS, Inbox, ask, eventually, write

from sparing.generate.sampling import SamplingConfig, sample
from sparing.serve import choice
from sparing.serve import engine as module
from sparing.serve.engine import Engine
from sparing.serve.requests import BrokenError, Failed


def test_a_failing_step_ends_the_texts_in_lanes_and_no_other(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken, inbox = threading.Event(), Inbox()
    step = engine._lanes.step

    def fail_once(ids: dict[int, int]) -> torch.Tensor:
        if not broken.is_set():
            broken.set()
            raise RuntimeError("a broken step")
        return step(ids)

    monkeypatch.setattr(engine._lanes, "step", fail_once)
    engine.submit([write("a", 4) for _ in range(20)], inbox.receivers(20))
    inbox.wait()
    failed = [isinstance(events[-1], Failed) for events in inbox.events]
    assert failed == [True] * LIMITS.lanes + [False] * (20 - LIMITS.lanes)
    assert len(inbox.text(19)) == 4
    assert "a broken step" in capfd.readouterr().err
    assert engine.counts.failures == LIMITS.lanes


def test_a_failing_choice_ends_the_texts_with_the_same_settings_and_no_other(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def choose(logits_BV: torch.Tensor, config: SamplingConfig, uniform_B: torch.Tensor) -> Any:
        if config.temperature == 0.5:
            raise torch.OutOfMemoryError("no memory to sort")
        return sample(logits_BV, config, uniform_B)

    monkeypatch.setattr(choice, "sample", choose)
    found = ask(engine, *[write("a", 4, temperature=each) for each in (0.5, 1.0, 0.5)])
    assert [isinstance(events[-1], Failed) for events in found.events] == [True, False, True]
    assert len(found.text(1)) == 4
    assert "no memory to sort" in capfd.readouterr().err
    assert engine.counts.failures == 2
    assert len(ask(engine, write("a", 4)).text()) == 4


def test_after_a_failing_step_memory_is_freed_before_it_is_taken_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model, inbox, held = engine.lm.model, Inbox(), list[int]()
    expected = ask(engine, write("kept", 4)).text()
    rings = [weakref.ref(ring) for ring in engine._lanes._rings.values()]

    def fail(ids: dict[int, int]) -> None:
        activations = torch.zeros(1)
        rings.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("no memory for a step")

    static_state = model.static_state

    def allocate(*given: Any, **more: Any) -> Any:
        held.append(sum(ring() is not None for ring in rings))
        return static_state(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(model, "static_state", allocate)
        with monkeypatch.context() as step:
            step.setattr(engine._lanes, "step", fail)
            # As the HTTP interface does, this holds on to the jobs until they are answered.
            jobs = engine.submit([write("a", 4)], inbox.receivers(1))
            inbox.wait()
        assert ask(engine, write("kept", 4)).text() == expected
    assert isinstance(inbox.events[0][-1], Failed)
    assert "no memory for a step" in capfd.readouterr().err
    assert jobs
    assert held == [0]


def test_an_engine_without_memory_refuses_and_tries_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    tries, freed, inbox = threading.Semaphore(0), threading.Event(), Inbox()
    static_state = engine.lm.model.static_state

    def allocate(*given: Any, **more: Any) -> Any:
        tries.release()
        if not freed.is_set():
            raise torch.OutOfMemoryError("no memory for rings")
        return static_state(*given, **more)

    def fail(ids: dict[int, int]) -> None:
        raise torch.OutOfMemoryError("no memory for a step")

    with monkeypatch.context() as patch:
        patch.setattr(engine.lm.model, "static_state", allocate)
        with monkeypatch.context() as step:
            step.setattr(engine._lanes, "step", fail)
            engine.submit([write("a", 4) for _ in range(20)], inbox.receivers(20))
            inbox.wait()
        reasons = [last.reason for *_, last in inbox.events if isinstance(last, Failed)]
        assert reasons == ["error"] * LIMITS.lanes + ["unavailable"] * (20 - LIMITS.lanes)
        for _ in range(3):
            assert tries.acquire(timeout=60)
        assert engine.failed
        assert not engine.open
        with pytest.raises(BrokenError):
            engine.submit([write("late", 1)], inbox.receivers(1))
        assert engine.counts.lanes_busy == engine.counts.queued == 0
        freed.set()
        eventually(lambda: not engine.failed)
    assert engine.open
    assert len(ask(engine, write("a", 4)).text()) == 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_whose_thread_has_ended_says_so(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, inbox = queue.SimpleQueue[bool](), Inbox()

    def end() -> None:
        raise SystemExit

    def submit_late(event: object) -> None:
        # In the engine's thread, which is alive still.
        try:
            engine.submit([write("late", 1)], inbox.receivers(1))
        except BrokenError:
            found.put(True)
        else:
            found.put(False)

    monkeypatch.setattr(engine, "_turn", end)
    engine.submit([write("a", 4)], [submit_late])
    assert found.get(timeout=60)
    assert engine.failed
    assert not engine.open
