"""How well a model starts a text: the cost of the first bytes, and whether short prompts loop.

python benchmarks/starts.py --from enwik8.xz [--split valid] [--run RUN] [--at line] [--start TEXT]

Prints one JSON object. Choose on valid; test is for the figure.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
from text_starts import BEFORE, places

import sparing
from sparing.data.splits import read_splits
from sparing.lm import LM

LENGTH, FIRST = 64, 16
PROMPTS = (
    "The capital of France is ", "In 1969, ", "Water is ", "She was born in ", "The cat sat on ",
    "Mathematics is the study of ", "During the war, ", "A list of ", "The first ", "London ",
    "Most animals ", "In computer science, ", "He said that ", "The river ", "Music of ",
    "It is known that ", "The United States ", "According to ", "Albert Einstein ", "Once upon ",
)  # fmt: skip


def bits_at(lm: LM, text: bytes, begins: np.ndarray, start: str) -> np.ndarray:
    """Bits of each of the first bytes of the texts that begin at these places; a row per place."""
    after = lm.state(start) if start else None
    scores = lm.score([text[begin : begin + LENGTH] for begin in begins.tolist()], after=after)
    return np.array([[nats for _, nats in each.per_token] for each in scores]) / math.log(2)


def loops(text: str, size: int = 20, times: int = 3) -> bool:
    """Whether a string of `size` bytes occurs `times` times."""
    raw = text.encode()
    return any(raw.count(raw[at : at + size]) >= times for at in range(len(raw) - size + 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, required=True, help="copy of enwik8")
    parser.add_argument("--split", choices=("valid", "test"), default="valid")
    parser.add_argument("--run", default=None)
    parser.add_argument("--start", default="", help="text that is read before, and not scored")
    parser.add_argument("--at", choices=BEFORE, help="where texts begin; anywhere by default")
    parser.add_argument("--places", type=int, default=200)
    options = parser.parse_args()
    lm, text = (
        sparing.load(options.run),
        bytes(read_splits("enwik8", options.source)[options.split]),
    )
    begins = places(text, options.at, options.places, LENGTH, np.random.default_rng(1))
    bits = bits_at(lm, text, begins, options.start)
    first, later = bits[:, :FIRST].mean(), bits[:, FIRST:].mean()
    prompts = [options.start + prompt for prompt in PROMPTS]
    texts = lm.generate(prompts, length=300, temperature=0.8, seed=1)
    report = {
        "split": options.split,
        "places": options.places,
        "at": options.at or "anywhere",
        f"bits_of_bytes_1_to_{FIRST}": float(first),
        f"bits_of_bytes_{FIRST + 1}_to_{LENGTH}": float(later),
        "ratio": float(first / later),
        "prompts": len(PROMPTS),
        "loops": sum(map(loops, texts)),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
