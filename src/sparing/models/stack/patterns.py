"""Rules that say which block stands where: patterns of a stack, one letter per block."""

import random
from collections.abc import Mapping, Sequence

from sparing.models.stack.config import BLOCKS
from sparing.nn.attention.single_head import SingleHeadConfig
from sparing.nn.block import Role
from sparing.nn.feedforward import BoomConfig
from sparing.nn.recurrent_block import LSTMConfig


def first_letter(role: Role) -> str:
    """The letter of the first block in the registry that has this role."""
    return next(letter for letter, block in BLOCKS.items() if block.role == role)


ATTENTION, DENSE = first_letter("attention"), first_letter("dense")
IDENTITY = first_letter("identity")


def interleaved(depth: int, attention: str = ATTENTION, dense: str = DENSE) -> str:
    """Attention and dense blocks in turns, as in every Transformer."""
    return (attention + dense) * (depth // 2) + attention * (depth % 2)


def par(depth: int, period: int = 5, attention: str = ATTENTION, dense: str = DENSE) -> str:
    """PAR's rule: one attention block in `period`, spread over the first two thirds.

    DEVIATION: the paper does not print its patterns; this is the formula of x-transformers.
    """
    count, cut = depth // period, 2 * depth // 3
    if not count:
        raise ValueError(f"par({depth}, {period}) has no attention; use a period up to {depth}")
    width = (cut + cut // count) // count
    pattern = (attention + dense * (width - 1)) * count
    return (pattern + dense * depth)[:depth]


def sandwich(pairs: int, ends: int, attention: str = ATTENTION, dense: str = DENSE) -> str:
    """`ends` attention blocks first, as many dense ones last, pairs between (arXiv:1911.03864)."""
    if not 0 <= ends <= pairs:
        raise ValueError(f"sandwich({pairs}, {ends}): ends must lie between 0 and the pairs")
    return attention * ends + (attention + dense) * (pairs - ends) + dense * ends


def sha(layers: int) -> str:
    """SHA-RNN's layout: an LSTM and a Boom per layer, attention in the last layer but one."""
    attention_at = max(0, layers - 2)
    return "".join(
        LSTMConfig.letter
        + (SingleHeadConfig.letter if layer == attention_at else "")
        + BoomConfig.letter
        for layer in range(layers)
    )


LogProbs = Sequence[Mapping[str, float]]
"""Logarithm of the probability of every letter, slot by slot."""


def cost_of(pattern: str, costs: Mapping[str, float]) -> float:
    """What the blocks of a pattern cost together."""
    return sum(costs[letter] for letter in pattern)


def random_pattern(slots: int, costs: Mapping[str, float], target: float, *, seed: int) -> str:
    """A random pattern that costs `target` within 2 %, or as near to it as was found.

    Slots are drawn one by one and redrawn until the sum fits, so that the pattern follows no rule.
    """
    draw, letters = random.Random(seed), sorted(costs)
    best = pattern = [draw.choice(letters) for _ in range(slots)]
    for _ in range(200 * slots):
        if _cost_error(best, costs, target) <= 0.02 * target:
            break
        pattern = pattern.copy()
        pattern[draw.randrange(slots)] = draw.choice(letters)
        if _cost_error(pattern, costs, target) <= _cost_error(best, costs, target):
            best = pattern
        elif draw.random() < 0.7:
            pattern = best
    return "".join(best)


def _cost_error(pattern: list[str], costs: Mapping[str, float], target: float) -> float:
    return abs(cost_of("".join(pattern), costs) - target)


def likeliest_pattern(
    log_probs: LogProbs, costs: Mapping[str, float], limit: float | None = None
) -> str:
    """The most probable pattern whose cost is at most `limit`; without one, each slot's best.

    Of two partial patterns, one that costs more and is less probable is dropped, so the search is
    exact and short.
    """
    best = "".join(max(slot, key=lambda letter: slot[letter]) for slot in log_probs)
    if limit is None or cost_of(best, costs) <= limit:
        return best
    front: list[tuple[float, float, str]] = [(0.0, 0.0, "")]
    for slot in log_probs:
        longer = sorted(
            (spent + costs[letter], -(log_prob + own), pattern + letter)
            for spent, log_prob, pattern in front
            for letter, own in slot.items()
            if spent + costs[letter] <= limit * (1 + 1e-9)
        )
        front, most = [], float("-inf")
        for spent, minus, pattern in longer:
            if -minus > most:
                most = -minus
                front.append((spent, most, pattern))
    if not front:
        raise ValueError(f"no pattern of {len(log_probs)} blocks costs at most {limit:g}")
    return front[-1][2]


def fill_identities(
    pattern: str, log_probs: LogProbs, costs: Mapping[str, float], limit: float
) -> str:
    """The pattern with identities replaced while the budget lasts, likeliest blocks first."""
    while True:
        left = limit * (1 + 1e-9) - cost_of(pattern, costs) + costs.get(IDENTITY, 0.0)
        swaps = [
            (log_prob - slot[IDENTITY], -costs[letter], -number, letter)
            for number, slot in enumerate(log_probs)
            if pattern[number] == IDENTITY
            for letter, log_prob in slot.items()
            if letter != IDENTITY and costs[letter] <= left
        ]
        if not swaps:
            return pattern
        _, _, minus, letter = max(swaps)
        pattern = pattern[:-minus] + letter + pattern[1 - minus :]
