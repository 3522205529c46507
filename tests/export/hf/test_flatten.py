"""Flattened code imports nothing of this package, and nothing that needs a GPU."""

import ast

import pytest

from sparing.export.hf.flatten import SLOWER, flatten_modules
from sparing.models import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_all_imports_are_found_in_the_folder(family: str) -> None:
    root = FAMILIES[family].model.__module__
    files = flatten_modules({root: "root"}, {})
    for text in files.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                assert not {each.name.split(".")[0] for each in node.names} & {"sparing", "triton"}
            elif isinstance(node, ast.ImportFrom):
                names = [node.module] if node.module else [each.name for each in node.names]
                assert node.level == 0 or set(names) <= set(files)
                assert node.level == 1 or str(node.module).split(".")[0] != "sparing"


@pytest.mark.parametrize("name", SLOWER)
def test_only_what_needs_triton_is_replaced(name: str) -> None:
    assert "import triton\n" in "".join(flatten_modules({name: "root"}, {}).values())


def test_imports_keep_their_names_and_their_places() -> None:
    source = (
        "from sparing.nn import (\n    state,\n    size as s,\n)\n"
        "def f():\n    from sparing.units import IGNORE_INDEX\n    return IGNORE_INDEX\n"
    )
    flat = flatten_modules({"sparing.launch": "root"}, {"sparing.launch": source})
    assert flat["root"].splitlines()[1:] == [
        "from .sparing_nn_state import __doc__ as _",
        "from . import sparing_nn_state as state",
        "from .sparing_nn_size import __doc__ as _",
        "from . import sparing_nn_size as s",
        "def f():",
        "    from .sparing_units import IGNORE_INDEX as IGNORE_INDEX",
        "    return IGNORE_INDEX",
    ]
    assert set(flat) == {"root", "sparing_nn_state", "sparing_nn_size", "sparing_units"}
