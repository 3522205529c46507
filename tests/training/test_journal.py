"""The journal: what a kill may cut off, and what is damage."""

from pathlib import Path

import pytest

from sparing.errors import UserError
from sparing.training import journal

WHOLE = (
    b'{"kind": "train", "step": 1}\n{"kind": "valid", "step": 2}\n{"kind": "train", "step": 3}\n'
)
DAMAGED = [
    WHOLE.replace(b'"step": 2', b'"stap": 2'),
    WHOLE.replace(b'"valid", "step": 2', b'"val\x00d", "step": 2'),
    WHOLE.replace(b"2}\n", b"\n"),
    WHOLE.replace(b'valid", "step": 2', b'val\xffd", "step": 2'),
    WHOLE.replace(b'"step": 2', b'"step": -2'),
    WHOLE.replace(b'{"kind": "valid", "step": 2}', b"[" * 100_000),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


@pytest.mark.parametrize("rest", [b"", b'{"kind": "tra', b"\x00\x00\x00", WHOLE[:28]])
def test_only_a_last_line_that_was_cut_short_is_left_out(rest: bytes, path: Path) -> None:
    assert journal.read(path) == []
    path.write_bytes(WHOLE + rest)
    assert [entry["step"] for entry in journal.read(path)] == [1, 2, 3, *([1] if rest[27:] else [])]
    assert journal.last_step(path) == 3


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_line_is_named_and_does_not_end_the_journal(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"metrics\.jsonl line 2 is damaged"):
        journal.read(path)
    first, _, last = content.splitlines(keepends=True)
    assert journal.sound_part(path, len(content)) == first + last
    journal.rewind(path, len(content))
    assert [entry["step"] for entry in journal.read(path)] == [1, 3]


def test_the_best_entry_is_one_with_a_finite_loss() -> None:
    losses = [None, float("nan"), 2.0, 1.0, None]
    entries = [{"kind": "valid", "step": at, "nats_per_token": x} for at, x in enumerate(losses)]
    assert journal.best(entries) == entries[3]


def test_rewound_it_holds_what_was_there_before_the_checkpoint(path: Path) -> None:
    journal.rewind(path, 0)
    assert path.read_bytes() == b""
    path.write_bytes(WHOLE + b'{"kind": "tra')
    journal.rewind(path, len(WHOLE) - 29)
    assert [entry["step"] for entry in journal.read(path)] == [1, 2]
