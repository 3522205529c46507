"""Files, colours and text of pictures."""

import sys
from pathlib import Path

import pytest

from sparing.errors import UserError
from sparing.plot.figure import (
    drawable_text,
    figure_path,
    legend_name,
    line_style,
    line_styles,
    new_figure,
    save_figure,
    shorten,
    wrap_text,
)


def test_a_missing_matplotlib_is_reported_with_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'sparing\[plots\]'"):
        new_figure(1, 1)


def test_a_picture_is_written_atomically_and_as_svg_on_request(tmp_path: Path) -> None:
    figure = new_figure(2, 1)
    figure.add_subplot().plot([1, 2], [3, 4])
    png = tmp_path / "new" / "a.png"
    assert save_figure(figure, png, svg=True) == [png, png.with_suffix(".svg")]
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert b"<svg" in png.with_suffix(".svg").read_bytes()
    assert sorted(path.name for path in png.parent.iterdir()) == ["a.png", "a.svg"]


def test_the_format_follows_the_name(tmp_path: Path) -> None:
    assert save_figure(new_figure(1, 1), tmp_path / "a.svg", svg=True) == [tmp_path / "a.svg"]
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()
    assert figure_path(None, tmp_path, "curves") == tmp_path / "curves.png"
    assert figure_path(Path("b.SVG"), tmp_path, "curves") == Path("b.SVG")
    with pytest.raises(UserError, match=r"must end in \.png or \.svg"):
        figure_path(Path("b.jpeg"), tmp_path, "curves")


def test_a_failed_picture_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, figure = tmp_path / "a.png", new_figure(1, 1)
    path.write_bytes(b"old")

    def fail(scratch: Path, **_: object) -> None:
        scratch.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(OSError, match="no space"):
        save_figure(figure, path)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.png", b"old")]


def test_the_first_28_curves_look_different() -> None:
    assert len({tuple(line_style(index).values()) for index in range(28)}) == 28


def test_text_becomes_what_matplotlib_can_draw(tmp_path: Path) -> None:
    assert drawable_text("a $b$ c") == r"a \$b\$ c"
    assert drawable_text("x 中 y") == "x □ y"
    figure = new_figure(3, 2)
    figure.suptitle(drawable_text("$cost$ 中\n_"))
    figure.add_subplot().plot([1], label=legend_name("_hidden"))
    figure.legend()
    save_figure(figure, tmp_path / "a.png")
    assert [text.get_text() for text in figure.legends[0].texts] == [" _hidden"]


def test_long_text_is_cut_in_the_middle_and_wrapped() -> None:
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghijk", 10) == "abcde…hijk"
    assert wrap_text("one two three", 8) == "one two\nthree"
    assert wrap_text("") == ""


def test_a_group_shares_a_colour_and_differs_in_style() -> None:
    first, other, again = line_styles(["a", "b", "a"])
    assert first["color"] == again["color"] != other["color"]
    assert first["linestyle"] == other["linestyle"] != again["linestyle"]
    assert line_styles(list("abcdefghij")) == [line_style(index) for index in range(10)]
