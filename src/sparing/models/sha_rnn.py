"""SHA-RNN: LSTM blocks, single-headed attention over a long memory, Boom (arXiv:1911.11423).

Axes: B batch, T segment, M memory, S = M + T keys, D dim. The defaults follow the public code;
where the paper's figures differ from it, there is a setting for each difference.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Self

import torch
from torch import Tensor, nn

from sparing.models.api import LanguageModel, Output, State
from sparing.nn.attention.memory import empty_memory, trim_memory
from sparing.nn.attention.single_head import GateKind, SingleHeadAttention
from sparing.nn.block import TypedModuleList
from sparing.nn.checks import check_at_least, check_counts, check_rates
from sparing.nn.dropout import Dropout
from sparing.nn.feedforward import Boom, Gelu
from sparing.nn.head import SoftmaxHead
from sparing.nn.kv_buffer import append, newest
from sparing.nn.precision import compute_dtype
from sparing.nn.recurrent import CORES, CoreKind
from sparing.nn.ring import RING, empty_ring, is_static, ring_length, write_and_mask
from sparing.nn.size import SizeLimit, scale_width
from sparing.nn.state import forget_lanes, join_states, split_state, zero_lanes

_norm = partial(nn.LayerNorm, eps=1e-12)


@dataclass(frozen=True, kw_only=True, slots=True)
class SHARNNConfig:
    """Settings of the family; the defaults are the enwik8 model with one attention layer."""

    vocab_size: int
    """Symbols the model reads and predicts."""
    dim: int = 1024
    """Width of the embedding, the recurrent layers and the attention."""
    depth: int = 4
    """Blocks."""
    boom_dim: int = 4096
    """Width inside Boom, a multiple of `dim`."""
    attention_at: tuple[int, ...] = (2,)
    """Blocks, counted from 0, that attend to memory; may be empty."""
    memory: int = 5000
    """Positions a segment may attend to, its own included; 0 switches attention off."""
    core: CoreKind = "lstm"
    """Recurrent layer of each block."""
    dropout_input: float = 0.1
    """Dropout on the embedding."""
    dropout_hidden: float = 0.1
    """Dropout inside the blocks."""
    dropout_output: float = 0.1
    """Dropout before the softmax."""
    residual: bool = False
    """Add the block's input to the recurrent layer's output (the original does not)."""
    skip: Literal["normed", "raw"] = "normed"
    """What the skip path carries: the normalised vector (original), or the raw one (pre-norm)."""
    boom_norm: Literal["twin", "single"] = "twin"
    """Separate norms for Boom's input and its skip path (code), or one for both (figure 1)."""
    wiring: Literal["code", "figure"] = "code"
    """Attention's inputs as the code has them, or as figure 1 draws them."""
    gate: GateKind = "overparam"
    """Value gate: the code's, the paper's formula, or a plain vector (what is deployed)."""
    gelu: Gelu = "sigmoid"
    """Form of GELU inside Boom."""
    bias: bool = True
    """Biases in Boom, query and softmax (the figures show none)."""

    def __post_init__(self) -> None:
        check_counts(depth=self.depth)
        check_at_least(1, vocab_size=self.vocab_size, dim=self.dim, boom_dim=self.boom_dim)
        check_at_least(0, memory=self.memory)
        check_rates(dropout_input=self.dropout_input, dropout_hidden=self.dropout_hidden)
        check_rates(dropout_output=self.dropout_output)
        if any(not 0 <= layer < self.depth for layer in self.attention_at):
            raise ValueError(f"attention_at {self.attention_at} needs blocks below {self.depth}")
        if self.boom_dim % self.dim:
            raise ValueError(f"boom_dim {self.boom_dim} must be a multiple of dim {self.dim}")

    def smaller(self, limit: SizeLimit) -> Self:
        """See `ModelConfig`."""
        scale = limit.scale(self.dim)
        return replace(
            self,
            vocab_size=min(self.vocab_size, limit.vocab_size),
            dim=scale_width(self.dim, scale),
            boom_dim=scale_width(self.boom_dim, scale),
            memory=min(self.memory, limit.memory),
        )


