"""Products by oneDNN are torch's, and are left alone where torch has to see them."""

import pytest
import torch

from sparing.ops import linear as module
from sparing.ops.linear import has_fast_products, linear, multiply


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 40, 24), (3, 17, 24), (70, 24)])
def test_both_libraries_agree(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    x, weight, shift = torch.randn(shape), torch.randn(7, 24), torch.randn(7) if bias else None
    wanted = x @ weight.T + (shift if shift is not None else 0)
    with torch.no_grad():
        torch.testing.assert_close(multiply(x, weight, shift), wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(linear(x, weight, shift), wanted, rtol=1e-5, atol=1e-5)


def test_rows_may_be_cut_from_wider_ones_and_weights_be_transposed() -> None:
    wide, weight = torch.randn(40, 3, 24), torch.randn(24, 7)
    torch.testing.assert_close(multiply(wide[:, 1], weight.T), wide[:, 1] @ weight)


def test_what_needs_torch_itself_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    x, weight = torch.randn(20, 8), torch.nn.Parameter(torch.randn(4, 8))
    assert not has_fast_products(x, weight)
    with torch.no_grad():
        assert has_fast_products(x, weight) == torch.backends.mkldnn.is_available()
        assert not has_fast_products(x.double(), weight.double())
        assert not has_fast_products(x.bfloat16(), weight.bfloat16())
        assert not has_fast_products(x.to("meta"), weight)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not has_fast_products(x, weight)


def test_gradients_flow_as_through_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "multiply", None)
    x, weight = torch.randn(20, 8), torch.randn(4, 8, requires_grad=True)
    linear(x, weight).sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(0).expand(4, 8))
