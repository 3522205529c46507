"""Where the attention of a block looks. Axes: B batch, H heads, T segment, S keys, D dim."""

import torch
from torch import Tensor

from sparing.nn.attention.single_head import SingleHeadBlock
from sparing.nn.attention.windowed import WindowedAttentionBlock
from sparing.nn.block import Block
from sparing.nn.state import State
from sparing.ops.window_attention import Edge, window_weights


@torch.no_grad()
def block_weights(block: Block, hidden_BTD: Tensor, state: State) -> Tensor | None:
    """Return the attention weights (B, H, T, S) of a block, oldest key first.

    None for a block that does not attend, and for relative attention, which cannot show them.
    """
    if isinstance(block, SingleHeadBlock):
        return block.focus(hidden_BTD, state)[:, None]
    if not isinstance(block, WindowedAttentionBlock):
        return None
    query_BTHK, after = block.attend.project(hidden_BTD, state)
    memory_BM2HK = state["entries"]
    first_B = (memory_BM2HK.size(1) - state["seen"]).clamp(min=0)
    edge = Edge(block.spans(), first_B, block.attend.ramp)
    weights_BHTS = window_weights(query_BTHK, after["fresh"], memory_BM2HK, edge)
    # The memory is as long as it will ever be from the beginning on, most of it empty.
    return weights_BHTS[..., int(first_B.min()) :]
