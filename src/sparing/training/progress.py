"""The progress bar of a run."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from sparing.terminal import columns, escape, print_line

LOG_EVERY_S = 10.0
"""Time between two lines where the output is not a terminal."""


class ProgressBar:
    """Share of the run that is done, a line of text beside it, and the time left."""

    def __init__(self, *, shown: bool = True) -> None:
        self._next_at = 0.0
        self._since: tuple[float, float] | None = None
        self._bar: Any = None
        self._shown = shown
        if shown and sys.stderr.isatty():
            self._bar = tqdm(total=1000, bar_format=_bar_format(""), leave=True)

    def update(self, share: float, text: str) -> None:
        """Show that `share` of the run is done, with `text` beside it."""
        if not self._shown:
            return
        # The last step may end after a budget of minutes or epochs does.
        share = min(1.0, share)
        text = f"{text}  {self._time_left(share)}"
        if self._bar is not None:
            with self._until_closed():
                self._bar.bar_format = _bar_format(text)
                self._bar.set_description_str(text, refresh=False)
                self._bar.update(round(1000 * share) - self._bar.n)
        elif time.perf_counter() >= self._next_at:
            self._next_at = time.perf_counter() + LOG_EVERY_S
            self.print(f"{100 * share:3.0f}%  {text}")

    def print(self, text: str) -> None:
        """Print one line above the bar."""
        if not self._shown:
            return
        with self._until_closed():
            if self._bar is not None:
                self._bar.write(escape(text), file=sys.stderr)
            else:
                print_line(text, err=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            with self._until_closed():
                self._bar.close()

    @contextmanager
    def _until_closed(self) -> Iterator[None]:
        """Show nothing more once the terminal is closed; that must not stop the training."""
        try:
            yield
        except OSError:
            self._shown = False

    def _time_left(self, share: float) -> str:
        """An estimate from the pace since the first update.

        The run may have started long before, and its first step includes compilation.
        """
        now = time.perf_counter()
        if self._since is None:
            self._since = (now, share)
        first_at, first_share = self._since
        if share <= first_share:
            return "ETA -"
        left_s = (now - first_at) * (1 - share) / (share - first_share)
        return f"ETA {int(left_s) // 60}:{int(left_s) % 60:02d}"


def _bar_format(text: str) -> str:
    """A bar as long as the text beside it leaves room for, so that the time left is not cut off."""
    room = (columns() or 80) - len("100% || ") - len(text) - 1
    return f"{{percentage:3.0f}}% |{{bar:{max(1, min(24, room))}}}| {{desc}}"
