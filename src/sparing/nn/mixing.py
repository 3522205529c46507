"""Weights with which a super-net mixes its candidates (Gumbel-softmax, arXiv:1611.01144).

Axes: S slots, C candidates. Everything is float32, whatever the precision around it: in 16 bits
the noise itself overflows.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

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
