"""The residual stream of a stack, and the blocks that add to it.

Axes: B batch, T segment, D dim, N blocks.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from sparing.nn.block import Block, compute
from sparing.nn.state import State


class Residual(NamedTuple):
    """The residual stream before some blocks."""

    hidden_BTD: Tensor
    x0_BTD: Tensor
    """The embedding."""
    lambdas_2N: Tensor | None
    """Weights of the stream and of the embedding after each block; none: blocks only add."""


def run_blocks(
    blocks: Sequence[Block], stream: Residual, states: Sequence[State], deltas: Sequence[Tensor]
) -> tuple[Tensor, list[State]]:
    """The stream after `blocks`, and their states; `deltas` come from blocks before them."""
    hidden_BTD, carried = stream.hidden_BTD, []
    for number, delta_BTD in enumerate(deltas):
        hidden_BTD = mix_embedding(stream, hidden_BTD + delta_BTD, number)
    for number, (block, state) in enumerate(zip(blocks, states, strict=True), len(deltas)):
        delta_BTD, after = compute(block, hidden_BTD, state)
        hidden_BTD = mix_embedding(stream, hidden_BTD + delta_BTD, number)
        carried.append(after)
    return hidden_BTD, carried


def mix_embedding(stream: Residual, hidden_BTD: Tensor, number: int) -> Tensor:
    """A learned mix of the stream and the embedding, where the model has one."""
    if stream.lambdas_2N is None:
        return hidden_BTD
    resid, x0 = stream.lambdas_2N[:, number].unbind()
    # In the precision of the weights: bfloat16 would round 1.003 to 1, but only where not compiled.
    mixed_BTD = resid * hidden_BTD.to(resid.dtype) + x0 * stream.x0_BTD.to(resid.dtype)
    return mixed_BTD.to(hidden_BTD.dtype)


def compile_groups(blocks: Sequence[Block]) -> Iterator[range]:
    """Groups of blocks that are compiled as one: each ends after a block that carries no state.

    A block that cannot be compiled with its neighbours is the first of its group.
    """
    start = 0
    for number, block in enumerate(blocks):
        if number > start and not block.compilable:
            yield range(start, number)
            start = number
        if block.compilable and not block.state_numbers():
            yield range(start, number + 1)
            start = number + 1
    if start < len(blocks):
        yield range(start, len(blocks))
