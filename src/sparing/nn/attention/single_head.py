"""Single-headed attention (arXiv:1911.11423) and its residual block.

Axes: B batch, T segment, M memory, S = M + T keys, D width.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from sparing.nn.attention.memory import copy_trimmed_memory, empty_memory, extend_memory
from sparing.nn.block import Block, BlockConfig, ResidualConfig, Role
from sparing.nn.checks import check_at_least
from sparing.nn.dropout import Dropout
from sparing.nn.linear import StackedLinear
from sparing.nn.precision import compute_dtype
from sparing.nn.ring import RING, empty_ring, is_static, ring_length, write_and_mask
from sparing.nn.size import SizeLimit
from sparing.nn.state import State, forget_lanes
from sparing.ops.single_head_attention import attention_weights, single_head_attention

GateKind = Literal["overparam", "paper", "vector"]


class SigmoidGate(nn.Module):
    """A vector of sigmoids, all one half at the start."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.zeros(dim))

    def forward(self) -> Tensor:
        """Return the gate, shape (D,)."""
        return torch.sigmoid(self.logit)


class OverparamGate(nn.Module):
    """sigmoid(f) * tanh(c) with [c; f] = W x + b: a whole matrix for one constant vector.

    In the code x = sigmoid(logit) and the layer has a bias; `as_printed` is the paper's formula,
    which has neither (arXiv:1911.11423, section 6.4). Its value depends on parameters only, so it
    can be collapsed to a vector after training.
    """

    def __init__(self, dim: int, *, as_printed: bool = False) -> None:
        super().__init__()
        self.as_printed = as_printed
        self.logit = nn.Parameter(torch.zeros(dim))
        self.mix = StackedLinear(dim, dim, blocks=2, bias=not as_printed)
        if as_printed:
            # Without the inner sigmoid a zero vector would be stuck: the matrix gets no gradient.
            nn.init.ones_(self.logit)

    def forward(self) -> Tensor:
        """Return the gate, shape (D,)."""
        inner = self.logit if self.as_printed else torch.sigmoid(self.logit)
        candidate, forget = self.mix(inner).chunk(2)
        return torch.sigmoid(forget) * torch.tanh(candidate)


class VectorGate(nn.Module):
    """A plain learned vector: what the other kinds collapse to."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(dim))

    def forward(self) -> Tensor:
        """Return the gate, shape (D,)."""
        return self.value


ValueGate = OverparamGate | VectorGate


def value_gate(kind: GateKind, dim: int) -> ValueGate:
    """Build the gate on the attention's values."""
    if kind == "vector":
        return VectorGate(dim)
    return OverparamGate(dim, as_printed=kind == "paper")


@torch.no_grad()
def to_vector_gate(gate: ValueGate) -> VectorGate:
    """Return a plain vector with the value of `gate`."""
    value = gate()
    vector = VectorGate(value.numel()).to(value.device, value.dtype)
    vector.value.copy_(value)
    return vector


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
        unseen_BTS: Tensor | None = None,
    ) -> Tensor:
        """Attend from `source`, whose own positions are the last T keys.

        With `unseen`, keys are in any order, and those that it marks are not seen.
        """
        rate = self.dropout.rate if self.training else 0.0
        query_BTD = self._gated_query(source_BTD).to(keys_BSD.dtype)
        values_BSD = self.dropout(values_BSD)
        mixed_BTD = single_head_attention(
            query_BTD, keys_BSD, values_BSD, seen_B=seen_B, unseen_BTS=unseen_BTS, dropout=rate
        )
        gate_D: Tensor = self.value_gate()
        return mixed_BTD * gate_D

    def weights(self, source_BTD: Tensor, keys_BSD: Tensor, seen_B: Tensor | None = None) -> Tensor:
        """Return the attention weights (B, T, S)."""
        query_BTD = self._gated_query(source_BTD).to(keys_BSD.dtype)
        return attention_weights(query_BTD, keys_BSD, seen_B)

    def collapse(self) -> None:
        """Replace the over-parameterised gate by a vector of the same value."""
        self.value_gate = to_vector_gate(self.value_gate)

    def _gated_query(self, source_BTD: Tensor) -> Tensor:
        projected_BTD = self.query(source_BTD)
        query_BTD: Tensor = self.dropout(self.query_norm(projected_BTD) * self.query_gate())
        # q . (k * g) == (q * g) . k: gating the T queries saves a pass over all S keys; the value
        # gate is applied after the sum over keys for the same reason.
        gate_D: Tensor = self.key_gate()
        return query_BTD * gate_D


