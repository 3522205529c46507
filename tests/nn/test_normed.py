"""Weight normalisation: the formula, its start and its end."""

import torch

from sparing.nn.normed import Matrix


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
