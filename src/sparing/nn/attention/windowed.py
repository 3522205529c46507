"""The residual block of attention whose heads learn how far back to look.

Axes: B batch, T segment, M memory, H heads, K head width, D dim; 2: key and value.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from sparing.nn.attention.window_heads import WindowedAttention
from sparing.nn.block import Block, BlockConfig, BufferedBlock, ResidualConfig, Role
from sparing.nn.checks import check_at_least, check_counts
from sparing.nn.kv_buffer import KVBuffer, count_on_host, lazy_zeros
from sparing.nn.precision import compute_dtype
from sparing.nn.ring import empty_head_rings, is_static, ring_length
from sparing.nn.rotary import PERIOD
from sparing.nn.size import SizeLimit, scale_width
from sparing.nn.state import State, forget_lanes, zero_lanes

GRAIN = 256
"""Memories are cut to multiples of this, so that their length seldom changes."""


class WindowedAttentionBlock(BufferedBlock):
    """Heads with learned spans over keys and values carried from earlier segments.

    Keys are projected once, with the weights of their time: in training they are a few updates old.
    """

    growing: ClassVar[tuple[str, ...]] = ("entries",)

    def __init__(  # noqa: PLR0913  all but three are keyword-only
        self,
        dim: int,
        heads: int,
        head_dim: int,
        *,
        limit: int,
        starts: Sequence[float],
        ramp: int = 32,
        span_penalty: float = 0.0,
        dropout: float = 0.0,
        gated: bool = False,
        key_shift: bool = False,
        rotary_fraction: float = 1.0,
        rounds: int = 1,
    ) -> None:
        """`starts` are the initial spans in positions, assigned to the heads in turn;
        `rotary_fraction` is the share of a head's channels that are rotated by position.

        A block that is used in several `rounds` per segment writes as many memories.
        """
        super().__init__()
        if limit < 1 or not starts or not all(0 <= start <= limit for start in starts):
            raise ValueError(f"spans must start between 0 and the limit {limit}, not at {starts}")
        self.dim, self.limit, self.span_penalty = dim, limit, span_penalty
        self.attend = WindowedAttention(
            dim,
            heads,
            head_dim,
            ramp=ramp,
            dropout=dropout,
            gated=gated,
            key_shift=key_shift,
            rotary_fraction=rotary_fraction,
        )
        first = [math.log1p(starts[head % len(starts)]) for head in range(heads)]
        # As a logarithm, so that a step moves a long span as much as a short one, in proportion.
        self.log_span = nn.Parameter(torch.tensor(first, dtype=torch.float32))
        self.buffer = KVBuffer(rounds)
        self.set_spans(first)

    def spans(self) -> Tensor:
        """Return the span of every head in positions (H,), with gradient."""
        within_H = self.log_span.clamp(0.0, math.log1p(self.limit))
        return torch.expm1(self.log_span + (within_H - self.log_span).detach())

    def set_spans(self, logarithms: Sequence[float]) -> None:
        """Store the spans on the host, where they decide how much memory is kept."""
        self.known = [min(max(math.expm1(log), 0.0), self.limit) for log in logarithms]
        self.window = math.ceil((max(self.known) + self.attend.ramp) / GRAIN) * GRAIN

    def initial_state(self, batch: int, like: Tensor, *, inference: bool = False) -> State:
        """Return space for one window, all of it marked as empty."""
        shape, narrow = (self.attend.heads, self.attend.head_dim), compute_dtype(like)
        state = {
            "entries": lazy_zeros(like.new_empty(0, dtype=narrow), (batch, self.window, 2, *shape)),
            "seen": torch.zeros(batch, dtype=torch.int64, device=like.device),
        }
        if self.attend.key_shift:
            state["key"] = like.new_zeros(batch, *shape, dtype=narrow)
        return state

    def static_state(self, batch: int, like: Tensor, *, chunk: int) -> State:
        """See `Block`. Every head has a ring as long as its own window."""
        attend, narrow = self.attend, like.new_empty(0, dtype=compute_dtype(like))
        slots = [ring_length(math.ceil(span + attend.ramp), chunk) for span in self.known]
        state = empty_head_rings(slots, attend.head_dim, batch, narrow)
        if attend.key_shift:
            state["key"] = narrow.new_zeros(batch, attend.heads, attend.head_dim)
        return state

    def compute(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """See `BufferedBlock`."""
        delta_BTD, fresh = self.attend(hidden_BTD, state, self.spans())
        return delta_BTD, fresh

    @torch.no_grad()
    def compute_skip(self, hidden_BTD: Tensor, state: State) -> State:
        """See `BufferedBlock`. Entries are projected, but nothing attends to them yet."""
        return self.attend.project(hidden_BTD, state)[1]

    def advance(self, hidden_BTD: Tensor, state: State) -> State:
        """See `Block`. What is carried does not depend on what the heads see."""
        return (
            super().advance(hidden_BTD, state)
            if is_static(state)
            else self.skip_step(hidden_BTD, state)
        )

    def commit(self, state: State, fresh: State) -> State:
        """See `BufferedBlock`. As many entries are kept as the longest window reaches."""
        if is_static(state):
            return fresh
        entries = self.buffer.append(
            state["entries"], fresh["fresh"], self.window, count_on_host(state["seen"])
        )
        rest = {name: tensor for name, tensor in fresh.items() if name != "fresh"}
        return {"entries": entries, **rest}

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """Mark the selected lanes' entries as missing; nothing is written to them."""
        reset = forget_lanes(state, lanes_B)
        if self.attend.key_shift:
            reset |= zero_lanes({"key": state["key"]}, lanes_B)
        return reset

    def penalty(self, zero: Tensor) -> Tensor:
        """Return the mean span times the penalty per position."""
        return self.span_penalty * self.spans().mean() if self.span_penalty else zero

    @torch.no_grad()
    def after_step(self) -> None:
        """Clamp the spans to their limit."""
        self.log_span.clamp_(0, math.log1p(self.limit))

    def telemetry(self) -> dict[str, float]:
        """Return the window of every head: its span and the ramp."""
        return {f"span.{head}": window for head, window in enumerate(self.learned_windows())}

    def learned_windows(self) -> list[float]:
        """See `Block`; the ramp included."""
        return [span + self.attend.ramp for span in self.spans().detach().tolist()]

    @torch.no_grad()
    def attention_weights(self, hidden_BTD: Tensor, state: State) -> Tensor:
        """See `Block`."""
        weights_BHTS, first_B = self.attend.weights(hidden_BTD, state, self.spans())
        # The memory is as long as it will ever be from the beginning on, most of it empty.
        return weights_BHTS[..., int(first_B.min()) :]

    def compile_parts(self) -> None:
        """Compile everything except `commit`."""
        self.attend.compile()

    def flops_per_token(self) -> float:
        """Count projections, and two products with the keys that each head sees."""
        matrices = sum(p.numel() for p in self.attend.parameters() if p.ndim == 2)
        seen = sum(span + self.attend.ramp / 2 for span in self.known)
        return 2.0 * (matrices + 2 * seen * self.attend.head_dim)

    def memory_length(self) -> int:
        """See `Block`. One window, the longest of all heads."""
        return self.window

    def state_numbers(self, *, inference: bool = False) -> int:
        """Keys and values of one window, the last key with `key_shift`, and `seen`."""
        vectors = self.window * 2 + self.attend.key_shift
        return vectors * self.attend.heads * self.attend.head_dim + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowedAttentionConfig(BlockConfig):
    """Settings of attention whose heads learn their spans."""

    letter: ClassVar[str] = "a"
    title: ClassVar[str] = "adaptive-span attention"
    role: ClassVar[Role] = "attention"

    heads: int = 8
    """Number of heads."""
    head_dim: int = 64
    """Width of a head."""
    span_limit: int = 8192
    """Longest span that a head can learn, in positions."""
    span_starts: tuple[float, ...] = (32, 64, 128, 256, 512, 1024, 1536, 2048)
    """Initial spans, assigned to the heads in turn and cut to the limit."""
    span_penalty: float = 0.0
    """Nats per token added to the loss for each position of the mean span."""
    ramp: int = 32
    """Positions over which a window fades out."""
    gated: bool = False
    """Scale the output of every head by a gate that reads the stream."""
    key_shift: bool = False
    """Pair each value with the key of the position before it: a query that matches a position reads
    what came next there."""
    rotary_fraction: float = 1.0
    """Fraction of a head's channels that are rotated by position; the others compare content only,
    at any distance. At 0, a head tells near from far by its window alone."""

    def __post_init__(self) -> None:
        check_counts(heads=self.heads)
        check_at_least(1, head_dim=self.head_dim, ramp=self.ramp, span_limit=self.span_limit)
        check_at_least(0, span_penalty=self.span_penalty)
        if not self.span_starts or not all(start >= 0 for start in self.span_starts):
            raise ValueError(f"span_starts must be one or more, from 0 on, not {self.span_starts}")
        if not 0 <= self.rotary_fraction <= 1:
            raise ValueError(f"rotary_fraction must be between 0 and 1, not {self.rotary_fraction}")
        if self.span_limit + self.ramp >= PERIOD:
            raise ValueError(f"span_limit {self.span_limit} must stay below {PERIOD - self.ramp}")

    def build(self, residual: ResidualConfig) -> Block:
        """See `BlockConfig`."""
        return WindowedAttentionBlock(
            residual.dim,
            self.heads,
            self.head_dim,
            limit=self.span_limit,
            starts=[min(start, self.span_limit) for start in self.span_starts],
            ramp=self.ramp,
            span_penalty=self.span_penalty,
            dropout=residual.dropout,
            gated=self.gated,
            key_shift=self.key_shift,
            rotary_fraction=self.rotary_fraction,
            rounds=residual.rounds,
        )

    def smaller(self, scale: Fraction, limit: SizeLimit) -> Self:
        """See `BlockConfig`."""
        head_dim = scale_width(self.head_dim, scale)
        return replace(self, head_dim=head_dim, span_limit=min(self.span_limit, limit.memory))
