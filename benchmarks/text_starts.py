"""A text made of short texts, as people give them to a model: the data of its initial states.

python benchmarks/text_starts.py --from enwik8.xz --out starts.txt [--texts 40000] [--length 64]

Half of them begin at random places of enwik8's training text, the others where a line, a sentence
or a word begins, in random order.
"""

import argparse
import re
from pathlib import Path

import numpy as np

from sparing.data.splits import read_splits

BEFORE = {"line": rb"\n(?=[A-Za-z'=])", "sentence": rb"[.] (?=[A-Z])", "word": rb" (?=[A-Za-z])"}
"""What stands before the beginning of each."""


def places(
    text: bytes, kind: str | None, count: int, length: int, random: np.random.Generator
) -> np.ndarray:
    """So many places where a line, sentence or word begins, or any; `length` bytes follow each."""
    if kind is None:
        return random.integers(0, len(text) - length, count)
    found = [match.end() for match in re.finditer(BEFORE[kind], text[:-length])]
    return random.choice(found, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, required=True, help="copy of enwik8")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=40_000)
    parser.add_argument("--length", type=int, default=64)
    options = parser.parse_args()
    text = bytes(read_splits("enwik8", options.source)["train"])
    random, sixth = np.random.default_rng(1), options.texts // 6
    counts = {None: options.texts - 3 * sixth} | dict.fromkeys(BEFORE, sixth)
    chosen = [places(text, kind, n, options.length, random) for kind, n in counts.items()]
    begins = random.permutation(np.concatenate(chosen))
    options.out.write_bytes(b"".join(text[at : at + options.length] for at in begins))


if __name__ == "__main__":
    main()
