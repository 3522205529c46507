import pytest
import torch

from sparing.bench.size import settle, small
from sparing.runs.config import with_settings
from sparing.runs.recipes import RECIPES, recipe


def test_auto_is_small_on_a_cpu_and_full_on_a_gpu() -> None:
    assert settle("auto", torch.device("cpu")) == "small"
    assert settle("auto", torch.device("cuda")) == "full"
    assert settle("full", torch.device("cpu")) == "full"
    assert settle("small", torch.device("cuda")) == "small"


@pytest.mark.parametrize("name", RECIPES)
def test_nothing_is_enlarged_and_the_shape_is_kept(name: str) -> None:
    run = with_settings(recipe(name), ["model.memory=300", "train.batch=3"])
    for purpose in ("train", "generate"):
        shrunk = small(run, purpose)  # type: ignore[arg-type]  # a literal
        assert shrunk.model.dim <= run.model.dim
        assert shrunk.model.memory == 300
        assert shrunk.train.batch == 3
        assert shrunk.train.segment <= run.train.segment
        assert shrunk.model.boom_dim / shrunk.model.dim == run.model.boom_dim / run.model.dim
        assert shrunk.model.attention_at == run.model.attention_at


def test_the_paper_model_becomes_one_for_two_cores() -> None:
    shrunk = small(recipe("enwik8_sha_rnn"), "train")
    model, train = shrunk.model, shrunk.train
    assert (model.dim, model.depth, model.boom_dim, model.memory) == (256, 4, 1024, 512)
    assert (train.batch, train.segment) == (16, 128)
    assert model.dropout_hidden == 0.1
