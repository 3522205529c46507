"""Settings of SHA-RNN; the defaults follow the public code (arXiv:1911.11423).

Where the paper's figures differ from the code, there is a setting for each difference.
"""

from dataclasses import dataclass, replace
from typing import Literal, Self

from sparing.nn.attention.single_head import GateKind
from sparing.nn.checks import check_at_least, check_counts, check_rates
from sparing.nn.feedforward import Gelu
from sparing.nn.recurrent import CoreKind
from sparing.nn.size import SizeLimit, scale_width


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
