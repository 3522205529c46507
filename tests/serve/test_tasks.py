"""What an engine delivers: the same texts and scores as one text at a time."""

import numpy as np
import pytest
import torch
from tests.serve.conftest import LIMITS, ask, make_lm, write

from sparing.lm import LM
from sparing.serve.engine import Engine
from sparing.serve.requests import (
    AttentionRequest,
    AttentionResult,
    Failed,
    Piece,
    Request,
    ScoreRequest,
    ScoreResult,
)

PROMPTS = ["", "a", "to be or not to be", "x" * 15, "y" * 16, "z" * 33, "long " * 60]


def test_the_text_is_that_of_generate(engine: Engine, lm: LM) -> None:
    requests = [write(prompt, seed=seed) for seed, prompt in enumerate(PROMPTS)]
    found = ask(engine, *requests)
    for seed, prompt in enumerate(PROMPTS):
        assert found.text(seed) == lm.generate(prompt, length=24, seed=seed)


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


@pytest.mark.parametrize(
    "asked", [ScoreRequest(ids=np.array([97, 98])), write("abc", 0, echo=True, top=1)]
)
def test_probabilities_that_are_no_numbers_are_refused(asked: Request) -> None:
    broken = make_lm()
    with torch.no_grad():
        broken.model.head.bias.fill_(float("nan"))
    engine = Engine(broken, LIMITS)
    ((found,),) = ask(engine, asked).events
    engine.close()
    assert isinstance(found, Failed)
    assert "not finite" in found.message
