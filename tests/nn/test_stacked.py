"""Stacked matrices: one product, and a word to the optimizer."""

import torch

from sparing.models.api import stacked_blocks
from sparing.nn.gate import OverparamGate
from sparing.nn.recurrent import QRNNCore
from sparing.nn.stacked import StackedLinear
from sparing.train.optim.muon import Muon


def test_it_is_each_of_its_matrices_at_once() -> None:
    torch.manual_seed(0)
    stacked, x = StackedLinear(3, 4, blocks=2), torch.randn(5, 3)
    parts = [x @ weight.T for weight in stacked.weight.chunk(2)]
    torch.testing.assert_close(stacked(x), torch.cat(parts, dim=-1) + stacked.bias)
    assert stacked.weight.shape == (8, 3)
    assert StackedLinear(3, 4, blocks=2, bias=False).bias is None


def test_gates_in_one_matrix_say_how_many_they_are() -> None:
    for window in (1, 2):
        core = QRNNCore(4, window=window)
        assert stacked_blocks(core.gates, "gates.weight") == 3
    assert stacked_blocks(OverparamGate(4).mix, "mix.weight") == 2
    assert stacked_blocks(OverparamGate(4, as_printed=True).mix, "mix.weight") == 2


def test_muon_gives_a_gate_with_a_small_gradient_as_large_a_step_as_the_others() -> None:
    torch.manual_seed(0)
    gates = QRNNCore(4, window=1).gates
    before = gates.weight.detach().clone()
    faint = torch.tensor([1.0, 1e-3, 1.0]).repeat_interleave(4)[:, None]
    gates.weight.grad = faint * torch.randn(12, 4)
    blocks = stacked_blocks(gates, "weight")
    Muon([{"params": [gates.weight], "blocks": blocks}], lr=1.0).step()
    sizes = [step.norm().item() for step in (gates.weight - before).chunk(3)]
    assert min(sizes) > 0.7 * max(sizes)
