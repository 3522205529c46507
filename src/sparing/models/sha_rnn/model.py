"""SHA-RNN: LSTM blocks, single-headed attention over a long memory, Boom (arXiv:1911.11423).

Axes: B batch, T segment, S memory and segment, D dim.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from sparing.models.api import LanguageModel, Output, State
from sparing.models.sha_rnn.block import SHARNNAttention, SHARNNBlock, SHARNNBoom
from sparing.models.sha_rnn.config import SHARNNConfig
from sparing.nn.block import TypedModuleList
from sparing.nn.dropout import Dropout
from sparing.nn.head import SoftmaxHead
from sparing.nn.state import join_states, split_state


class SHARNN(LanguageModel):
    """Single Headed Attention RNN."""

    head: SoftmaxHead
    config: SHARNNConfig

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
    def attention_weights(self, tokens_BT: Tensor, state: State) -> dict[int, Tensor]:
        """See `LanguageModel`; of one head (B, 1, T, S) in every attending block."""
        hidden_BTD, weights = self.embedding(tokens_BT), {}
        before = split_state(state, self.config.depth)
        for layer, (block, own) in enumerate(zip(self.blocks, before, strict=True)):
            if block.attend is not None and block.attend.memory > 0:
                recurred_BTD, _ = block.recur(hidden_BTD, own)
                weights[layer] = block.attend.weights(recurred_BTD, own)[:, None]
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

    def memory_length(self) -> int:
        """See `LanguageModel`."""
        return self.config.memory if self.config.attention_at else 0

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
