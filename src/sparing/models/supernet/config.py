"""What a super-net chooses from: its candidates, how they are sampled, and what they may cost."""

from dataclasses import dataclass
from typing import Literal

from sparing.models.stack.config import BRANCHES, StackConfig
from sparing.nn.mixed import Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class SupernetConfig(StackConfig):
    """A stack's settings, and the search's. `pattern` is the network the search starts against:
    its length is the number of slots, its cost what a budget is a share of."""

    candidates: str = "xfi"
    """Letters of the blocks that compete in every slot."""
    sampling: Sampling = "soft"
    """All candidates weighted, all run but one counted, or one run."""
    hold: int = 1
    """Steps for which the noise, and so a single path, stays the same."""
    tau_start: float = 1.0
    """Temperature of the sampling at the first step."""
    tau_end: float = 0.1
    """And at the last; it falls in equal ratios."""
    warmup: float = 0.0
    """Share of the run in which weights alone learn."""
    turn: int = 0
    """After it, every so manieth step teaches the preferences alone, on lanes kept apart for
    them; 0: both learn at once from everything, as in the seed."""
    held: float = 0.2
    """Share of the lanes kept apart where steps take turns."""
    costs: tuple[float, ...] = ()
    """What each candidate costs, in the order of `candidates`; none: cost is no object."""
    fixed_cost: float = 0.0
    """What everything that is not a block costs, in the same unit."""
    budget: float | None = None
    """Share of the cost of `pattern` that may be spent; none: no limit."""
    pricing: Literal["dual", "hinge"] = "dual"
    """The price of cost: raised while the budget is exceeded and lowered below it, or `price`
    nats per token for what exceeds it."""
    price: float = 0.01
    """By how much the price moves per step and unit of excess (dual), or the price itself."""
    check_every: int = 0
    """Steps between two looks at whether the preferences still change; 0: never."""
    patience: int = 5
    """Looks in a row without much change after which the search ends."""
    stable: float = 0.75
    """Share of slots whose favourite must be the same for that."""

    def __post_init__(self) -> None:
        StackConfig.__post_init__(self)
        if len(set(self.candidates)) < max(2, len(self.candidates)):
            raise ValueError(f"candidates {self.candidates!r} must be two or more different ones")
        if strange := sorted(set(self.candidates) - set(BRANCHES)):
            raise ValueError(f"candidates: there is no block {strange[0]!r}")
        if self.mtp:
            raise ValueError("a super-net does not foretell: mtp must be 0")
        if self.rounds > 1:
            raise ValueError("a super-net goes through its slots once: rounds must be 1")
        if min(self.tau_start, self.tau_end) <= 0:
            raise ValueError("tau_start and tau_end must be above 0")
        for name in ("warmup", "held", "stable"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share, from 0 to 1, not {getattr(self, name)}")
        if min(self.hold, self.patience) < 1 or min(self.turn, self.check_every) < 0:
            raise ValueError("hold and patience are at least 1, turn and check_every at least 0")
        self._check_costs()

    def _check_costs(self) -> None:
        if self.costs and len(self.costs) != len(self.candidates):
            count = f"{len(self.costs)} costs for {len(self.candidates)} candidates"
            raise ValueError(f"{count}: name one for each, or none")
        if self.budget is None:
            return
        if not self.costs:
            raise ValueError("a budget needs every candidate's cost; `sparing search` finds it")
        if self.ceiling <= len(self.letters) * min(self.costs):
            raise ValueError(f"a budget of {self.budget} is less than the cheapest network costs")

    @property
    def known(self) -> str:
        """Letters of all blocks that compete or stand in `pattern`, in order."""
        return "".join(sorted({*self.candidates, *self.letters}))

    @property
    def price_list(self) -> dict[str, float]:
        """Cost of each candidate by letter."""
        return dict(zip(self.candidates, self.costs, strict=True))

    @property
    def ceiling(self) -> float:
        """What the blocks may cost together; only with a budget."""
        prices, whole = self.price_list, self.fixed_cost
        if strange := sorted(set(self.letters) - set(prices)):
            raise ValueError(f"pattern: {strange[0]!r} is none of the candidates {self.candidates}")
        whole += sum(prices[letter] for letter in self.letters)
        return (self.budget or 0.0) * whole - self.fixed_cost
