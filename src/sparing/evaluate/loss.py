"""The exact loss of a whole split: every token once, each from the tokens before it."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from tqdm import tqdm

from sparing import units
from sparing.data.stream import Stream, StreamConfig, prefetch
from sparing.data.tokens import Split
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.evaluate.window import Window, measuring, on_device, read, sliding
from sparing.models.api import LanguageModel, Output


class Together(Protocol):
    """Processes that share the work: `train.distributed.World`."""

    def lanes(self, batch: int) -> range:
        """The streams of this process."""
        ...

    def all_reduce(self, tensor: Tensor) -> None:
        """Add up what every process has, in place."""
        ...


Charge = Callable[[Tensor, Tensor], Tensor]
"""Hidden vectors (B, T, D) and targets (B, T) to nats (B, T)."""
Pieces = Iterator[tuple[Tensor, int]]
"""Nats of one piece of the text after the other, and how many tokens it has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """A split's total loss, and what is needed to say it in any unit."""

    loss_nats: float
    """Total over the split."""
    tokens: int
    size_bytes: int
    words: int
    """Words of the split, 0 where they were not counted."""
    protocol: str
    """Which text was scored: `bytes`, or `no-newlines`."""
    how: str
    """What each token was predicted from."""
    elapsed_s: float

    @classmethod
    def of(
        cls, split: Split, loss_nats: float, *, protocol: str, how: str, started_at: float
    ) -> "Evaluation":
        """The outcome for the whole of `split`, begun at `started_at` of `time.perf_counter`."""
        return cls(
            loss_nats=loss_nats,
            tokens=len(split.ids),
            size_bytes=split.size_bytes,
            words=split.words,
            protocol=protocol,
            how=how,
            elapsed_s=time.perf_counter() - started_at,
        )

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of the text."""
        return units.bits_per_byte(self.loss_nats, self.size_bytes)

    @property
    def nats_per_token(self) -> float:
        """Mean loss of a token."""
        return self.loss_nats / self.tokens

    @property
    def token_perplexity(self) -> float:
        """Exponential of the mean loss of a token."""
        return units.perplexity(self.loss_nats, self.tokens)

    @property
    def word_perplexity(self) -> float | None:
        """Exponential of the mean loss of a word; None where words were not counted."""
        return units.perplexity(self.loss_nats, self.words) if self.words else None

    def to_json(self) -> dict[str, Any]:
        """Every figure; one that is not finite becomes None, for JSON has no word for it."""
        return {
            "bits_per_byte": _finite(self.bits_per_byte),
            "bytes": self.size_bytes,
            "protocol": self.protocol,
            "how": self.how,
            "tokens": self.tokens,
            "loss_nats": _finite(self.loss_nats),
            "nats_per_token": _finite(self.nats_per_token),
            "perplexity_per_token": _finite(self.token_perplexity),
            "perplexity_per_word": _finite(self.word_perplexity),
            "elapsed_s": round(self.elapsed_s, 3),
        }


def carried(  # noqa: PLR0913  all but three are keyword-only
    model: LanguageModel,
    split: Split,
    hardware: Hardware,
    *,
    batch: int = 8,
    segment: int = 1024,
    protocol: str = "bytes",
    progress: bool = False,
    charge: Charge | None = None,
    world: Together | None = None,
) -> Evaluation:
    """Read the split as `batch` contiguous streams, carrying the state from segment to segment.

    `charge` says what a target costs at a hidden vector; the model's head by default. `world` deal
    the streams out and add up their losses.
    """
    tokens = _tokens(split)
    if min(batch, segment) < 1:
        raise UserError(f"batch {batch} and segment {segment} must be at least 1")
    batch = min(batch, tokens)
    segment = min(segment, math.ceil(tokens / batch))
    config = StreamConfig(batch=batch, segment=segment, filled=model.static_shapes)
    own = range(batch) if world is None else world.lanes(batch)
    stream = Stream(split, config, own)
    pieces = _stream_nats(model, stream, len(own), charge or model.head.nats)
    sitting = _Sitting(model, split, hardware, world, protocol, progress)
    return sitting.verdict(pieces, f"{batch} carried streams, segment {config.segment}")


def windowed(  # noqa: PLR0913  all but three are keyword-only
    model: LanguageModel,
    split: Split,
    hardware: Hardware,
    *,
    window: int,
    stride: int,
    batch: int = 8,
    protocol: str = "bytes",
    progress: bool = False,
    world: Together | None = None,
) -> Evaluation:
    """Read `window` tokens from a fresh state for every `stride` tokens that are scored.

    `world` deal the windows out and add up their losses.
    """
    tokens = _tokens(split)
    if batch < 1:
        raise UserError(f"batch {batch} must be at least 1")
    # The first window alone is scored whole, so it would make its batch's softmax needlessly wide.
    first, *rest = sliding(tokens, window, stride)
    groups = [[first], *(rest[at : at + batch] for at in range(0, len(rest), batch))]
    own = range(len(groups)) if world is None else world.lanes(len(groups))
    pieces = _windows_nats(model, split, groups[own.start : own.stop])
    sitting = _Sitting(model, split, hardware, world, protocol, progress)
    return sitting.verdict(pieces, f"window {window}, stride {stride}")


@dataclass(frozen=True, slots=True)
class _Sitting:
    """Who is judged by what, and by how many."""

    model: LanguageModel
    split: Split
    hardware: Hardware
    world: Together | None
    protocol: str
    progress: bool

    def verdict(self, pieces: Pieces, how: str) -> Evaluation:
        """Let the model read this process's `pieces`, and add up what they cost everybody."""
        started_at, split = time.perf_counter(), self.split
        # Summed where it is made: fetching each piece's loss would make the device wait.
        total = torch.zeros((), dtype=torch.float64, device=self.hardware.device)
        with measuring(self.model, self.hardware), _bar(len(split.ids), self.progress) as bar:
            for nats, count in pieces:
                total += nats
                bar.update(count)
            if self.world is not None:
                self.world.all_reduce(total)
            loss_nats = total.item()
        protocol = self.protocol
        return Evaluation.of(split, loss_nats, protocol=protocol, how=how, started_at=started_at)


