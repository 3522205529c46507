"""Batches of contiguous lanes over one long text; a cursor is all that is needed to resume.

Axes: B lanes, T segment.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparing.data.shuffle import ShuffledOrder, shuffle_chunks
from sparing.data.tokens import Split
from sparing.errors import UserError
from sparing.units import IGNORE_INDEX, pluralize

SHORTEST = 5
"""Minimum of the randomised lengths."""


class Cursor(NamedTuple):
    """A position in a stream."""

    epoch: int = 0
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which is not needed here
    """Segments read in this epoch."""
    position: int = 0
    """Targets read per lane in this epoch."""


class Segment(NamedTuple):
    """The text of one step."""

    inputs_BT: Tensor
    targets_BT: Tensor
    count: int  # type: ignore[assignment]  # hides tuple.count
    """Targets that are not ignored, including those of other processes."""
    fresh: bool
    """Whether an epoch starts here, so the model's state must be reset."""
    cursor: Cursor
    """Position of the stream after this segment."""
    length: int
    """Targets in the longest lane that are not ignored."""
    begins_B: npt.NDArray[np.bool_] | None = None
    """Which lanes, those of other processes included, begin a chunk that is read with a fresh
    state; None if none does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamConfig:
    """How a text is cut into lanes and segments."""

    batch: int
    """Lanes read side by side."""
    segment: int
    """Tokens per lane and step; approximately, if lengths are randomised."""
    randomised: bool = False
    """Draw the length of each segment as SHA-RNN does: close to `segment`, or sometimes close to
    half of it."""
    length_std: float = 5.0
    """Standard deviation of the randomised lengths."""
    halved: float = 0.05
    """Share of the randomised lengths that are close to half the segment."""
    longest: int | None = None
    """Maximum of the randomised lengths; None: `segment`."""
    seed: int = 0
    """Seed of the randomised lengths and of the epoch offsets."""
    random_epoch_offset: bool = False
    """Start every epoch but the first at a random place and wrap around at the end of the text, so
    that lanes and segments are cut at other places each time."""
    shuffle_chunk: int | None = None
    """Tokens of the chunks that are read in another order in every epoch; None: the text's."""
    shuffle_reset: bool = False
    """Read every chunk with a fresh state."""
    pad_last: bool = False
    """Give the last segment of an epoch its full length, because another length would need another
    compilation. The extra tokens are inputs, but their targets are ignored."""

    def order(self, epoch: int) -> dict[str, int]:
        """The settings by name that decide in which order an epoch is read; none: the text's."""
        names = ["shuffle_chunk", "segment"] if self.shuffle_chunk else []
        names += ["random_epoch_offset"] if self.random_epoch_offset and epoch else []
        return {name: getattr(self, name) for name in (*names, *(["seed"] if names else []))}


