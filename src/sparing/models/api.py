"""The interface of a language model; code outside `models` depends on nothing else."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import Field, dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from sparing.nn.head import IGNORE_INDEX, Head
from sparing.nn.ring import is_ring, narrow_rings, split_rings
from sparing.nn.size import SizeLimit
from sparing.nn.state import (
    State,
    concat_lanes,
    pad_length,
    select_lanes,
    size_bytes,
    zero_lanes,
)
from sparing.nn.static import crop_rings, fill_static, grow_rings

__all__ = [
    "IGNORE_INDEX",
    "Head",
    "LanguageModel",
    "ModelConfig",
    "Output",
    "ParameterGroup",
    "SizeLimit",
    "State",
    "concat_lanes",
    "crop_rings",
    "eval_mode",
    "fill_static",
    "grow_rings",
    "is_ring",
    "narrow_rings",
    "pad_length",
    "select_lanes",
    "size_bytes",
    "split_rings",
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
    """The result of reading one segment."""

    hidden_BTD: Tensor
    state: State
    """Carried into the next segment."""
    penalty: Tensor
    """Added to the training loss, in nats per token (span loss, architecture cost); often zero."""


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters that an optimizer treats in the same way."""

    role: str
    """`matrix` (weights between layers), `table` (embedding, head), `architecture` (which of
    several blocks a super-net prefers) or `vector` (the rest)."""
    blocks: int
    """Square-ish matrices stacked along the rows: 4 for the gates of an LSTM, else 1."""
    named: tuple[tuple[str, nn.Parameter], ...]


class LanguageModel(nn.Module):
    """A causal model of token sequences, read in segments, with state carried between them.

    The same `forward` trains, evaluates, prefills a prompt and decodes one token at a time.
    """

    head: Head
    config: ModelConfig | None = None
    """Its settings, which describe its weights; none where another program computes."""
    single_process: ClassVar[bool] = False
    """Whether it must be trained by one process."""
    fixed_micro_batches: bool = False
    """Whether each micro-batch holds out lanes of its own, so that their number must not change."""

    shows_hidden: ClassVar[bool] = True
    """Whether `forward` returns hidden vectors; if not, the head is inside, and it is logits."""

    attends_to_empty_slots: bool = False
    """Whether slots before a text's first token take attention, so that rings cannot be cropped."""

    static_shapes: bool = False
    """Whether segments of another length would have to be compiled for separately."""

    def initial_state(self, batch: int, *, inference: bool = False) -> State:
        """Return the state before the first token, lane axis first, on the model's device.

        `inference` says that weights will not change while the state is carried. Memories then
        hold keys and values, unless the config says otherwise; in training they hold hidden states.
        """
        raise NotImplementedError

    def static_state(self, batch: int, *, chunk: int = 1) -> State:
        """Return a state for inference whose tensors never change their shapes: memories are rings.

        `forward` reads segments of up to `chunk` tokens with it, writes the rings in place and
        reads nothing from the device. Weights must not change while the state is carried.
        """
        return self.initial_state(batch, inference=True)

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        """Read one segment of at least one token per lane."""
        raise NotImplementedError

    def advance(self, tokens_BT: Tensor, state: State) -> State:
        """Return the state after a segment of which nothing else is needed, as of a prompt."""
        out: Output = self(tokens_BT, state)
        return out.state

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """Return the state with the selected lanes as before their first token.

        Must not use weights, which may be sharded, and must not wait for the device. Override this
        if a state does not start as zeros, or is too large to be copied.
        """
        return zero_lanes(state, lanes_B)

    def before_step(self, step: int, share: float) -> None:
        """Called before every training step, with the steps and the share of the budget so far.

        Decisions must depend only on these and on what a checkpoint holds.
        """

    def after_step(self) -> None:
        """Called after every optimizer step, e.g. to clamp what must stay in range."""

    @property
    def converged(self) -> bool:
        """Whether training may end before its budget is spent."""
        return False

    def telemetry(self) -> dict[str, float]:
        """Return numbers worth plotting, e.g. the span of each head."""
        return {}

    def attention_weights(self, tokens_BT: Tensor, state: State) -> dict[int, Tensor]:
        """Return the weights (B, H, T, S) with which layers attend, oldest position first.

        By the place of the layer; only of layers that can show them. For inference, without
        gradients, and not with a static state.
        """
        return {}

    def learned_windows(self) -> dict[int, list[float]]:
        """Return how far back each head sees, in positions, where layers have learned that.

        By the place of the layer, as in `attention_weights`.
        """
        return {}

    def collapse(self) -> None:
        """Remove, in place, what only training needs; the outputs stay the same."""

    def compile_parts(self) -> None:
        """Compile, in place, the parts that gain from `torch.compile`."""

    def has_unused_parameters(self) -> bool:
        """Return whether some weights may get no gradient in a step, which DDP must know."""
        return False

    def shard_parts(self) -> list[nn.Module]:
        """Return the modules that `--shard` wraps one by one.

        Each must be used only by calling it, and must share no weight with the rest.
        """
        return []

    def refresh(self) -> None:
        """Read from the device what `flops_per_token` and `state_numbers` depend on.

        That is learned spans and the blocks a super-net prefers. `initial_state` and `forward`
        do so as well.
        """

    def flops_per_token(self) -> float:
        """Floating-point operations of matrix products in one forward pass, memory full.

        Reads nothing from the device and changes nothing: see `refresh`.
        """
        raise NotImplementedError

    def memory_length(self) -> int:
        """Positions after which every memory is full, and a step costs as much as it ever will.

        Reads nothing from the device: see `refresh`.
        """
        return 0

    def state_numbers(self, *, inference: bool = False) -> int:
        """Numbers carried per lane once every memory is full: see `initial_state`, `refresh`."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return next(self.parameters()).device

    def parameter_groups(self) -> list[ParameterGroup]:
        """Return every trainable parameter in exactly one group."""
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


class Autocasting(Protocol):
    """Hardware with a precision of its own."""

    def autocast(self) -> AbstractContextManager[None]:
        """Compute in that precision."""
        ...


@contextmanager
def eval_mode(model: LanguageModel, hardware: Autocasting) -> Iterator[None]:
    """Switch off dropout and gradients, set the precision, and restore the mode afterwards.

    Cheap enough to be entered for every token: a model that is in this mode already is left alone,
    and keeps what it has computed from its weights.
    """
    training = model.training
    if training:
        model.eval()
    try:
        # Not inference_mode: a table that the model caches in here must be usable in training.
        with torch.no_grad(), hardware.autocast():
            yield
    finally:
        if training:
            model.train()
