"""What tab completion offers."""

from pathlib import Path

import pytest

from sparing.cli.complete import complete_corpora, complete_recipes, complete_runs
from sparing.data.corpora import CORPORA
from sparing.runs.recipes import RECIPES


def test_every_recipe_and_corpus_is_offered() -> None:
    assert sorted(complete_recipes("")) == sorted(RECIPES)
    assert complete_recipes("quick") == ["quickstart"]
    assert complete_corpora("") == list(CORPORA)


def test_run_folders_are_found_below_what_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("runs/a", "runs/b/seed1", "runs/.hidden", "other/c", "empty"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("runs/a", "runs/b/seed1", "runs/.hidden", "other/c"):
        (tmp_path / name / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert complete_runs("") == ["other/c", "runs/a", "runs/b/seed1"]
    assert complete_runs("ru") == ["runs/a", "runs/b/seed1"]
    assert complete_runs("runs/b") == ["runs/b/seed1"]
    assert complete_runs(f"{tmp_path}/o") == [f"{tmp_path}/other/c"]
    assert complete_runs("nowhere/x") == []
