"""The engine without HTTP: the same texts as `generate`, whoever else is there."""

import queue
import threading
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.serve.conftest import LIMITS, Inbox, ask, eventually, write

import sparing
from sparing.generate.sampling import SamplingConfig, sample
from sparing.lm import LM
from sparing.serve import choice
from sparing.serve import engine as module
from sparing.serve.engine import Engine
from sparing.serve.limits import Limits
from sparing.serve.requests import (
    AttentionRequest,
    AttentionResult,
    BrokenError,
    ClosedError,
    Failed,
    FullQueueError,
    Piece,
    ScoreRequest,
    ScoreResult,
)

PROMPTS = ["", "a", "to be or not to be", "x" * 15, "y" * 16, "z" * 33, "long " * 60]


def test_the_text_is_that_of_generate(engine: Engine, lm: LM) -> None:
    requests = [write(prompt, seed=seed) for seed, prompt in enumerate(PROMPTS)]
    found = ask(engine, *requests)
    for seed, prompt in enumerate(PROMPTS):
        assert found.text(seed) == lm.generate(prompt, length=24, seed=seed)


def test_a_text_is_the_same_alone_or_among_fifteen_others(engine: Engine) -> None:
    watched = write("to be or not", 60, seed=5, top=3)
    alone = ask(engine, watched)
    # Others of all lengths, so that they join and leave at any time.
    others = [write("o" * 9 * lane, 5 + 7 * lane, seed=lane) for lane in range(15)]
    for place in (0, 7, 15):
        among = ask(engine, *others[:place], watched, *others[place:])
        # Bitwise: log-probabilities too.
        assert among.events[place] == alone.events[0]


def test_a_text_is_the_same_with_and_without_kept_states(lm: LM, engine: Engine) -> None:
    shared = "the quick brown fox jumps over the lazy dog " * 2
    asked = [write(shared + end, seed=3, top=1) for end in ("one", "two", "three", "three")]
    without = Engine(lm, replace(LIMITS, cache_bytes=0))
    plain = [ask(without, each).events[0] for each in asked]
    without.close()
    assert [ask(engine, each).events[0] for each in asked] == plain
    # The second prompt shows what is shared, the third needs only the rest, the fourth nothing.
    assert engine.counts.prompts_reused == 2
    whole = len(shared) // LIMITS.chunk * LIMITS.chunk
    assert engine.counts.tokens_reused == whole + len(shared) + len("three") + 1


def test_several_texts_after_one_prompt_read_it_once(engine: Engine) -> None:
    ask(engine, *[write("once upon a time", seed=seed) for seed in range(4)])
    assert engine.counts.tokens_read == len("once upon a time") + 1


def test_others_write_while_a_long_prompt_is_read(engine: Engine) -> None:
    found = ask(engine, write("", 60), write("p" * 20 * LIMITS.chunk, 1))
    before = found.order[: found.order.index(1)]
    assert len(before) >= 18


def test_a_short_prompt_is_read_before_the_rest_of_a_long_one(engine: Engine) -> None:
    found = ask(engine, write("p" * 100 * LIMITS.chunk, 1), write("short", 1))
    assert found.order == [1, 0]


def test_scores_are_those_of_score(engine: Engine, lm: LM) -> None:
    text = b"caf\xc3\xa9 " * 20
    ids = np.frombuffer(text, np.uint8).astype(np.int64)
    ((found,),) = ask(engine, ScoreRequest(ids=ids, top=2)).events
    assert isinstance(found, ScoreResult)
    (expected,) = lm.score(text)
    losses = [-score.logprob for score in found.scores]
    assert losses == pytest.approx([nats for _, nats in expected.per_token], rel=1e-4)
    assert all(score.top[0][1] >= score.top[1][1] for score in found.scores)
    # Both bytes of a character begin where it does.
    assert [score.offset for score in found.scores[:6]] == [0, 1, 2, 3, 3, 4]


def test_echo_with_probabilities_scores_the_prompt(engine: Engine, lm: LM) -> None:
    found = ask(engine, write("to be", 4, top=0, echo=True))
    assert found.text() == "to be" + lm.generate("to be", length=4)
    scores = [
        score for event in found.events[0] if isinstance(event, Piece) for score in event.scores
    ]
    (expected,) = lm.score(found.text())
    assert [-score.logprob for score in scores] == pytest.approx(
        [nats for _, nats in expected.per_token], rel=1e-4
    )
    assert [score.offset for score in scores] == list(range(9))


def test_attention_is_that_of_the_model(engine: Engine, lm: LM) -> None:
    ids = np.frombuffer(b"to be or not to be", np.uint8).astype(np.int64)
    ((found,),) = ask(engine, AttentionRequest(ids=ids)).events
    assert isinstance(found, AttentionResult)
    expected = lm.attention("to be or not to be")[-1]
    assert found.weights.keys() == expected.keys() == {1}
    torch.testing.assert_close(torch.from_numpy(found.weights[1]), expected[1].float())
    assert found.windows[1] == pytest.approx([7.5, 44])


