"""Benchmark records: figures with the machine, code, command and settings behind them."""

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sparing.data.vocab import ONE_BYTE
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.files import add_path_to_errors
from sparing.runs.config import RunConfig, to_json
from sparing.runs.provenance import provenance


def make_report(
    name: str, run: RunConfig, hardware: Hardware, figures: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the figures together with their provenance."""
    return {
        "bench": name,
        "recipe": run.recipe,
        **figures,
        **provenance(hardware, run.train.seed),
        "processor": cpu_name(),
        "threads": torch.get_num_threads(),
        "model": to_json(run)["model"],
    }


def bytes_per_s(run: RunConfig, tokens_per_s: float) -> float | None:
    """Bytes per second; None if the number of bytes per token depends on the text."""
    return tokens_per_s if run.data.vocab in ONE_BYTE else None


def cpu_name() -> str:
    """The model name of the CPU and the number of its cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    own = names[0] if names else platform.processor() or platform.machine()
    return f"{own}, {os.cpu_count()} cores"


def check_out_file(path: Path | None) -> None:
    """Refuse a file that cannot be appended to before anything is measured."""
    if path is None:
        return
    # A named pipe would wait for a reader.
    special = path.exists() and not path.is_file()
    if special or not path.absolute().parent.is_dir():
        raise UserError(f"{path} cannot be written to; name a file in an existing folder")


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record as one JSON line."""
    with add_path_to_errors(path), open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
