"""The residual stream of a stack, and the blocks that add to it.

Axes: B batch, T segment, D dim, N blocks.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from sparing.nn.block import Block, compute
from sparing.nn.state import State


class Skip(NamedTuple):
    """What an earlier layer left for a later one."""

    left_BTD: Tensor
    """The stream after the earlier layer."""
    weight: Tensor


class Residual(NamedTuple):
    """The residual stream before some blocks."""

    hidden_BTD: Tensor
    x0_BTD: Tensor
    """The embedding."""
    lambdas_2N: Tensor | None
    """Weights of the stream and of the embedding after each block; none: blocks only add."""
    skip: Skip | None = None
    """Added to the stream before the first block."""


class Skips:
    """The U-Net skips of one pass: the last layer receives what the first one left, and so on."""

    def __init__(self, layers: Sequence[range], lambdas_N: Tensor | None) -> None:
        self.weights = () if lambdas_N is None else lambdas_N.unbind()
        self.starts = [layer.start for layer in layers[len(layers) - len(self.weights) :]]
        self.stops = [layer.stop for layer in layers[: len(self.weights)]]
        self.left: list[Tensor] = []

    def into(self, place: int) -> Skip | None:
        """What the layer that begins at a place receives; none where no such layer does."""
        if place not in self.starts:
            return None
        left_BTD = self.left.pop()
        return Skip(left_BTD, self.weights[len(self.left)])

    def leave(self, place: int, hidden_BTD: Tensor) -> None:
        """Keep the stream before a place where a layer ends, if a later one receives it."""
        if place in self.stops:
            self.left.append(hidden_BTD)


def run_blocks(
    blocks: Sequence[Block], stream: Residual, states: Sequence[State], deltas: Sequence[Tensor]
) -> tuple[Tensor, list[State]]:
    """The stream after `blocks`, and their states; `deltas` come from blocks before them."""
    hidden_BTD, carried = add_skip(stream.hidden_BTD, stream.skip), []
    for number, delta_BTD in enumerate(deltas):
        hidden_BTD = mix_embedding(stream, hidden_BTD + delta_BTD, number)
    for number, (block, state) in enumerate(zip(blocks, states, strict=True), len(deltas)):
        delta_BTD, after = compute(block, hidden_BTD, state)
        hidden_BTD = mix_embedding(stream, hidden_BTD + delta_BTD, number)
        carried.append(after)
    return hidden_BTD, carried


def add_skip(hidden_BTD: Tensor, skip: Skip | None) -> Tensor:
    """The stream and what was left for it, where something was."""
    if skip is None:
        return hidden_BTD
    left_BTD, weight = skip
    # In the precision of the weights, as below.
    sum_BTD = hidden_BTD.to(weight.dtype) + weight * left_BTD.to(weight.dtype)
    return sum_BTD.to(hidden_BTD.dtype)


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
