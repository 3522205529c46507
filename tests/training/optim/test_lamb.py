"""Min-trust LAMB: the original's numbers, a scalar reference, and no wait for the device."""

import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from sparing.training.optim.lamb import Lamb, Moments, add_adam, add_adam_fused

GOLDEN = Path(__file__).parents[2] / "golden" / "min_trust_lamb.safetensors"


def test_five_steps_equal_the_original_program() -> None:
    with safe_open(GOLDEN, "pt") as file:
        settings = {key: float(file.metadata()[key]) for key in ("lr", "weight_decay", "min_trust")}
        golden = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    parameters = {name: golden[f"{name}0"].clone().requires_grad_() for name in "pqr"}
    optimizer = Lamb(parameters.values(), **settings)
    for step in range(5):
        for name, p in parameters.items():
            p.grad = golden[f"step{step}.grad_{name}"]
        optimizer.step()
        for name, p in parameters.items():
            torch.testing.assert_close(p.detach(), golden[f"step{step}.{name}"], rtol=0, atol=1e-9)


def scalar_lamb(
    weights: list[float], gradients: list[list[float]], *, decay: float, floor: float
) -> list[float]:
    m, v = [0.0] * len(weights), [0.0] * len(weights)
    for gradient in gradients:
        m = [0.9 * a + 0.1 * g for a, g in zip(m, gradient, strict=True)]
        v = [0.999 * a + 0.001 * g * g for a, g in zip(v, gradient, strict=True)]
        s = [a / (math.sqrt(b) + 1e-6) + decay * w for a, b, w in zip(m, v, weights, strict=True)]
        weight_norm, step_norm = min(math.hypot(*weights), 10.0), math.hypot(*s)
        trust = weight_norm / step_norm if weight_norm and step_norm else 1.0
        weights = [w - 0.01 * max(trust, floor) * x for w, x in zip(weights, s, strict=True)]
    return weights


@pytest.mark.parametrize("floor", [0.0, 0.25])
@pytest.mark.parametrize("size", [0.0, 0.001, 0.5, 40.0])
def test_every_size_of_weight_follows_the_scalar_reference(size: float, floor: float) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(7, generator=generator, dtype=torch.float64) * size
    gradients = torch.randn(6, 7, generator=generator, dtype=torch.float64)
    gradients[2] = 0.0
    p = weights.clone().requires_grad_()
    optimizer = Lamb([p], lr=0.01, weight_decay=0.03, min_trust=floor)
    for gradient in gradients:
        p.grad = gradient
        optimizer.step()
    expected = scalar_lamb(weights.tolist(), gradients.tolist(), decay=0.03, floor=floor)
    torch.testing.assert_close(
        p.detach(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("value", [0.0, 2.0])
def test_a_zero_gradient_changes_nothing(value: float) -> None:
    p = torch.full((4,), value, requires_grad=True)
    p.grad = torch.zeros(4)
    Lamb([p]).step()
    assert torch.equal(p, torch.full((4,), value))


def test_a_parameter_without_gradient_is_left_alone() -> None:
    still, moved = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    moved.grad = torch.ones(3)
    optimizer = Lamb([still, moved], weight_decay=0.1)
    optimizer.step()
    assert torch.equal(still, torch.ones(3))
    assert not torch.equal(moved, torch.ones(3))
    assert still not in optimizer.state


def test_a_group_without_any_gradient_is_left_alone() -> None:
    p = torch.ones(3, requires_grad=True)
    Lamb([p]).step()
    assert torch.equal(p, torch.ones(3))


def test_the_fused_form_equals_the_definition() -> None:
    torch.manual_seed(0)
    shapes = [(5, 3), (70000,), ()]

    def lists() -> list[list[Tensor]]:
        generator = torch.Generator().manual_seed(1)
        drawn = [[torch.randn(s, generator=generator).double() for s in shapes] for _ in range(4)]
        return [*drawn[:3], [square.abs() for square in drawn[3]]]

    plain, fused = lists(), lists()
    add_adam(plain[0], Moments(*plain[1:]), (0.9, 0.999), 1e-6)
    add_adam_fused(fused[0], Moments(*fused[1:]), (0.9, 0.999), 1e-6)
    torch.testing.assert_close(fused, plain, rtol=1e-12, atol=1e-12)


def test_the_layout_of_a_gradient_does_not_matter() -> None:
    torch.manual_seed(0)
    weights, gradient = torch.randn(4, 6), torch.randn(4, 6)
    results = []
    for given in (gradient, gradient.t().contiguous().t()):
        p = weights.clone().requires_grad_()
        p.grad = given
        Lamb([p]).step()
        results.append(p.detach())
    torch.testing.assert_close(results[0], results[1])


def test_a_closure_is_evaluated_with_gradients() -> None:
    p = torch.ones(3, requires_grad=True)

    def closure() -> float:
        loss = (p * p).sum()
        loss.backward()
        return float(loss.detach())

    assert Lamb([p]).step(closure) == 3.0
    assert not torch.equal(p, torch.ones(3))


def test_no_value_is_asked_of_the_device() -> None:
    # A meta tensor has no value: a step that wanted one would raise.
    parameters = [torch.ones(shape, device="meta", requires_grad=True) for shape in [(4, 3), (5,)]]
    optimizer = Lamb(parameters, weight_decay=0.1)
    for _ in range(2):
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimizer.step()
    assert all(optimizer.state[p]["exp_avg"].is_meta for p in parameters)


def test_no_value_is_asked_of_a_tensor_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    p = torch.ones(3, requires_grad=True)
    p.grad = torch.ones(3)
    optimizer = Lamb([p])

    def refuse(*_: object) -> None:
        raise AssertionError("a value was copied to the host")

    for name in ("item", "tolist", "__bool__", "__float__", "__int__"):
        monkeypatch.setattr(Tensor, name, refuse)
    optimizer.step()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_it_never_waits_and_agrees_with_the_cpu() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(40, 30), torch.zeros(30), torch.randn(300, 300) * 10]
    results = {}
    for device in ("cpu", "cuda"):
        parameters = [w.to(device, copy=True).requires_grad_() for w in weights]
        optimizer = Lamb(parameters, weight_decay=0.01)
        for step in range(3):
            for p in parameters:
                generator = torch.Generator().manual_seed(step)
                p.grad = torch.randn(p.shape, generator=generator).to(device)
            torch.cuda.set_sync_debug_mode("error")
            optimizer.step()
            torch.cuda.set_sync_debug_mode("default")
        results[device] = [p.detach().cpu() for p in parameters]
    torch.testing.assert_close(results["cuda"], results["cpu"], rtol=1e-4, atol=1e-5)
