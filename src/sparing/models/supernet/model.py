"""Super-net: in every slot several blocks compete, and the training says which one is needed.

PAR Transformer (arXiv:2009.04534) with residual candidates, logits instead of raw probabilities,
and a price on measured cost. Axes: S slots, C candidates, B batch, T segment.
"""

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn

from sparing.models.api import LanguageModel, Output, State
from sparing.models.stack.config import branch
from sparing.models.stack.model import Stack
from sparing.models.supernet.config import SupernetConfig
from sparing.nn.head import HeldOutRowsHead
from sparing.nn.mixed import MixedBlock, anneal, entropy, expected_cost, gumbel_noise, mixture


class Supernet(LanguageModel):
    """A stack of `MixedBlock` slots, and the logits by which they are mixed."""

    head: HeldOutRowsHead
    single_process: ClassVar[bool] = True
    """Its noise and its held-out lanes are drawn by each process for itself."""
    noise: Tensor
    """Of the step under way."""
    costs: Tensor
    """Of each candidate."""
    price: Tensor
    """Nats per token for spending twice the budget."""
    favourites: Tensor
    """At the last look; -1 before the first."""
    calm: Tensor
    """Looks in a row that saw little change."""

    def __init__(self, config: SupernetConfig) -> None:
        super().__init__()
        c = self.config = config
        slots, candidates = len(c.letters), len(c.candidates)
        self.stack = Stack(
            c, [MixedBlock(c.dim, {x: branch(x, c) for x in c.candidates}) for _ in range(slots)]
        )
        self.head = HeldOutRowsHead(self.stack.head, c.held)
        self.logits: nn.Parameter | None = nn.Parameter(torch.zeros(slots, candidates))
        self.register_buffer("noise", torch.zeros(slots, candidates))
        self.register_buffer("price", torch.tensor(0.0 if c.pricing == "dual" else c.price))
        self.register_buffer("favourites", torch.full((slots,), -1))
        self.register_buffer("calm", torch.tensor(0))
        self.register_buffer("costs", torch.tensor(c.costs or [0.0] * candidates), persistent=False)
        self.fixed_micro_batches = c.turn > 0
        self.tau, self._converged = c.tau_start, False
        self._choosing, self._looking = True, False
        self.refresh()

    def initial_state(self, batch: int, *, inference: bool = False) -> State:
        """In training that of all candidates, in evaluation that of the favourites."""
        self._steer()
        return self.stack.initial_state(batch, inference=inference)

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """That of every candidate the state holds."""
        return self.stack.reset_lanes(state, lanes_B)

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        """See `LanguageModel`. Without training, the favourites alone and no noise."""
        self._steer()
        out: Output = self.stack(tokens_BT, state)
        for slot in self._slots():
            # Or this pass's graph would live until the next one.
            slot.steer(None, 0)
        return out._replace(penalty=out.penalty + self._asked(out.penalty))

    def before_step(self, step: int, share: float) -> None:
        """Cool down, draw noise, decide who learns in this step, and whether to look after it."""
        c = self.config
        self.tau = anneal(c.tau_start, c.tau_end, share)
        if self.logits is None:
            return
        if step % c.hold == 0:
            self.noise.copy_(gumbel_noise(self.logits))
        warming = share < c.warmup
        alone = not warming and c.turn > 0 and (step + 1) % c.turn == 0
        self._choosing = alone or not (warming or c.turn)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(self._choosing if name == "logits" else not alone)
        if c.turn:
            self.head.lanes = "held" if alone else "most"
        self._looking = self._choosing and self._due(step + 1)

    @torch.no_grad()
    def after_step(self) -> None:
        """Where preferences had their say: look at them, let the price follow the excess."""
        self.stack.after_step()
        c = self.config
        if self.logits is None or not self._choosing:
            return
        if self._looking:
            self._look()
        if c.budget is None or c.pricing != "dual":
            return
        self.price.add_(c.price * self._excess(self.logits)).clamp_(min=0)

    @property
    def converged(self) -> bool:
        """Whether the favourites have stopped changing."""
        return self._converged

    def train(self, mode: bool = True) -> "Supernet":
        """Switch between mixing and choosing; take up what a checkpoint says."""
        super().train(mode)
        if self.calm.device.type != "meta":
            self._converged = self.config.check_every > 0 and int(self.calm) >= self.config.patience
        return self

    def pattern(self) -> str:
        """The favourite of every slot, as letters."""
        return "".join(self.config.candidates[choice] for choice in self._choices())

    @property
    def taught(self) -> bool:
        """Whether any preference has moved yet."""
        return self.logits is None or bool(self.logits.any())

    def chances(self) -> list[dict[str, float]]:
        """Logarithm of every candidate's probability, slot by slot."""
        if self.logits is None:
            return [{letter: 0.0} for letter in self.pattern()]
        log_SC = torch.log_softmax(self.logits.detach().float(), dim=-1).tolist()
        return [dict(zip(self.config.candidates, row, strict=True)) for row in log_SC]

    def collapse(self) -> None:
        """Keep the favourites alone; all candidates where nobody knows the preferences yet."""
        if self.logits is not None and self.logits.is_meta:
            return
        for slot, choice in zip(self._slots(), self._choices(), strict=True):
            letter = self.config.candidates[choice]
            slot.candidates = nn.ModuleDict({letter: slot.candidates[letter]})
        self.logits = None

    def telemetry(self) -> dict[str, float]:
        """Probabilities by slot and letter, temperature, entropy, expected cost and its price."""
        if self.logits is None:
            return {}
        c, logits_SC = self.config, self.logits.detach()
        told = {"tau": self.tau, "entropy": float(entropy(logits_SC))}
        if c.budget is not None:
            blocks = float(expected_cost(logits_SC, self.costs))
            whole = (c.ceiling + c.fixed_cost) / c.budget
            told |= {"cost": (c.fixed_cost + blocks) / whole, "price": float(self.price)}
        for number, row in enumerate(torch.softmax(logits_SC.float(), dim=-1).tolist()):
            told |= {f"pi.{number}.{x}": pi for x, pi in zip(c.candidates, row, strict=True)}
        return told

    def compile_parts(self) -> None:
        """What the blocks compile."""
        self.stack.compile_parts()

    def refresh(self) -> None:
        """See `LanguageModel`."""
        for slot, choice in zip(self._slots(), self._choices(), strict=True):
            slot.favourite = 0 if self.logits is None else choice
        self.stack.refresh()

    def flops_per_token(self) -> float:
        """Of the favourites."""
        return self.stack.flops_per_token()

    def state_numbers(self, *, inference: bool = False) -> int:
        """Of the favourites."""
        return self.stack.state_numbers(inference=inference)

    def _asked(self, like: Tensor) -> Tensor:
        """The price of what the budget is exceeded by."""
        c = self.config
        if c.budget is None or self.logits is None or not self.training:
            return like.new_zeros(())
        excess = self._excess(self.logits)
        asked: Tensor = self.price * (excess if c.pricing == "dual" else excess.clamp(min=0))
        return asked

    def _excess(self, logits_SC: Tensor) -> Tensor:
        """By how much of the ceiling the expected cost of the blocks exceeds it."""
        return expected_cost(logits_SC, self.costs) / self.config.ceiling - 1

    def _steer(self) -> None:
        if not self.training or self.logits is None:
            self._choose()
            return
        sampling = self.config.sampling
        weights_SC = mixture(self.logits, self.noise, self.tau, sampling)
        paths: list[int | None] = [None] * weights_SC.size(0)
        if sampling == "single-path":
            paths = weights_SC.detach().argmax(dim=-1).tolist()
        for slot, weights_C, path in zip(self._slots(), weights_SC, paths, strict=True):
            slot.steer(weights_C, path)

    def _choose(self) -> None:
        for slot, choice in zip(self._slots(), self._choices(), strict=True):
            slot.favourite = 0 if self.logits is None else choice
            slot.steer(None, slot.favourite)

    def _choices(self) -> list[int]:
        if self.logits is None:
            letters = (next(iter(slot.candidates)) for slot in self._slots())
            return [self.config.candidates.index(letter) for letter in letters]
        if self.logits.is_meta:
            # Before anything is learnt: the network the search starts against.
            return [max(0, self.config.candidates.find(x)) for x in self.config.letters]
        choices: list[int] = self.logits.detach().argmax(dim=-1).tolist()
        return choices

    def _due(self, done: int) -> bool:
        """Whether time for a look came since preferences last learnt before their `done`th step.

        Two looks with nothing learnt in between would always agree.
        """
        every, turn = self.config.check_every, max(1, self.config.turn)
        return every > 0 and max(0, done - turn) // every < done // every

    @torch.no_grad()
    def _look(self) -> None:
        """One look at the favourites; the only wait for the device between two of them."""
        assert self.logits is not None
        now = self.logits.argmax(dim=-1)
        same = float((now == self.favourites).float().mean())
        calm = int(self.calm) + 1 if same >= self.config.stable else 0
        self.calm.fill_(calm)
        self.favourites.copy_(now)
        self._converged = calm >= self.config.patience

    def _slots(self) -> Iterator[MixedBlock]:
        for slot in self.stack.blocks:
            assert isinstance(slot, MixedBlock)
            yield slot

    def _role(self, name: str, parameter: nn.Parameter) -> tuple[str, int]:
        if name == "logits":
            return "architecture", 1
        return self.stack._role(name.removeprefix("stack."), parameter)
