"""The diary of a run: metrics.jsonl, append only, and TensorBoard beside it."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparing.errors import UserError
from sparing.files import atomic_write, fsync

TIMINGS = ("elapsed_s", "tokens_per_s", "peak_bytes", "evaluate_s")
"""Fields that differ from run to run even when every number of the training is the same."""


class Journal:
    """Appends one JSON line per entry. Lines written after a checkpoint are dropped on resume."""

    def __init__(self, path: Path, tensorboard: Path | None = None, after_step: int = 0) -> None:
        self.path = path
        self._board = _board(tensorboard, after_step + 1) if tensorboard else None

    def note(self, kind: str, step: int, **fields: Any) -> None:
        """Write one entry: `train`, `valid`, or `event`."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "step": step, **fields}) + "\n")
        if self._board is not None:
            for name, value in _numbers(fields):
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def sync(self) -> None:
        """Push all entries to the disk: a checkpoint must not outlive the lines before it."""
        if self.path.exists():
            fsync(self.path)

    def size_bytes(self) -> int:
        """How long the file is: what a checkpoint remembers of it."""
        return self.path.stat().st_size if self.path.exists() else 0

    def close(self) -> None:
        """Finish writing."""
        if self._board is not None:
            self._board.close()


class NullJournal(Journal):
    """Writes nothing: of several processes, one keeps the diary."""

    def __init__(self) -> None:
        super().__init__(Path())

    def note(self, kind: str, step: int, **fields: Any) -> None:
        """Leave it to rank 0."""

    def sync(self) -> None:
        """There is nothing to push."""

    def size_bytes(self) -> int:
        """There is no file."""
        return 0


def read(path: Path) -> list[dict[str, Any]]:
    """All complete entries; a last line cut by a kill is left out."""
    entries = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entries.append(json.loads(line))
            except ValueError:
                break
    return entries


def checked(path: Path) -> list[dict[str, Any]]:
    """All complete entries; a UserError where one has no kind or no step."""
    entries = read(path)
    for line, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict) or "kind" not in entry or not _is_step(entry.get("step")):
            raise UserError(f"{path} line {line} is not a journal entry (kind and step)")
    return entries


def best(entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The `valid` entry of the checkpoint `best`: of those measured in a row as the last one was.

    Losses of other texts, as before a resume that changed what is scored, do not compare.
    """
    valid = [entry for entry in entries if entry["kind"] == "valid"]
    others = [at for at, entry in enumerate(valid) if measured(entry) != measured(valid[-1])]
    alike = valid[max(others, default=-1) + 1 :]
    return min(alike, key=lambda entry: entry.get("nats_per_token", math.inf), default=None)


def measured(entry: Mapping[str, Any]) -> list[Any]:
    """What a loss is the loss of, and how it was read."""
    return [entry.get(field) for field in ("bytes", "protocol", "how")]


def rewind(path: Path, size_bytes: int) -> None:
    """Drop what was noted after a checkpoint was written, so that it is written once."""
    content = path.read_bytes() if path.exists() else b""
    with atomic_write(path) as scratch:
        scratch.write_bytes(content[:size_bytes])


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _numbers(fields: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, float]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{where}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{where}{name}", float(value)


def _board(folder: Path, first_step: int) -> Any:
    """A TensorBoard writer that forgets what it had from `first_step` on; None if not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=first_step)
