import pytest
import torch

from sparing.bench.size import SHRINK, settle, small
from sparing.runs.config import with_settings
from sparing.runs.recipes import RECIPES, recipe


def test_auto_is_small_on_a_cpu_and_full_on_a_gpu() -> None:
    assert settle("auto", torch.device("cpu")) == "small"
    assert settle("auto", torch.device("cuda")) == "full"
    assert settle("full", torch.device("cpu")) == "full"
    assert settle("small", torch.device("cuda")) == "small"


@pytest.mark.parametrize("name", [name for name in RECIPES if recipe(name).family == "sha_rnn"])
def test_nothing_is_enlarged_and_the_shape_is_kept(name: str) -> None:
    run = with_settings(recipe(name), ["model.memory=300", "train.batch=3"])
    for purpose in ("train", "generate"):
        shrunk = small(run, purpose)  # type: ignore[arg-type]  # a literal
        assert shrunk.model.dim <= run.model.dim
        assert shrunk.model.memory == 300
        assert shrunk.train.batch == 3
        assert shrunk.train.segment <= run.train.segment
        if run.family == "sha_rnn":
            wider = run.model.boom_dim / run.model.dim
            assert shrunk.model.boom_dim / shrunk.model.dim == wider
            assert shrunk.model.attention_at == run.model.attention_at


def test_the_paper_model_becomes_one_for_two_cores() -> None:
    shrunk = small(recipe("enwik8_sha_rnn"), "train")
    model, train = shrunk.model, shrunk.train
    assert (model.dim, model.depth, model.boom_dim, model.memory) == (512, 4, 2048, 512)
    assert (train.batch, train.segment) == (8, 128)
    assert model.dropout_hidden == 0.1


@pytest.mark.parametrize("name", RECIPES)
def test_a_family_without_a_small_model_keeps_its_own(name: str) -> None:
    run = recipe(name)
    shrunk = small(run, "train")
    assert run.family in SHRINK or shrunk.model == run.model
    assert shrunk == run or shrunk.train.batch * shrunk.train.segment <= 8 * 128


def test_a_model_made_for_a_cpu_is_left_as_it_is() -> None:
    assert small(recipe("quickstart"), "train") == recipe("quickstart")
