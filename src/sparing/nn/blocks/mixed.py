"""A slot of a super-net: several residual branches of one input, mixed or chosen from.

Axes: B batch, T segment, D dim, C candidates.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from sparing.nn.blocks.api import Block
from sparing.nn.state import State, owned, part


class Mixed(Block):
    """Candidates by letter. `steer` says before each pass how they are to be mixed.

    Mixing all runs them all; a choice runs one, and in training the others idle: they stay ready
    to be chosen. Where nothing is mixed, state is carried for the chosen one alone.
    """

    fusible = False
    """How it is steered changes from pass to pass."""

    def __init__(self, dim: int, candidates: Mapping[str, Block]) -> None:
        super().__init__()
        self.dim = dim
        self.candidates = nn.ModuleDict(candidates)
        self.steer(None, 0)

    def steer(self, weights_C: Tensor | None, choice: int | None) -> None:
        """Mix with these weights, all candidates or the chosen one; without weights, choose."""
        self._weights_C, self._choice = weights_C, choice

    @property
    def chosen(self) -> Block:
        """The one candidate that counts when nothing is mixed."""
        return list(self._lettered())[self._choice or 0][1]

    def initial_state(self, batch: int, like: Tensor) -> State:
        """That of every candidate in use, under its letter."""
        state = State()
        for number, (letter, block) in enumerate(self._lettered()):
            if self._weights_C is not None or number == self._choice:
                state |= owned(block.initial_state(batch, like), letter)
        return state

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """The weighted sum of what the candidates add."""
        total_BTD: Tensor | None = None
        carried = State()
        for number, (letter, block) in enumerate(self._lettered()):
            own = part(state, letter)
            if self._choice in (None, number):
                delta_BTD, after = block(hidden_BTD, own)
                if self._weights_C is not None:
                    delta_BTD = delta_BTD * self._weights_C[number].to(delta_BTD.dtype)
                total_BTD = delta_BTD if total_BTD is None else total_BTD + delta_BTD
            else:
                after = block.idle(hidden_BTD, own) if own else {}
            carried |= owned(after, letter)
        assert total_BTD is not None
        return total_BTD, carried

    def kept(self, before: State, after: State) -> State:
        """Each candidate's own."""
        carried = State()
        for letter, block in self._lettered():
            if own := part(after, letter):
                carried |= owned(block.kept(part(before, letter), own), letter)
        return carried

    def restarted(self, state: State, lanes_B: Tensor) -> State:
        """Each candidate's own."""
        begun = State()
        for letter, block in self._lettered():
            if own := part(state, letter):
                begun |= owned(block.restarted(own, lanes_B), letter)
        return begun

    def penalty(self, zero: Tensor) -> Tensor:
        """What the candidates in use ask, by their weights."""
        if self._weights_C is None:
            return self.chosen.penalty(zero)
        asked = [block.penalty(zero) for _, block in self._lettered()]
        return (torch.stack(asked) * self._weights_C).sum()

    def after_step(self) -> None:
        """Pass it on."""
        for _, block in self._lettered():
            block.after_step()

    def compile_parts(self) -> None:
        """Each candidate's own."""
        for _, block in self._lettered():
            block.compile_parts()

    def flops_per_token(self) -> float:
        """Of the chosen candidate."""
        return self.chosen.flops_per_token()

    def state_numbers(self) -> int:
        """Of the chosen candidate."""
        return self.chosen.state_numbers()

    def _lettered(self) -> Iterator[tuple[str, Block]]:
        for letter, block in self.candidates.items():
            assert isinstance(block, Block)
            yield letter, block
