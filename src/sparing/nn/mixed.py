"""A slot of a super-net: several residual blocks of one input, mixed or chosen from.

Axes: B batch, T segment, D dim, S slots, C candidates.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparing.nn.block import Block
from sparing.nn.state import State, owned, part

Sampling = Literal["soft", "straight-through", "single-path"]


@torch.no_grad()
def gumbel_noise(like_SC: Tensor) -> Tensor:
    """-log(-log U); U is kept off 0 and 1, where it would be infinite."""
    uniform_SC = torch.rand(like_SC.shape, device=like_SC.device, dtype=torch.float32)
    uniform_SC = uniform_SC.clamp(torch.finfo(torch.float32).tiny, 1 - 2**-24)
    return -torch.log(-torch.log(uniform_SC))


def mixture(logits_SC: Tensor, noise_SC: Tensor, tau: float, sampling: Sampling) -> Tensor:
    """Rows that sum to one: softmax((logits + noise) / tau), or its largest entry alone.

    The hard kinds have the soft one's derivative. On a `single-path` a super-net does not compute
    the candidates with a zero at all, so their part of the gradient is missing: logits learn only
    from what the chosen one adds, and not at all where that is the identity.
    """
    soft_SC = torch.softmax((logits_SC.float() + noise_SC) / tau, dim=-1)
    if sampling == "soft":
        return soft_SC
    hard_SC = F.one_hot(soft_SC.argmax(dim=-1), soft_SC.size(-1)).to(soft_SC.dtype)
    return hard_SC + soft_SC - soft_SC.detach()


def annealed(start: float, end: float, share: float) -> float:
    """The temperature after `share` of the run: from `start` to `end` in equal ratios."""
    return float(start * (end / start) ** min(1.0, max(0.0, share)))


def entropy(logits_SC: Tensor) -> Tensor:
    """Mean over slots of the uncertainty left, in nats."""
    log_SC = torch.log_softmax(logits_SC.float(), dim=-1)
    return -(log_SC.exp() * log_SC).sum(dim=-1).mean()


def expected_cost(logits_SC: Tensor, costs_C: Tensor) -> Tensor:
    """Mean cost of all slots together under softmax(logits): no noise, little variance."""
    return (torch.softmax(logits_SC.float(), dim=-1) * costs_C).sum()


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

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """Each candidate's own."""
        begun = State()
        for letter, block in self._lettered():
            if own := part(state, letter):
                begun |= owned(block.reset_lanes(own, lanes_B), letter)
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
