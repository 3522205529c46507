"""Tables for documents."""

from sparing.runs.layout import markdown


def test_a_bar_in_a_cell_ends_no_column() -> None:
    told = markdown(["name", "size"], [["a|b", "3"]], ["a note"], words=["name"])
    assert told == "| name | size |\n| --- | ---: |\n| a\\|b | 3 |\n\na note\n"
