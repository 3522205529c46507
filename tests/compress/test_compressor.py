"""From bytes to a compressed file and back: bit for bit, or refused."""

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import log
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compress.small import CPU, TEXT, small_compressor
from tests.models.tiny import FIRST_OF_FAMILY, tiny

from sparing import device
from sparing.compress import codec
from sparing.compress.compressor import EVALUATED_LANES, Compressor, choose_lanes
from sparing.compress.container import FIXED, read_container, seal, write_container
from sparing.compress.lanes import Learning
from sparing.data.tokens import Split
from sparing.data.vocab import ByteVocab, SymbolVocab
from sparing.data.words import WordVocab
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.evaluation.loss import evaluate_streams
from sparing.models import FAMILIES
from sparing.models.mlstm import MLSTMConfig

SMALL = small_compressor(memory=5)
LEARNING = Learning(chunk=9, rate=0.3)
ODD = [
    b"", b"\0", b"\xff", b"\n", b"ab", bytes(range(256)), bytes(reversed(range(256))), b"\0" * 500,
    b"\xff" * 257, b"\n" * 100, b"ab" * 150, TEXT, "Ω日本語👩‍🔬".encode() * 9, b"\xf0\x9f" * 70,
    b"\r\n\t" * 60, codec.__doc__.encode(), FIXED.pack(*[b""] + [0] * 9 + [b""] * 3 + [0]),
    b"\x93sparing", b"a" * 16_384, bytes(Random(0).randbytes(999)),
]  # fmt: skip


