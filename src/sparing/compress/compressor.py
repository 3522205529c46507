"""Bytes to a compressed file and back, with every check on the way."""

import hashlib
import json
import math
import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np
import torch

from sparing import __version__
from sparing.compress.codec import (
    FINGERPRINT_STEPS,
    Progress,
    Words,
    decode,
    encode,
    lane_edges,
    range_coder,
    take_fingerprint,
)
from sparing.compress.container import MAX_THREADS, WORD, Header, read_container, write_container
from sparing.compress.lanes import MAX_LANES, IntArray, Learning, Reader, open_lanes
from sparing.data.vocab import Vocab
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.evaluation.loss import evaluate_texts
from sparing.inputs import MAX_BYTES
from sparing.models.api import LanguageModel

TOKENS_PER_LANE = 8192
"""With so many, what a lane loses while it has read little costs about a percent."""
USUAL_LANES = 64
"""The most that are chosen: each carries a state of its own."""
FINGERPRINT_CHUNK = 12
"""Tokens between two updates while a fingerprint is taken of a model that learns."""
EVALUATED_LANES = 64
"""More would take more memory and hardly less time."""
EVALUATED_SEGMENT = 64
"""Some models see all of a segment, and so more the longer it is; coding reads token by token."""
BITS_PER_WORD = 8 * WORD.itemsize

MakeProgress = Callable[[str, int], Progress]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """What a decoded file proves: it holds the text, in as many bits as the evaluation claims."""

    coded_bits: int
    """Bits of the coded words, without header and checksum."""
    evaluated_bits: float
    """Bits that `sparing evaluate --batch 1` claims for the lanes, with fixed weights."""

    @property
    def difference(self) -> float:
        """What coding took more than was claimed, as a share of the claim."""
        return self.coded_bits / self.evaluated_bits - 1


def _no_progress(what: str, tokens: int) -> Progress:
    return lambda count: None


