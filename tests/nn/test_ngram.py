"""Vectors of token groups."""

from functools import partial

import pytest
import torch

from sparing.nn.ngram import NgramEmbedding


def embedding(**settings: object) -> NgramEmbedding:
    torch.manual_seed(0)
    return NgramEmbedding(6, **({"lengths": (2, 3), "rows": 1024, "width": 4} | settings))


def test_equal_groups_have_equal_vectors_and_others_do_not() -> None:
    made = embedding()
    tokens = torch.tensor([[1, 2, 3, 9, 1, 2, 3, 7, 2, 3]])
    vectors, _ = made(tokens, made.before(1, made.project.weight))
    torch.testing.assert_close(vectors[0, 2], vectors[0, 6])
    assert (vectors[0, 2] - vectors[0, 9]).abs().amax() > 1e-4


def test_order_counts() -> None:
    made = embedding(lengths=(2,))
    vectors, _ = made(torch.tensor([[4, 5, 4]]), made.before(1, made.project.weight))
    assert (vectors[0, 1] - vectors[0, 2]).abs().amax() > 1e-4


def test_segments_do_not_change_the_vectors() -> None:
    made, tokens = embedding(lengths=(2, 5)), torch.randint(0, 50, (2, 12))
    whole, last = made(tokens, made.before(2, made.project.weight))
    known, pieces = made.before(2, made.project.weight), []
    for piece in tokens.split([1, 4, 7], dim=1):
        vectors, known = made(piece, known)
        pieces.append(vectors)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole)
    assert torch.equal(known, last)


def test_different_groups_seldom_share_a_row() -> None:
    pairs = torch.cartesian_prod(torch.arange(100), torch.arange(100))
    (rows,) = embedding(rows=1 << 16, lengths=(2,)).find(pairs)
    # 10,000 balls in 65,536 urns: 65,536 (1 - exp(-10,000 / 65,536)) = 9,275 urns hold one.
    assert rows.unique().numel() > 9000


def test_rows_are_those_of_every_stored_model() -> None:
    tokens = torch.tensor([[0, 255, 32, 101]])
    found = embedding(rows=1 << 16, lengths=(2, 3)).find(tokens)
    assert [rows.tolist() for rows in found] == [[[32509, 23205]], [[29025, 57977]]]


def test_models_of_other_lengths_are_compiled_for_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    tokens = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(0))
    for lengths in ((2, 3), (2, 4), (2, 3, 4, 5), (3, 4, 5)):
        made = embedding(lengths=lengths)
        right = made.find(tokens)
        made.compile_parts()
        assert all(map(torch.equal, made.find(tokens), right)), lengths


def test_rows_must_be_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="power of two"):
        embedding(rows=1000)
