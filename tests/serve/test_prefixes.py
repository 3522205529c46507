"""States of prompts that come again: the same texts, less to read, bounded memory."""

from dataclasses import replace

from tests.serve.conftest import LIMITS, ask, write

from sparing.lm import LM
from sparing.serve.engine import Engine
from sparing.serve.limits import Limits


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


def test_the_bound_on_kept_states_holds(lm: LM) -> None:
    engine = Engine(lm, Limits(lanes=1, chunk=16, cache_bytes=30_000))
    for number in range(30):
        ask(engine, write(f"prompt {number} " * 10, 1))
        assert engine._cache.used_bytes <= 30_000
    assert 0 < len(engine._cache) < 30
    engine.close()
