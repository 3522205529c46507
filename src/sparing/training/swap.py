"""The folders of checkpoints: replaced by renames, and found again after a kill at any moment.

`incoming-NAME` is complete once it has a manifest, `retired-last` is about to become `previous`,
and `trash` is being deleted. `last/best` and `previous/best` are the `best` of their time.
"""

import os
import shutil
from pathlib import Path

from sparing.files import fsync

MANIFEST = "manifest.json"
NAMES = ("last", "previous", "best")


def locate(folder: Path, name: str) -> Path | None:
    """The folder of a checkpoint: its name, or where a kill between two renames left it."""
    incoming, retired = folder / f"incoming-{name}", folder / "retired-last"
    complete = [incoming] if (incoming / MANIFEST).is_file() else []
    places = [folder / name, *complete, *([retired] if name == "last" else [])]
    if name == "previous":
        # A `last` that has been replaced is the previous one, whatever it is still called.
        places = [*([retired] if locate(folder, "last") != retired else []), folder / name]
    return next((place for place in places if place.is_dir()), None)


def begin(folder: Path, name: str) -> Path:
    """Make the folder in which a checkpoint is written before it is swapped in."""
    settle(folder)
    incoming = folder / f"incoming-{name}"
    incoming.mkdir(parents=True)
    return incoming


def keep_best(folder: Path) -> None:
    """Give the incoming `last` the `best` of its time, to which a resume from it goes back."""
    if (best := locate(folder, "best")) is not None:
        link_files(best, folder / "incoming-last" / "best")


def go_back_to_best(folder: Path, name: str) -> None:
    """Make `best` what it was when checkpoint `name` was written."""
    best, then = folder / "best" / MANIFEST, folder / name / "best" / MANIFEST
    settle(folder)
    if not then.is_file() or (best.is_file() and best.read_bytes() == then.read_bytes()):
        return
    try:
        link_files(then.parent, folder / "incoming-best")
    except OSError:
        settle(folder)
        raise
    swap_in(folder, "best", rotate=False)


def link_files(source: Path, target: Path) -> None:
    """Make a folder with the files of `source`, the manifest last, which makes it complete."""
    target.mkdir()
    for file in sorted(source.iterdir(), key=lambda each: each.name == MANIFEST):
        link_or_copy(file, target / file.name)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file, which may have gigabytes and never changes, a second name."""
    try:
        os.link(source, target)
    except OSError:
        # Not every file system supports hard links.
        shutil.copy2(source, target)
        fsync(target)


def swap_in(folder: Path, name: str, *, rotate: bool) -> None:
    """Replace checkpoint `name` by the incoming one; the old is `previous` then, with `rotate`."""
    current = folder / name
    if current.is_dir():
        current.rename(folder / ("retired-last" if rotate else "trash"))
    (folder / f"incoming-{name}").rename(current)
    fsync(folder)
    settle(folder)


def remove(folder: Path, name: str) -> None:
    """Remove a checkpoint; a kill leaves all of it or nothing."""
    settle(folder)
    if (folder / name).is_dir():
        (folder / name).rename(folder / "trash")
    settle(folder)


def settle(folder: Path) -> None:
    """Finish what a kill may have interrupted, and remove what no longer counts.

    Only the process that writes checkpoints may do so; readers use `locate`.
    """
    for name in ("last", "best"):
        found = locate(folder, name)
        if found is not None and found != folder / name:
            found.rename(folder / name)
    previous, retired, trash = folder / "previous", folder / "retired-last", folder / "trash"
    if retired.is_dir():
        shutil.rmtree(trash, ignore_errors=True)
        if previous.is_dir():
            previous.rename(trash)
        retired.rename(previous)
    for leftover in ("trash", "incoming-last", "incoming-best"):
        shutil.rmtree(folder / leftover, ignore_errors=True)
