"""AWD-LSTM and AWD-QRNN: plain recurrent stacks with strong regularisation (arXiv:1708.02182).

Axes: B batch, T segment, D dim (the width of embedding and output).
"""

from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from sparing.models.api import LanguageModel, Output, State
from sparing.nn.adaptive_softmax import AdaptiveEmbedding, AdaptiveHead, clusters, shortlist
from sparing.nn.block import TypedModuleList
from sparing.nn.checks import check_at_least, check_counts, check_rates
from sparing.nn.dropout import LockedDropout, RowDropout
from sparing.nn.head import SoftmaxHead
from sparing.nn.recurrent import LSTMCore, QRNNCore
from sparing.nn.size import SizeLimit, scale_width

RATES = (
    "dropout_embedding",
    "dropout_input",
    "dropout_hidden",
    "dropout_output",
    "weight_drop",
    "zoneout",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class AWDLSTMConfig:
    """Settings of the family; the defaults are the WikiText-2 model."""

    vocab_size: int
    """Symbols the model reads and predicts."""
    dim: int = 400
    """Width of the embedding, and of the last layer where the two are tied."""
    hidden_dim: int = 1150
    """Width of the other layers."""
    depth: int = 3
    """Recurrent layers."""
    core: Literal["lstm", "qrnn"] = "lstm"
    """Kind of the layers; the first of a QRNN sees two inputs at a time, the others one."""
    tied: bool = True
    """Whether the softmax uses the embedding's matrix."""
    cutoffs: tuple[int, ...] = ()
    """Where words, most frequent first, are cut into clusters; none: one plain softmax."""
    dropout_embedding: float = 0.1
    """Share of words dropped from a segment."""
    dropout_input: float = 0.65
    """Locked dropout on the embedded words."""
    dropout_hidden: float = 0.2
    """Locked dropout between layers."""
    dropout_output: float = 0.4
    """Locked dropout before the softmax."""
    weight_drop: float = 0.5
    """Share of hidden-to-hidden weights dropped for a segment; all weights of a QRNN layer."""
    zoneout: float = 0.0
    """QRNN only: share of cells that keep their value."""
    activation_penalty: float = 2.0
    """AR: this times the mean square of the dropped output is added to the loss."""
    change_penalty: float = 1.0
    """TAR: this times the mean square of the change of the output from position to position."""

    def __post_init__(self) -> None:
        check_counts(depth=self.depth)
        check_at_least(1, vocab_size=self.vocab_size, dim=self.dim, hidden_dim=self.hidden_dim)
        check_rates(**{name: getattr(self, name) for name in RATES})
        check_at_least(0, activation_penalty=self.activation_penalty)
        check_at_least(0, change_penalty=self.change_penalty)
        if self.zoneout and self.core != "qrnn":
            raise ValueError("zoneout is for core=qrnn")
        if self.cutoffs and not self.tied:
            raise ValueError("cutoffs need a tied softmax")
        clusters(self.vocab_size, self.cutoffs)

    def smaller(self, limit: SizeLimit) -> Self:
        """See `ModelConfig`."""
        scale = limit.scale(self.hidden_dim)
        return replace(
            self,
            vocab_size=min(self.vocab_size, limit.vocab_size),
            dim=scale_width(self.dim, scale),
            hidden_dim=scale_width(self.hidden_dim, scale),
            cutoffs=limit.cut(self.cutoffs),
        )

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of the input and of every layer's output."""
        last = self.dim if self.tied else self.hidden_dim
        return (self.dim, *(self.hidden_dim,) * (self.depth - 1), last)


class AWDLSTM(LanguageModel):
    """ASGD weight-dropped LSTM; the averaging is done by the optimizer."""

    head: SoftmaxHead | AdaptiveHead
    config: AWDLSTMConfig

    def __init__(self, config: AWDLSTMConfig) -> None:
        super().__init__()
        c = self.config = config
        self.embedding, self.head = _ends(c)
        self.layers = TypedModuleList(_layer(c, layer) for layer in range(c.depth))
        self.dropout_embedding = RowDropout(c.vocab_size, c.dropout_embedding)
        self.dropout_input = LockedDropout(c.dropout_input)
        self.dropout_hidden = LockedDropout(c.dropout_hidden)
        self.dropout_output = LockedDropout(c.dropout_output)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw uniform tables, zero the clusters' symbols; layers keep torch's defaults."""
        for table in dict.fromkeys([*self.embedding.parameters(), *self.head.parameters()]):
            if table.ndim == 2:
                nn.init.uniform_(table, -0.1, 0.1)
        if isinstance(self.head, AdaptiveHead) and self.head.symbols is not None:
            nn.init.zeros_(self.head.symbols.weight)
            nn.init.zeros_(self.head.symbols.bias)

    def initial_state(self, batch: int, *, inference: bool = False) -> State:
        """Return zero vectors."""
        like = next(self.parameters()).detach()
        return {
            f"layers.{layer}.{name}": like.new_zeros(batch, dim)
            for layer, core in enumerate(self.layers)
            for name, dim in zip(core.state_names, core.state_dims, strict=True)
        }

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        """See `LanguageModel`. The carried state is taken before dropout."""
        hidden_BTD = self.dropout_embedding(self.embedding(tokens_BT), tokens_BT)
        hidden_BTD, carried = self.dropout_input(hidden_BTD), State()
        for layer, core in enumerate(self.layers):
            if layer:
                hidden_BTD = self.dropout_hidden(hidden_BTD)
            names = [f"layers.{layer}.{name}" for name in core.state_names]
            hidden_BTD, after = core(hidden_BTD, tuple(state[name] for name in names))
            carried |= dict(zip(names, (tensor.detach() for tensor in after), strict=True))
        dropped_BTD = self.dropout_output(hidden_BTD)
        return Output(dropped_BTD, carried, self.penalty(hidden_BTD, dropped_BTD))

    def penalty(self, hidden_BTD: Tensor, dropped_BTD: Tensor) -> Tensor:
        """Return AR on the output after dropout plus TAR on it before; zero in evaluation."""
        c, total = self.config, hidden_BTD.new_zeros((), dtype=torch.float32)
        if not self.training:
            return total
        if c.activation_penalty:
            total = total + c.activation_penalty * dropped_BTD.float().pow(2).mean()
        if c.change_penalty and hidden_BTD.size(1) > 1:
            change_BTD = hidden_BTD.float().diff(dim=1)
            total = total + c.change_penalty * change_BTD.pow(2).mean()
        return total

    def shard_parts(self) -> list[nn.Module]:
        """Return the layers."""
        return list(self.layers)

    def flops_per_token(self) -> float:
        """Count two per multiply-add of layers and softmax; rare clusters left out."""
        c = self.config
        layers = sum(p.numel() for p in self.layers.parameters() if p.ndim == 2)
        return 2.0 * (layers + c.widths[-1] * shortlist(c.vocab_size, c.cutoffs))

    def state_numbers(self, *, inference: bool = False) -> int:
        """Hidden vectors and cells, or cells and the first layer's last input."""
        return sum(sum(core.state_dims) for core in self.layers)


def _ends(
    c: AWDLSTMConfig,
) -> tuple[nn.Embedding | AdaptiveEmbedding, SoftmaxHead | AdaptiveHead]:
    if c.cutoffs:
        clustered = AdaptiveEmbedding(c.vocab_size, c.dim, cutoffs=c.cutoffs)
        return clustered, AdaptiveHead(clustered)
    embedding = nn.Embedding(c.vocab_size, c.dim)
    if c.tied:
        return embedding, SoftmaxHead.tied(embedding)
    return embedding, SoftmaxHead(nn.Parameter(torch.empty(c.vocab_size, c.hidden_dim)))


def _layer(c: AWDLSTMConfig, layer: int) -> LSTMCore | QRNNCore:
    before, after = c.widths[layer : layer + 2]
    if c.core == "lstm":
        return LSTMCore(after, before, weight_drop=c.weight_drop)
    window = 2 if layer == 0 else 1
    return QRNNCore(after, before, window=window, zoneout=c.zoneout, weight_drop=c.weight_drop)
