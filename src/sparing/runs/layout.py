"""Tables for documents."""

from collections.abc import Collection, Sequence

NOTHING = "-"
"""A cell for what is not known."""


def rounded(value: float | None, form: str, unit: float = 1) -> str:
    """A cell for a number counted in `unit`s."""
    return NOTHING if value is None else format(value / unit, form)


def markdown(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    *,
    words: Collection[str] = (),
) -> str:
    """A table with notes under it; columns whose heads are among `words` begin at the left."""
    rule = ["---" if head in words else "---:" for head in heads]
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in (heads, *rows)]
    lines = [f"| {' | '.join(cells)} |" for cells in [escaped[0], rule, *escaped[1:]]]
    return "\n".join([*lines, *(f"\n{note}" for note in notes)]) + "\n"
