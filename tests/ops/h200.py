"""Kernels compiled for a real GPU, which need not be there; no interpreter in that process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MOVES = """
import importlib, json, re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

order = json.loads(sys.argv[1])
kernels, fixed = importlib.import_module(order["module"]), order["fixed"]
kinds = order["kinds"] | dict.fromkeys(fixed, "constexpr")
for kernel in (kernels.forward, kernels.backward):
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={n: kinds.get(n, "*bf16") for n in names},
        constexprs={(names.index(n),): value for n, value in fixed.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n not in fixed},
    )
    options = {"num_warps": order["warps"]}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    print(*re.findall(r"(?:ld|st).global[.a-z0-9]*", made.asm["ptx"]))
"""


def printed(program: str, cache: Path, *words: str) -> str:
    """What a program that compiles kernels prints."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def moves(cache: Path, **order: Any) -> list[list[str]]:
    """How `forward` and `backward` of a `module` read and write memory.

    `kinds` are those of arguments that are not tensors of 16 bits, `fixed` the constants, `warps`
    their number.
    """
    lines = printed(MOVES, cache, json.dumps(order)).splitlines()
    assert len(lines) == 2
    return [line.split() for line in lines]
