"""Rotated entries: the kernel against the definition, gradients included."""

from pathlib import Path

import pytest
import torch
from tests.ops import h200
from torch import Tensor

from sparing.nn.rotary import PERIOD, Rotary
from sparing.ops.rotated_entries import reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

CASES = {
    "tiles cut": {"segment": 50, "heads": 3, "start": [0, 7]},
    "tiles whole": {"segment": 64, "heads": 2, "start": [5, 0]},
    "round the period": {"segment": 20, "heads": 1, "start": [PERIOD - 9, 3 * PERIOD + 1]},
    "one position": {"segment": 1, "heads": 4, "start": [3, 900]},
    "wider": {"segment": 33, "heads": 2, "start": [1, 2], "width": 64},
    "widest": {"segment": 33, "heads": 2, "start": [1, 2], "width": 256},
    "shifted, tiles cut": {"segment": 150, "heads": 3, "start": [0, PERIOD - 9], "shifted": True},
    "shifted, one position": {"segment": 1, "heads": 4, "start": [3, 900], "shifted": True},
}


def outcome(rotate, case: dict, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Queries, entries, and gradients of what was projected and of the gains."""
    torch.manual_seed(0)
    width, heads = case.get("width", 16), case["heads"]
    three = 3 * torch.randn(2, case["segment"], 3, heads, width)
    three = three.bfloat16().to(DEVICE, dtype).requires_grad_()
    gain = torch.linspace(0.5, 2, heads, device=DEVICE, requires_grad=True)
    start = torch.tensor(case["start"], device=DEVICE)
    before = torch.randn(2, heads, width).bfloat16().to(DEVICE, dtype)
    shifted = (before,) if case.get("shifted") else ()
    query, fresh = rotate(three, gain, Rotary(width).to(DEVICE).table, start, *shifted)
    torch.manual_seed(1)
    pull = [torch.randn(x.shape).to(x) for x in (query, fresh)]
    torch.autograd.backward([query, fresh], pull)
    return [query.detach(), fresh.detach(), three.grad, gain.grad]


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_equals_the_definition(name: str) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.rotated_entries import fused

    wanted = outcome(reference.rotated_entries, CASES[name])
    got = outcome(fused.rotated_entries, CASES[name])
    for found, right in zip(got, wanted, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["wider", "shifted, tiles cut"])
def test_sixteen_bits_are_rounded_once(name: str) -> None:
    """Triton's interpreter cuts where a GPU rounds."""
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.rotated_entries import fused

    case = CASES[name]
    exact = outcome(reference.rotated_entries, case)
    got = outcome(fused.rotated_entries, case, torch.bfloat16)
    plain = outcome(reference.rotated_entries, case, torch.bfloat16)
    for found, other, right in zip(got, plain, exact, strict=True):
        assert (found - right).norm() < 5e-3 * right.norm()
        # Of a handful of sums (the gains of heads) either may be nearer by luck.
        if right.numel() > 100:
            assert (found - right).norm() <= 1.05 * (other - right).norm()


def test_queries_and_keys_have_one_length_and_values_are_left_alone() -> None:
    three, gain = torch.randn(2, 5, 3, 2, 8), torch.tensor([1.0, 3.0])
    start = torch.tensor([0, 40])
    query, fresh = reference.rotated_entries(three, gain, Rotary(8).table, start)
    mean = torch.ones(2, 5, 2)
    torch.testing.assert_close(query.square().mean(-1), mean * gain.square(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(fresh[:, :, 0].square().mean(-1), mean, rtol=1e-5, atol=1e-5)
    assert torch.equal(fresh[:, :, 1], three[:, :, 2])


def test_shifted_keys_are_those_of_the_position_before() -> None:
    three, start = torch.randn(2, 5, 3, 2, 8), torch.tensor([0, 40])
    rest = (torch.ones(2), Rotary(8, rotary_fraction=0.0).table, start)
    plain = reference.rotated_entries(three, *rest)
    before = torch.randn(2, 2, 8)
    query, fresh = reference.rotated_entries(three, *rest, before)
    assert torch.equal(query, plain[0])
    assert torch.equal(fresh[:, :, 1], plain[1][:, :, 1])
    assert torch.equal(fresh[:, 1:, 0], plain[1][:, :-1, 0])
    torch.testing.assert_close(fresh[:, 0, 0], torch.nn.functional.rms_norm(before, (8,)))


def test_the_operator_keeps_its_promises() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.rotated_entries import fused

    three = torch.randn(1, 20, 3, 2, 16, device=DEVICE, requires_grad=True)
    gain = torch.ones(2, device=DEVICE, requires_grad=True)
    arguments = (three, gain, *Rotary(16).to(DEVICE).table, torch.zeros(1, device=DEVICE).long())
    for before in (None, torch.randn(1, 2, 16, device=DEVICE)):
        torch.library.opcheck(fused._rotate, (*arguments, before))


def test_a_tensor_in_another_order_of_axes_is_read_rightly() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.rotated_entries import fused

    three, start = torch.randn(2, 20, 3, 2, 16, device=DEVICE), torch.tensor([3, 8]).to(DEVICE)
    odd = three.transpose(2, 3).contiguous().transpose(2, 3)
    gap = torch.stack([start, start + 50], dim=1)[:, 0]
    rest = (torch.ones(2, device=DEVICE), Rotary(16).to(DEVICE).table)
    wanted = fused.rotated_entries(three, *rest, start)
    for found, right in zip(fused.rotated_entries(odd, *rest, gap), wanted, strict=True):
        assert torch.equal(found, right)


@pytest.mark.parametrize("shift", [0, 1])
def test_the_kernels_compile_and_move_sixteen_bytes_at_a_time(tmp_path: Path, shift: int) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    kinds = dict.fromkeys(("gain", "cosines", "sines", "d_gain"), "*fp32")
    kinds |= {"start": "*i64"} | dict.fromkeys(("rows", "segment", "period"), "i32")
    fixed = {"HEADS": 8, "HALF": 32, "ROWS": 32, "SHIFT": shift}
    shape = {"kinds": kinds, "fixed": fixed, "warps": 4}
    for moved in h200.moves(tmp_path, module="sparing.ops.rotated_entries.kernels", **shape):
        assert len(moved) > 10
        assert sum(move.endswith("v4.b32") for move in moved) >= len(moved) - 4
