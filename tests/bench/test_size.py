import pytest
import torch

from sparing.bench.size import DIM, resolve_size, small
from sparing.models.cost import cost
from sparing.runs.build import build_model
from sparing.runs.config import with_settings
from sparing.runs.recipes import RECIPES, recipe


def test_auto_is_small_on_a_cpu_and_full_on_a_gpu() -> None:
    assert resolve_size("auto", torch.device("cpu")) == "small"
    assert resolve_size("auto", torch.device("cuda")) == "full"
    assert resolve_size("full", torch.device("cpu")) == "full"
    assert resolve_size("small", torch.device("cuda")) == "small"


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
def test_every_recipe_becomes_small(name: str) -> None:
    for purpose in DIM:
        run = small(recipe(name), purpose)
        counted = cost(build_model(run, "meta"))
        assert counted.parameters_training < 25e6
        assert run.train.batch * counted.state_bytes < 60e6
        assert run == recipe(name) or run.train.batch * run.train.segment <= 8 * 128


def test_a_stack_keeps_two_blocks_of_every_kind() -> None:
    patterns = {
        name: small(recipe(name), "train").model.pattern
        for name in ("enwik8_20min", "enwik8_20min_sha", "enwik8_sandwich", "toy_par_search")
    }
    assert list(patterns.values()) == ["gafgaf", "lflfa", "xxff", "xfxf"]


def test_recurrent_layers_are_what_is_narrowed() -> None:
    model = small(recipe("enwik8_mlstm"), "train").model
    assert (model.hidden_dim, model.dim) == (512, 400 * 512 // 2800)


def test_a_model_made_for_a_cpu_is_left_as_it_is() -> None:
    assert small(recipe("quickstart"), "train") == recipe("quickstart")
