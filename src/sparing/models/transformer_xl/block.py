"""The layers of Transformer-XL: relative attention over a memory, and a feed-forward network.

Axes: B batch, T segment, S = memory + T keys, D dim, F feed-forward, E heads x head dim.
"""

import torch
from torch import Tensor, nn

from sparing.models.api import State
from sparing.models.transformer_xl.config import TransformerXLConfig
from sparing.nn.attention.memory import extend_memory, holds_hidden, trim_memory
from sparing.nn.attention.relative import RelativeAttention, RelativeBias
from sparing.nn.dropout import Dropout
from sparing.nn.precision import compute_dtype
from sparing.nn.ring import is_static
from sparing.ops.relative_attention import Bias


class TransformerXLAttention(nn.Module):
    """The attention half of a layer."""

    def __init__(self, c: TransformerXLConfig) -> None:
        super().__init__()
        self.memory, self.pre = c.memory, c.norm == "pre"
        self.reach = c.memory if c.same_length else None
        self.attention = RelativeAttention(c.dim, c.heads, c.head_dim, dropout=c.dropout_attention)
        self.norm = nn.LayerNorm(c.dim)
        self.dropout = Dropout(c.dropout)

    def forward(
        self, hidden_BTD: Tensor, state: State, positions_SE: Tensor, bias: Bias
    ) -> tuple[Tensor, State]:
        """Return the stream after attention, and this layer's next state."""
        source_BTD = self.norm(hidden_BTD) if self.pre else hidden_BTD
        if is_static(state):
            mixed_BTD, carried = self.attention.read_ring(
                source_BTD, state, bias, self.memory, self.reach
            )
            out_BTD = hidden_BTD + mixed_BTD
            return out_BTD if self.pre else self.norm(out_BTD), carried
        if holds_hidden(state):
            stored = extend_memory(state, {"memory": self._to_store(hidden_BTD)})
            stored_BSD = stored["memory"]
            entries = self.attention.entries(self.norm(stored_BSD) if self.pre else stored_BSD)
        else:
            stored = entries = extend_memory(state, self.attention.entries(source_BTD))
        mixed_BTD = self.attention(
            source_BTD, entries, positions_SE, bias, self.reach, state.get("seen")
        )
        out_BTD = hidden_BTD + self.dropout(mixed_BTD)
        carried = trim_memory(stored, self.memory, state, hidden_BTD.size(1))
        return out_BTD if self.pre else self.norm(out_BTD), carried

    def _to_store(self, hidden_BTD: Tensor) -> Tensor:
        # After the norm it is used in matrix products only, so their precision is enough.
        return hidden_BTD.to(hidden_BTD.dtype if self.pre else compute_dtype(hidden_BTD))


class TransformerXLFeedForward(nn.Module):
    """The position-wise half of a layer."""

    def __init__(self, c: TransformerXLConfig) -> None:
        super().__init__()
        self.pre = c.norm == "pre"
        self.widen, self.narrow = nn.Linear(c.dim, c.ff_dim), nn.Linear(c.ff_dim, c.dim)
        self.norm = nn.LayerNorm(c.dim)
        self.dropout = Dropout(c.dropout)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        source_BTD = self.norm(hidden_BTD) if self.pre else hidden_BTD
        wide_BTF = self.dropout(torch.relu(self.widen(source_BTD)))
        out_BTD: Tensor = hidden_BTD + self.dropout(self.narrow(wide_BTF))
        return out_BTD if self.pre else self.norm(out_BTD)


class TransformerXLBlock(nn.Module):
    """One layer."""

    def __init__(self, c: TransformerXLConfig) -> None:
        super().__init__()
        self.attend = TransformerXLAttention(c)
        self.feed_forward = TransformerXLFeedForward(c)
        self.bias = None if c.shared_bias else RelativeBias(c.heads, c.head_dim)

    def forward(
        self, hidden_BTD: Tensor, state: State, positions_SE: Tensor, bias: Bias
    ) -> tuple[Tensor, State]:
        """`state` holds this block's tensors only."""
        hidden_BTD, carried = self.attend(hidden_BTD, state, positions_SE, bias)
        return self.feed_forward(hidden_BTD), carried
