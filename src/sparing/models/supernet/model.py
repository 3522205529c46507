"""Super-net: several blocks compete in every slot, and training finds out which one is needed.

PAR Transformer (arXiv:2009.04534) with residual candidates, logits instead of raw probabilities,
and a price on measured cost. Axes: S slots, C candidates, B batch, T segment.
"""

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn

from sparing.models.api import LanguageModel, Output, State
from sparing.models.stack.model import Stack
from sparing.models.supernet.config import SupernetConfig
from sparing.nn.head import HeldOutLanesHead
from sparing.nn.mixed import MixedBlock, anneal, entropy, expected_cost, gumbel_noise, mixture


class Supernet(LanguageModel):
    """A stack of `MixedBlock` slots, and the logits by which they are mixed."""

    head: HeldOutLanesHead
    config: SupernetConfig
    single_process: ClassVar[bool] = True
    """Every process would draw its own noise and its own held-out lanes."""
    noise: Tensor
    """Gumbel noise of the current step, slots by candidates."""
    costs: Tensor
    """Cost of each candidate."""
    price: Tensor
    """Nats per token for spending twice the budget."""
    last_choices: Tensor
    """The choice in every slot at the last check; -1 before the first."""
    stable_checks: Tensor
    """Checks in a row that saw little change."""

    def __init__(self, config: SupernetConfig) -> None:
        super().__init__()
        c = self.config = config
        search = self.search = config.search
        slots, candidates = len(c.letters), len(search.candidates)
        self.stack = Stack(
            c,
            [
                MixedBlock(c.dim, {letter: c.build_block(letter) for letter in search.candidates})
                for _ in range(slots)
            ],
        )
        self.head = HeldOutLanesHead(self.stack.head, search.held)
        self.logits: nn.Parameter | None = nn.Parameter(torch.zeros(slots, candidates))
        self.register_buffer("noise", torch.zeros(slots, candidates))
        self.register_buffer(
            "price", torch.tensor(0.0 if search.pricing == "dual" else search.price)
        )
        self.register_buffer("last_choices", torch.full((slots,), -1))
        self.register_buffer("stable_checks", torch.tensor(0))
        costs = torch.tensor(search.costs or [0.0] * candidates)
        self.register_buffer("costs", costs, persistent=False)
        self.fixed_micro_batches = search.turn > 0
        self.tau, self._converged = search.tau_start, False
        self._trains_logits, self._check_due = True, False
        self.refresh()

    def initial_state(self, batch: int, *, inference: bool = False) -> State:
        """In training that of all candidates, in evaluation that of the chosen ones."""
        self._set_weights()
        return self.stack.initial_state(batch, inference=inference)

    def static_state(self, batch: int, *, chunk: int = 1) -> State:
        """See `LanguageModel`; of the chosen candidates."""
        self._choose()
        return self.stack.static_state(batch, chunk=chunk)

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """See `LanguageModel`."""
        return self.stack.reset_lanes(state, lanes_B)

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        """See `LanguageModel`. In evaluation only the chosen blocks run, without noise."""
        self._set_weights()
        out: Output = self.stack(tokens_BT, state)
        for slot in self._slots():
            # Otherwise the graph of this pass would be kept alive until the next one.
            slot.steer(None, 0)
        return out._replace(penalty=out.penalty + self._cost_penalty(out.penalty))

    def before_step(self, step: int, share: float) -> None:
        """Lower the temperature, draw noise, decide what this step trains and whether to check."""
        search = self.search
        self.tau = anneal(search.tau_start, search.tau_end, share)
        if self.logits is None:
            return
        if step % search.resample_every == 0:
            self.noise.copy_(gumbel_noise(self.logits))
        warming = share < search.weights_only
        logits_only = not warming and search.turn > 0 and (step + 1) % search.turn == 0
        self._trains_logits = logits_only or not (warming or search.turn)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(self._trains_logits if name == "logits" else not logits_only)
        if search.turn:
            self.head.lanes = "held" if logits_only else "most"
        self._check_due = self._trains_logits and self._is_check_due(step + 1)

    @torch.no_grad()
    def after_step(self) -> None:
        """After a step that trained the logits: check for convergence, and adjust the price."""
        self.stack.after_step()
        search = self.search
        if self.logits is None or not self._trains_logits:
            return
        if self._check_due:
            self._check_choices()
        if search.budget is None or search.pricing != "dual":
            return
        self.price.add_(search.price * self._excess(self.logits)).clamp_(min=0)

    @property
    def converged(self) -> bool:
        """Whether the choices have stopped changing."""
        return self._converged

    def train(self, mode: bool = True) -> "Supernet":
        """Switch between mixing and choosing, and read from the buffers whether it has converged.

        A checkpoint may have been loaded into them.
        """
        super().train(mode)
        if self.stable_checks.device.type != "meta":
            enough = int(self.stable_checks) >= self.search.checks_to_stop
            self._converged = self.search.check_every > 0 and enough
        return self

    def pattern(self) -> str:
        """The most probable block of every slot, as letters."""
        return "".join(self.search.candidates[choice] for choice in self._choices())

    @property
    def has_preferences(self) -> bool:
        """Whether the logits have been trained at all."""
        return self.logits is None or bool(self.logits.any())

    def log_probs(self) -> list[dict[str, float]]:
        """Logarithm of the probability of every candidate, slot by slot."""
        if self.logits is None:
            return [{letter: 0.0} for letter in self.pattern()]
        log_SC = torch.log_softmax(self.logits.detach().float(), dim=-1).tolist()
        return [dict(zip(self.search.candidates, row, strict=True)) for row in log_SC]

    def collapse(self) -> None:
        """Keep only the chosen blocks; all candidates where the model has no weights yet."""
        if self.logits is not None and self.logits.is_meta:
            return
        for slot, choice in zip(self._slots(), self._choices(), strict=True):
            letter = self.search.candidates[choice]
            slot.candidates = nn.ModuleDict({letter: slot.candidates[letter]})
        self.logits = None

    def telemetry(self) -> dict[str, float]:
        """Probabilities by slot and letter, temperature, entropy, expected cost and its price."""
        if self.logits is None:
            return {}
        search, logits_SC = self.search, self.logits.detach()
        found = {"tau": self.tau, "entropy": float(entropy(logits_SC))}
        if search.budget is not None:
            blocks = float(expected_cost(logits_SC, self.costs))
            baseline = (self.config.cost_limit + search.fixed_cost) / search.budget
            found |= {"cost": (search.fixed_cost + blocks) / baseline, "price": float(self.price)}
        for number, row in enumerate(torch.softmax(logits_SC.float(), dim=-1).tolist()):
            pairs = zip(search.candidates, row, strict=True)
            found |= {f"pi.{number}.{letter}": pi for letter, pi in pairs}
        return found

    def attention_weights(self, tokens_BT: Tensor, state: State) -> dict[int, Tensor]:
        """See `LanguageModel`; of the chosen blocks."""
        self._choose()
        return self.stack.attention_weights(tokens_BT, state)

    def learned_windows(self) -> dict[int, list[float]]:
        """See `LanguageModel`; of the chosen blocks."""
        self.refresh()
        return self.stack.learned_windows()

    def compile_parts(self) -> None:
        """See `LanguageModel`."""
        self.stack.compile_parts()

    def refresh(self) -> None:
        """See `LanguageModel`."""
        for slot, choice in zip(self._slots(), self._choices(), strict=True):
            slot.favourite = 0 if self.logits is None else choice
        self.stack.refresh()

    def flops_per_token(self) -> float:
        """Of the chosen blocks."""
        return self.stack.flops_per_token()

    def memory_length(self) -> int:
        """In training of all candidates, in evaluation of the chosen blocks."""
        return self.stack.memory_length()

    def state_numbers(self, *, inference: bool = False) -> int:
        """Of the chosen blocks."""
        return self.stack.state_numbers(inference=inference)

    def _cost_penalty(self, like: Tensor) -> Tensor:
        """Nats per token for exceeding the budget."""
        search = self.search
        if search.budget is None or self.logits is None or not self.training:
            return like.new_zeros(())
        excess = self._excess(self.logits)
        penalty: Tensor = self.price * (excess if search.pricing == "dual" else excess.clamp(min=0))
        return penalty

    def _excess(self, logits_SC: Tensor) -> Tensor:
        """How far the expected cost of the blocks exceeds its limit, as a share of the limit."""
        return expected_cost(logits_SC, self.costs) / self.config.cost_limit - 1

    def _set_weights(self) -> None:
        """Tell every slot how to mix its candidates in the next pass."""
        if not self.training or self.logits is None:
            self._choose()
            return
        sampling = self.search.sampling
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
            return [self.search.candidates.index(letter) for letter in letters]
        if self.logits.is_meta:
            # Without weights, the baseline stands for the network that will be found.
            return [max(0, self.search.candidates.find(x)) for x in self.config.letters]
        choices: list[int] = self.logits.detach().argmax(dim=-1).tolist()
        return choices

    def _is_check_due(self, done: int) -> bool:
        """Whether a check fell due since the step before `done` that trained the logits.

        Two checks with no such step in between would always agree.
        """
        every, turn = self.search.check_every, max(1, self.search.turn)
        return every > 0 and max(0, done - turn) // every < done // every

    @torch.no_grad()
    def _check_choices(self) -> None:
        """Compare the choices with those of the last check. This waits for the device."""
        assert self.logits is not None
        choices = self.logits.argmax(dim=-1)
        same = float((choices == self.last_choices).float().mean())
        stable = int(self.stable_checks) + 1 if same >= self.search.stable else 0
        self.stable_checks.fill_(stable)
        self.last_choices.copy_(choices)
        self._converged = stable >= self.search.checks_to_stop

    def _slots(self) -> Iterator[MixedBlock]:
        for slot in self.stack.blocks:
            assert isinstance(slot, MixedBlock)
            yield slot

    def _role(self, name: str, parameter: nn.Parameter) -> tuple[str, int]:
        if name == "logits":
            return "architecture", 1
        return self.stack._role(name.removeprefix("stack."), parameter)
