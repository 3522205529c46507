"""The state of a training: counters, objects that change from step to step, and callbacks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from sparing.data.stream import Cursor, Stream
from sparing.device import Hardware
from sparing.host_copy import AsyncHostCopy
from sparing.models.api import LanguageModel, State
from sparing.train.checkpoint import Checkpoint
from sparing.train.distributed.world import Loss, World
from sparing.train.journal import Journal
from sparing.train.loss_scale import LossScale
from sparing.train.optim import OptimizerSet
from sparing.train.progress import Bar


@dataclass(slots=True)
class Progress:
    """Everything about a run's position that is a plain number."""

    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0
    best_nats: float | None = None
    """Best valid loss per token so far."""
    pending_nats: float = 0.0
    """Loss of the `pending_tokens` seen since the last entry of the journal."""
    pending_tokens: int = 0
    logged_s: float = 0.0
    judged_step: int = -1
    judged_as: list[Any] = field(default_factory=list)
    """Bytes, protocol and reading of the last valid loss: others do not compare with it."""
    bad: int = 0
    """Steps in a row whose loss or gradients were not finite."""
    rollbacks: int = 0
    """How often it has gone back since the last checkpoint that sound steps led to."""
    fruitless: bool = False
    """Whether no step has been sound since the last rollback."""
    journal_bytes: int = 0
    """Length of the journal when this was written down."""
    pass_step: int = 0
    """Where the present pass began: its schedule counts from here."""
    pass_share: float = 0.0
    pieces: int = 1
    """Into how many one process had to cut its lanes, to fit into memory. Resumed it does so from
    the start: another failure would draw random numbers of its own."""
    cursor: Cursor = field(default_factory=Cursor)


@dataclass(slots=True)
class Training:
    """What changes while a run goes on."""

    model: LanguageModel
    optimizer: OptimizerSet
    stream: Stream
    hardware: Hardware
    scale: LossScale
    state: State
    clip: float = 0.0
    norm: AsyncHostCopy | None = None
    """Of the last update's gradients, as long as nobody has asked whether they were finite."""
    pieces: int = 1
    """Into how many the lanes of this process are cut, as asked for or as memory demands."""
    bytes_per_token: float = 1.0
    head_start_s: float = 0.0
    """Time this process had already spent when training began; it counts against a budget."""
    finished_s: float = 0.0
    """As `progress.elapsed_s`, when the last checkpoint was whole and judged."""
    progress: Progress = field(default_factory=Progress)
    world: World = field(default_factory=World)
    launched: bool = False
    """Whether a launcher such as torchrun looks after this process."""
    loss: nn.Module = field(default_factory=nn.Identity)
    """`distributed.Loss` of the model, wrapped so that gradients of all processes are added up;
    made here unless an optimizer had to see what wrapping does to the weights."""

    def __post_init__(self) -> None:
        if isinstance(self.loss, nn.Identity):
            self.loss = self.world.wrap(Loss(self.model))

    def fresh_state(self, batch: int) -> State:
        """The model's state before the first token of `batch` lanes."""
        with self.world.full_params(self.loss), self.hardware.autocast():
            return self.model.initial_state(batch)


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Where a run writes, and who judges it."""

    journal: Journal
    bar: Bar
    save: Callable[[str, Checkpoint], None]
    amend: Callable[[str, Checkpoint], None]
    """As `save`; what the checkpoint does not hold stays as it was."""
    load: Callable[[str], Checkpoint | None]
    judge: Callable[[LanguageModel], dict[str, Any]]
    """Loss on the valid split; holds at least `nats_per_token` and `bits_per_byte`."""
