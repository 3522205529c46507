"""`sparing compress` and `decompress` from the command line."""

import lzma
import os
import shutil
import signal
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from random import Random

import pytest
import torch
from tests.cli.conftest import Sparing
from tests.cli.terminal import Terminal
from tests.cli.test_bad_input import refused

from sparing.cli import compress as commands
from sparing.compress.compressor import Compressor

SOURCE = str(Path(__file__).parents[2] / "src")
FOLDER = Path(os.environ.get("SPARING_DATA", Path(__file__).parents[3] / "shared" / "data"))
TEXT = b"The [[quick]] brown fox.\n" * 3 + bytes(range(256))
KILLED = """
import os, signal, sys
from sparing.cli.main import main
from sparing.compress import codec
sound = codec.code_lanes
def code_lanes(*given):
    dies = given[1] > 5 * codec.FINGERPRINT_STEPS
    sound(*given[:-1], lambda count: os.kill(os.getpid(), signal.SIGKILL) if dies else None)
codec.code_lanes = code_lanes
main(sys.argv[1:])
"""

STAGES = ("compress", "decompress", "evaluate")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "notes.bin"
    path.write_bytes(TEXT)
    return path


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_that_is_not_there_is_refused(sparing: Sparing, run: Path, plain: Path) -> None:
    sparing("compress", plain, "--model", run)
    packed = plain.with_name("notes.bin.sparing")
    for command in (["compress", plain, "--out", "new"], ["decompress", packed, "--out", "new"]):
        refused(sparing(*command, "--model", run, "--device", "cuda"), "no CUDA device")


def test_a_file_comes_back(sparing: Sparing, run: Path, plain: Path) -> None:
    said = sparing("compress", plain, "--model", run, "--verify", "--lanes", 9, "--json")
    assert said.status == 0, said.err
    report, packed = said.json(), plain.with_name("notes.bin.sparing")
    assert report["file"] == str(packed)
    assert (report["bytes"], report["compressed_bytes"]) == (len(TEXT), packed.stat().st_size)
    assert report["ratio"] == len(TEXT) / packed.stat().st_size
    assert (report["lanes"], report["learn"], report["verified"]) == (9, False, True)
    assert report["coded_bits"] <= 1.001 * report["evaluated_bits"] + 64
    plain.unlink()
    said = sparing("decompress", packed, "--model", run)
    assert said.status == 0, said.err
    assert f"{plain}: {len(TEXT)} bytes" in said.out
    assert plain.read_bytes() == TEXT
    refused(sparing("decompress", packed, "--model", run), f"{plain} exists")
    refused(sparing("compress", plain, "--model", run), f"{packed} exists")


def test_a_terminal_shows_one_bar_after_another(run: Path, plain: Path) -> None:
    words = ("compress", plain, "--model", run, "--lanes", 9, "--verify")
    with Terminal(*words) as terminal:
        assert terminal.wait() == 0, terminal.text
    ends = [terminal.text.rindex(f"\r{stage}: 100%") for stage in STAGES]
    assert ends == sorted(ends)
    # Below a bar that is still open, the cursor would have to be moved.
    assert "\x1b[A" not in terminal.text


def test_learning_and_an_empty_file(sparing: Sparing, run: Path, tmp_path: Path) -> None:
    for number, data in enumerate((b"", b"ababab" * 40)):
        plain, packed, again = (tmp_path / f"{name}{number}" for name in ("a", "b", "c"))
        plain.write_bytes(data)
        options = ("--learn", "--chunk", 5, "--rate", 0.01, "--lanes", 6, "--verify")
        said = sparing("compress", plain, "--model", run, "--out", packed, *options)
        assert said.status == 0, said.err
        assert "verified: it decodes to the same bytes" in said.out
        said = sparing("decompress", packed, "--model", run, "--out", again)
        assert said.status == 0, said.err
        assert again.read_bytes() == data


def test_pipes(
    sparing: Sparing, run: Path, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = BytesIO()

    def through(verb: str, data: bytes) -> bytes:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(data)))
        monkeypatch.setattr(commands, "print_bytes", written.write)
        said = sparing(verb, "-", "--model", run)
        assert said.status == 0, said.err
        assert said.out == ""
        assert "bits per byte" in said.err
        found = written.getvalue()
        written.seek(0)
        written.truncate()
        return found

    assert through("decompress", through("compress", b"through a pipe")) == b"through a pipe"
    refused(sparing("compress", "-", "--json"), "--out")
    assert not list(tmp_path.glob("*.sparing"))


