"""`sparing export --format onnx` from the command line, and the folder in place of a run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.cli.conftest import Sparing
from tests.cli.test_bad_input import refused

import sparing as package
from sparing.cli.main import main
from sparing.errors import UserError
from sparing.export.onnx import check
from sparing.models.onnx_runtime import MANIFEST

SMALL = [
    "model.dim=6", "model.hidden_dim=12", "data.vocab=symbols", "train.batch=4", "train.segment=8",
    "train.steps=6", "evaluate.batch=2", "evaluate.segment=4",
]  # fmt: skip
CHUNK = 4


class Case(NamedTuple):
    """A run, and what it was exported to."""

    run: Path
    folder: Path
    text: Path


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    place = tmp_path_factory.mktemp("onnx")
    found = Case(place / "run", place / "folder", place / "text.txt")
    found.text.write_text("".join(f"line {n}: a fox and {n * n} dogs\n" for n in range(80)))
    settings = [word for setting in SMALL for word in ("--set", setting)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARING_HOME", str(place / "home"))
        train = ["train", "enwik8_mlstm", "--data", found.text, "--out", found.run, "--quiet"]
        export = ["export", found.run, "--format", "onnx", "--chunk", CHUNK, "--out", found.folder]
        for command in ([*train, *settings], export):
            assert main([str(word) for word in command]) == 0
    return found


@pytest.fixture
def copy(case: Case, tmp_path: Path) -> Path:
    shutil.copytree(case.folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_the_folder_describes_itself(case: Case) -> None:
    import onnx

    manifest = json.loads((case.folder / MANIFEST).read_text())
    assert (manifest["weights"], manifest["chunk"]) == ("float32", CHUNK)
    graph = onnx.load(case.folder / "step.onnx", load_external_data=False)
    facts = {each.key: json.loads(each.value) for each in graph.metadata_props}
    assert facts["settings"]["family"] == "mlstm"
    assert facts["vocabulary"]["kind"] == "symbols"
    assert len(facts["tokens"]) == facts["settings"]["model"]["vocab_size"]
    assert facts["state"] == manifest["state"]
    assert "mlstm" in (case.folder / "README.md").read_text()
    assert len((case.folder / "run.py").read_text().splitlines()) <= 65
    assert not [path for path in case.folder.parent.iterdir() if path.name.startswith(".")]


def test_it_generates_scores_and_evaluates_as_the_run_does(sparing: Sparing, case: Case) -> None:
    write = ["--prompt", "line 7: a f", "--length", 30, "--temperature", 0]
    texts = [sparing("generate", place, *write).out for place in (case.run, case.folder)]
    assert texts[0] == texts[1] != ""
    score = ["--text", "line 8: a dog", "--text", "fox", "--json"]
    scores = [sparing("score", place, *score).json() for place in (case.run, case.folder)]
    for wanted, found in zip(*(each["scores"] for each in scores), strict=True):
        assert found["log_probability"] == pytest.approx(wanted["log_probability"], abs=1e-4)
    bits = [
        sparing("evaluate", place, "--split", "test", "--json").json()["bits_per_byte"]
        for place in (case.run, case.folder)
    ]
    assert bits[0] == pytest.approx(bits[1], abs=1e-6)
    curve = sparing("evaluate", case.folder, "--context", 8, "--json")
    assert curve.status == 0, curve.err


def test_run_py_needs_nothing_of_ours_and_writes_the_same(sparing: Sparing, case: Case) -> None:
    prompt = "line 12: a f"
    wanted = sparing("generate", case.run, "--prompt", prompt, "--length", 20, "--temperature", 0)
    script = (
        "import sys, runpy; sys.modules.update(sparing=None, torch=None); sys.argv = sys.argv[1:];"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", script, str(case.folder / "run.py"), prompt, "20"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == wanted.out.removesuffix("\n"), done.stderr


@pytest.mark.parametrize(
    ("vocab", "prompt"),
    [("words", b"a fox"), ("par-pieces", b"a fox\n9 dogs\n"), ("bytes", b"\xff a fox")],
)
def test_run_py_reads_every_prompt_as_the_run_does(
    vocab: str, prompt: bytes, sparing: Sparing, case: Case, tmp_path: Path
) -> None:
    settings = [*SMALL, f"data.vocab={vocab}", *["data.vocab_size=40"] * (vocab == "par-pieces")]
    words = [word for setting in settings for word in ("--set", setting)]
    train = ["--data", case.text, "--quiet", "--out", tmp_path / "run"]
    assert sparing("train", "enwik8_mlstm", *train, *words).status == 0
    folder = tmp_path / "folder"
    assert sparing("export", tmp_path / "run", "--format", "onnx", "--out", folder).status == 0
    command = [sys.executable, str(folder / "run.py"), prompt, "8"]
    done = subprocess.run(command, capture_output=True)
    wanted = package.load(tmp_path / "run").generate(prompt, length=8, temperature=0)
    assert done.stdout == prompt + wanted, done.stderr
    # A word is followed by a space, even the last one of a prompt.
    assert vocab != "words" or done.stdout[5:6].isspace()


def test_the_printed_loop_gives_the_logits_of_the_model(case: Case) -> None:
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    code = page[page.index("import json\n") :].split("```")[0]
    code = code.replace("exported/onnx", str(case.folder)).replace('b"[[Tea]]"', "(3, 1, 2)")
    found: dict[str, Any] = {}
    exec(compile(code, "export.md", "exec"), found)
    lm = package.load(case.run)
    tokens_1T = torch.tensor([[lm.vocab.start, 3, 1, 2]])
    with torch.no_grad():
        out = lm.model(tokens_1T, lm.model.initial_state(1, inference=True))
        wanted_V = lm.model.head.logits(out.hidden_BTD)[0, -1]
    assert found["logits"] == pytest.approx(wanted_V.numpy(), abs=1e-5)


def test_it_is_loaded_in_python(case: Case) -> None:
    lm, exported = package.load(case.run), package.load(case.folder)
    assert repr(exported) == repr(lm)
    read = exported.state("line 3")
    one, two = (exported.generate(": a", after=read, seed=3) for _ in range(2))
    assert one == two == lm.generate(": a", after=lm.state("line 3"), seed=3)
    assert exported.logits("a fox").sub(lm.logits("a fox")).abs().max() < 1e-4
    with pytest.raises(UserError, match="cannot show hidden vectors"):
        exported.hidden("a fox")
    with pytest.raises(UserError, match="cannot show its attention"):
        exported.attention("a fox")


@pytest.mark.parametrize(
    "options",
    [
        ("--memory", "0,10"),
        ("--segment", "8"),
        ("--cache", "10"),
        ("--dynamic",),
        ("--set", "model.dropout_input=0.1"),
        ("--set", "evaluate.segment=8"),
        ("--precision", "bfloat16"),
        ("--device", "cuda"),
        ("--checkpoint", "previous"),
    ],
)
def test_what_is_fixed_in_an_export_cannot_be_changed(
    options: tuple[str, ...], sparing: Sparing, case: Case
) -> None:
    refused(sparing("evaluate", case.folder, *options), "ONNX export")


def test_other_commands_ask_for_the_run(sparing: Sparing, case: Case, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for command in (
        ("export", case.folder, "--format", "hf", "--out", out),
        ("export", case.folder, "--format", "onnx", "--out", out),
        ("train", "--resume", "--out", case.folder),
        ("train", "--init", case.folder, "--data", case.text, "--out", out),
        ("generate", case.folder, "--checkpoint", "last"),
        ("score", case.folder, "--device", "cuda", "--text", "a"),
        ("generate", case.folder, "--compile"),
        ("compress", case.text, "--model", case.folder, "--out", out),
        ("serve", case.folder, "--port", 0),
    ):
        refused(sparing(*command), "ONNX export")
    assert not out.exists()


@pytest.mark.parametrize("file", ["step.onnx", "chunk.onnx", "weights.bin", "vocab.json"])
def test_a_damaged_file_or_one_of_another_model_is_refused(
    file: str, sparing: Sparing, copy: Path
) -> None:
    content = bytearray((copy / file).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / file).write_bytes(content)
    refused(sparing("generate", copy, "--length", 3), file)
    (copy / file).unlink()
    refused(sparing("generate", copy, "--length", 3), file)


def test_a_damaged_manifest_is_refused(sparing: Sparing, copy: Path) -> None:
    whole = json.loads((copy / MANIFEST).read_text())
    for changed, word in (
        ({"format": 2}, "another version"),
        ({"chunk": 0}, "chunk"),
        ({"weights": "int3"}, "int3"),
        ({"sha256": {}}, "weights.bin"),
        ({"state": [{"name": 1}]}, "state"),
    ):
        (copy / MANIFEST).write_text(json.dumps({**whole, **changed}))
        refused(sparing("generate", copy, "--length", 3), MANIFEST, word)


def test_what_cannot_be_written_is_refused_before_any_work(
    sparing: Sparing, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ("--out", tmp_path / "new")
    refused(sparing("export", "--format", "hf", "--int8", *out), "--int8", "--format onnx")
    refused(sparing("export", "--format", "onnx", "--chunk", 1, *out), "--chunk")
    refused(sparing("export", "--format", "onxx", *out), "did you mean 'onnx'")
    refused(sparing("export", "--format", "onnx", "--out", case.folder), "exists")
    for missing in ("onnxruntime", "onnxscript"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, missing, None)
            refused(sparing("export", "--format", "onnx", *out), "sparing[onnx]")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    refused(sparing("generate", case.folder), "sparing[onnx]")
    assert not list(tmp_path.iterdir())


def test_an_export_that_answers_differently_is_not_handed_over(
    sparing: Sparing, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "TOLERANCE", 0.0)
    said = sparing("export", case.run, "--format", "onnx", "--chunk", 2, "--out", tmp_path / "new")
    refused(said, "differ", "nothing was written")
    assert not list(tmp_path.iterdir())


def test_weights_in_8_bits_are_smaller(sparing: Sparing, case: Case, tmp_path: Path) -> None:
    out = tmp_path / "int8"
    said = sparing("export", case.run, "--format", "onnx", "--int8", "--chunk", 2, "--out", out)
    assert said.status == 0, said.err
    assert "extra_bits_per_token" in said.out
    assert json.loads((out / MANIFEST).read_text())["weights"] == "int8"
    assert sparing("generate", out, "--length", 3).status == 0
