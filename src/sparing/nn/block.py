"""The residual block that stacks and super-nets are made of, and a typed list of modules."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Generic, Literal, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from sparing.nn.size import SizeLimit
from sparing.nn.state import State, zeroed

M = TypeVar("M", bound=nn.Module)


class TypedModuleList(nn.ModuleList, Generic[M]):
    """Modules of one kind. Torch's own list would hand them out as any module."""

    def __init__(self, modules: Iterable[M] = ()) -> None:
        super().__init__(modules)

    def __iter__(self) -> Iterator[M]:
        return cast("Iterator[M]", super().__iter__())


class Block(nn.Module):
    """A residual branch: reads the stream, norms it itself, and says what to add to it.

    `hidden + delta` is the caller's; so the branch that adds nothing is exactly the identity.
    """

    dim: int
    fusible: bool = True
    """Whether it can be compiled together with its neighbours."""

    growing: ClassVar[tuple[str, ...]] = ()
    """What of its state changes its length (second axis) while the model learns."""

    def initial_state(self, batch: int, like: Tensor) -> State:
        """What the branch carries before the first token, lane axis first; often nothing."""
        return {}

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """`delta_BTD`, and what `kept` makes the next state of, cut from the graph."""
        raise NotImplementedError

    def kept(self, before: State, after: State) -> State:
        """What is carried on, from the state before a segment and what `forward` left behind.

        Called outside of compiled code, into which lengths that change would be compiled, and
        where memories are copied as a whole.
        """
        return after

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """The same state with the chosen lanes as before their first token."""
        return zeroed(state, lanes_B)

    @torch.no_grad()
    def idle(self, hidden_BTD: Tensor, state: State) -> State:
        """The same after a segment in which a super-net did not ask this branch.

        Memories of the stream go on being written; what only the branch itself could have
        computed starts anew when it is asked again.
        """
        return self(hidden_BTD, state)[1] if state else {}

    def penalty(self, zero: Tensor) -> Tensor:
        """Nats per token this branch adds to the training loss, e.g. the price of its spans."""
        return zero

    def after_step(self) -> None:
        """Called after every optimizer step."""

    def telemetry(self) -> dict[str, float]:
        """Numbers worth a curve."""
        return {}

    def compile_parts(self) -> None:
        """Compile, in place, what gains from it, where the branch is used by itself."""

    def flops_per_token(self) -> float:
        """Floating-point operations of matrix products in one forward pass, memory full."""
        raise NotImplementedError

    def state_numbers(self) -> int:
        """Numbers carried per lane once every memory is full."""
        return 0


Role = Literal["attention", "dense", "recurrent", "identity"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ResidualConfig:
    """What every block of a stack knows about the residual stream."""

    dim: int
    dropout: float = 0.0
    """On what a block adds to the stream."""
    rounds: int = 1
    """How often a segment passes through the block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockConfig:
    """Settings of one kind of block, and how the block is built from them."""

    letter: ClassVar[str]
    """Its name in patterns."""
    title: ClassVar[str]
    """Its name in tables, plots and messages."""
    role: ClassVar[Role]
    """What it does in a network; rules such as PAR's are written in roles."""

    def build(self, residual: ResidualConfig) -> Block:
        """A fresh block for this residual stream."""
        raise NotImplementedError

    def smaller(self, scale: Fraction, limit: SizeLimit) -> Self:
        """The same block with its widths scaled and its memory limited."""
        return self


class Identity(Block):
    """Adds nothing."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """Zero."""
        return torch.zeros_like(hidden_BTD), {}

    def flops_per_token(self) -> float:
        """None."""
        return 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class IdentityConfig(BlockConfig):
    """The identity has no settings."""

    letter: ClassVar[str] = "i"
    title: ClassVar[str] = "identity"
    role: ClassVar[Role] = "identity"

    def build(self, residual: ResidualConfig) -> Block:
        """See `BlockConfig`."""
        return Identity(residual.dim)