def _stream_nats(model: LanguageModel, stream: Stream, lanes: int, charge: Charge) -> Pieces:
    # Of a few streams, some processes have none.
    if not lanes:
        return
    state = model.initial_state(lanes, inference=True)
    for piece in prefetch(stream.one_epoch(), model.device):
        out: Output = model(piece.inputs_BT, state)
        state = out.state
        yield charge(out.hidden_BTD, piece.targets_BT).sum(dtype=torch.float64), piece.count


def _windows_nats(model: LanguageModel, split: Split, groups: Sequence[Sequence[Window]]) -> Pieces:
    for group in groups:
        yield _window_nats(model, split, group), sum(each.end - each.scored for each in group)


def _window_nats(model: LanguageModel, split: Split, group: Sequence[Window]) -> Tensor:
    inputs_BT, targets_BT = (on_device(array, model.device) for array in read(split, group))
    out: Output = model(inputs_BT, model.initial_state(len(group), inference=True))
    scored = max(window.end - window.scored for window in group)
    nats_BT = model.head.nats(out.hidden_BTD[:, -scored:], targets_BT[:, -scored:])
    return nats_BT.sum(dtype=torch.float64)


def _tokens(split: Split) -> int:
    if len(split.ids) == 0:
        raise UserError("there is nothing to evaluate: the split is empty")
    return len(split.ids)


def _bar(tokens: int, progress: bool) -> "tqdm[Any]":
    # None: tqdm stays silent when nobody watches.
    disable = None if progress else True
    return tqdm(total=tokens, unit="tok", unit_scale=True, desc="evaluate", disable=disable)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
