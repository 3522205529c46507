"""The blocks of SHA-RNN: a recurrent layer, attention in some of them, Boom.

Axes: B batch, T segment, M memory, S = M + T keys, D dim, R slots of a ring.
"""

from functools import partial

from torch import Tensor, nn

from sparing.models.api import State
from sparing.models.sha_rnn.config import SHARNNConfig
from sparing.nn.attention.memory import empty_memory, trim_memory
from sparing.nn.attention.single_head import SingleHeadAttention
from sparing.nn.dropout import Dropout
from sparing.nn.feedforward import Boom
from sparing.nn.kv_buffer import append, newest
from sparing.nn.precision import compute_dtype
from sparing.nn.recurrent import CORES
from sparing.nn.ring import RING, empty_ring, is_static, ring_length, write_and_mask
from sparing.nn.state import forget_lanes, zero_lanes

_norm = partial(nn.LayerNorm, eps=1e-12)


class SHARNNAttention(nn.Module):
    """The attention half of a block: two norms of the input, and the head."""

    def __init__(self, c: SHARNNConfig) -> None:
        super().__init__()
        self.memory, self.skip, self.wiring = c.memory, c.skip, c.wiring
        self.norm_query, self.norm_memory = _norm(c.dim), _norm(c.dim)
        rate = c.dropout_hidden
        self.attention = SingleHeadAttention(c.dim, dropout=rate, gate=c.gate, bias=c.bias)
        self.dropout = Dropout(rate)

    def forward(
        self, hidden_BTD: Tensor, memory_BMD: Tensor, seen_B: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the stream after attention, and `memory` with this segment's entries appended."""
        normed_BTD = self.norm_query(hidden_BTD)
        skip_BTD = normed_BTD if self.skip == "normed" else hidden_BTD
        if self.memory == 0:
            return skip_BTD, memory_BMD
        stored_BSD = append(memory_BMD, self._entries(hidden_BTD))
        source_BTD, keys_BSD = self._inputs(hidden_BTD, normed_BTD, stored_BSD)
        mixed_BTD = self.attention(source_BTD, keys_BSD, stored_BSD, seen_B)
        return skip_BTD + self.dropout(mixed_BTD), stored_BSD

    def read_ring(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """As `forward`, with a memory of fixed size."""
        normed_BTD, earlier = self.norm_query(hidden_BTD), self.memory - hidden_BTD.size(1)
        ring, unseen_BTR = write_and_mask(state, self._entries(hidden_BTD), max(0, earlier))
        source_BTD, keys_BRD = self._inputs(hidden_BTD, normed_BTD, ring[RING])
        mixed_BTD = self.attention(source_BTD, keys_BRD, ring[RING], unseen_BTS=unseen_BTR)
        return (normed_BTD if self.skip == "normed" else hidden_BTD) + mixed_BTD, ring

    def weights(self, hidden_BTD: Tensor, state: State) -> Tensor:
        """Return the attention weights (B, T, S) of this segment."""
        memory_BMD = newest(state["memory"], self.memory - hidden_BTD.size(1))
        stored_BSD = append(memory_BMD, self._entries(hidden_BTD))
        inputs = self._inputs(hidden_BTD, self.norm_query(hidden_BTD), stored_BSD)
        return self.attention.weights(*inputs, state.get("seen"))

    def _entries(self, hidden_BTD: Tensor) -> Tensor:
        fresh_BTD = self.norm_memory(hidden_BTD) if self.wiring == "code" else hidden_BTD
        # Used in matrix products only, so storing entries in their precision changes nothing.
        return fresh_BTD.to(compute_dtype(fresh_BTD))

    def _inputs(
        self, hidden_BTD: Tensor, normed_BTD: Tensor, stored_BSD: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return what queries and keys are made from."""
        if self.wiring == "code":
            return normed_BTD, stored_BSD
        return hidden_BTD, self.norm_memory(stored_BSD).to(stored_BSD.dtype)


class SHARNNBoom(nn.Module):
    """The Boom half of a block."""

    def __init__(self, c: SHARNNConfig) -> None:
        super().__init__()
        self.skip = c.skip
        self.norm_input = _norm(c.dim)
        self.norm_skip = _norm(c.dim) if c.boom_norm == "twin" and c.skip == "normed" else None
        self.boom = Boom(c.dim, c.boom_dim, dropout=c.dropout_hidden, form=c.gelu, bias=c.bias)
        self.dropout = Dropout(c.dropout_hidden)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        normed_BTD = self.norm_input(hidden_BTD)
        skip_BTD = normed_BTD if self.skip == "normed" else hidden_BTD
        if self.norm_skip is not None:
            skip_BTD = self.norm_skip(hidden_BTD)
        out_BTD: Tensor = skip_BTD + self.dropout(self.boom(normed_BTD))
        return out_BTD


class SHARNNBlock(nn.Module):
    """Norm, recurrent layer, attention where this block has it, Boom."""

    def __init__(self, c: SHARNNConfig, *, attends: bool) -> None:
        super().__init__()
        self.residual = c.residual
        self.norm = _norm(c.dim)
        self.core = CORES[c.core](c.dim)
        self.dropout = Dropout(c.dropout_hidden)
        self.attend = SHARNNAttention(c) if attends else None
        self.expand = SHARNNBoom(c)

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return zero vectors and an empty memory."""
        dim = like.size(-1)
        state = {name: like.new_zeros(batch, dim) for name in self.core.state_names}
        return state | (empty_memory({"memory": dim}, batch, like) if self.attend else {})

    def static_state(self, batch: int, like: Tensor, chunk: int) -> State:
        """Return zero vectors and an empty ring, or none where there is no memory."""
        state = self.initial_state(batch, like)
        vectors = {name: state[name] for name in self.core.state_names}
        if self.attend is None or self.attend.memory == 0:
            return vectors
        return vectors | empty_ring(
            like.size(-1), ring_length(self.attend.memory, chunk), batch, like
        )

    def recur(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """Run the recurrent half."""
        before = tuple(state[name] for name in self.core.state_names)
        y_BTD, after = self.core(self.norm(hidden_BTD), before)
        dropped_BTD = self.dropout(y_BTD)
        y_BTD = hidden_BTD + dropped_BTD if self.residual else dropped_BTD
        return y_BTD, dict(zip(self.core.state_names, (x.detach() for x in after), strict=True))

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """`state` holds this block's tensors only."""
        hidden_BTD, carried = self.recur(hidden_BTD, state)
        if self.attend is not None and is_static(state):
            hidden_BTD, ring = self.attend.read_ring(hidden_BTD, state)
            carried |= ring
        elif self.attend is not None and "memory" not in state:
            hidden_BTD, _ = self.attend(hidden_BTD, hidden_BTD[:, :0])
        elif self.attend is not None:
            # Outside the compiled part, because the length of memory changes.
            size, segment = self.attend.memory, hidden_BTD.size(1)
            memory_BMD = newest(state["memory"], size - segment)
            hidden_BTD, stored_BSD = self.attend(hidden_BTD, memory_BMD, state.get("seen"))
            carried |= trim_memory({"memory": stored_BSD}, size, state, segment)
        return self.expand(hidden_BTD), carried

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """Zero the vectors and mark the memory as empty in the selected lanes."""
        vectors = {name: state[name] for name in self.core.state_names}
        memory = {name: tensor for name, tensor in state.items() if name not in vectors}
        return zero_lanes(vectors, lanes_B) | (forget_lanes(memory, lanes_B) if memory else {})