FIRST_GATE = 0.1
"""Initial value of every channel of the value gate: an untrained block adds little."""


class SingleHeadBlock(Block):
    """One head as wide as the stream over a memory of normalised inputs; one matrix in all.

    The value gate is a plain vector: SHA-RNN's matrix for it is used in training only.
    """

    def __init__(self, dim: int, *, memory: int, dropout: float) -> None:
        super().__init__()
        self.dim, self.memory = dim, memory
        self.norm_query, self.norm_memory = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = SingleHeadAttention(dim, dropout=dropout, gate="vector")
        self.dropout = Dropout(dropout)
        gate = self.attention.value_gate
        assert isinstance(gate, VectorGate)
        nn.init.constant_(gate.value, FIRST_GATE)

    def initial_state(self, batch: int, like: Tensor, *, inference: bool = False) -> State:
        """Return an empty memory; its entries are keys and values as they are stored."""
        return empty_memory({"memory": self.dim}, batch, like)

    def static_state(self, batch: int, like: Tensor, *, chunk: int) -> State:
        """See `Block`."""
        return empty_ring(self.dim, ring_length(self.memory, chunk), batch, like)

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Block`."""
        if is_static(state):
            return self._read_ring(hidden_BTD, state)
        stored = self._extend(hidden_BTD, state)
        query_BTD, stored_BSD = self.norm_query(hidden_BTD), stored["memory"]
        mixed_BTD = self.attention(query_BTD, stored_BSD, stored_BSD, state.get("seen"))
        return self.dropout(mixed_BTD), copy_trimmed_memory(
            stored, self.memory, state, hidden_BTD.size(1)
        )

    @torch.no_grad()
    def attention_weights(self, hidden_BTD: Tensor, state: State) -> Tensor:
        """See `Block`."""
        stored_BSD = self._extend(hidden_BTD, state)["memory"]
        query_BTD = self.norm_query(hidden_BTD)
        return self.attention.weights(query_BTD, stored_BSD, state.get("seen"))[:, None]

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """Mark the selected lanes' entries as missing; nothing is written."""
        return forget_lanes(state, lanes_B)

    @torch.no_grad()
    def skip_step(self, hidden_BTD: Tensor, state: State) -> State:
        """See `Block`. The memory needs only a norm of the stream."""
        return copy_trimmed_memory(
            self._extend(hidden_BTD, state), self.memory, state, hidden_BTD.size(1)
        )

    def flops_per_token(self) -> float:
        """Count the query matrix, the scores and the weighted sum."""
        return 2.0 * (self.dim**2 + 2 * self.memory * self.dim)

    def memory_length(self) -> int:
        """See `Block`."""
        return self.memory

    def state_numbers(self, *, inference: bool = False) -> int:
        """A full memory."""
        return self.memory * self.dim

    def telemetry(self) -> dict[str, float]:
        """Return the mean size of the value gate."""
        return {"value_gate": float(self.attention.value_gate().detach().abs().mean())}

    def _read_ring(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        ring, unseen_BTR = write_and_mask(state, self._entries(hidden_BTD), self.memory)
        query_BTD, ring_BRD = self.norm_query(hidden_BTD), ring[RING]
        return self.attention(query_BTD, ring_BRD, ring_BRD, unseen_BTS=unseen_BTR), ring

    def _extend(self, hidden_BTD: Tensor, state: State) -> State:
        return extend_memory(state, {"memory": self._entries(hidden_BTD)})

    def _entries(self, hidden_BTD: Tensor) -> Tensor:
        fresh_BTD = self.norm_memory(hidden_BTD)
        # Entries are used in matrix products only, so their precision is enough.
        narrow_BTD: Tensor = fresh_BTD.to(compute_dtype(fresh_BTD))
        return narrow_BTD


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleHeadConfig(BlockConfig):
    """Settings of single-headed attention."""

    letter: ClassVar[str] = "s"
    title: ClassVar[str] = "single-headed attention"
    role: ClassVar[Role] = "attention"

    memory: int = 512
    """Positions before the segment that it attends to."""

    def __post_init__(self) -> None:
        check_at_least(0, memory=self.memory)

    def build(self, residual: ResidualConfig) -> Block:
        """See `BlockConfig`."""
        return SingleHeadBlock(residual.dim, memory=self.memory, dropout=residual.dropout)

    def smaller(self, scale: Fraction, limit: SizeLimit) -> Self:
        """See `BlockConfig`."""
        return replace(self, memory=min(self.memory, limit.memory))
