"""The kernels of two kinds of relative attention against the definitions, gradients included."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.tiny import CONFIGS
from tests.ops import h200
from torch import Tensor

from sparing.config import with_settings
from sparing.models import FAMILIES
from sparing.ops import relative_attention as relative
from sparing.ops import span_attention as span_ops
from sparing.ops.distance_attention import SHORTEST, has_tiles
from sparing.ops.span_attention import Ramp

pytest.importorskip("triton", reason="triton is not installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from sparing.ops.distance_attention import fused  # noqa: E402
from sparing.ops.relative_attention import tiled as relative_tiled  # noqa: E402
from sparing.ops.span_attention import tiled as span_tiled  # noqa: E402

SPANS: dict[str, dict[str, Any]] = {
    "memory, tiles cut": {"segment": 90, "memory": 130, "spans": [40.3, 97.0]},
    "zero vectors before memory": {"segment": 70, "memory": 20, "spans": [20.5, 3.25]},
    "no memory": {"segment": 40, "memory": 0, "spans": [0.0, 17.5]},
    # A tile of keys begins where the flat part of the first window ends.
    "whole spans, closed ends": {"segment": 70, "memory": 130, "spans": [96.0, 3.0, 3.0],
                                 "closed": True},
    "long inside": {"segment": 130, "memory": 230, "spans": [100.5, 197.0]},
    # The last key of a tile is the first position of a tile of queries.
    "keys that end where queries begin": {"segment": 130, "memory": 95, "spans": [150.5, 199.0]},
    "one query": {"segment": 1, "memory": 90, "spans": [5.5, 50.0]},
    "paper's offset, ramp of one": {"segment": 40, "memory": 30, "spans": [3.5, 9.0], "ramp": 1,
                                    "offset": 0},
    "wide": {"segment": 70, "memory": 64, "spans": [9.5, 80.0], "width": 64},
}  # fmt: skip
RELATIVE: dict[str, dict[str, Any]] = {
    "memory, tiles cut": {"segment": 90, "memory": 130},
    "no memory": {"segment": 40, "memory": 0},
    "a reach": {"segment": 70, "memory": 64, "reach": 50},
    "lanes that began": {"segment": 70, "memory": 64, "seen": [0, 40]},
    "a reach and lanes that began": {
        "segment": 200,
        "memory": 300,
        "reach": 128,
        "seen": [300, 17],
    },
    "a reach of nothing": {"segment": 20, "memory": 9, "reach": 0},
    "wide": {"segment": 70, "memory": 64, "width": 64},
    "between two powers of two": {"segment": 20, "memory": 9, "width": 41},
}


def numbers(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape).to(DEVICE, dtype).requires_grad_()


def differentiate(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    torch.manual_seed(1)
    grad = torch.randn(out.shape).to(out)
    return [x.double() for x in (out.detach(), *torch.autograd.grad(out, inputs, grad))]


def by_span(attend: Any, case: dict[str, Any], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Output and gradients of query, keys, values, position and spans."""
    torch.manual_seed(0)
    segment, size, width = case["segment"], case["memory"] + case["segment"], case.get("width", 16)
    heads = len(case["spans"])
    ramp = Ramp(case.get("ramp", 32), case.get("offset", 1), case.get("closed", False))
    shapes = [(2, heads, segment, width), (2, heads, size, width), (2, heads, size, width)]
    shapes.append((width, ramp.reach(max(case["spans"]))))
    inputs = [numbers(*shape, dtype=dtype) for shape in shapes]
    wide = torch.promote_types(dtype, torch.float32)
    span = torch.tensor(case["spans"], device=DEVICE, dtype=wide, requires_grad=True)
    return differentiate(attend(*inputs, span, ramp=ramp), [*inputs, span])


