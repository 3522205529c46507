"""QRNN's pooling: the kernel against the definition, gradients included; the definition by hand."""

from pathlib import Path

import pytest
import torch
from tests.ops import h200
from torch import Tensor

from sparing.ops.fo_pooling import blocked, fo_pooling, reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

CASES = {
    "tiles cut": (2, 50, 70),
    "tiles whole": (1, 64, 128),
    "less than a tile": (3, 7, 5),
    "one position": (2, 1, 64),
    "one more than a tile": (1, 33, 3),
}


def gates(batch: int, segment: int, dim: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    # Wide enough that some gates are as good as open or shut.
    three = 4 * torch.randn(batch, segment, 3, dim, generator=random)
    return three, torch.randn(batch, dim, generator=random)


def outcome(pool, shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Outputs, last cells, and gradients of the gates and of the first cells."""
    three, initial = gates(*shape)
    three = three.bfloat16().to(DEVICE, dtype).requires_grad_()
    initial = initial.to(DEVICE, torch.promote_types(dtype, torch.float32)).requires_grad_()
    y, last = pool(three, initial)
    random = torch.Generator().manual_seed(1)
    pulls = [torch.randn(x.shape, generator=random).to(x) for x in (y, last)]
    torch.autograd.backward([y, last], pulls)
    return [y.detach(), last.detach(), three.grad, initial.grad]


def test_the_definition_is_the_recurrence_worked_by_hand() -> None:
    # Forget gates of a half and three quarters, candidates tanh(1) and tanh(-1), outputs a half.
    half, three_quarters = 0.0, torch.tensor(3.0).log().item()
    three = torch.tensor([[1.0, half, 0.0], [-1.0, three_quarters, 0.0]]).view(1, 2, 3, 1)
    y, last = reference.fo_pooling(three, torch.tensor([[2.0]]))
    first = 0.5 * 2 + 0.5 * 0.7615942
    second = 0.75 * first - 0.25 * 0.7615942
    assert y.flatten().tolist() == pytest.approx([first / 2, second / 2])
    assert last.item() == pytest.approx(second)


def test_what_stays_is_not_forgotten_and_not_renewed() -> None:
    three, initial = gates(2, 6, 3)
    _, last = reference.fo_pooling(three, initial, torch.ones(2, 6, 3))
    assert torch.equal(last, initial)
    never, always = (fo_pooling(three, initial, share)[1] for share in (0.0, 1.0))
    assert torch.equal(always, initial)
    assert torch.equal(never, fo_pooling(three, initial, torch.zeros(2, 6, 3))[1])


def test_cells_are_wider_than_sixteen_bits() -> None:
    three, initial = gates(1, 9, 4)
    y, last = fo_pooling(three.bfloat16(), initial)
    assert (y.dtype, last.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_equals_the_definition(name: str) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.fo_pooling import fused

    wanted = outcome(reference.fo_pooling, CASES[name])
    for found, right in zip(outcome(fused.fo_pooling, CASES[name]), wanted, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


def test_small_gates_keep_their_digits() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.fo_pooling import fused

    answers = []
    for pool in (fused.fo_pooling, reference.fo_pooling):
        # From nothing, so that all there is comes from the candidates.
        three, initial = gates(2, 40, 5)
        answers.append(pool(three.to(DEVICE) / 400, 0 * initial.to(DEVICE)))
    torch.testing.assert_close(*answers, rtol=2e-5, atol=1e-9)


def test_every_number_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.fo_pooling import fused

    def spoilt(like: Tensor) -> Tensor:
        return torch.full_like(like, float("nan"))

    outputs = fused._outputs
    monkeypatch.setattr(fused, "_outputs", lambda *given: tuple(map(spoilt, outputs(*given))))
    monkeypatch.setattr(fused.torch, "empty_like", spoilt)
    assert all(x.isfinite().all() for x in outcome(fused.fo_pooling, CASES["tiles cut"]))


@pytest.mark.parametrize("which", ["y", "last"])
def test_one_of_the_two_may_be_all_that_matters(which: str) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.fo_pooling import fused

    answers = []
    for pool in (fused.fo_pooling, reference.fo_pooling):
        three, initial = (x.to(DEVICE).requires_grad_() for x in gates(2, 40, 5))
        y, last = pool(three, initial)
        (y if which == "y" else last).square().sum().backward()
        answers.append([three.grad, initial.grad])
    torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_lanes_far_into_memory_are_found() -> None:
    """The last gate is the 2,415,919,104th number: no place for 32 bits."""
    from sparing.ops.fo_pooling import fused

    three = torch.zeros(64, 1024, 3, 12288, dtype=torch.bfloat16, device="cuda")
    three[-1] = torch.randn(1024, 3, 12288)
    initial = torch.ones(64, 12288, device="cuda")
    y, last = fused.fo_pooling(three, initial)
    alone = fused.fo_pooling(three[-1:], initial[-1:])
    assert torch.equal(y[-1:], alone[0])
    assert torch.equal(last[-1:], alone[1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_rounded_once(dtype: torch.dtype) -> None:
    """Triton's interpreter cuts where a GPU rounds."""
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.fo_pooling import fused

    exact = outcome(reference.fo_pooling, (3, 200, 96), torch.float64)
    got = outcome(fused.fo_pooling, (3, 200, 96), dtype)
    plain = outcome(reference.fo_pooling, (3, 200, 96), dtype)
    for found, other, right in zip(got, plain, exact, strict=True):
        assert (found - right).norm() <= 1.05 * (other - right).norm() + 1e-6 * right.norm()
        assert (found - right).norm() < 5e-3 * right.norm()


def test_the_operator_keeps_its_promises() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.fo_pooling import fused

    given = tuple(x.to(DEVICE).requires_grad_() for x in gates(2, 9, 4))
    torch.library.opcheck(fused._pool, given)


def test_gates_in_another_order_of_axes_are_read_rightly() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.fo_pooling import fused

    three, initial = (x.to(DEVICE) for x in gates(2, 9, 4))
    odd = three.transpose(1, 3).contiguous().transpose(1, 3)
    wanted = fused.fo_pooling(three, initial)
    for found, right in zip(fused.fo_pooling(odd, initial), wanted, strict=True):
        assert torch.equal(found, right)


def test_gradients_in_another_order_of_axes_are_read_rightly() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.fo_pooling import fused

    answers = []
    for pool in (fused.fo_pooling, reference.fo_pooling):
        three, initial = (x.to(DEVICE).requires_grad_() for x in gates(3, 9, 4))
        y, last = pool(three, initial)
        # The gradients of transposed tensors are transposed, too.
        turned = [y.mT, last.T]
        pulls = [torch.arange(float(x.numel()), device=DEVICE).view(x.shape) for x in turned]
        torch.autograd.backward(turned, pulls)
        answers.append([three.grad, initial.grad])
    torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-4)


def test_the_kernels_compile_and_move_sixteen_bytes_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from sparing.ops.fo_pooling.fused import SHAPE

    wide = ("initial", "starts", "last", "d_last", "d_initial")
    kinds = dict.fromkeys(wide, "*fp32") | {"segment": "i32"}
    fixed = {"DIM": 512} | {name: SHAPE[name] for name in ("TIMES", "CHANNELS", "STAGES")}
    shape = {"kinds": kinds, "fixed": fixed, "warps": SHAPE["num_warps"]}
    for moved in h200.moves(tmp_path, module="sparing.ops.fo_pooling.kernels", **shape):
        assert len(moved) > 4
        assert sum(move.endswith("v4.b32") for move in moved) >= len(moved) - 4


@pytest.mark.parametrize("segment", [64, 65, 200, 1024])
def test_inference_in_runs_equals_the_definition(segment: int) -> None:
    three, initial = gates(2, segment, 5)
    with torch.no_grad():
        wanted = reference.fo_pooling(three, initial)
        for got in (blocked.fo_pooling(three, initial), fo_pooling(three, initial)):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
