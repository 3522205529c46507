"""Windows of a split that a model reads from a fresh state."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparing.data.tokens import Split
from sparing.errors import UserError
from sparing.units import IGNORE_INDEX, pluralize


@dataclass(frozen=True, slots=True)
class Window:
    """Targets [begin, end) of a split, of which only [scored, end) are scored."""

    begin: int
    scored: int
    end: int


def sliding_windows(tokens: int, window: int, stride: int) -> Iterator[Window]:
    """Yield windows of equal length whose scored parts cover every token once."""
    if window < 1:
        raise UserError(f"a window holds at least 1 token, not {window}")
    if not 1 <= stride <= window:
        raise UserError(f"stride {stride} must be between 1 and the window, {window}")
    end = min(window, tokens)
    yield Window(0, 0, end)
    while end < tokens:
        scored, end = end, min(end + stride, tokens)
        yield Window(end - window, scored, end)


def evenly_spaced_windows(tokens: int, length: int, count: int) -> list[Window]:
    """Return up to `count` different windows, evenly spaced; none starts at the first token."""
    if min(length, count) < 1:
        raise UserError(f"need at least one window of one token, not {count} of {length}")
    if length >= tokens:
        raise UserError(
            f"a context of {pluralize(length, 'token')} does not fit into the split; use at most "
            f"{tokens - 1}"
        )
    begins = np.unique(np.linspace(1, tokens - length, count).round().astype(np.int64))
    return [Window(int(begin), int(begin), int(begin) + length) for begin in begins]


def read_windows(split: Split, windows: Sequence[Window]) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets of windows of equal length, one per lane."""
    length = windows[0].end - windows[0].begin
    inputs_BT = np.empty((len(windows), length), dtype=np.int64)
    targets_BT = np.empty_like(inputs_BT)
    for lane, window in enumerate(windows):
        targets_BT[lane] = split.ids[window.begin : window.end]
        inputs_BT[lane, 0] = split.ids[window.begin - 1] if window.begin else split.start
        inputs_BT[lane, 1:] = targets_BT[lane, :-1]
        targets_BT[lane, : window.scored - window.begin] = IGNORE_INDEX
    return inputs_BT, targets_BT


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to the device asynchronously."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
