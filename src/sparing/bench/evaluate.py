"""Evaluation with keys and values kept, against projecting the whole memory for every segment."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from sparing import device
from sparing.bench.timing import interleaved, spread
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.models.api import LanguageModel, Output, State, size_bytes
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig

PATIENCE = 10_000
"""Segments after which a memory that still grows counts as having no bound."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateOptions:
    """What to measure."""

    memory: int = 2048
    """Positions of memory, full before anything is timed."""
    segment: int = 64
    """Tokens read at a time."""
    batch: int = 1
    """Streams side by side."""
    rounds: int = 5
    """Segments read in each way, in turns."""

    def __post_init__(self) -> None:
        for name in ("segment", "batch", "rounds"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.memory >= PATIENCE * self.segment:
            raise UserError(
                f"memory {self.memory:,} is not full after {PATIENCE:,} segments; lower it, or "
                "raise segment"
            )


class Reader:
    """A model in the middle of a text, its memory full."""

    def __init__(self, model: LanguageModel, vocab_size: int, options: EvaluateOptions) -> None:
        self.model, self.state = model, State()
        shape = (options.batch, options.segment)
        self.tokens_BT = torch.randint(vocab_size, shape, device=model.device)

    def fill(self, hardware: Hardware) -> None:
        """Read until the state stops growing."""
        with torch.no_grad(), hardware.autocast():
            self.state = self.model.initial_state(self.tokens_BT.size(0), inference=True)
            before = -1
            for _ in self._segments():
                if size_bytes(self.state) == before:
                    return
                before = size_bytes(self.state)
        raise UserError(f"the model's state still grows after {PATIENCE:,} segments")

    def read(self, hardware: Hardware) -> float:
        """Score one segment; its loss, so that nothing is left undone."""
        with torch.no_grad(), hardware.autocast():
            out: Output = self.model(self.tokens_BT, self.state)
            self.state = out.state
            return float(self.model.head.nats(out.hidden_BTD, self.tokens_BT).sum())

    def _segments(self) -> Iterator[None]:
        for _ in range(PATIENCE):
            self.state = self.model(self.tokens_BT, self.state).state
            yield


def bench_evaluate(run: RunConfig, hardware: Hardware, options: EvaluateOptions) -> dict[str, Any]:
    """Time segments read with kept keys and values and with re-projection, in turns."""
    if "cache" not in {field.name for field in fields(run.model)}:
        raise UserError(f"family {run.family} has no memory to project; try transformer_xl")
    readers = {kind: _reader(run, hardware, options, kind) for kind in ("kv", "hidden")}
    tasks = {kind: lambda reader=reader: reader.read(hardware) for kind, reader in readers.items()}
    interleaved(tasks, 1, hardware)
    durations = interleaved(tasks, options.rounds, hardware)
    cached, projected = (spread(durations[kind]) for kind in ("kv", "hidden"))
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


def _reader(run: RunConfig, hardware: Hardware, options: EvaluateOptions, kind: str) -> Reader:
    device.seed_everything(run.train.seed)
    config = replace(run.model, memory=options.memory, cache=kind)
    model = build_model(replace(run, model=config), hardware.device).eval()
    reader = Reader(model, config.vocab_size, options)
    reader.fill(hardware)
    return reader
