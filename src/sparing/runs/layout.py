"""Tables of results: aligned text that fits the terminal, and Markdown."""

import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparing.terminal import escape_line

NOTHING = "-"
"""A cell without a value."""
GAP = "  "
"""Between two columns of text."""

Columns = Mapping[str, Callable[[Mapping[str, Any]], str]]
"""Heads of a table, and how a row's cell below each is written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How rows of one kind become a table."""

    columns: Columns
    left: Collection[str] = ()
    """Columns aligned to the left; numbers are aligned to the right."""
    code: Collection[str] = ()
    """Columns set as code in Markdown."""

    def text(
        self,
        rows: Sequence[Mapping[str, Any]],
        notes: Sequence[str] = (),
        width: int | None = None,
    ) -> str:
        """Aligned columns, with notes below.

        Where they are wider than `width`, cells are wrapped; columns that still do not fit follow
        below the others, beside the first column again.
        """
        columns = [
            Column(tuple((cell,) for cell in cells), left=head in self.left)
            for head, *cells in zip(self.columns, *self._lines(rows), strict=True)
        ]
        if width is not None and _total_width(columns) > width:
            columns = [column.wrapped(max(12, width // 3)) for column in columns]
        tables = [_table_lines(part) for part in _parts(columns, width)]
        lines = "\n\n".join("\n".join(table) for table in tables)
        return "\n".join([lines, *(f"\n{_wrap_note(note, width)}" for note in notes)])

    def markdown(self, rows: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> str:
        """A table for a document, with notes below."""
        heads, *lines = [[cell.replace("|", r"\|") for cell in line] for line in self._lines(rows)]
        rule = ["---" if head in self.left else "---:" for head in self.columns]
        cells = [
            [
                f"`{cell}`" if head in self.code else cell
                for head, cell in zip(self.columns, line, strict=True)
            ]
            for line in lines
        ]
        table = [f"| {' | '.join(line)} |" for line in [heads, rule, *cells]]
        return "\n".join([*table, *(f"\n{note}" for note in notes)]) + "\n"

    def _lines(self, rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        cells = self.columns.values()
        return [list(self.columns), *([escape_line(cell(row)) for cell in cells] for row in rows)]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of text: the lines of each cell, the head first."""

    cells: tuple[tuple[str, ...], ...]
    left: bool

    @property
    def width(self) -> int:
        """Characters of its longest line."""
        return max(len(line) for lines in self.cells for line in lines)

    def wrapped(self, limit: int) -> "Column":
        """The same with cells of at most `limit` characters; numbers are never broken."""
        (head,), *others = self.cells
        cells = [_wrap(cell, limit, long_words=self.left) for (cell,) in others]
        longest = max(len(line) for lines in [tuple(head.split()), *cells] for line in lines)
        return Column((_wrap(head, longest), *cells), self.left)

    def aligned(self, row: int, height: int) -> list[str]:
        """The lines of a cell, padded to the width of the column and the height of the row."""
        lines = [*self.cells[row], *[""] * (height - len(self.cells[row]))]
        return [line.ljust(self.width) if self.left else line.rjust(self.width) for line in lines]


def format_number(value: float | None, spec: str, unit: float = 1) -> str:
    """A cell with a number counted in `unit`s."""
    return NOTHING if value is None else format(value / unit, spec)


class PathWrapper(textwrap.TextWrapper):
    """Breaks lines at spaces and after slashes."""

    wordsep_simple_re = re.compile(r"(\s+)|(?<=/)")


def _wrap(text: str, limit: int, *, long_words: bool = False) -> tuple[str, ...]:
    wrapper = PathWrapper(limit, break_long_words=long_words, break_on_hyphens=False)
    return tuple(wrapper.wrap(text) or [""])


def _wrap_note(note: str, width: int | None) -> str:
    return note if width is None else "\n".join(_wrap(note, width))


def _total_width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)


def _parts(columns: Sequence[Column], width: int | None) -> list[list[Column]]:
    """The columns in as many tables as it takes to fit; each begins with the first column."""
    first, *others = columns
    parts = [[first]]
    for column in others:
        if width is not None and len(parts[-1]) > 1 and _total_width([*parts[-1], column]) > width:
            parts.append([first])
        parts[-1].append(column)
    return parts


def _table_lines(columns: Sequence[Column]) -> list[str]:
    rows = range(len(columns[0].cells))
    heights = [max(len(column.cells[row]) for column in columns) for row in rows]
    return [
        GAP.join(line).rstrip()
        for row, height in zip(rows, heights, strict=True)
        for line in zip(*(column.aligned(row, height) for column in columns), strict=True)
    ]