def test_attention_is_read_for_one_text_at_a_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, read = list[int](), engine._attention.read
    monkeypatch.setattr(
        engine._attention, "read", lambda ids, state: order.append(len(ids)) or read(ids, state)
    )
    # Chunks of 16 and a last one that tells the texts apart.
    ids = [np.full(5 * LIMITS.chunk + rest, 97, dtype=np.int64) for rest in (7, 3, 5)]
    found = ask(engine, *[AttentionRequest(ids=each) for each in ids], write("meanwhile", 3))
    assert len(found.text(3)) == 3
    assert order == [*[16] * 5, 3, *[16] * 5, 5, *[16] * 5, 7]


def test_a_stop_string_ends_a_text_before_it(engine: Engine, lm: LM) -> None:
    whole = lm.generate("stop", length=40)
    stop = whole[20:22]
    found = ask(engine, write("stop", 40, stop=(stop,), top=0))
    assert found.text() == whole[: whole.index(stop)]
    last = found.events[0][-1]
    assert isinstance(last, Piece)
    assert last.finish == "stop"
    scores = [
        score for event in found.events[0] if isinstance(event, Piece) for score in event.scores
    ]
    assert b"".join(score.token for score in scores).decode() == found.text()


def test_nothing_is_written_where_no_length_is_asked_for(engine: Engine) -> None:
    assert ask(engine, write("only read", 0)).events == [[Piece("", [], "length", 0)]]
    assert ask(engine, write("only read", 0, echo=True)).text() == "only read"


def test_a_full_queue_takes_all_of_a_request_or_nothing(lm: LM) -> None:
    engine, inbox = Engine(lm, Limits(lanes=2, queue=3, max_tokens=10**9)), Inbox()
    endless = [write("", 10**9)] * 5
    jobs = engine.submit(endless[:4], inbox.receivers(4))
    with pytest.raises(FullQueueError):
        engine.submit(endless[:2], inbox.receivers(2))
    jobs += engine.submit(endless[:1], inbox.receivers(1))
    engine.cancel(jobs)
    assert ask(engine, write("free", 3)).events[0]
    engine.close()


def test_a_cancelled_text_frees_its_lane(lm: LM) -> None:
    engine, inbox = Engine(lm, Limits(lanes=1, queue=2)), Inbox()
    (job,) = engine.submit([write("", 4096)], inbox.receivers(1))
    inbox.wait(lambda inbox: bool(inbox.events[0]))
    engine.cancel([job])
    assert ask(engine, write("next", 3)).events[0]
    engine.close()
    assert not isinstance(inbox.events[0][-1], Failed)
    assert engine.counts.lanes_busy == 0


def test_a_text_that_takes_too_long_fails(lm: LM) -> None:
    now, inbox = [0.0], Inbox()
    engine = Engine(lm, Limits(lanes=1, queue=1, time_s=30), clock=lambda: now[0])
    engine.submit([write("", 10**6), write("waits", 1)], inbox.receivers(2))
    inbox.wait(lambda inbox: bool(inbox.events[0]))
    now[0] = 31.0
    inbox.wait()
    assert [type(events[-1]) for events in inbox.events] == [Failed, Failed]
    assert ask(engine, write("next", 1)).text()
    engine.close()


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


def test_closing_finishes_what_was_begun(lm: LM) -> None:
    engine, inbox = Engine(lm, Limits(lanes=2, queue=4)), Inbox()
    engine.submit([write("drain", 30, seed=seed) for seed in range(5)], inbox.receivers(5))
    engine.close(wait_s=60)
    inbox.wait()
    assert [len(inbox.text(each)) for each in range(5)] == [30] * 5
    with pytest.raises(ClosedError):
        engine.submit([write("late", 1)], inbox.receivers(1))
    assert not engine.failed


def test_closing_at_once_fails_what_was_begun(lm: LM) -> None:
    engine, inbox = Engine(lm, Limits(lanes=1, queue=1, max_tokens=10**9)), Inbox()
    engine.submit([write("", 10**9)] * 2, inbox.receivers(2))
    engine.close()
    inbox.wait()
    assert [type(events[-1]) for events in inbox.events] == [Failed, Failed]


def test_the_bound_on_kept_states_holds(lm: LM) -> None:
    engine = Engine(lm, Limits(lanes=1, chunk=16, cache_bytes=30_000))
    for number in range(30):
        ask(engine, write(f"prompt {number} " * 10, 1))
        assert engine._cache.used_bytes <= 30_000
    assert 0 < len(engine._cache) < 30
    engine.close()


@pytest.mark.soak
def test_the_package_s_model_writes_the_same_alone_or_among_fifteen_others() -> None:
    # Its rings are longer than a block, so that what is attended to grows with the oldest lane.
    engine = Engine(sparing.load(device="cpu"), Limits())
    watched = write("  <page>\n    <title>Rome</title>\n" * 14, 60, seed=5, top=3)
    alone = ask(engine, watched)
    others = [write("other text " * 11 * lane, 10 + 5 * lane, seed=lane) for lane in range(15)]
    for place in (0, 9):
        among = ask(engine, *others[:place], watched, *others[place:])
        assert among.events[place] == alone.events[0]
    engine.close()
