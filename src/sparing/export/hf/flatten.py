"""Modules of this package as one flat folder of files that import each other relatively.

Transformers finds the files of remote code by their relative imports, and knows no subfolders.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sparing import __version__

PACKAGE = Path(__file__).parents[2]
NAME = PACKAGE.name
SLOWER = {
    f"{NAME}.ops.fo_pooling.fused": f"{NAME}.ops.fo_pooling.reference",
    f"{NAME}.ops.relative_attention.tiled": f"{NAME}.ops.relative_attention.shifted",
    f"{NAME}.ops.rotated_entries.fused": f"{NAME}.ops.rotated_entries.reference",
    f"{NAME}.ops.span_attention.tiled": f"{NAME}.ops.span_attention.banded",
    f"{NAME}.ops.window_attention.fused": f"{NAME}.ops.window_attention.sliced",
}
"""What replaces the forms that need Triton, which has the same functions."""


class Import(NamedTuple):
    """One name that a file imports from this package."""

    module: str
    name: str | None
    """None: the module itself."""
    alias: str

    def relative(self, files: Mapping[str, str]) -> list[str]:
        """The statements that import it in a flat folder, where modules have the names `files`."""
        file = files.get(self.module, flat_name(self.module))
        if self.name is not None:
            return [f"from .{file} import {self.name} as {self.alias}"]
        # Transformers only sees the file that is named after a dot.
        return [f"from .{file} import __doc__ as _", f"from . import {file} as {self.alias}"]


def flatten_modules(roots: Mapping[str, str], replaced: Mapping[str, str]) -> dict[str, str]:
    """Return the sources of some modules and all they import, by file name without suffix.

    `roots` are the modules, with their file names; `replaced` are sources to use instead of those
    of some modules.
    """
    files: dict[str, str] = {}
    waiting, done = list(roots), set[str]()
    while waiting:
        module = waiting.pop()
        if module in done:
            continue
        done.add(module)
        source = replaced.get(module) or source_file(module).read_text(encoding="utf-8")
        files[roots.get(module, flat_name(module))] = _origin(module) + _rewrite(source, roots)
        waiting += [found.module for _, every in _imports(source) for found in every]
    return files


def flat_name(module: str) -> str:
    """The file name, without suffix, of a module in a flat folder."""
    return module.replace(".", "_")


def source_file(module: str) -> Path:
    """The file of a module or package."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _origin(module: str) -> str:
    return f"# {module}, {NAME} {__version__} (MIT), written by `{NAME} export`.\n"


def _rewrite(source: str, files: Mapping[str, str]) -> str:
    """Make the imports of this package relative."""
    lines = source.splitlines()
    for node, every in reversed(list(_imports(source))):
        indent = " " * node.col_offset
        lines[node.lineno - 1 : node.end_lineno] = [
            f"{indent}{line}" for each in every for line in each.relative(files)
        ]
    return "\n".join(lines) + "\n"


def _imports(source: str) -> Iterator[tuple[ast.ImportFrom, Sequence[Import]]]:
    """The statements of a source that import from this package, in the order of their lines."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    for node in sorted(nodes, key=lambda node: node.lineno):
        if (node.module or "").split(".")[0] == NAME:
            yield node, [_import(str(node.module), alias) for alias in node.names]


def _import(module: str, alias: ast.alias) -> Import:
    below = f"{module}.{alias.name}"
    if source_file(below).is_file():
        return Import(SLOWER.get(below, below), None, alias.asname or alias.name)
    return Import(SLOWER.get(module, module), alias.name, alias.asname or alias.name)
