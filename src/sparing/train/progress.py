"""Wall-clock time of a run and its progress bar."""

import os
import sys
import time
from typing import Any

from tqdm import tqdm

from sparing.launch import seconds_since_start


def process_age_s() -> float:
    """Seconds since this process was started; 0 where the system does not tell."""
    return seconds_since_start(os.getpid()) or 0.0


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


LOG_EVERY_S = 10.0


class Bar:
    """Share done, loss, bits per byte, speed and time left."""

    def __init__(self, *, shown: bool = True) -> None:
        self._next_at = 0.0
        self._since: tuple[float, float] | None = None
        self._bar: Any = None
        self._shown = shown
        if shown and sys.stderr.isatty():
            form = "{percentage:3.0f}% |{bar:24}| {desc}"
            self._bar = tqdm(total=1000, bar_format=form, leave=True)

    def update(self, fraction: float, words: str) -> None:
        """Show `fraction` of the run as done, with `words` beside it."""
        if not self._shown:
            return
        words = f"{words}  {self._left(fraction)}"
        if self._bar is not None:
            self._bar.set_description_str(words, refresh=False)
            self._bar.update(round(1000 * min(1.0, fraction)) - self._bar.n)
        elif time.perf_counter() >= self._next_at:
            self._next_at = time.perf_counter() + LOG_EVERY_S
            sys.stderr.write(f"{100 * fraction:3.0f}%  {words}\n")
            sys.stderr.flush()

    def say(self, words: str) -> None:
        """One line above the bar."""
        if not self._shown:
            return
        if self._bar is not None:
            self._bar.write(words, file=sys.stderr)
        else:
            sys.stderr.write(words + "\n")
            sys.stderr.flush()

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()

    def _left(self, fraction: float) -> str:
        """By the pace since the first update.

        The run may have begun long before it, and its first step compiled for a while.
        """
        now = time.perf_counter()
        if self._since is None:
            self._since = (now, fraction)
        began_at, began = self._since
        if fraction <= began:
            return "ETA -"
        left_s = (now - began_at) * (1 - fraction) / (fraction - began)
        return f"ETA {int(left_s) // 60}:{int(left_s) % 60:02d}"
