"""Frozen dataclasses as settings: to and from JSON, and `a.b=3` from the command line.

A config is a value: complete when it is built, and replaced rather than changed. A config that
refuses its values raises ValueError; here that becomes a UserError that names the setting.
"""

import ast
import dataclasses
import inspect
import itertools
import json
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from sparing.errors import UserError, unknown_name, unknown_setting

Config = TypeVar("Config")


def to_json(config: Any) -> dict[str, Any]:
    """A plain dict from which `from_json` builds an equal config."""
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def from_json(kind: type[Config], data: Mapping[str, Any], where: str = "") -> Config:
    """Build a config of `kind`, checking names and types; missing settings get their defaults."""
    hints = get_type_hints(kind)
    _refuse_unknown(hints, data, where)
    values = {name: coerce(value, hints[name], f"{where}{name}") for name, value in data.items()}
    missing = [
        field.name
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]  # kind is a dataclass
        if field.name not in values
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UserError(f"setting {where}{missing[0]} is missing")
    with refusals_named(where):
        return kind(**values)


def with_settings(config: Config, settings: Sequence[str]) -> Config:
    """Apply `a.b=3` assignments, all at once: only the result has to be valid."""
    edits: dict[str, str] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path.strip():
            raise UserError(f"cannot read setting {setting!r}; write it as name=value")
        edits[path.strip()] = text.strip()
    _refuse_unknown_settings(config, edits)
    return _edit(config, edits, "")


def _edit(config: Config, edits: Mapping[str, str], where: str) -> Config:
    hints = get_type_hints(type(config))
    values: dict[str, Any] = {}
    for name in dict.fromkeys(path.partition(".")[0] for path in edits):
        current, path = getattr(config, name), f"{where}{name}"
        inner = {
            edit.partition(".")[2]: text
            for edit, text in edits.items()
            if edit.partition(".")[0] == name
        }
        if dataclasses.is_dataclass(current) and not isinstance(current, type):
            if "" in inner:
                fields = ", ".join(f"{path}.{field}" for field in to_json(current))
                raise UserError(f"{path} is a group of settings; name one of them: {fields}")
            values[name] = _edit(current, inner, f"{path}.")
        elif set(inner) != {""}:
            raise UserError(f"setting {path} has no fields")
        else:
            values[name] = coerce(_parse(inner[""], hints[name]), hints[name], path)
    with refusals_named(where):
        return dataclasses.replace(config, **values)  # type: ignore[type-var]  # a dataclass


@contextmanager
def refusals_named(where: str) -> Iterator[None]:
    """Turn the ValueError of a config that refuses its values into a UserError that names it."""
    try:
        yield
    except ValueError as problem:
        group = where.rstrip(".")
        named = not group or f"{group}." in str(problem)
        raise UserError(f"bad setting: {'' if named else f'{group}: '}{problem}") from None


def coerce(value: Any, hint: Any, where: str) -> Any:
    """`value` as the annotated type, or a UserError that names the setting."""
    if isinstance(hint, TypeVar):
        # The part in which a generic config differs; `from_json` gets it complete.
        return value
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _coerce_union(value, arguments, where)
    if origin is Literal:
        if value not in arguments:
            raise unknown_name(f"value for {where}:", str(value), [str(a) for a in arguments])
        return value
    if origin is tuple:
        return _coerce_tuple(value, arguments, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, hint):
            return value
        if not isinstance(value, Mapping):
            raise UserError(f"setting {where} must be a group of settings, not {value!r}")
        return from_json(hint, value, f"{where}.")
    return _coerce_scalar(value, hint, where)


def _coerce_scalar(value: Any, hint: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise UserError(f"setting {where} must be {_name(hint)}, not {value!r}")


def _coerce_union(value: Any, arguments: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    problems: list[UserError] = []
    for argument in arguments:
        if argument is type(None):
            continue
        try:
            return coerce(value, argument, where)
        except UserError as problem:
            problems.append(problem)
    raise problems[0]


def _coerce_tuple(value: Any, arguments: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if isinstance(value, str | Mapping):
        raise UserError(f"setting {where} must be a list such as 1,2, not {value!r}")
    items = list(value) if isinstance(value, Sequence) else [value]
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(coerce(item, arguments[0], where) for item in items)
    if len(items) != len(arguments):
        raise UserError(f"setting {where} needs {len(arguments)} values, not {len(items)}")
    return tuple(coerce(item, kind, where) for item, kind in zip(items, arguments, strict=True))


def _parse(text: str, hint: Any) -> Any:
    """`text` as a value for `coerce`; where the setting is text, it stays as it was typed."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        others = [argument for argument in arguments if argument is not type(None)]
        if len(others) == 1 and text.lower() not in ("none", "null"):
            return _parse(text, others[0])
    if hint is str or (origin is Literal and all(isinstance(word, str) for word in arguments)):
        return text
    if origin is tuple and arguments == (str, ...):
        words = [] if text == "()" else [word.strip() for word in text.split(",")]
        return words[:-1] if words and not words[-1] else words
    return _literal(text)


def _literal(text: str) -> Any:
    """`true`, `none`, numbers, and comma lists as Python values; anything else is a string."""
    words = {"true": True, "false": False, "none": None, "null": None, "": ""}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _refuse_unknown(known: Mapping[str, Any], given: Any, where: str) -> None:
    for name in given:
        if name not in known:
            raise unknown_name("setting", f"{where}{name}", [f"{where}{field}" for field in known])


def _refuse_unknown_settings(config: Any, edits: Iterable[str]) -> None:
    """Refuse names of settings that do not exist; any group may have the one that was meant."""
    known = list(flatten(to_json(config)))
    # Of the fields of a setting that has none, `_edit` says so.
    begins = {*known, *(path[:at] for path in known for at, c in enumerate(path) if c == ".")}
    for edit in edits:
        if edit not in begins and not edit.startswith(tuple(f"{path}." for path in known)):
            raise unknown_setting(edit, begins)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_json(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _name(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))


def described(config: Any, where: str = "") -> list[tuple[str, Any, str]]:
    """Every setting as (path, value, the docstring under its field)."""
    rows: list[tuple[str, Any, str]] = []
    notes = _field_notes(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            rows += described(value, f"{where}{field.name}.")
        else:
            rows.append((f"{where}{field.name}", value, notes.get(field.name, "")))
    return rows


def _field_notes(kind: type) -> dict[str, str]:
    """The docstrings under fields, read from the source; inherited ones too."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    base = kind.__base__
    inherited = _field_notes(base) if base and dataclasses.is_dataclass(base) else {}
    return inherited | {
        field.target.id: " ".join(str(note.value.value).split())
        for field, note in itertools.pairwise(body.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(note, ast.Expr)
        and isinstance(note.value, ast.Constant)
    }


def differences(old: Any, new: Any) -> list[str]:
    """The settings in which two configs of one kind differ, as `path: old -> new`."""
    left, right = flatten(to_json(old)), flatten(to_json(new))
    return [
        f"{key}: {json.dumps(left.get(key))} -> {json.dumps(right.get(key))}"
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key)
    ]


def flatten(data: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """The values of nested groups by their paths, such as `a.b`."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{where}{key}.")
        else:
            flat[f"{where}{key}"] = value
    return flat
