"""Stacked matrices: one product, and a word to the optimizer."""

import torch

from sparing.models.api import stacked_blocks
from sparing.nn.attention.single_head import OverparamGate
from sparing.nn.linear import Matrix, StackedLinear
from sparing.nn.recurrent import QRNNCore
from sparing.training.optim.muon import Muon


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


def test_rows_have_the_length_of_their_gain() -> None:
    matrix = Matrix(6, 4, normed=True)
    with torch.no_grad():
        matrix.weight.normal_()
        matrix.gain.copy_(torch.tensor([1.0, 2.0, -3.0, 0.0, 0.5, 1.5]))
    torch.testing.assert_close(torch.linalg.vector_norm(matrix(), dim=1), matrix.gain.abs())
    expected = matrix.gain[:, None] * torch.nn.functional.normalize(matrix.weight, dim=1)
    torch.testing.assert_close(matrix(), expected)


def test_each_block_starts_orthogonal_whether_normed_or_not() -> None:
    for normed in (True, False):
        torch.manual_seed(0)
        matrix = Matrix(12, 5, normed=normed, blocks=4)
        for block in matrix().chunk(4):
            torch.testing.assert_close(block @ block.T, torch.eye(3), atol=1e-5, rtol=0)


def test_collapsing_folds_the_gains_and_changes_nothing() -> None:
    matrix = Matrix(4, 3, normed=True)
    torch.nn.init.normal_(matrix.gain)
    before = matrix().detach().clone()
    matrix.collapse()
    assert [name for name, _ in matrix.named_parameters()] == ["weight"]
    assert torch.equal(matrix(), before)
    matrix.collapse()
    assert torch.equal(matrix(), before)
