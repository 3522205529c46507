"""Options and habits the verbs have in common."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a setting.")
]
Source = Annotated[
    Path | None, typer.Option("--from", help="Local copy of the corpus (file, archive or folder).")
]
CheckpointName = Annotated[
    str | None, typer.Option("--checkpoint", help="last, previous or best (best by default).")
]


def show(data: dict[str, Any], *, as_json: bool) -> None:
    """Print a report: JSON for programs, aligned lines for people."""
    if as_json:
        typer.echo(json.dumps(data))
        return
    width = max(len(name) for name in data)
    for name, value in data.items():
        typer.echo(f"{name:<{width}}  {_words(value)}")


def _words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(each)}" for name, each in value.items())
    return " ".join(str(value).split())
