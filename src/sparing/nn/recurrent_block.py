"""The residual blocks of stacks that carry a recurrent state: LSTM and QRNN.

Axes: B batch, T segment, D dim.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from sparing.nn.block import Block, BlockConfig, ResidualConfig, Role
from sparing.nn.checks import check_rates
from sparing.nn.dropout import Dropout
from sparing.nn.precision import compute_dtype
from sparing.nn.recurrent import CoreState, LSTMCore, QRNNCore
from sparing.nn.state import State, advance_seen

Core = Literal["lstm", "qrnn"]


class RecurrentBlock(Block):
    """Norm, one recurrent layer as wide as the stream, dropout.

    With `learnable_init_states` a lane starts from learned vectors. Its state before the first
    token is still zeros; `seen`, the number of positions read, tells when to use the vectors.
    """

    def __init__(
        self,
        dim: int,
        *,
        core: Core,
        dropout: float,
        weight_drop: float = 0.0,
        learnable_init_states: bool = False,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.norm = nn.LayerNorm(dim)
        kind = LSTMCore if core == "lstm" else QRNNCore
        self.core: LSTMCore | QRNNCore = kind(dim, weight_drop=weight_drop)
        self.dropout = Dropout(dropout)
        self.init_states: nn.ParameterDict | None = None
        if learnable_init_states:
            self.init_states = nn.ParameterDict(
                {name: nn.Parameter(torch.zeros(dim)) for name in self.core.state_names}
            )
        if isinstance(self.core, LSTMCore):
            self.core.open_forget_gates()
            # torch.compile does not trace into cuDNN.
            self.compilable = False
        self.prepare_input, self.finish_output = self._prepare_input, self._finish_output

    def initial_state(self, batch: int, like: Tensor, *, inference: bool = False) -> State:
        """Return zeros; those of a scan in at least 32 bits, so that small terms are not lost."""
        wide = torch.promote_types(like.dtype, torch.float32)
        dtype = like.dtype if isinstance(self.core, LSTMCore) else wide
        names = self.core.state_names
        state = {name: like.new_zeros(batch, self.dim, dtype=dtype) for name in names}
        if self.init_states is not None:
            state["seen"] = torch.zeros(batch, dtype=torch.int64, device=like.device)
        return state

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Block`."""
        y_BTD, after = self.core(self.prepare_input(hidden_BTD), self._carried(state))
        # Copies: the last cells of a scan are a view that would keep all of them alive. Always in
        # the same precision, so that code compiled for the first segment also fits the next.
        carried = {
            name: new.detach().to(state[name].dtype, copy=True)
            for name, new in zip(self.core.state_names, after, strict=True)
        }
        return self.finish_output(y_BTD), carried | advance_seen(state, hidden_BTD.size(1))

    def _carried(self, state: State) -> CoreState:
        """What the core goes on from; where a lane has read nothing yet, the learned vectors."""
        carried = tuple(state[name] for name in self.core.state_names)
        if self.init_states is None:
            return carried
        begins_B1 = (state["seen"] == 0)[:, None]
        return tuple(
            torch.where(begins_B1, self.init_states[name].to(each_BD.dtype), each_BD)
            for name, each_BD in zip(self.core.state_names, carried, strict=True)
        )

    def _prepare_input(self, hidden_BTD: Tensor) -> Tensor:
        """Return the core's input: normalised, in its precision and in cuDNN's memory order.

        That order is position by position. Writing it so in the first place saves a copy.
        """
        x_BTD: Tensor = self.norm(hidden_BTD).to(compute_dtype(hidden_BTD))
        ordered = hidden_BTD.is_cuda and isinstance(self.core, LSTMCore)
        return x_BTD.transpose(0, 1).contiguous().transpose(0, 1) if ordered else x_BTD

    def _finish_output(self, y_BTD: Tensor) -> Tensor:
        """Return the core's output in the stream's memory order and precision, after dropout.

        An LSTM on a CPU computes in 32 bits, and would widen the stream.
        """
        dropped_BTD: Tensor = self.dropout(y_BTD.to(compute_dtype(y_BTD)).contiguous())
        return dropped_BTD

    def compile_parts(self) -> None:
        """Compile what surrounds the core."""
        self.prepare_input = torch.compile(self._prepare_input)
        self.finish_output = torch.compile(self._finish_output)

    @torch.no_grad()
    def skip_step(self, hidden_BTD: Tensor, state: State) -> State:
        """Return zeros: the cells of this segment were never computed."""
        zeros = {name: torch.zeros_like(state[name]) for name in self.core.state_names}
        return zeros | advance_seen(state, hidden_BTD.size(1))

    def flops_per_token(self) -> float:
        """Count two per weight of its matrices."""
        return 2.0 * sum(p.numel() for p in self.core.parameters() if p.ndim == 2)

    def state_numbers(self, *, inference: bool = False) -> int:
        """One vector per name, and `seen`."""
        return self.dim * len(self.core.state_names) + (self.init_states is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecurrentConfig(BlockConfig):
    """Settings of a recurrent block."""

    role: ClassVar[Role] = "recurrent"
    core: ClassVar[Core]

    weight_drop: float = 0.0
    """Share of the hidden-to-hidden weights of an LSTM, or of the weights of a scan's gates, that
    is zeroed in training."""

    learnable_init_states: bool = False
    """Learn the state in which a text begins, in place of zeros."""

    def __post_init__(self) -> None:
        check_rates(weight_drop=self.weight_drop)

    def build(self, residual: ResidualConfig) -> Block:
        """See `BlockConfig`."""
        return RecurrentBlock(
            residual.dim,
            core=self.core,
            dropout=residual.dropout,
            weight_drop=self.weight_drop,
            learnable_init_states=self.learnable_init_states,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LSTMConfig(RecurrentConfig):
    """Settings of the LSTM block."""

    letter: ClassVar[str] = "l"
    title: ClassVar[str] = "LSTM"
    core: ClassVar[Core] = "lstm"


@dataclass(frozen=True, kw_only=True, slots=True)
class QRNNConfig(RecurrentConfig):
    """Settings of the QRNN block, a gated scan."""

    letter: ClassVar[str] = "g"
    title: ClassVar[str] = "gated scan"
    core: ClassVar[Core] = "qrnn"