def test_bad_files_are_refused_in_one_line(
    sparing: Sparing, run: Path, plain: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "packed"
    assert sparing("compress", plain, "--model", run, "--out", packed).status == 0
    blob, out = packed.read_bytes(), tmp_path / "out"
    random = Random(5)
    for changed in (blob[:-1], blob[:50], b"", blob + b"\0", TEXT, random.randbytes(300)):
        packed.write_bytes(changed)
        refused(sparing("decompress", packed, "--model", run, "--out", out), str(packed))
    packed.write_bytes(blob)
    weights = run / "checkpoints" / "last" / "model.safetensors"
    other = tmp_path / "other"
    shutil.copytree(run, other)
    said = sparing("train", "--resume", "--out", other, "--set", "train.steps=14", "--quiet")
    assert said.status == 0, said.err
    assert weights.exists()
    refused(
        sparing("decompress", packed, "--model", other, "--checkpoint", "last", "--out", out),
        str(packed),
        "another model",
    )
    refused(sparing("decompress", packed, "--out", out), "another model")
    assert not out.exists()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["compress", "missing"], "missing"),
        (["compress", "."], "folder"),
        (["decompress", "notes"], "--out"),
        (["compress", "notes.bin", "--lanes", "0"], "lanes"),
        (["compress", "notes.bin", "--rate", "1"], "--learn"),
        (["compress", "notes.bin", "--learn", "--rate", "nan"], "rate"),
        (["compress", "notes.bin", "--model", "nowhere"], "nowhere"),
        (["compress", "notes.bin", "--out", ""], "`out` is empty"),
        (["compress", "notes.bin", "--out", "notes.bin"], "exists"),
    ],
)
def test_bad_options_are_refused(
    sparing: Sparing,
    plain: Path,
    words: list[str],
    part: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(plain.parent)
    refused(sparing(*words), part)
    assert [path.name for path in plain.parent.iterdir()] == ["notes.bin"]


def test_the_longest_names_come_back(sparing: Sparing, run: Path, tmp_path: Path) -> None:
    plain = tmp_path / ("n" * 247)
    packed = tmp_path / f"{plain.name}.sparing"
    plain.write_bytes(TEXT[:50])
    said = sparing("compress", plain, "--model", run)
    assert said.status == 0, said.err
    plain.unlink()
    said = sparing("decompress", packed, "--model", run)
    assert said.status == 0, said.err
    assert plain.read_bytes() == TEXT[:50]


def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    sparing: Sparing, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*given: object) -> None:
        raise AssertionError("the work has begun")

    monkeypatch.setattr(commands, "read_input", forbidden)
    monkeypatch.setattr(commands, "load_model", forbidden)
    for out in ("/proc/out", plain / "out", plain.with_name("o" * 256)):
        for verb in ("compress", "decompress"):
            refused(sparing(verb, plain, "--out", out), str(out)[:99])
    assert [path.name for path in plain.parent.iterdir()] == ["notes.bin"]


def test_a_missing_extra_is_named(
    sparing: Sparing, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "constriction", None)
    refused(sparing("compress", plain), "pip install 'sparing[compress]'")
    assert [path.name for path in plain.parent.iterdir()] == ["notes.bin"]


def test_what_does_not_decode_is_not_handed_over(
    sparing: Sparing, run: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compressor, "decompress", lambda *given, **options: b"another text")
    refused(sparing("compress", plain, "--model", run, "--verify"), "does not decode")
    assert not list(plain.parent.glob("*.sparing"))


def test_a_file_that_appears_meanwhile_is_kept(
    sparing: Sparing, run: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, sound = plain.with_name("notes.bin.sparing"), Compressor.compress

    def slow(*given: object, **options: object) -> bytes:
        packed.write_text("somebody else's")
        return sound(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Compressor, "compress", slow)
    refused(sparing("compress", plain, "--model", run), "exists")
    assert packed.read_text() == "somebody else's"


def test_a_command_killed_half_way_leaves_nothing(
    sparing: Sparing, run: Path, plain: Path, tmp_path: Path
) -> None:
    packed, out = tmp_path / "packed", tmp_path / "out"
    said = sparing("compress", plain, "--model", run, "--lanes", 2, "--out", packed)
    assert said.status == 0, said.err
    before = sorted(tmp_path.rglob("*"))
    for words in (["compress", plain, "--lanes", 2], ["decompress", packed]):
        command = [sys.executable, "-c", KILLED, *map(str, words)]
        environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([*command, "--model", run, "--out", out], env=environment)
        assert done.returncode == -signal.SIGKILL
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.soak
@pytest.mark.skipif(not (FOLDER / "enwik8.xz").exists(), reason="no local copy of enwik8")
def test_the_models_own_test_text_takes_the_bits_that_were_claimed(
    sparing: Sparing, tmp_path: Path
) -> None:
    """The beginning of test with the package's model; SOAK_BYTES=1000000 takes hours."""
    size = int(os.environ.get("SOAK_BYTES", "20000"))
    plain, packed = tmp_path / "test", tmp_path / "test.sparing"
    plain.write_bytes(lzma.decompress((FOLDER / "enwik8.xz").read_bytes())[-5_000_000:][:size])
    lanes = () if size > 100_000 else ("--lanes", 16)
    said = sparing("compress", plain, "--verify", "--json", *lanes)
    assert said.status == 0, said.err
    report = said.json()
    assert abs(report["coded_bits"] - report["evaluated_bits"]) < 64 + size / 1000
    again = tmp_path / "again"
    assert sparing("decompress", packed, "--out", again).status == 0
    assert again.read_bytes() == plain.read_bytes()
