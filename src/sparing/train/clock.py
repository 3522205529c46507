"""Wall-clock time of a run."""

import os
import time

from sparing.launch import age_s


def process_age_s() -> float:
    """Seconds since this process was started; 0 where the system does not tell."""
    return age_s(os.getpid()) or 0.0


class Clock:
    """Elapsed time of a run, over all its processes: `before_s` and the time since now."""

    def __init__(self, before_s: float) -> None:
        self._zero = time.perf_counter() - before_s
        self.agreed_s: float | None = None

    def elapsed_s(self) -> float:
        """Seconds spent on the run so far."""
        return time.perf_counter() - self._zero

    def shared_s(self) -> float:
        """The same for every process: rank 0's, as of their last meeting. Alone: now."""
        return self.elapsed_s() if self.agreed_s is None else self.agreed_s
