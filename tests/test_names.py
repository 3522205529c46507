"""One name, one meaning: public names are unique, and retired words do not come back."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from sparing.cli.verbs import VERBS
from sparing.models import FAMILIES
from sparing.runs.config import RunConfig

SRC = Path(__file__).parents[1] / "src" / "sparing"
TREES = {
    path.relative_to(SRC).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in SRC.rglob("*.py")
}
FUNCTIONS_WITH_ONE_MEANING = {
    "to_json": "config: of any dataclass; runs/config: of a run, whose model depends on its family",
    "from_json": "as to_json",
    "with_settings": "as to_json",
    "load": "sparing.load gives a model from a run; checkpoint.load what is stored of it",
    "train": "sparing.train and what it calls: settings to a trained run",
    "forward": "what every ops/*/kernels.py launches",
    "backward": "as forward",
    "backward_query": "as forward",
    "backward_entries": "as forward",
    "reference": "the definition of an op that has one module",
}
"""Functions that several modules may define, because they all do the same thing."""
SETTINGS_WITH_ONE_MEANING = {
    "batch": "lanes read side by side, in training and in evaluation",
    "segment": "tokens per lane and step, in training and in evaluation",
    "vocab_size": "of the data, and of the model built for it",
}
"""Settings that several groups may have, because they mean the same thing."""
RETIRED = {
    "arrival": "host copy", "contestant": "variant", "desk": "callbacks", "diary": "journal",
    "foresight": "mtp", "glance": "span refresh", "heat": "trial", "heats": "trials",
    "judge": "validate", "judged": "validation", "kin": "group", "listed": "module list",
    "racer": "entry", "reminder": "embedding skip", "scroll": "KV buffer",
    "shipped": "bundled", "squeezed": "say what it does", "standings": "leaderboard",
    "tether": "subprocess", "told": "say what it is", "tries": "variants",
    "wish": "options", "diaries": "journals", "racers": "entries", "mend": "fix",
}  # fmt: skip
"""Words of the first versions of this code, and what it says now."""


def definitions(kind: type[ast.AST]) -> dict[str, list[str]]:
    """Modules that define each public top-level name of a kind."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, kind) and not node.name.startswith("_"):  # type: ignore[attr-defined]
                found[node.name].append(path)  # type: ignore[attr-defined]
    return found


def verbs() -> Iterator[tuple[str, str]]:
    """Module and name of every function that is a command."""
    for place, _ in VERBS.values():
        module, _, name = place.partition(".")
        found = getattr(import_module(f"sparing.cli.{module}"), name)
        commands = found.registered_commands if isinstance(found, typer.Typer) else ()
        for each in [command.callback for command in commands] or [found]:
            yield f"cli/{module}.py", each.__name__


def of_one_op(modules: list[str]) -> bool:
    """Whether these modules are implementations of one op, beside its reference."""
    return len({re.sub(r"^ops/(\w+)/.*", r"\1", module) for module in modules}) == 1


def test_no_two_public_classes_share_a_name() -> None:
    found = {
        name: modules for name, modules in definitions(ast.ClassDef).items() if len(modules) > 1
    }
    assert found == {}


def test_no_two_public_functions_share_a_name() -> None:
    # A command has the name of the function it calls.
    commands = set(verbs())
    found = {
        name: modules
        for name, every in definitions(ast.FunctionDef).items()
        if len(modules := [module for module in every if (module, name) not in commands]) > 1
        and not of_one_op(modules)
        and name not in FUNCTIONS_WITH_ONE_MEANING
    }
    assert found == {}


def test_no_setting_has_two_meanings() -> None:
    groups: dict[str, set[str]] = defaultdict(set)
    types: dict[str, set[str]] = defaultdict(set)
    for path, kind in settings():
        name = path.rpartition(".")[2]
        groups[name].add(path.partition(".")[0])
        types[name].add(kind)
    found = {
        name
        for name in groups
        if len(types[name]) > 1 or (len(groups[name]) > 1 and name not in SETTINGS_WITH_ONE_MEANING)
    }
    assert found == set()


def settings() -> Iterator[tuple[str, str]]:
    """Path and type of every setting of every family."""
    hints = get_type_hints(RunConfig)
    for field in fields(RunConfig):
        if is_dataclass(hints[field.name]):
            yield from walk(hints[field.name], f"{field.name}.")
    for family in FAMILIES.values():
        yield from walk(family.config, "model.")


def walk(config: Any, where: str) -> Iterator[tuple[str, str]]:
    hints = get_type_hints(config)
    for field in fields(config):
        kind = hints[field.name]
        if is_dataclass(kind):
            yield from walk(kind, f"{where}{field.name}.")
        else:
            yield f"{where}{field.name}", plain_type(kind)


def plain_type(kind: Any) -> str:
    """`int` for `int | None`, `str` for a Literal, the name of any other type."""
    if get_origin(kind) is Literal:
        return "str"
    if get_origin(kind) in (Union, UnionType):
        return " | ".join(sorted(plain_type(each) for each in get_args(kind) if each != NoneType))
    return getattr(kind, "__name__", str(kind))


def test_a_training_is_never_called_a_run() -> None:
    """`run` is a RunConfig; the object that holds model, optimizer and stream is `training`."""
    found = {
        f"{path}: {node.arg}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.arg)
        and isinstance(node.annotation, ast.Name)
        and node.annotation.id == "Training"
        and node.arg != "training"
    }
    assert found == set()


def test_retired_words_do_not_come_back() -> None:
    found = {
        f"{path}: {name}"
        for path, tree in TREES.items()
        for name in identifiers(tree)
        if not RETIRED.keys().isdisjoint(re.findall(r"[a-z]+", snake_case(name)))
    }
    assert found == set()


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Every name that the code defines or binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
