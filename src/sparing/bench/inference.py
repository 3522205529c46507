"""Speed of evaluation and generation with a full memory.

Evaluation: with cached keys and values, against projecting the whole memory for every segment.
Generation: prefill of a prompt, then decoding early and late in a text.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparing import device
from sparing.bench.report import bytes_per_s
from sparing.bench.timing import quartiles, time_calls, time_in_turns
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.evaluation.memory import fill_memory
from sparing.generate.decode import GenerationConfig, prefill
from sparing.generate.sampling import SamplingConfig, sample
from sparing.models.api import LanguageModel, Output, State, size_bytes
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig

MAX_SEGMENTS = 10_000
"""Most segments that are read to fill a memory."""
CHUNK = GenerationConfig().chunk


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateOptions:
    """What to measure of evaluation."""

    memory: int = 2048
    """Positions of memory; it is full before anything is timed."""
    segment: int = 64
    """Tokens read at a time."""
    batch: int = 1
    """Streams read in parallel."""
    rounds: int = 5
    """Segments read in each of the two ways, in turns."""

    def __post_init__(self) -> None:
        _check_positive(self, "segment", "batch", "rounds")
        if self.memory >= MAX_SEGMENTS * self.segment:
            raise UserError(
                f"memory {self.memory:,} is not full after {MAX_SEGMENTS:,} segments; lower it, "
                "or raise segment"
            )


class Reader:
    """A model that evaluates a text, with its memory full."""

    def __init__(self, model: LanguageModel, vocab_size: int, options: EvaluateOptions) -> None:
        self.model, self.state = model, State()
        shape = (options.batch, options.segment)
        self.tokens_BT = torch.randint(vocab_size, shape, device=model.device)

    def fill(self, hardware: Hardware) -> None:
        """Read until the memory is full."""
        with torch.no_grad(), hardware.autocast():
            empty = self.model.initial_state(self.tokens_BT.size(0), inference=True)
            self.state, _ = fill_memory(self.model, repeat(self.tokens_BT), empty)

    def read(self, hardware: Hardware) -> float:
        """Score one segment and return its loss, which waits for the device."""
        with torch.no_grad(), hardware.autocast():
            out: Output = self.model(self.tokens_BT, self.state)
            self.state = out.state
            return float(self.model.head.nats(out.hidden_BTD, self.tokens_BT).sum())


def bench_evaluate(run: RunConfig, hardware: Hardware, options: EvaluateOptions) -> dict[str, Any]:
    """Time segments read with cached keys and values and with re-projection, in turns."""
    if "cache" not in {field.name for field in fields(run.model)}:
        raise UserError(f"family {run.family} has no memory to project; try transformer_xl")
    readers = {kind: _make_reader(run, hardware, options, kind) for kind in ("kv", "hidden")}
    tasks = {kind: lambda reader=reader: reader.read(hardware) for kind, reader in readers.items()}
    time_in_turns(tasks, 1, hardware)
    durations = time_in_turns(tasks, options.rounds, hardware)
    cached, projected = (quartiles(durations[kind]) for kind in ("kv", "hidden"))
    return {
        "memory": options.memory,
        "segment": options.segment,
        "cached_s": cached.to_json(),
        "reprojected_s": projected.to_json(),
        "ratio": cached.median / projected.median,
        "ratio_of_least": cached.least / projected.least,
        "cached_state_bytes": size_bytes(readers["kv"].state),
        "reprojected_state_bytes": size_bytes(readers["hidden"].state),
    }


def _make_reader(run: RunConfig, hardware: Hardware, options: EvaluateOptions, kind: str) -> Reader:
    device.seed_everything(run.train.seed)
    config = replace(run.model, memory=options.memory, cache=kind)
    model = build_model(replace(run, model=config), hardware.device).eval()
    reader = Reader(model, config.vocab_size, options)
    reader.fill(hardware)
    return reader


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateOptions:
    """What to measure of generation."""

    positions: tuple[int, ...]
    """Positions in the text at which to decode, besides the end of the first chunk after
    which the memory is full."""
    length: int = 100
    """Tokens decoded in one measured block."""
    rounds: int = 5
    """Blocks decoded at each position, in turns."""
    batch: int = 1
    """Texts decoded in parallel."""

    def __post_init__(self) -> None:
        _check_positive(self, "length", "rounds", "batch")


class Writer:
    """A text that is being generated: its state and the logits of the next token."""

    def __init__(
        self, model: LanguageModel, vocab_size: int, batch: int, hardware: Hardware
    ) -> None:
        self.model, self.hardware, self.position, self.held_bytes = model, hardware, 0, 0
        self.state: State = model.initial_state(batch, inference=True)
        self.logits_BV = torch.zeros(batch, vocab_size, device=hardware.device)

    def copy(self) -> "Writer":
        """Another writer at the same position; models do not modify a state in place."""
        other = Writer(self.model, self.logits_BV.size(1), 0, self.hardware)
        other.position, other.state, other.logits_BV = self.position, self.state, self.logits_BV
        return other

    def skip(self, count: int) -> float:
        """Read `count` random tokens at once; return the seconds it took."""
        batch, vocab_size = self.logits_BV.shape
        tokens_BT = torch.randint(vocab_size, (batch, count), device=self.hardware.device)
        return time_calls(partial(self._read, tokens_BT), self.hardware)

    def fill(self) -> Iterator[float]:
        """Read whole chunks, at least one, until the memory is full; yield the seconds of each."""
        while self.position < max(1, self.model.memory_length()):
            yield self.skip(CHUNK)

    def skip_to(self, position: int) -> Iterator[float]:
        """Read up to `position`; yield the seconds of every full chunk."""
        if position < self.position:
            full = f"memory is not full before position {self.position:,}"
            raise UserError(f"position {position:,} is too early: {full}")
        while (left := position - self.position) >= CHUNK:
            yield self.skip(CHUNK)
        if left:
            self.skip(left)

    def write(self, length: int) -> None:
        """Sample and read `length` tokens, one at a time, as `sparing generate` does."""
        if self.hardware.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.hardware.device)
        for _ in range(length):
            uniform_B = torch.rand(self.logits_BV.size(0), dtype=torch.float64)
            ids_B = sample(self.logits_BV, SamplingConfig(), uniform_B.to(self.hardware.device))
            self._read(ids_B[:, None])
        self.held_bytes = max(self.held_bytes, _held_bytes(self.hardware))

    def _read(self, tokens_BT: Tensor) -> None:
        with torch.no_grad(), self.hardware.autocast():
            self.logits_BV, self.state = prefill(self.model, tokens_BT, self.state, CHUNK)
        self.position += tokens_BT.size(1)


def bench_generate(
    model: LanguageModel, run: RunConfig, hardware: Hardware, options: GenerateOptions
) -> dict[str, Any]:
    """Time prefill, then decoding at several positions in turns."""
    reader = Writer(model.eval(), run.model.vocab_size, options.batch, hardware)
    chunks_s, writers = _prefill_to(reader, options.positions)
    found = _time_writers(writers, hardware, options)
    read_per_s = options.batch * CHUNK / quartiles(chunks_s).median
    first, last = (found[at]["token_ms"]["median"] for at in (0, -1))
    written_per_s = options.batch * 1000 / last
    return {
        "prefill_bytes_per_s": bytes_per_s(run, read_per_s),
        "prefill_tokens_per_s": read_per_s,
        "decode_bytes_per_s": bytes_per_s(run, written_per_s),
        "decode_tokens_per_s": written_per_s,
        "positions": found,
        "last_over_first": last / first,
        "peak_bytes": hardware.peak_bytes(),
        "length": options.length,
        "rounds": options.rounds,
        "batch": options.batch,
    }


def _prefill_to(reader: Writer, positions: tuple[int, ...]) -> tuple[list[float], list[Writer]]:
    """Read on; return a writer for the end of the chunk that fills memory and each position."""
    chunks_s = list(reader.fill())
    writers = [reader.copy()]
    for position in sorted(set(positions)):
        chunks_s += reader.skip_to(position)
        writers.append(reader.copy())
    return chunks_s, writers


def _time_writers(
    writers: list[Writer], hardware: Hardware, options: GenerateOptions
) -> list[dict[str, Any]]:
    # Writing moves a writer on, so its position is recorded first.
    found: list[dict[str, Any]] = [{"position": writer.position} for writer in writers]
    for writer in writers:
        writer.write(1)
    tasks = {str(at): partial(writer.write, options.length) for at, writer in enumerate(writers)}
    blocks_s = time_in_turns(tasks, options.rounds, hardware).values()
    for figures, writer, durations_s in zip(found, writers, blocks_s, strict=True):
        token_ms = [1000 * duration_s / options.length for duration_s in durations_s]
        figures["token_ms"] = quartiles(token_ms).to_json()
        figures["state_bytes"] = size_bytes(writer.state)
        figures["held_bytes"] = writer.held_bytes
    return found


def _held_bytes(hardware: Hardware) -> int:
    """Peak device memory of the last block; on a CPU, the resident memory of the process now."""
    if hardware.device.type == "cuda":
        return torch.cuda.max_memory_allocated(hardware.device)
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError):
        return hardware.peak_bytes()
    return pages * os.sysconf("SC_PAGE_SIZE")


def _check_positive(options: EvaluateOptions | GenerateOptions, *names: str) -> None:
    for name in names:
        if getattr(options, name) < 1:
            raise UserError(f"{name} must be at least 1, not {getattr(options, name)}")
