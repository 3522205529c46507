"""Results of a run, read from its folder."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from sparing.data.tokens import DataConfig
from sparing.data.vocab import ByteVocab
from sparing.errors import UserError
from sparing.models.cost import cost
from sparing.models.sha_rnn.config import SHARNNConfig
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig
from sparing.runs.folder import RunFolder, create
from sparing.runs.results import find_split_result, read_split_results, summarize
from sparing.training import checkpoint
from sparing.training.checkpoint import Checkpoint
from sparing.training.config import TrainConfig


def measured(bits: float | None, **more: Any) -> dict[str, Any]:
    """An entry of results.json."""
    return {
        "bits_per_byte": bits,
        "bytes": 5000,
        "protocol": "bytes",
        "how": "8 carried streams, segment 64",
        "step": 30,
        **more,
    }


def make_run(path: Path, *, vocab: str = "bytes", evaluate_bytes: int | None = None) -> RunFolder:
    """A run of 30 steps, 1000 tokens and 10 seconds each, after 20 seconds of compilation."""
    run = RunConfig(
        recipe="own",
        family="sha_rnn",
        model=SHARNNConfig(vocab_size=256, dim=8, depth=2, boom_dim=16, attention_at=(1,)),
        data=DataConfig(corpus="enwik8", vocab=vocab),  # type: ignore[arg-type]  # one of them
        train=TrainConfig(steps=30, seed=7, evaluate_bytes=evaluate_bytes),
    )
    folder = create(path, run, ByteVocab(), {"device": "abacus"})
    loss = {"bits_per_byte": 2.0, "nats_per_token": 2 * 3 * math.log(2)}
    entries = [
        {"kind": "train", "step": s, "tokens": 1000 * s, "elapsed_s": 20.0 + 10 * s, **loss}
        | {"peak_bytes": 100 - s}
        for s in (10, 20, 30)
    ]
    entries.append({"kind": "valid", **measured(1.5, bytes=500), "elapsed_s": 320.0})
    folder.metrics.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    training = {"tokens": 30000, "elapsed_s": 400.0, "peak_bytes": 60}
    folder.write("results", {"training": training, "best_valid": None})
    return folder


def test_a_summary_has_size_speed_time_and_memory(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    found = summarize(folder)
    counted = cost(build_model(folder.config(), "meta"))
    assert found.parameters == counted.parameters_deployed < counted.parameters_training
    assert (found.recipe, found.seed, found.device) == ("own", 7, "abacus")
    assert (found.bytes_read, found.elapsed_s, found.peak_bytes) == (30000, 320, 90)
    assert found.bytes_per_s == 20000 / 200
    assert found.last_validation is not None
    assert (found.last_validation.bits_per_byte, found.last_validation.step) == (1.5, 30)
    assert "seed" not in found.settings["train"]
    assert found.settings["train"]["steps"] == 30


def test_tokens_of_several_bytes_are_counted_in_bytes(tmp_path: Path) -> None:
    found = summarize(make_run(tmp_path, vocab="words"))
    assert found.bytes_read == pytest.approx(3 * 30000)
    assert found.bytes_per_s == pytest.approx(3 * 100)


def test_the_bytes_of_a_token_are_those_of_the_training_text(tmp_path: Path) -> None:
    folder = make_run(tmp_path, vocab="words")
    rest, nats = folder.metrics.read_text(), 1.5 * 4 * math.log(2)
    first = {"kind": "valid", **measured(1.5, step=5, nats_per_token=nats)}
    folder.metrics.write_text(f"{json.dumps(first)}\n{rest}")
    assert summarize(folder).bytes_read == pytest.approx(3 * 30000)


def test_the_whole_valid_split_comes_before_the_journal(tmp_path: Path) -> None:
    folder = make_run(tmp_path, evaluate_bytes=500)
    valid, test = read_split_results(folder)
    assert valid is not None
    assert (valid.bits_per_byte, valid.bytes, valid.whole, test) == (1.5, 500, False, None)
    folder.note_results({"valid": measured(1.4), "test": measured(1.3)})
    valid, test = read_split_results(folder)
    assert valid is not None
    assert (valid.bits_per_byte, valid.bytes, valid.whole) == (1.4, 5000, True)
    assert test is not None
    assert (test.bits_per_byte, test.step) == (1.3, 30)
    assert test.reading == "bytes, 8 carried streams, segment 64"


def test_results_of_replaced_weights_do_not_count(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    for name in ("best", "last"):
        saved = Checkpoint({"model": {"w": torch.ones(1)}}, {"step": 30})
        checkpoint.save(folder.checkpoints, name, saved, {})
        folder.note_results({"test": measured(1.3, checkpoint=name)})
        assert read_split_results(folder)[1] is not None
        # A journal is ahead of the weights of a run that was killed.
        with open(folder.metrics, "a") as file:
            file.write('{"kind": "train", "step": 45}\n')
        assert read_split_results(folder)[1] is not None
        newer = Checkpoint(saved.tensors, {"step": 40})
        checkpoint.save(folder.checkpoints, name, newer, {})
        assert read_split_results(folder)[1] is None


def test_without_weights_the_step_of_the_best_comes_from_the_journal(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    folder.note_results({"test": measured(1.3, checkpoint="best")})
    assert read_split_results(folder)[1] is not None
    entry = {"kind": "valid", **measured(1.2, step=40, bytes=500), "nats_per_token": 1.0}
    with open(folder.metrics, "a") as file:
        file.write(json.dumps(entry) + "\n")
    valid, test = read_split_results(folder)
    assert test is None
    assert valid is not None
    assert (valid.bits_per_byte, valid.step) == (1.2, 40)


def test_a_later_evaluation_does_not_change_what_the_training_measured(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    folder.note_results({"valid": measured(1.4)})
    found = summarize(folder)
    assert found.valid is not None
    assert found.last_validation is not None
    assert (found.valid.bits_per_byte, found.last_validation.bits_per_byte) == (1.4, 1.5)


def test_a_validation_on_the_whole_split_counts_as_whole(tmp_path: Path) -> None:
    valid, _ = read_split_results(make_run(tmp_path))
    assert valid is not None
    assert valid.whole


def test_only_static_weights_count_and_the_usual_reading_first() -> None:
    adapted = {"test, segment 32, dynamic": measured(0.9), "test, cache 9 theta 1": measured(0.8)}
    assert find_split_result(adapted, "test") is None
    other = {
        **adapted,
        "test, batch 1, last, float32": measured(1.2, how="1 carried stream"),
    }
    found = find_split_result(other, "test")
    assert found is not None
    assert found.reading == "bytes, 1 carried stream, last, float32"
    assert found.protocol == "bytes"
    both = {**other, "test, no-newlines": measured(1.1, protocol="no-newlines")}
    assert find_split_result(both, "test").protocol == "no-newlines"  # type: ignore[union-attr]
    assert find_split_result({**both, "test": measured(1.0)}, "test").bits_per_byte == 1.0  # type: ignore[union-attr]
    assert find_split_result({"test": measured(None)}, "test") is None
    assert find_split_result(both, "valid") is None


def test_a_run_with_only_settings_has_a_size(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    for name in ("metrics.jsonl", "results.json", "provenance.json"):
        (tmp_path / name).unlink()
    found = summarize(folder)
    assert found.parameters > 0
    assert {found.bytes_read, found.elapsed_s, found.bytes_per_s, found.valid, found.device} == {
        None
    }


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("results.json", '{"test": 3}', "test must be a group of named values, not 3"),
        ("results.json", "[]", "is damaged"),
        ("results.json", "{", "cannot be read"),
        ("metrics.jsonl", '{"kind": "train"}\n', "line 1 is damaged: step is missing"),
        ("config.json", '{"family": "sha_rnm"}', "sha_rnn"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, text: str, words: str) -> None:
    folder = make_run(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=words) as raised:
        summarize(folder)
    assert str(tmp_path / name) in str(raised.value)
