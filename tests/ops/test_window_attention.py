"""Windowed attention: the two fast forms against the definition, gradients included."""

import json
import math
from pathlib import Path

import pytest
import torch
from tests.ops import h200
from torch import Tensor

from sparing.ops.window_attention import Edge, _has_tiles, blocked, reference, sliced

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

CASES = {
    "memory, tiles cut": {"segment": 150, "memory": 130, "spans": [40.3, 200.7], "first": [0, 130]},
    "no memory": {"segment": 300, "memory": 0, "spans": [10.2, 500.0], "first": [0, 0]},
    "short spans": {"segment": 130, "memory": 200, "spans": [0.5, 90.0], "first": [3, 77]},
    "whole spans": {"segment": 70, "memory": 70, "spans": [32.0, 64.0], "first": [0, 70]},
    "one query": {"segment": 1, "memory": 90, "spans": [5.5, 80.0], "first": [0, 90]},
    "three heads, two alike": {
        "segment": 70,
        "memory": 40,
        "spans": [60.5, 9.0, 9.0],
        "first": [0, 12],
    },
    "a span below zero": {
        "segment": 40,
        "memory": 30,
        "spans": [9.0, -5.0, 9.0],
        "first": [0, 5],
    },
    "ramp of one": {"segment": 40, "memory": 30, "spans": [3.5, 9.0], "first": [0, 5], "ramp": 1},
    "wider": {"segment": 40, "memory": 30, "spans": [9.5, 50.0], "first": [2, 0], "width": 64},
    "wide": {"segment": 70, "memory": 64, "spans": [9.5, 80.0], "first": [2, 0], "width": 128},
    "widest": {"segment": 70, "memory": 64, "spans": [9.5, 80.0], "first": [2, 0], "width": 256},
    "long inside": {"segment": 260, "memory": 300, "spans": [250.5, 400.25], "first": [0, 11]},
}


