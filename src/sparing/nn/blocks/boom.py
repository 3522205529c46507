"""SHA-RNN's Boom as a residual branch (arXiv:1911.11423, section 6.3)."""

from torch import Tensor, nn

from sparing.nn.blocks.api import Block
from sparing.nn.dropout import Dropout
from sparing.nn.feedforward import Boom
from sparing.nn.state import State


class BoomBlock(Block):
    """Norm, widen, activate, fold back by summing chunks."""

    def __init__(self, dim: int, boom_dim: int, *, dropout: float) -> None:
        super().__init__()
        self.dim = dim
        self.norm = nn.LayerNorm(dim)
        self.boom = Boom(dim, boom_dim, dropout=dropout)
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.boom.widen.weight, std=0.5 * dim**-0.5)
        nn.init.zeros_(self.boom.widen.bias)

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Block`."""
        return self.dropout(self.boom(self.norm(hidden_BTD))), {}

    def compile_parts(self) -> None:
        """All of it."""
        self.compile(dynamic=True)

    def flops_per_token(self) -> float:
        """Its one matrix."""
        return 2.0 * self.boom.widen.weight.numel()
