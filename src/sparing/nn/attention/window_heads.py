"""Heads that attend through windows of their own, to carried entries or to rings.

Axes: B batch, T segment, M memory, R slots, H heads, K head width, D dim; 2: key and value.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparing.nn.dropout import Dropout
from sparing.nn.linear import Linear, StackedLinear
from sparing.nn.precision import compute_dtype
from sparing.nn.ring import before_first, head_rings, is_static, ring_distances, write_head_rings
from sparing.nn.rotary import Rotary
from sparing.nn.state import State
from sparing.ops.rotated_entries import rotated_entries
from sparing.ops.window_attention import Edge, window_attention, window_weights
from sparing.ops.window_attention.ring import ring_window_attention


class WindowedAttention(nn.Module):
    """Normalised and rotated queries and keys; windows with a soft edge; one output matrix.

    With `key_shift` a value is stored with the key of the position before it: a query that finds a
    place like its own reads what came next there. Otherwise that takes two attention layers.
    """

    def __init__(  # noqa: PLR0913  all but three are keyword-only
        self,
        dim: int,
        heads: int,
        head_dim: int,
        *,
        ramp: int,
        dropout: float,
        gated: bool,
        key_shift: bool,
        rotary_fraction: float,
    ) -> None:
        super().__init__()
        self.heads, self.head_dim, self.ramp, self.key_shift = heads, head_dim, ramp, key_shift
        self.entries = StackedLinear(dim, heads * head_dim, blocks=3, bias=False)
        self.output = Linear(heads * head_dim, dim, bias=False)
        self.gain_H = nn.Parameter(torch.ones(heads))
        self.rotary = Rotary(head_dim, rotary_fraction=rotary_fraction)
        self.dropout = Dropout(dropout)
        self.gate = Linear(dim, heads, bias=False) if gated else None
        if self.gate is not None:
            nn.init.zeros_(self.gate.weight)
        nn.init.normal_(self.entries.weight, std=0.5 * dim**-0.5)
        nn.init.zeros_(self.output.weight)

    def forward(self, hidden_BTD: Tensor, state: State, span_H: Tensor) -> tuple[Tensor, State]:
        """Return what to add to the stream, and the segment's own entries (`fresh`), detached."""
        query_BTHK, after = self.project(hidden_BTD, state)
        if is_static(state):
            fresh_BT2HK = after.pop("fresh")
            mixed_BTHK, rings = attend_to_rings(query_BTHK, fresh_BT2HK, state, span_H, self.ramp)
            after |= rings
        else:
            mixed_BTHK = window_attention(
                query_BTHK, after["fresh"], state["entries"], self._edge(state, span_H)
            )
        if self.gate is not None:
            # Twice a half at first: an untrained gate is open.
            open_BTH = 2 * torch.sigmoid(self.gate(F.rms_norm(hidden_BTD, hidden_BTD.shape[-1:])))
            mixed_BTHK = mixed_BTHK * open_BTH[..., None]
        delta_BTD = self.dropout(self.output(mixed_BTHK.flatten(2)))
        return delta_BTD, {name: tensor.detach() for name, tensor in after.items()}

    def weights(self, hidden_BTD: Tensor, state: State, span_H: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights (B, H, T, S), and the first valid entry of each lane (B,)."""
        query_BTHK, after = self.project(hidden_BTD, state)
        edge = self._edge(state, span_H)
        return window_weights(query_BTHK, after["fresh"], state["entries"], edge), edge.first_B

    def _edge(self, state: State, span_H: Tensor) -> Edge:
        first_B = (state["entries"].size(1) - state["seen"]).clamp(min=0)
        return Edge(span_H, first_B, self.ramp)

    def project(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the queries and the segment's own entries, without attending."""
        normed_BTD = F.rms_norm(hidden_BTD, hidden_BTD.shape[-1:])
        three_BT3HK = self.entries(normed_BTD).unflatten(-1, (3, self.heads, self.head_dim))
        after = {"seen": state["seen"] + hidden_BTD.size(1)}
        if self.key_shift:
            # A copy: a view would keep all three alive.
            after["key"] = three_BT3HK[:, -1, 1].to(state["key"].dtype, copy=True)
        query_BTHK, fresh_BT2HK = rotated_entries(
            three_BT3HK, self.gain_H, self.rotary.table, state["seen"], state.get("key")
        )
        return query_BTHK, {"fresh": fresh_BT2HK.to(compute_dtype(fresh_BT2HK)), **after}


def attend_to_rings(
    query_BTHK: Tensor, fresh_BT2HK: Tensor, state: State, span_H: Tensor, ramp: int
) -> tuple[Tensor, State]:
    """Write a segment into the rings of all heads; return what the heads mix, and the rings."""
    seen_B, mixed = state["seen"], []
    rings = write_head_rings(state, fresh_BT2HK[:, :, 0], fresh_BT2HK[:, :, 1])
    for heads, keys_BHRK, values_BHRK in head_rings(rings):
        distance_BTR = ring_distances(seen_B, query_BTHK.size(1), keys_BHRK.size(2))
        empty_BTR = before_first(distance_BTR, seen_B)
        mixed_BTHK = ring_window_attention(
            query_BTHK[:, :, heads],
            keys_BHRK,
            values_BHRK,
            distance_BTR.masked_fill(empty_BTR, -1),
            span_H[heads],
            ramp,
        )
        mixed.append(mixed_BTHK)
    return torch.cat(mixed, dim=2), rings
