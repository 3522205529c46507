"""The documents against the code: what they name exists, what they show parses."""

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

from sparing import device
from sparing.cli.main import app
from sparing.data.corpora import CORPORA
from sparing.errors import UserError
from sparing.evaluate.loss import Evaluation
from sparing.experiments.variants import variants
from sparing.runs.config import RunConfig, to_json, with_settings
from sparing.runs.provenance import provenance
from sparing.runs.recipes import RECIPES, recipe
from sparing.train.state import Counters

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "sparing"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
FILE_SUFFIXES = ("bin", "json", "py", "safetensors")

every_page = pytest.mark.parametrize(
    "page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES]
)


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def code(page: Path) -> Iterator[str]:
    """What stands in backticks, and every line of the fenced blocks."""
    for block in FENCE.findall(text(page)):
        yield from block.replace("\\\n", " ").splitlines()[1:-1]
    for span in re.findall(r"`([^`]+)`", FENCE.sub("", text(page))):
        yield " ".join(span.split())


def commands(page: Path) -> list[str]:
    start = re.compile(r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?sparing ")
    return [line for line in code(page) if start.match(line)]


def words_of(command: str) -> list[str]:
    words = shlex.split(command.partition("sparing ")[2], comments=True)
    ends = [at for at, word in enumerate(words) if word in ("|", "&&", ";", ">", "<")]
    return [word for word in words[: min(ends, default=len(words))] if word not in ("…", "...")]


def complaint(command: str) -> str | None:
    """What the command line would say against a command, found without running it."""
    words, parser = words_of(command), typer.main.get_command(app)
    while words and (below := getattr(parser, "commands", None)):
        if words[0].startswith("-"):
            known = {option for parameter in parser.params for option in parameter.opts}
            return None if words[0] in known else f"no option {words[0]}"
        if words[0] not in below:
            return f"no verb {words[0]}"
        parser = below[words.pop(0)]
    if not words:
        # Just the verb: it is spoken of, not used.
        return None
    try:
        given = parser.make_context("sparing", words).params
    except Exception as problem:
        if not hasattr(problem, "format_message"):
            raise
        return str(problem.format_message())
    return name_complaint(given) or settings_complaint(given)


def name_complaint(given: dict[str, Any]) -> str | None:
    """A recipe that does not exist; a corpus, for the one verb with a name and no settings."""
    name = given.get("name") or ""
    if not name or name.isupper() or "/" in name:
        return None
    return None if name in (RECIPES if "settings" in given else CORPORA) else f"no {name}"


def settings_complaint(given: dict[str, Any]) -> str | None:
    """Settings the named recipe does not take; for a run, those that no recipe takes."""
    settings = [one for one in given.get("settings") or () if not one.startswith("NAME=")]
    problems = []
    for name in [given["name"]] if given.get("name") in RECIPES else RECIPES:
        try:
            run = with_settings(recipe(name), settings)
            if given.get("tries"):
                variants(run, given["tries"])
        except UserError as problem:
            problems.append(str(problem))
        else:
            return None
    return problems[0]


@every_page
def test_every_command_parses(page: Path) -> None:
    found = {command: complaint(command) for command in commands(page)}
    assert not {command: what for command, what in found.items() if what}


def test_the_readme_shows_every_verb() -> None:
    shown = {words_of(command)[0] for command in commands(ROOT / "README.md")}
    verbs = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]  # a group
    assert verbs - shown <= {"bench"}


@pytest.mark.parametrize(
    "command",
    [
        "sparing trian quickstart",
        "sparing train quickstrat",
        "sparing train quickstart --stesp 3",
        "sparing train quickstart --set train.stpes=3",
        "sparing compare quickstart --try model.dmi=3 --out runs/a",
        "sparing data get enwik7",
        "sparing train --resume --out runs/a --set optim.rl=1",
        "sparing evaluate RUN --split tset",
        "sparing evaluate RUN --bytes many",
        "sparing evaluate --split test",
        "sparing bench tarin",
        "sparing --verison",
    ],
)
def test_a_wrong_command_would_be_found(command: str) -> None:
    assert complaint(command)


@every_page
def test_every_setting_named_exists(page: Path) -> None:
    groups = [field.name for field in fields(RunConfig)]
    setting = re.compile(rf"(?:{'|'.join(groups)})\.([a-z_]+)(?:=.*)?")
    named = [match for span in code(page) if (match := setting.fullmatch(span))]
    known = {
        f"{group}.{name}"
        for run in (make() for make in RECIPES.values())
        for group, settings in to_json(run).items()
        if isinstance(settings, dict)
        for name in settings
    }
    settings = {match[0].partition("=")[0] for match in named if match[1] not in FILE_SUFFIXES}
    assert settings <= known


@every_page
def test_every_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", text(ROOT / "Makefile"), re.MULTILINE))
    named = {match[1] for span in code(page) if (match := re.match(r"make ([a-z]+)", span))}
    assert named <= targets


@every_page
def test_every_variable_is_read_by_the_code(page: Path) -> None:
    source = "".join(text(path) for path in SRC.rglob("*.py"))
    assert not [name for name in re.findall(r"SPARING_[A-Z]+", text(page)) if name not in source]


def holds_code(path: Path) -> bool:
    """Whether a file has more to it than a docstring."""
    return path.name != "__init__.py" or len(ast.parse(text(path)).body) > 1


def tree() -> dict[str, str]:
    """The files of the README's tree below src/sparing, and the words beside them."""
    _, found, rest = text(ROOT / "README.md").partition("```text\nsrc/sparing/\n")
    assert found, "the README has no tree"
    listed: dict[str, str] = {}
    folder = ""
    for line in rest.partition("```")[0].splitlines():
        if not line.startswith("  "):
            break
        name, _, words = line.strip().partition(" ")
        inside = folder if line.startswith("    ") else ""
        if name.endswith("/"):
            folder = name
        listed[inside + name] = words.strip()
    return listed


def test_the_tree_lists_exactly_the_files() -> None:
    files = {path for path in SRC.rglob("*.py") if holds_code(path)} | {SRC / "py.typed"}
    rooms = {path.parent for path in SRC.glob("*/__init__.py")}
    names = {path.relative_to(SRC).as_posix() for path in files}
    names |= {f"{room.name}/" for room in rooms}
    assert set(tree()) == names


def test_the_tree_says_something_about_each_file() -> None:
    assert not [name for name, words in tree().items() if not words]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    found = re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text(page)))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


@every_page
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@every_page
def test_no_page_names_a_place_on_somebodys_machine(page: Path) -> None:
    assert not re.findall(r"(?:/(?:work|root|tmp|mnt|Users)|/home/\w+)/\S*", text(page))


def test_the_formats_name_every_field() -> None:
    report = Evaluation(
        loss_nats=1.0,
        tokens=1,
        size_bytes=1,
        words=1,
        protocol="bytes",
        how="",
        elapsed_s=0.0,
    )
    wanted = {field.name for field in fields(Counters)} | {"loss_scale"}
    wanted |= report.to_json().keys() | provenance(device.pick("cpu"), 0).keys()
    assert wanted <= set(code(ROOT / "docs" / "formats.md"))
