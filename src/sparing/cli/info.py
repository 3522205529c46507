"""`sparing recipes` and `sparing info`: what can be trained, and at what cost."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparing.cli.complete import complete_recipes_and_runs
from sparing.cli.options import Json, Settings, print_report
from sparing.config import described
from sparing.errors import unknown_name
from sparing.files import read_object
from sparing.runs.card import HOME, read_card
from sparing.runs.layout import Layout
from sparing.terminal import columns, print_line
from sparing.units import format_bytes, pluralize

if TYPE_CHECKING:
    from sparing.runs.config import RunConfig

BUNDLED = "the package's own model"
PARAMETERS = Layout(
    columns={
        "parameter": lambda row: str(row["name"]),
        "shape": lambda row: "x".join(map(str, row["shape"])),
        "count": lambda row: f"{row['count']:,}",
    },
    left=("parameter",),
)


def recipes(as_json: Json = False) -> None:
    """List the recipes; `sparing info RECIPE` says what result to expect from one."""
    from sparing.runs.recipes import RECIPES, expectation

    found = {name: expectation(name) for name in RECIPES}
    about = {name: text.partition("\n\n")[0] for name, text in found.items()}
    print_report(found if as_json else about, as_json=as_json)
    if not as_json:
        print_line("\nThe result to expect, and the cost: sparing info RECIPE")


def info(
    name: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE-or-RUN",
            help="A recipe or a run folder; default: the package's model.",
            autocompletion=complete_recipes_and_runs,
        ),
    ] = "",
    settings: Settings = None,
    as_json: Json = False,
    full: Annotated[
        bool, typer.Option("--config", help="Also print every setting and its meaning.")
    ] = False,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Also list all parameters: name, shape, count.")
    ] = False,
) -> None:
    """Parameters, FLOPs per token and byte, state size; of a run, its training and results."""
    # What is stored of the bundled model is shown without torch, which takes seconds to import.
    stored = None if name or settings or full or parameters else read_card()
    if stored is not None:
        _show(*stored, {"run": BUNDLED, **_records(HOME)}, as_json=as_json)
        return
    from sparing.runs.config import to_json, with_settings
    from sparing.runs.costs import costs, named_parameters

    run, extra = _find(name)
    run = with_settings(run, settings or [])
    rows = named_parameters(run) if parameters else []
    more: dict[str, Any] = {"config": to_json(run)} if full else {}
    more |= {"named_parameters": rows} if parameters else {}
    _show(to_json(run), costs(run), extra | (more if as_json else {}), as_json=as_json)
    if as_json:
        return
    for path, value, note in described(run) if full else ():
        print_line(f"\n{path}={_format(value)}\n    {note}")
    if parameters:
        print_line(f"\n{PARAMETERS.text(rows, width=columns())}")


def _show(
    config: Mapping[str, Any], costs: Mapping[str, Any], extra: Mapping[str, Any], *, as_json: bool
) -> None:
    report = {**costs, **extra}
    print_report(report if as_json else _card(config, report), as_json=as_json)


def _find(name: str) -> tuple["RunConfig", dict[str, Any]]:
    from sparing.runs.bundled import run_or_bundled
    from sparing.runs.config import read_config
    from sparing.runs.recipes import RECIPES, expectation, recipe

    path = Path(name)
    if name.endswith(".json"):
        return read_config(path), {"recipe": name}
    if name in RECIPES:
        return recipe(name), {"recipe": name, "about": expectation(name)}
    if name and not (path.exists() or "/" in name):
        raise unknown_name("recipe (and no such run)", name, RECIPES)
    folder = run_or_bundled(path if name else None)
    return folder.config(), {"run": name or BUNDLED, **_records(folder.path)}


def _records(folder: Path) -> dict[str, Any]:
    """Provenance and results of a run, as far as there are any."""
    files = {key: folder / f"{key}.json" for key in ("provenance", "results")}
    return {key: read_object(file) for key, file in files.items() if file.is_file()}


def _format(value: Any) -> str:
    """Format a value as `--set` takes it."""
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value) or "()"
    return str(value)


def _card(config: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """The report for people: what it is, what it costs, how it was trained, how good it is."""
    training, deployed = report["parameters"]["training"], report["parameters"]["deployed"]
    unit = "byte" if "flops_per_byte" in report else "token"
    more = f" ({training:,} in training)" if training != deployed else ""
    state = format_bytes(report["state_bytes"])
    return {
        **{key: report[key] for key in ("run", "recipe", "about") if key in report},
        "model": f"{report['family']}, {pluralize(deployed, 'parameter')}{more}",
        "cost": f"{report['flops_per_token']:,.0f} FLOPs per {unit}, {state} of state",
        **_history({"recipe": config["recipe"], "corpus": config["data"]["corpus"], **report}),
    }


def _history(record: Mapping[str, Any], later: int = 0) -> dict[str, Any]:
    """How a model was trained and how good it is, and the same of those it was initialised from.

    `later` is how many trainings came after this one.
    """
    results, provenance = _mapping(record.get("results")), _mapping(record.get("provenance"))
    now = {
        **_training(record.get("recipe"), record.get("corpus"), results.get("training")),
        "found": _mapping(results.get("search")).get("pattern"),
        **_origin(provenance),
        **_scores(results),
    }
    prefix = ("", "init ")[later] if later < 2 else f"init {later} "
    init = _mapping(provenance.get("init"))
    earlier = _history(init, later + 1) if init else {}
    return {f"{prefix}{key}": value for key, value in now.items()} | earlier


def _mapping(value: Any) -> Mapping[str, Any]:
    """A JSON object, or an empty one in place of anything else."""
    return value if isinstance(value, Mapping) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _training(recipe: Any, corpus: Any, found: Any) -> dict[str, str]:
    """Recipe, corpus and length of a training, as far as they are recorded."""
    if not isinstance(found, Mapping):
        return {}
    units = [unit for unit in ("step", "token") if _is_number(found.get(f"{unit}s"))]
    counts = [pluralize(found[f"{unit}s"], unit) for unit in units]
    time = [_duration(found["elapsed_s"])] if _is_number(found.get("elapsed_s")) else []
    return {"trained": ", ".join([f"{recipe} on {corpus}", *counts, *time])}


def _duration(elapsed_s: float) -> str:
    return f"{elapsed_s:.1f} s" if elapsed_s < 60 else f"{elapsed_s / 60:.1f} minutes"


def _origin(found: Mapping[str, Any]) -> dict[str, Any]:
    """Device, program and command of a training; what was not recorded is left out."""
    facts = [found.get("device"), found.get("precision"), str(found.get("started_at", ""))[:10]]
    commit = found.get("commit") and f"commit {found['commit']}"
    source = found.get("source_sha256") and f"source {str(found['source_sha256'])[:12]}"
    return {
        "on": ", ".join(str(fact) for fact in [*facts, commit, source] if fact) or None,
        "seed": found.get("seed"),
        "command": found.get("command"),
    }


def _scores(results: Mapping[str, Any]) -> dict[str, str]:
    """Bits per byte of every evaluation; the best one of the training only if there are none."""
    found = {
        label: f"{entry['bits_per_byte']:.4f} bits per byte ({', '.join(_measured(entry))})"
        for label, entry in results.items()
        if _is_number(_mapping(entry).get("bits_per_byte"))
    }
    if "valid" in found:
        found.pop("best_valid", None)
    return {label.replace("_", " "): text for label, text in found.items()}


def _measured(entry: Mapping[str, Any]) -> list[str]:
    size = [pluralize(entry["bytes"], "byte")] if _is_number(entry.get("bytes")) else []
    weights = [f"weights {entry['weights']}"] if "weights" in entry else []
    return [*size, *([str(entry["how"])] if "how" in entry else []), *weights]
