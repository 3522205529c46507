"""The exact loss of a whole split: every token once, each predicted from the tokens before it."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from tqdm import tqdm

from sparing import units
from sparing.data.stream import Stream, StreamConfig, prefetch
from sparing.data.tokens import Split
from sparing.device import Hardware, Precision
from sparing.errors import UserError
from sparing.evaluation.window import Window, read_windows, sliding_windows, to_device
from sparing.models.api import LanguageModel, Output, eval_mode


class EvaluationWorld(Protocol):
    """Processes that share an evaluation; `training.distributed.world.World` is one."""

    def lanes(self, batch: int) -> range:
        """The lanes of this process."""
        ...

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum a tensor over all processes, in place."""
        ...


LossFunction = Callable[[Tensor, Tensor], Tensor]
"""Hidden vectors (B, T, D) and targets (B, T) to nats (B, T)."""
Losses = Iterator[tuple[Tensor, int]]
"""Total nats and number of tokens of successive parts of a text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The total loss of a split, and what is needed to express it in any unit."""

    loss_nats: float
    """Total over the split."""
    tokens: int
    size_bytes: int
    words: int
    """Words of the split; 0 if tokens are bytes or characters, or words were not counted."""
    protocol: str
    """Which text was scored: `bytes`, or `no-newlines`."""
    how: str
    """What each token was predicted from."""
    precision: Precision
    """Of matrix products."""
    elapsed_s: float

    def __repr__(self) -> str:
        about = f"{units.pluralize(self.size_bytes, 'byte')}, {self.how}, {self.precision}"
        return f"Evaluation({self.bits_per_byte:.4f} bits per byte; {about})"

    @classmethod
    def of(  # noqa: PLR0913  all but two are keyword-only
        cls,
        split: Split,
        loss_nats: float,
        *,
        protocol: str,
        how: str,
        precision: Precision,
        started_at: float,
    ) -> "Evaluation":
        """The result for all of `split`, begun at `started_at` of `time.perf_counter`."""
        return cls(
            loss_nats=loss_nats,
            tokens=len(split.ids),
            size_bytes=split.size_bytes,
            words=split.words,
            protocol=protocol,
            how=how,
            precision=precision,
            elapsed_s=time.perf_counter() - started_at,
        )

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of the text."""
        return units.bits_per_byte(self.loss_nats, self.size_bytes)

    @property
    def nats_per_token(self) -> float:
        """Mean loss per token."""
        return self.loss_nats / self.tokens

    @property
    def token_perplexity(self) -> float:
        """Exponential of the mean loss per token."""
        return units.perplexity(self.loss_nats, self.tokens)

    @property
    def word_perplexity(self) -> float | None:
        """Exponential of the mean loss per word; None without words."""
        return units.perplexity(self.loss_nats, self.words) if self.words else None

    def to_json(self) -> dict[str, Any]:
        """All figures; those that are not finite become None, because JSON cannot express them."""
        per_word = self.word_perplexity
        return {
            "bits_per_byte": finite_or_none(self.bits_per_byte),
            "bytes": self.size_bytes,
            "protocol": self.protocol,
            "how": self.how,
            "tokens": self.tokens,
            "loss_nats": finite_or_none(self.loss_nats),
            "nats_per_token": finite_or_none(self.nats_per_token),
            "perplexity_per_token": finite_or_none(self.token_perplexity),
            **({} if per_word is None else {"perplexity_per_word": finite_or_none(per_word)}),
            "elapsed_s": round(self.elapsed_s, 3),
        }


def evaluate_streams(  # noqa: PLR0913  all but three are keyword-only
    model: LanguageModel,
    split: Split,
    hardware: Hardware,
    *,
    batch: int = 8,
    segment: int = 1024,
    protocol: str = "bytes",
    progress: bool = False,
    loss_fn: LossFunction | None = None,
    world: EvaluationWorld | None = None,
) -> Evaluation:
    """Read the split as `batch` contiguous streams, carrying the state from segment to segment.

    `loss_fn` defaults to the loss of the model's head. The processes of `world` share the streams.
    """
    tokens = _count_tokens(split)
    if min(batch, segment) < 1:
        raise UserError(f"batch {batch} and segment {segment} must be at least 1")
    batch = min(batch, tokens)
    segment = min(segment, math.ceil(tokens / batch))
    config = StreamConfig(batch=batch, segment=segment, pad_last=model.static_shapes)
    own = range(batch) if world is None else world.lanes(batch)
    stream = Stream(split, config, own)
    losses = _stream_losses(model, stream, len(own), loss_fn or model.head.nats)
    evaluator = _Evaluator(model, split, hardware, world, protocol, progress)
    return evaluator.total(losses, how_streams_are_read(batch, segment))


def how_streams_are_read(batch: int, segment: int) -> str:
    """What each token is predicted from, in words."""
    streams = "1 carried stream" if batch == 1 else f"{batch} carried streams"
    return f"{streams}, segment {segment}"


def evaluate_texts(
    model: LanguageModel,
    ids_BT: npt.NDArray[np.int64],
    start: int,
    hardware: Hardware,
    *,
    segment: int,
) -> float:
    """Return the total nats of texts of equal length, each read from its start, in segments."""
    inputs_BT, targets_BT = (
        to_device(array, hardware.device)
        for array in (np.insert(ids_BT[:, :-1], 0, start, axis=1), ids_BT)
    )
    total = torch.zeros((), dtype=torch.float64, device=hardware.device)
    with eval_mode(model, hardware):
        state = model.initial_state(len(ids_BT), inference=True)
        parts = (torch.split(each_BT, segment, dim=1) for each_BT in (inputs_BT, targets_BT))
        for inputs, targets in zip(*parts, strict=True):
            out: Output = model(inputs, state)
            state = out.state
            total += model.head.nats(out.hidden_BTD, targets).sum(dtype=torch.float64)
    return total.item()


def evaluate_windows(  # noqa: PLR0913  all but three are keyword-only
    model: LanguageModel,
    split: Split,
    hardware: Hardware,
    *,
    window: int,
    stride: int,
    batch: int = 8,
    protocol: str = "bytes",
    progress: bool = False,
    world: EvaluationWorld | None = None,
) -> Evaluation:
    """Read `window` tokens from a fresh state for every `stride` tokens that are scored.

    The processes of `world` share the windows.
    """
    tokens = _count_tokens(split)
    if batch < 1:
        raise UserError(f"batch {batch} must be at least 1")
    # All tokens of the first window are scored, which would widen the softmax of its batch.
    first, *rest = sliding_windows(tokens, window, stride)
    groups = [[first], *(rest[at : at + batch] for at in range(0, len(rest), batch))]
    own = range(len(groups)) if world is None else world.lanes(len(groups))
    losses = _windows_losses(model, split, groups[own.start : own.stop])
    evaluator = _Evaluator(model, split, hardware, world, protocol, progress)
    return evaluator.total(losses, f"window {window}, stride {stride}")


@dataclass(frozen=True, slots=True)
class _Evaluator:
    """Sums the losses of a split over its parts and over all processes."""

    model: LanguageModel
    split: Split
    hardware: Hardware
    world: EvaluationWorld | None
    protocol: str
    progress: bool

    def total(self, losses: Losses, how: str) -> Evaluation:
        """Compute and sum the `losses` of this process and of all others."""
        started_at, split = time.perf_counter(), self.split
        # Summed on the device: fetching the loss of each part would make the device wait.
        total = torch.zeros((), dtype=torch.float64, device=self.hardware.device)
        with eval_mode(self.model, self.hardware), _bar(len(split.ids), self.progress) as bar:
            for nats, count in losses:
                total += nats
                bar.update(count)
            if self.world is not None:
                self.world.all_reduce(total)
            loss_nats = total.item()
        return Evaluation.of(
            split,
            loss_nats,
            protocol=self.protocol,
            how=how,
            precision=self.hardware.precision,
            started_at=started_at,
        )


def _stream_losses(
    model: LanguageModel, stream: Stream, lanes: int, loss_fn: LossFunction
) -> Losses:
    # With fewer streams than processes, some processes have none.
    if not lanes:
        return
    state = model.initial_state(lanes, inference=True)
    for part in prefetch(stream.one_epoch(), model.device):
        out: Output = model(part.inputs_BT, state)
        state = out.state
        yield loss_fn(out.hidden_BTD, part.targets_BT).sum(dtype=torch.float64), part.count


def _windows_losses(
    model: LanguageModel, split: Split, groups: Sequence[Sequence[Window]]
) -> Losses:
    for group in groups:
        yield _group_nats(model, split, group), sum(each.end - each.scored for each in group)


def _group_nats(model: LanguageModel, split: Split, group: Sequence[Window]) -> Tensor:
    inputs_BT, targets_BT = (to_device(array, model.device) for array in read_windows(split, group))
    out: Output = model(inputs_BT, model.initial_state(len(group), inference=True))
    scored = max(window.end - window.scored for window in group)
    nats_BT = model.head.nats(out.hidden_BTD[:, -scored:], targets_BT[:, -scored:])
    return nats_BT.sum(dtype=torch.float64)


def _count_tokens(split: Split) -> int:
    if len(split.ids) == 0:
        raise UserError("there is nothing to evaluate: the split is empty")
    return len(split.ids)


def _bar(tokens: int, progress: bool) -> "tqdm[Any]":
    # With None, tqdm prints only to a terminal.
    disable = None if progress else True
    return tqdm(total=tokens, unit="tok", unit_scale=True, desc="evaluate", disable=disable)


def finite_or_none(value: float) -> float | None:
    """The value, or None where JSON has no number for it."""
    return value if math.isfinite(value) else None