def outcome(attend, case: dict, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Output and gradients of query, fresh entries and spans; what does not exist is poison."""
    torch.manual_seed(0)
    segment, memory, ramp = case["segment"], case["memory"], case.get("ramp", 32)
    width = case.get("width", 16)
    heads = len(case["spans"])
    query = torch.randn(2, segment, heads, width)
    fresh = torch.randn(2, segment, 2, heads, width)
    old = torch.randn(2, memory, 2, heads, width)
    for lane, first in enumerate(case["first"]):
        old[lane, :first, 0], old[lane, :first, 1] = 10.0, 100.0
    # With gaps between the lanes, as memories have them.
    old = torch.cat([old, torch.full_like(old, math.nan)], dim=1).to(DEVICE, dtype)[:, :memory]
    query, fresh = (x.to(DEVICE, dtype).requires_grad_() for x in (query, fresh))
    wide = torch.promote_types(dtype, torch.float32)
    span = torch.tensor(case["spans"], device=DEVICE, dtype=wide, requires_grad=True)
    edge = Edge(span, torch.tensor(case["first"], device=DEVICE), ramp)
    out = attend(query, fresh, old, edge)
    torch.manual_seed(1)
    out.backward(torch.randn(2, segment, heads, width).to(out))
    found = (out.detach(), query.grad, fresh.grad, span.grad)
    return [x.double() for x in found if x is not None]


@pytest.mark.parametrize("name", CASES)
def test_slices_equal_the_definition(name: str) -> None:
    wanted = outcome(reference.window_attention, CASES[name])
    for got, right in zip(outcome(sliced.window_attention, CASES[name]), wanted, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [128, 32])
@pytest.mark.parametrize("name", CASES)
def test_reading_in_slices_equals_the_definition(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sliced, "ROWS", rows)
    monkeypatch.setattr(blocked, "ROWS", rows)
    monkeypatch.setattr(blocked, "LONG", 100)
    wanted = outcome(reference.window_attention, CASES[name])[0]

    @torch.no_grad()
    def read(*inputs) -> Tensor:
        return sliced.window_attention(*inputs).requires_grad_()

    for fast in (True, False):
        monkeypatch.setattr(sliced, "has_fast_products", lambda *_, fast=fast: fast)
        got = outcome(read, CASES[name])[0]
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_equals_the_definition(name: str) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.window_attention import fused

    wanted = outcome(reference.window_attention, CASES[name])
    for got, right in zip(outcome(fused.window_attention, CASES[name]), wanted, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=2e-5)


IN_16_BITS = [
    torch.float16,
    # Triton's interpreter has no numbers of this kind.
    pytest.param(torch.bfloat16, marks=[pytest.mark.gpu, needs_gpu]),
]


@pytest.mark.parametrize("dtype", IN_16_BITS)
@pytest.mark.parametrize("name", ["memory, tiles cut", "wider", "wide", "widest"])
def test_in_sixteen_bits_the_kernel_is_hardly_farther_off(name: str, dtype: torch.dtype) -> None:
    """Than the definition in 16 bits; it holds scores in 32 and weights in 16 bits."""
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.window_attention import fused

    exact = outcome(reference.window_attention, CASES[name], torch.float64)
    plain = outcome(reference.window_attention, CASES[name], dtype)
    got = outcome(fused.window_attention, CASES[name], dtype)
    for found, other, right in zip(got, plain, exact, strict=True):
        assert (found - right).norm() <= 2 * (other - right).norm()
        assert (found - right).norm() < 0.02 * right.norm()


@pytest.mark.filterwarnings("ignore:invalid value")  # of the interpreter, about NaN as an integer
def test_every_head_has_its_turn_whatever_the_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.window_attention import fused

    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda x: empty_like(x).fill_(777))
    query, fresh = torch.randn(1, 9, 3, 16), torch.randn(1, 9, 2, 3, 16)
    edge = Edge(torch.tensor([5.0, math.nan, 9.0]), torch.zeros(1, dtype=torch.int64), 32)
    query, fresh, edge = (
        query.to(DEVICE),
        fresh.to(DEVICE),
        Edge(*(x.to(DEVICE) for x in edge[:2]), 32),
    )
    mixed = fused.window_attention(query, fresh, fresh[:, :0], edge)
    assert not (mixed == 777).any()


def test_spans_of_few_digits_hide_no_entry() -> None:
    torch.manual_seed(0)
    query, fresh = torch.randn(2, 4, 1, 16), torch.randn(2, 4, 2, 1, 16)
    old, first = torch.randn(2, 3001, 2, 1, 16), torch.tensor([2995, 2996])
    edge = Edge(torch.tensor([4000.0], dtype=torch.bfloat16), first, 32)
    with torch.no_grad():
        got = sliced.window_attention(query, fresh, old, edge)
    torch.testing.assert_close(got, reference.window_attention(query, fresh, old, edge))


def test_a_span_longer_than_the_text_is_plain_causal_attention() -> None:
    case = {"segment": 20, "memory": 0, "spans": [99.0, 99.0], "first": [0, 0]}
    torch.manual_seed(0)
    query, fresh = torch.randn(2, 20, 2, 16), torch.randn(2, 20, 2, 2, 16)
    edge = Edge(torch.tensor(case["spans"]), torch.zeros(2, dtype=torch.int64), 32)
    out = reference.window_attention(query, fresh, fresh[:, :0], edge)
    key, value = fresh.unbind(2)
    plain = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (query, key, value)), is_causal=True
    )
    torch.testing.assert_close(out, plain.transpose(1, 2))


def test_span_gradient_is_the_slope() -> None:
    query, fresh = torch.randn(1, 40, 1, 4).double(), torch.randn(1, 40, 2, 1, 4).double()
    weight = torch.randn(1, 40, 1, 4).double()

    def loss(span: Tensor) -> Tensor:
        edge = Edge(span, torch.zeros(1, dtype=torch.int64), 8)
        return (reference.window_attention(query, fresh, fresh[:, :0], edge) * weight).sum()

    span = torch.tensor([9.37], dtype=torch.float64, requires_grad=True)
    loss(span).backward()
    slope = (loss(span.detach() + 1e-5) - loss(span.detach() - 1e-5)) / 2e-5
    torch.testing.assert_close(span.grad[0], slope, rtol=1e-5, atol=1e-8)


def test_the_operator_keeps_its_promises() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.window_attention import fused

    query, fresh = torch.randn(1, 20, 1, 16), torch.randn(1, 20, 2, 1, 16)
    inputs = [x.to(DEVICE).requires_grad_() for x in (query, fresh)]
    span = torch.tensor([7.5], device=DEVICE, requires_grad=True)
    first = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    arguments = (*inputs, torch.randn(1, 9, 2, 1, 16).to(DEVICE), span, first, 8)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(fused._attend, arguments, test_utils=checks)


def test_entries_in_another_order_of_axes_are_read_rightly() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.window_attention import fused

    query, fresh = torch.randn(1, 20, 2, 16).to(DEVICE), torch.randn(1, 20, 2, 2, 16).to(DEVICE)
    edge = Edge(torch.tensor([7.5, 3.0], device=DEVICE), torch.zeros(1, device=DEVICE).long(), 8)
    odd = fresh.transpose(2, 3).contiguous().transpose(2, 3)
    assert not odd.is_contiguous()
    torch.testing.assert_close(
        fused.window_attention(query, odd, odd, edge),
        reference.window_attention(query, fresh, fresh, edge),
        rtol=1e-4,
        atol=2e-5,
    )


def test_a_gpu_with_little_shared_memory_gets_smaller_tiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.window_attention import fused

    wanted = outcome(reference.window_attention, CASES["widest"])
    monkeypatch.setattr(fused, "_shared_bytes", lambda device: 101_376)
    wide = torch.empty(1, 1, 1, 256)
    assert fused._tile(fused.FORWARD, wide.bfloat16())["ROWS"] == 32
    assert fused._tile(fused.FORWARD, wide)["ROWS"] == 16
    assert "maxnreg" not in fused._tile(fused.BACKWARD_QUERY, torch.empty(1, 1, 1, 64))
    assert fused._tile(fused.FORWARD, wide[..., :128].bfloat16())["COLUMNS"] == 32
    for got, right in zip(outcome(fused.window_attention, CASES["widest"]), wanted, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=2e-5)


def test_the_kernel_is_for_enough_queries_of_known_widths_and_precisions() -> None:
    query, fresh = torch.empty(1, 16, 1, 64), torch.empty(1, 16, 2, 1, 64)
    assert _has_tiles(query, fresh)
    assert _has_tiles(query, fresh.bfloat16())
    assert _has_tiles(query.double(), fresh)
    assert not _has_tiles(query, fresh.double())
    assert not _has_tiles(query[:, 1:], fresh[:, 1:])
    assert not _has_tiles(query[..., 16:], fresh[..., 16:])


# Compiles kernels for a real GPU, which need not be there; prints the shared memory they take.
COMPILING = """
import json, sys
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sparing.ops.window_attention import fused, kernels

width, limit, kind, *names = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
fused._shared_bytes = lambda device: limit
dtype = {"*bf16": torch.bfloat16, "*fp32": torch.float32}[kind]
query = torch.empty(1, 1, 1, width, dtype=dtype)
numbers = {"segment": "i32", "memory": "i32", "stride_lane": "i32", "stride_key": "i32",
           "scale": "fp32", "first_at": "*i32"}
singles = dict.fromkeys(("span_at", "lse_at", "delta_at", "d_span_at"), "*fp32")
found = {}
for name in names:
    kernel = getattr(kernels, name)
    tile = dict(fused._tile(getattr(fused, name.upper()), query))
    options = {key: tile.pop(key) for key in ("num_warps", "num_stages", "maxnreg") if key in tile}
    fixed = {"RAMP": 32, "HEADS": 1, "PADDED": 2, "WIDTH": width, **tile}
    kinds = {n: (numbers | singles | dict.fromkeys(fixed, "constexpr")).get(n, kind)
             for n in kernel.arg_names}
    places = {(kernel.arg_names.index(n),): value for n, value in fixed.items()}
    source = ASTSource(fn=kernel, signature=kinds, constexprs=places)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    found[name] = made.metadata.shared
print(json.dumps(found))
"""


ALL = ("forward", "backward_query", "backward_entries")
# The one that takes most where heads are wide: in 32 bits each of them compiles for long.
LAST = ("backward_entries",)


@pytest.mark.parametrize(
    ("width", "limit", "kind", "names"),
    [
        (64, 101_376, "*bf16", ALL),
        (128, 101_376, "*bf16", ALL),
        (128, 232_448, "*bf16", ALL),
        pytest.param(256, 101_376, "*bf16", ALL, marks=pytest.mark.soak),
        pytest.param(256, 232_448, "*bf16", ALL, marks=pytest.mark.soak),
        pytest.param(128, 101_376, "*fp32", LAST, marks=pytest.mark.soak),
        pytest.param(256, 101_376, "*fp32", LAST, marks=pytest.mark.soak),
        pytest.param(256, 166_912, "*fp32", LAST, marks=pytest.mark.soak),
    ],
)
def test_the_kernels_compile_and_fit_into_shared_memory(
    width: int, limit: int, kind: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    taken = json.loads(h200.printed(COMPILING, tmp_path, str(width), str(limit), kind, *names))
    assert len(taken) == len(names)
    assert max(taken.values()) <= limit
