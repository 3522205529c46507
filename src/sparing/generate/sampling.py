"""From logits to the next token. Axes: B batch, V vocabulary."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparing.errors import UserError, bad_predictions


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """How to sample. Filters apply in the order of the fields, each to what the last one kept."""

    temperature: float = 1.0
    """Divisor of the logits; 0 always takes the most probable token."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most probable tokens with at least this probability; 1 keeps all."""
    min_p: float = 0.0
    """Keep tokens whose probability is at least this fraction of the highest; 0 keeps all."""
    seed: int = 0
    """Prompt i of a batch uses seed + i."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserError(f"temperature must be 0 or more, not {self.temperature}")
        if self.top_k < 0:
            raise UserError(f"top-k must be 0 (off) or more, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p must be above 0 and at most 1, not {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise UserError(f"min-p must be between 0 and 1, not {self.min_p}")
        if self.seed < 0:
            raise UserError(f"seed must be 0 or more, not {self.seed}")


def sample(logits_BV: Tensor, config: SamplingConfig, uniform_B: Tensor) -> Tensor:
    """Return one id per row: the first whose cumulative probability exceeds `uniform_B`."""
    # Of NaNs, and of rows of nothing but -inf, some token would come out all the same.
    if not logits_BV.amax(dim=-1).isfinite().all():
        raise bad_predictions()
    if config.temperature == 0:
        return logits_BV.argmax(dim=-1)
    probability_BV = filter_probabilities(logits_BV, config)
    # Cumulated in the order of ids, not of probability: rounding may swap two tokens of almost
    # equal probability, and the result must not depend on the other rows of a batch.
    cumulative_BV = probability_BV.cumsum(dim=-1)
    threshold_B1 = uniform_B.to(cumulative_BV)[:, None] * cumulative_BV[:, -1:]
    chosen_B1 = torch.searchsorted(cumulative_BV, threshold_B1, right=True)
    # A draw rounded up to the total would lie after the last token with a probability.
    last_B1 = torch.searchsorted(cumulative_BV, cumulative_BV[:, -1:].contiguous())
    return torch.minimum(chosen_B1, last_B1).clamp(max=logits_BV.size(-1) - 1).squeeze(-1)


def filter_probabilities(logits_BV: Tensor, config: SamplingConfig) -> Tensor:
    """Return float64 probabilities after temperature, top-k, top-p and min-p; they sum to 1."""
    scaled_BV = logits_BV.double()
    # The maximum is subtracted first, so that a tiny temperature cannot overflow.
    scaled_BV = (scaled_BV - scaled_BV.amax(dim=-1, keepdim=True)) / config.temperature
    probability_BV = scaled_BV.softmax(dim=-1)
    ordered_BV, order_BV = probability_BV.sort(dim=-1, descending=True, stable=True)
    kept_BV = torch.ones_like(ordered_BV, dtype=torch.bool)
    if config.top_k:
        kept_BV[:, config.top_k :] = False
    if config.top_p < 1:
        share_BV = ordered_BV * kept_BV
        total_BV = share_BV.cumsum(dim=-1)
        # A token is kept while the tokens before it hold less than the share.
        kept_BV[:, 1:] &= total_BV[:, :-1] < config.top_p * total_BV[:, -1:]
    kept_BV &= ordered_BV >= config.min_p * ordered_BV[:, :1]
    allowed_BV = torch.zeros_like(kept_BV).scatter(-1, order_BV, kept_BV)
    probability_BV = probability_BV * allowed_BV
    return probability_BV / probability_BV.sum(dim=-1, keepdim=True)
