"""Muon: orthogonal block by block, and equal to a plain loop over blocks."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from sparing.training.optim.muon import Muon, orthogonalise


def plain_orthogonal(matrix: Tensor) -> Tensor:
    x = matrix.T if matrix.size(0) > matrix.size(1) else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if matrix.size(0) > matrix.size(1) else x


def plain_muon(
    weights: Tensor, gradients: Sequence[Tensor], *, blocks: int, lr: float, decay: float
) -> Tensor:
    momentum = torch.zeros_like(weights)
    for gradient in gradients:
        momentum = 0.95 * momentum + gradient
        ahead = gradient + 0.95 * momentum
        steps = [plain_orthogonal(block) for block in ahead.chunk(blocks)]
        scale = math.sqrt(max(1.0, steps[0].size(0) / steps[0].size(1)))
        weights = weights * (1 - lr * decay) - lr * scale * torch.cat(steps)
    return weights


SHAPES = [((24, 6), 4), ((6, 6), 1), ((5, 8), 1), ((8, 5), 1), ((20, 5), 2)]


def test_a_step_equals_a_plain_loop_over_blocks() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(shape) for shape, _ in SHAPES]
    gradients = [[torch.randn(shape) for _ in range(4)] for shape, _ in SHAPES]
    parameters = [w.clone().requires_grad_() for w in weights]
    groups = [
        {"params": [p], "blocks": blocks} for p, (_, blocks) in zip(parameters, SHAPES, strict=True)
    ]
    optimizer = Muon(groups, lr=0.1, weight_decay=0.2)
    for step in range(4):
        for p, given in zip(parameters, gradients, strict=True):
            p.grad = given[step]
        optimizer.step()
    for i, (_, blocks) in enumerate(SHAPES):
        expected = plain_muon(weights[i], gradients[i], blocks=blocks, lr=0.1, decay=0.2)
        torch.testing.assert_close(parameters[i].detach(), expected, rtol=1e-4, atol=1e-4)


def test_every_block_of_an_update_is_nearly_orthogonal() -> None:
    torch.manual_seed(0)
    p = torch.zeros(64, 16, requires_grad=True)
    sizes = torch.tensor([1.0, 10.0, 100.0, 0.01]).repeat_interleave(16)[:, None]
    p.grad = torch.randn(64, 16) * sizes
    Muon([{"params": [p], "blocks": 4}], lr=1.0).step()
    for block in p.detach().chunk(4):
        values = torch.linalg.svdvals(block)
        # The smallest value of a random square matrix may need more iterations than five.
        assert values.max() < 1.25
        assert values[:-1].min() > 0.6


@pytest.mark.parametrize("shape", [(3, 4, 9), (3, 9, 4)])
def test_wide_and_tall_matrices_keep_their_shape_and_direction(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    matrices_NRC = torch.randn(shape)
    result_NRC = orthogonalise(matrices_NRC)
    assert result_NRC.shape == shape
    u, _, vh = torch.linalg.svd(matrices_NRC, full_matrices=False)
    values = torch.linalg.diagonal(u.mT @ result_NRC @ vh.mT)
    assert values.min() > 0.6
    assert values.max() < 1.25


def test_a_zero_gradient_gives_a_zero_update() -> None:
    p = torch.ones(4, 4, requires_grad=True)
    p.grad = torch.zeros(4, 4)
    Muon([p]).step()
    assert torch.equal(p, torch.ones(4, 4))


def test_a_matrix_without_gradient_is_left_alone() -> None:
    p, q = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True)
    q.grad = torch.eye(4)
    Muon([p, q], weight_decay=0.1).step()
    assert torch.equal(p, torch.ones(4, 4))
    assert not torch.equal(q, torch.ones(4, 4))


def test_anything_but_a_stack_of_matrices_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(5,\)"):
        Muon([torch.ones(5, requires_grad=True)])
    with pytest.raises(ValueError, match="4 blocks"):
        Muon([{"params": [torch.ones(6, 2, requires_grad=True)], "blocks": 4}])


def test_no_value_is_asked_of_the_device() -> None:
    p = torch.ones(8, 4, device="meta", requires_grad=True)
    p.grad = torch.ones_like(p)
    Muon([{"params": [p], "blocks": 2}], weight_decay=0.1).step()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_it_never_waits_and_nearly_agrees_with_the_cpu() -> None:
    torch.manual_seed(0)
    gradient = torch.randn(256, 64)
    results = {}
    for device in ("cpu", "cuda"):
        p = torch.zeros(256, 64, device=device, requires_grad=True)
        p.grad = gradient.to(device)
        optimizer = Muon([{"params": [p], "blocks": 4}], lr=1.0, weight_decay=0.1)
        torch.cuda.set_sync_debug_mode("error")
        optimizer.step()
        torch.cuda.set_sync_debug_mode("default")
        results[device] = p.detach().cpu()
    # bfloat16 keeps 8 bits; what matters is the direction.
    cosine = torch.cosine_similarity(results["cuda"].flatten(), results["cpu"].flatten(), dim=0)
    assert cosine > 0.999
