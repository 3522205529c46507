"""Types of the arguments of Python callers, checked before anything is done with them."""

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

WORDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "True or False",
    "Literal": "str",
    "PathLike": "a path",
    "device": "a torch.device",
    "Sequence": "a list",
    "Iterable": "a list",
}


def check_arguments(call: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise a TypeError unless `given`, the locals of a call, have the types that it declares."""
    hints = get_type_hints(call)
    for name, value in given.items():
        if name in hints:
            fitting(name, value, hints[name])


def fitting(name: str, value: Any, kind: Any) -> Any:
    """`value`, as a number of Python's if it is one of numpy's; a TypeError if it is no `kind`."""
    plain = value.item() if isinstance(value, np.generic) else value
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if any(_fits(plain, each) for each in kinds):
        return plain
    words = [_words(each) for each in kinds if each is not NoneType]
    raise TypeError(f"`{name}` is {_joined(words)}, not {type(plain).__name__}")


def _fits(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    if isinstance(value, bool) or kind is bool:
        # In Python a bool is a number, too.
        return isinstance(value, bool) and kind is bool
    if get_origin(kind) is Literal:
        return isinstance(value, str)
    numbers: dict[Any, type] = {float: Real, int: Integral}
    return isinstance(value, numbers.get(kind, get_origin(kind) or kind))


def _words(kind: Any) -> str:
    name: str = (get_origin(kind) or kind).__name__
    return WORDS.get(name, name)


def _joined(words: list[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
