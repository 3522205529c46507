"""The log of a run: metrics.jsonl, append only, and optionally TensorBoard."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Required, TypedDict, cast

from sparing.documents import Count, Figure, MisfitError, conform, damage_named
from sparing.files import atomic_write, fsync, parse_json
from sparing.inputs import read_input

TIMINGS = ("elapsed_s", "tokens_per_s", "peak_bytes", "evaluate_s", "steps_share")
"""Fields that differ between runs even if all other numbers are the same."""


class Figures(TypedDict, total=False):
    """The fields of journal entries and results that are read again; a model may add others."""

    tokens: Count
    bytes: Count
    protocol: str
    how: str
    whole: bool
    epoch: Figure
    nats_per_token: Figure | None
    bits_per_byte: Figure | None
    perplexity_per_token: Figure | None
    elapsed_s: Figure | None
    peak_bytes: Figure | None
    lr: Figure | None
    tau: Figure | None
    entropy: Figure | None
    cost: Figure | None
    price: Figure | None


class Entry(Figures, total=False):
    """A line of the journal."""

    kind: Required[str]
    step: Required[Count]


class Journal:
    """Appends one JSON line per entry. Lines written after a checkpoint are dropped on resume."""

    def __init__(self, path: Path, tensorboard: Path | None = None, after_step: int = 0) -> None:
        self.path = path
        self._board = _open_tensorboard(tensorboard, after_step + 1) if tensorboard else None

    def note(self, kind: str, step: int, **fields: Any) -> None:
        """Write one entry: `train`, `valid`, or `event`."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "step": step, **fields}) + "\n")
        if self._board is not None:
            for name, value in _numbers(fields):
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def fsync(self) -> None:
        """Flush to disk, so that a checkpoint never outlives the entries before it."""
        if self.path.exists():
            fsync(self.path)

    def size_bytes(self) -> int:
        """The length of the file, which a checkpoint stores."""
        return self.path.stat().st_size if self.path.exists() else 0

    def close(self) -> None:
        """Close the TensorBoard writer."""
        if self._board is not None:
            self._board.close()


class NullJournal(Journal):
    """Writes nothing; of several processes only rank 0 keeps a journal."""

    def __init__(self) -> None:
        super().__init__(Path())

    def note(self, kind: str, step: int, **fields: Any) -> None:
        """Do nothing."""

    def fsync(self) -> None:
        """Do nothing."""

    def size_bytes(self) -> int:
        """Return 0, as there is no file."""
        return 0


def read(path: Path) -> list[dict[str, Any]]:
    """All entries; a last line that was cut short by a kill is left out.

    Raises a UserError for any other line that is not an entry with kind and step.
    """
    *lines, rest = read_input(path).split(b"\n") if path.exists() else [b""]
    entries = []
    for number, line in enumerate([*lines, rest] if _parse(rest) else lines, start=1):
        with damage_named(f"{path} line {number}"):
            entries.append(_entry(line))
    return entries


def _parse(line: bytes) -> dict[str, Any] | None:
    """The entry in a line; None if it is not one."""
    try:
        return _entry(line)
    except MisfitError:
        return None


def _entry(line: bytes) -> dict[str, Any]:
    try:
        data = parse_json(line.decode("utf-8"))
    except ValueError as problem:
        raise MisfitError(str(problem)) from None
    return cast("dict[str, Any]", conform(data, Entry))


def best(entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The `valid` entry of the checkpoint `best`.

    Only the latest entries that were measured in the same way are compared: a resumed run may
    score another text than before.
    """
    valid = [entry for entry in entries if entry["kind"] == "valid"]
    others = [at for at, entry in enumerate(valid) if measurement(entry) != measurement(valid[-1])]
    comparable = valid[max(others, default=-1) + 1 :]
    return min(comparable, key=_loss, default=None)


def _loss(entry: Mapping[str, Any]) -> float:
    found = entry.get("nats_per_token")
    return math.inf if found is None or math.isnan(found) else float(found)


def measurement(entry: Mapping[str, Any]) -> list[Any]:
    """What was scored and how; only losses with equal measurements can be compared."""
    return [entry.get(field) for field in ("bytes", "protocol", "how")]


def sound_part(path: Path, size_bytes: int) -> bytes:
    """The first `size_bytes` of a journal, those before a checkpoint, without damaged lines."""
    content = read_input(path)[:size_bytes] if path.exists() else b""
    *lines, _ = content.split(b"\n")
    return b"".join(line + b"\n" for line in lines if _parse(line) is not None)


def last_step(path: Path) -> int:
    """The step of the last whole entry; 0 without one."""
    lines = read_input(path).splitlines() if path.exists() else []
    return max((entry["step"] for line in lines if (entry := _parse(line))), default=0)


def rewind(path: Path, size_bytes: int) -> None:
    """Drop the entries written after a checkpoint; they will be written again."""
    content = sound_part(path, size_bytes)
    with atomic_write(path) as scratch:
        scratch.write_bytes(content)


def _numbers(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", float(value)


def _open_tensorboard(folder: Path, first_step: int) -> Any:
    """A TensorBoard writer that drops old entries from `first_step` on; None if not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=first_step)
