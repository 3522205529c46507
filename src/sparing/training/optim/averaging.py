"""Averages of the weights: ASGD, NT-ASGD, exponential moving averages, and Lookahead.

NT-ASGD's trigger follows the AWD-LSTM code (arXiv:1708.02182). The paper's text differs, and its
authors say that the code is right. Lookahead is arXiv:1907.08610.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparing.training.distributed.dtensor import to_local

NOT_STARTED = -1
"""The number of averaged steps before averaging has started."""
PRESENT = 0
"""In place of a decay: the weights themselves."""
SLOW, TAKEN = "slow", "taken"
"""Keys of the state: the slow weights and the number of steps."""


class Averaging:
    """The mean of the weights over all steps since averaging started, or several by their decays.

    NT-ASGD starts when a valid loss is worse than the best of those before the latest `patience`
    ones; a `patience` of 0 averages from the first step. With a decay below 1 the mean becomes an
    exponential moving average as soon as it covers 1 / (1 - decay) steps. The means are updated
    every `every` steps; a decay is per step all the same.
    """

    def __init__(
        self,
        named: Mapping[str, nn.Parameter],
        patience: int = 0,
        decays: Sequence[float] = (1.0,),
        every: int = 1,
    ) -> None:
        self.named, self.patience, self.every = dict(named), patience, every
        self.means = {
            decay: {name: torch.zeros_like(p) for name, p in self.named.items()} for decay in decays
        }
        # On the CPU, as only the host reads them. The first loss is the best of all older ones, the
        # others are the latest; infinite until there are as many.
        self.steps = torch.tensor(NOT_STARTED if patience else 0)
        self.losses = torch.full((1 + patience,), torch.inf, dtype=torch.float64)

    @torch.no_grad()
    def after_step(self) -> None:
        """Add the current weights to every mean if their turn has come."""
        if int(self.steps) == NOT_STARTED:
            return
        self.steps += 1
        updates, between = divmod(int(self.steps), self.every)
        if between:
            return
        weights = _local(self.named)
        for decay, means in self.means.items():
            share = max(1 / updates, 1 - decay**self.every)
            torch._foreach_lerp_(_local(means), weights, share)

    def report_validation(self, loss_nats: float) -> None:
        """Start averaging if a valid loss is worse than an older one."""
        if not self.patience:
            return
        if int(self.steps) == NOT_STARTED and loss_nats > float(self.losses[0]):
            self.steps.zero_()
        self.losses[0] = torch.minimum(self.losses[0], self.losses[1])
        self.losses[1:] = torch.cat([self.losses[2:], self.losses.new_tensor([loss_nats])])

    def candidates(self) -> tuple[float, ...]:
        """What to validate: the only mean there is, or `PRESENT` and every mean of several."""
        if int(self.steps) < self.every:
            return (PRESENT,)
        return (PRESENT, *self.means) if len(self.means) > 1 else tuple(self.means)

    @contextmanager
    def swapped_in(self, decay: float) -> Iterator[None]:
        """Context in which the model has one of the `candidates`."""
        if decay == PRESENT:
            yield
            return
        weights = _local(self.named)
        with torch.no_grad():
            present = [weight.clone() for weight in weights]
            torch._foreach_copy_(weights, _local(self.means[decay]))
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(weights, present)

    def tensors(self) -> dict[str, Tensor]:
        """The complete state; the tensors themselves, not copies."""
        several = len(self.means) > 1
        means = {
            f"{name}/mean{f'.{decay}' if several else ''}": mean
            for decay, named in self.means.items()
            for name, mean in named.items()
        }
        return {**means, "averaging/steps": self.steps, "averaging/losses": self.losses}


def _local(named: Mapping[str, Tensor]) -> list[Tensor]:
    return [to_local(tensor) for tensor in named.values()]


class Lookahead(Optimizer):
    """Every `k` steps of `inner`, slow and fast weights become slow + `alpha` (fast - slow).

    The slow weights start as the weights before the first step.
    """

    def __init__(self, inner: Optimizer, *, k: int = 5, alpha: float = 0.8) -> None:
        # The groups are shared with the inner optimizer, so both see a new learning rate.
        super().__init__(inner.param_groups, {})
        self.inner, self.k, self.alpha = inner, k, alpha
        for p in self._parameters():
            # On the CPU, as only the host reads it.
            count = torch.zeros((), dtype=torch.int64)
            self.state[p] = {SLOW: p.detach().clone(), TAKEN: count}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch overloads it
        """Take one step of the inner optimizer; every k-th step, update the slow weights."""
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
        """The inner optimizer's state with two more entries per parameter."""
        inner, own = self.inner.state_dict(), super().state_dict()
        state = {
            index: {**inner["state"].get(index, {}), **entries}
            for index, entries in own["state"].items()
        }
        return {**inner, "state": state}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
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
