"""How fast the package's model reads a prompt on one core, by this code and by an earlier commit.

python benchmarks/prompts.py [--before COMMIT] [--length 8000] [--rounds 3]

The commit is checked out into a temporary folder. Both run in processes of their own, in turns,
with their own default chunks. CPU time of the fastest of three readings in each process; the second
line is the largest difference of the last logits.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]


def read(length: int, target: Path) -> float:
    """Save the logits after a prompt; return CPU seconds of the fastest of three readings."""
    import sparing
    from sparing.generate.decode import GenerationConfig, prefill

    torch.set_num_threads(1)
    model, seconds = sparing.load().model, list[float]()
    text = (ROOT / "docs" / "log" / "2026-11-15.md").read_bytes()[:length]
    tokens_1T = torch.tensor([list(text)])
    with torch.no_grad():
        # The first reading fills caches and is not timed.
        for _ in range(4):
            state = model.initial_state(1, inference=True)
            started_at = time.process_time()
            logits_1V, _ = prefill(model, tokens_1T, state, GenerationConfig().chunk)
            seconds.append(time.process_time() - started_at)
    torch.save(logits_1V, target)
    return min(seconds[1:])


def run(tree: Path, length: int, target: Path) -> float:
    """Do so in a process that imports the package from a tree."""
    command = [sys.executable, __file__, "--length", str(length), "--read", str(target)]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout)


def compare(before: str, length: int, rounds: int) -> None:
    """Print seconds of both, their ratio and the largest difference."""
    with tempfile.TemporaryDirectory() as folder:
        tree, saved = Path(folder, "tree"), [Path(folder, name) for name in ("old", "new")]
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(tree), before], check=True, stdout=2)
        try:
            turns = [
                [run(each, length, path) for each, path in zip((tree, ROOT), saved, strict=True)]
                for _ in range(rounds)
            ]
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
        old_s, new_s = (min(column) for column in zip(*turns, strict=True))
        old_1V, new_1V = (torch.load(path, weights_only=True) for path in saved)
    print(f"{length} bytes: {old_s:.2f} s before, {new_s:.2f} s now, {old_s / new_s:.2f} times")
    print(f"largest difference of the last logits: {float((old_1V - new_1V).abs().max()):.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default="7c0ed9e", help="the commit to compare with")
    parser.add_argument("--length", type=int, default=8000, help="bytes of the prompt")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(read(options.length, options.read))
    else:
        compare(options.before, options.length, options.rounds)


if __name__ == "__main__":
    main()
