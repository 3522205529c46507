"""Timing. Tasks take turns, so that a busy machine slows down all of them equally."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from sparing.device import Hardware
from sparing.errors import UserError

Task = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Quartiles:
    """Median, minimum and quartiles of several durations, in their unit."""

    median: float
    least: float
    lower: float
    upper: float

    def to_json(self) -> dict[str, float]:
        """The four numbers by name."""
        return {
            "median": self.median,
            "least": self.least,
            "lower": self.lower,
            "upper": self.upper,
        }


def quartiles(durations: Sequence[float]) -> Quartiles:
    """Summarise at least one duration."""
    if len(durations) == 1:
        return Quartiles(*(4 * [durations[0]]))
    lower, median, upper = statistics.quantiles(durations, n=4, method="inclusive")
    return Quartiles(median, min(durations), lower, upper)


def time_calls(task: Task, hardware: Hardware, calls: int = 1) -> float:
    """Seconds per call, averaged over `calls`; waits for the device only at the end."""
    hardware.synchronize()
    started_at = time.perf_counter()
    for _ in range(calls):
        task()
    hardware.synchronize()
    return (time.perf_counter() - started_at) / calls


def time_in_turns(
    tasks: Mapping[str, Task], turns: int, hardware: Hardware, *, laps: int = 1, stretch: int = 1
) -> dict[str, list[float]]:
    """Seconds per call of every lap. The tasks take turns, with `laps` laps in each of `turns`.

    A lap is a `stretch` of calls without waiting for the device in between: as in a real run, the
    next call is launched while the device is busy. If a turn has several calls, the first is not
    counted: caches and allocator are still in the state the other task left, which makes it up to
    a quarter slower.
    """
    durations: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(turns):
        for name, task in tasks.items():
            if laps * stretch > 1:
                task()
            durations[name] += [time_calls(task, hardware, stretch) for _ in range(laps)]
    return durations


MAX_THREADS = 4096


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Set the number of torch's threads inside the block; None leaves it as it is."""
    if count is not None and not 1 <= count <= MAX_THREADS:
        raise UserError(f"threads must be from 1 to {MAX_THREADS}, not {count}")
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
