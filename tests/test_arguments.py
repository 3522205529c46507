"""Arguments of a wrong type are refused in one line, before anything is done with them."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from sparing.arguments import check_arguments, fitting


def call(
    path: str | PathLike[str] = "",
    *,
    minutes: float | None = None,
    size: int = 0,
    fast: bool = False,
    split: Literal["train", "test"] = "train",
    stop: str | Sequence[str] = (),
    **settings: Any,
) -> None:
    """A function whose arguments are checked."""
    check_arguments(call, locals())


@pytest.mark.parametrize(
    "given",
    [
        {"path": "a", "minutes": 3, "size": 2, "fast": True, "split": "test", "stop": ["a"]},
        {"path": Path("a"), "minutes": None, "stop": "a", "anything": object()},
        {"minutes": np.float32(3), "size": np.int64(2), "fast": np.bool_(True)},
        {"minutes": np.int8(3), "path": np.str_("a")},
        # Which names there are is for the function to say.
        {"split": "other"},
    ],
)
def test_arguments_of_the_declared_types_are_accepted(given: dict[str, Any]) -> None:
    call(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"path": 3}, "`path` is str or a path, not int"),
        ({"path": None}, "`path` is str or a path, not NoneType"),
        ({"path": ["a"]}, "`path` is str or a path, not list"),
        ({"minutes": "3"}, "`minutes` is a number, not str"),
        ({"minutes": True}, "`minutes` is a number, not bool"),
        ({"size": 2.0}, "`size` is a whole number, not float"),
        ({"size": np.bool_(True)}, "`size` is a whole number, not bool"),
        ({"fast": 1}, "`fast` is True or False, not int"),
        ({"split": 3}, "`split` is str, not int"),
        ({"stop": {1}}, "`stop` is str or a list, not set"),
    ],
)
def test_other_types_are_refused_by_the_name_of_the_argument(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(TypeError) as refused:
        call(**given)
    assert str(refused.value) == said


def test_numbers_of_numpy_become_those_of_python() -> None:
    # An int8 would overflow at the first seed added to it.
    assert type(fitting("seed", np.int8(127), int)) is int
    assert type(fitting("temperature", np.float32(0.5), float)) is float
    assert fitting("top_p", 1, float) == 1
