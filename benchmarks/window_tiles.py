"""Which tiles of the window attention's kernels are fastest on this GPU, at the windows of a run.

python benchmarks/window_tiles.py [--run results/enwik8_20min/eight_heads] [--width 64 --width 128]

Prints a JSON object per variant: milliseconds for all layers of the run together, forward or
backward. Widths other than the run's have as many channels in fewer heads, each with the mean of
several windows. Variants are compiled in processes of their own first.
"""

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from triton.testing import do_bench

from sparing.ops.window_attention import Edge, fused

LANES, SEGMENT, RAMP, GRAIN = 64, 1024, 32, 256
PROCESSES = 12
TILES: dict[str, tuple[tuple[int, int, int, int, int | None], ...]] = {
    # Queries, keys, warps, stages, registers; by the constant of `fused` that they stand for.
    "FORWARD": (
        (64, 32, 4, 2, None), (64, 32, 4, 3, None), (64, 32, 8, 2, None), (64, 64, 4, 2, None),
        (64, 64, 4, 3, None), (64, 64, 8, 3, None), (128, 32, 8, 2, None), (128, 32, 8, 3, None),
        (128, 64, 8, 2, None), (128, 64, 8, 3, None), (128, 128, 8, 2, None),
    ),
    "BACKWARD_QUERY": (
        (64, 32, 4, 2, None), (64, 32, 4, 3, None), (64, 32, 4, 4, 128), (64, 32, 4, 3, 168),
        (64, 16, 4, 2, None), (64, 32, 8, 2, None), (64, 64, 4, 2, None), (64, 64, 8, 2, None),
        (128, 16, 8, 2, None), (128, 32, 8, 2, None), (128, 64, 8, 2, None),
        (64, 16, 4, 3, None), (128, 16, 8, 3, None),
    ),
    "BACKWARD_ENTRIES": (
        (32, 64, 4, 3, 128), (32, 64, 4, 2, None), (32, 64, 4, 3, None), (64, 32, 8, 2, None),
        (16, 64, 4, 2, None), (32, 64, 8, 2, None), (64, 64, 4, 2, None), (64, 64, 8, 2, None),
        (16, 128, 8, 2, None), (32, 128, 8, 2, None), (64, 128, 8, 2, None), (32, 32, 4, 2, None),
    ),
}  # fmt: skip
Variant = tuple[str, int, dict[str, int] | None]


def variants(widths: list[int]) -> Iterator[Variant]:
    """Today's tiles and all others, for each kernel and width of a head."""
    for width in widths:
        for kernel, tiles in TILES.items():
            yield kernel, width, None
            for rows, columns, warps, stages, registers in tiles:
                tile = {"ROWS": rows, "COLUMNS": columns, "num_warps": warps, "num_stages": stages}
                yield kernel, width, tile | ({"maxnreg": registers} if registers else {})


def windows(run: Path, width: int) -> list[list[float]]:
    """Spans of every attention layer at the end of a run, as if its heads had this width."""
    attention = json.loads((run / "config.json").read_text())["model"]["windowed"]
    heads = attention["heads"] * attention["head_dim"] // width
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [entry for entry in entries if entry["kind"] == "train"][-1]
    layers: dict[int, list[float]] = {}
    for name, window in last.items():
        if name.startswith("span."):
            layers.setdefault(int(name.split(".")[1]), []).append(window - RAMP)
    return [_merge(sorted(spans), heads) for spans in layers.values()]


def _merge(spans: list[float], heads: int) -> list[float]:
    """As many spans as `heads`: the means of neighbours, so that the work is the same."""
    each = len(spans) // heads
    return [sum(spans[at : at + each]) / each for at in range(0, len(spans), each)]


def layer_inputs(spans: list[float], width: int) -> tuple[torch.Tensor, torch.Tensor, tuple]:
    """Normed queries and keys, values and full memories of one layer."""
    heads, memory = len(spans), -(-int(max(spans) + RAMP) // GRAIN) * GRAIN
    shape, options = (heads, width), {"device": "cuda", "dtype": torch.bfloat16}
    query = torch.randn(LANES, SEGMENT, *shape, **options)
    fresh = torch.randn(LANES, SEGMENT, 2, *shape, **options)
    old = torch.randn(LANES, memory, 2, *shape, **options)
    edge = Edge(
        torch.tensor(spans, device="cuda"),
        torch.zeros(LANES, dtype=torch.int64, device="cuda"),
        RAMP,
    )
    return query.requires_grad_(), fresh.requires_grad_(), (old, edge)


def timed(variant: Variant, run: Path, *, layers: int | None = None) -> float:
    """Milliseconds of all layers together; with `layers` only of the first ones, once."""
    kernel, width, tile = variant
    chosen = fused._tile
    if tile is not None:
        wanted = getattr(fused, kernel)
        fused._tile = lambda usual, query: tile if usual is wanted else chosen(usual, query)
    try:
        spans = windows(run, width)[:layers]
        return sum(_layer_ms(kernel, each, width, once=layers is not None) for each in spans)
    finally:
        fused._tile = chosen


def _layer_ms(kernel: str, spans: list[float], width: int, *, once: bool) -> float:
    query, fresh, rest = layer_inputs(spans, width)
    out = fused.window_attention(query, fresh, *rest)
    grad = torch.randn_like(out)
    task: Callable[[], Any] = partial(fused.window_attention, query, fresh, *rest)
    if kernel != "FORWARD":
        task = partial(torch.autograd.grad, out, (query, fresh), grad, retain_graph=True)
    if once:
        task()
        torch.cuda.synchronize()
        return 0.0
    return float(do_bench(task, warmup=2, rep=8, return_mode="median"))


def attempt(variant: Variant, run: Path, *, layers: int | None = None) -> dict[str, Any]:
    """What is printed for one variant, errors included: some need too much shared memory."""
    kernel, width, tile = variant
    row: dict[str, Any] = {"kernel": kernel, "width": width, "tile": tile or "today's"}
    try:
        return row | {"ms": round(timed(variant, run, layers=layers), 3)}
    except Exception as problem:
        return row | {"problem": str(problem).splitlines()[0][:80]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("results/enwik8_20min/eight_heads"))
    parser.add_argument("--width", type=int, action="append")
    options = parser.parse_args()
    tried = list(variants(options.width or [64, 128]))
    context = multiprocessing.get_context("spawn")
    with context.Pool(PROCESSES) as pool:
        compiled = pool.map(partial(attempt, run=options.run, layers=1), tried, chunksize=1)
    for variant, row in zip(tried, compiled, strict=True):
        print(json.dumps(row if "problem" in row else attempt(variant, options.run)), flush=True)


if __name__ == "__main__":
    main()
