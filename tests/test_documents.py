"""The one door for stored JSON: what fits its declaration, and what is refused."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest

from sparing.documents import Count, Figure, MisfitError, conform, read_document
from sparing.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Closed:
    size: int
    rate: float = 0.5

    def __post_init__(self) -> None:
        if 100 % self.size:
            raise ValueError("size must divide 100")


class Open(TypedDict, total=False):
    step: Count
    loss: Figure
    kind: Literal["train", "valid"]
    names: list[str]
    groups: dict[str, Closed]
    place: tuple[int, float]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"step": 3, "loss": float("inf"), "written": "by a newer version"}, Open),
        ({"names": ["a"], "groups": {"x": {"size": 5}}, "place": [1, 2.5]}, Open),
        ({"size": 5, "rate": 1}, Closed),
    ],
)
def test_data_that_fits_becomes_what_was_declared(value: dict[str, Any], kind: Any) -> None:
    found = conform(value, kind)
    if kind is Closed:
        assert found == Closed(size=5, rate=1.0)
    else:
        assert list(found) == list(value)
        assert all(type(each) is Closed for each in found.get("groups", {}).values())


HUGE = 10**400
REFUSED = [
    ({"step": "3"}, Open, "step must be a whole number of at least 0, not '3'"),
    ({"step": -1}, Open, "step must be a whole number of at least 0, not -1"),
    ({"step": True}, Open, "step must be a whole number of at least 0, not True"),
    ({"step": HUGE}, Open, "step is too large a number: 1000"),
    ({"loss": HUGE}, Open, "loss is too large a number: 1000"),
    ({"loss": None}, Open, "loss must be a number, not None"),
    ({"kind": "tain"}, Open, "kind cannot be 'tain'; did you mean 'train'?"),
    ({"kind": []}, Open, "kind cannot be []; known: train, valid"),
    ({"names": "abc"}, Open, "names must be a list, not 'abc'"),
    ({"names": 3}, Open, "names must be a list, not 3"),
    ({"place": "ab"}, Open, "place must be a list such as 1,2, not 'ab'"),
    ({"names": [1]}, Open, "names must be text, not 1"),
    ({"groups": []}, Open, "groups must be a group of named values, not []"),
    ({"groups": {"x": {}}}, Open, "groups.x.size is missing"),
    ({"groups": {"x": {"size": 5, "rat": 1}}}, Open, "groups.x.rat is unknown; did you mean"),
    ({"groups": {"x": {"size": 3}}}, Open, "groups.x: size must divide 100"),
    ({"groups": {"x": {"size": 0}}}, Open, "groups.x: integer"),
    ({"place": [1]}, Open, "place needs 2 values, not 1"),
    ({"size": 5, "rate": float("nan")}, Closed, "rate must be a number, not nan"),
    ({"size": 16**5000}, Closed, "size is too large a number: a number of thousands"),
    ([], Closed, "its content must be a group of named values, not []"),
]


@pytest.mark.parametrize(("value", "kind", "words"), REFUSED)
def test_a_misfit_names_the_place(value: Any, kind: Any, words: str) -> None:
    with pytest.raises(MisfitError) as refusal:
        conform(value, kind)
    assert str(refusal.value).startswith(words)
    assert len(str(refusal.value)) < 120


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"step": -1}', "is damaged: step must be a whole number of at least 0, not -1"),
        (f'{{"step": 1{"0" * 400}}}', "cannot be read: it has a whole number of 401 digits"),
        ("[" * 100_000, "cannot be read: it is nested too deeply"),
        ("[" * 200 + "]" * 200, "cannot be read: it is nested too deeply"),
        (r'{"other": "\ud800"}', "cannot be read: 'utf-8' codec can't encode"),
    ],
)
def test_a_damaged_document_is_one_line_that_names_the_file(
    text: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(UserError) as refusal:
        read_document(path, Open)
    assert str(refusal.value).startswith(f"{path} {words}")


def test_names_of_files_that_are_not_text_survive(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"names": ["caf\udce9", "\U0001f600"]}))
    assert read_document(path, Open)["names"] == ["caf\udce9", "\U0001f600"]
