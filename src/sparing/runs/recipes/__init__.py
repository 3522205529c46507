"""Named runs. A recipe is a function that returns a config; its docstring says what to expect."""

from collections.abc import Callable, Mapping
from inspect import cleandoc

from sparing.errors import unknown_name
from sparing.runs.config import RunConfig
from sparing.runs.recipes import adaptive_span, awd_lstm, mlstm, par, sha_rnn, stack, transformer_xl

Recipe = Callable[[], RunConfig]

RECIPES: Mapping[str, Recipe] = {
    recipe.__name__: recipe
    for family in (sha_rnn, adaptive_span, transformer_xl, awd_lstm, mlstm, stack, par)
    for recipe in family.RECIPES
}


def recipe(name: str) -> RunConfig:
    """The config of a recipe."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name]()


def expectation(name: str) -> str:
    """What a recipe is and what to expect of it: its docstring."""
    return cleandoc(RECIPES[name].__doc__ or "")
