"""Wall-clock time of a run."""

import os
import time


def process_age_s() -> float:
    """Seconds since this process was started; 0 where the system does not tell."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


class Clock:
    """Elapsed time of a run, over all its processes: `before_s` and the time since now."""

    def __init__(self, before_s: float) -> None:
        self._zero = time.perf_counter() - before_s

    def elapsed_s(self) -> float:
        """Seconds spent on the run so far."""
        return time.perf_counter() - self._zero
