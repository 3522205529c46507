"""What a figure is worth nothing without: the machine, the code, the command, the settings."""

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sparing.device import Hardware
from sparing.errors import UserError
from sparing.runs.config import RunConfig, to_json
from sparing.runs.provenance import provenance


def report(
    name: str, run: RunConfig, hardware: Hardware, figures: Mapping[str, Any]
) -> dict[str, Any]:
    """Figures with where they come from."""
    return {
        "bench": name,
        "recipe": run.recipe,
        **figures,
        **provenance(hardware, run.train.seed),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "settings": settings(run),
    }


def settings(run: RunConfig) -> dict[str, Any]:
    """What decides the speed: the model whole, and how text and updates reach it."""
    data = to_json(run)
    return {
        **data["model"],
        **{name: data["train"][name] for name in ("batch", "segment", "batch_split", "compiled")},
        "optimizer": run.optim.name,
    }


def processor() -> str:
    """The name the CPU gives itself, and how many of it there are."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    own = names[0] if names else platform.processor() or platform.machine()
    return f"{own}, {os.cpu_count()} cores"


def check_file(path: Path) -> None:
    """Refuse, before anything is measured, a file that could not be appended to."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"{path} cannot be written to; name a file in an existing folder")


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add one JSON line."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
