"""Clocks. Tasks are timed in turns, so that a busy machine slows all of them alike."""

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
class Spread:
    """Middle, least, and edges of the middle half of several durations, in the unit they had."""

    median: float
    least: float
    lower: float
    upper: float

    def to_json(self) -> dict[str, float]:
        """The four figures by name."""
        return {
            "median": self.median,
            "least": self.least,
            "lower": self.lower,
            "upper": self.upper,
        }


def spread(durations: Sequence[float]) -> Spread:
    """Summarise at least one duration."""
    if len(durations) == 1:
        return Spread(*(4 * [durations[0]]))
    lower, median, upper = statistics.quantiles(durations, n=4, method="inclusive")
    return Spread(median, min(durations), lower, upper)


def timed(task: Task, hardware: Hardware, calls: int = 1) -> float:
    """Seconds one of several calls takes; the device is waited for at the end of all."""
    hardware.synchronize()
    started_at = time.perf_counter()
    for _ in range(calls):
        task()
    hardware.synchronize()
    return (time.perf_counter() - started_at) / calls


def interleaved(
    tasks: Mapping[str, Task], turns: int, hardware: Hardware, *, laps: int = 1, stretch: int = 1
) -> dict[str, list[float]]:
    """Seconds of every lap: each task in turn makes `laps` of them, `turns` times over.

    A lap is a `stretch` of calls, between which nobody waits for the device: as in a real run, the
    next is launched while it is busy. Before several of them goes a call that is not counted:
    caches and the allocator are still as the task before has left them, which no real run would
    meet (measured: up to a quarter slower).
    """
    durations: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(turns):
        for name, task in tasks.items():
            if laps * stretch > 1:
                task()
            durations[name] += [timed(task, hardware, stretch) for _ in range(laps)]
    return durations


MOST_THREADS = 4096


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Give torch this many threads inside the block; None leaves it its own choice."""
    if count is not None and not 1 <= count <= MOST_THREADS:
        raise UserError(f"threads must be from 1 to {MOST_THREADS}, not {count}")
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