def by_distance(
    attend: Any, case: dict[str, Any], dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Output and gradients of query, keys, values, positions and both biases."""
    torch.manual_seed(0)
    segment, size, width = case["segment"], case["memory"] + case["segment"], case.get("width", 16)
    shapes = [(2, segment, 3, width), (2, size, 3, width), (2, size, 3, width), (size, 3, width)]
    shapes += [(3, width), (3, width)]
    inputs = [numbers(*shape, dtype=dtype) for shape in shapes]
    seen_B = torch.tensor(case["seen"], device=DEVICE) if "seen" in case else None
    bias = relative.Bias(*inputs[4:])
    return differentiate(attend(*inputs[:4], bias, reach=case.get("reach"), seen_B=seen_B), inputs)


def assert_alike(found: list[Tensor], wanted: list[Tensor]) -> None:
    for got, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", SPANS)
def test_spans_are_those_of_the_definition(name: str) -> None:
    wanted = by_span(span_ops.reference.span_attention, SPANS[name])
    assert_alike(by_span(span_tiled.span_attention, SPANS[name]), wanted)


@pytest.mark.parametrize("name", RELATIVE)
def test_relative_attention_is_that_of_the_definition(name: str) -> None:
    wanted = by_distance(relative.reference.relative_attention, RELATIVE[name])
    assert_alike(by_distance(relative_tiled.relative_attention, RELATIVE[name]), wanted)


IN_16_BITS = [
    torch.float16,
    # Triton's interpreter has no numbers of this kind.
    pytest.param(torch.bfloat16, marks=[pytest.mark.gpu, needs_gpu]),
]


@pytest.mark.parametrize("dtype", IN_16_BITS)
@pytest.mark.parametrize("name", ["memory, tiles cut", "wide"])
def test_in_sixteen_bits_the_kernels_are_hardly_farther_off(name: str, dtype: torch.dtype) -> None:
    """Than the definitions in 16 bits."""
    pairs = [
        (by_span, span_ops.reference.span_attention, span_tiled.span_attention, SPANS),
        (by_distance, relative.reference.relative_attention, relative_tiled.relative_attention,
         RELATIVE),
    ]  # fmt: skip
    for outcome, definition, kernels, cases in pairs:
        exact = outcome(definition, cases[name], torch.float64)
        plain = outcome(definition, cases[name], dtype)
        got = outcome(kernels, cases[name], dtype)
        for found, other, right in zip(got, plain, exact, strict=True):
            assert (found - right).norm() <= 2 * (other - right).norm()
            assert (found - right).norm() < 0.02 * right.norm()


WIDER = {"adaptive_span": ["dim=32"], "transformer_xl": ["dim=32", "head_dim=16", "memory=24"]}


def test_whole_models_have_the_same_loss_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    def anywhere(keys: Tensor, segment: int) -> bool:
        used.append(segment)
        return True

    segments = torch.randint(11, (3, 2, 20), generator=torch.Generator().manual_seed(1))
    for family in ("adaptive_span", "transformer_xl"):
        found = []
        for on_gpu in (False, True):
            if on_gpu:
                monkeypatch.setattr(span_ops, "has_tiles", anywhere)
                monkeypatch.setattr(relative, "has_tiles", anywhere)
            torch.manual_seed(0)
            model = FAMILIES[family].model(with_settings(CONFIGS[family][1], WIDER[family]))
            state, loss = model.initial_state(2), torch.zeros(())
            for segment in segments:
                out = model(segment, state)
                state, loss = out.state, loss + model.head.nats(out.hidden_BTD, segment).mean()
            loss.backward()
            found.append([loss.detach(), *(each.grad for each in model.parameters())])
        monkeypatch.undo()
        assert_alike(*found)
    assert used


def test_dropout_leaves_a_share_of_the_weights_scaled_up_both_ways() -> None:
    torch.manual_seed(0)
    segment, memory, heads, width, rate = 20, 12, 2, 32, 0.3
    size, ramp = segment + memory, Ramp(8)
    shapes = [(3, heads, segment, width), (3, heads, size, width), (width, ramp.reach(30))]
    query, keys, position = (numbers(*shape, dtype=torch.float32) for shape in shapes)
    span = torch.tensor([30.0, 12.5], device=DEVICE, requires_grad=True)
    # With values that tell keys apart, outputs are the weights.
    apart = torch.eye(size, device=DEVICE).expand(3, heads, size, size)

    def dropped(values: Tensor, seed: int) -> Tensor:
        torch.manual_seed(seed)
        return span_tiled.span_attention(
            query, keys, values, position, span, ramp=ramp, dropout=rate
        )

    weights = span_ops.reference.span_attention(query, keys, apart, position, span, ramp=ramp)
    mask = (dropped(apart, 5).detach() / weights.detach()).nan_to_num()
    present = weights.detach() > 0
    kept = mask[present][mask[present] > 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - rate)), rtol=1e-4, atol=0)
    share = (mask[present] == 0).double().mean().item()
    assert share == pytest.approx(rate, abs=4 * math.sqrt(rate * (1 - rate) / present.sum().item()))
    assert not torch.equal(dropped(apart, 6), dropped(apart, 5))

    values = numbers(3, heads, size, width, dtype=torch.float32)
    inputs = [query, keys, values, position, span]
    wanted = differentiate((weights * mask) @ values, inputs)
    assert_alike(differentiate(dropped(values, 5), inputs), wanted)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_both_compile_as_one_graph(rate: float) -> None:
    shapes = [(2, 2, 20, 16), (2, 2, 29, 16), (2, 2, 29, 16), (16, 25)]
    given = [numbers(*shape, dtype=torch.float32) for shape in shapes]
    span = torch.tensor([3.5, 9.0], device=DEVICE, requires_grad=True)
    shapes = [(2, 20, 2, 16), (2, 29, 2, 16), (2, 29, 2, 16), (29, 2, 16), (2, 16), (2, 16)]
    others = [numbers(*shape, dtype=torch.float32) for shape in shapes]

    def by_spans(*inputs: Tensor) -> Tensor:
        return span_tiled.span_attention(*inputs, ramp=Ramp(16), dropout=rate)

    def by_distances(*inputs: Tensor) -> Tensor:
        bias = relative.Bias(*inputs[4:])
        return relative_tiled.relative_attention(*inputs[:4], bias, dropout=rate)

    for kernels, inputs in ((by_spans, [*given, span]), (by_distances, others)):
        compiled = torch.compile(kernels, backend="aot_eager", fullgraph=True)
        torch.manual_seed(3)
        wanted = differentiate(kernels(*inputs), inputs)
        torch.manual_seed(3)
        assert_alike(differentiate(compiled(*inputs), inputs), wanted)


def test_a_score_far_above_the_others_at_the_end_of_a_ramp_stays_finite() -> None:
    torch.manual_seed(0)
    query, keys = (numbers(1, 1, 16, 16, dtype=torch.float32) for _ in range(2))
    position = torch.zeros(16, 5, device=DEVICE)
    position[:, 0] = 400 * query.detach()[0, 0, 7].sign()
    span = torch.zeros(1, device=DEVICE, requires_grad=True)
    assert Ramp(4).reach(0.0) == position.size(1)
    out = span_tiled.span_attention(query, keys, keys, position, span, ramp=Ramp(4))
    # The mask is zero there, so that score does not count.
    others = position.clone().index_fill_(1, torch.tensor([0], device=DEVICE), 0)
    expected = span_ops.reference.span_attention(query, keys, keys, others, span, ramp=Ramp(4))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=2e-5)
    for each in differentiate(out, [query, keys, span]):
        assert each.isfinite().all()


@pytest.mark.filterwarnings("ignore:invalid value")  # of the interpreter, about NaN as an integer
def test_spans_that_are_not_numbers_lead_nowhere_else() -> None:
    query, keys = (numbers(1, 2, 20, 16, dtype=torch.float32) for _ in range(2))
    span = torch.tensor([5.0, math.nan], device=DEVICE, requires_grad=True)
    position = numbers(16, 38, dtype=torch.float32)
    out = span_tiled.span_attention(query, keys, keys, position, span, ramp=Ramp(32))
    alone = span_tiled.span_attention(
        query[:, :1], keys[:, :1], keys[:, :1], position, span[:1], ramp=Ramp(32)
    )
    torch.testing.assert_close(out[:, :1], alone)
    out.sum().backward()


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_the_operator_keeps_its_promises(rate: float) -> None:
    query, keys = (
        numbers(1, 20, 2, 16, dtype=torch.float32),
        numbers(1, 29, 2, 16, dtype=torch.float32),
    )
    bias, span = numbers(1, 2, 20, 12, dtype=torch.float32), torch.tensor([7.5, 2.0], device=DEVICE)
    first = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    hash_key = torch.tensor([5, -7], dtype=torch.int32, device=DEVICE)
    settings = (0, 1, 4, 1, False, rate)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    tensors = (query, keys, keys.clone(), bias, span.requires_grad_(), first, hash_key)
    torch.library.opcheck(fused._attend, (*tensors, *settings), test_utils=checks)


def test_tensors_in_odd_orders_are_read_rightly() -> None:
    query, keys = (
        numbers(2, 20, 3, 16, dtype=torch.float32),
        numbers(2, 29, 3, 16, dtype=torch.float32),
    )
    bias = numbers(2, 3, 20, 12, dtype=torch.float32)
    plain = fused.distance_attention(query, keys, keys, bias, nearest=1)
    for odd in (bias.mT.contiguous().mT, torch.cat([bias, bias], -1)[..., :12]):
        assert odd.stride() != bias.stride()
        other = keys.transpose(1, 2).contiguous().transpose(1, 2)
        found = fused.distance_attention(query, other, keys, odd, nearest=1)
        torch.testing.assert_close(found, plain)


def test_the_kernels_are_for_enough_queries_in_16_bits_on_a_gpu() -> None:
    class OnGpu(torch.Tensor):
        is_cuda = True

    keys = torch.empty(1, 1, 1, 64, dtype=torch.bfloat16).as_subclass(OnGpu)
    assert has_tiles(keys, SHORTEST)
    assert not has_tiles(keys, SHORTEST - 1)
    assert not has_tiles(keys.float(), SHORTEST)
    assert has_tiles(keys[..., :41], SHORTEST)
    assert not has_tiles(torch.cat([keys, keys, keys], -1), SHORTEST)
    assert not has_tiles(torch.empty(1, 1, 1, 64, dtype=torch.bfloat16), SHORTEST)


# Compiles kernels for a real GPU, which need not be there; prints the shared memory they take.
COMPILING = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sparing.ops.distance_attention import fused, kernels

NUMBERS = ("segment", "memory", "padding", "stride_lane", "stride_key", "stride_head", "bias_lane",
           "bias_head", "bias_row", "width", "threshold")
kinds = dict.fromkeys(NUMBERS, "i32") | dict.fromkeys(("first_at", "hash_key"), "*i32")
kinds |= dict.fromkeys(("span_at", "lse_at", "delta_at", "d_span_at"), "*fp32") | {"scale": "fp32"}
spans = {"NEAREST": 1, "RAMP": 32, "OFFSET": 1, "CLOSED": 0, "DROPOUT": True}
plain = {"NEAREST": 0, "RAMP": 0, "OFFSET": 1, "CLOSED": 0, "DROPOUT": False}
taken = []
for name in ("forward", "backward_query", "backward_entries"):
    for fixed in (spans, plain):
        kernel, tile = getattr(kernels, name), dict(getattr(fused, name.upper()))
        options = {key: tile.pop(key) for key in ("num_warps", "num_stages")}
        fixed = fixed | tile | {"HEADS": 8, "WIDTH": int(sys.argv[1])}
        signature = {n: "constexpr" if n in fixed else kinds.get(n, "*bf16")
                     for n in kernel.arg_names}
        places = {(kernel.arg_names.index(n),): value for n, value in fixed.items()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=places)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        taken.append(made.metadata.shared)
print(json.dumps(taken))
"""


@pytest.mark.parametrize("width", [64, pytest.param(128, marks=pytest.mark.soak)])
def test_the_kernels_compile_and_fit_into_shared_memory(width: int, tmp_path: Path) -> None:
    taken = json.loads(h200.printed(COMPILING, tmp_path, str(width)))
    # That of a GPU for games; others have more.
    assert len(taken) == 6
    assert max(taken) <= 101_376
