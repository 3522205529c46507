"""The settings of the optimizer."""

from dataclasses import dataclass
from typing import Literal

from sparing.errors import UserError

OptimizerName = Literal["lamb", "adam", "adamw", "sgd", "asgd", "ntasgd", "muon", "adagrad"]
LARGEST = 1e30
"""Of every rate and weight: not far beyond it 32 bits have no number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """How the weights are moved."""

    name: OptimizerName = "adamw"
    """`muon` moves matrices by Muon, everything else by AdamW. `asgd` is `sgd` judged by the mean
    of its weights since the first step, `ntasgd` since valid loss has stopped falling."""
    lr: float = 1e-3
    """Learning rate, before the schedule; with `muon` that of the matrices."""
    table_lr: float | None = None
    """Learning rate of embedding and head. None: `lr`; with `muon` 0.15 of it."""
    vector_lr: float | None = None
    """Learning rate of biases, gains and other vectors. None: as for `table_lr`."""
    architecture_lr: float | None = None
    """Learning rate of a super-net's preferences among blocks. None: as for `vector_lr`."""
    architecture_decay: float = 0.0
    """Weight decay of those preferences."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the two running averages of LAMB and Adam."""
    eps: float | None = None
    """Added to the root of the second average. None: 1e-6 for `lamb`, 1e-8 otherwise."""
    weight_decay: float = 0.0
    """Decoupled in `adamw` and `muon`, part of the step in `lamb`, of the gradient otherwise."""
    decay_vectors: bool = True
    """Whether weight decay acts on biases, gains and other vectors too, as in the SHA-RNN seed."""
    momentum: float | None = None
    """Of `sgd`, `asgd`, `ntasgd` and `muon`. None: 0, for `muon` 0.95 (Nesterov)."""
    patience: int = 5
    """`ntasgd` only: averaging begins when a valid loss is above the least of all before it, the
    latest `patience` left out."""
    min_trust: float = 0.25
    """`lamb` only: the least trust ratio; 0 means no floor."""
    clip: float = 0.0
    """Gradients are scaled down to this norm, all together; 0 means never."""
    tensor_clip: float = 0.0
    """`adagrad` only: a tensor's step is shortened as if its gradient had this norm; 0: never."""
    lookahead: bool = False
    """Whether slow weights follow the fast ones, every fifth step by 0.8 of the way."""

    def __post_init__(self) -> None:
        for field in (
            "lr",
            "table_lr",
            "vector_lr",
            "architecture_lr",
            "architecture_decay",
            "eps",
            "weight_decay",
            "min_trust",
            "clip",
            "tensor_clip",
        ):
            value = getattr(self, field)
            if value is not None and not 0 <= value <= LARGEST:
                raise UserError(f"optim: {field} must be from 0 to {LARGEST:g}, not {value}")
        if self.patience < 1:
            raise UserError(f"optim: patience must be at least 1, not {self.patience}")
        for field, values in (("betas", self.betas), ("momentum", (self.momentum or 0.0,))):
            if not all(0 <= value < 1 for value in values):
                raise UserError(f"optim: {field} must be at least 0 and below 1, not {values}")
