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
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from sparing.documents import MisfitError, conform, refusals_located
from sparing.errors import UserError, unknown_setting

Config = TypeVar("Config")


def to_json(config: Any) -> dict[str, Any]:
    """A plain dict from which `from_json` builds an equal config."""
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def from_json(kind: type[Config], data: Any, where: str = "") -> Config:
    """Build a config of `kind`, checking names and types; missing settings get their defaults."""
    with refusals_named():
        return cast("Config", conform(data, kind, where))


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
    hints = get_type_hints(type(config), include_extras=True)
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
            with refusals_named():
                values[name] = conform(_parse(inner[""], hints[name]), hints[name], path)
    with refusals_named(where.rstrip(".")):
        return dataclasses.replace(config, **values)  # type: ignore[type-var]  # a dataclass


@contextmanager
def refusals_named(where: str = "") -> Iterator[None]:
    """Turn the ValueError of a config that refuses its values into a UserError that names it."""
    try:
        with refusals_located(where):
            yield
    except MisfitError as problem:
        raise UserError(f"bad setting: {problem}") from None


def _parse(text: str, hint: Any) -> Any:
    """`text` as a value for `conform`; where the setting is text, it stays as it was typed."""
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
    return () if origin is tuple and not text else _literal(text)


def _literal(text: str) -> Any:
    """`true`, `none`, numbers, and comma lists as Python values; anything else is a string."""
    words = {"true": True, "false": False, "none": None, "null": None, "": ""}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


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
