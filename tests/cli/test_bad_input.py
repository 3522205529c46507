"""Bad input: one clear line, exit status 2, nothing half-written."""

from pathlib import Path

import pytest
from tests.cli.conftest import Said, Sparing, settings

from sparing.files import lock_folder
from sparing.runs.folder import RunFolder


def refused(said: Said, *words: str) -> None:
    assert said.status == 2
    assert len(said.err.strip().splitlines()) == 1, said.err
    for word in words:
        assert word in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["train", "quickstrat"], ["quickstart"]),
        (["import", "gpt-2", "model.pt"], ["unknown program", "transformer-xl"]),
        (["train", "quickstart", "--set", "train.stpes=3"], ["train.steps"]),
        (["train", "quickstart", "--set", "train.steps=many"], ["train.steps", "whole number"]),
        (["train", "quickstart", "--set", "train.steps=-3"], ["train.steps"]),
        (["train", "quickstart", "--set", "model.dim=100"], ["boom_dim"]),
        (["info", "enwik8_sha_layout", "--set", "model.boom.dim=-256"], ["boom_dim", "multiple"]),
        (["info", "nope"], ["no such run", "quickstart"]),
        (["info", "enwik8_sha_layout", "--set", "model.boom.dim=0"], ["boom_dim", "multiple"]),
        (["train", "quickstart", "--set", "model.attention_at=7"], ["attention_at"]),
        (["train", "quickstart", "--set", "optim.lr=-1"], ["lr"]),
        (["train", "quickstart", "--set", "data.vocab=runes"], ["data.vocab"]),
        (["train", "quickstart", "--stesp", "3"], ["--stesp"]),
        (["train", "quickstart", "--device", "cuda"], ["CUDA"]),
        (["train", "quickstart", "--device", "toaster"], ["toaster"]),
        (["train", "quickstart", "--data", "no/such/file"], ["no/such/file"]),
        (["train", "quickstart", "--data", "~no-such-user/x"], ["no text at ~no-such-user/x"]),
        (["data", "get", "enwik8", "--from", "~no-such-user/x"], ["~no-such-user/x"]),
        (["info", "quickstart", "--set", f"model.dim={10**30}"], ["model.dim is too large"]),
        (["info", "quickstart", "--set", f"model.dim=0x{'f' * 5000}"], ["model.dim is too large"]),
        (["info", "quickstart", "--set", f"optim.lr={10**399}"], ["optim.lr is too large"]),
        (
            [
                "train",
                "quickstart",
                "--set",
                "data.vocab=pieces",
                "--set",
                f"data.vocab_size={10**11}",
            ],
            ["data.vocab_size must be"],
        ),
        (["train", "--resume"], ["`out`"]),
        (["train", "--resume", "--out", "nowhere"], ["nowhere"]),
        (["train"], ["recipe"]),
        (["train", "quickstart", "--checkpoint", "best"], ["`resume`"]),
        (["train", "quickstart", "--set", "model.vocab_size=9"], ["data"]),
        (["train", "quickstart", "--set", "model.dim=0"], ["dim"]),
        (["train", "quickstart", "--set", "model.dropout_hidden=1"], ["dropout"]),
        (["train", "quickstart", "--set", "train.seed=-1"], ["train.seed"]),
        (
            ["train", "quickstart", "--set", "train.state_reset=-0.1"],
            ["train.state_reset", "from 0 to 1"],
        ),
        (
            ["train", "quickstart", "--set", "train.state_reset=1.1"],
            ["train.state_reset", "from 0 to 1"],
        ),
        (["train", "quickstart", "--set", "train.state_reset=nan"], ["train.state_reset"]),
        (["train", "quickstart", "--set", "evaluate.batch=0"], ["evaluate.batch"]),
        (["train", "quickstart", "--set", "train.evaluate_bytes=0"], ["train.evaluate_bytes"]),
        (["train", "quickstart", "--set", "optim.lr=1e300"], ["lr", "1e+30"]),
        (["train", "quickstart", "--set", "family=stack"], ["family", "another recipe"]),
        (["info", "quickstart", "--set", "family = foo"], ["family", "another recipe"]),
        (["bench", "evaluate", "--memory", "-1"], ["--memory"]),
        (["bench", "train", "quickstart", "--threads", "99999999999"], ["threads", "4096"]),
        (["bench", "span", "enwik8_20min"], ["is a stack", "adaptive_span"]),
        (["bench", "evaluate", "--memory", "1000000000"], ["memory 1,000,000,000", "segment"]),
        (["trian", "quickstart"], ["train"]),
        (["evaluate", "nowhere"], ["nowhere"]),
        (["evaluate", __file__], ["is a file", "sparing score"]),
        (["train", "quickstart", "--set", "dim=3"], ["did you mean 'model.dim'"]),
        (["info", "enwik8_20min", "--set", "model.key_shift=1"], ["'model.windowed.key_shift'"]),
        (["info", "enwik8_20min", "--set", "model.mtp=1"], ["model.mtp.tokens, model.mtp.weight"]),
        (["generate", "--top-p", "3"], ["top-p must be"]),
        (["generate", "nowhere"], ["nowhere"]),
        (["score", "nowhere", "--text", "x"], ["nowhere"]),
        (["info", "enwik9_sha_rnn"], ["enwik8_sha_rnn"]),
        (["data", "get", "enwik7"], ["enwik8"]),
        (["data", "get", "python-stdlib", "--from", "pyproject.toml"], ["--data"]),
        (["train", "quickstart", "--from", "pyproject.toml"], ["--data"]),
        (["train", "enwik8_mlstm", "--from", "no/such/copy"], ["no/such/copy"]),
    ],
)
def test_the_error_says_what_is_wrong(
    command: list[str], words: list[str], sparing: Sparing, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    refused(sparing(*command), *words)
    assert not list(tmp_path.rglob("config.json"))


@pytest.mark.parametrize(
    ("name", "absurd", "words"),
    [
        ("quickstart", "depth=10000000", ["depth must be at most 1,000"]),
        ("wikitext2_awd_lstm", "depth=10000000", ["depth must be at most 1,000"]),
        (
            "enwik8_20min",
            "windowed.heads=10000000",
            ["model.windowed: heads", "at most 1,000"],
        ),
        ("enwik8_20min", "mtp.tokens=10000000", ["tokens must be at most 1,000"]),
        ("enwik8_20min", "pattern=[gaf] rounds=10000000", ["rounds must be at most 1,000"]),
        (
            "quickstart",
            "depth=1000 dim=16384 boom_dim=16384",
            ["parameters take", "TiB", "this machine has"],
        ),
    ],
)
def test_absurd_sizes_are_refused_before_allocation(
    name: str, absurd: str, words: list[str], sparing: Sparing, tmp_path: Path
) -> None:
    more = [word for each in absurd.split() for word in ("--set", f"model.{each}")]
    refused(sparing("train", name, "--out", tmp_path / "out", *more), *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "vocab", "words"),
    [
        (b"", "bytes", ["holds no text"]),
        (b"x", "bytes", []),
        (b"\xff\xfe not text" * 200, "characters", ["UTF-8"]),
        (b"\xff\xfe not text" * 200, "words", ["UTF-8"]),
        (b"a\0b" * 500, "characters", ["data.vocab=bytes"]),
        (b"too short for it\n" * 4, "bytes", ["text"]),
    ],
)
def test_unusable_texts_are_refused(
    content: bytes, vocab: str, words: list[str], sparing: Sparing, tmp_path: Path
) -> None:
    file, out = tmp_path / "text", tmp_path / "out"
    file.write_bytes(content)
    more = settings(f"data.vocab={vocab}")
    said = sparing("train", "quickstart", "--data", file, "--out", out, *more, "--quiet")
    refused(said, *words)
    assert not out.exists()


