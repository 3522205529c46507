"""Asynchronous copies from the device to the host."""

import torch
from torch import Tensor


class AsyncHostCopy:
    """A copy of a small tensor on the host, started now and waited for later.

    It completes as soon as the device has finished the work queued before it, whatever is queued
    after it. Neither the device nor the host waits in the meantime.
    """

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers.detach()
        self._host = self.numbers.to("cpu", non_blocking=True)
        self._event: torch.cuda.Event | None = None
        if numbers.is_cuda:
            self._event = torch.cuda.current_stream(numbers.device).record_event()

    def wait(self) -> Tensor:
        """Wait for the copy and return it."""
        if self._event is not None:
            self._event.synchronize()
        return self._host

    def item(self) -> float:
        """Wait for the copy of a single number and return that number."""
        return float(self.wait())
