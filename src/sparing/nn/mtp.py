"""Multi-token prediction, an auxiliary training loss (arXiv:2404.19737).

Axes: B batch, T segment, D dim, V vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparing.nn.checks import check_at_least, check_counts


@dataclass(frozen=True, kw_only=True, slots=True)
class MTPConfig:
    """Settings of multi-token prediction, an auxiliary loss in training."""

    tokens: int = 0
    """How many tokens after the next one are predicted as well; 0: none."""
    weight: float = 0.3
    """Weight of their loss at the first step; it falls to zero by the end of the run."""

    def __post_init__(self) -> None:
        check_counts(0, tokens=self.tokens)
        check_at_least(0, weight=self.weight)


class MultiTokenPrediction(nn.Module):
    """A softmax for each of the tokens after the next one; not used after training."""

    def __init__(self, dim: int, vocab_size: int, further: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(vocab_size, dim) for _ in range(further))
        for table in self.tables:
            assert isinstance(table, nn.Embedding)
            # The first prediction is uniform, and costs log V.
            nn.init.zeros_(table.weight)

    def forward(self, hidden_BTD: Tensor, tokens_BT: Tensor) -> Tensor:
        """Return nats per position of the segment, summed over the tables.

        The vector at t has read token t; the next token is predicted by the model's own head.
        Tokens of the next segment are not known, so the last positions have fewer targets.
        """
        nats = hidden_BTD.new_zeros((), dtype=torch.float32)
        for distance, table in enumerate(self.tables, start=2):
            assert isinstance(table, nn.Embedding)
            logits_BTV = F.linear(hidden_BTD[:, :-distance], table.weight)
            targets_N = tokens_BT[:, distance:].flatten()
            nats = nats + F.cross_entropy(
                logits_BTV.flatten(0, 1).float(), targets_N, reduction="sum"
            )
        return nats / tokens_BT.numel()
