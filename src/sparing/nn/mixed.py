"""A slot of a super-net: several residual blocks with one input, mixed or selected from.

Axes: B batch, T segment, D dim, S slots, C candidates.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparing.nn.block import Block, BufferedBlock, commit, compute
from sparing.nn.state import State, add_prefix, select_prefix

Sampling = Literal["soft", "straight-through", "single-path"]


@torch.no_grad()
def gumbel_noise(like_SC: Tensor) -> Tensor:
    """Draw -log(-log U); U is kept away from 0 and 1, where it would be infinite."""
    uniform_SC = torch.rand(like_SC.shape, device=like_SC.device, dtype=torch.float32)
    uniform_SC = uniform_SC.clamp(torch.finfo(torch.float32).tiny, 1 - 2**-24)
    return -torch.log(-torch.log(uniform_SC))


def mixture(logits_SC: Tensor, noise_SC: Tensor, tau: float, sampling: Sampling) -> Tensor:
    """Return rows that sum to one: softmax((logits + noise) / tau), or its largest entry alone.

    The hard kinds have the derivative of the soft one. With `single-path` a super-net does not
    compute the candidates whose weight is zero, so their part of the gradient is missing: logits
    learn only from what the selected candidate adds, and nothing where that is the identity.
    """
    soft_SC = torch.softmax((logits_SC.float() + noise_SC) / tau, dim=-1)
    if sampling == "soft":
        return soft_SC
    hard_SC = F.one_hot(soft_SC.argmax(dim=-1), soft_SC.size(-1)).to(soft_SC.dtype)
    return hard_SC + soft_SC - soft_SC.detach()


def anneal(start: float, end: float, share: float) -> float:
    """Return the temperature after `share` of the run: from `start` to `end` in equal ratios."""
    return float(start * (end / start) ** min(1.0, max(0.0, share)))


def entropy(logits_SC: Tensor) -> Tensor:
    """Return the mean entropy of the slots, in nats."""
    log_SC = torch.log_softmax(logits_SC.float(), dim=-1)
    return -(log_SC.exp() * log_SC).sum(dim=-1).mean()


def expected_cost(logits_SC: Tensor, costs_C: Tensor) -> Tensor:
    """Return the expected cost of all slots under softmax(logits): no noise, little variance."""
    return (torch.softmax(logits_SC.float(), dim=-1) * costs_C).sum()


class MixedBlock(BufferedBlock):
    """Candidates by letter. `steer` says before each pass how they are mixed.

    Mixing runs them all. A choice runs one; in training the others skip the step, and so can be
    chosen later. Where nothing is mixed, state is carried for the chosen candidate only.
    """

    compilable = False
    """How it is steered changes from pass to pass."""

    favourite: int = 0
    """The candidate that `flops_per_token` and `state_numbers` describe."""

    def __init__(self, dim: int, candidates: Mapping[str, Block]) -> None:
        super().__init__()
        self.dim = dim
        self.candidates = nn.ModuleDict(candidates)
        self.steer(None, 0)

    def steer(self, weights_C: Tensor | None, choice: int | None) -> None:
        """Mix all candidates, or the chosen one, by these weights; without weights, choose."""
        self._weights_C, self._choice = weights_C, choice

    def initial_state(self, batch: int, like: Tensor, *, inference: bool = False) -> State:
        """Return the state of every candidate in use, under its letter."""
        state = State()
        for number, (letter, block) in enumerate(self._lettered()):
            if self._weights_C is not None or number == self._choice:
                state |= add_prefix(block.initial_state(batch, like, inference=inference), letter)
        return state

    def static_state(self, batch: int, like: Tensor, *, chunk: int) -> State:
        """See `Block`; of the chosen candidate."""
        letter, block = list(self._lettered())[self._choice or 0]
        return add_prefix(block.static_state(batch, like, chunk=chunk), letter)

    def compute(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """See `BufferedBlock`. Deltas of the candidates are summed by their weights."""
        total_BTD: Tensor | None = None
        carried = State()
        for number, (letter, block) in enumerate(self._lettered()):
            own = select_prefix(state, letter)
            if self._choice in (None, number):
                delta_BTD, after = compute(block, hidden_BTD, own)
                if self._weights_C is not None:
                    delta_BTD = delta_BTD * self._weights_C[number].to(delta_BTD.dtype)
                total_BTD = delta_BTD if total_BTD is None else total_BTD + delta_BTD
            else:
                after = _skip(block, hidden_BTD, own) if own else {}
            carried |= add_prefix(after, letter)
        assert total_BTD is not None
        return total_BTD, carried

    @torch.no_grad()
    def compute_skip(self, hidden_BTD: Tensor, state: State) -> State:
        """See `BufferedBlock`."""
        return self.compute(hidden_BTD, state)[1] if state else {}

    def commit(self, state: State, fresh: State) -> State:
        """See `BufferedBlock`."""
        carried = State()
        for letter, block in self._lettered():
            if after := select_prefix(fresh, letter):
                own = select_prefix(state, letter)
                carried |= add_prefix(commit(block, own, after), letter)
        return carried

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """See `Block`."""
        reset = State()
        for letter, block in self._lettered():
            if own := select_prefix(state, letter):
                reset |= add_prefix(block.reset_lanes(own, lanes_B), letter)
        return reset

    def penalty(self, zero: Tensor) -> Tensor:
        """Return the penalties of the candidates in use, by their weights."""
        if self._weights_C is None:
            return self._candidate(self._choice or 0).penalty(zero)
        penalties = [block.penalty(zero) for _, block in self._lettered()]
        return (torch.stack(penalties) * self._weights_C).sum()

    def after_step(self) -> None:
        """See `Block`."""
        for _, block in self._lettered():
            block.after_step()

    def attention_weights(self, hidden_BTD: Tensor, state: State) -> Tensor | None:
        """See `Block`; of the chosen candidate."""
        letter, block = list(self._lettered())[self._choice or 0]
        return block.attention_weights(hidden_BTD, select_prefix(state, letter))

    def learned_windows(self) -> list[float]:
        """See `Block`; of the favourite candidate."""
        return self._candidate(self.favourite).learned_windows()

    def compile_parts(self) -> None:
        """See `Block`."""
        for _, block in self._lettered():
            block.compile_parts()

    def flops_per_token(self) -> float:
        """See `Block`; of the favourite candidate."""
        return self._candidate(self.favourite).flops_per_token()

    def memory_length(self) -> int:
        """See `Block`; in training, where all candidates write their memories, the longest."""
        if self.training:
            return max(block.memory_length() for _, block in self._lettered())
        return self._candidate(self.favourite).memory_length()

    def state_numbers(self, *, inference: bool = False) -> int:
        """See `Block`; of the favourite candidate."""
        return self._candidate(self.favourite).state_numbers(inference=inference)

    def _candidate(self, number: int) -> Block:
        return list(self._lettered())[number][1]

    def _lettered(self) -> Iterator[tuple[str, Block]]:
        for letter, block in self.candidates.items():
            assert isinstance(block, Block)
            yield letter, block


def _skip(block: Block, hidden_BTD: Tensor, state: State) -> State:
    if isinstance(block, BufferedBlock):
        return block.compute_skip(hidden_BTD, state)
    return block.skip_step(hidden_BTD, state)
