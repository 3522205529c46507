"""The least that the first bytes of a text can cost, for any model.

python benchmarks/starts_floor.py --from enwik8.xz [--orders 6] [--later 1.44]

Read from a fresh state at a random place, byte k can be predicted from k-1 bytes only. On average
that costs at least the conditional entropy of that order. This prints these entropies as counted on
the training split, and the ratio of `starts.py` that they allow when bytes 17 to 64 cost `later`.
Counts of many contexts are too few and give too little entropy, so the floor stays a floor.
"""

import argparse
from pathlib import Path

import numpy as np

from sparing.data.splits import read_splits

FIRST = 16


def block_entropy(text: np.ndarray, size: int) -> float:
    """Bits of the distribution of strings of `size` bytes, as counted."""
    codes = np.zeros(len(text) - size + 1, dtype=np.uint64)
    for offset in range(size):
        codes = codes << np.uint64(8) | text[offset : offset + len(codes)]
    codes.sort()
    ends = np.flatnonzero(np.append(codes[1:] != codes[:-1], True))
    counts = np.diff(ends, prepend=-1)
    return float(np.log2(len(codes)) - (counts * np.log2(counts)).sum() / len(codes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, required=True, help="copy of enwik8")
    parser.add_argument("--orders", type=int, default=6, help="bytes that are counted, at most 8")
    parser.add_argument("--later", type=float, default=1.44, help="bits of each of bytes 17 to 64")
    options = parser.parse_args()
    text = np.frombuffer(bytes(read_splits("enwik8", options.source)["train"]), dtype=np.uint8)
    blocks = [0.0] + [block_entropy(text, size) for size in range(1, options.orders + 1)]
    bits = np.diff(blocks)
    for order, each in enumerate(bits):
        print(f"order {order}: {each:.3f} bits")
    # With more context a byte costs less, but not less than those that follow.
    floor = (np.maximum(bits, options.later).sum() + (FIRST - len(bits)) * options.later) / FIRST
    print(f"first {FIRST} bytes: at least {floor:.3f} bits each, ratio {floor / options.later:.2f}")


if __name__ == "__main__":
    main()