def test_in_a_log_an_error_is_a_line_of_its_own(
    sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    more = settings("train.batch=100000")
    said = sparing("train", "quickstart", "--data", corpus, "--out", tmp_path / "out", *more)
    refused(said)
    assert said.err.startswith("sparing: ")


def test_a_budget_too_short_for_one_step_is_refused(
    sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["--data", corpus, "--out", out, *settings("train.minutes=1e-6"), "--quiet"]
    refused(sparing("train", "quickstart", *words), "no step was made", "train.minutes=1e-06")
    assert not out.exists()


def test_a_budget_spent_before_the_first_step_is_refused(
    sparing: Sparing, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparing.runs.train.budget_used", lambda *_: 0.0)
    words = ["--data", corpus, "--out", tmp_path / "out", *settings("train.minutes=1e-6")]
    refused(sparing("train", "quickstart", *words, "--quiet"), "no step was made")
    again = sparing("train", "--resume", "--out", tmp_path / "out", "--quiet")
    refused(again, "no step was made")


def test_binary_files_train_as_bytes(sparing: Sparing, tmp_path: Path) -> None:
    file = tmp_path / "binary"
    file.write_bytes(bytes(range(256)) * 30)
    said = sparing(
        "train", "quickstart", "--data", file, "--out", tmp_path / "r", *settings(), "--quiet"
    )
    assert said.status == 0, said.err


def test_a_folder_in_use_or_with_a_run_is_not_changed(
    run: Path, sparing: Sparing, corpus: Path
) -> None:
    before = (run / "metrics.jsonl").read_bytes()
    said = sparing("train", "quickstart", "--data", corpus, "--out", run, *settings(), "--quiet")
    refused(said, "resume it")
    with lock_folder(run):
        said = sparing("train", "--resume", "--out", run, "--quiet")
    refused(said, "in use")
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("more", [["train.steps=3"], ["train.bad_steps=99"]])
def test_a_run_that_diverged_says_so(
    more: list[str], sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "diverged"
    words = settings("optim.lr=1e30", *more)
    refused(
        sparing("train", "quickstart", "--data", corpus, "--out", out, *words, "--quiet"),
        "diverged",
        "valid loss",
        "lower optim.lr",
    )
    assert (out / "results.json").exists()
    refused(sparing("train", "--resume", "--out", out, "--quiet"), "diverged")


def test_a_moved_text_is_reported_with_its_path(run: Path, corpus: Path, sparing: Sparing) -> None:
    corpus.rename(corpus.with_name("elsewhere"))
    said = sparing("evaluate", run)
    refused(said, f"no text at {corpus}")
    assert "enwik8" not in said.err


def test_a_damaged_checkpoint_is_refused_and_the_previous_one_works(
    run: Path, sparing: Sparing
) -> None:
    sparing("train", "--resume", "--out", run, "--set", "train.steps=14", "--quiet")
    weights = run / "checkpoints" / "last" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    said = sparing("train", "--resume", "--out", run, "--set", "train.steps=16", "--quiet")
    refused(said, "model.safetensors is damaged", "previous")
    again = sparing(
        "train", "--resume", "--checkpoint", "previous", "--out", run, "--quiet",
        "--set", "train.steps=16",
    )  # fmt: skip
    assert again.status == 0, again.err
    assert sparing("evaluate", run, "--checkpoint", "last", "--bytes", 50).status == 0


@pytest.mark.parametrize("setting", ["train.batch=2", "data.newlines=false"])
def test_batch_and_text_cannot_change_on_resume(setting: str, run: Path, sparing: Sparing) -> None:
    before = (run / "config.json").read_bytes()
    said = sparing("train", "--resume", "--out", run, "--set", setting, "--quiet")
    refused(said, setting.partition("=")[0])
    assert (run / "config.json").read_bytes() == before


def test_a_missing_checkpoint_does_not_restart_the_run(run: Path, sparing: Sparing) -> None:
    journal = (run / "metrics.jsonl").read_bytes()
    more = ("--set", "train.steps=20", "--quiet")
    refused(sparing("train", "--resume", "--out", run, "--checkpoint", "bets", *more), "bets")
    said = sparing("train", "--resume", "--out", run, "--checkpoint", "previous", *more)
    refused(said, "no checkpoint", "last")
    assert (run / "metrics.jsonl").read_bytes() == journal


def test_resuming_a_finished_run_needs_a_larger_budget(run: Path, sparing: Sparing) -> None:
    before = (run / "config.json").read_bytes()
    said = sparing("train", "--resume", "--out", run, "--set", "optim.lr=1e-3", "--quiet")
    refused(said, "budget is used up")
    assert (run / "config.json").read_bytes() == before


def test_another_models_settings_do_not_resume(run: Path, sparing: Sparing) -> None:
    said = sparing("train", "--resume", "--out", run, "--set", "model.dim=8", "--quiet")
    refused(said, "another model", "dim")


def test_a_symbol_never_seen_in_training(sparing: Sparing, corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "symbols"
    more = settings("data.vocab=symbols")
    sparing("train", "quickstart", "--data", corpus, "--out", path, *more, "--quiet")
    refused(sparing("score", path, "--text", "Ω"), "does not occur in the training text")
    said = sparing("generate", path, "--prompt", "Ω")
    refused(said, "does not occur in the training text")
    assert not said.out


@pytest.mark.parametrize(
    "command",
    [
        ["train", "quickstart"],
        ["search", "wikitext2_par_search"],
        ["board", "some/run"],
        ["derive", "some/run"],
        ["plot", "some/run"],
        ["import", "adaptive-span", "weights.pt"],
        ["bench", "train"],
    ],
)
def test_an_empty_out_is_not_the_current_folder(
    command: list[str], sparing: Sparing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(sparing(*command, "--out", ""), "`out` is empty")
    refused(sparing(*command, "--out", " "), "`out` is empty")
    refused(sparing(*command, "--out", "run\udc9b"), "is not UTF-8")
    assert not list(tmp_path.iterdir())


def test_empty_data_is_not_the_current_folder(
    sparing: Sparing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for nothing in ("", " "):
        refused(sparing("train", "quickstart", "--data", nothing, "--out", "x"), "`data` is empty")
    assert not list(tmp_path.iterdir())


def test_out_must_be_a_folder(sparing: Sparing, corpus: Path) -> None:
    said = sparing("train", "quickstart", "--data", corpus, "--out", corpus, *settings(), "--quiet")
    refused(said, "a run is a folder")


@pytest.mark.parametrize("vocab", ["bytes", "words"])
def test_a_run_without_newlines_is_not_evaluated_with_them(
    vocab: str, sparing: Sparing, corpus: Path, tmp_path: Path
) -> None:
    path, more = tmp_path / "bare", settings("data.newlines=false", f"data.vocab={vocab}")
    sparing("train", "quickstart", "--data", corpus, "--out", path, *more, "--quiet")
    refused(sparing("evaluate", path, "--protocol", "bytes"), "no-newlines")
    for words in ((), ("--protocol", "no-newlines")):
        assert sparing("evaluate", path, *words, "--json").json()["protocol"] == "no-newlines"
    assert RunFolder(path).results().keys() == {"valid, no-newlines", "training", "best_valid"}


def test_bad_sampling_and_empty_input(run: Path, sparing: Sparing, tmp_path: Path) -> None:
    refused(sparing("generate", run, "--temperature", -1), "temperature")
    refused(sparing("generate", run, "--prompt-file", tmp_path / "none"), "none")
    empty = tmp_path / "empty"
    empty.write_text("")
    refused(sparing("score", run, empty), "nothing to score")
    refused(sparing("evaluate", run, "--stride", 4), "--window")
    refused(sparing("evaluate", run, "--memory", "some"), "--memory")
    refused(sparing("evaluate", run, "--checkpoint", "lost"), "lost")


def test_a_full_disk_is_reported_and_the_old_checkpoint_stays(
    run: Path, sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device", "model.safetensors")

    monkeypatch.setattr("sparing.training.checkpoint.save_file", full)
    said = sparing("train", "--resume", "--out", run, "--set", "train.steps=14", "--quiet")
    refused(said, "no space left")
    monkeypatch.undo()
    assert sparing("evaluate", run, "--checkpoint", "last", "--bytes", 50).status == 0


@pytest.mark.parametrize("command", ["generate", "board", "compare", "search", "plot", "results"])
def test_commands_for_one_process_are_refused_under_torchrun(
    command: str, sparing: Sparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused(sparing(command, "x"), f"{command} runs in one process only")


WILD = "w\x1b[31m\u202e\n\x9b\x07\udcff"


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", WILD],
        ["train", WILD],
        ["train", "quickstart", "--data", WILD],
        ["train", "quickstart", "--set", f"{WILD}=3"],
        ["info", "quickstart", "--set", f"data.corpus={WILD}", "--set", "model.dim=none"],
        ["generate", "--device", WILD],
        ["results", WILD],
        ["data", "get", WILD],
        [WILD],
        ["train", f"--{WILD}"],
        ["evaluate", "x", "--split", WILD],
    ],
)
def test_control_characters_of_names_do_not_reach_the_terminal(
    command: list[str], sparing: Sparing
) -> None:
    said = sparing(*command)
    refused(said)
    assert said.err.rstrip("\n").isprintable()


def test_control_characters_of_a_runs_folder_do_not_reach_the_terminal(
    run: Path, sparing: Sparing
) -> None:
    # Weights cannot be read from a path that is not UTF-8.
    wild = run.with_name(WILD[:-1]) / "run"
    wild.parent.mkdir()
    run.rename(wild)
    for command in (["info", wild], ["results", wild]):
        said = sparing(*command)
        assert said.status == 0, said.err
        assert "".join(said.out.splitlines()).isprintable(), said.out
        assert sparing(*command, "--json").json()
