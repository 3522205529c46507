"""Exported ONNX folders side by side: size, bits per byte, and time per token early and late.

    sparing export --format onnx --out float32
    sparing export --format onnx --int8 --out int8
    python benchmarks/int8.py float32 int8 --data enwik8

Times are CPU time of one thread, the fastest of rounds in which the folders take turns.
"""

import argparse
import time
from pathlib import Path

import torch

import sparing
from sparing.models.api import LanguageModel, Output, State

STEPS, ROUNDS, LATE = 50, 6, 10_000


def main() -> None:
    """Measure the folders named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--data", help="score this corpus; by default nothing is scored")
    parser.add_argument("--bytes", type=int, default=100_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    models = {folder: sparing.load(folder).model for folder in options.folders}
    step, late, chunk = (_race(models, *case) for case in ((1, 0), (1, LATE), (64, LATE)))
    for folder in options.folders:
        size = sum(path.stat().st_size for path in folder.iterdir())
        line = f"{folder}: {size / 1e6:.1f} MB, {step[folder]:.2f} ms a token at the beginning, "
        line += f"{late[folder]:.2f} at {LATE:,}, {chunk[folder]:.1f} ms for 64 tokens there"
        if options.data:
            found = sparing.evaluate(folder, data=options.data, split="test", size=options.bytes)
            line += f", {found.bits_per_byte:.4f} bits per byte"
        print(line, flush=True)


def _race(models: dict[Path, LanguageModel], length: int, position: int) -> dict[Path, float]:
    """Milliseconds for `length` tokens at a position, in turns."""
    states = {folder: _state_at(model, position) for folder, model in models.items()}
    best = dict.fromkeys(models, float("inf"))
    tokens_1T = torch.zeros(1, length, dtype=torch.int64)
    steps = max(3, STEPS // length)
    for _ in range(ROUNDS):
        for folder, model in models.items():
            started_at = time.process_time()
            for _ in range(steps):
                out: Output = model(tokens_1T, states[folder])
                states[folder] = out.state
            best[folder] = min(best[folder], 1e3 * (time.process_time() - started_at) / steps)
    return best


def _state_at(model: LanguageModel, position: int) -> State:
    """A state as after so many tokens; how long a token takes does not depend on which they are."""
    state = model.static_state(1)
    counts = {name: tensor for name, tensor in state.items() if name.endswith("seen")}
    return {**state, **{name: tensor + position for name, tensor in counts.items()}}


if __name__ == "__main__":
    main()
