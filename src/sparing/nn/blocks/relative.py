"""Transformer-XL attention as a residual branch (arXiv:1901.02860), norm first.

Axes: B batch, T segment, M memory, S = M + T keys, D dim, E heads x head dim.
"""

import torch
from torch import Tensor, nn

from sparing.nn.blocks.api import Block
from sparing.nn.dropout import Dropout
from sparing.nn.memory import extended, recent
from sparing.nn.relative import PositionTable, RelativeAttention, RelativeBias, sinusoids
from sparing.nn.state import State, counted, emptied


class RelativeBlock(Block):
    """Heads over the segment and the block's own inputs before it.

    Memory holds those inputs; where nothing is learnt, their keys and values, which no update can
    make stale.
    """

    def __init__(  # noqa: PLR0913  half of them keyword-only
        self,
        dim: int,
        heads: int,
        head_dim: int,
        *,
        memory: int,
        dropout: float,
        dropout_attention: float = 0.0,
    ) -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(f"dim {dim} must be even: half sines, half cosines")
        self.dim, self.width, self.memory = dim, heads * head_dim, memory
        self.norm = nn.LayerNorm(dim)
        self.attention = RelativeAttention(dim, heads, head_dim, dropout=dropout_attention)
        self.bias = RelativeBias(heads, head_dim)
        self.dropout = Dropout(dropout)
        self._table = PositionTable()
        self._codes_SD: Tensor | None = None
        for layer in (self.attention.query, self.attention.key, self.attention.value):
            nn.init.normal_(layer.weight, std=dim**-0.5)
        nn.init.normal_(self.attention.position.weight, std=dim**-0.5)
        # The branch starts as the identity, so that a deep stack starts as a shallow one.
        nn.init.zeros_(self.attention.output.weight)

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Empty memory."""
        return {name: like.new_zeros(batch, 0, width) for name, width in self._widths().items()}

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Block`. The state's own kind decides what memory holds."""
        if "memory" in state:
            stored_BSD = extended(state["memory"], hidden_BTD)
            normed_BSD = self.norm(stored_BSD)
            source_BTD = normed_BSD[:, -hidden_BTD.size(1) :]
            entries, carried = self.attention.entries(normed_BSD), {"memory": stored_BSD}
        else:
            source_BTD = self.norm(hidden_BTD)
            fresh = zip(("keys", "values"), self.attention.entries(source_BTD), strict=True)
            carried = {name: extended(state[name], new_BTE) for name, new_BTE in fresh}
            entries = carried["keys"], carried["values"]
        positions_SE = self._positions(entries[0].size(1), hidden_BTD.size(1), state)
        mixed_BTD = self.attention(
            source_BTD, entries, positions_SE, self.bias(), seen_B=state.get("seen")
        )
        kept = {name: self._recent(tensor).detach() for name, tensor in carried.items()}
        return self.dropout(mixed_BTD), kept | counted(state, hidden_BTD.size(1))

    def restarted(self, state: State, lanes_B: Tensor) -> State:
        """Entries stay where they are; those of the chosen lanes no longer exist."""
        return emptied(state, lanes_B)

    @torch.no_grad()
    def idle(self, hidden_BTD: Tensor, state: State) -> State:
        """The memory is the stream itself: it is written without any work."""
        if "memory" not in state:
            return super().idle(hidden_BTD, state)
        stored_BSD = extended(state["memory"], hidden_BTD)
        return {"memory": self._recent(stored_BSD)} | counted(state, hidden_BTD.size(1))

    def train(self, mode: bool = True) -> "RelativeBlock":
        """Switch between training and evaluation; projected positions are forgotten."""
        self._table.clear()
        super().train(mode)
        return self

    def flops_per_token(self) -> float:
        """Keys, values and positions cached."""
        return 2.0 * (4 * self.dim + 3 * self.memory) * self.width

    def state_numbers(self) -> int:
        """As `initial_state` would make it now."""
        return self.memory * sum(self._widths().values())

    def _widths(self) -> dict[str, int]:
        if torch.is_grad_enabled():
            return {"memory": self.dim}
        return {"keys": self.width, "values": self.width}

    def _positions(self, keys: int, newest: int, state: State) -> Tensor:
        """Projected codes of the distances keys - 1 ... 0."""
        learning = torch.is_grad_enabled() or self.training
        if "memory" in state or learning or torch.compiler.is_compiling():
            return self._project(keys)[0]
        weights = [self.attention.position.weight]
        return self._table.rows(keys, self.memory + newest, weights, self._project)[0]

    def _project(self, keys: int) -> list[Tensor]:
        return [self.attention.position(self._sinusoids(keys))]

    def _sinusoids(self, keys: int) -> Tensor:
        """Kept from step to step: by themselves they take many launches."""
        weight, kept = self.attention.position.weight, self._codes_SD
        if torch.compiler.is_compiling():
            return self._fresh_sinusoids(keys)
        alike = kept is not None and (kept.dtype, kept.device) == (weight.dtype, weight.device)
        if kept is None or not alike or kept.size(0) < keys:
            kept = self._codes_SD = self._fresh_sinusoids(keys)
        return kept[kept.size(0) - keys :]

    def _fresh_sinusoids(self, keys: int) -> Tensor:
        weight = self.attention.position.weight
        precise = torch.promote_types(weight.dtype, torch.float32)
        distance_S = torch.arange(keys - 1, -1, -1, device=weight.device, dtype=precise)
        return sinusoids(distance_S, self.dim).to(weight.dtype)

    def _recent(self, stored_BSX: Tensor) -> Tensor:
        # A copy: a view would keep all of it, and be compiled for by itself.
        return recent(stored_BSX, self.memory).contiguous()
