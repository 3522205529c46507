"""The experiment of `sparing compare`: a recipe as it is, and with other settings."""

from collections.abc import Sequence
from pathlib import Path

from sparing.experiments.engine import Experiment, ExperimentOptions
from sparing.experiments.leaderboard import half_range_cell, parameters_cell, valid_cell
from sparing.experiments.variants import read_variants
from sparing.runs.config import RunConfig
from sparing.runs.layout import Layout, format_number

COMPARISON = Layout(
    columns={
        "variant": lambda row: str(row["name"]),
        "valid bits/byte": valid_cell,
        "± seeds": half_range_cell,
        "to recipe": lambda row: format_number(
            row["difference"] if row["settings"] else None, "+.4f"
        ),
        "steps": lambda row: format_number(row["steps"], ",.0f"),
        "MB read": lambda row: format_number(row["bytes_read"], ",.2f", 1e6),
        "kB/s": lambda row: format_number(row["bytes_per_s"], ",.1f", 1e3),
        "peak GiB": lambda row: format_number(row["peak_bytes"], ".2f", 2**30),
        "minutes": lambda row: format_number(row["elapsed_s"], ".2f", 60),
        "parameters": parameters_cell,
    },
    left=("variant",),
)


def comparison(
    base: RunConfig, texts: Sequence[str], out: Path, options: ExperimentOptions
) -> Experiment:
    """The recipe `base` and the variants in `texts`; writes `compare.json` and `compare.md`."""
    return Experiment(read_variants(base, texts), out / "compare.json", COMPARISON, options)
