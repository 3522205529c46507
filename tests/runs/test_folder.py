"""A run folder reports damage in one line, and remembers the text it was trained on."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.training.numbered import IDENTITY
from tests.training.numbered import number as numbered

from sparing.config import described
from sparing.data.tokens import DataConfig, Tokens, prepare
from sparing.errors import UserError
from sparing.models import FAMILIES
from sparing.runs import folder as folder_module
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig, to_json, with_settings
from sparing.runs.folder import RunFolder, create, prepare_for_run, refuse_used_folder
from sparing.runs.recipes import RECIPES, recipe
from sparing.training import checkpoint

TEXT = "".join(f"{n} green bottles, {n * n} walls\n" for n in range(100))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARING_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SPARING_DATA", raising=False)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def run(corpus: Path) -> RunConfig:
    return replace(recipe("quickstart"), data=DataConfig(corpus=str(corpus)))


@pytest.fixture
def folder(run: RunConfig, tmp_path: Path) -> RunFolder:
    tokens = read(run)
    return create(tmp_path / "run", run, tokens.vocab, {"seed": 1}, texts=tokens.text_sha256())


def read(run: RunConfig) -> Tokens:
    return prepare(run.data, progress=False)


def again(folder: RunFolder, run: RunConfig) -> Tokens:
    return prepare_for_run(folder, run.data, None, progress=False)


def test_the_same_text_is_accepted_wherever_its_tokens_are(
    folder: RunFolder, run: RunConfig, corpus: Path
) -> None:
    corpus.unlink()
    corpus.write_text(TEXT)
    assert again(folder, run).text_sha256() == folder.read("data")["text_sha256"]
    assert folder.config() == run


@pytest.mark.parametrize(("percent", "split"), [(0, "train"), (92, "valid"), (99, "test")])
def test_a_changed_text_is_refused_by_its_split(
    percent: int, split: str, folder: RunFolder, run: RunConfig, corpus: Path
) -> None:
    changed = bytearray(TEXT.encode())
    changed[len(changed) * percent // 100] ^= 1
    corpus.write_bytes(changed)
    with pytest.raises(UserError, match=rf"the {split} text of .*text\.txt is not the one run"):
        again(folder, run)


def test_a_run_without_a_record_of_its_text_is_accepted(
    run: RunConfig, corpus: Path, tmp_path: Path
) -> None:
    folder = create(tmp_path / "old", run, read(run).vocab, {})
    corpus.write_text(TEXT + "more\n")
    assert not (folder.path / "data.json").exists()
    assert again(folder, run).split("test").size_bytes > 0


def test_a_run_that_lost_the_record_of_its_text_is_refused(
    folder: RunFolder, run: RunConfig
) -> None:
    folder.metrics.touch()
    assert again(folder, run).split("test").size_bytes > 0
    (folder.path / "data.json").unlink()
    with pytest.raises(UserError, match=r"lost its data\.json"):
        again(folder, run)
    # An imported run was trained elsewhere; its journal begins when it is resumed here.
    folder.write("provenance", {"imported": "model.pt"})
    assert again(folder, run).split("test").size_bytes > 0


def test_other_settings_of_the_text_are_left_to_the_caller(
    folder: RunFolder, run: RunConfig
) -> None:
    other = replace(run, data=replace(run.data, newlines=False))
    assert again(folder, other).config == other.data


def test_the_record_of_an_unfinished_run_is_removed(folder: RunFolder, run: RunConfig) -> None:
    create(folder.path, run, read(run).vocab, {})
    assert not (folder.path / "data.json").exists()


@pytest.mark.parametrize("left", ["metrics.jsonl", "results.json", "checkpoints/best/cursor.json"])
def test_a_folder_with_parts_of_another_run_is_refused(left: str, tmp_path: Path) -> None:
    refuse_used_folder(tmp_path / "out")
    # A run that was killed before it had begun leaves such files.
    (tmp_path / "out" / "checkpoints").mkdir(parents=True)
    (tmp_path / "out" / "vocab.json").write_text("{}")
    refuse_used_folder(tmp_path / "out")
    (tmp_path / "out" / left).parent.mkdir(exist_ok=True)
    (tmp_path / "out" / left).write_text("")
    named = left.removesuffix("/cursor.json")
    with pytest.raises(UserError, match=rf"holds {named} of a run that has lost its config\.json"):
        refuse_used_folder(tmp_path / "out")


@pytest.mark.parametrize("content", [b"[]", b"[1, 2]", b"3", b'"text"', b"", b"{", b"\xff\xfe\x00"])
@pytest.mark.parametrize("name", ["config", "vocab", "provenance", "data", "results"])
def test_a_damaged_file_is_named_in_one_line(
    name: str, content: bytes, folder: RunFolder, run: RunConfig
) -> None:
    (folder.path / f"{name}.json").write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}\.json") as refusal:
        use(folder, run)
    assert "\n" not in str(refusal.value)


def use(folder: RunFolder, run: RunConfig) -> None:
    folder.config()
    again(folder, run)
    folder.read("provenance")
    folder.note_results({"a": 1})


@pytest.mark.parametrize("wrong", [[], {}, None, 7, "x", [[1]], True, -1.5])
def test_a_wrong_setting_is_a_user_error_or_none(
    wrong: Any, folder: RunFolder, run: RunConfig
) -> None:
    whole = to_json(run)
    places = [(name,) for name in whole]
    places += [
        (name, part) for name in whole if isinstance(whole[name], dict) for part in whole[name]
    ]
    for place in places:
        data = json.loads(json.dumps(whole))
        inner = data if len(place) == 1 else data[place[0]]
        inner[place[-1]] = wrong
        folder.write("config", data)
        with suppress(UserError):
            folder.config()


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"kind": []},
        {"kind": "symbols", "symbols": 10**15},
        {"kind": "symbols", "symbols": "abc"},
        {"kind": "characters", "characters": 3},
        {"kind": "words", "words": ["no", "unknown"]},
        {"kind": "pieces", "model": "no base 64"},
    ],
)
def test_a_damaged_vocabulary_is_named(stored: dict[str, Any], folder: RunFolder) -> None:
    folder.write("vocab", stored)
    with pytest.raises(UserError, match=r"vocab\.json is damaged: "):
        folder.vocab()


@pytest.mark.parametrize("cursor", ["[]", "{}", '{"step": "x"}', "3"])
def test_a_damaged_cursor_is_named(cursor: str, folder: RunFolder) -> None:
    last = folder.checkpoints / "last"
    last.mkdir(parents=True)
    (last / "cursor.json").write_text(cursor)
    with pytest.raises(UserError, match=r"cursor\.json is damaged"):
        folder.step("last")
    (last / "cursor.json").write_text('{"step": 3}')
    assert folder.step("last") == 3


def test_the_step_of_a_checkpoint_that_is_being_replaced_is_found(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(folder.checkpoints, "last", numbered(1), IDENTITY)
    read, replaced = folder_module.read_document, []

    def replacing(path: Path, kind: Any) -> Any:
        if not replaced:
            replaced.append(path)
            path.parent.rename(folder.checkpoints / "trash")
            try:
                return read(path, kind)
            finally:
                checkpoint.save(folder.checkpoints, "last", numbered(2), IDENTITY)
        return read(path, kind)

    monkeypatch.setattr(folder_module, "read_document", replacing)
    assert folder.step("last") == 2


def test_results_noted_at_the_same_time_are_all_kept(folder: RunFolder) -> None:
    def note(writer: int) -> None:
        for number in range(20):
            folder.note_results({f"{writer}.{number}": {"step": number}})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(note, range(4)))
    assert len(folder.read("results")) == 80


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_wrong_number_is_refused_before_the_model_is_built(family: str) -> None:
    run = next(made for made in map(recipe, RECIPES) if made.family == family)
    for path, _, _ in described(run.model, "model."):
        for wrong in ("-1", "0", "0.5", "nan", "inf", "[-1]"):
            with suppress(UserError):
                build_model(with_settings(run, [f"{path}={wrong}"]), "meta")
