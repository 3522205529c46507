"""Contiguous lanes over one long text; the cursor alone says where a stream stands.

Axes: B lanes, T segment.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparing.data.tokens import Split
from sparing.errors import UserError
from sparing.units import IGNORE_INDEX

SHORTEST = 5
"""Of the randomised lengths."""


class Cursor(NamedTuple):
    """A place in a stream."""

    epoch: int = 0
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    """Segments drawn in this epoch."""
    position: int = 0
    """Targets consumed per lane in this epoch."""


class Segment(NamedTuple):
    """One step's worth of text."""

    inputs_BT: Tensor
    targets_BT: Tensor
    count: int  # type: ignore[assignment]  # hides tuple.count, likewise
    """Targets that are not ignored, those of other processes included."""
    fresh: bool
    """Whether an epoch starts here, so that the model's state must be reset."""
    cursor: Cursor
    """Where the stream stands after this segment."""
    length: int
    """Targets per lane that count, in the longest lane."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamConfig:
    """How a text is cut for a model."""

    batch: int
    """Lanes read side by side."""
    segment: int
    """Tokens per lane and step; about as many where lengths are randomised."""
    randomised: bool = False
    """Draw each length as SHA-RNN does: near the segment, one in twenty near half of it."""
    length_std: float = 5.0
    """Standard deviation of the randomised lengths."""
    halved: float = 0.05
    """Share of the randomised lengths that lie near half the segment."""
    longest: int | None = None
    """The most tokens of a randomised segment; none: `segment`."""
    seed: int = 0
    """Of the randomised lengths, and of the places where epochs begin."""
    random_epoch_offset: bool = False
    """Every epoch but the first begins elsewhere in the text, which goes round: lanes and segments
    are cut at other places each time."""
    filled: bool = False
    """The last segment of an epoch is not cut short, for its length would be compiled anew; what is
    too much of it is read, but is no target."""


class Stream:
    """The text in `batch` contiguous lanes of (almost) equal length, segment by segment.

    Every token of the split is a target exactly once; the first of all is predicted from
    `split.start`. `lanes` are those of this process; all processes draw the same lengths.
    """

    def __init__(
        self,
        split: Split,
        config: StreamConfig,
        lanes: range | None = None,
        cursor: Cursor = Cursor(),  # noqa: B008  a tuple, never changed
    ) -> None:
        self.split = split
        self.config = config
        self.cursor = cursor
        self.tokens_per_epoch = int(split.ids.size)
        """Targets in all lanes, those of other processes included."""
        _refuse_small(self.tokens_per_epoch, config)
        if cursor.position >= self._longest:
            raise UserError(
                f"the stream stands at position {cursor.position:,}, but its lanes have "
                f"{self._longest:,} tokens; was the run made with another corpus or batch?"
            )
        lanes = range(config.batch) if lanes is None else lanes
        edges = np.arange(config.batch + 1, dtype=np.int64) * self.tokens_per_epoch // config.batch
        self._begins_B = edges[:-1][list(lanes)]
        self._lengths = np.diff(edges)
        self._lengths_B = self._lengths[list(lanes)]

    @property
    def _longest(self) -> int:
        return -(-self.tokens_per_epoch // self.config.batch)

    def segments(self) -> Iterator[Segment]:
        """Go on from the cursor for ever, epoch after epoch; for training."""
        needed = self.config.batch * self.config.segment
        if self.tokens_per_epoch < needed:
            raise UserError(
                f"the text has {self.tokens_per_epoch:,} tokens, fewer than batch x segment = "
                f"{self.config.batch} x {self.config.segment} = {needed:,}; lower one of them"
            )
        return self._walk(self.cursor)

    def one_epoch(self) -> Iterator[Segment]:
        """A single pass from the start; for evaluation. The text may be shorter than a segment."""
        for segment in self._walk(Cursor()):
            yield segment
            if segment.cursor.epoch:
                return

    def _walk(self, cursor: Cursor) -> Iterator[Segment]:
        while True:
            segment = self._segment(cursor)
            yield segment
            cursor = segment.cursor

    def _segment(self, cursor: Cursor) -> Segment:
        drawn = self._draw(cursor)
        length = min(drawn, self._longest - cursor.position)
        end = cursor.position + length
        window_BT = torch.from_numpy(self._window(cursor, drawn if self.config.filled else length))
        # A copy even of a single lane, whose inputs must not lose what is ignored as a target.
        targets_BT = window_BT[:, 1:].clone(memory_format=torch.contiguous_format)
        left_B1 = torch.from_numpy(self._lengths_B - cursor.position)[:, None]
        targets_BT[torch.arange(targets_BT.size(1)) >= left_B1] = IGNORE_INDEX
        after = Cursor(cursor.epoch, cursor.index + 1, end)
        return Segment(
            inputs_BT=window_BT[:, :-1].contiguous(),
            targets_BT=targets_BT,
            count=int(np.clip(self._lengths - cursor.position, 0, length).sum()),
            fresh=cursor.position == 0,
            cursor=Cursor(cursor.epoch + 1) if end == self._longest else after,
            length=length,
        )

    def _window(self, cursor: Cursor, length: int) -> npt.NDArray[np.int64]:
        """Per lane the tokens of a segment and the one before them.

        A lane that is filled up reads on in the next one's text, the last in that of the first.
        """
        ids = np.asarray(self.split.ids)
        window_BT = np.empty((self._begins_B.size, length + 1), np.int64)
        begins_B = self._begins_B + (cursor.position + self._turn(cursor.epoch))
        for lane, begin in enumerate((begins_B % self.tokens_per_epoch).tolist()):
            window_BT[lane, 0] = ids[begin - 1] if begin else self.split.start
            found = ids[begin : begin + length]
            window_BT[lane, 1 : 1 + found.size] = found
            window_BT[lane, 1 + found.size :] = np.resize(ids, length - found.size)
        return window_BT

    def _turn(self, epoch: int) -> int:
        """By how many tokens this epoch's text begins later."""
        if not self.config.random_epoch_offset or epoch == 0:
            return 0
        random = np.random.default_rng((self.config.seed, epoch))
        return int(random.integers(self.tokens_per_epoch))

    def _draw(self, cursor: Cursor) -> int:
        if not self.config.randomised:
            return self.config.segment
        random = np.random.default_rng((self.config.seed, cursor.epoch, cursor.index))
        return int(_lengths(random, self.config, 1)[0])


