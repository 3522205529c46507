"""Clocks. Tasks are timed in turns, so that a busy machine slows all of them alike."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sparing.device import Hardware

Task = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle, the edges of the middle half, and the least of several durations in seconds."""

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


def spread(durations_s: Sequence[float]) -> Spread:
    """Summarise at least one duration."""
    if len(durations_s) == 1:
        return Spread(*(4 * [durations_s[0]]))
    lower, median, upper = statistics.quantiles(durations_s, n=4, method="inclusive")
    return Spread(median, min(durations_s), lower, upper)


def timed(task: Task, hardware: Hardware) -> float:
    """Seconds one call takes, the device's work included."""
    hardware.synchronize()
    started_at = time.perf_counter()
    task()
    hardware.synchronize()
    return time.perf_counter() - started_at


def interleaved(
    tasks: Mapping[str, Task], rounds: int, hardware: Hardware
) -> dict[str, list[float]]:
    """Seconds of every task in every round, all tasks taking their turn in each."""
    durations: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            durations[name].append(timed(task, hardware))
    return durations
