"""What the rest of the house may rely on in a model. Nothing outside `models` asks for a family."""

from dataclasses import Field, dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from sparing.nn.head import IGNORE_INDEX, Head
from sparing.nn.size import SizeLimit
from sparing.nn.state import State, joined, lanes, lengthened, size_bytes, zeroed

__all__ = [
    "IGNORE_INDEX",
    "Head",
    "LanguageModel",
    "ModelConfig",
    "Output",
    "ParameterGroup",
    "SizeLimit",
    "State",
    "joined",
    "lanes",
    "lengthened",
    "size_bytes",
]


class ModelConfig(Protocol):
    """Settings of a model, whatever its family: a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def vocab_size(self) -> int:
        """Symbols the model reads and predicts."""

    def smaller(self, limit: SizeLimit) -> Self:
        """The same kind of model within these limits, its proportions kept."""


class Output(NamedTuple):
    """What one segment yields."""

    hidden_BTD: Tensor
    state: State
    """To be carried into the next segment."""
    penalty: Tensor
    """Nats per token added to the training loss (span loss, architecture cost); often zero."""


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters an optimizer should treat alike."""

    role: str
    """`matrix` (weights between layers), `table` (embedding, head), `architecture` (which of
    several blocks a super-net prefers) or `vector` (the rest)."""
    blocks: int
    """Square-ish matrices stacked along the rows: 4 for the gates of an LSTM, else 1."""
    named: tuple[tuple[str, nn.Parameter], ...]


class LanguageModel(nn.Module):
    """A causal model of token sequences, in segments, with state carried between them.

    The same `forward` trains, evaluates, prefills a prompt and decodes one token at a time.
    """

    head: Head
    alone: ClassVar[bool] = False
    """Whether it must be trained by one process."""
    apart: bool = False
    """Whether lanes of every piece of a batch are kept apart, so that pieces must stay the same."""

    steady: bool = False
    """Whether segments of another length would have to be compiled for."""

    def initial_state(self, batch: int) -> State:
        """The state before the first token, lane axis first, on the model's device."""
        raise NotImplementedError

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        """Read one segment of at least one token per lane."""
        raise NotImplementedError

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """The same state with the chosen lanes as before their first token.

        Asks no weights, of which this process may have a part only, and never waits for the device.
        Zero is what a state starts as; what does not, or is too large to be copied, overrides this.
        """
        return zeroed(state, lanes_B)

    def before_step(self, step: int, share: float) -> None:
        """Called before every training step, with the steps and the share of the budget behind it.

        What it decides must follow from these and from what a checkpoint holds.
        """

    def after_step(self) -> None:
        """Called after every optimizer step, e.g. to clamp what must stay in range."""

    @property
    def settled(self) -> bool:
        """Whether training may end before its budget: nothing is left to be found out."""
        return False

    def telemetry(self) -> dict[str, float]:
        """Numbers about the model worth a curve, e.g. the span of each head."""
        return {}

    def collapse(self) -> None:
        """Fold away, in place, what only training needs; the function stays the same."""

    def compile_parts(self) -> None:
        """Compile, in place, the parts that gain from `torch.compile`."""

    def idle(self) -> bool:
        """Whether some weights may get no gradient in a step; several processes must know."""
        return False

    def shard_parts(self) -> list[nn.Module]:
        """Parts whose weights `--shard` may bring together one part at a time.

        Each is used by calling it and in no other way, and has no weight in common with the rest.
        """
        return []

    def flops_per_token(self) -> float:
        """Floating-point operations of matrix products in one forward pass, memory full."""
        raise NotImplementedError

    def state_numbers(self) -> int:
        """Numbers carried per lane once every memory is full."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return next(self.parameters()).device

    def parameter_groups(self) -> list[ParameterGroup]:
        """Every trainable parameter in exactly one group."""
        found: dict[tuple[str, int], list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in self.named_parameters():
            found.setdefault(self._role(name, parameter), []).append((name, parameter))
        return [
            ParameterGroup(role, blocks, tuple(named)) for (role, blocks), named in found.items()
        ]

    def _role(self, name: str, parameter: nn.Parameter) -> tuple[str, int]:
        owner = self.get_submodule(name.rpartition(".")[0])
        if parameter.ndim != 2 or getattr(owner, "parameter_role", None) == "vector":
            return "vector", 1
        if isinstance(owner, nn.Embedding) or name.startswith("head."):
            return "table", 1
        return "matrix", stacked_blocks(owner, name)


def stacked_blocks(owner: Any, name: str) -> int:
    """How many matrices a recurrent layer keeps in one tensor."""
    if isinstance(owner, nn.RNNBase) and "weight" in name:
        return {"LSTM": 4, "GRU": 3}.get(owner.mode, 1)
    return int(getattr(owner, "stacked_blocks", 1))
