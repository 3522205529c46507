"""Checkpoints survive kills and refuse damage."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError
from tests.training.numbered import IDENTITY, number, step_of, weights

from sparing.errors import UserError
from sparing.training import checkpoint


def test_a_saved_checkpoint_is_loaded_and_the_previous_one_kept(tmp_path: Path) -> None:
    for value in (1, 2, 3):
        checkpoint.save(tmp_path, "last", number(value), IDENTITY)
    checkpoint.save(tmp_path, "best", number(2), IDENTITY)
    checkpoint.save(tmp_path, "best", number(9), IDENTITY)
    found = {name: step_of(tmp_path, name) for name in ("last", "previous", "best")}
    assert found == {"last": 3, "previous": 2, "best": 9}
    assert {path.name for path in tmp_path.iterdir()} == {"last", "previous", "best"}


def test_all_files_of_a_checkpoint_have_the_same_permissions(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, "last", number(1), IDENTITY)
    (tmp_path / "plain").touch()
    modes = {path.stat().st_mode for path in (tmp_path / "last").iterdir()}
    assert modes == {(tmp_path / "plain").stat().st_mode}


def test_an_update_keeps_the_files_it_does_not_replace(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, "last", number(1), IDENTITY)
    checkpoint.save(tmp_path, "last", number(2), IDENTITY)
    state = (tmp_path / "last" / "state.safetensors").stat()
    checkpoint.update(tmp_path, "last", weights(3), IDENTITY)
    assert step_of(tmp_path) == 3
    assert step_of(tmp_path, "previous") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"last", "previous"}
    assert checkpoint.load(tmp_path, "last", IDENTITY).tensors["state"]["s"].tolist() == [1, 1]
    assert (tmp_path / "last" / "state.safetensors").stat().st_ino == state.st_ino


def test_files_are_copied_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    checkpoint.save(tmp_path, "last", number(1), IDENTITY)
    checkpoint.update(tmp_path, "last", weights(2), IDENTITY)
    assert step_of(tmp_path) == 2
    assert checkpoint.load(tmp_path, "last", IDENTITY).tensors["state"]["s"].tolist() == [1, 1]


def test_a_flipped_bit_is_found_and_the_previous_one_offered(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, "last", number(1), IDENTITY)
    checkpoint.save(tmp_path, "last", number(2), IDENTITY)
    for file in sorted((tmp_path / "last").iterdir()):
        content = file.read_bytes()
        for at in (0, len(content) // 2, len(content) - 2):
            file.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
            with pytest.raises(UserError, match=file.name) as refusal:
                checkpoint.load(tmp_path, "last", IDENTITY)
            assert "\n" not in str(refusal.value)
        file.write_bytes(content[:-2])
        with pytest.raises(UserError, match=file.name):
            checkpoint.load(tmp_path, "last", IDENTITY)
        file.write_bytes(content)
    assert step_of(tmp_path, "last") == 2
    (tmp_path / "last" / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"safetensors is missing; available checkpoints: previous"):
        checkpoint.load(tmp_path, "last", IDENTITY)
    assert step_of(tmp_path, "previous") == 1


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, "last", number(1), IDENTITY)
    with pytest.raises(UserError, match="dim is 3 there and 4 here"):
        checkpoint.load(tmp_path, "last", {**IDENTITY, "dim": 4})
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoint.load(tmp_path, "best", IDENTITY)


def complaint(folder: Path) -> str:
    try:
        assert step_of(folder, "last") == 2
    except UserError as refusal:
        return str(refusal)
    return ""


def test_every_flipped_bit_of_a_manifest_is_refused_in_one_line(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, "last", number(1), IDENTITY)
    checkpoint.save(tmp_path, "last", number(2), IDENTITY)
    file = tmp_path / "last" / "manifest.json"
    content, harmless = file.read_bytes(), 0
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        said = complaint(tmp_path)
        harmless += not said
        assert not said or "manifest.json" in said
        assert not said or said.endswith("available checkpoints: previous")
        assert "\n" not in said
    # The newline that ends the file may become other white space.
    assert harmless <= 8


@pytest.mark.parametrize("content", ["[]", "{}", "null", '{"format": 1}', '{"crc32": [1]}'])
def test_another_manifest_is_refused(content: str, tmp_path: Path) -> None:
    checkpoint.save(tmp_path, "last", number(1), IDENTITY)
    (tmp_path / "last" / "manifest.json").write_text(content)
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        checkpoint.load(tmp_path, "last", IDENTITY)


def test_without_a_manifest_the_other_checkpoints_are_offered(tmp_path: Path) -> None:
    for name in ("last", "last", "best"):
        checkpoint.save(tmp_path, name, number(1), IDENTITY)
    (tmp_path / "last" / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"is missing; available checkpoints: previous, best"):
        checkpoint.load(tmp_path, "last", IDENTITY)
    assert checkpoint.list_names(tmp_path) == ["last", "previous", "best"]


def test_a_damaged_checkpoint_is_not_offered_in_place_of_another(tmp_path: Path) -> None:
    for name in ("last", "last", "best"):
        checkpoint.save(tmp_path, name, number(1), IDENTITY)
    for name in ("last", "previous"):
        file = tmp_path / name / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
    for name in ("last", "previous"):
        with pytest.raises(UserError, match=r"is damaged; available checkpoints: best$"):
            checkpoint.load(tmp_path, name, IDENTITY)
    (tmp_path / "best" / "cursor.json").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors is damaged$"):
        checkpoint.load(tmp_path, "last", IDENTITY)


def test_tensors_that_the_manifest_does_not_name_are_not_read(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, "last", number(1), IDENTITY)
    (tmp_path / "last" / "stray.safetensors").write_bytes(b"stray")
    assert checkpoint.load(tmp_path, "last", IDENTITY).tensors.keys() == {"model", "state"}


@pytest.mark.parametrize(
    "words",
    [
        "Error while serializing: I/O error: No space left on device (os error 28)",
        'IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })',
    ],
)
def test_a_full_disk_is_an_os_error_and_leaves_the_checkpoint(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path, "last", number(1), IDENTITY)

    def full(tensors: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise SafetensorError(words)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left") as failure:
        checkpoint.save(tmp_path, "last", number(2), IDENTITY)
    assert failure.value.errno == errno.ENOSPC
    assert str(failure.value.filename).endswith("model.safetensors")
    assert os.listdir(tmp_path) == ["last"]
    assert step_of(tmp_path) == 1


def test_an_error_that_is_not_the_systems_is_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(tensors: object, path: Path) -> None:
        raise SafetensorError("Error while serializing: unknown dtype")

    monkeypatch.setattr(checkpoint, "save_file", faulty)
    with pytest.raises(SafetensorError, match="unknown dtype"):
        checkpoint.save(tmp_path, "last", number(1), IDENTITY)


def test_a_checkpoint_renamed_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path, "best", number(1), IDENTITY)
    (tmp_path / "best").rename(tmp_path / "incoming-best")
    manifest = checkpoint._manifest

    def renaming(path: Path) -> Any:
        if path.parent.name == "incoming-best":
            path.parent.rename(tmp_path / "best")
        return manifest(path)

    monkeypatch.setattr(checkpoint, "_manifest", renaming)
    assert step_of(tmp_path, "best") == 1


def test_a_checkpoint_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path, "best", number(1), IDENTITY)
    verify, swaps = checkpoint._verify, []

    def swapping(path: Path, files: Any) -> None:
        if not swaps:
            swaps.append(path)
            checkpoint.save(tmp_path, "best", number(2), IDENTITY)
        verify(path, files)
        # The files that were verified are gone, or another checkpoint's.
        if len(swaps) == 1:
            swaps.append(path)
            checkpoint.save(tmp_path, "best", number(3), IDENTITY)
            raise UserError(f"{path} is damaged")

    monkeypatch.setattr(checkpoint, "_verify", swapping)
    assert step_of(tmp_path, "best") == 3
    assert len(swaps) == 2


def test_a_checkpoint_is_never_mixed_from_two_that_replace_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path, "best", number(1), IDENTITY)
    read, replaced = checkpoint.read_document, []

    def replacing(path: Path, kind: Any) -> Any:
        cursor = read(path, kind)
        if not replaced:
            replaced.append(path)
            checkpoint.save(tmp_path, "best", number(2), IDENTITY)
        return cursor

    monkeypatch.setattr(checkpoint, "read_document", replacing)
    assert step_of(tmp_path, "best") == 2


def test_a_checkpoint_that_is_replaced_at_every_attempt_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path, "best", number(1), IDENTITY)
    read, steps = checkpoint.read_document, iter(range(2, 99))

    def replacing(path: Path, kind: Any) -> Any:
        cursor = read(path, kind)
        checkpoint.save(tmp_path, "best", number(next(steps)), IDENTITY)
        return cursor

    monkeypatch.setattr(checkpoint, "read_document", replacing)
    with pytest.raises(UserError, match=r"best is being replaced .*; try again"):
        checkpoint.load(tmp_path, "best", IDENTITY)
    assert next(steps) == 2 + checkpoint.MAX_READS
