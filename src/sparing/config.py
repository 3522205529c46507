"""Frozen dataclasses as settings: to and from JSON, and `a.b=3` from the command line.

A config is a value: complete when made, never changed, only replaced.
"""

import ast
import dataclasses
import inspect
import itertools
import json
import textwrap
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from sparing.errors import UserError, unknown_name

Config = TypeVar("Config")


def to_json(config: Any) -> dict[str, Any]:
    """A plain dict that `from_json` turns back into an equal config."""
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def from_json(kind: type[Config], data: Mapping[str, Any], where: str = "") -> Config:
    """Build a config of `kind`, checking every name and type on the way."""
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
    return kind(**values)


def with_settings(config: Config, settings: Sequence[str]) -> Config:
    """Apply `a.b=3` assignments, all at once: only the outcome has to make sense."""
    edits: dict[str, str] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path.strip():
            raise UserError(f"cannot read setting {setting!r}; write it as name=value")
        edits[path.strip()] = text.strip()
    return _edited(config, edits, "")


def _edited(config: Config, edits: Mapping[str, str], where: str) -> Config:
    hints = get_type_hints(type(config))
    _refuse_unknown(hints, [path.partition(".")[0] for path in edits], where)
    values: dict[str, Any] = {}
    for name in dict.fromkeys(path.partition(".")[0] for path in edits):
        current, whole = getattr(config, name), f"{where}{name}"
        inner = {
            path.partition(".")[2]: text
            for path, text in edits.items()
            if path.partition(".")[0] == name
        }
        if dataclasses.is_dataclass(current) and not isinstance(current, type):
            if "" in inner:
                raise UserError(f"{whole} is a group of settings; name one of its fields")
            values[name] = _edited(current, inner, f"{whole}.")
        elif set(inner) != {""}:
            raise UserError(f"setting {whole} has no fields")
        else:
            values[name] = coerce(_understood(inner[""], hints[name]), hints[name], whole)
    return dataclasses.replace(config, **values)  # type: ignore[type-var]  # a dataclass


def coerce(value: Any, hint: Any, where: str) -> Any:
    """`value` as the annotated type, or a UserError that names the setting."""
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
    if hint is Any:
        return value
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


def _understood(text: str, hint: Any) -> Any:
    """`text` as a value for `coerce`; where words are wanted they stay as they were typed."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        others = [argument for argument in arguments if argument is not type(None)]
        if len(others) == 1 and text.lower() not in ("none", "null"):
            return _understood(text, others[0])
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
    """Docstrings under fields, inherited ones too; Python does not keep them, the source does."""
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
    left, right = _flat(to_json(old)), _flat(to_json(new))
    return [
        f"{key}: {json.dumps(left.get(key))} -> {json.dumps(right.get(key))}"
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key)
    ]


def _flat(data: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{where}{key}.")
        else:
            flat[f"{where}{key}"] = value
    return flat
