"""Damage to one file of a folder, drawn at random: bytes, JSON values, folders and links."""

import json
import os
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

NESTED = "@nested@"
VALUES = [
    None, True, False, 0, 1, -1, -5, 0.5, 2**31, 2**63, 10**30, 10**399, 1e308, float("nan"),
    float("inf"), float("-inf"), "", "x", "9" * 400, "\ud800", "caf\udce9", "\0\x1b[31m",
    "../../../etc/passwd", [], [1], ["x", None], [[]], {}, {"x": 1}, {"": {}}, NESTED,
]  # fmt: skip
"""Replacements for a value in JSON; `NESTED` stands for 100,000 brackets."""


def damage(draw: random.Random, file: Path, others: list[Path]) -> str:
    """Damage `file`; return in words what was done."""
    kinds: list[Callable[[random.Random, Path], str]] = [_truncate, _flip, _empty, _scribble]
    if file.suffix in (".json", ".jsonl"):
        kinds += 8 * [_garble]
    if others:
        kinds += [lambda draw, file: _swap(file, draw.choice(others))]
    kinds += [_remove, _replace_by_folder, _replace_by_link]
    return draw.choice(kinds)(draw, file)


def _truncate(draw: random.Random, file: Path) -> str:
    kept = draw.randrange(max(1, file.stat().st_size))
    os.truncate(file, kept)
    return f"cut to {kept} bytes"


def _flip(draw: random.Random, file: Path) -> str:
    content = bytearray(file.read_bytes())
    bits = [draw.randrange(8 * len(content)) for _ in range(draw.choice([1, 1, 8]))]
    for bit in bits if content else ():
        content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)
    return f"flipped bits {bits}"


def _empty(draw: random.Random, file: Path) -> str:
    file.write_bytes(b"")
    return "emptied"


def _scribble(draw: random.Random, file: Path) -> str:
    junk = draw.choice([b"\xff\xfe", b"\0" * 50, b"null", b"[]", b"{}", b'"x"', b"[" * 100_000])
    file.write_bytes(junk if draw.random() < 0.5 else file.read_bytes() + junk)
    return f"scribbled {junk[:10]!r}"


def _remove(draw: random.Random, file: Path) -> str:
    file.unlink()
    return "removed"


def _replace_by_folder(draw: random.Random, file: Path) -> str:
    file.unlink()
    file.mkdir()
    return "replaced by a folder"


def _replace_by_link(draw: random.Random, file: Path) -> str:
    target = draw.choice([file, file.parent, Path("nowhere"), Path("/dev/null")])
    file.unlink()
    file.symlink_to(target)
    return f"replaced by a link to {target.name}"


def _swap(file: Path, other: Path) -> str:
    content = file.read_bytes()
    shutil.copyfile(other, file)
    other.write_bytes(content)
    return f"swapped with {other.name}"


def _garble(draw: random.Random, file: Path) -> str:
    """Change one value in JSON; in a checkpoint, with checksums that agree."""
    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    if not lines:
        return "left as it was"
    at = draw.randrange(len(lines))
    data = json.loads(lines[at])
    done = [_change(draw, data) for _ in range(draw.choice([1, 1, 2]))]
    text = json.dumps(data).replace(json.dumps(NESTED), "[" * 100_000 + "]" * 100_000)
    file.write_text("\n".join([*lines[:at], text, *lines[at + 1 :]]) + "\n")
    _sign(file)
    return f"line {at + 1}: {', '.join(done)}"


def _change(draw: random.Random, data: Any) -> str:
    """Delete, replace or add a value at a random place; places near the top are likelier."""
    path = ""
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        if not keys:
            return "nothing"
        key = draw.choice(keys)
        path += f"/{key}"
        if not (isinstance(data[key], dict | list) and data[key] and draw.random() < 0.7):
            break
        data = data[key]
    value = draw.choice(VALUES)
    action = draw.choice(["delete", "add", *4 * ["replace"]])
    if action == "delete":
        del data[key]
        return f"{path} deleted"
    if action == "add" and isinstance(data, dict):
        key = "written_by_a_newer_version"
    data[key] = value
    return f"{path} {action} {str(value)[:20]!r}"


def _sign(file: Path) -> None:
    """Make the manifest beside a file of a checkpoint agree with it."""
    path = file.parent / "manifest.json"
    if not path.exists():
        return
    try:
        body = json.loads(path.read_text())
        if file.name in body["files"]:
            content = file.read_bytes()
            body["files"][file.name] = {"bytes": len(content), "crc32": zlib.crc32(content)}
        body.pop("crc32", None)
        body["crc32"] = zlib.crc32(json.dumps(body, sort_keys=True).encode())
        path.write_text(json.dumps(body, indent=2) + "\n")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # The manifest itself was garbled beyond that.
        return
