"""The files of an exported folder."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tests.export.hf.conftest import LETTERS, SEGMENT
from tests.models.tiny import tiny

from sparing.export.hf.folder import write_folder


def test_weights_are_stored_once_in_float32_and_without_those_of_training(tmp_path: Path) -> None:
    model = tiny("stack of SHA-RNN")
    model.collapse()
    write_folder(tmp_path, model, LETTERS, segment=SEGMENT)
    weights = load_file(tmp_path / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert sum(weight.numel() for weight in weights.values()) == sum(
        weight.numel() for weight in model.parameters()
    )
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"]


def test_whoever_may_read_the_settings_may_read_the_weights(tmp_path: Path) -> None:
    write_folder(tmp_path, tiny("mlstm"), LETTERS, segment=SEGMENT)
    (tmp_path / "new").touch()
    modes = {path.name: path.stat().st_mode for path in tmp_path.iterdir()}
    assert set(modes.values()) == {modes["new"]}


def test_multi_token_prediction_is_left_out(tmp_path: Path) -> None:
    model = tiny("stack with mtp")
    model.collapse()
    write_folder(tmp_path, model, LETTERS, segment=SEGMENT)
    assert not [name for name in load_file(tmp_path / "model.safetensors") if "mtp" in name]
    assert json.loads((tmp_path / "config.json").read_text())["settings"]["mtp"]["tokens"] == 0


def test_the_settings_say_how_the_model_reads(tmp_path: Path) -> None:
    write_folder(tmp_path, tiny("mlstm"), LETTERS, segment=SEGMENT)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert (stored["segment"], stored["vocab_size"]) == (SEGMENT, LETTERS.size)
    assert not stored["tie_word_embeddings"]


def test_a_full_disk_is_an_os_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("sparing.export.hf.folder.save_file", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_folder(tmp_path, tiny("mlstm"), LETTERS, segment=SEGMENT)
    assert (caught.value.errno, caught.value.filename) == (28, str(tmp_path / "model.safetensors"))
