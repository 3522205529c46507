"""Recurrent layers as residual branches: an LSTM, or QRNN's gated scan. Axes as in `api`."""

from typing import Literal

import torch
from torch import Tensor, nn

from sparing.nn.attention import compute_dtype
from sparing.nn.blocks.api import Block
from sparing.nn.dropout import Dropout
from sparing.nn.recurrent import LSTMCore, QRNNCore
from sparing.nn.state import State


class RecurrentBlock(Block):
    """Norm, one recurrent layer as wide as the stream, dropout."""

    def __init__(
        self,
        dim: int,
        *,
        core: Literal["lstm", "qrnn"],
        dropout: float,
        weight_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.norm = nn.LayerNorm(dim)
        kind = LSTMCore if core == "lstm" else QRNNCore
        self.core: LSTMCore | QRNNCore = kind(dim, weight_drop=weight_drop)
        self.dropout = Dropout(dropout)
        if isinstance(self.core, LSTMCore):
            self.core.remember()
            # Compilers do not enter cuDNN.
            self.fusible = False
        self.enter, self.leave = self._entered, self._left

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Zeros; a scan's in 32 bits at least, in which small shares are not lost."""
        wide = torch.promote_types(like.dtype, torch.float32)
        dtype = like.dtype if isinstance(self.core, LSTMCore) else wide
        names = self.core.state_names
        return {name: like.new_zeros(batch, self.dim, dtype=dtype) for name in names}

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Block`."""
        before = tuple(state[name] for name in self.core.state_names)
        y_BTD, after = self.core(self.enter(hidden_BTD), before)
        # Copies: the last cells of a scan are a view that would keep all of them alive. And of one
        # precision for ever, so that code compiled for the first segment serves the next.
        carried = {
            name: new.detach().to(state[name].dtype, copy=True)
            for name, new in zip(self.core.state_names, after, strict=True)
        }
        return self.leave(y_BTD), carried

    def _entered(self, hidden_BTD: Tensor) -> Tensor:
        """The core's input: normed, in the precision it computes in, and in cuDNN's order.

        That is position by position. Whoever writes it so in the first place spares a copy.
        """
        x_BTD: Tensor = self.norm(hidden_BTD).to(compute_dtype(hidden_BTD))
        ordered = hidden_BTD.is_cuda and isinstance(self.core, LSTMCore)
        return x_BTD.transpose(0, 1).contiguous().transpose(0, 1) if ordered else x_BTD

    def _left(self, y_BTD: Tensor) -> Tensor:
        """The core's output in the stream's order, some of it dropped.

        In its precision too: a CPU's LSTM computes in 32 bits, and would widen the stream.
        """
        dropped_BTD: Tensor = self.dropout(y_BTD.to(compute_dtype(y_BTD)).contiguous())
        return dropped_BTD

    def compile_parts(self) -> None:
        """What surrounds the core."""
        self.enter, self.leave = torch.compile(self._entered), torch.compile(self._left)

    @torch.no_grad()
    def idle(self, hidden_BTD: Tensor, state: State) -> State:
        """Zeros: what it would have remembered of this segment was never computed."""
        return {name: torch.zeros_like(tensor) for name, tensor in state.items()}

    def flops_per_token(self) -> float:
        """Two per weight of its matrices."""
        return 2.0 * sum(p.numel() for p in self.core.parameters() if p.ndim == 2)

    def state_numbers(self) -> int:
        """One vector per name."""
        return self.dim * len(self.core.state_names)
