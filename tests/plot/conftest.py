"""Journals written by hand, and a look into the pictures drawn from them."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Entry = dict[str, Any]


def train(step: int, bits: float, **more: Any) -> Entry:
    """A `train` entry of 100 tokens and 6 seconds per step, two bytes to a token."""
    return {
        "kind": "train",
        "step": step,
        "tokens": 100 * step,
        "elapsed_s": 6.0 * step,
        "bits_per_byte": bits,
        "nats_per_token": 2 * bits * math.log(2),
        "tokens_per_s": 50.0 + step,
        "lr": 0.002,
        "grad_norm": 1 / step,
        **more,
    }


def journal() -> list[Entry]:
    """Six train entries, two valid ones, and two kinds of events."""
    entries = [train(step, 8 / step) for step in range(10, 70, 10)]
    entries.insert(3, {"kind": "valid", "step": 30, "bits_per_byte": 0.5, "nats_per_token": 0.7})
    entries.append({"kind": "valid", "step": 65, "bits_per_byte": 0.3, "nats_per_token": 0.4})
    entries.append({"kind": "event", "step": 25, "what": "loss is not finite; step skipped"})
    entries.append({"kind": "event", "step": 26, "what": "loss is not finite; step skipped"})
    entries.append({"kind": "event", "step": 26, "what": "went back to the weights of step 20"})
    return entries


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Write the part of a run folder that curves need."""

    def make(
        name: str = "run", entries: list[Entry] | None = None, corpus: str | None = None
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        lines = [json.dumps(entry) + "\n" for entry in (journal() if entries is None else entries)]
        (folder / "metrics.jsonl").write_text("".join(lines))
        record = {"commit": "c0ffee123456", "device": "abacus"}
        (folder / "provenance.json").write_text(json.dumps(record))
        if corpus is not None:
            (folder / "config.json").write_text(json.dumps({"data": {"corpus": corpus}}))
        return folder

    return make


@pytest.fixture
def words() -> Callable[[Any], str]:
    """All text of a figure, legend and small print included."""

    def read(figure: Any) -> str:
        from matplotlib.text import Text

        return "\n".join(text.get_text() for text in figure.findobj(Text))

    return read


@pytest.fixture
def colours() -> Callable[[Path], int]:
    """How many colours a PNG has."""

    def count(path: Path) -> int:
        from matplotlib.image import imread

        pixels = (255 * imread(path)).astype(np.uint8)
        return len(np.unique(pixels.view(np.uint32)))

    return count
