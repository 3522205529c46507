"""`sparing evaluate`: no option is ignored, and no result overwrites another."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import Said, Sparing, settings

from sparing import evaluate
from sparing.data.tokens import Split
from sparing.device import Hardware
from sparing.evaluation.dynamic import evaluate_dynamic
from sparing.evaluation.loss import evaluate_streams
from sparing.models.api import LanguageModel
from sparing.runs import evaluate as runs_evaluate
from sparing.runs.folder import RunFolder
from sparing.training import checkpoint
from sparing.training.checkpoint import Checkpoint


def results(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "results.json").read_text())
    return found


def refused(said: Said, *words: str) -> None:
    assert said.status == 2, said.out
    assert len(said.err.strip().splitlines()) == 1, said.err
    for word in words:
        assert word in said.err


def test_options_that_would_be_ignored_are_refused(run: Path, sparing: Sparing) -> None:
    before = results(run)
    for words in (
        ("--stride", 4),
        ("--cache-theta", 0.5),
        ("--cache-lambda", 0.1279),
        ("--dynamic-rule", "rms"),
        ("--dynamic-lr", 0),
        ("--dynamic-decay", 0),
        ("--context", 8, "--memory", 0),
        ("--context", 8, "--window", 8),
        ("--context", 8, "--cache", 8),
        ("--context", 8, "--dynamic"),
        ("--window", 8, "--segment", 8),
        ("--window", 8, "--memory", 8),
        ("--window", 8, "--cache", 8),
        ("--dynamic", "--window", 8),
        ("--dynamic", "--memory", 8),
        ("--dynamic", "--cache", 8),
    ):
        refused(sparing("evaluate", run, *words), *[w for w in words if str(w).startswith("--")])
    assert results(run) == before


def test_figures_that_cannot_be_kept_are_shown_all_the_same(run: Path, sparing: Sparing) -> None:
    (run / "results.json").write_text("{")
    said = sparing("evaluate", run, "--json")
    refused(said, "results.json")
    assert said.json()["bits_per_byte"] > 0
    assert (run / "results.json").read_text() == "{"


@pytest.mark.parametrize("setting", ["data.corpus=other", "train.batch=2", "recipe=x"])
def test_settings_without_effect_are_refused(setting: str, run: Path, sparing: Sparing) -> None:
    refused(sparing("evaluate", run, "--set", setting), setting, "has no effect here")


def test_a_setting_cannot_be_given_in_two_ways(run: Path, sparing: Sparing) -> None:
    said = sparing("evaluate", run, "--segment", 8, "--set", "evaluate.segment=4")
    refused(said, "--segment", "evaluate.segment")
    refused(sparing("evaluate", run, "--memory", 8, "--set", "model.memory=4"), "model.memory")
    refused(sparing("evaluate", run, "--set", "modle.memory=4"), "did you mean")


def test_zero_is_a_number_and_not_the_default(run: Path, sparing: Sparing) -> None:
    for words in (("--batch", 0), ("--segment", 0), ("--context", 8, "--batch", 0)):
        refused(sparing("evaluate", run, *words), words[-2].strip("-"), "at least 1")
    refused(sparing("evaluate", run, "--dynamic", "--segment", 0), "segment", "at least 1")
    refused(sparing("evaluate", run, "--cache", 0), "at least 1 position")
    refused(sparing("evaluate", run, "--window", 0), "window", "at least 1 token")


def test_every_way_of_evaluating_has_its_own_entry(run: Path, sparing: Sparing) -> None:
    plain = sparing("evaluate", run, "--batch", 4, "--segment", 32, "--json").json()
    other = sparing("evaluate", run, "--batch", 2, "--json").json()
    both = sparing("evaluate", run, "--batch", 2, "--segment", 8, "--json").json()
    cache = sparing("evaluate", run, "--segment", 8, "--cache", 9, "--json").json()
    found = results(run)
    assert found["valid"]["loss_nats"] == plain["loss_nats"] != other["loss_nats"]
    assert found["valid, batch 2"]["loss_nats"] == other["loss_nats"]
    assert found["valid, batch 2, segment 8"]["how"] == both["how"]
    name = "valid, segment 8, cache 9 theta 0.662 lambda 0.1279"
    assert found[name]["loss_nats"] == cache["loss_nats"]


def test_the_batch_of_windows_is_not_part_of_the_entry(run: Path, sparing: Sparing) -> None:
    assert sparing("evaluate", run, "--window", 8, "--batch", 3).status == 0
    assert "valid, window 8 stride 4" in results(run)


def test_the_segment_of_a_dynamic_evaluation_is_in_its_name(run: Path, sparing: Sparing) -> None:
    words = ("evaluate", run, "--bytes", 150, "--dynamic", "--dynamic-rule", "sgd", "--json")
    report = sparing(*words).json()
    assert report["dynamic"]["how"].startswith("dynamic: sgd")
    assert set(results(run)) == {"training", "best_valid"}
    assert sparing(*words[:2], *words[4:], "--segment", 32).status == 0
    # 32 is the run's own segment, but not what a dynamic evaluation has by default.
    assert {"valid", "valid, segment 32, dynamic rule sgd"} <= set(results(run))


def test_every_way_of_adapting_has_its_own_entry(run: Path, sparing: Sparing) -> None:
    ways: dict[str, tuple[object, ...]] = {
        "dynamic": ("--dynamic-lr", 5e-5, "--dynamic-decay", 2e-3),
        "dynamic rule sgd": ("--dynamic-rule", "sgd", "--dynamic-lr", 0.01),
        "dynamic rule sgd lr 0.03 decay 0": (
            *("--dynamic-rule", "sgd", "--dynamic-lr", 0.03),
            *("--dynamic-decay", 0),
        ),
        "dynamic lr 1e-06": ("--dynamic-lr", 1e-6),
    }
    for words in ways.values():
        said = sparing("evaluate", run, "--dynamic", *words)
        assert said.status == 0, said.err
    found = results(run)
    adapted = {label: entry for label, entry in found.items() if "dynamic" in label}
    assert set(adapted) == {f"valid, {way}" for way in ways}
    assert len({entry["loss_nats"] for entry in adapted.values()}) == len(ways)


@pytest.mark.parametrize("trained_in", ["float16", "float32"])
def test_a_dynamic_figure_names_the_precision_that_it_was_computed_in(
    run: Path, sparing: Sparing, monkeypatch: pytest.MonkeyPatch, trained_in: str
) -> None:
    # Not every CPU computes in half precision.
    monkeypatch.setattr(Hardware, "autocast", lambda hardware: nullcontext())
    half = Hardware(torch.device("cpu"), "float16")
    monkeypatch.setattr("sparing.cli.evaluate._hardware", lambda *given: half)
    provenance = json.loads((run / "provenance.json").read_text())
    (run / "provenance.json").write_text(json.dumps({**provenance, "precision": trained_in}))
    said = sparing("evaluate", run, "--dynamic", "--dynamic-rule", "sgd")
    assert said.status == 0, said.err
    found = results(run)
    static, moved = "valid", "valid, dynamic rule sgd"
    if trained_in == "float16":
        moved += ", float32"
    else:
        static += ", float16"
    assert {label: found[label]["precision"] for label in found if label.startswith("valid")} == {
        static: "float16",
        moved: "float32",
    }


def test_a_memory_sweep_uses_segments_short_enough_to_show_a_difference(
    run: Path, sparing: Sparing
) -> None:
    rows = sparing("evaluate", run, "--memory", "0,1,8,16,32,128", "--json").json()["memory"]
    assert [row["segment"] for row in rows] == [32, 1, 4, 8, 16, 32]
    assert len({row["bits_per_byte"] for row in rows}) == len(rows)
    said = sparing("evaluate", run, "--memory", "8", "--bytes", 50)
    assert said.out.split()[:4] == ["memory", "8", "segment", "4"]


def test_a_context_curve_uses_the_given_segment(run: Path, sparing: Sparing) -> None:
    words = ("evaluate", run, "--context", 48, "--set", "model.memory=4", "--json")
    whole = sparing(*words, "--segment", 48).json()
    short = sparing(*words, "--segment", 1, "--batch", 3).json()
    assert whole.keys() == short.keys()
    assert whole["1-1"]["nats_per_token"] == pytest.approx(short["1-1"]["nats_per_token"])
    last = list(whole)[-1]
    assert whole[last]["nats_per_token"] != pytest.approx(short[last]["nats_per_token"], rel=1e-6)


def test_a_context_curve_is_a_table_with_one_line_of_heads(run: Path, sparing: Sparing) -> None:
    words = ("evaluate", run, "--context", 8)
    curve = sparing(*words, "--json").json()
    heads, first, *others = sparing(*words).out.splitlines()
    assert heads.split() == ["context", "bits/byte", "nats/token", "tokens"]
    point = curve["1-1"]
    numbers = [f"{point['bits_per_byte']:.4f}", f"{point['nats_per_token']:.4f}"]
    assert first.split() == ["1", *numbers, f"{point['count']:,}"]
    assert [line.split()[0] for line in others] == ["2", "3", "4", "5-6", "7-8"]


def test_score_takes_a_file_or_a_text(run: Path, sparing: Sparing, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("one\ntwo\n")
    refused(sparing("score", run, file, "--text", "three"), "--text", "FILE")
    refused(sparing("score", run, "--whole", "--text", "three"), "--text", "--whole")
    assert len(sparing("score", run, file, "--json").json()["scores"]) == 2
    assert len(sparing("score", run, "--text", "three", "--json").json()["scores"]) == 1


def test_every_checkpoint_and_precision_has_its_own_entry(run: Path, sparing: Sparing) -> None:
    for words in (
        (),
        ("--checkpoint", "best"),
        ("--checkpoint", "last"),
        ("--precision", "float32"),
        ("--precision", "bfloat16"),
        ("--checkpoint", "last", "--precision", "bfloat16", "--window", 8),
    ):
        said = sparing("evaluate", run, "--device", "cpu", *words)
        assert said.status == 0, said.err
    found = results(run)
    assert set(found) - {"training", "best_valid"} == {
        "valid",
        "valid, last",
        "valid, bfloat16",
        "valid, window 8 stride 4, last, bfloat16",
    }
    assert (found["valid"]["checkpoint"], found["valid"]["precision"]) == ("best", "float32")
    assert found["valid, last"]["checkpoint"] == "last"
    (run / "provenance.json").unlink()
    assert sparing("evaluate", run, "--split", "test", "--device", "cpu").status == 0
    assert "test" in results(run)
    assert found["valid, bfloat16"]["precision"] == "bfloat16"


@pytest.mark.parametrize("option", [["--dynamic"], ["--cache", "20"], ["--memory", "0,16"]])
def test_options_for_one_process_are_refused_under_torchrun(
    option: list[str], sparing: Sparing, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = sparing("evaluate", run, *option)
    assert said.status == 2
    assert said.err == f"sparing: {option[0]} runs in one process only; start it without torchrun\n"


def test_a_checkpoint_replaced_during_evaluation_does_not_change_the_entry(
    run: Path, sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(run)
    before, identity = folder.step("best"), folder.config().identity()

    def replaced_meanwhile(*given: Any, **more: Any) -> Any:
        saved = checkpoint.load(folder.checkpoints, "best", identity)
        newer = Checkpoint(saved.tensors, {**saved.cursor, "step": 999})
        checkpoint.save(folder.checkpoints, "best", newer, identity)
        return evaluate_streams(*given, **more)

    monkeypatch.setattr("sparing.runs.evaluate.evaluate_streams", replaced_meanwhile)
    assert sparing("evaluate", run, "--split", "test").status == 0
    assert results(run)["test"]["step"] == before
    assert folder.step("best") == 999


def test_a_best_checkpoint_saved_during_evaluation_does_not_change_the_entry(
    run: Path, sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(run)
    (folder.checkpoints / "best").rename(run / "aside")

    def best_meanwhile(*given: Any, **more: Any) -> Any:
        (run / "aside").rename(folder.checkpoints / "best")
        return evaluate_streams(*given, **more)

    monkeypatch.setattr("sparing.runs.evaluate.evaluate_streams", best_meanwhile)
    assert sparing("evaluate", run, "--split", "test").status == 0
    assert results(run)["test, last"]["checkpoint"] == "last"
    assert "test" not in results(run)


def test_figures_of_a_lossy_vocabulary_count_the_bytes_of_the_original_text(
    corpus: Path, tmp_path: Path, sparing: Sparing
) -> None:
    words, run = corpus.read_bytes().split(b" "), tmp_path / "words"
    # Words of the valid split that the model has never seen.
    corpus.write_bytes(b" ".join([*words[:2500], *(b"unheard-of-%d" % n for n in range(500))]))
    more = settings("data.vocab=words", "train.steps=1", "train.evaluate_bytes=300")
    said = sparing("train", "quickstart", "--data", corpus, "--out", run, *more, "--quiet")
    assert said.status == 0, said.err
    valid = corpus.read_bytes()[corpus.stat().st_size * 90 // 100 :]
    expected = len(b" ".join(valid[:301].split(b" ")[:-1]))
    found = sparing("evaluate", run, "--bytes", 300, "--json").json()
    assert found["bytes"] == expected
    assert found["lossless"] is False
    assert results(run)["best_valid"]["bytes"] == expected


def test_damaged_tokens_give_no_figure(run: Path, home: Path, sparing: Sparing) -> None:
    assert sparing("evaluate", run, "--split", "test", "--json").json()["lossless"] is True
    (path,) = home.glob("tokens/*/test.bin")
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    refused(sparing("evaluate", run, "--split", "test"), "test.bin is damaged", "delete the folder")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "other.txt"
    path.write_text("".join(f"{n} lazy foxes quickly jump under a dog\n" for n in range(200)))
    return path


def test_a_text_of_ones_own_is_scored_by_splits_or_as_a_whole(
    run: Path, other: Path, sparing: Sparing
) -> None:
    before, size = results(run), other.stat().st_size
    for split, size_bytes in (("valid", size // 20), ("all", size)):
        said = sparing("evaluate", run, "--data", other, "--split", split, "--json")
        assert said.status == 0, said.err
        report = said.json()
        found = evaluate(run, data=other, split=split)  # type: ignore[arg-type]  # a literal
        assert (report["loss_nats"], report["bytes"]) == (found.loss_nats, found.size_bytes)
        assert report["bytes"] == pytest.approx(size_bytes, abs=1)
        assert (report["split"], report["corpus"]) == (split, str(other))
    # In one stream, the three splits are read as the one text that they are.
    said = sparing("evaluate", run, "--data", other, "--split", "all", "--batch", 1, "--json")
    whole = evaluate(run, text=other.read_text())
    assert said.json()["loss_nats"] == pytest.approx(whole.loss_nats, rel=1e-6)
    # These are figures of another text than the run's.
    assert results(run) == before


@pytest.mark.parametrize("vocab", ["symbols", "words"])
def test_a_text_of_ones_own_is_read_with_the_vocabulary_of_the_run(
    vocab: str, corpus: Path, tmp_path: Path, sparing: Sparing
) -> None:
    more, out = settings(f"data.vocab={vocab}"), tmp_path / vocab
    sparing("train", "quickstart", "--data", corpus, "--out", out, *more, "--quiet")
    # Made from this text, the vocabulary would be a smaller one.
    other = tmp_path / "other.txt"
    other.write_text("the quick brown fox jumps over 0 lazy dogs\n" * 40)
    said = sparing("evaluate", out, "--data", other, "--split", "all", "--json")
    assert said.status == 0, said.err
    assert said.json()["bytes"] == other.stat().st_size
    whole = evaluate(out, text=other.read_text())
    assert said.json()["tokens"] == whole.tokens


def test_every_way_of_reading_reads_the_text_that_is_named(
    run: Path, other: Path, sparing: Sparing
) -> None:
    data = ("--data", other, "--split", "all", "--bytes", 400, "--json")
    for words in (("--window", 64), ("--cache", 50), ("--memory", "0,16"), ("--context", 16)):
        named, own = (sparing("evaluate", run, *each, *words) for each in (data, data[2:]))
        assert named.status == own.status == 0, named.err
        assert named.out != own.out


def test_dynamic_evaluation_of_another_text_measures_gradients_on_the_text_of_the_training(
    run: Path, other: Path, sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []

    def note(model: LanguageModel, split: Split, *given: Any, train: Split, **more: Any) -> Any:
        seen.extend(bytes(each.ids[:400]) for each in (split, train))
        return evaluate_dynamic(model, split, *given, train=train, **more)

    monkeypatch.setattr(runs_evaluate, "evaluate_dynamic", note)
    said = sparing("evaluate", run, "--data", other, "--split", "all", "--dynamic", "--json")
    assert said.status == 0, said.err
    assert seen[0] == other.read_bytes()[:400]
    assert seen[1].startswith(b"line 0: ")


def test_a_text_that_cannot_be_scored_is_refused(
    run: Path, tmp_path: Path, sparing: Sparing
) -> None:
    refused(sparing("evaluate", run, "--data", " "), "`data` is empty")
    refused(sparing("evaluate", run, "--data", tmp_path / "no.txt"), "no text at")
    refused(sparing("evaluate", run, "--data", "enwik9"), "enwik8")
    (tmp_path / "short.txt").write_text("too short")
    refused(sparing("evaluate", run, "--data", tmp_path / "short.txt"), "at least 100")
