"""Generated text: complete characters, stop strings, and nothing after them."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from sparing.data.vocab import ByteVocab, Vocab, WordVocab
from sparing.device import Hardware
from sparing.generate.decode import GenerationConfig
from sparing.generate.sampling import SamplingConfig
from sparing.generate.text import Continuation, Transcript, complete, read_text
from sparing.generate.text import stream_text as stream_after
from sparing.models.api import LanguageModel

GREEDY = SamplingConfig(temperature=0)


def stream_text(
    model: LanguageModel, vocab: Vocab, prompt: bytes, config: GenerationConfig, hardware: Hardware
) -> Iterator[str]:
    return stream_after(model, vocab, read_text(model, vocab, prompt, hardware), config, hardware)


def released(pieces: list[bytes], stop: list[str], prompt: bytes = b"") -> tuple[str, bool]:
    transcript, text = Transcript(prompt, stop), ""
    for piece in pieces:
        text += transcript.push(piece)
        if transcript.stopped:
            return text, True
    return text + transcript.push(b"", final=True), transcript.stopped


def single(text: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in text]


def test_a_character_is_released_when_its_last_byte_arrives() -> None:
    transcript = Transcript(b"", [])
    pieces = [transcript.push(piece) for piece in single("a€😀".encode())]
    assert pieces == ["a", "", "", "€", "", "", "", "😀"]


def test_an_unfinished_character_at_the_end_is_replaced() -> None:
    assert released(single(b"a\xe2\x82"), []) == ("a\ufffd", False)
    assert released(single(b"\xffb"), []) == ("\ufffdb", False)


def test_the_text_completes_a_character_begun_by_the_prompt() -> None:
    assert released([b"\xac!"], [], prompt=b"price in \xe2\x82") == ("€!", False)


def test_a_possible_start_of_a_stop_string_is_held_back() -> None:
    transcript = Transcript(b"", ["END"])
    assert [transcript.push(piece) for piece in single(b"aEEN.")] == ["a", "", "E", "", "EN."]
    assert not transcript.stopped


def test_a_stop_string_ends_the_text_and_is_not_part_of_it() -> None:
    assert released([b"one E", b"N", b"D two"], ["END"]) == ("one ", True)
    assert released([b"one END two"], ["END"]) == ("one ", True)
    assert released(single("le café €!".encode()), ["é €"]) == ("le caf", True)


def test_text_held_back_is_released_at_the_end() -> None:
    assert released([b"one EN"], ["END"]) == ("one EN", False)


def test_the_first_complete_stop_string_counts() -> None:
    assert released([b"xabcd"], ["abcd", "bc"]) == ("xa", True)
    assert released(single(b"xabcd"), ["abcd", "bc"]) == ("xa", True)
    assert released([b"xabc"], ["c", "bc"]) == ("xa", True)


@given(
    text=st.text("ab€", max_size=12).map(str.encode),
    stop=st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_the_text_does_not_depend_on_how_bytes_are_cut(
    text: bytes, stop: list[str], cuts: list[int]
) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[low:high] for low, high in pairwise(edges)]
    found, stopped = released(pieces, stop)
    assert (found, stopped) == released(single(text), stop)
    assert not any(item in found for item in stop)
    assert text.decode().startswith(found)
    assert stopped or found == text.decode()


class Parrot(nn.Module):
    """A head that always predicts the bytes of `line`, one after the other."""

    def __init__(self, line: bytes) -> None:
        super().__init__()
        self.line, self.at = line, 0

    def logits(self, hidden_BD: Tensor) -> Tensor:
        logits_BV = hidden_BD.new_zeros(len(hidden_BD), 256)
        logits_BV[:, self.line[self.at]] = 1
        self.at += 1
        return logits_BV


def parrot(tiny, line: bytes):
    model = tiny()
    model.head = Parrot(line)
    return model


def config(length: int, *stop: str) -> GenerationConfig:
    return GenerationConfig(length=length, stop=stop, sampling=GREEDY)


def test_streamed_pieces_are_whole_characters_and_end_before_the_stop_string(tiny, cpu) -> None:
    model = parrot(tiny, "né à\nstop\nmore".encode())
    pieces = list(stream_text(model, ByteVocab(), b"Il est ", config(16, "\nstop\n"), cpu))
    assert pieces == ["n", "é", " ", "à"]
    # Nothing is decoded after the stop string is complete.
    assert model.head.at == len("né à\nstop\n".encode())


def test_a_stream_cut_inside_a_character_ends_with_a_replacement(tiny, cpu) -> None:
    pieces = list(stream_text(parrot(tiny, "aé".encode()), ByteVocab(), b"", config(2), cpu))
    assert pieces == ["a", "\ufffd"]


@pytest.mark.parametrize(
    ("stop", "text", "tokens", "finish"),
    [("END", "ab", 5, "stop"), ("never", "abENDc", 6, "length")],
)
def test_a_completion_says_why_it_ended(
    tiny, cpu, stop: str, text: str, tokens: int, finish: str
) -> None:
    (found,) = complete(parrot(tiny, b"abENDcd"), ByteVocab(), [b"p"], config(6, stop), cpu)
    assert (found.prompt, found.text, found.tokens, found.finish) == (b"p", text, tokens, finish)
    assert found.elapsed_s > 0


def test_completions_of_a_batch_are_the_streams_of_its_prompts(tiny, cpu) -> None:
    prompts = [b"", "café".encode(), b"a longer prompt than that", b"a"]
    model, vocab = tiny(memory=8), ByteVocab()

    def settings(seed: int) -> GenerationConfig:
        return GenerationConfig(length=40, stop=("\ufffd",), sampling=SamplingConfig(seed=seed))

    found = complete(model, vocab, prompts, settings(0), cpu)
    assert [item.prompt for item in found] == prompts
    assert len({item.tokens for item in found}) > 1
    for number, item in enumerate(found):
        alone = "".join(stream_text(model, vocab, prompts[number], settings(number), cpu))
        assert item.text == alone


@pytest.mark.parametrize(("prompt", "text"), [(b"a", " b a "), (b"a ", "b a "), (b"", "b a ")])
def test_words_are_separated_from_the_prompt(tiny, cpu, prompt: bytes, text: str) -> None:
    vocab = WordVocab([b"<eos>", b"a", b"b", b"<unk>"])
    (found,) = complete(parrot(tiny, bytes([2, 1])), vocab, [prompt], config(2), cpu)
    assert found.text == text
    streamed = stream_text(parrot(tiny, bytes([2, 1])), vocab, prompt, config(2), cpu)
    assert "".join(streamed) == text


def test_a_space_that_is_no_token_is_read_too(tiny, cpu) -> None:
    vocab, model = WordVocab([b"<eos>", b"a", b"b", b"<unk>"]), parrot(tiny, bytes([2, 1]))
    read = read_text(model, vocab, b" ", cpu, after=read_text(model, vocab, b"a", cpu))
    assert "".join(stream_after(model, vocab, read, config(2), cpu)).startswith("b")


class Pairs(ByteVocab):
    """Bytes, but "ab" is encoded to one token, and only UTF-8 to any."""

    pair = 1

    def encode(self, text: bytes) -> NDArray[Any]:
        text.decode("utf-8")
        return super().encode(text.replace(b"ab", bytes([self.pair])))

    def token_bytes(self, id: int) -> bytes:
        return b"ab" if id == self.pair else super().token_bytes(id)


@pytest.mark.parametrize(
    ("written", "stop", "text", "ids"),
    [
        (b"ab", "END", b"ab", b"ab"),
        (b"\xb8a", "END", b"\xb8a", b"\xb8a"),
        (b"ab\xc3\xa9END!", "END", "abé".encode(), b"ab\xc3\xa9"),
        (b"cab\x01!", "b!", b"caba", b"caba"),
        (b"ca\x01!", "ab!", b"ca", b"ca"),
        (b"ENDab", "END", b"", b""),
    ],
)
def test_a_continuation_is_read_as_the_tokens_that_made_it(
    tiny, cpu, written: bytes, stop: str, text: bytes, ids: bytes
) -> None:
    model, vocab = tiny(), Pairs()
    head, model.head = model.head, Parrot(written)
    before = read_text(model, vocab, b"text", cpu)
    more = Continuation(model, vocab, before, config(len(written), stop), cpu)
    assert b"".join(more) == more.text == text
    model.head = head
    found = more.state()
    expected = read_text(model, ByteVocab(), ids, cpu, after=before)
    assert found.text == b"text" + text
    torch.testing.assert_close(found.logits_1V, expected.logits_1V)
    for name, tensor in expected.state.items():
        torch.testing.assert_close(found.state[name], tensor)


def test_a_continuation_that_is_interrupted_ends_with_what_has_come_out(tiny, cpu) -> None:
    model, vocab = tiny(), ByteVocab()
    head, model.head = model.head, Parrot(b"one EN")
    before = read_text(model, vocab, b"text", cpu)
    more = Continuation(model, vocab, before, config(6, "END"), cpu)
    assert more.state().state is before.state
    pieces = iter(more)
    assert [next(pieces) for _ in range(4)] == [b"o", b"n", b"e", b" "]
    model.head = head
    expected = read_text(model, vocab, b"one ", cpu, after=before)
    assert more.state().text == b"textone "
    torch.testing.assert_close(more.state().logits_1V, expected.logits_1V)


def test_an_empty_list_of_prompts_has_no_completions(tiny, cpu) -> None:
    assert complete(tiny(), ByteVocab(), [], config(3), cpu) == []
