"""What all pictures share: figures without global state, colours, text, and atomic files."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparing.errors import UserError
from sparing.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito without yellow, which is hard to see on white."""
STYLES = ("-", "--", "-.", ":")
GREY = "#666666"
DPI = 150
FORMATS = ("png", "svg")


def has_matplotlib() -> bool:
    """Whether pictures can be drawn here."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure with automatic layout; sizes in inches."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise UserError("pictures need matplotlib: pip install 'sparing[plots]'") from None
    return Figure((width, height), DPI, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))


def label_axes(axes: "Axes", *, x: str, y: str) -> None:
    """Label the axes, and draw a light grid and only two sides of the frame."""
    axes.set_xlabel(x, fontsize=10)
    axes.set_ylabel(y, fontsize=10)
    axes.tick_params(labelsize=9)
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def add_footer(figure: "Figure", lines: Sequence[str]) -> None:
    """Write under the picture where its numbers come from."""
    text = "\n".join(drawable_text(shorten(line, 150)) for line in lines)
    figure.supxlabel(text, x=0.01, ha="left", fontsize=7, color=GREY)


def line_style(index: int) -> dict[str, Any]:
    """Colour and dashes of the curve with this index; the first 28 all differ."""
    style = STYLES[index // len(COLOURS) % len(STYLES)]
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": style}


def line_styles(groups: Sequence[str]) -> list[dict[str, Any]]:
    """A style per curve: curves of one group share a colour and differ in their dashes."""
    names, found = list(dict.fromkeys(groups)), []
    for at, name in enumerate(groups):
        index = names.index(name) + len(COLOURS) * groups[:at].count(name)
        found.append(line_style(index))
    return found


def shorten(text: str, length: int) -> str:
    """`text`, with its middle left out if it is too long."""
    if len(text) <= length:
        return text
    return f"{text[: length // 2]}…{text[-(length - length // 2 - 1) :]}"


def legend_name(name: str, remark: str = "") -> str:
    """A run's name for the legend, and what is to be said about it."""
    # Matplotlib hides labels that begin with an underscore.
    return f"{' ' * name.startswith('_')}{drawable_text(shorten(name, 36) + remark)}"


def wrap_text(text: str, width: int = 34) -> str:
    """`text` in lines that fit a legend."""
    return "\n".join(textwrap.wrap(shorten(text, 4 * width), width)) or text


def drawable_text(text: str) -> str:
    """`text` as matplotlib should draw it: no formulas, and only characters of the font."""
    from matplotlib.font_manager import findfont, get_font

    font = get_font(findfont("DejaVu Sans"))
    known = "".join(c if c == "\n" or font.get_char_index(ord(c)) else "□" for c in text)
    return known.replace("$", r"\$")


def figure_path(out: Path | None, folder: Path, name: str) -> Path:
    """Path of a picture: `out` if given, else `name`.png in `folder`."""
    path = out or folder / f"{name}.png"
    if path.suffix.lower().removeprefix(".") not in FORMATS:
        raise UserError(f"cannot write a figure to {path}; its name must end in .png or .svg")
    return path


def save_figure(figure: "Figure", path: Path, *, svg: bool = False) -> list[Path]:
    """Write the picture atomically, in the format of its name; with `svg`, as SVG too."""
    paths = [path]
    if svg and path.suffix.lower() != ".svg":
        paths.append(path.with_suffix(".svg"))
    for each in paths:
        kind = each.suffix.lower().removeprefix(".")
        with atomic_write(each) as scratch:
            # Without the date, the same run gives the same file.
            figure.savefig(scratch, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return paths
