"""A model in Python: every family gives the same text and numbers by whichever way it is asked."""

import contextlib
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.tiny import CONFIGS

import sparing
from sparing import device
from sparing.data.vocab import ByteVocab
from sparing.errors import UserError
from sparing.lm import LM
from sparing.models import FAMILIES
from sparing.runs.config import RunConfig
from sparing.training.config import TrainConfig

ROOT = Path(__file__).parents[1]
FAMILY_NAMES = sorted({family for family, _ in CONFIGS.values()})


@pytest.fixture(scope="module", params=FAMILY_NAMES)
def lm(request: pytest.FixtureRequest) -> LM:
    """An untrained model of each family that reads bytes."""
    model = next(config for family, config in CONFIGS.values() if family == request.param)
    run = RunConfig(
        recipe="tiny",
        family=request.param,
        model=replace(model, vocab_size=256),
        train=TrainConfig(steps=1),
    )
    torch.manual_seed(1)
    module = FAMILIES[request.param].model(run.model).double().eval()
    return LM(module, ByteVocab(), run, device.pick("cpu", "float32"))


def test_a_text_goes_on_from_a_state_as_if_it_had_been_read_whole(lm: LM) -> None:
    whole = lm.generate("to be or not", length=12)
    read = lm.state(" or not", after=lm.state("to be"))
    assert read.text == b"to be or not"
    # Twice: a state is not used up.
    assert [lm.generate(after=read, length=12) for _ in range(2)] == [whole, whole]
    assert "".join(lm.stream(" not", after=lm.state("to be or"), length=12)) == whole


def test_the_score_of_a_continuation_is_the_difference_of_two_scores(lm: LM) -> None:
    whole, part = lm.score(["to be or not", "to be"])
    (rest,) = lm.score(" or not", after=lm.state("to be"))
    assert rest.loss_nats == pytest.approx(whole.loss_nats - part.loss_nats, rel=1e-5)


def test_logits_give_the_scores(lm: LM) -> None:
    text = b"to be"
    before_TV = torch.cat([lm.state("").logits_1V, lm.logits(text)[:-1]]).double()
    nats = -torch.log_softmax(before_TV, -1)[range(len(text)), list(text)]
    (found,) = lm.score(text)
    assert [each for _, each in found.per_token] == pytest.approx(nats.tolist(), rel=1e-4)
    assert lm.hidden(text).shape[0] == len(text)


def test_bytes_in_are_bytes_out(lm: LM) -> None:
    found = lm.generate(b"caf\xc3", length=9, seed=3)
    assert isinstance(found, bytes)
    assert len(found) == 9
    first = next(at for at, byte in enumerate(found) if byte < 128)
    stop = chr(found[first])
    assert lm.generate(b"caf\xc3", length=9, seed=3, stop=stop) == found[:first]


def test_several_prompts_in_bytes_give_bytes(lm: LM) -> None:
    found = lm.generate([b"to", b"be\xff"], length=4, seed=5)
    assert found == [
        lm.generate(b"to", length=4, seed=5),
        lm.generate(b"be\xff", length=4, seed=6),
    ]
    assert all(isinstance(each, bytes) for each in found)


def test_prompts_in_bytes_are_read_as_a_batch_as_text_is(lm: LM) -> None:
    calls: list[object] = []
    hook = lm.model.register_forward_hook(lambda *_: calls.append(None))
    lm.generate(["to", "be"], length=4)
    of_text = len(calls)
    lm.generate([b"to", b"be"], length=4)
    hook.remove()
    assert len(calls) == 2 * of_text


def test_a_stop_ends_each_prompt_in_bytes_even_if_it_is_not_ascii(lm: LM) -> None:
    prompts = [b"to", b"be"]
    whole = lm.generate(prompts, length=40, seed=5)
    # Two bytes that some text has and that are a character of their own.
    pairs = {text[at : at + 2] for text in whole for at in range(39)}
    stop = next(pair for pair in sorted(pairs) if pair[0] in range(0xC2, 0xE0) and is_utf_8(pair))
    found = lm.generate(prompts, length=40, seed=5, stop=stop.decode())
    assert found == [text.partition(stop)[0] for text in whole]
    assert found != whole


def is_utf_8(text: bytes) -> bool:
    try:
        return bool(text.decode())
    except UnicodeDecodeError:
        return False


def test_several_prompts_are_independent(lm: LM) -> None:
    assert lm.generate(["to", "be"], length=4, seed=5) == [
        lm.generate("to", length=4, seed=5),
        lm.generate("be", length=4, seed=6),
    ]


