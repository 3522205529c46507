"""SHA-RNN: LSTM blocks, single-headed attention over a long memory, Boom (arXiv:1911.11423).

Axes: B batch, T segment, M memory, S = M + T keys, D dim. The defaults are what the public code
computes; where the paper's figures differ, the difference is a named setting.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from sparing.models.api import LanguageModel, Output, State
from sparing.nn.attention.single_head import GateKind, SingleHeadAttention
from sparing.nn.block import TypedModuleList
from sparing.nn.checks import check_counts
from sparing.nn.dropout import Dropout
from sparing.nn.feedforward import Boom, Gelu
from sparing.nn.head import SoftmaxHead
from sparing.nn.kv_buffer import append, newest
from sparing.nn.precision import compute_dtype
from sparing.nn.recurrent import CORES, CoreKind
from sparing.nn.size import SizeLimit, scale_width
from sparing.nn.state import counted, emptied, owned, part, zeroed


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
    """Blocks, counted from 0, that attend to memory; none at all is allowed."""
    memory: int = 5000
    """Positions a segment may attend to, its own included (all of them where it is longer than
    this); 0 switches attention off."""
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
        least = {"vocab_size": 1, "dim": 1, "depth": 1, "boom_dim": 1, "memory": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"{name} must be at least {bound}, not {getattr(self, name)}")
        if any(not 0 <= layer < self.depth for layer in self.attention_at):
            raise ValueError(f"attention_at {self.attention_at} needs blocks below {self.depth}")
        if self.boom_dim % self.dim:
            raise ValueError(f"boom_dim {self.boom_dim} must be a multiple of dim {self.dim}")
        for rate in (self.dropout_input, self.dropout_hidden, self.dropout_output):
            if not 0 <= rate < 1:
                raise ValueError(f"a dropout rate must be at least 0 and below 1, not {rate}")

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


class Attend(nn.Module):
    """The attention half of a block: two norms of one vector, and the head."""

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
        """The stream after attention, and `memory` followed by this segment's own entries."""
        normed_BTD = self.norm_query(hidden_BTD)
        skip_BTD = normed_BTD if self.skip == "normed" else hidden_BTD
        if self.memory == 0:
            return skip_BTD, memory_BMD
        stored_BSD = self.extend(hidden_BTD, memory_BMD)
        source_BTD, keys_BSD = self._inputs(hidden_BTD, normed_BTD, stored_BSD)
        mixed_BTD = self.attention(source_BTD, keys_BSD, stored_BSD, seen_B)
        return skip_BTD + self.dropout(mixed_BTD), stored_BSD

    def extend(self, hidden_BTD: Tensor, memory_BMD: Tensor) -> Tensor:
        """Memory followed by this segment's own entries."""
        fresh_BTD = self.norm_memory(hidden_BTD) if self.wiring == "code" else hidden_BTD
        # Keys and values enter matrix products only, so storing them in the products' own
        # precision changes nothing and halves the memory.
        return append(memory_BMD, fresh_BTD.to(compute_dtype(fresh_BTD)))

    def newest(self, stored_BSD: Tensor, coming: int = 0) -> Tensor:
        """The newest entries that fit the window beside `coming` ones; none if nothing fits."""
        return newest(stored_BSD, self.memory - coming)

    def focus(self, hidden_BTD: Tensor, memory_BMD: Tensor) -> Tensor:
        """Attention weights (B, T, S) of this segment."""
        stored_BSD = self.extend(hidden_BTD, self.newest(memory_BMD, hidden_BTD.size(1)))
        inputs = self._inputs(hidden_BTD, self.norm_query(hidden_BTD), stored_BSD)
        return self.attention.focus(*inputs)

    def _inputs(
        self, hidden_BTD: Tensor, normed_BTD: Tensor, stored_BSD: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self.wiring == "code":
            return normed_BTD, stored_BSD
        return hidden_BTD, self.norm_memory(stored_BSD).to(stored_BSD.dtype)


class Expand(nn.Module):
    """The Boom half of a block."""

    def __init__(self, c: SHARNNConfig) -> None:
        super().__init__()
        self.skip = c.skip
        self.norm_input = _norm(c.dim)
        self.norm_skip = _norm(c.dim) if c.boom_norm == "twin" and c.skip == "normed" else None
        self.boom = Boom(c.dim, c.boom_dim, dropout=c.dropout_hidden, form=c.gelu, bias=c.bias)
        self.dropout = Dropout(c.dropout_hidden)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Shape is kept."""
        normed_BTD = self.norm_input(hidden_BTD)
        skip_BTD = normed_BTD if self.skip == "normed" else hidden_BTD
        if self.norm_skip is not None:
            skip_BTD = self.norm_skip(hidden_BTD)
        out_BTD: Tensor = skip_BTD + self.dropout(self.boom(normed_BTD))
        return out_BTD


class Block(nn.Module):
    """Norm, recurrent layer, attention where this block has it, Boom."""

    def __init__(self, c: SHARNNConfig, *, attends: bool) -> None:
        super().__init__()
        self.residual = c.residual
        self.norm = _norm(c.dim)
        self.core = CORES[c.core](c.dim)
        self.dropout = Dropout(c.dropout_hidden)
        self.attend = Attend(c) if attends else None
        self.expand = Expand(c)

    def recur(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """The recurrent half."""
        before = tuple(state[name] for name in self.core.state_names)
        y_BTD, after = self.core(self.norm(hidden_BTD), before)
        dropped_BTD = self.dropout(y_BTD)
        y_BTD = hidden_BTD + dropped_BTD if self.residual else dropped_BTD
        return y_BTD, dict(zip(self.core.state_names, (x.detach() for x in after), strict=True))

    def forward(self, hidden_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """`state` holds this block's tensors only."""
        hidden_BTD, carried = self.recur(hidden_BTD, state)
        if self.attend is not None:
            memory_BMD = self.attend.newest(state["memory"], coming=hidden_BTD.size(1))
            hidden_BTD, stored_BSD = self.attend(hidden_BTD, memory_BMD, state.get("seen"))
            carried["memory"] = self.attend.newest(stored_BSD).detach()
            carried |= counted(state, hidden_BTD.size(1))
        return self.expand(hidden_BTD), carried

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """Zero vectors, and a memory of which nothing exists, in the chosen lanes."""
        vectors = {name: state[name] for name in self.core.state_names}
        memory = {name: tensor for name, tensor in state.items() if name not in vectors}
        return zeroed(vectors, lanes_B) | (emptied(memory, lanes_B) if memory else {})


class SHARNN(LanguageModel):
    """Single Headed Attention RNN."""

    head: SoftmaxHead

    def __init__(self, config: SHARNNConfig) -> None:
        super().__init__()
        c = self.config = config
        self.embedding = nn.Embedding(c.vocab_size, c.dim)
        self.blocks = TypedModuleList(
            Block(c, attends=layer in c.attention_at) for layer in range(c.depth)
        )
        self.head = SoftmaxHead.tied(self.embedding, bias=c.bias)
        self.dropout_input = Dropout(c.dropout_input)
        self.dropout_output = Dropout(c.dropout_output)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small normal matrices and embedding, zero biases; norms and LSTMs keep torch's defaults.

        The seed's hook never reaches the norms, so their gains start at 1.
        """
        std = 0.1 / math.sqrt(self.config.dim)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def initial_state(self, batch: int) -> State:
        """Zero hidden vectors and empty memories."""
        c, state = self.config, State()
        for layer, block in enumerate(self.blocks):
            for name in block.core.state_names:
                state[f"blocks.{layer}.{name}"] = self.head.weight.new_zeros(batch, c.dim)
            if block.attend is not None:
                state[f"blocks.{layer}.memory"] = self.head.weight.new_zeros(batch, 0, c.dim)
        return {name: tensor.detach() for name, tensor in state.items()}

    def reset_lanes(self, state: State, lanes_B: Tensor) -> State:
        """See `LanguageModel`. Every block knows how its own begins."""
        begun = State()
        for layer, block in enumerate(self.blocks):
            own = block.reset_lanes(part(state, f"blocks.{layer}"), lanes_B)
            begun |= owned(own, f"blocks.{layer}")
        return begun

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        """See `LanguageModel`. State is cut from the graph: gradients stay inside the segment."""
        hidden_BTD, carried = self.dropout_input(self.embedding(tokens_BT)), State()
        for layer, block in enumerate(self.blocks):
            hidden_BTD, after = block(hidden_BTD, part(state, f"blocks.{layer}"))
            carried |= owned(after, f"blocks.{layer}")
        hidden_BTD = self.dropout_output(hidden_BTD)
        return Output(hidden_BTD, carried, hidden_BTD.new_zeros(()))

    @torch.no_grad()
    def focus(self, tokens_BT: Tensor, state: State) -> dict[int, Tensor]:
        """Attention weights (B, T, S) of every attending block for one segment."""
        hidden_BTD, weights = self.embedding(tokens_BT), {}
        for layer, block in enumerate(self.blocks):
            own = part(state, f"blocks.{layer}")
            if block.attend is not None and block.attend.memory > 0:
                weights[layer] = block.attend.focus(block.recur(hidden_BTD, own)[0], own["memory"])
            hidden_BTD, _ = block(hidden_BTD, own)
        return weights

    def collapse(self) -> None:
        """Fold the over-parameterised value gates into vectors."""
        for block in self.blocks:
            if block.attend is not None:
                block.attend.attention.collapse()
        self.config = replace(self.config, gate="vector")

    def compile_parts(self) -> None:
        """Everything but the recurrent layers; dynamo does not enter cuDNN's."""
        for module in self.modules():
            if isinstance(module, Attend | Expand):
                module.compile(dynamic=True)

    def idle(self) -> bool:
        """Without memory, what attention has is not used."""
        return self.config.memory == 0

    def shard_parts(self) -> list[nn.Module]:
        """The blocks."""
        return list(self.blocks)

    def flops_per_token(self) -> float:
        """Two per multiply-add of recurrent layers, Boom, attention and softmax."""
        c = self.config
        cores = [block.core for block in self.blocks]
        recurrent = sum(p.numel() for core in cores for p in core.parameters() if p.ndim == 2)
        boom = c.depth * c.dim * c.boom_dim
        attending = len(c.attention_at) if c.memory else 0
        attention = attending * (c.dim**2 + 2 * c.memory * c.dim)
        return 2.0 * (recurrent + boom + attention + c.vocab_size * c.dim)

    def state_numbers(self) -> int:
        """Recurrent vectors and full memories."""
        c = self.config
        vectors = sum(len(block.core.state_names) for block in self.blocks)
        return c.dim * (vectors + len(c.attention_at) * c.memory)

    def telemetry(self) -> dict[str, float]:
        """Size of each value gate: how much of its memory a block lets through."""
        return {
            f"value_gate.{layer}": float(block.attend.attention.value_gate().detach().abs().mean())
            for layer, block in enumerate(self.blocks)
            if block.attend is not None
        }


def _norm(dim: int) -> nn.LayerNorm:
    return nn.LayerNorm(dim, eps=1e-12)
