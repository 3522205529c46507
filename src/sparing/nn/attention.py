"""Attention bricks. Axes: B batch, T segment, S keys, D width."""

import torch
from torch import Tensor, nn

from sparing.nn.dropout import Dropout
from sparing.nn.gate import GateKind, SigmoidGate, collapsed, value_gate
from sparing.ops.single_head_attention import single_head_attention
from sparing.ops.single_head_attention.reference import attention_weights


class SingleHeadAttention(nn.Module):
    """One head as wide as the model; the query matrix is its only matrix on activations.

    Keys and values are stored vectors scaled channel by channel (arXiv:1911.11423, section 6.2).
    """

    def __init__(
        self, dim: int, *, dropout: float, gate: GateKind = "overparam", bias: bool = True
    ) -> None:
        super().__init__()
        self.query = nn.Linear(dim, dim, bias=bias)
        self.query_norm = nn.LayerNorm(dim, eps=1e-12)
        self.query_gate, self.key_gate = SigmoidGate(dim), SigmoidGate(dim)
        self.value_gate = value_gate(gate, dim)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        source_BTD: Tensor,
        keys_BSD: Tensor,
        values_BSD: Tensor,
        seen_B: Tensor | None = None,
    ) -> Tensor:
        """Attend from `source`; the last T keys are its own positions."""
        rate = self.dropout.rate if self.training else 0.0
        query_BTD = self._gated_query(source_BTD).to(keys_BSD.dtype)
        values_BSD = self.dropout(values_BSD)
        mixed_BTD = single_head_attention(
            query_BTD, keys_BSD, values_BSD, seen_B=seen_B, dropout=rate
        )
        gate_D: Tensor = self.value_gate()
        return mixed_BTD * gate_D

    def focus(self, source_BTD: Tensor, keys_BSD: Tensor) -> Tensor:
        """Attention weights (B, T, S): where the head looks."""
        query_BTD = self._gated_query(source_BTD).to(keys_BSD.dtype)
        return attention_weights(query_BTD, keys_BSD)

    def collapse(self) -> None:
        """Replace the over-parameterised gate by the vector it stands for."""
        self.value_gate = collapsed(self.value_gate)

    def _gated_query(self, source_BTD: Tensor) -> Tensor:
        projected_BTD = self.query(source_BTD)
        query_BTD: Tensor = self.dropout(self.query_norm(projected_BTD) * self.query_gate())
        # q . (k * g) == (q * g) . k: gating the T queries spares a pass over all S keys; the value
        # gate leaves the sum over keys for the same reason.
        gate_D: Tensor = self.key_gate()
        return query_BTD * gate_D


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype matrix products of `tensor` will run in: autocast's, or its own."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype
