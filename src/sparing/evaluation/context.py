"""Loss as a function of context length: how much a model gains from what it has read."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparing import units
from sparing.data.tokens import Split
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.evaluation.window import Window, evenly_spaced_windows, read_windows, to_device
from sparing.models.api import LanguageModel, Output, eval_mode


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextPoint:
    """Mean loss of tokens predicted from `low` to `high` tokens of context, both included."""

    low: int
    high: int
    nats_per_token: float
    bits_per_byte: float
    """Computed with the split's mean number of bytes per token."""
    count: int
    """Number of tokens averaged over."""


def context_curve(  # noqa: PLR0913  all but three are keyword-only
    model: LanguageModel,
    split: Split,
    hardware: Hardware,
    *,
    length: int,
    windows: int = 64,
    batch: int = 8,
    segment: int = 1024,
) -> list[ContextPoint]:
    """Mean loss after 1, 2, ... `length` tokens from a fresh state, over evenly spaced windows."""
    if min(batch, segment) < 1:
        raise UserError(f"batch {batch} and segment {segment} must be at least 1")
    chosen = evenly_spaced_windows(len(split.ids), length, windows)
    total_T = torch.zeros(length, dtype=torch.float64, device=hardware.device)
    with eval_mode(model, hardware):
        for at in range(0, len(chosen), batch):
            _add_nats(model, split, chosen[at : at + batch], torch.split(total_T, segment))
    points = []
    totals = total_T.tolist()
    for low, high in context_buckets(length):
        count = (high - low + 1) * len(chosen)
        mean = sum(totals[low - 1 : high]) / count
        points.append(
            ContextPoint(
                low=low,
                high=high,
                nats_per_token=mean,
                bits_per_byte=units.bits_per_byte(mean * len(split.ids), split.size_bytes),
                count=count,
            )
        )
    return points


def context_buckets(length: int) -> list[tuple[int, int]]:
    """Return ranges that cover 1 to `length`, two per doubling: ... (5, 6), (7, 8), (9, 11) ..."""
    edges, doubling = {length}, 0
    while (edge := round(2 ** (doubling / 2))) < length:
        edges.add(edge)
        doubling += 1
    ordered = sorted(edges)
    return [(low + 1, high) for low, high in zip([0, *ordered], ordered, strict=False)]


def _add_nats(
    model: LanguageModel, split: Split, windows: list[Window], totals: tuple[Tensor, ...]
) -> None:
    """Add the loss of each position to `totals`, one tensor per segment."""
    inputs_BT, targets_BT = (
        to_device(array, model.device) for array in read_windows(split, windows)
    )
    state, begin = model.initial_state(len(windows), inference=True), 0
    for total_T in totals:
        end = begin + len(total_T)
        out: Output = model(inputs_BT[:, begin:end], state)
        nats_BT = model.head.nats(out.hidden_BTD, targets_BT[:, begin:end])
        total_T += nats_BT.sum(dim=0, dtype=torch.float64)
        state, begin = out.state, end
