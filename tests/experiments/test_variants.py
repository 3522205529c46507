"""Variants, as read from the command line."""

import pytest

from sparing.errors import UserError
from sparing.experiments.variants import FOLDER_CHARS, read_variants
from sparing.runs.config import with_settings
from sparing.runs.recipes import recipe

BASE = recipe("quickstart")


def test_the_recipe_comes_first_and_as_it_is() -> None:
    first, second = read_variants(BASE, ["model.memory=7"])
    assert (first.name, first.run, first.settings) == ("recipe", BASE, ())
    assert (second.name, second.run.model.memory) == ("model.memory=7", 7)


@pytest.mark.parametrize(
    "text",
    [
        "no memory: model.attention_at=(0,1); model.memory=9",
        "no  memory :model.attention_at=[0,1];model.memory=9;",
        "no memory: model.attention_at=0,1, model.memory=9",
        "no memory: model.attention_at=(0,1) , model.memory = 9",
    ],
)
def test_settings_are_split_even_if_values_contain_commas(text: str) -> None:
    one = read_variants(BASE, [text])[1]
    assert one.name == "no memory"
    assert one.folder == "no-memory"
    assert one.run.model.attention_at == (0, 1)
    assert one.run.model.memory == 9


def test_a_colon_inside_a_value_does_not_end_a_name() -> None:
    with pytest.raises(UserError, match=r"model\.gelu"):
        read_variants(BASE, ["model.gelu=a:b"])


def test_seeds_are_counted_from_the_recipes_own() -> None:
    base = with_settings(BASE, ["train.seed=40"])
    for one in read_variants(base, ["model.memory=7"]):
        assert [one.with_seed(seed).train.seed for seed in range(3)] == [40, 41, 42]


def test_seeds_beyond_the_largest_are_refused() -> None:
    last = with_settings(BASE, [f"train.seed={2**63 - 1}"])
    one = read_variants(last, ["model.memory=7"])[1]
    assert one.with_seed(0).train.seed == 2**63 - 1
    with pytest.raises(UserError, match=r"train\.seed is too large"):
        one.with_seed(1)


def test_folders_are_short_and_safe() -> None:
    long = read_variants(BASE, [f"{'x' * 300}/../: model.memory=7", "größer: model.memory=8"])
    long += read_variants(BASE, ["日本: model.memory=9", f"{'x' * 300}: model.memory=10"])
    names = {one.folder for one in long}
    assert len(names) == 5
    assert read_variants(BASE, ["model.attention_at=(0,1)"])[1].folder == "model.attention_at=0-1"
    for name in names:
        assert len(name) <= FOLDER_CHARS
        assert name.isascii()
        assert not set(name) & set("/ ;:")
        assert not name.startswith((".", "-"))


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        ([], "at least one --variant"),
        (["model.memory=7", "other: model.memory = 7"], "settings of 'model.memory=7'"),
        ([f"model.dim={BASE.model.dim}"], "settings of 'recipe'"),
        (["recipe: model.memory=7"], "called 'recipe'"),
        (["a b: model.memory=7", "a/b: model.memory=8"], "called 'a-b'"),
        ([""], "cannot read variant"),
        (["name:"], "cannot read variant"),
        (["a\x1bb: model.memory=7"], "cannot read variant"),
        (["model.memory"], "name=value"),
        (["model.memroy=7"], "model.memroy=7: unknown setting 'model.memroy'.*model.memory"),
        (["big: model.dim=x"], "^big: "),
        (["model.memory=-1"], "memory"),
        (["train.minutes=3"], "train.minutes"),
        (["train.steps=3"], "train.steps"),
        (["data.newlines=false"], "data.newlines"),
        (["data.corpus=enwik8"], "data.corpus"),
        (["data.vocab=words"], "data.vocab"),
        (["data.vocab=par-pieces; data.vocab_size=99"], "data.vocab"),
        (["train.seed=9"], "train.seed"),
        (["train.seed=9; model.memory=7"], "train.seed"),
        (["evaluate.batch=99"], "evaluate.batch"),
        (["model.vocab_size=9"], "model.vocab_size"),
    ],
)
def test_what_cannot_be_compared_is_refused(texts: list[str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        read_variants(BASE, texts)