@pytest.fixture
def short_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of many texts: what a fingerprint is for is tested elsewhere."""
    monkeypatch.setattr(codec, "FINGERPRINT_STEPS", 2)


@pytest.mark.parametrize("data", ODD, ids=range(len(ODD)))
def test_odd_texts_come_back(data: bytes) -> None:
    for lanes, learning in ((None, None), (64, None), (64, LEARNING)):
        blob = SMALL.compress(data, lanes=lanes if data[999:] == b"" else 512, learning=learning)
        assert SMALL.decompress(blob) == data


@pytest.mark.usefixtures("short_fingerprint")
def test_random_texts_come_back() -> None:
    random = Random(7)
    for _ in range(200):
        data, lanes = random.randbytes(random.randrange(250)), random.randrange(4, 60)
        assert SMALL.decompress(SMALL.compress(data, lanes=lanes)) == data


@pytest.mark.usefixtures("short_fingerprint")
@settings(max_examples=60)
@given(st.binary(max_size=200), st.integers(2, 40), st.none() | st.integers(1, 30))
def test_any_bytes_come_back(data: bytes, lanes: int, chunk: int | None) -> None:
    learning = None if chunk is None else Learning(chunk=chunk, rate=1e-3)
    assert SMALL.decompress(SMALL.compress(data, lanes=lanes, learning=learning)) == data


@pytest.mark.usefixtures("short_fingerprint")
@pytest.mark.parametrize("name", FIRST_OF_FAMILY)
@pytest.mark.parametrize("learning", [None, Learning(chunk=6, rate=1e-2)], ids=["fixed", "learn"])
def test_every_family_compresses_without_loss(name: str, learning: Learning | None) -> None:
    text = b"abcdefghij\nbbbbaaaa\nhgfedcba" * 2
    compressor = Compressor(tiny(name), SymbolVocab(b"abcdefghij\n"), CPU)
    assert compressor.decompress(compressor.compress(text, lanes=2, learning=learning)) == text


def test_the_size_is_what_the_evaluation_claims() -> None:
    data = bytes(np.random.default_rng(0).integers(0, 256, 20_000, dtype=np.uint8))
    # Attention of this small model would see all of a segment, however long.
    compressor = small_compressor()
    proof = compressor.verify(compressor.compress(data, lanes=37), data)
    assert proof is not None
    assert abs(proof.difference) < 0.001
    with pytest.raises(UserError, match="does not decode to what was compressed"):
        SMALL.verify(SMALL.compress(b"abc"), b"abd")
    assert SMALL.verify(SMALL.compress(b""), b"") is None


def test_every_lane_is_evaluated_as_a_text_of_its_own() -> None:
    text = TEXT * 3
    for lanes in (1, 7, EVALUATED_LANES + 36):
        proof = SMALL.verify(SMALL.compress(text, lanes=lanes), text)
        edges = [len(text) * lane // lanes for lane in range(lanes + 1)]
        nats = 0.0
        for begin, end in pairwise(edges):
            ids = np.frombuffer(text[begin:end], np.uint8)
            split = Split(ids, ids.size, 0, SMALL.vocab.start)
            nats += evaluate_streams(SMALL.model, split, CPU, batch=1, segment=64).loss_nats
        assert proof is not None
        assert proof.evaluated_bits == pytest.approx(nats / log(2), rel=1e-9)


def test_learning_makes_a_text_that_repeats_itself_smaller() -> None:
    sizes = [len(SMALL.compress(TEXT * 8, lanes=8, learning=how)) for how in (None, LEARNING)]
    assert sizes[1] < 0.8 * sizes[0]


def test_another_model_is_refused_at_once() -> None:
    blob, other = SMALL.compress(TEXT), small_compressor(memory=5)
    assert other.decompress(blob) == TEXT
    changed = copy.deepcopy(other.model)
    with torch.no_grad():
        next(changed.parameters())[0, 0] += 1e-9
    with pytest.raises(UserError, match=r"^the data was compressed with another model"):
        Compressor(changed, ByteVocab(), CPU).decompress(blob)
    with pytest.raises(UserError, match="another model"):
        Compressor(other.model, SymbolVocab(bytes(range(256))), CPU).decompress(blob)


def test_another_machine_is_refused_before_anything_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blob = SMALL.compress(TEXT)
    other = small_compressor(memory=5)
    # As hashes of weights go they are equal, and yet it computes other numbers.
    other.model_sha256 = SMALL.model_sha256
    with torch.no_grad():
        next(other.model.parameters()).mul_(1 + 1e-6)
    monkeypatch.setattr("sparing.compress.compressor.decode", None)
    with pytest.raises(UserError, match=r"cannot be decoded here.*made by sparing .*torch"):
        other.decompress(blob)


def test_threads_are_those_of_the_writer_and_are_put_back() -> None:
    seen, before = list[int](), torch.get_num_threads()
    blob = SMALL.compress(TEXT[:40])
    header, _ = read_container(blob, "x")
    torch.set_num_threads(3)
    try:
        note: Callable[[int], object] = lambda count: seen.append(torch.get_num_threads())  # noqa: E731
        SMALL.decompress(blob, progress=lambda what, tokens: note)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {header.threads} == {before}


def damaged(random: Random, blob: bytes) -> bytes:
    """The file with bits flipped, cut off, longer, or with a field or words changed and sealed."""
    kind, at = random.randrange(5), random.randrange(len(blob))
    if kind == 0:
        return blob[:at] + bytes([blob[at] ^ 1 << random.randrange(8)]) + blob[at + 1 :]
    if kind == 1:
        return blob[:at]
    if kind == 2:
        return blob + random.randbytes(random.randrange(1, 9))
    body, fields = bytearray(blob[:-8]), list(FIXED.unpack_from(blob))
    if kind == 3:
        # Two bytes of the coded words change places, or one is another.
        first = random.randrange(FIXED.size + fields[-1], len(body))
        body[first] ^= random.randrange(1, 256)
        return seal(bytes(body))
    whole = [number for number, value in enumerate(fields) if isinstance(value, int)]
    one, two = random.sample(whole, 2)
    fields[one], fields[two] = fields[two], fields[one]
    if random.random() < 0.3:
        fields[10:13] = [random.randbytes(len(each)) for each in fields[10:13]]
    try:
        return seal(FIXED.pack(*fields) + bytes(body[FIXED.size :]))
    except Exception:
        # A value that its field cannot hold.
        return blob[: FIXED.size]


@pytest.mark.usefixtures("short_fingerprint")
def test_every_one_of_500_damaged_files_is_refused() -> None:
    random, texts = Random(3), [TEXT[:90], bytes(range(200)), b"a" * 50]
    learned = [SMALL.compress(text, lanes=7, learning=LEARNING) for text in texts]
    blobs = [SMALL.compress(text, lanes=20) for text in texts] + learned
    count = 0
    while count < 500:
        changed = damaged(random, blob := random.choice(blobs))
        if changed == blob:
            continue
        count += 1
        with pytest.raises(
            UserError, match=r"^x (is damaged|was |has format|cannot be decoded|does not decode)"
        ):
            SMALL.decompress(changed, name="x")


def test_words_that_no_text_is_coded_to_are_refused() -> None:
    header, words = read_container(SMALL.compress(TEXT), "x")
    random = np.random.default_rng(1)
    for changed in (words[:0], words[:1], words[::-1], random.integers(0, 2**32, 90, np.uint32)):
        with pytest.raises(UserError, match=r"^x "):
            SMALL.decompress(write_container(header, changed), name="x")
    swapped = replace(header, text_sha256=header.model_sha256)
    with pytest.raises(UserError, match=r"^x does not decode to the original text"):
        SMALL.decompress(write_container(swapped, words), name="x")


def test_a_claim_of_more_text_than_there_are_words_for_is_refused_soon() -> None:
    compressor, steps = small_compressor(), list[int]()
    header, words = read_container(compressor.compress(TEXT), "it")
    claimed = replace(header, tokens=10**6, size_bytes=10**6)
    blob = write_container(claimed, words[:0])
    with pytest.raises(UserError, match="it is damaged: its words end before its text"):
        compressor.decompress(blob, name="it", progress=lambda what, tokens: steps.append)
    assert sum(steps) < 1000


@pytest.mark.parametrize("learning", [None, Learning(chunk=5)])
def test_a_text_of_one_symbol_comes_back(learning: Learning | None) -> None:
    torch.manual_seed(0)
    model = FAMILIES["mlstm"].model(MLSTMConfig(vocab_size=1, dim=4, hidden_dim=4)).eval()
    compressor = Compressor(model, SymbolVocab(b"a"), CPU)
    assert compressor.decompress(compressor.compress(b"a" * 100, learning=learning)) == b"a" * 100


def test_only_models_that_restore_a_text_compress() -> None:
    words = WordVocab([b"<eos>", b"<unk>", b"a"])
    with pytest.raises(UserError, match="reads words, which do not restore a text"):
        Compressor(SMALL.model, words, CPU)
    symbols = Compressor(SMALL.model, SymbolVocab(b"abc"), CPU)
    with pytest.raises(UserError, match="byte b'x'"):
        symbols.compress(b"abcx")


def test_other_precisions_are_refused() -> None:
    with pytest.raises(UserError, match="computes in float32, not in bfloat16"):
        Compressor(SMALL.model, ByteVocab(), Hardware(torch.device("cpu"), "bfloat16"))


def test_learning_on_a_gpu_is_refused() -> None:
    compressor = Compressor(SMALL.model, ByteVocab(), Hardware(torch.device("cuda"), "float32"))
    with pytest.raises(UserError, match="learning while coding needs device cpu"):
        compressor.compress(TEXT, learning=LEARNING)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_compresses_without_loss() -> None:
    hardware = device.pick("cuda", "float32")
    model = small_compressor(memory=5).model.to(hardware.device)
    compressor = Compressor(model, ByteVocab(), hardware)
    blob = compressor.compress(TEXT * 9, lanes=40)
    proof = compressor.verify(blob, TEXT * 9)
    assert proof is not None
    assert abs(proof.difference) < 0.01


@pytest.mark.parametrize("lanes", [0, -1, 4097])
def test_impossible_lanes_are_refused(lanes: int) -> None:
    with pytest.raises(UserError, match="lanes must be from 1 to 4,096"):
        SMALL.compress(b"abc", lanes=lanes)


def test_small_texts_have_one_lane_and_large_ones_many() -> None:
    assert [choose_lanes(size) for size in (0, 1, 9_000)] == [1, 1, 1]
    assert choose_lanes(10**6) > 30
    assert choose_lanes(10**9) == choose_lanes(10**8)
