"""Memories of earlier positions, oldest first, and a buffer that appends to them without copying.

Axes: B batch, M memory, T segment, S = M + T, C capacity, X any.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


def append(memory_BMX: Tensor, fresh_BTX: Tensor) -> Tensor:
    """Concatenate a memory and fresh entries in the dtype of the fresh ones."""
    return torch.cat([memory_BMX.to(fresh_BTX.dtype), fresh_BTX], dim=1)


def newest(stored_BSX: Tensor, size: int) -> Tensor:
    """Return the newest `size` entries; none if `size` is zero or negative."""
    return stored_BSX[:, max(0, stored_BSX.size(1) - max(0, size)) :]


WIDE = torch.int64


class Allocation(NamedTuple):
    """A block of memory, and how much of it is written."""

    memory_BM: Tensor
    """The view that was returned last."""
    storage_BC: Tensor
    end: int


class KVBuffer:
    """Appends keys and values in place, into space reserved behind them.

    It writes only behind the view that it returned last. Appending to any other memory makes a
    copy. So a returned memory never changes, and the same state can be continued several times.
    """

    def __init__(self, memories: int = 1) -> None:
        """`memories` is the number of memories that are appended to in turn."""
        self._limit = memories
        # Keyed by the returned view: of several threads only one can take it.
        self._allocations: dict[int, Allocation] = {}

    def append(
        self, memory_BM: Tensor, fresh_BT: Tensor, window: int, seen: int | None = None
    ) -> Tensor:
        """Return the last `window` entries of `memory` followed by `fresh`.

        Of a memory of which only the last `seen` entries count, no others are copied.
        """
        size, length = memory_BM.size(1), fresh_BT.size(1)
        allocation = self._take(memory_BM)
        if allocation is None or allocation.end + length > allocation.storage_BC.size(1):
            kept_BM = memory_BM[:, max(0, size + length - window) :]
            allocation = _allocate(kept_BM, fresh_BT, window, seen)
        storage_BC, end = allocation.storage_BC, allocation.end + length
        _write(storage_BC[:, allocation.end : end], fresh_BT)
        # Nothing older than `memory`, even if the storage has it: a resumed run would not.
        view_BM = storage_BC[:, end - min(window, size + length) : end]
        self._allocations[id(view_BM)] = Allocation(view_BM, storage_BC, end)
        # Removed one by one, so that an entry another thread has taken does not come back.
        for oldest in list(self._allocations)[: -self._limit]:
            self._allocations.pop(oldest, None)
        return view_BM

    def _take(self, memory_BM: Tensor) -> Allocation | None:
        allocation = self._allocations.pop(id(memory_BM), None)
        # In a copy of the model the id may belong to another tensor by now.
        if allocation is not None and allocation.memory_BM is memory_BM:
            return allocation
        return None


def count_on_host(seen_B: Tensor) -> int | None:
    """Return the most positions that any lane has read; none where that means waiting."""
    return int(seen_B.max()) if seen_B.device.type == "cpu" and type(seen_B) is Tensor else None


def with_gap(memory_BM: Tensor) -> Tensor:
    """Copy a contiguous memory so that there is a gap before the entries of each lane.

    Memories from a `KVBuffer` have such a gap, and compiled code is specialised on whether there
    is one.
    """
    if not memory_BM.is_contiguous() or memory_BM.size(0) == 1:
        return memory_BM
    longer_BC = memory_BM.new_empty(memory_BM.size(0), 1 + memory_BM.size(1), *memory_BM.shape[2:])
    _write(longer_BC[:, 1:], memory_BM)
    return longer_BC[:, 1:]


def _allocate(kept_BM: Tensor, fresh_BT: Tensor, window: int, seen: int | None) -> Allocation:
    """Copy `kept` to new storage with space for `fresh` and about one more window.

    The first place stays empty: compiled code is specialised on memories that start at offset 0.
    """
    end, length = 1 + kept_BM.size(1), fresh_BT.size(1)
    capacity = end + length + max(window, 2 * length)
    storage_BC = _reserve(fresh_BT, (fresh_BT.size(0), capacity, *fresh_BT.shape[2:]))
    skipped = 0 if seen is None else max(0, kept_BM.size(1) - seen)
    _write(storage_BC[:, 1 + skipped : end], kept_BM[:, skipped:])
    return Allocation(storage_BC, storage_BC, end)


def _reserve(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return memory for a long text, whatever it holds."""
    return lazy_zeros(like, shape) if like.device.type == "cpu" else like.new_empty(shape)


def lazy_zeros(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return zeros, which on a CPU take neither time nor memory where nobody writes.

    NumPy asks the system for large pages; in pages of 4 kB, the first write takes five times as
    long.
    """
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    raw = torch.from_numpy(np.zeros(math.prod(shape) * like.element_size(), dtype=np.uint8))
    # Not as a view: compiled code would be specialised on the shape of what it is a view of.
    return raw.view(like.dtype).view(shape).data


def _write(target: Tensor, source: Tensor) -> None:
    """Copy, bypassing autograd, which would treat it as a change of every view of the storage.

    Eight bytes at a time where possible: torch copies non-contiguous tensors element by element,
    and elements of 16 bits leave most of a GPU's bandwidth unused.
    """
    target, source = target.data, source.data
    if target.dtype == source.dtype and _divides_into(target, WIDE) and _divides_into(source, WIDE):
        target, source = target.view(WIDE), source.view(WIDE)
    target.copy_(source)


def _divides_into(x: Tensor, wide: torch.dtype) -> bool:
    """Whether `x` can be viewed as the wider dtype."""
    ratio = wide.itemsize // x.dtype.itemsize
    places = [x.storage_offset(), x.size(-1), *x.stride()[:-1]]
    return ratio > 0 and x.stride(-1) == 1 and all(place % ratio == 0 for place in places)
