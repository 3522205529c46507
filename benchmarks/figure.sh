#!/usr/bin/env bash
# Makes a figure of docs/results.md and proves it: trains a recipe, scores valid and test, and codes
# the first million bytes of test with the size that the evaluation claims (`--verify`).
# usage: benchmarks/figure.sh ENWIK8 RECIPE FOLDER [options of sparing train]
set -euo pipefail

[ $# -ge 3 ] || { sed -n 4p "$0" >&2; exit 2; }
[ -f "$1" ] || { echo "$1 is missing" >&2; exit 2; }
enwik8=$1 recipe=$2 out=$3
shift 3

# What needs no GPU comes first, so that it fails before the training, not after it.
python -c 'import constriction' || { echo "pip install 'sparing[compress]'" >&2; exit 2; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python - "$enwik8" "$scratch/million" <<'PYTHON' || exit 2
import sys
from pathlib import Path

from sparing.data.splits import read_splits

Path(sys.argv[2]).write_bytes(bytes(read_splits("enwik8", Path(sys.argv[1]))["test"][:1_000_000]))
PYTHON

python -m sparing train "$recipe" --from "$enwik8" --out "$out" --quiet "$@"
python -m sparing evaluate "$out" --split valid --json > "$out/valid.json" &
python -m sparing evaluate "$out" --split test --json > "$out/test.json"
wait $!
# Before the proof, so that a machine that is taken away leaves the figure.
python -m sparing results "$out"
# Many lanes, to keep a GPU busy. For a model of 60M they hold tens of gigabytes.
python -m sparing compress "$scratch/million" --model "$out" --device auto --lanes 1024 --verify \
  --json --out "$scratch/coded" > "$out/proof.json"
cat "$out/proof.json"
