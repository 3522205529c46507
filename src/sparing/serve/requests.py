"""What can be asked of an engine, what it delivers, why it refuses. Axes: H heads, S positions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sparing.generate.sampling import SamplingConfig
from sparing.generate.text import Finish

Ids = npt.NDArray[np.int64]
Reason = Literal["refused", "timeout", "error", "unavailable"]


class FullQueueError(Exception):
    """No place is left in the queue; later there will be one."""


class ClosedError(Exception):
    """The engine takes no more requests."""


class BrokenError(Exception):
    """The engine does not work, and perhaps will not before a restart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateRequest:
    """Continue a prompt."""

    ids: Ids
    """The prompt; a text's start token is put before it."""
    text: bytes
    """The prompt as bytes."""
    length: int
    """Most tokens to write; 0 only reads the prompt."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    stop: tuple[str, ...] = ()
    top: int | None = None
    """Most probable tokens to report beside each token; None reports no probabilities at all."""
    echo: bool = False
    """Whether the answer begins with the prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRequest:
    """Score every token of a text, from its beginning."""

    ids: Ids
    top: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionRequest:
    """Attention weights at the last token of a text."""

    ids: Ids


Request = GenerateRequest | ScoreRequest | AttentionRequest


class TokenScore(NamedTuple):
    """A token, its log-probability in nats, and the most probable tokens in its place."""

    token: bytes
    logprob: float
    top: list[tuple[bytes, float]]
    offset: int
    """Characters of the answer's text before the one that it begins or continues."""


class Piece(NamedTuple):
    """Text that is final, and the tokens it consists of where they were asked for."""

    text: str
    scores: list[TokenScore]
    finish: Finish | None
    """Set in the last piece of a text."""
    tokens: int
    """Tokens written so far."""


class ScoreResult(NamedTuple):
    """The tokens of a text."""

    scores: list[TokenScore]


class AttentionResult(NamedTuple):
    """Weights (H, S) of each layer, oldest position first; learned windows where there are any."""

    weights: dict[int, npt.NDArray[np.float32]]
    windows: dict[int, list[float]]


class Failed(NamedTuple):
    """The request came to nothing, or to no more than was delivered before."""

    reason: Reason
    message: str


Event = Piece | ScoreResult | AttentionResult | Failed
Deliver = Callable[[Event], Any]


def is_last(event: Event) -> bool:
    """Whether nothing follows this event."""
    return not isinstance(event, Piece) or event.finish is not None
