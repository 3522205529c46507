"""Plain data checked against declared types: the one door for settings and stored JSON.

A dataclass is closed: names that it does not know are refused. A TypedDict is open: names that it
does not declare are kept, so that a file can be rewritten without losing them.
"""

import dataclasses
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    Required,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from sparing.errors import UserError, closest_name
from sparing.files import read_json

Kind = TypeVar("Kind")
Count = Annotated[int, "0 or more"]
Figure = Annotated[float, "finite or not"]
"""A measured number; the loss of a run that diverged is NaN."""
WORDS = {
    int: "a whole number",
    Count: "a whole number of at least 0",
    float: "a number",
    Figure: "a number",
    bool: "true or false",
    str: "text",
}
LARGEST = 2**63 - 1
SHOWN = 40
"""Characters of a value in a message."""


class MisfitError(ValueError):
    """Data that does not fit its declared type; the message names the place."""


def read_document(path: Path, kind: type[Kind]) -> Kind:
    """Read a stored JSON file as `kind`; raise a UserError if it is missing or damaged."""
    with damage_named(path):
        return cast("Kind", conform(read_json(path), kind))


@contextmanager
def damage_named(path: Path | str) -> Iterator[None]:
    """Turn a MisfitError into a UserError that names the file."""
    try:
        yield
    except MisfitError as problem:
        raise UserError(f"{path} is damaged: {problem}") from None


def conform(value: Any, kind: Any, where: str = "") -> Any:
    """`value` as the annotated type `kind`, or a MisfitError that names the place `where`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any or isinstance(kind, TypeVar):
        # A TypeVar is the part in which a generic config differs; it is given complete.
        return value
    if origin is Required:
        return conform(value, arguments[0], where)
    if origin in (Union, types.UnionType):
        return _conform_union(value, arguments, where)
    if origin is Literal:
        return _conform_choice(value, arguments, where)
    if origin is tuple:
        return _conform_tuple(value, arguments, where)
    if origin is list:
        if not isinstance(value, list):
            raise _misfit(where, "a list", value)
        return [conform(item, arguments[0], where) for item in value]
    if origin is dict:
        names = _mapping(value, where)
        return {name: conform(each, arguments[1], _at(where, name)) for name, each in names.items()}
    if is_typeddict(kind) or dataclasses.is_dataclass(kind):
        return value if type(value) is kind else _conform_fields(value, kind, where)
    return _conform_scalar(value, kind, where)


def _conform_fields(value: Any, kind: Any, where: str) -> Any:
    given, (hints, required) = _mapping(value, where), _declared(kind)
    closed = dataclasses.is_dataclass(kind)
    for name in given:
        if closed and name not in hints:
            known, path = [_at(where, field) for field in hints], _at(where, name)[:SHOWN]
            raise MisfitError(f"{path} is unknown; {closest_name(path, known)}")
    for name in required:
        if name not in given:
            raise MisfitError(f"{_at(where, name)} is missing")
    values = {
        name: conform(each, hints.get(name, Any), _at(where, name)) for name, each in given.items()
    }
    with refusals_located(where):
        return kind(**values)


@cache
def _declared(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The types of all fields by name, and the names of those that must be given."""
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        return hints, kind.__required_keys__
    needed = (
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    )
    return hints, frozenset(needed)


@contextmanager
def refusals_located(where: str) -> Iterator[None]:
    """Make the error of a dataclass that refuses its values say which one it is."""
    try:
        yield
    except (ValueError, ArithmeticError) as problem:
        named = not where or f"{where}." in str(problem)
        raise MisfitError(f"{problem}" if named else f"{where}: {problem}") from None


def _conform_union(value: Any, arguments: Sequence[Any], where: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    problems: list[MisfitError] = []
    for argument in arguments:
        if argument is type(None):
            continue
        try:
            return conform(value, argument, where)
        except MisfitError as problem:
            problems.append(problem)
    raise problems[0]


def _conform_choice(value: Any, choices: Sequence[Any], where: str) -> Any:
    for choice in choices:
        # Compared with their types: 1 is not true.
        if type(value) is type(choice) and value == choice:
            return value
    hint = closest_name(shown(value).strip("'"), [str(choice) for choice in choices])
    raise MisfitError(f"{_named(where)} cannot be {shown(value)}; {hint}")


def _conform_tuple(value: Any, arguments: Sequence[Any], where: str) -> tuple[Any, ...]:
    if isinstance(value, str | Mapping):
        raise _misfit(where, "a list such as 1,2", value)
    items = list(value) if isinstance(value, Sequence) else [value]
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(conform(item, arguments[0], where) for item in items)
    if len(items) != len(arguments):
        raise MisfitError(f"{_named(where)} needs {len(arguments)} values, not {len(items)}")
    return tuple(conform(item, kind, where) for item, kind in zip(items, arguments, strict=True))


def _conform_scalar(value: Any, kind: Any, where: str) -> Any:
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if isinstance(value, int) and abs(value) > LARGEST:
        raise MisfitError(f"{_named(where)} is too large a number: {shown(value)}")
    if plain is float and type(value) is int:
        value = float(value)
    if plain is int and isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST:
        value = int(value)
    if type(value) is not plain or not _in_range(value, kind):
        raise _misfit(where, WORDS.get(kind, getattr(plain, "__name__", str(plain))), value)
    return value


def _in_range(value: Any, kind: Any) -> bool:
    if isinstance(value, float):
        return kind == Figure or math.isfinite(value)
    return kind != Count or bool(value >= 0)


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _misfit(where, "a group of named values", value)
    return value


def _misfit(where: str, wanted: str, value: Any) -> MisfitError:
    return MisfitError(f"{_named(where)} must be {wanted}, not {shown(value)}")


def _named(where: str) -> str:
    return where or "its content"


def _at(where: str, name: Any) -> str:
    return f"{where}.{name}" if where else str(name)


def shown(value: Any) -> str:
    """A value in a message, cut short."""
    try:
        text = repr(value)
    except ValueError:
        # Python refuses to write out a whole number of more than 4300 digits.
        return "a number of thousands of digits"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