class SHARNNAttention(nn.Module):
    """The attention half of a block: two norms of the input, and the head."""

    def __init__(self, c: SHARNNConfig) -> None:
        super().__init__()
        self.memory, self.skip, self.wiring = c.memory, c.skip, c.wiring
        self.norm_query, self.norm_memory = _norm(c.dim), _norm(c.dim)
        rate = c.dropout_hidden
        self.attention = SingleHeadAttention(c.dim, dropout=rate, gate=c.gate, bias=c.bias)
        self.dropout = Dropout(rate)

    def forward(
        self, hidden_BTD: Tensor, memory_BMD: Tensor, seen_B: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the stream after attention, and `memory` with this segment's entries appended."""
        normed_BTD = self.norm_query(hidden_BTD)
        skip_BTD = normed_BTD if self.skip == "normed" else hidden_BTD
        if self.memory == 0:
            return skip_BTD, memory_BMD
        stored_BSD = append(memory_BMD, self._entries(hidden_BTD))
        source_BTD, keys_BSD = self._inputs(hidden_BTD, normed_BTD, stored_BSD)
        mixed_BTD = self.attention(source_BTD, keys_BSD, stored_BSD, seen_B)
        return skip_BTD + self.dropout(mixed_BTD), stored_BSD

    def read_ring(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """As `forward`, with a memory of fixed size."""
        normed_BTD, earlier = self.norm_query(hidden_BTD), self.memory - hidden_BTD.size(1)
        ring, unseen_BTR = write_and_mask(state, self._entries(hidden_BTD), max(0, earlier))
        source_BTD, keys_BRD = self._inputs(hidden_BTD, normed_BTD, ring[RING])
        mixed_BTD = self.attention(source_BTD, keys_BRD, ring[RING], hidden_BTS=unseen_BTR)
        return (normed_BTD if self.skip == "normed" else hidden_BTD) + mixed_BTD, ring

    def focus(self, hidden_BTD: Tensor, state: State) -> Tensor:
        """Return the attention weights (B, T, S) of this segment."""
        memory_BMD = newest(state["memory"], self.memory - hidden_BTD.size(1))
        stored_BSD = append(memory_BMD, self._entries(hidden_BTD))
        return self.attention.focus(
            *self._inputs(hidden_BTD, self.norm_query(hidden_BTD), stored_BSD)
        )

    def _entries(self, hidden_BTD: Tensor) -> Tensor:
        fresh_BTD = self.norm_memory(hidden_BTD) if self.wiring == "code" else hidden_BTD
        # Used in matrix products only, so storing entries in their precision changes nothing.
        return fresh_BTD.to(compute_dtype(fresh_BTD))

    def _inputs(
        self, hidden_BTD: Tensor, normed_BTD: Tensor, stored_BSD: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return what queries and keys are made from."""
        if self.wiring == "code":
            return normed_BTD, stored_BSD
        return hidden_BTD, self.norm_memory(stored_BSD).to(stored_BSD.dtype)


class SHARNNBoom(nn.Module):
    """The Boom half of a block."""

    def __init__(self, c: SHARNNConfig) -> None:
        super().__init__()
        self.skip = c.skip
        self.norm_input = _norm(c.dim)
        self.norm_skip = _norm(c.dim) if c.boom_norm == "twin" and c.skip == "normed" else None
        self.boom = Boom(c.dim, c.boom_dim, dropout=c.dropout_hidden, form=c.gelu, bias=c.bias)
        self.dropout = Dropout(c.dropout_hidden)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        normed_BTD = self.norm_input(hidden_BTD)
        skip_BTD = normed_BTD if self.skip == "normed" else hidden_BTD
        if self.norm_skip is not None:
            skip_BTD = self.norm_skip(hidden_BTD)
        out_BTD: Tensor = skip_BTD + self.dropout(self.boom(normed_BTD))
        return out_BTD


class SHARNNBlock(nn.Module):
    """Norm, recurrent layer, attention where this block has it, Boom."""

    def __init__(self, c: SHARNNConfig, *, attends: bool) -> None:
        super().__init__()
        self.residual = c.residual
        self.norm = _norm(c.dim)
        self.core = CORES[c.core](c.dim)
        self.dropout = Dropout(c.dropout_hidden)
        self.attend = SHARNNAttention(c) if attends else None
        self.expand = SHARNNBoom(c)

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Return zero vectors and an empty memory."""
        dim = like.size(-1)
        state = {name: like.new_zeros(batch, dim) for name in self.core.state_names}
        return state | (empty_memory({"memory": dim}, batch, like) if self.attend else {})

    def static_state(self, batch: int, like: Tensor, chunk: int) -> State:
        """Return zero vectors and an empty ring."""
        state = self.initial_state(batch, like)
        if self.attend is None or self.attend.memory == 0:
            return state
        vectors = {name: state[name] for name in self.core.state_names}
        return vectors | empty_ring(
            like.size(-1), ring_length(self.attend.memory, chunk), batch, like
        )

    def recur(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """Run the recurrent half."""
        before = tuple(state[name] for name in self.core.state_names)
        y_BTD, after = self.core(self.norm(hidden_BTD), before)
        dropped_BTD = self.dropout(y_BTD)
        y_BTD = hidden_BTD + dropped_BTD if self.residual else dropped_BTD
        return y_BTD, dict(zip(self.core.state_names, (x.detach() for x in after), strict=True))

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """`state` holds this block's tensors only."""
        hidden_BTD, carried = self.recur(hidden_BTD, state)
        if self.attend is not None and is_static(state):
            hidden_BTD, ring = self.attend.read_ring(hidden_BTD, state)
            carried |= ring
        elif self.attend is not None:
            # Outside the compiled part, because the length of memory changes.
            size, segment = self.attend.memory, hidden_BTD.size(1)
            memory_BMD = newest(state["memory"], size - segment)
            hidden_BTD, stored_BSD = self.attend(hidden_BTD, memory_BMD, state.get("seen"))
            carried |= trim_memory({"memory": stored_BSD}, size, state, segment)
        return self.expand(hidden_BTD), carried

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """Zero the vectors and mark the memory as empty in the selected lanes."""
        vectors = {name: state[name] for name in self.core.state_names}
        memory = {name: tensor for name, tensor in state.items() if name not in vectors}
        return zero_lanes(vectors, lanes_B) | (forget_lanes(memory, lanes_B) if memory else {})


class SHARNN(LanguageModel):
    """Single Headed Attention RNN."""

    head: SoftmaxHead

    def __init__(self, config: SHARNNConfig) -> None:
        super().__init__()
        c = self.config = config
        self.embedding = nn.Embedding(c.vocab_size, c.dim)
        self.blocks = TypedModuleList(
            SHARNNBlock(c, attends=layer in c.attention_at) for layer in range(c.depth)
        )
        self.head = SoftmaxHead.tied(self.embedding, bias=c.bias)
        self.dropout_input = Dropout(c.dropout_input)
        self.dropout_output = Dropout(c.dropout_output)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw small normal matrices, zero the biases; keep torch's LSTMs and norms (gains 1)."""
        std = 0.1 / math.sqrt(self.config.dim)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def initial_state(self, batch: int, *, inference: bool = False) -> State:
        """Return zero hidden vectors and empty memories, which hold keys and values as stored."""
        like = self.head.weight.detach()
        return join_states([block.initial_state(batch, like) for block in self.blocks])

    def static_state(self, batch: int, *, chunk: int = 1) -> State:
        """See `LanguageModel`."""
        like = self.head.weight.detach()
        return join_states([block.static_state(batch, like, chunk) for block in self.blocks])

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """See `LanguageModel`."""
        pairs = zip(self.blocks, split_state(state, self.config.depth), strict=True)
        return join_states([block.reset_lanes(own, lanes_B) for block, own in pairs])

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        """See `LanguageModel`. State is detached: gradients stay inside the segment."""
        hidden_BTD, carried = self.dropout_input(self.embedding(tokens_BT)), list[State]()
        for block, own in zip(self.blocks, split_state(state, self.config.depth), strict=True):
            hidden_BTD, after = block(hidden_BTD, own)
            carried.append(after)
        hidden_BTD = self.dropout_output(hidden_BTD)
        return Output(hidden_BTD, join_states(carried), hidden_BTD.new_zeros(()))

    @torch.no_grad()
    def focus(self, tokens_BT: Tensor, state: State) -> dict[int, Tensor]:
        """Return the attention weights (B, T, S) of every attending block for one segment."""
        hidden_BTD, weights = self.embedding(tokens_BT), {}
        before = split_state(state, self.config.depth)
        for layer, (block, own) in enumerate(zip(self.blocks, before, strict=True)):
            if block.attend is not None and block.attend.memory > 0:
                weights[layer] = block.attend.focus(block.recur(hidden_BTD, own)[0], own)
            hidden_BTD, _ = block(hidden_BTD, own)
        return weights

    def collapse(self) -> None:
        """Fold the over-parameterised value gates into vectors."""
        for block in self.blocks:
            if block.attend is not None:
                block.attend.attention.collapse()
        self.config = replace(self.config, gate="vector")

    def compile_parts(self) -> None:
        """Compile everything but the recurrent layers; dynamo does not trace into cuDNN."""
        for module in self.modules():
            if isinstance(module, SHARNNAttention | SHARNNBoom):
                module.compile(dynamic=True)

    def has_unused_parameters(self) -> bool:
        """Return whether attention is switched off, which leaves its weights unused."""
        return self.config.memory == 0

    def shard_parts(self) -> list[nn.Module]:
        """Return the blocks."""
        return list(self.blocks)

    def flops_per_token(self) -> float:
        """Count two per multiply-add of recurrent layers, Boom, attention and softmax."""
        c = self.config
        cores = [block.core for block in self.blocks]
        recurrent = sum(p.numel() for core in cores for p in core.parameters() if p.ndim == 2)
        boom = c.depth * c.dim * c.boom_dim
        attending = len(c.attention_at) if c.memory else 0
        attention = attending * (c.dim**2 + 2 * c.memory * c.dim)
        return 2.0 * (recurrent + boom + attention + c.vocab_size * c.dim)

    def state_numbers(self, *, inference: bool = False) -> int:
        """Recurrent vectors and full memories."""
        c = self.config
        vectors = sum(len(block.core.state_names) for block in self.blocks)
        return c.dim * (vectors + len(c.attention_at) * c.memory)

    def telemetry(self) -> dict[str, float]:
        """Return the mean size of each value gate."""
        return {
            f"value_gate.{layer}": float(block.attend.attention.value_gate().detach().abs().mean())
            for layer, block in enumerate(self.blocks)
            if block.attend is not None
        }
