"""Lookahead (arXiv:1907.08610): slow weights that follow the fast ones of another optimizer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparing.train.distributed.dtensor import to_local

SLOW, TAKEN = "slow", "taken"
"""Keys of the state: slow weights, and steps taken so far."""


class Lookahead(Optimizer):
    """After every `k` steps of `inner`, both weights meet at slow + `alpha` (fast - slow).

    The slow weights begin as the weights before the first step.
    """

    def __init__(self, inner: Optimizer, *, k: int = 5, alpha: float = 0.8) -> None:
        # The groups are the inner optimizer's own: a new learning rate is seen by both.
        super().__init__(inner.param_groups, {})
        self.inner, self.k, self.alpha = inner, k, alpha
        for p in self._parameters():
            # Counted on the host, as only the host asks.
            count = torch.zeros((), dtype=torch.int64)
            self.state[p] = {SLOW: p.detach().clone(), TAKEN: count}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch overloads it
        """One step of the inner optimizer; after every k-th the slow weights follow."""
        parameters = self._parameters()
        fast = [to_local(p) for p in parameters]
        slow = [to_local(self.state[p][SLOW]) for p in parameters]
        counts = [self.state[p][TAKEN] for p in parameters]
        if int(counts[0]) == 0:
            # Weights may have been loaded since construction.
            torch._foreach_copy_(slow, fast)
        loss = self.inner.step(closure) if closure else self.inner.step()
        torch._foreach_add_(counts, 1)
        if int(counts[0]) % self.k == 0:
            torch._foreach_lerp_(slow, fast, self.alpha)
            torch._foreach_copy_(fast, slow)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's, with two more entries for every parameter."""
        inner, own = self.inner.state_dict(), super().state_dict()
        state = {
            index: {**inner["state"].get(index, {}), **entries}
            for index, entries in own["state"].items()
        }
        return {**inner, "state": state}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        inner: dict[int, dict[str, Any]] = {}
        for index, p in enumerate(self._parameters()):
            entries = dict(state_dict["state"][index])
            for key in (SLOW, TAKEN):
                self.state[p][key].copy_(entries.pop(key))
            if entries:
                inner[index] = entries
        self.inner.load_state_dict({**state_dict, "state": inner})
        self.param_groups = self.inner.param_groups

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]
