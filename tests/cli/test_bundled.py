"""The model that is bundled with the package."""

import io
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.cli.conftest import Sparing

from sparing import device
from sparing.errors import UserError
from sparing.runs.bundled import HOME, OPENING, UNROUNDED, bundle, run_or_bundled
from sparing.runs.folder import RunFolder, load_model

ARTICLE = """\
    <title>Tea</title>
    <revision>
      <text xml:space="preserve">'''Tea''' is a drink made by steeping the dried leaves of a plant
in boiling [[water]]. It was first used in [[China]] as a medicine, and came to [[Europe]] in the
[[17th century]]. '''Black tea''' is the most common in the [[United Kingdom]].

== See also ==
* [[Coffee]]
"""


def test_without_a_bundled_model_the_user_must_name_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name a RUN"):
        run_or_bundled(None, tmp_path)


def test_the_bundled_model_has_the_best_weights_of_a_run_in_half_the_bytes(
    run: Path, tmp_path: Path
) -> None:
    home = tmp_path / "bundled"
    bundle(RunFolder(run), home)
    folder = run_or_bundled(None, home)
    weights = load_file(home / "checkpoints" / "best" / "model.safetensors")
    kinds = {(tensor.ndim > 1, tensor.dtype) for tensor in weights.values()}
    assert kinds == {(True, torch.bfloat16), (False, torch.float32)}
    hardware = device.pick("cpu", "float32")
    own, original = (load_model(one, hardware, "best") for one in (folder, RunFolder(run)))
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    one, other = (model(tokens, model.initial_state(1)).hidden_BTD for model in (own, original))
    torch.testing.assert_close(one, other, rtol=0.05, atol=0.05)
    assert folder.read("vocab") == RunFolder(run).read("vocab")


def test_results_from_before_rounding_say_so(run: Path, tmp_path: Path) -> None:
    RunFolder(run).note_results({"test, last": {"bits_per_byte": 1.0}})
    bundle(RunFolder(run), tmp_path / "bundled")
    found = run_or_bundled(None, tmp_path / "bundled").results()
    assert found["test, last"] == {"bits_per_byte": 1.0, "weights": UNROUNDED}
    assert found["training"] == RunFolder(run).results()["training"]


def test_results_of_weights_that_need_no_rounding_stay_as_they_are(
    run: Path, tmp_path: Path
) -> None:
    RunFolder(run).note_results({"test, last": {"bits_per_byte": 1.0}})
    home = tmp_path / "bundled"
    bundle(RunFolder(run), home)
    shutil.copytree(home, tmp_path / "tuned")
    RunFolder(tmp_path / "tuned").write("results", RunFolder(run).results())
    bundle(RunFolder(tmp_path / "tuned"), home)
    assert run_or_bundled(None, home).results() == RunFolder(run).results()


def test_generate_and_score_work_without_a_run(
    run: Path, sparing: Sparing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "bundled"
    bundle(RunFolder(run), home)
    monkeypatch.setattr("sparing.cli.generate.run_or_bundled", partial(run_or_bundled, home=home))
    monkeypatch.setattr("sparing.cli.score.run_or_bundled", partial(run_or_bundled, home=home))
    assert sparing("generate", "--length", "5", "--prompt", "12").out.startswith("12")
    (tmp_path / "lines.txt").write_text("12\n34\n")
    assert len(sparing("score", tmp_path / "lines.txt", "--json").json()["scores"]) == 2
    assert sparing("score", "--text", "12").status == 0


def test_evaluate_and_plot_work_without_a_run_and_leave_the_package_alone(
    run: Path, sparing: Sparing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "bundled"
    bundle(RunFolder(run), home)
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    for command in ("evaluate", "plot"):
        monkeypatch.setattr(
            f"sparing.cli.{command}.run_or_bundled", partial(run_or_bundled, home=home)
        )
    monkeypatch.chdir(tmp_path)
    assert 0 < sparing("evaluate", "--split", "test", "--json").json()["bits_per_byte"] < 9
    words = ("plot", "--what", "focus", "--text", "the quick brown fox", "--length", 8)
    said = sparing(*words, "--json")
    assert said.json()["files"] == ["focus.png", "memory.png"], said.err
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
    assert not list(home.rglob("plots"))


def test_score_reads_standard_input_by_its_name(
    sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one line\nanother\n")))
    assert len(sparing("score", "-", "--json").json()["scores"]) == 2


def test_a_misspelled_run_is_reported_before_any_text_is_read(sparing: Sparing) -> None:
    said = sparing("score", "no-such-run")
    assert said.status == 2
    assert "no-such-run is neither a run nor a text file" in said.err


def test_the_bundled_model_knows_wikipedia(sparing: Sparing) -> None:
    said = sparing("score", "--text", ARTICLE, "--text", ARTICLE[::-1], "--json")
    forwards, backwards = (each["bits_per_byte"] for each in said.json()["scores"])
    assert forwards < 2.1
    assert backwards > 5


def test_the_bundled_model_continues_a_prompt(sparing: Sparing) -> None:
    prompt = ARTICLE + "* [[United Sta"
    said = sparing("generate", "--prompt", prompt, "--length", "6", "--temperature", "0")
    assert said.out.startswith(prompt + "tes")
    assert said.err == ""


def test_without_a_prompt_it_continues_an_opening_of_its_own(sparing: Sparing) -> None:
    (said,) = sparing("generate", "--length", "3", "--json").json()["completions"]
    assert said["prompt"] == OPENING.decode()
    (said,) = sparing("generate", "--prompt", "", "--length", "3", "--json").json()["completions"]
    assert said["prompt"] == ""


def test_the_opening_is_set_apart_from_what_is_generated(sparing: Sparing) -> None:
    said = sparing("generate", "--length", "3")
    assert said.out.startswith(OPENING.decode())
    assert said.err.splitlines() == [
        "--- no --prompt given; a built-in one ---",
        "",
        "--- generated ---",
    ]


def test_a_file_scored_as_a_whole_is_shown_by_its_name(sparing: Sparing, tmp_path: Path) -> None:
    file = tmp_path / "page.txt"
    file.write_text("one line\nanother\n")
    (line,) = sparing("score", file, "--whole").out.splitlines()
    assert line.endswith(f" bits/byte  {file}")


def test_the_card_of_the_bundled_model_is_readable(sparing: Sparing) -> None:
    lines = (line for line in sparing("info").out.splitlines() if not line.startswith(" "))
    card = dict(re.split(r" {2,}", line, maxsplit=1) for line in lines)
    assert card["run"] == "the package's own model"
    assert card["model"] == "stack, 7,779,900 parameters (7,845,436 in training)"
    assert card["trained"].startswith("enwik8_small_init_states on enwik8, 300 steps")
    assert card["init trained"].startswith("enwik8_small on enwik8, 15,652 steps")
    assert card["init on"].startswith("NVIDIA H200")
    assert card["init seed"] == "1111"
    assert card["init test"].startswith("1.0385 bits per byte (5,000,000 bytes, ")


def test_info_without_a_name_describes_the_bundled_model(sparing: Sparing) -> None:
    said = sparing("info", "--json").json()
    assert said["run"] == "the package's own model"
    assert said["parameters"]["deployed"] <= 8_000_000
    assert said["provenance"]["init"]["results"]["test"]["bits_per_byte"] < 1.04


def test_the_bundled_model_is_small_enough_to_bundle() -> None:
    files = [path for path in HOME.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 16 * 2**20