class Stream:
    """The text in `batch` contiguous lanes of (almost) equal length, segment by segment.

    Every token of the split is a target exactly once; the first one is predicted from
    `split.start`. `lanes` are the lanes of this process; all processes draw the same lengths.
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
        """Targets in all lanes, including those of other processes."""
        _check_size(self.tokens_per_epoch, config)
        if cursor.position >= self._longest:
            raise UserError(
                f"the checkpoint is at position {cursor.position:,}, but its lanes have "
                f"{pluralize(self._longest, 'token')}; was the run made with another corpus or "
                "batch?"
            )
        lanes = range(config.batch) if lanes is None else lanes
        edges = np.arange(config.batch + 1, dtype=np.int64) * self.tokens_per_epoch // config.batch
        self._edges = edges
        self._order: tuple[int, ShuffledOrder] | None = None
        self._begins_B = edges[:-1][list(lanes)]
        self._lengths = np.diff(edges)
        self._lengths_B = self._lengths[list(lanes)]

    @property
    def _longest(self) -> int:
        return -(-self.tokens_per_epoch // self.config.batch)

    def segments(self) -> Iterator[Segment]:
        """Yield segments from the cursor on, epoch after epoch without end; for training."""
        needed = self.config.batch * self.config.segment
        if self.tokens_per_epoch < needed:
            raise UserError(
                f"the text has {pluralize(self.tokens_per_epoch, 'token')}, fewer than batch x "
                "segment = "
                f"{self.config.batch} x {self.config.segment} = {needed:,}; lower one of them"
            )
        return self._walk(self.cursor)

    def one_epoch(self) -> Iterator[Segment]:
        """Yield one pass from the start; for evaluation. The text may be shorter than a segment."""
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
        drawn = self._draw_length(cursor)
        length = min(drawn, self._longest - cursor.position)
        end = cursor.position + length
        read = self._window if self.config.shuffle_chunk is None else self._shuffled
        inputs_BT, targets_BT = read(cursor, drawn if self.config.pad_last else length)
        left_B1 = torch.from_numpy(self._lengths_B - cursor.position)[:, None]
        targets_BT[torch.arange(targets_BT.size(1)) >= left_B1] = IGNORE_INDEX
        after = Cursor(cursor.epoch, cursor.index + 1, end)
        return Segment(
            inputs_BT=inputs_BT,
            targets_BT=targets_BT,
            count=int(np.clip(self._lengths - cursor.position, 0, length).sum()),
            fresh=cursor.position == 0,
            cursor=Cursor(cursor.epoch + 1) if end == self._longest else after,
            length=length,
            begins_B=self._beginning_lanes(cursor),
        )

    def _window(self, cursor: Cursor, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a segment in the order of the text.

        A padded lane continues with the text of the next lane, the last one with the first's.
        """
        ids = np.asarray(self.split.ids)
        window_BT = np.empty((self._begins_B.size, length + 1), np.int64)
        begins_B = self._begins_B + (cursor.position + self._epoch_offset(cursor.epoch))
        for lane, begin in enumerate((begins_B % self.tokens_per_epoch).tolist()):
            window_BT[lane, 0] = ids[begin - 1] if begin else self.split.start
            found = ids[begin : begin + length]
            window_BT[lane, 1 : 1 + found.size] = found
            # Not np.resize, which would copy the whole text first.
            window_BT[lane, 1 + found.size :] = ids[np.arange(length - found.size) % ids.size]
        both_BT = torch.from_numpy(window_BT)
        # Copied even for a single lane: ignoring a target must not change the inputs.
        targets_BT = both_BT[:, 1:].clone(memory_format=torch.contiguous_format)
        return both_BT[:, :-1].contiguous(), targets_BT

    def _shuffled(self, cursor: Cursor, length: int) -> tuple[Tensor, Tensor]:
        """The same in shuffled chunks; the first input of a chunk is the token before it.

        Where a chunk is read with a fresh state, the training puts the start token there.
        """
        ids, size = np.asarray(self.split.ids), self.tokens_per_epoch
        order_BT = self._begins_B[:, None] + (cursor.position + np.arange(length, dtype=np.int64))
        text_BT = self._shuffled_order(cursor.epoch).to_text(order_BT % size)
        text_BT = (text_BT + self._epoch_offset(cursor.epoch)) % size
        inputs_BT = np.where(text_BT == 0, self.split.start, ids[text_BT - 1]).astype(np.int64)
        return torch.from_numpy(inputs_BT), torch.from_numpy(ids[text_BT].astype(np.int64))

    def _shuffled_order(self, epoch: int) -> ShuffledOrder:
        """Return the order of an epoch, which follows from seed and epoch alone."""
        config = self.config
        if self._order is None or self._order[0] != epoch:
            chunk = config.shuffle_chunk or self.tokens_per_epoch
            drawn = shuffle_chunks(self._edges, chunk, config.segment, (config.seed, epoch))
            self._order = epoch, drawn
        return self._order[1]

    def _beginning_lanes(self, cursor: Cursor) -> npt.NDArray[np.bool_] | None:
        if self.config.shuffle_chunk is None or not self.config.shuffle_reset:
            return None
        if not cursor.position:
            return np.ones(self.config.batch, np.bool_)
        begins = self._shuffled_order(cursor.epoch).begins
        found = np.isin(self._edges[:-1] + cursor.position, begins, assume_unique=True)
        return found if found.any() else None

    def _epoch_offset(self, epoch: int) -> int:
        """Token at which this epoch starts."""
        if not self.config.random_epoch_offset or epoch == 0:
            return 0
        random = np.random.default_rng((self.config.seed, epoch))
        return int(random.integers(self.tokens_per_epoch))

    def _draw_length(self, cursor: Cursor) -> int:
        if not self.config.randomised:
            return self.config.segment
        random = np.random.default_rng((self.config.seed, cursor.epoch, cursor.index))
        return int(_draw_lengths(random, self.config, 1)[0])


def _draw_lengths(
    random: np.random.Generator, config: StreamConfig, count: int
) -> npt.NDArray[np.int64]:
    """Draw lengths as AWD-LSTM and SHA-RNN do: close to the segment or, rarely, to half of it."""
    base = np.where(random.random(count) < 1 - config.halved, config.segment, config.segment / 2)
    drawn = random.normal(base, config.length_std).astype(np.int64)
    return np.minimum(config.longest or config.segment, np.maximum(SHORTEST, drawn))


def _check_size(tokens: int, config: StreamConfig) -> None:
    if config.batch < 1 or config.segment < 1:
        raise UserError(
            f"batch and segment must be at least 1, not {config.batch} and {config.segment}"
        )
    if tokens < config.batch:
        raise UserError(
            f"the text has {pluralize(tokens, 'token')}, too few for a batch of {config.batch} "
            "lanes; lower the batch"
        )


def prefetch(segments: Iterator[Segment], device: torch.device) -> Iterator[Segment]:
    """Copy the next segment to the GPU while the current one is used; on a CPU, do nothing."""
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
    # From pinned memory the copy is asynchronous; the allocator keeps that memory until it is done.
    return segment._replace(
        inputs_BT=segment.inputs_BT.pin_memory().to(device, non_blocking=True),
        targets_BT=segment.targets_BT.pin_memory().to(device, non_blocking=True),
    )
