"""Copies from the device to the host that run while both go on working."""

import torch
from torch import Tensor


class AsyncHostCopy:
    """Asked for now and read later: until then neither the device nor the host need wait.

    They come as soon as the device has done what it was told before, whatever it is told after.
    """

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers.detach()
        self._here = self.numbers.to("cpu", non_blocking=True)
        self._event: torch.cuda.Event | None = None
        if numbers.is_cuda:
            self._event = torch.cuda.current_stream(numbers.device).record_event()

    def read(self) -> Tensor:
        """The numbers, on the host."""
        if self._event is not None:
            self._event.synchronize()
        return self._here

    def number(self) -> float:
        """The only one there is."""
        return float(self.read())
