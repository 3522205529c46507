"""Adagrad with its clip inside: the original's numbers, the report's example, edge cases."""

from pathlib import Path

import torch
from safetensors import safe_open

from sparing.training.optim.adagrad import Adagrad

GOLDEN = Path(__file__).parents[2] / "golden" / "adagrad.safetensors"


def test_five_steps_equal_the_original_program() -> None:
    with safe_open(GOLDEN, "pt") as file:
        lr, clip = (float(file.metadata()[key]) for key in ("lr", "clip"))
        golden = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    parameters = {name: golden[f"{name}0"].clone().requires_grad_() for name in "pq"}
    optimizer = Adagrad(parameters.values(), lr=lr, tensor_clip=clip)
    for step in range(5):
        for name, p in parameters.items():
            p.grad = golden[f"step{step}.grad_{name}"]
        optimizer.step()
        for name, p in parameters.items():
            torch.testing.assert_close(p.detach(), golden[f"step{step}.{name}"], rtol=0, atol=1e-9)


def test_the_first_step_of_the_report() -> None:
    p = torch.zeros(3, requires_grad=True)
    p.grad = torch.tensor([3.0, 4.0, 0.0])
    optimizer = Adagrad([p], lr=1.0, tensor_clip=0.03)
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.tensor([-0.006, -0.006, 0.0]))
    # The sum holds the gradient as it came.
    assert optimizer.state[p]["sum"].tolist() == [9, 16, 0]


def test_without_a_clip_it_is_the_adagrad_of_torch() -> None:
    torch.manual_seed(0)
    weights, gradients = torch.randn(4, 5).double(), torch.randn(6, 4, 5).double()
    results = []
    for kind in (Adagrad, torch.optim.Adagrad):
        p = weights.clone().requires_grad_()
        optimizer = kind([p], lr=0.1, weight_decay=0.02)
        for gradient in gradients:
            p.grad = gradient.clone()
            optimizer.step()
        results.append(p.detach())
    torch.testing.assert_close(results[0], results[1])


def test_each_tensor_is_clipped_by_itself() -> None:
    long, short = (torch.zeros(2, requires_grad=True) for _ in range(2))
    long.grad, short.grad = torch.tensor([30.0, 40.0]), torch.tensor([0.003, 0.004])
    Adagrad([long, short], lr=1.0, tensor_clip=0.1).step()
    torch.testing.assert_close(long.detach(), torch.full((2,), -0.002))
    torch.testing.assert_close(short.detach(), torch.full((2,), -1.0))


def test_a_parameter_without_gradient_is_left_alone() -> None:
    still, moved = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    moved.grad = torch.ones(3)
    optimizer = Adagrad([still, moved], tensor_clip=0.03)
    optimizer.step()
    assert torch.equal(still, torch.ones(3))
    assert not torch.equal(moved, torch.ones(3))
    assert still not in optimizer.state
    Adagrad([still]).step()
    assert torch.equal(still, torch.ones(3))


def test_no_value_travels_to_the_host() -> None:
    # Tensors without values: reading one would be an error.
    p = torch.ones(3, device="meta", requires_grad=True)
    p.grad = torch.ones(3, device="meta")
    optimizer = Adagrad([p], tensor_clip=0.03, weight_decay=0.1)
    optimizer.step()
    assert optimizer.state[p]["sum"].device.type == "meta"
