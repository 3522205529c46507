"""References: what the package holds of published runs."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from sparing.data.vocab import ByteVocab
from sparing.errors import UserError
from sparing.runs.config import with_settings
from sparing.runs.folder import create, open_run
from sparing.runs.recipes import RECIPES, recipe
from sparing.runs.reference import (
    HOME,
    find_reference,
    read_figures,
    reference_of,
    without_harmless,
)

RESULTS = Path(__file__).parents[2] / "results"
NAMES = sorted(path.stem for path in HOME.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_a_reference_is_the_published_run(name: str) -> None:
    published = reference_of(open_run(RESULTS / name / "seed1111"))
    assert asdict(find_reference(name)) == asdict(published)


@pytest.mark.parametrize("name", NAMES)
def test_the_recipe_still_has_the_settings_of_its_figure(name: str) -> None:
    assert name in RECIPES
    found, now = find_reference(name).run(), recipe(name)
    if found.train.minutes is None:
        # Made with as many steps as an idle machine makes in the recipe's minutes.
        budget = {"steps": None, "minutes": now.train.minutes}
        found = replace(found, train=replace(found.train, **budget))
    # A figure is measured again as it was, in however many streams it was read.
    found = replace(found, evaluate=now.evaluate)
    assert without_harmless(found) == without_harmless(now)


@pytest.mark.parametrize("name", NAMES)
def test_a_reference_has_a_curve_and_both_figures(name: str) -> None:
    found = find_reference(name)
    assert found.figures.keys() == {"valid", "test"}
    assert len(found.curve.steps) > 50
    assert list(found.curve.steps) == sorted(set(found.curve.steps))


@pytest.mark.parametrize("name", [name for name in NAMES if find_reference(name).pace()])
def test_its_pace_uses_the_budget_up_with_the_last_step(name: str) -> None:
    found = find_reference(name)
    pace, minutes = found.pace(), found.run().train.minutes
    assert pace is not None
    assert minutes is not None
    used_s = [pace.seconds_at(step) for step in range(found.steps + 1)]
    assert used_s == sorted(used_s)
    assert 0 < used_s[0] < 60
    assert used_s[-2] < 60 * minutes <= used_s[-1]
    middle = len(found.curve.steps) // 2
    assert pace.seconds_at(found.curve.steps[middle]) == found.curve.elapsed_s[middle]


@pytest.mark.parametrize(
    ("settings", "suffix", "how"),
    [
        ([], "", "32 carried streams, segment 256"),
        (["evaluate.batch=1"], "", "1 carried stream, segment 256"),
        (["data.newlines=false"], ", no-newlines", "32 carried streams, segment 256"),
    ],
)
def test_figures_are_found_however_the_settings_read_the_text(
    settings: list[str], suffix: str, how: str, tmp_path: Path
) -> None:
    folder = create(tmp_path, with_settings(recipe("quickstart"), settings), ByteVocab(), {})
    usual = {"step": 3, "how": how, "bits_per_byte": 1.5}
    other = {**usual, "how": f"{how}0", "bits_per_byte": 1.7}
    folder.note_results({f"valid{suffix}": other, f"test{suffix}": usual})
    assert read_figures(folder) == {"test": 1.5}


def test_a_recipe_without_a_reference_is_answered_with_those_that_have_one() -> None:
    with pytest.raises(UserError, match="recipe with a reference"):
        find_reference("enwik8_mlstm")
