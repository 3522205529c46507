"""`sparing recipes` and `sparing info`: what can be trained, and at what cost."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sparing.cli.options import Json, Settings, print_report
from sparing.cli.train import read_recipe
from sparing.config import described
from sparing.data.vocab import ONE_BYTE
from sparing.errors import unknown_name
from sparing.models.cost import cost
from sparing.runs.build import build_model
from sparing.runs.bundled import run_or_bundled
from sparing.runs.config import RunConfig, to_json, with_settings
from sparing.runs.folder import is_run
from sparing.runs.recipes import RECIPES, expectation, recipe


def recipes(as_json: Json = False) -> None:
    """List the recipes and what to expect of each."""
    if as_json:
        typer.echo(json.dumps({name: expectation(name) for name in RECIPES}))
        return
    for name in RECIPES:
        text = expectation(name).replace("\n", "\n    ")
        typer.echo(f"{name}\n    {text}\n")


def info(
    name: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE-or-RUN", help="Default: the model that comes with the package."
        ),
    ] = "",
    settings: Settings = None,
    as_json: Json = False,
    full: Annotated[
        bool, typer.Option("--config", help="Also every setting and its meaning.")
    ] = False,
) -> None:
    """Parameters, FLOPs per token and byte, state size, provenance."""
    run, extra = _find(name)
    run = with_settings(run, settings or [])
    report = _costs(run) | extra
    if full and as_json:
        report["config"] = to_json(run)
    print_report(report, as_json=as_json)
    if full and not as_json:
        for path, value, note in described(run):
            typer.echo(f"\n{path}={_format(value)}\n    {note}")


def _find(name: str) -> tuple[RunConfig, dict[str, Any]]:
    path = Path(name)
    if name.endswith(".json"):
        return read_recipe(path), {"recipe": name}
    if name in RECIPES:
        return recipe(name), {"recipe": name, "about": expectation(name)}
    if name and not (path.exists() or "/" in name):
        raise unknown_name("recipe (and no such run)", name, RECIPES)
    folder = run_or_bundled(path if name else None)
    extra = {key: folder.read(key) for key in ("provenance", "results") if _has(folder.path, key)}
    return folder.config(), {"run": name or "the package's own model", **extra}


def _has(path: Path, key: str) -> bool:
    return is_run(path) and (path / f"{key}.json").is_file()


def _format(value: Any) -> str:
    """Format a value as `--set` takes it."""
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value) or "()"
    return str(value)


def _costs(run: RunConfig) -> dict[str, Any]:
    found = cost(build_model(run, "meta"))
    return {
        "family": run.family,
        "parameters": {
            "training": found.parameters_training,
            "deployed": found.parameters_deployed,
        },
        "flops_per_token": found.flops_per_token,
        **({"flops_per_byte": found.flops_per_token} if run.data.vocab in ONE_BYTE else {}),
        "state_bytes": found.state_bytes,
    }
