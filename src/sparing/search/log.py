"""The story of a search as text: what the seed's training.log tells, for people."""

from collections.abc import Iterator, Mapping
from typing import Any

from sparing import files, units
from sparing.config import described
from sparing.models.branches import BRANCHES
from sparing.plot.pi import Frame, frames
from sparing.plot.series import Diary
from sparing.runs.folder import RunFolder
from sparing.train import journal

NAME = "search.log"


def write_log(folder: RunFolder) -> None:
    """Write `search.log` from the run's config and journal."""
    text = "\n".join(lines(folder)) + "\n"
    with files.writing(folder.path / NAME) as scratch:
        scratch.write_text(text, encoding="utf-8")


def lines(folder: RunFolder) -> Iterator[str]:
    """Settings, losses, temperatures and preferences in the order they came about."""
    for path, value, _ in described(folder.config()):
        yield f"{path} = {value}"
    entries = journal.read(folder.metrics)
    matrices = {frame.step: frame for frame in frames(Diary("", "", entries))}
    for entry in entries:
        if entry["kind"] == "train":
            yield _train(entry)
            if entry["step"] in matrices:
                yield from _matrix(matrices[entry["step"]])
        elif entry["kind"] == "valid":
            yield _valid(entry)
        else:
            yield f"step {entry['step']}: {entry.get('what')}"


def _train(entry: Mapping[str, Any]) -> str:
    nats = entry.get("nats_per_token")
    words = [f"step {entry['step']}", f"epoch {entry['epoch']:.2f}"]
    if nats is not None:
        words += [f"loss {nats:.4f}", f"perplexity {units.perplexity(nats, 1):.2f}"]
    names = {"tau": ".3f", "entropy": ".3f", "cost": ".3f", "price": ".4f", "lr": ".2e"}
    words += [f"{name} {entry[name]:{form}}" for name, form in names.items() if name in entry]
    return "  ".join(words)


def _valid(entry: Mapping[str, Any]) -> str:
    return (
        f"step {entry['step']}  valid  loss {entry['nats_per_token']:.4f}  perplexity "
        f"{entry['perplexity_per_token']:.2f} per token  {entry['bits_per_byte']:.4f} bits per byte"
    )


def _matrix(frame: Frame) -> Iterator[str]:
    for letter, row in frame.rows.items():
        name = BRANCHES[letter][0] if letter in BRANCHES else letter
        yield f"    {name:<26}" + " ".join(f"{share:.2f}" for share in row)