class Compressor:
    """Compresses with one model, and decompresses what it compressed on the same hardware."""

    def __init__(self, model: LanguageModel, vocab: Vocab, hardware: Hardware) -> None:
        range_coder()
        if hardware.precision != "float32":
            raise UserError(f"compression computes in float32, not in {hardware.precision}")
        if next(model.parameters(), None) is None:
            raise UserError(
                "a compressed file names its model by its weights, which an ONNX export does not "
                "show; name the run that it was made from"
            )
        if not vocab.lossless:
            raise UserError(
                f"this model reads {vocab.kind}, which do not restore a text exactly; compress "
                "with a model that reads bytes"
            )
        self.model, self.vocab, self.hardware = model, vocab, hardware

    @cached_property
    def model_sha256(self) -> bytes:
        """Hash of the weights by name, as they are in memory, and of the vocabulary."""
        digest = hashlib.sha256(json.dumps(self.vocab.to_json(), sort_keys=True).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.digest()

    def compress(
        self,
        data: bytes,
        *,
        lanes: int | None = None,
        learning: Learning | None = None,
        progress: MakeProgress = _no_progress,
    ) -> bytes:
        """Return `data` as a compressed file."""
        if learning is not None and self.hardware.device.type != "cpu":
            raise UserError(
                "learning while coding needs device cpu: a GPU may round the same gradients "
                "differently the next time"
            )
        ids = self._encode(data)
        lanes = choose_lanes(ids.size) if lanes is None else lanes
        if not 1 <= lanes <= MAX_LANES:
            raise UserError(f"lanes must be from 1 to {MAX_LANES:,}, not {lanes}")
        lanes, threads = min(lanes, max(1, ids.size)), min(torch.get_num_threads(), MAX_THREADS)
        with _threads(threads):
            header = Header(
                lanes=lanes,
                threads=threads,
                learning=learning,
                size_bytes=len(data),
                tokens=ids.size,
                text_sha256=hashlib.sha256(data).digest(),
                model_sha256=self.model_sha256,
                fingerprint=self._fingerprint(lanes, learning),
                maker=describe_machine(self.hardware),
            )
            advance = progress("compress", ids.size)
            with self._open_lanes(lanes, ids.size, learning) as read:
                words = encode(read, ids, lanes, self.vocab.start, advance)
        return write_container(header, words)

    def decompress(
        self, blob: bytes, *, name: str = "the data", progress: MakeProgress = _no_progress
    ) -> bytes:
        """Return the bytes that were compressed, or raise a UserError that begins with `name`."""
        header, words = read_container(blob, name)
        theirs, ours = header.model_sha256, self.model_sha256
        if theirs != ours:
            raise UserError(
                f"{name} was compressed with another model: its hash begins with "
                f"{theirs.hex()[:12]}, that of this one with {ours.hex()[:12]}"
            )
        with _threads(header.threads):
            if header.fingerprint != self._fingerprint(header.lanes, header.learning):
                raise UserError(
                    f"{name} cannot be decoded here, where the model computes different numbers: "
                    f"it was made by {header.maker}, and this is {describe_machine(self.hardware)}"
                )
            data = self._decode(header, words, name, progress("decompress", header.tokens))
        if len(data) != header.size_bytes or hashlib.sha256(data).digest() != header.text_sha256:
            raise UserError(f"{name} does not decode to the original text; it is lost")
        return data

    def verify(
        self, blob: bytes, data: bytes, *, progress: MakeProgress = _no_progress
    ) -> Verification | None:
        """Decode `blob`, compare it with `data`, and its size with what the evaluation claims.

        None where there is nothing to evaluate.
        """
        if self.decompress(blob, name="the compressed file", progress=progress) != data:
            raise UserError("the compressed file does not decode to what was compressed")
        if not data:
            return None
        header, words = read_container(blob, "the compressed file")
        bits = self._evaluate(data, header.lanes, progress("evaluate", header.tokens))
        return Verification(coded_bits=BITS_PER_WORD * len(words), evaluated_bits=bits)

    def _evaluate(self, data: bytes, lanes: int, progress: Progress) -> float:
        """Return the bits that the evaluation claims for the lanes, each as a text of its own."""
        ids = self._encode(data)
        nats = 0.0
        for ids_BT in _lanes_of_equal_length(ids, lanes):
            nats += evaluate_texts(
                self.model, ids_BT, self.vocab.start, self.hardware, segment=EVALUATED_SEGMENT
            )
            progress(ids_BT.size)
        return nats / math.log(2)

    def _open_lanes(
        self, lanes: int, tokens: int, learning: Learning | None
    ) -> AbstractContextManager[Reader]:
        return open_lanes(self.model, self.hardware, lanes, -(-tokens // lanes), learning)

    def _fingerprint(self, lanes: int, learning: Learning | None) -> bytes:
        short = replace(learning, chunk=FINGERPRINT_CHUNK) if learning else None
        with self._open_lanes(lanes, FINGERPRINT_STEPS * lanes, short) as read:
            return take_fingerprint(read, self.vocab.size, lanes)

    def _encode(self, data: bytes) -> IntArray:
        if len(data) > MAX_BYTES:
            raise UserError(f"{len(data):,} bytes are more than {MAX_BYTES:,}; compress parts")
        ids = self.vocab.encode(data).astype(np.int64)
        # A vocabulary restores every text that it accepts; this is where it would have to show.
        if self.vocab.decode(ids) != data:
            raise UserError(f"the model's {self.vocab.kind} do not restore this text exactly")
        return ids

    def _decode(self, header: Header, words: Words, name: str, progress: Progress) -> bytes:
        lanes, start = header.lanes, self.vocab.start
        with self._open_lanes(lanes, header.tokens, header.learning) as read:
            try:
                ids = decode(read, words, header.tokens, lanes, start, progress)
            except (AssertionError, ValueError) as problem:
                # How constriction says that no text can have been coded to these words.
                raise UserError(f"{name} is damaged: {problem}") from None
        return self.vocab.decode(ids)


def _lanes_of_equal_length(ids: IntArray, lanes: int) -> Iterator[IntArray]:
    """Yield the lanes of a text (B, T), some at a time; their lengths differ by one at most."""
    texts = np.split(ids, lane_edges(ids.size, lanes)[1:-1])
    for _, alike in groupby(sorted(texts, key=len), key=len):
        ids_BT = np.stack(list(alike))
        yield from np.split(ids_BT, range(EVALUATED_LANES, len(ids_BT), EVALUATED_LANES))


def choose_lanes(tokens: int) -> int:
    """Lanes for a text of this length: more of them are faster, and cost bits."""
    return min(max(1, tokens // TOKENS_PER_LANE), USUAL_LANES)


def describe_machine(hardware: Hardware) -> str:
    """What decides the last bits of a computation, but the number of threads."""
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    if hardware.device.type != "cpu":
        processor = hardware.describe()
    return f"sparing {__version__}, torch {torch.__version__}, {processor}"


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
