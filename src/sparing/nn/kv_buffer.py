"""Memory of earlier positions, oldest first: appended to, cut to the newest, grown without copies.

Axes: B batch, M memory, T segment, S = M + T, X any.
"""

from typing import NamedTuple

import torch
from torch import Tensor


def append(memory_BMX: Tensor, fresh_BTX: Tensor) -> Tensor:
    """A memory followed by fresh entries, in the precision of these."""
    return torch.cat([memory_BMX.to(fresh_BTX.dtype), fresh_BTX], dim=1)


def newest(stored_BSX: Tensor, room: int) -> Tensor:
    """The newest entries there is room for; none where there is no room at all."""
    return stored_BSX[:, max(0, stored_BSX.size(1) - max(0, room)) :]


WIDE = torch.int64


class Allocation(NamedTuple):
    """Where the last entries were written."""

    handed_BM: Tensor
    """The part that was handed out last."""
    paper_BC: Tensor
    end: int


class KVBuffer:
    """Writes new entries behind old ones, into room left for them.

    Only behind the part that was handed out last: whoever goes on from another gets a copy. So
    nothing that was handed out ever changes, and a state may be gone on from as often as one likes.
    """

    def __init__(self, sheets: int = 1) -> None:
        """Whoever writes so many memories in turn has a sheet for each."""
        self._most = sheets
        # By what was handed out: of several threads only one can take it.
        self._sheets: dict[int, Allocation] = {}

    def append(self, memory_BM: Tensor, fresh_BT: Tensor, window: int) -> Tensor:
        """At most the last `window` entries of `memory` with `fresh` behind it."""
        size, length = memory_BM.size(1), fresh_BT.size(1)
        sheet = self._taken(memory_BM)
        if sheet is None or sheet.end + length > sheet.paper_BC.size(1):
            sheet = _copied(memory_BM[:, max(0, size + length - window) :], fresh_BT, window)
        paper_BC, end = sheet.paper_BC, sheet.end + length
        _write(paper_BC[:, sheet.end : end], fresh_BT)
        # Nothing older than `memory`, though it may be there: a resumed run would not have it.
        handed_BM = paper_BC[:, end - min(window, size + length) : end]
        self._sheets[id(handed_BM)] = Allocation(handed_BM, paper_BC, end)
        # Taken out one by one: another thread's sheet that is gone must not come back.
        for oldest in list(self._sheets)[: -self._most]:
            self._sheets.pop(oldest, None)
        return handed_BM

    def _taken(self, memory_BM: Tensor) -> Allocation | None:
        sheet = self._sheets.pop(id(memory_BM), None)
        # A number may be another tensor's by now, in a copy of the model.
        return sheet if sheet is not None and sheet.handed_BM is memory_BM else None


def with_gap(memory_BM: Tensor) -> Tensor:
    """The same entries with a gap before those of each lane.

    What a scroll hands out has one; compiled code takes it for a rule that there is one, or none.
    """
    if not memory_BM.is_contiguous() or memory_BM.size(0) == 1:
        return memory_BM
    longer_BC = memory_BM.new_empty(memory_BM.size(0), 1 + memory_BM.size(1), *memory_BM.shape[2:])
    _write(longer_BC[:, 1:], memory_BM)
    return longer_BC[:, 1:]


def _copied(kept_BM: Tensor, fresh_BT: Tensor, window: int) -> Allocation:
    """A sheet with `kept`, and room behind it for `fresh` and about as much as a window.

    The first place stays empty: compiled code takes it for a rule if a memory begins there.
    """
    end, length = 1 + kept_BM.size(1), fresh_BT.size(1)
    size = end + length + max(window, 2 * length)
    paper_BC = fresh_BT.new_empty(fresh_BT.size(0), size, *fresh_BT.shape[2:])
    _write(paper_BC[:, 1:end], kept_BM)
    return Allocation(paper_BC, paper_BC, end)


def _write(target: Tensor, source: Tensor) -> None:
    """Copy, past autograd, which takes any change of a sheet for one of what was handed out of it.

    In pieces of eight bytes where that is possible: between places that do not lie in a row torch
    copies number by number, and numbers of 16 bits leave most of a GPU's bandwidth unused.
    """
    target, source = target.data, source.data
    if target.dtype == source.dtype and _divides_into(target, WIDE) and _divides_into(source, WIDE):
        target, source = target.view(WIDE), source.view(WIDE)
    target.copy_(source)


def _divides_into(x: Tensor, wide: torch.dtype) -> bool:
    """Whether every number lies in a whole piece of the wider type."""
    ratio = wide.itemsize // x.dtype.itemsize
    places = [x.storage_offset(), x.size(-1), *x.stride()[:-1]]
    return ratio > 0 and x.stride(-1) == 1 and all(place % ratio == 0 for place in places)
