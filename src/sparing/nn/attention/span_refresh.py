"""Learned spans of windowed attention, copied to the host while the device computes."""

from collections.abc import Sequence

import torch
from torch import nn

from sparing.host_copy import AsyncHostCopy
from sparing.nn.attention.windowed import WindowedAttentionBlock


class SpanRefresh:
    """Copies the learned spans of all windowed attention among `modules` to the host.

    The copy starts before a pass and is waited for after it, when the device is busy with that
    pass. Waiting first would leave the device idle until the pass is launched. Blocks on the meta
    device keep their initial spans.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        found = (block for block in modules if isinstance(block, WindowedAttentionBlock))
        self._blocks = [block for block in found if not block.log_span.is_meta]
        if self._blocks:
            self._copy = AsyncHostCopy(torch.stack([block.log_span for block in self._blocks]))

    def finish(self) -> None:
        """Wait for the copy and store the spans in the blocks."""
        if not self._blocks:
            return
        for block, spans in zip(self._blocks, self._copy.wait().tolist(), strict=True):
            block.set_spans(spans)
