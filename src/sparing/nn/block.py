"""The residual block that stacks and super-nets are made of, and a typed list of modules."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Generic, Literal, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from sparing.nn.size import SizeLimit
from sparing.nn.state import State, zero_lanes

M = TypeVar("M", bound=nn.Module)


class TypedModuleList(nn.ModuleList, Generic[M]):
    """A list of modules of one type; iterating over `nn.ModuleList` yields plain modules."""

    def __init__(self, modules: Iterable[M] = ()) -> None:
        super().__init__(modules)

    def __iter__(self) -> Iterator[M]:
        return cast("Iterator[M]", super().__iter__())


class Block(nn.Module):
    """A residual block: reads the stream, normalises it, and returns what to add to it.

    The caller computes `hidden + delta`, so a block that adds nothing is exactly the identity.
    """

    dim: int
    compilable: bool = True
    """Whether it can be compiled together with its neighbours."""

    def initial_state(self, batch: int, like: Tensor, *, inference: bool = False) -> State:
        """Return the state before the first token, lane axis first; often empty.

        `inference` says that weights will not change while the state is carried.
        """
        return {}

    def static_state(self, batch: int, like: Tensor, *, chunk: int) -> State:
        """Return a state for inference of fixed shapes, for segments of up to `chunk` tokens."""
        return self.initial_state(batch, like, inference=True)

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """Return `delta_BTD` and the next state, which is detached."""
        raise NotImplementedError

    def advance(self, hidden_BTD: Tensor, state: State) -> State:
        """Return the next state alone, where nothing reads the stream after this block."""
        return self(hidden_BTD, state)[1] if state else {}

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """Return the state with the selected lanes as before their first token."""
        return zero_lanes(state, lanes_B)

    @torch.no_grad()
    def skip_step(self, hidden_BTD: Tensor, state: State) -> State:
        """Return the state after a segment in which a super-net did not use this block.

        Memories of the stream are still written. State that only the block itself could have
        computed is reset.
        """
        return self(hidden_BTD, state)[1] if state else {}

    def penalty(self, zero: Tensor) -> Tensor:
        """Return what this block adds to the training loss, in nats per token."""
        return zero

    def after_step(self) -> None:
        """Called after every optimizer step."""

    def telemetry(self) -> dict[str, float]:
        """Return numbers worth plotting."""
        return {}

    def attention_weights(self, hidden_BTD: Tensor, state: State) -> Tensor | None:
        """Return the weights (B, H, T, S) with which it attends; None if it cannot show them."""
        return None

    def learned_windows(self) -> list[float]:
        """Return how far back each head sees, in positions, if that is learned."""
        return []

    def compile_parts(self) -> None:
        """Compile, in place, what gains from it when the block is not compiled in a group."""

    def flops_per_token(self) -> float:
        """Floating-point operations of matrix products in one forward pass, memory full.

        Reads nothing from the device; learned spans are those last read by `SpanRefresh`.
        """
        raise NotImplementedError

    def memory_length(self) -> int:
        """Positions after which its memory is full; reads nothing from the device."""
        return 0

    def state_numbers(self, *, inference: bool = False) -> int:
        """Numbers carried per lane once every memory is full; reads nothing from the device."""
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


class BufferedBlock(Block):
    """A block that computes first and writes its memory afterwards, outside compiled code.

    Inside compiled code the memory would be copied, and its changing length would be compiled in.
    `forward` does both steps; a stack compiles `compute` and calls `commit` after the pass.
    """

    growing: ClassVar[tuple[str, ...]] = ()
    """Tensors of the state whose length (second axis) changes during training."""

    def compute(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """Return `delta_BTD` and this segment's entries, detached."""
        raise NotImplementedError

    def compute_skip(self, hidden_BTD: Tensor, state: State) -> State:
        """Return this segment's entries where a super-net does not use the block."""
        raise NotImplementedError

    def commit(self, state: State, fresh: State) -> State:
        """Return the next state: `state` with the entries of a segment appended."""
        raise NotImplementedError

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Block`."""
        delta_BTD, fresh = self.compute(hidden_BTD, state)
        return delta_BTD, self.commit(state, fresh)

    @torch.no_grad()
    def skip_step(self, hidden_BTD: Tensor, state: State) -> State:
        """See `Block`."""
        return self.commit(state, self.compute_skip(hidden_BTD, state))


def compute(block: Block, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
    """Run a block up to the point where `commit` has to finish its next state."""
    result: tuple[Tensor, State] = (
        block.compute(hidden_BTD, state)
        if isinstance(block, BufferedBlock)
        else block(hidden_BTD, state)
    )
    return result


def commit(block: Block, state: State, after: State) -> State:
    """Finish the next state from what `compute` returned."""
    return block.commit(state, after) if isinstance(block, BufferedBlock) else after


class Identity(Block):
    """A block that adds nothing."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """Return zeros."""
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
