"""The documents match the code: names exist, commands parse, links work."""

import importlib.util
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from sparing import device
from sparing.cli.main import app
from sparing.data.corpora import CORPORA
from sparing.errors import UserError
from sparing.evaluation.loss import Evaluation
from sparing.experiments.variants import read_variants
from sparing.runs.config import RunConfig, to_json, with_settings
from sparing.runs.provenance import provenance
from sparing.runs.recipes import RECIPES, recipe
from sparing.training.state import Counters

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "sparing"
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        ROOT / "benchmarks" / "README.md",
        ROOT / "results" / "README.md",
    ]
)
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
FILE_SUFFIXES = ("bin", "json", "py", "safetensors")

every_page = pytest.mark.parametrize(
    "page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES]
)


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def code(page: Path) -> Iterator[str]:
    """Code in backticks, and every line of fenced blocks."""
    for block in FENCE.findall(text(page)):
        yield from map(str.strip, block.replace("\\\n", " ").splitlines()[1:-1])
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
    """The error message of a command, found without running it; None if it parses."""
    words, parser = words_of(command), typer.main.get_command(app)
    while words and (below := getattr(parser, "commands", None)):
        if words[0].startswith("-"):
            known = {option for parameter in parser.params for option in parameter.opts}
            return None if words[0] in known else f"no option {words[0]}"
        if words[0] not in below:
            return f"no verb {words[0]}"
        parser = below[words.pop(0)]
    if not words:
        # The verb alone is a mention, not a command.
        return None
    try:
        given = parser.make_context("sparing", words).params
    except Exception as problem:
        if not hasattr(problem, "format_message"):
            raise
        return str(problem.format_message())
    return name_complaint(given) or settings_complaint(given)


def name_complaint(given: dict[str, Any]) -> str | None:
    """A recipe that does not exist, or a corpus, for the one verb with a name and no settings."""
    name = given.get("name") or ""
    if not name or name.isupper() or "/" in name:
        return None
    # `verify` trains a recipe as it is.
    known = RECIPES if {"settings", "until"} & given.keys() else CORPORA
    return None if name in known else f"no {name}"


def settings_complaint(given: dict[str, Any]) -> str | None:
    """Settings that the named recipe, or for a run any recipe, does not have."""
    settings = [one for one in given.get("settings") or () if not one.startswith("NAME=")]
    problems = []
    for name in [given["name"]] if given.get("name") in RECIPES else RECIPES:
        try:
            run = with_settings(recipe(name), settings)
            if given.get("variants"):
                read_variants(run, given["variants"])
        except UserError as problem:
            problems.append(str(problem))
        else:
            return None
    return problems[0]


@every_page
def test_every_command_parses(page: Path) -> None:
    found = {command: complaint(command) for command in commands(page)}
    assert not {command: what for command, what in found.items() if what}


def test_the_commands_of_the_originals_parse(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nshift 2\necho sparing "$@"\n')
    python.chmod(0o755)
    script = ROOT / "benchmarks" / "originals_20min.sh"
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(script), "runs/a"],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    made = done.stdout.splitlines()
    assert len(made) == 3 * 3 + 1
    assert not {command: what for command in made if (what := complaint(command))}


def test_the_page_on_commands_shows_every_verb() -> None:
    shown = {words_of(command)[0] for command in commands(DOCS / "cli.md")}
    verbs = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]  # a group
    assert verbs == {verb for verb in shown if not verb.startswith("-")}


def test_the_readme_stays_short() -> None:
    assert len(text(ROOT / "README.md").splitlines()) <= 150


@every_page
def test_prose_wraps_at_100_columns(page: Path) -> None:
    prose = FENCE.sub("", text(page)).splitlines()
    alone = re.compile(r"^\s*(?:\||#|!\[|- `|\$)|^\S+$")
    assert not [line for line in prose if len(line) > 100 and not alone.match(line)]


@pytest.mark.parametrize(
    "command",
    [
        "sparing trian quickstart",
        "sparing train quickstrat",
        "sparing train quickstart --stesp 3",
        "sparing train quickstart --set train.stpes=3",
        "sparing compare quickstart --variant model.dmi=3 --out runs/a",
        "sparing data get enwik7",
        "sparing train --resume --out runs/a --set optim.rl=1",
        "sparing evaluate RUN --split tset",
        "sparing evaluate RUN --bytes many",
        "sparing derive --out found.json",
        "sparing bench tarin",
        "sparing --verison",
    ],
)
def test_a_wrong_command_is_found(command: str) -> None:
    assert complaint(command)


def setting_names(settings: dict[str, Any], above: str = "") -> Iterator[str]:
    """Names of settings and of groups of settings, such as `model.dim`."""
    for name, value in settings.items():
        yield above + name
        if isinstance(value, dict):
            yield from setting_names(value, f"{above}{name}.")


@every_page
def test_every_setting_named_exists(page: Path) -> None:
    groups = [field.name for field in fields(RunConfig)]
    setting = re.compile(rf"(?:{'|'.join(groups)})\.(?:[a-z_]+\.)?([a-z_]+)(?:=.*)?")
    named = [match for span in code(page) if (match := setting.fullmatch(span))]
    known = {name for make in RECIPES.values() for name in setting_names(to_json(make()))}
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


def generator() -> ModuleType:
    """The script that writes docs/files.md, as a module."""
    spec = importlib.util.spec_from_file_location("generate_files", DOCS / "generate_files.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_list_of_files_is_up_to_date() -> None:
    assert text(DOCS / "files.md") == generator().page(), "run `make docs`"


def test_every_file_has_a_sentence_in_the_list() -> None:
    script = generator()
    assert not [path for path in SRC.rglob("*.py") if not script.first_sentence(path)]


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
def test_no_page_names_a_local_path(page: Path) -> None:
    assert not re.findall(r"(?:/(?:work|root|tmp|mnt|Users)|/home/\w+)/\S*", text(page))


def test_the_formats_name_every_field() -> None:
    report = Evaluation(
        loss_nats=1.0,
        tokens=1,
        size_bytes=1,
        words=1,
        protocol="bytes",
        precision="float32",
        how="",
        elapsed_s=0.0,
    )
    wanted = {field.name for field in fields(Counters)} | {"loss_scale"}
    wanted |= report.to_json().keys() | provenance(device.pick("cpu"), 0).keys()
    assert wanted <= set(code(DOCS / "formats.md"))
