"""The models to serve, by the names that requests give them."""

from collections.abc import Sequence
from pathlib import Path

from sparing import device
from sparing.errors import UserError
from sparing.lm import LM, open_lm
from sparing.runs.bundled import NAME, run_or_bundled


def open_models(
    paths: Sequence[Path], target: str = "auto", checkpoint: str | None = None
) -> dict[str, LM]:
    """Load runs, each named after its folder; without any, the package's model."""
    hardware, found = device.pick(target, "float32"), dict[str, LM]()
    chosen: list[Path | None] = [*paths] or [None]
    for path in chosen:
        folder = run_or_bundled(path)
        folder.require_checkpoints()
        lm = open_lm(folder, hardware, checkpoint)
        name = NAME if path is None else path.resolve().name
        if name in found:
            raise UserError(
                f"two runs are named {name}; rename one, as requests choose a model by name"
            )
        found[name] = lm
    return found
