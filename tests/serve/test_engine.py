"""The engine without HTTP: whoever else is there, every request gets its own answer."""

import numpy as np
import pytest
from tests.serve.conftest import LIMITS, Inbox, ask, write

import sparing
from sparing.lm import LM
from sparing.serve.engine import Engine
from sparing.serve.limits import Limits
from sparing.serve.requests import AttentionRequest, ClosedError, Failed, FullQueueError


def test_a_text_is_the_same_alone_or_among_fifteen_others(engine: Engine) -> None:
    watched = write("to be or not", 60, seed=5, top=3)
    alone = ask(engine, watched)
    # Others of all lengths, so that they join and leave at any time.
    others = [write("o" * 9 * lane, 5 + 7 * lane, seed=lane) for lane in range(15)]
    for place in (0, 7, 15):
        among = ask(engine, *others[:place], watched, *others[place:])
        # Bitwise: log-probabilities too.
        assert among.events[place] == alone.events[0]


def test_others_write_while_a_long_prompt_is_read(engine: Engine) -> None:
    found = ask(engine, write("", 60), write("p" * 20 * LIMITS.chunk, 1))
    before = found.order[: found.order.index(1)]
    assert len(before) >= 18


def test_a_short_prompt_is_read_before_the_rest_of_a_long_one(engine: Engine) -> None:
    found = ask(engine, write("p" * 100 * LIMITS.chunk, 1), write("short", 1))
    assert found.order == [1, 0]


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
