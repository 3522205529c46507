"""SHA-RNN's single-headed attention as a residual branch (arXiv:1911.11423, section 6).

Axes: B batch, T segment, M memory, S = M + T keys, D dim.
"""

import torch
from torch import Tensor, nn

from sparing.nn.attention import SingleHeadAttention, compute_dtype
from sparing.nn.blocks.api import Block
from sparing.nn.dropout import Dropout
from sparing.nn.gate import VectorGate
from sparing.nn.memory import extended, recent
from sparing.nn.state import State, counted, emptied

FIRST_GATE = 0.1
"""Of every channel of the values: little is let through before anything is learnt."""


class SingleHeadBlock(Block):
    """One head as wide as the stream over a memory of normed inputs; one matrix in all.

    The value gate is a plain vector: SHA-RNN's matrix for it is of use in training only.
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

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Empty memory."""
        return {"memory": like.new_zeros(batch, 0, self.dim)}

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Block`."""
        stored_BSD = self._extended(hidden_BTD, state["memory"])
        query_BTD = self.norm_query(hidden_BTD)
        mixed_BTD = self.attention(query_BTD, stored_BSD, stored_BSD, state.get("seen"))
        kept = {"memory": self._recent(stored_BSD).detach()}
        return self.dropout(mixed_BTD), kept | counted(state, hidden_BTD.size(1))

    def restarted(self, state: State, lanes_B: Tensor) -> State:
        """Entries stay where they are; those of the chosen lanes no longer exist."""
        return emptied(state, lanes_B)

    @torch.no_grad()
    def idle(self, hidden_BTD: Tensor, state: State) -> State:
        """The memory needs a norm of the stream, no more."""
        stored_BSD = self._extended(hidden_BTD, state["memory"])
        return {"memory": self._recent(stored_BSD)} | counted(state, hidden_BTD.size(1))

    def flops_per_token(self) -> float:
        """The query's matrix, scores and their sum."""
        return 2.0 * (self.dim**2 + 2 * self.memory * self.dim)

    def state_numbers(self) -> int:
        """A full memory."""
        return self.memory * self.dim

    def telemetry(self) -> dict[str, float]:
        """How much of its memory the block lets through."""
        return {"value_gate": float(self.attention.value_gate().detach().abs().mean())}

    def _extended(self, hidden_BTD: Tensor, memory_BMD: Tensor) -> Tensor:
        fresh_BTD = self.norm_memory(hidden_BTD)
        # Entries enter matrix products only, so the products' own precision is enough.
        return extended(memory_BMD, fresh_BTD.to(compute_dtype(fresh_BTD)))

    def _recent(self, stored_BSD: Tensor) -> Tensor:
        # A copy: a view would keep all of it, and be compiled for by itself.
        return recent(stored_BSD, self.memory).contiguous()
