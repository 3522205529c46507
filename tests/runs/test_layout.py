"""Tables as text that fits the terminal, and as Markdown."""

from typing import Any

import pytest

from sparing.runs.layout import Layout

LAYOUT = Layout(
    columns={
        "network": lambda row: str(row["name"]),
        "valid bits/byte": lambda row: f"{row['valid']:.4f}",
        "steps": lambda row: str(row["steps"]),
        "device": lambda row: str(row["device"]),
    },
    left=("network", "device"),
)


def row(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "valid": 1.5, "steps": 12, "device": "abacus", **more}


def test_text_and_markdown_show_the_same_cells_and_notes() -> None:
    columns = {"name": lambda row: row["name"], "size": lambda row: f"{row['size']}"}
    layout, rows = Layout(columns=columns, left=["name"]), [{"name": "a|b", "size": 3}]
    expected = "| name | size |\n| --- | ---: |\n| a\\|b | 3 |\n\na note\n"
    assert layout.markdown(rows, ["a note"]) == expected
    assert layout.text(rows, ["a note"]) == "name  size\na|b      3\n\na note"


def test_a_table_that_fits_is_not_wrapped() -> None:
    text = LAYOUT.text([row("own")], width=80)
    assert text == LAYOUT.text([row("own")])
    assert len(text.splitlines()) == 2


@pytest.mark.parametrize("width", [30, 40, 60, 80])
def test_a_wide_table_is_wrapped_and_continued_below_and_loses_nothing(width: int) -> None:
    rows = [row("some/folder/of/a/run (its recipe)", device="an abacus of " + "wood" * 9)]
    text = LAYOUT.text(rows, ["a note that is longer than the terminal is wide"], width)
    assert max(map(len, text.splitlines())) <= width
    squeezed = "".join(text.split())
    for word in ("network", "valid", "bits/byte", "steps", "device", "1.5000", "12", "recipe"):
        assert word in squeezed


def test_numbers_are_never_broken() -> None:
    assert "1234567890123456789" in LAYOUT.text([row("own", steps=1234567890123456789)], width=20)


def test_columns_below_stand_beside_the_first_column_again() -> None:
    text = LAYOUT.text([row("own", device="a wooden abacus")], width=28)
    first, second = text.split("\n\n")
    assert first.splitlines()[-1].split() == ["own", "1.5000", "12"]
    assert second.splitlines()[1].split() == ["own", "a", "wooden"]


def test_control_characters_of_a_name_stay_in_its_cell() -> None:
    text = LAYOUT.text([row("a\x1b[2J\nb")])
    assert text.splitlines()[1].split()[:2] == [r"a\x1b[2J\x0ab", "1.5000"]
    assert r"| a\x1b[2J\x0ab |" in LAYOUT.markdown([row("a\x1b[2J\nb")])
