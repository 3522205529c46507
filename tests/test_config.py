"""Settings: JSON, `a.b=3`, and what is refused."""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from sparing.config import differences, from_json, to_json, with_settings
from sparing.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Inner:
    width: int = 4
    rate: float = 0.5
    layers: tuple[int, ...] = (1,)
    kind: Literal["plain", "fancy"] = "plain"
    limit: int | None = None

    def __post_init__(self) -> None:
        if any(layer >= self.width for layer in self.layers):
            raise ValueError("layers must be below width")


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)
    on: bool = False


BASE = Outer(name="x")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("inner.width=7", Outer(name="x", inner=Inner(width=7))),
        ("inner.rate=1", Outer(name="x", inner=Inner(rate=1.0))),
        ("inner.rate=1e-3", Outer(name="x", inner=Inner(rate=1e-3))),
        ("inner.layers=0,2", Outer(name="x", inner=Inner(layers=(0, 2)))),
        ("inner.layers=3", Outer(name="x", inner=Inner(layers=(3,)))),
        ("inner.layers=()", Outer(name="x", inner=Inner(layers=()))),
        ("inner.kind=fancy", Outer(name="x", inner=Inner(kind="fancy"))),
        ("inner.limit=3", Outer(name="x", inner=Inner(limit=3))),
        ("on=true", Outer(name="x", on=True)),
        ("name=some/path", Outer(name="some/path")),
        ("name=a=b", Outer(name="a=b")),
    ],
)
def test_a_setting_changes_one_field(setting: str, expected: Outer) -> None:
    assert with_settings(BASE, [setting]) == expected
    assert from_json(Outer, to_json(expected)) == expected


def test_settings_are_applied_together_so_their_order_does_not_matter() -> None:
    wanted = Outer(name="x", inner=Inner(width=9, layers=(8,)))
    assert with_settings(BASE, ["inner.layers=8", "inner.width=9"]) == wanted
    assert with_settings(BASE, ["inner.width=9", "inner.layers=8"]) == wanted


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("inner.widht=7", "did you mean 'inner.width'"),
        ("iner.width=7", "did you mean 'inner.width'"),
        ("width=7", "did you mean 'inner.width'"),
        ("innr=7", "did you mean 'inner'"),
        ("xyzzy=7", "`sparing info RECIPE --config` lists them"),
        ("inner.width=wide", "inner.width must be a whole number"),
        ("inner.width=1.5", "inner.width must be a whole number"),
        ("inner.width=true", "inner.width must be a whole number"),
        ("on=3", "on must be true or false"),
        ("inner.kind=fanzy", "did you mean 'fancy'"),
        ("inner=3", "group of settings; name one of them: inner.width, inner.rate, "),
        ("inner.width.more=3", "inner.width has no fields"),
        ("inner.width", "name=value"),
        ("=3", "name=value"),
        ("inner.layers=a,b", "inner.layers"),
    ],
)
def test_bad_settings_are_named(setting: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        with_settings(BASE, [setting])


@dataclass(frozen=True, kw_only=True)
class Texts:
    plain: str = "x"
    maybe: str | None = "x"
    choice: Literal["1", "none", "true"] = "1"
    some: tuple[str, ...] = ()


TYPED = ["2024.10", "1e5", "1,2", "none", "null", "true", "007", "'q'", "()", "", "0x1f", "[1]"]


@pytest.mark.parametrize("text", TYPED)
def test_text_stays_as_it_was_typed(text: str) -> None:
    assert with_settings(Texts(), [f"plain={text}"]).plain == text
    expected = None if text in ("none", "null") else text
    assert with_settings(Texts(), [f"maybe={text}"]).maybe == expected


@pytest.mark.parametrize("text", ["1", "none", "true"])
def test_a_choice_of_words_may_look_like_a_number(text: str) -> None:
    assert with_settings(Texts(), [f"choice={text}"]).choice == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b", ("a", "b")),
        ("a, b", ("a", "b")),
        ("a", ("a",)),
        ("a,", ("a",)),
        ("1,2.50,none", ("1", "2.50", "none")),
        ("()", ()),
        ("", ()),
    ],
)
def test_a_list_of_words_needs_no_quotes(text: str, expected: tuple[str, ...]) -> None:
    assert with_settings(Texts(), [f"some={text}"]).some == expected


def test_spaces_around_the_sign_do_not_count() -> None:
    assert with_settings(Texts(), ["plain = 1.50 "]).plain == "1.50"


def test_a_number_in_json_is_no_text() -> None:
    with pytest.raises(UserError, match=r"plain must be text, not 1\.5"):
        from_json(Texts, {"plain": 1.5})


def test_json_with_a_missing_or_unknown_name_is_refused() -> None:
    with pytest.raises(UserError, match="name is missing"):
        from_json(Outer, {})
    with pytest.raises(UserError, match=r"inner\.deep"):
        from_json(Outer, {"name": "x", "inner": {"deep": 3}})


def test_differences_name_path_and_values() -> None:
    assert differences(BASE, with_settings(BASE, ["inner.rate=2"])) == ["inner.rate: 0.5 -> 2.0"]
