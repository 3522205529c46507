"""Structured dropout: what is dropped together, and that the mean stays."""

import torch

from sparing.nn.dropout import LockedDropout, RowDropout


def test_locked_dropout_keeps_its_mask_along_the_segment() -> None:
    torch.manual_seed(0)
    out = LockedDropout(0.5)(torch.ones(64, 7, 50))
    assert set(out.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(out, out[:, :1].expand_as(out))
    assert not torch.equal(out[0], out[1])
    assert abs(out.mean().item() - 1) < 0.05


def test_row_dropout_drops_words_wherever_they_stand() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 400, (4, 300))
    out = RowDropout(400, 0.25)(torch.ones(4, 300, 3), tokens)
    seen = {token: set() for token in tokens.unique().tolist()}
    for token, vector in zip(tokens.flatten().tolist(), out.flatten(0, 1).tolist(), strict=True):
        seen[token] |= set(vector)
    assert all(len(values) == 1 for values in seen.values())
    dropped = sum(values == {0.0} for values in seen.values()) / len(seen)
    assert abs(dropped - 0.25) < 0.06
    assert max(max(values) for values in seen.values()) == torch.tensor(1 / 0.75).item()


def test_neither_acts_in_evaluation_or_at_rate_zero() -> None:
    x, tokens = torch.randn(2, 3, 4), torch.zeros(2, 3, dtype=torch.long)
    assert LockedDropout(0.5).eval()(x) is x
    assert LockedDropout(0.0)(x) is x
    assert RowDropout(5, 0.5).eval()(x, tokens) is x
    assert RowDropout(5, 0.0)(x, tokens) is x
