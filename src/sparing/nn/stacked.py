"""Several linear layers of one input in one product."""

from torch import nn


class StackedLinear(nn.Linear):
    """`blocks` matrices above each other in one weight; `stacked_blocks` tells Muon so."""

    def __init__(self, input_dim: int, dim: int, *, blocks: int, bias: bool = True) -> None:
        super().__init__(input_dim, blocks * dim, bias=bias)
        self.stacked_blocks = blocks