def test_sha_rnn_and_stacks_show_their_attention(lm: LM) -> None:
    if lm.config.family not in ("sha_rnn", "stack"):
        with pytest.raises(UserError, match="cannot show its attention"):
            lm.attention("ab")
        return
    found = lm.attention("abc", after=lm.state("xy"))
    assert len(found) == 3
    for position, layers in enumerate(found):
        assert layers
        for weights_HS in layers.values():
            # The start of a text, "xy" and the tokens so far.
            assert weights_HS.shape[-1] == 1 + 2 + position + 1
            torch.testing.assert_close(
                weights_HS.sum(-1), torch.ones(len(weights_HS)), check_dtype=False
            )


def test_wrong_calls_say_what_is_wrong(lm: LM) -> None:
    with pytest.raises(UserError, match="give one prompt"):
        lm.generate(["a", "b"], after=lm.state("a"))  # type: ignore[call-overload]
    with pytest.raises(UserError, match="empty"):
        lm.logits("")
    with pytest.raises(UserError, match="temperature"):
        lm.generate("a", temperature=-1)
    with pytest.raises(TypeError, match="str, bytes or a list, not int"):
        lm.generate(3)  # type: ignore[call-overload]
    for call in (lm.generate, lm.score, lm.logits, lm.state):
        with pytest.raises(TypeError, match="`after` is what `state` returned, not str"):
            call("a", after="b")  # type: ignore[operator]
    for mixed in (["a", b"b"], (b"a", "b")):
        with pytest.raises(TypeError, match="all str or all bytes"):
            lm.generate(mixed)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="`stop` is a str"):
        lm.generate(b"a", stop=b"b")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="a text is str or bytes, not NoneType"):
        lm.state(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"unknown option 'lenght'.*length"):
        lm.generate("a", lenght=2)  # type: ignore[call-overload]
    with pytest.raises(UserError, match="half of a surrogate pair"):
        lm.state("\ud800")


def test_arguments_of_a_wrong_type_are_refused_by_name(lm: LM) -> None:
    for given, said in (
        ({"length": 3.0}, "`length` is a whole number, not float"),
        ({"temperature": "x"}, "`temperature` is a number, not str"),
        ({"seed": None}, "`seed` is a whole number, not NoneType"),
        ({"stop": 3}, "`stop` is str or a list, not int"),
    ):
        with pytest.raises(TypeError) as refused:
            lm.generate("a", **given)  # type: ignore[call-overload]
        assert str(refused.value) == said
    for texts in (None, 5):
        with pytest.raises(TypeError, match="`texts` is str, bytes or a list, not"):
            lm.score(texts)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`data` is bytes, not str"):
        lm.compress("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`blob` is bytes, not int"):
        lm.decompress(3)  # type: ignore[arg-type]


def test_a_number_of_numpy_is_an_option_like_any_other(lm: LM) -> None:
    # One more than the last int8 does not overflow for the second prompt.
    largest: dict[str, Any] = {"length": np.int64(4), "seed": np.int8(127)}
    plain = lm.generate(["to", "be"], length=4, seed=127)
    assert lm.generate(["to", "be"], **largest) == plain


def test_what_a_text_left_behind_is_shown_in_one_line(lm: LM) -> None:
    assert repr(lm.state("to be")) == "TextState(text=b'to be', last_token=b'e')"
    assert len(repr(lm.state("to be" * 99))) < 100


def test_what_was_measured_is_shown_in_one_line(lm: LM) -> None:
    (found,) = lm.score("to be")
    figures = f"{found.loss_nats:.3f} nats, {found.bits_per_byte:.4f} bits per byte"
    assert repr(found) == f"TextScore(b'to be', {figures})"
    whole = sparing.evaluate(lm, text="to be")
    assert repr(whole) == (
        f"Evaluation({whole.bits_per_byte:.4f} bits per byte; 5 bytes, {whole.how}, float32)"
    )


def test_public_names_are_listed_and_found() -> None:
    assert set(dir(sparing)) == set(sparing.__all__)
    assert all(hasattr(sparing, name) for name in sparing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        sparing.lode  # noqa: B018  # it is the access that fails


def test_the_examples_of_the_documents_run_and_print_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARING_HOME", str(tmp_path / "home"))
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", page, re.DOTALL)
    assert blocks
    for code, shown in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "docs/python.md", "exec"), names)
        if shown:
            assert printed.getvalue() == shown