def _lengths(
    random: np.random.Generator, config: StreamConfig, count: int
) -> npt.NDArray[np.int64]:
    """Lengths of AWD-LSTM and SHA-RNN: about the segment, or (rarely) about half of it."""
    base = np.where(random.random(count) < 1 - config.halved, config.segment, config.segment / 2)
    drawn = random.normal(base, config.length_std).astype(np.int64)
    return np.minimum(config.longest or config.segment, np.maximum(SHORTEST, drawn))


def _refuse_small(tokens: int, config: StreamConfig) -> None:
    if config.batch < 1 or config.segment < 1:
        raise UserError(
            f"batch and segment must be at least 1, not {config.batch} and {config.segment}"
        )
    if tokens < config.batch:
        raise UserError(
            f"the text has {tokens:,} tokens, too few for a batch of {config.batch} lanes; "
            "lower the batch"
        )


def prefetch(segments: Iterator[Segment], device: torch.device) -> Iterator[Segment]:
    """Keep one segment ahead on its way to a GPU; on a CPU, pass them through."""
    if device.type != "cuda":
        yield from segments
        return
    ahead: Segment | None = None
    for segment in segments:
        ready, ahead = ahead, _copy(segment, device)
        if ready is not None:
            yield ready
    if ahead is not None:
        yield ahead


def _copy(segment: Segment, device: torch.device) -> Segment:
    # From pinned memory the copy does not stop the host; the allocator keeps that memory until
    # the copy is done.
    return segment._replace(
        inputs_BT=segment.inputs_BT.pin_memory().to(device, non_blocking=True),
        targets_BT=segment.targets_BT.pin_memory().to(device, non_blocking=True),
    )
