"""The one copy to the device."""

from collections.abc import Iterator

import torch

from sparing.data.stream import Segment


def prefetch(segments: Iterator[Segment], device: torch.device) -> Iterator[Segment]:
    """Keep one segment ahead on its way to a GPU; on a CPU, pass them through."""
    if device.type != "cuda":
        yield from segments
        return
    ahead: Segment | None = None
    for segment in segments:
        ready, ahead = ahead, _copy(segment, device)
        if ready is not None:
            yield ready
    if ahead is not None:
        yield ahead


def _copy(segment: Segment, device: torch.device) -> Segment:
    # From pinned memory the copy does not stop the host; the allocator keeps that memory until
    # the copy is done.
    return segment._replace(
        inputs_BT=segment.inputs_BT.pin_memory().to(device, non_blocking=True),
        targets_BT=segment.targets_BT.pin_memory().to(device, non_blocking=True),
    )
