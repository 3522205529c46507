"""Paper and pens: figures without global state, colours everybody can tell apart, safe files."""

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
"""Okabe and Ito's palette, less the yellow that paper swallows."""
STYLES = ("-", "--", "-.", ":")
GREY = "#666666"
DPI = 150
FORMATS = ("png", "svg")


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure that lays itself out; sizes in inches."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise UserError("pictures need matplotlib; pip install 'sparing[plots]'") from None
    return Figure((width, height), DPI, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))


def dress(axes: "Axes", *, x: str, y: str) -> None:
    """Label the axes, and keep the frame out of the way."""
    axes.set_xlabel(x, fontsize=10)
    axes.set_ylabel(y, fontsize=10)
    axes.tick_params(labelsize=9)
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def small_print(figure: "Figure", lines: Sequence[str]) -> None:
    """Say under the picture where its numbers come from."""
    text = "\n".join(plain(clipped(line, 150)) for line in lines)
    figure.supxlabel(text, x=0.01, ha="left", fontsize=7, color=GREY)


def pen(index: int) -> dict[str, Any]:
    """Colour and line style of the curve with this index; no two of 28 are alike."""
    style = STYLES[index // len(COLOURS) % len(STYLES)]
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": style}


def pens(kin: Sequence[str]) -> list[dict[str, Any]]:
    """A pen per curve: those of one name share a colour, and differ in line style."""
    names, found = list(dict.fromkeys(kin)), []
    for at, name in enumerate(kin):
        index = names.index(name) + len(COLOURS) * kin[:at].count(name)
        found.append(pen(index))
    return found


def clipped(text: str, length: int) -> str:
    """`text` with its middle left out where it is too long."""
    if len(text) <= length:
        return text
    return f"{text[: length // 2]}…{text[-(length - length // 2 - 1) :]}"


def legend_name(name: str) -> str:
    """A run's name for the legend."""
    # Matplotlib keeps labels that begin with an underscore to itself.
    return f"{' ' * name.startswith('_')}{plain(clipped(name, 36))}"


def wrapped(text: str, width: int = 34) -> str:
    """`text` in lines that a legend has room for."""
    return "\n".join(textwrap.wrap(clipped(text, 4 * width), width)) or text


def plain(text: str) -> str:
    """`text` as matplotlib should draw it: no formulas, only characters the font has."""
    from matplotlib.font_manager import findfont, get_font

    font = get_font(findfont("DejaVu Sans"))
    known = "".join(c if c == "\n" or font.get_char_index(ord(c)) else "□" for c in text)
    return known.replace("$", r"\$")


def target(out: Path | None, folder: Path, name: str) -> Path:
    """Where a picture goes: `out` if given, else `name`.png in `folder`."""
    path = out or folder / f"{name}.png"
    if path.suffix.lower().removeprefix(".") not in FORMATS:
        raise UserError(f"cannot draw into {path}; its name must end in .png or .svg")
    return path


def save(figure: "Figure", path: Path, *, svg: bool = False) -> list[Path]:
    """Write the picture, all or nothing, in the format of its name; with `svg` as SVG too."""
    paths = [path]
    if svg and path.suffix.lower() != ".svg":
        paths.append(path.with_suffix(".svg"))
    for each in paths:
        kind = each.suffix.lower().removeprefix(".")
        with atomic_write(each) as scratch:
            # Without the date, the same run gives the same file.
            figure.savefig(scratch, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return paths
