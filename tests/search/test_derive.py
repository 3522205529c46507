"""From a search's last checkpoint to a network and its recipe."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.search.small import searched_run

from sparing.errors import UserError
from sparing.runs.config import from_json, to_json, with_settings
from sparing.runs.folder import RunFolder, open_run
from sparing.runs.recipes import recipe
from sparing.search.derive import derive, derive_pattern, explain_pattern, share_of_baseline
from sparing.search.run import conclude


def write_journal(folder: RunFolder, *choices: str) -> None:
    """A journal of preferences, equal ones where no pattern is named."""
    lines = []
    for step, pattern in enumerate(choices):
        pairs = [(slot, letter) for slot in range(4) for letter in "xfi"]
        pi = {f"pi.{n}.{x}": 0.8 if x == pattern[n : n + 1] else 0.1 for n, x in pairs}
        lines.append(json.dumps({"kind": "train", "step": step, **pi}) + "\n")
    folder.metrics.write_text("".join(lines))
    folder.note_results({"training": {"steps": len(choices)}})


def test_the_choices_become_a_pattern_without_identities(tmp_path: Path) -> None:
    folder = searched_run(tmp_path / "run", "xifi")
    assert derive_pattern(folder) == "xf"
    run = derive(folder)
    assert (run.family, run.model.pattern, run.model.dim) == ("stack", "xf", 8)
    assert run.recipe == "toy_par_search_derived"
    assert from_json(to_json(run)) == run


def test_a_budget_is_kept_even_where_the_choices_exceed_it(tmp_path: Path) -> None:
    costs = ["model.search.costs=3,1,0", "model.search.budget=0.5"]
    # Four attention blocks would cost 12; the limit is half of 3 + 1 + 3 + 1.
    folder = searched_run(tmp_path / "run", "xxxx", *costs)
    pattern = derive_pattern(folder)
    assert len(pattern) < 4
    assert share_of_baseline(folder.config().model, pattern) <= 0.5


TOO_DEAR = (
    "the favourites cost 150% of the baseline, more than the budget of 50%; this is the likeliest "
    "pattern that fits"
)
NOT_SPENT = "the favourites leave a part of the budget; it went to the next likeliest blocks"


@pytest.mark.parametrize(
    ("favourites", "budget", "why"),
    [("xxxx", "0.5", TOO_DEAR), ("xiii", "0.9", NOT_SPENT), ("xfxf", "1.0", None)],
)
def test_blocks_are_named_and_other_choices_than_the_favourites_explained(
    favourites: str, budget: str, why: str | None, tmp_path: Path
) -> None:
    costs = ["model.search.costs=3,1,0", f"model.search.budget={budget}"]
    folder = searched_run(tmp_path / "run", favourites, *costs)
    pattern = derive_pattern(folder)
    found = explain_pattern(folder, pattern)
    assert found["favourites"] == favourites
    assert found.get("why_not_favourites") == why
    titles = {"x": "Transformer-XL attention", "f": "feed-forward"}
    assert found["blocks"] == {letter: titles[letter] for letter in dict.fromkeys(pattern)}


def test_the_pattern_goes_into_another_recipe(tmp_path: Path) -> None:
    folder = searched_run(tmp_path / "run", "fxff")
    run = derive(folder, recipe("wikitext2_par"))
    assert run.model.pattern == "fxff"
    assert run.model.dim == recipe("wikitext2_par").model.dim
    with pytest.raises(UserError, match="is not a stack"):
        derive(folder, recipe("quickstart"))
    into = with_settings(recipe("wikitext2_par"), ["model.pattern=[xf]", "model.rounds=2"])
    with pytest.raises(UserError, match=r"2 times .* set model\.rounds=1"):
        derive(folder, into)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda text: text[: len(text) // 2], "ends at step 1, the search at 4"),
        (
            lambda text: text.replace("0.8", "NaN"),
            "run is damaged: .* are not probabilities",
        ),
        (lambda text: text.replace("0.8", '"x"'), "are not probabilities"),
        (lambda text: text.replace("0.8", "-3.0"), "are not probabilities"),
        (lambda text: text.replace('"pi.3.x": 0.1, ', ""), "are not probabilities"),
        (lambda text: text.replace(".x", ".a"), "of another search"),
        (lambda text: text.replace("pi.3", "note.3"), "of another search"),
    ],
)
def test_a_damaged_journal_is_refused(
    tmp_path: Path, damage: Callable[[str], str], complaint: str
) -> None:
    folder = searched_run(tmp_path / "run", "xffi")
    shutil.rmtree(folder.checkpoints)
    write_journal(folder, "xffi", "fxfi", "fxfi", "fxfi")
    folder.metrics.write_text(damage(folder.metrics.read_text()))
    with pytest.raises(UserError, match=complaint):
        derive(folder)


@pytest.mark.parametrize("results", [{}, {"training": None}, {"training": {}}])
def test_a_journal_without_its_end_is_refused(tmp_path: Path, results: object) -> None:
    folder = searched_run(tmp_path / "run", "xffi")
    shutil.rmtree(folder.checkpoints)
    write_journal(folder, "fxfi")
    folder.write("results", results)
    with pytest.raises(UserError, match="not finished"):
        derive(folder)
    (folder.path / "results.json").unlink()
    with pytest.raises(UserError, match="not finished"):
        derive(folder)


def test_weights_that_were_asked_for_are_not_replaced_by_the_journal(tmp_path: Path) -> None:
    folder = searched_run(tmp_path / "run", "xffi")
    shutil.rmtree(folder.checkpoints)
    write_journal(folder, "fxfi")
    with pytest.raises(UserError, match="no checkpoint"):
        derive(folder, name="best")


def test_an_older_checkpoint_can_be_asked_for(tmp_path: Path) -> None:
    folder = searched_run(tmp_path / "run", "xfxf", best="ffff")
    assert derive(folder, name="best").model.pattern == "ffff"


def test_the_rest_of_a_budget_is_spent(tmp_path: Path) -> None:
    costs = ["model.search.costs=3,1,0", "model.search.budget=0.75"]
    # The choices cost 3 of the 6 that are allowed: dense blocks replace identities.
    folder = searched_run(tmp_path / "run", "ixii", *costs)
    assert derive_pattern(folder) == "fxff"
    free = searched_run(tmp_path / "free", "ixii")
    assert derive_pattern(free) == "x"


def test_without_weights_the_pattern_is_read_from_the_journal(tmp_path: Path) -> None:
    folder = searched_run(tmp_path / "run", "xffi")
    shutil.rmtree(folder.checkpoints)
    with pytest.raises(UserError, match="no checkpoint"):
        derive_pattern(folder)
    folder.checkpoints.mkdir()
    write_journal(folder, "xxxx", "fxfi")
    assert derive(folder).model.pattern == "fxf"
    write_journal(folder, "fxfi", "")
    with pytest.raises(UserError, match="before any preference was learned"):
        derive(folder)


def test_identities_alone_are_no_network(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="identities alone"):
        derive(searched_run(tmp_path / "run", "iiii"))


def test_a_search_that_learned_no_preference_is_refused_and_has_a_log(tmp_path: Path) -> None:
    folder = searched_run(tmp_path / "run", "")
    folder.metrics.write_text("")
    with pytest.raises(UserError, match="before any preference was learned"):
        conclude(folder)
    assert (folder.path / "search.log").exists()
    assert not (folder.path / "recipe.json").exists()


def test_a_run_that_is_no_search_is_refused(tmp_path: Path) -> None:
    folder = searched_run(tmp_path / "run", "xfif")
    stored = folder.read("config")
    stored["family"] = "stack"
    stored["model"] = {"vocab_size": 256, "pattern": "xf"}
    folder.write("config", stored)
    with pytest.raises(UserError, match="not a search"):
        derive(open_run(tmp_path / "run"))


def test_the_last_preferences_count_not_the_best_loss(tmp_path: Path) -> None:
    folder = searched_run(tmp_path / "run", "xfxf", best="ffff")
    assert derive_pattern(folder) == "xfxf"
    assert torch.is_grad_enabled()
