"""Python programs in the pages about models run."""

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[1] / "docs" / "models").glob("*.md"))
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = [(page.name, code) for page in PAGES for code in FENCE.findall(page.read_text())]


@pytest.mark.parametrize(("page", "code"), PROGRAMS, ids=[page for page, _ in PROGRAMS])
def test_a_printed_program_runs(page: str, code: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, page, "exec"), {"__name__": "printed"})


def test_the_page_on_spans_has_a_program() -> None:
    assert "adaptive_span.md" in {page for page, _ in PROGRAMS}
