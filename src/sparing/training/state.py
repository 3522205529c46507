"""The state of a training: counters, loss scale, the objects a step changes, and callbacks."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from sparing.data.stream import Cursor, Stream
from sparing.device import Hardware
from sparing.documents import Count, Figure
from sparing.host_copy import AsyncHostCopy
from sparing.models.api import LanguageModel, State
from sparing.training.background import BackgroundWriter
from sparing.training.checkpoint import Checkpoint
from sparing.training.distributed.world import World
from sparing.training.journal import Journal
from sparing.training.optim import OptimizerSet
from sparing.training.progress import ProgressBar
from sparing.training.stopping import Pace

SCALE_PATIENCE = 2000
"""Good steps before the loss scale is doubled again."""


@dataclass(slots=True)
class Counters:
    """The plain numbers of a training, as stored in a checkpoint's `cursor.json`."""

    step: Count = 0
    tokens: Count = 0
    elapsed_s: float = 0.0
    best_nats: Figure | None = None
    """Best validation loss per token so far."""
    pending_nats: Figure = 0.0
    """Loss of the `pending_tokens` read since the last journal entry."""
    pending_tokens: Count = 0
    logged_s: float = 0.0
    """`elapsed_s` of the last journal entry."""
    validated_step: int = -1
    """Step of the last validation; -1 before the first."""
    validated_on: list[Any] = field(default_factory=list)
    """Bytes, protocol and method of the last validation; only equal ones can be compared."""
    bad_steps: Count = 0
    """Consecutive steps whose loss or gradients were not finite."""
    rollbacks: Count = 0
    """Rollbacks since the last checkpoint that was reached by good steps."""
    no_progress: bool = False
    """Whether there has been no good step since the last rollback."""
    journal_bytes: Count = 0
    """Length of the journal when the checkpoint was written."""
    pass_step: Count = 0
    """Step at which the current pass began; its schedule counts from here."""
    pass_share: float | None = 0.0
    """Share of the budget used at that step; None until the first step of the pass."""
    micro_batches: int = 1
    """Micro-batches that a single process needs to fit into memory. A resumed run starts with this
    number: running out of memory again would draw extra random numbers."""
    spent_s: dict[str, Figure] = field(default_factory=dict)
    """Where the time went: `start` before the first step, `steps`, `validation`, `checkpoints`."""
    cursor: Cursor = field(default_factory=Cursor)
    """Position in the training text."""

    @contextmanager
    def spending(self, what: str) -> Iterator[None]:
        """Count the time of a block of code as spent on `what`."""
        began = time.perf_counter()
        yield
        self.spend(what, time.perf_counter() - began)

    def spend(self, what: str, elapsed_s: float) -> None:
        """Count time as spent on `what`."""
        self.spent_s[what] = self.spent_s.get(what, 0.0) + elapsed_s


@dataclass(slots=True)
class LossScale:
    """The factor on the loss that keeps small float16 gradients alive; 1 in other precisions."""

    value: float = 1.0
    good_steps: int = 0
    active: bool = False

    @classmethod
    def for_precision(cls, precision: str) -> "LossScale":
        """Start at 2^16 for float16, as is customary."""
        return cls(65536.0, 0, True) if precision == "float16" else cls()

    def after_step(self, *, finite: bool) -> None:
        """Halve the scale if the last gradients overflowed; double it after many good steps."""
        if not self.active:
            return
        if not finite:
            self.value, self.good_steps = self.value / 2, 0
        elif self.good_steps + 1 >= SCALE_PATIENCE:
            self.value, self.good_steps = self.value * 2, 0
        else:
            self.good_steps += 1

    @property
    def exhausted(self) -> bool:
        """Whether an overflow now is caused by the model rather than by the scale."""
        return not self.active or self.value < 1


@dataclass(kw_only=True, slots=True)
class Training:
    """A model in training: everything that changes from step to step."""

    model: LanguageModel
    loss: nn.Module
    """`SegmentLoss` of the model, wrapped by `world` so that backward sums the gradients of all
    processes."""
    optimizer: OptimizerSet
    stream: Stream
    hardware: Hardware
    state: State
    """The state carried into the next segment."""
    world: World = field(default_factory=World)
    scale: LossScale = field(default_factory=LossScale)
    clip: float = 0.0
    """Largest norm of the gradients; 0 turns clipping off."""
    bytes_per_token: float = 1.0
    head_start_s: float = 0.0
    """Time this process spent before training; it counts against a time budget."""
    launched: bool = False
    """Whether a launcher such as torchrun started this process."""
    exit_on_second_interrupt: bool = False
    """Whether a second Ctrl-C ends the process at once, instead of raising KeyboardInterrupt."""
    counters: Counters = field(default_factory=Counters)
    pace: Pace | None = None
    """What a budget in minutes is counted by, in place of the clock."""
    until: float = 1.0
    """Share of the budget after which this training stops; schedules are of the whole."""
    saved_step: int | None = None
    """Step of the checkpoint `last`; None before the first."""
    saved_whole: bool = True
    """Whether it holds optimizer and carried state."""
    unchecked_norms: list[AsyncHostCopy] = field(default_factory=list)
    """Gradient norms of updates that `check_gradients` has not looked at yet."""

    def fresh_state(self, batch: int) -> State:
        """The model's state before the first token of `batch` lanes."""
        return initial_state(self.model, self.loss, self.hardware, self.world, batch)


def initial_state(
    model: LanguageModel, loss: nn.Module, hardware: Hardware, world: World, batch: int
) -> State:
    """The state before the first token of `batch` lanes, built from the full weights."""
    with world.full_params(loss), hardware.autocast():
        return model.initial_state(batch)


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What the training loop calls to log, show progress, save, load and validate."""

    journal: Journal
    bar: ProgressBar
    save: Callable[[str, Checkpoint], None]
    update_checkpoint: Callable[[str, Checkpoint], None]
    """Like `save`, but keeps the files of the existing checkpoint that the new one lacks."""
    load: Callable[[str], Checkpoint | None]
    """Waits for a save that is under way."""
    validate: Callable[[LanguageModel], dict[str, Any]]
    """Loss on the valid split; returns at least `nats_per_token` and `bits_per_byte`."""
    writer: BackgroundWriter | None = None
    """What `save` leaves the writing to; None if it writes itself."""

    def check_saved(self) -> None:
        """Raise what a save in the background has failed with."""
        if self.writer is not None:
            self.writer.check()

    def finish_saving(self) -> None:
        """Wait until everything is written."""
        if self.writer is not None:
            self.writer.wait()

    def close(self) -> None:
        """Leave nothing half-written behind an error."""
        self.bar.close()
        # Before what can fail.
        if self.writer is not None:
            self.writer.join()
        self.journal.close()
