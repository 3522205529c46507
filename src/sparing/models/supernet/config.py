"""Settings of a super-net: its candidates, how they are sampled, and what they may cost."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from sparing.models.stack.config import StackConfig
from sparing.nn.checks import check_at_least
from sparing.nn.mixed import Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """Settings of the search."""

    candidates: str = "xfi"
    """Letters of the blocks that compete in every slot."""
    sampling: Sampling = "soft"
    """Mix all candidates by weight, run all but use one, or run only one."""
    resample_every: int = 1
    """Steps for which the noise, and so a single path, stays the same."""
    tau_start: float = 1.0
    """Temperature of the sampling at the first step."""
    tau_end: float = 0.1
    """Temperature at the last step; it falls geometrically."""
    weights_only: float = 0.0
    """Share of the run in which only the weights learn."""
    turn: int = 0
    """After that, every `turn`-th step trains the preferences alone, on held-out lanes; 0:
    both learn at once from all lanes, as in the original."""
    held: float = 0.2
    """Share of the lanes held out for the preferences where steps take turns."""
    costs: tuple[float, ...] = ()
    """Cost of each candidate, in the order of `candidates`; none: cost does not count."""
    fixed_cost: float = 0.0
    """Cost of everything that is not a block, in the same unit."""
    budget: float | None = None
    """Share of the cost of `pattern` that may be spent; none: no limit."""
    pricing: Literal["dual", "hinge"] = "dual"
    """`dual`: the price of cost rises while the budget is exceeded and falls below it. `hinge`: it
    is `price` nats per token for what exceeds the budget."""
    price: float = 0.01
    """How far the price moves per step and unit of excess (dual), or the price itself (hinge)."""
    check_every: int = 0
    """Steps between two checks whether the choices still change; 0: never check."""
    checks_to_stop: int = 5
    """Checks in a row without much change after which the search ends."""
    stable: float = 0.75
    """Share of slots whose choice must stay the same for that."""

    def __post_init__(self) -> None:
        if len(set(self.candidates)) < max(2, len(self.candidates)):
            raise ValueError(f"candidates {self.candidates!r} must be two or more different ones")
        if not min(self.tau_start, self.tau_end) > 0:
            raise ValueError("tau_start and tau_end must be above 0")
        for name, share in (
            ("weights_only", self.weights_only),
            ("held", self.held),
            ("stable", self.stable),
        ):
            if not 0 <= share <= 1:
                raise ValueError(f"{name} is a share, from 0 to 1, not {share}")
        check_at_least(1, resample_every=self.resample_every, checks_to_stop=self.checks_to_stop)
        check_at_least(0, turn=self.turn, check_every=self.check_every)
        if self.costs and len(self.costs) != len(self.candidates):
            count = f"{len(self.costs)} costs for {len(self.candidates)} candidates"
            raise ValueError(f"{count}: name one for each, or none")
        if self.budget is not None and not self.costs:
            raise ValueError("a budget needs the cost of every candidate; see `sparing search`")

    @property
    def costs_by_letter(self) -> dict[str, float]:
        """Cost of each candidate."""
        return dict(zip(self.candidates, self.costs, strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class SupernetConfig(StackConfig):
    """Settings of a stack and of the search. `pattern` is the baseline: its length is the number of
    slots, and a budget is a share of its cost."""

    search: SearchConfig = field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        StackConfig.__post_init__(self)
        if unknown := sorted(set(self.search.candidates) - self.blocks.keys()):
            raise ValueError(f"search.candidates: there is no block {unknown[0]!r}")
        if self.mtp.tokens:
            raise ValueError("a super-net has no multi-token prediction: mtp.tokens must be 0")
        if self.rounds > 1:
            raise ValueError("a super-net passes through its slots once: rounds must be 1")
        if self.search.budget is None:
            return
        if self.cost_limit <= len(self.letters) * min(self.search.costs):
            share = self.search.budget
            raise ValueError(f"a budget of {share} is less than the cheapest network costs")

    @staticmethod
    def of(stack: StackConfig, search: SearchConfig) -> "SupernetConfig":
        """A search in the shape of a stack, with that stack as its baseline."""
        return SupernetConfig(**_stack_settings(stack), search=search)

    def plain_stack(self) -> StackConfig:
        """See `StackConfig`."""
        return StackConfig(**_stack_settings(self))

    @property
    def all_letters(self) -> str:
        """Letters of all blocks that compete or stand in `pattern`, in alphabetical order."""
        return "".join(sorted({*self.search.candidates, *self.letters}))

    @property
    def cost_limit(self) -> float:
        """What the blocks may cost together; only with a budget."""
        search, costs = self.search, self.search.costs_by_letter
        if missing := sorted(set(self.letters) - costs.keys()):
            letters = f"{missing[0]!r} is none of the candidates {search.candidates}"
            raise ValueError(f"pattern: {letters}")
        baseline = search.fixed_cost
        baseline += sum(costs[letter] for letter in self.letters)
        return (search.budget or 0.0) * baseline - search.fixed_cost


def _stack_settings(config: StackConfig) -> dict[str, Any]:
    return {each.name: getattr(config, each.name) for each in fields(StackConfig)}
