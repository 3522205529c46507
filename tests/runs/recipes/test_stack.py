"""The recipes of twenty minutes: their sizes, and that they are the runs of their figures."""

from dataclasses import replace
from pathlib import Path

import pytest

from sparing.models.cost import cost
from sparing.runs.build import build_model
from sparing.runs.folder import open_run
from sparing.runs.recipes import expectation, recipe

RESULTS = Path(__file__).parents[3] / "results"
LARGEST = {
    "enwik8_20min": 60e6,
    "enwik8_20min_span": 40e6,
    "enwik8_20min_sha": 55e6,
    "enwik8_small": 8e6,
}


@pytest.mark.parametrize("name", LARGEST)
def test_a_recipe_is_the_run_whose_figure_it_tells(name: str) -> None:
    folder = open_run(RESULTS / name / "seed1111")
    run = recipe(name)
    # The figure of `enwik8_20min_sha` was read in 32 streams, and says so.
    assert replace(folder.config(), evaluate=run.evaluate) == run
    assert f"{folder.results()['test']['bits_per_byte']:.4f}" in expectation(name)


@pytest.mark.parametrize("name", LARGEST)
def test_a_recipe_is_as_small_as_asked_and_leaves_time_for_its_last_checkpoint(name: str) -> None:
    run = recipe(name)
    assert 0.9 * LARGEST[name] < cost(build_model(run, "meta")).parameters_deployed <= LARGEST[name]
    assert run.train.minutes < 20


def test_sha_has_exactly_one_single_headed_attention() -> None:
    config = recipe("enwik8_20min_sha").model
    assert (config.letters.count("a"), config.windowed.heads) == (1, 1)
    assert set(config.letters) == {"l", "f", "a"}
