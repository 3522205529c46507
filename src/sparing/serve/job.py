"""A request in an engine, from its arrival to its last event."""

from dataclasses import dataclass

from torch import Tensor

from sparing.serve.requests import Deliver, Event, Request, is_last
from sparing.serve.tasks import Task

PATIENCE = 2048
"""Tokens by which a prompt may be longer than another and be read before it, for each second that
it has waited longer: short prompts go first, but none waits for ever."""


@dataclass(slots=True)
class Counts:
    """What an engine has done, and is doing; read by other threads, written by its own."""

    tokens_read: int = 0
    tokens_reused: int = 0
    """Tokens of prompts that were not read because a state was kept."""
    tokens_written: int = 0
    steps: int = 0
    step_s: float = 0.0
    read_s: float = 0.0
    prompts: int = 0
    prompts_reused: int = 0
    failures: int = 0
    queued: int = 0
    lanes_busy: int = 0
    cache_bytes: int = 0


@dataclass(eq=False, slots=True)
class Job:
    """A request and where its answer goes."""

    request: Request
    deliver: Deliver
    arrived_s: float
    over: bool = False
    """Nobody waits for it any more: its lane is free from the next token on."""
    task: Task | None = None
    begun: bool = False
    last_V: Tensor | None = None
    """Logits of the next token, once the prompt is read."""
    shared: int = 0
    """Tokens after which the state is worth keeping: see `PrefixCache`."""

    @property
    def reading(self) -> bool:
        """Whether its prompt has not been read."""
        return self.last_V is None and not self.over

    @property
    def writing(self) -> bool:
        """Whether it writes a token in every step."""
        return self.last_V is not None and not self.over

    @property
    def order(self) -> float:
        """The prompt with the lowest is read next."""
        left = self.task.left if self.task is not None else 0
        return left + PATIENCE * self.arrived_s

    def release(self) -> None:
        """Let go of the model's tensors: whoever waits for the answer may hold on to the job."""
        self.task = self.last_V = None

    def send(self, event: Event) -> None:
        """Deliver an event; after the last one, the job is over."""
        if self.over:
            return
        # Set, never unset: another thread may cancel the job meanwhile.
        if is_last(event):
            self.over = True
        try:
            self.deliver(event)
        except Exception:
            # The receiver's event loop has closed.
            self.over = True
