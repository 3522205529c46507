"""The loss of a split against one long forward pass."""

import json
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sparing.data.tokens import Split, split_from_text
from sparing.data.vocab import ByteVocab, Vocab
from sparing.data.words import WordVocab
from sparing.errors import UserError
from sparing.evaluation.loss import Evaluation, evaluate_streams, evaluate_windows

again = settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Receipt(nn.Module):
    """A head whose loss is one nat per target and that records the targets."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def nats(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        self.asked += targets_BT[targets_BT >= 0].tolist()
        return (targets_BT >= 0).float()


WORDS = WordVocab([b"<eos>", b"all", b"work", b"and", b"no", b"play", b"<unk>"])


def numbered(count: int) -> Split:
    """A split in which every token is different."""
    return Split(ids=torch.arange(count).numpy(), size_bytes=count, words=0, start=0)


def nats_from(model, split: Split, begin: int, end: int) -> Tensor:
    """Loss of tokens [begin, end), each from all tokens since `begin` and the one before."""
    before = int(split.ids[begin - 1]) if begin else split.start
    text = torch.tensor([before, *split.ids[begin:end].tolist()])[None]
    with torch.no_grad():
        out = model.eval()(text[:, :-1], model.initial_state(1))
        return model.head.nats(out.hidden_BTD, text[:, 1:])[0]


@again
@given(tokens=st.integers(1, 30), segment=st.integers(1, 40))
def test_one_carried_stream_is_one_long_forward_pass(
    tiny, split, cpu, tokens: int, segment: int
) -> None:
    model, text = tiny(memory=64), split(tokens)
    found = evaluate_streams(model, text, cpu, batch=1, segment=segment)
    expected = nats_from(model, text, 0, tokens).sum().item()
    assert found.loss_nats == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("segment", [1, 3, 8, 50])
def test_carried_streams_do_not_see_each_other(tiny, split, cpu, segment: int) -> None:
    model, text = tiny(memory=64), split(24)
    found = evaluate_streams(model, text, cpu, batch=3, segment=segment)
    expected = sum(nats_from(model, text, at, at + 8).sum().item() for at in (0, 8, 16))
    assert found.loss_nats == pytest.approx(expected, rel=1e-12)


@again
@given(tokens=st.integers(1, 60), batch=st.integers(1, 12), segment=st.integers(1, 20))
def test_carried_streams_score_every_token_once(
    tiny, cpu, tokens: int, batch: int, segment: int
) -> None:
    model = tiny(vocab_size=60)
    model.head = Receipt()
    found = evaluate_streams(model, numbered(tokens), cpu, batch=batch, segment=segment)
    assert sorted(model.head.asked) == list(range(tokens))
    assert found.loss_nats == found.tokens == tokens
    streams = "carried stream" if min(batch, tokens) == 1 else "carried streams"
    assert found.how.startswith(f"{min(batch, tokens)} {streams}, ")


@again
@given(tokens=st.integers(1, 60), window=st.integers(1, 20), data=st.data())
def test_windows_score_every_token_once(
    tiny, cpu, tokens: int, window: int, data: st.DataObject
) -> None:
    model = tiny(vocab_size=60)
    model.head = Receipt()
    stride, batch = data.draw(st.integers(1, window)), data.draw(st.integers(1, 5))
    found = evaluate_windows(
        model, numbered(tokens), cpu, window=window, stride=stride, batch=batch
    )
    assert sorted(model.head.asked) == list(range(tokens))
    assert found.loss_nats == tokens


@pytest.mark.parametrize("tokens", [23, 24, 25, 29, 5])
def test_each_scored_token_sees_its_own_window(tiny, split, cpu, tokens: int) -> None:
    model, text, window, stride = tiny(), split(tokens), 9, 5
    expected, end = nats_from(model, text, 0, min(window, tokens)).sum(), window
    while end < tokens:
        new = min(stride, tokens - end)
        end += new
        expected += nats_from(model, text, end - window, end)[-new:].sum()
    found = evaluate_windows(model, text, cpu, window=window, stride=stride, batch=2)
    assert found.loss_nats == pytest.approx(expected.item(), rel=1e-12)


def test_dropout_is_off_during_evaluation_and_restored_afterwards(tiny, split, cpu) -> None:
    model = tiny().train()
    first = evaluate_streams(model, split(20), cpu, batch=2, segment=4)
    assert first.loss_nats == evaluate_streams(model, split(20), cpu, batch=2, segment=4).loss_nats
    assert model.training


def test_the_sum_does_not_lose_small_losses_to_float32(tiny, cpu) -> None:
    class Huge(nn.Module):
        def nats(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
            return torch.where(targets_BT == 0, 2.0**25, 1.0)

    model = tiny(vocab_size=60)
    model.head = Huge()
    assert evaluate_streams(model, numbered(50), cpu, batch=1, segment=50).loss_nats == 2**25 + 49
    assert evaluate_streams(model, numbered(50), cpu, batch=1, segment=1).loss_nats == 2**25 + 49


def test_figures_follow_from_the_total() -> None:
    found = Evaluation(
        loss_nats=8 * math.log(2),
        tokens=4,
        size_bytes=16,
        words=2,
        protocol="bytes",
        precision="float32",
        how="by hand",
        elapsed_s=1.0,
    )
    assert found.bits_per_byte == pytest.approx(0.5)
    assert found.token_perplexity == pytest.approx(4)
    assert found.word_perplexity == pytest.approx(16)
    assert json.loads(json.dumps(found.to_json())) == {
        "bits_per_byte": pytest.approx(0.5),
        "bytes": 16,
        "protocol": "bytes",
        "how": "by hand",
        "tokens": 4,
        "loss_nats": pytest.approx(8 * math.log(2)),
        "nats_per_token": pytest.approx(2 * math.log(2)),
        "perplexity_per_token": pytest.approx(4),
        "perplexity_per_word": pytest.approx(16),
        "elapsed_s": 1.0,
    }


@pytest.mark.parametrize(("vocab", "words"), [(ByteVocab(), 0), (WORDS, 5)])
def test_only_words_and_pieces_have_a_perplexity_per_word(vocab: Vocab, words: int) -> None:
    split = split_from_text(b"all work and no play", vocab)
    assert split.words == words
    found = Evaluation(
        loss_nats=9.0, tokens=5, size_bytes=20, words=split.words, protocol="bytes", how="",
        precision="float32", elapsed_s=0,
    )  # fmt: skip
    assert ("perplexity_per_word" in found.to_json()) == bool(words)


def test_infinite_figures_are_null_in_json() -> None:
    found = Evaluation(
        loss_nats=math.inf,
        tokens=1,
        size_bytes=1,
        words=0,
        protocol="bytes",
        precision="float32",
        how="",
        elapsed_s=0,
    )
    assert found.to_json()["bits_per_byte"] is None
    assert found.to_json()["perplexity_per_token"] is None
    assert found.word_perplexity is None
    json.dumps(found.to_json(), allow_nan=False)


def test_the_report_names_the_protocol_and_the_context(tiny, split, cpu) -> None:
    streams = evaluate_streams(tiny(), split(40), cpu, batch=4, segment=8, protocol="no-newlines")
    assert (streams.protocol, streams.how) == ("no-newlines", "4 carried streams, segment 8")
    assert evaluate_windows(tiny(), split(40), cpu, window=8, stride=2).how == "window 8, stride 2"
    assert (streams.size_bytes, streams.words) == (80, 8)


def test_streams_and_windows_count_the_whole_split(tiny, split, cpu) -> None:
    for found in (
        evaluate_streams(tiny(), split(41), cpu, batch=4),
        evaluate_windows(tiny(), split(41), cpu, window=8, stride=3),
    ):
        assert (found.tokens, found.size_bytes, found.words) == (41, 82, 8)
        assert found.elapsed_s > 0


def test_progress_is_not_printed_to_a_log(tiny, split, cpu, capsys) -> None:
    evaluate_streams(tiny(), split(40), cpu, progress=True)
    evaluate_windows(tiny(), split(40), cpu, window=8, stride=2, progress=True)
    assert capsys.readouterr().err == ""


def test_bad_settings_and_an_empty_split_are_refused(tiny, split, cpu) -> None:
    with pytest.raises(UserError, match="empty"):
        evaluate_streams(tiny(), split(0), cpu)
    with pytest.raises(UserError, match="empty"):
        evaluate_windows(tiny(), split(0), cpu, window=4, stride=2)
    with pytest.raises(UserError, match="batch 0"):
        evaluate_streams(tiny(), split(4), cpu, batch=0)
    with pytest.raises(UserError, match="batch 0"):
        evaluate_windows(tiny(), split(4), cpu, window=4, stride=2, batch=0)
    with pytest.raises(UserError, match="stride 5"):
        evaluate_windows(tiny(), split(4), cpu, window=4, stride=5)
