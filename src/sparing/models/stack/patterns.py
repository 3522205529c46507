"""Rules that say which block stands where: patterns of a stack, one letter per block.

Letters are those of `models.branches`; here `a` stands for whatever attention is asked for.
"""

import random
from collections.abc import Mapping

IDLE = "i"


def looped(pattern: str, rounds: int) -> tuple[int, ...]:
    """The numbers of a pattern's letters in order, those in brackets `rounds` times over."""
    packed = "".join(pattern.split())
    before, opened, rest = packed.partition("[")
    inside, closed, after = rest.partition("]")
    if bool(opened) != bool(closed) or "[" in inside + after or "]" in before + after:
        raise ValueError(f"pattern {pattern!r} must have one pair of brackets at most")
    if rounds > 1 and not inside:
        raise ValueError(f"rounds {rounds} need a part of the pattern in brackets: {pattern!r}")
    start, stop = len(before), len(before) + len(inside)
    again = list(range(start, stop)) * rounds
    return (*range(start), *again, *range(stop, stop + len(after)))


def interleaved(depth: int, attention: str = "x", dense: str = "f") -> str:
    """Attention and feed-forward in turns, as every Transformer has them."""
    return (attention + dense) * (depth // 2) + attention * (depth % 2)


def par(depth: int, period: int = 5, attention: str = "x", dense: str = "f") -> str:
    """PAR's rule: one attention block in `period`, spread over the first two thirds.

    DEVIATION: the paper's own strings are not at hand; this is the formula by which
    x-transformers reads the rule.
    """
    count, cut = depth // period, 2 * depth // 3
    if not count:
        raise ValueError(f"par({depth}, {period}) has no attention; use a period up to {depth}")
    width = (cut + cut // count) // count
    pattern = (attention + dense * (width - 1)) * count
    return (pattern + dense * depth)[:depth]


def sandwich(pairs: int, ends: int, attention: str = "x", dense: str = "f") -> str:
    """`ends` attention blocks first, as many dense ones last, pairs between (arXiv:1911.03864)."""
    if not 0 <= ends <= pairs:
        raise ValueError(f"sandwich({pairs}, {ends}): ends must lie between 0 and the pairs")
    return attention * ends + (attention + dense) * (pairs - ends) + dense * ends


def sha(layers: int, recurrent: str = "l", attention: str = "s", dense: str = "b") -> str:
    """SHA-RNN's layout: an LSTM and a Boom per layer, attention in the last layer but one."""
    at = max(0, layers - 2)
    return "".join(
        recurrent + (attention if layer == at else "") + dense for layer in range(layers)
    )


def cost_of(pattern: str, costs: Mapping[str, float]) -> float:
    """What the blocks of a pattern cost together."""
    return sum(costs[letter] for letter in pattern)


def at_random(
    slots: int, costs: Mapping[str, float], target: float, *, seed: int, tolerance: float = 0.02
) -> str:
    """A random pattern that costs `target`, or as near to it as was found.

    Slots are drawn one by one and redrawn until the sum fits, so that no rule is left in them.
    """
    draw, letters = random.Random(seed), sorted(costs)
    best = pattern = [draw.choice(letters) for _ in range(slots)]
    for _ in range(200 * slots):
        if _miss(best, costs, target) <= tolerance * target:
            break
        pattern = pattern.copy()
        pattern[draw.randrange(slots)] = draw.choice(letters)
        if _miss(pattern, costs, target) <= _miss(best, costs, target):
            best = pattern
        elif draw.random() < 0.7:
            pattern = best
    return "".join(best)


def _miss(pattern: list[str], costs: Mapping[str, float], target: float) -> float:
    return abs(cost_of("".join(pattern), costs) - target)


def likeliest(
    chances: list[dict[str, float]], costs: Mapping[str, float], ceiling: float | None = None
) -> str:
    """The most probable pattern whose cost is at most `ceiling`; without one, each slot's best.

    `chances` are logarithms of probabilities, slot by slot. Of two beginnings the one that is
    dearer and less probable is dropped, so the search is exact and short.
    """
    best = "".join(max(slot, key=lambda letter: slot[letter]) for slot in chances)
    if ceiling is None or cost_of(best, costs) <= ceiling:
        return best
    front: list[tuple[float, float, str]] = [(0.0, 0.0, "")]
    for slot in chances:
        longer = sorted(
            (spent + costs[letter], -(chance + own), pattern + letter)
            for spent, chance, pattern in front
            for letter, own in slot.items()
            if spent + costs[letter] <= ceiling * (1 + 1e-9)
        )
        front, most = [], float("-inf")
        for spent, minus, pattern in longer:
            if -minus > most:
                most = -minus
                front.append((spent, most, pattern))
    if not front:
        raise ValueError(f"no pattern of {len(chances)} blocks costs at most {ceiling:g}")
    return front[-1][2]


def filled(
    pattern: str, chances: list[dict[str, float]], costs: Mapping[str, float], ceiling: float
) -> str:
    """The pattern with idle slots filled for what is left of the budget, least unlikely first."""
    while True:
        room = ceiling * (1 + 1e-9) - cost_of(pattern, costs) + costs.get(IDLE, 0.0)
        swaps = [
            (chance - slot[IDLE], -costs[letter], -number, letter)
            for number, slot in enumerate(chances)
            if pattern[number] == IDLE
            for letter, chance in slot.items()
            if letter != IDLE and costs[letter] <= room
        ]
        if not swaps:
            return pattern
        _, _, minus, letter = max(swaps)
        pattern = pattern[:-minus] + letter + pattern[1 - minus :]
