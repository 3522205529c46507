"""Reading a prompt and writing token after token, early in a text and late."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparing.bench.report import bytes_per_s
from sparing.bench.timing import interleaved, spread, timed
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.generate.decode import GenerationConfig, prefill
from sparing.generate.sampling import SamplingConfig, sample
from sparing.models.api import LanguageModel, State, size_bytes
from sparing.runs.config import RunConfig

CHUNK = GenerationConfig().chunk
FULL_WITHIN = 1 << 20
"""Tokens after which a state that still grows counts as having no bound."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateOptions:
    """What to measure."""

    positions: tuple[int, ...]
    """Places in the text at which to write, beside the first one with full memory."""
    length: int = 100
    """Tokens written in one measured block."""
    rounds: int = 5
    """Blocks written at each place, in turns."""
    batch: int = 1
    """Texts side by side."""

    def __post_init__(self) -> None:
        for name in ("length", "rounds", "batch"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")


class Writer:
    """A text in the making: what the model carries of it, and what may come next."""

    def __init__(
        self, model: LanguageModel, vocab_size: int, batch: int, hardware: Hardware
    ) -> None:
        self.model, self.hardware, self.position, self.held_bytes = model, hardware, 0, 0
        self.state: State = model.initial_state(batch, inference=True)
        self.logits_BV = torch.zeros(batch, vocab_size, device=hardware.device)

    def copy(self) -> "Writer":
        """Another writer at the same place; models put no new values into an old state."""
        other = Writer(self.model, self.logits_BV.size(1), 0, self.hardware)
        other.position, other.state, other.logits_BV = self.position, self.state, self.logits_BV
        return other

    def skip(self, count: int) -> float:
        """Read `count` random tokens at once; the seconds it took."""
        batch, vocab_size = self.logits_BV.shape
        tokens_BT = torch.randint(vocab_size, (batch, count), device=self.hardware.device)
        return timed(partial(self._read, tokens_BT), self.hardware)

    def fill(self) -> Iterator[float]:
        """Read until the state stops growing; the seconds of every chunk."""
        before = -1
        while size_bytes(self.state) > before:
            before = size_bytes(self.state)
            yield self.skip(CHUNK)
            if self.position > FULL_WITHIN:
                raise UserError(f"the model's state still grows after {self.position:,} tokens")

    def skip_to(self, position: int) -> Iterator[float]:
        """Read up to `position`; the seconds of every full chunk."""
        if position < self.position:
            full = f"memory is not full before position {self.position:,}"
            raise UserError(f"position {position:,} is too early: {full}")
        while (left := position - self.position) >= CHUNK:
            yield self.skip(CHUNK)
        if left:
            self.skip(left)

    def write(self, length: int) -> None:
        """Draw and read `length` tokens, one at a time, as `sparing generate` does."""
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
    """Time reading, then writing at several places, in turns."""
    reader = Writer(model.eval(), run.model.vocab_size, options.batch, hardware)
    chunks_s, places = _visit(reader, options.positions)
    found = _write(places, hardware, options)
    read_per_s = options.batch * CHUNK / spread(chunks_s).median
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


def _visit(reader: Writer, positions: tuple[int, ...]) -> tuple[list[float], list[Writer]]:
    """Read on, leaving a writer where memory is first full and at each position."""
    chunks_s = list(reader.fill())
    places = [reader.copy()]
    for position in sorted(set(positions)):
        chunks_s += reader.skip_to(position)
        places.append(reader.copy())
    return chunks_s, places


def _write(
    places: list[Writer], hardware: Hardware, options: GenerateOptions
) -> list[dict[str, Any]]:
    # A block moves its writer on, so the place is noted before.
    found: list[dict[str, Any]] = [{"position": place.position} for place in places]
    for place in places:
        place.write(1)
    tasks = {str(at): partial(place.write, options.length) for at, place in enumerate(places)}
    blocks_s = interleaved(tasks, options.rounds, hardware).values()
    for about, place, durations_s in zip(found, places, blocks_s, strict=True):
        token_ms = [1000 * duration_s / options.length for duration_s in durations_s]
        about["token_ms"] = spread(token_ms).to_json()
        about["state_bytes"] = size_bytes(place.state)
        about["held_bytes"] = place.held_bytes
    return found


def _held_bytes(hardware: Hardware) -> int:
    """Device memory of the last block at its peak; on a CPU, what the process holds now."""
    if hardware.device.type == "cuda":
        return torch.cuda.max_memory_allocated(hardware.device)
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError):
        return hardware.peak_bytes()
    return pages * os.sysconf("SC_PAGE_SIZE")
