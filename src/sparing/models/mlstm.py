"""Multiplicative LSTM: the recurrent matrix depends on the input (arXiv:1609.07959).

Axes: B batch, T segment, D hidden_dim.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparing.models.api import LanguageModel, Output, State
from sparing.nn.checks import check_at_least, check_rates
from sparing.nn.dropout import LockedDropout, dropout_mask
from sparing.nn.head import SoftmaxHead
from sparing.nn.linear import Matrix
from sparing.nn.precision import compute_dtype
from sparing.nn.size import SizeLimit, scale_width
from sparing.ops.mlstm import MLSTMInputs, mlstm


@dataclass(frozen=True, kw_only=True, slots=True)
class MLSTMConfig:
    """Settings of the family; the defaults are the enwik8 model."""

    vocab_size: int
    """Symbols the model reads and predicts."""
    dim: int = 400
    """Width of the embedding."""
    hidden_dim: int = 2800
    """Width of the one recurrent layer."""
    dropout_input: float = 0.5
    """Locked dropout on the embedding."""
    dropout_hidden: float = 0.2
    """Locked dropout on the hidden vectors, both as output and as fed back."""
    normed: bool = True
    """Weight normalisation of the layer's four matrices; folded into them when deployed."""
    forget_bias: float = 3.0
    """Initial bias of the forget gate."""

    def __post_init__(self) -> None:
        check_at_least(1, vocab_size=self.vocab_size, dim=self.dim, hidden_dim=self.hidden_dim)
        check_rates(dropout_input=self.dropout_input, dropout_hidden=self.dropout_hidden)
        if not math.isfinite(self.forget_bias):
            raise ValueError("forget_bias must be finite")

    def smaller(self, limit: SizeLimit) -> Self:
        """See `ModelConfig`."""
        scale = limit.scale(self.hidden_dim)
        return replace(
            self,
            vocab_size=min(self.vocab_size, limit.vocab_size),
            dim=scale_width(self.dim, scale),
            hidden_dim=scale_width(self.hidden_dim, scale),
        )


class MLSTMLayer(nn.Module):
    """Projections of all inputs at once, then the recurrence."""

    def __init__(self, c: MLSTMConfig) -> None:
        super().__init__()
        self.dropout = c.dropout_hidden
        self.input_factor = Matrix(c.hidden_dim, c.dim, normed=c.normed)
        self.hidden_factor = Matrix(c.hidden_dim, c.hidden_dim, normed=c.normed)
        self.input_gates = Matrix(4 * c.hidden_dim, c.dim, normed=c.normed, blocks=4)
        self.hidden_gates = Matrix(4 * c.hidden_dim, c.hidden_dim, normed=c.normed, blocks=4)
        self.bias = nn.Parameter(torch.zeros(4 * c.hidden_dim))
        with torch.no_grad():
            self.bias[c.hidden_dim : 2 * c.hidden_dim] = c.forget_bias

    def forward(
        self, x_BTE: Tensor, hidden_BD: Tensor, cell_BD: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return hidden vectors (B, T, D), and the state after them."""
        dtype = compute_dtype(x_BTE)
        mask_BD = torch.ones_like(cell_BD)
        if self.training and self.dropout:
            mask_BD = dropout_mask(mask_BD, self.dropout)
        hidden_BTD, cell_BD = mlstm(
            MLSTMInputs(
                F.linear(x_BTE, self.input_factor()),
                F.linear(x_BTE, self.input_gates(), self.bias),
                self.hidden_factor().to(dtype),
                self.hidden_gates().to(dtype),
                hidden_BD,
                cell_BD,
                mask_BD,
            )
        )
        return hidden_BTD, (hidden_BTD[:, -1], cell_BD)


class MLSTM(LanguageModel):
    """One multiplicative LSTM layer between an embedding and an untied softmax."""

    head: SoftmaxHead
    config: MLSTMConfig

    def __init__(self, config: MLSTMConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.dropout_input = LockedDropout(config.dropout_input)
        self.layer = MLSTMLayer(config)
        weight = nn.Parameter(torch.empty(config.vocab_size, config.hidden_dim))
        self.head = SoftmaxHead(weight)
        nn.init.uniform_(self.embedding.weight, -0.2, 0.2)
        nn.init.orthogonal_(weight)

    def initial_state(self, batch: int, *, inference: bool = False) -> State:
        """Return zero vectors."""
        zeros = self.head.weight.detach().new_zeros(batch, self.config.hidden_dim)
        return {"hidden": zeros, "cell": zeros.clone()}

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        """See `LanguageModel`."""
        x_BTE = self.dropout_input(self.embedding(tokens_BT))
        hidden_BTD, after = self.layer(x_BTE, state["hidden"], state["cell"])
        hidden_BD, cell_BD = (tensor.detach() for tensor in after)
        penalty = hidden_BTD.new_zeros(())
        return Output(hidden_BTD, {"hidden": hidden_BD, "cell": cell_BD}, penalty)

    def collapse(self) -> None:
        """Fold the gains into the matrices."""
        for module in self.modules():
            if isinstance(module, Matrix):
                module.collapse()
        self.config = replace(self.config, normed=False)

    def flops_per_token(self) -> float:
        """Count two per multiply-add of layer and softmax."""
        layer = sum(p.numel() for p in self.layer.parameters() if p.ndim == 2)
        return 2.0 * (layer + self.head.weight.numel())

    def state_numbers(self, *, inference: bool = False) -> int:
        """Hidden vector and cell."""
        return 2 * self.config.hidden_dim
