"""Settings of the optimizers, and the optimizers built from them."""

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from sparing.errors import UserError
from sparing.models.api import LanguageModel
from sparing.training.distributed.dtensor import is_dtensor
from sparing.training.optim.adagrad import Adagrad
from sparing.training.optim.averaging import Averaging, Lookahead
from sparing.training.optim.lamb import Lamb
from sparing.training.optim.muon import Muon
from sparing.training.optim.state import DecaySchedule, OptimizerSet

OptimizerName = Literal["lamb", "adam", "adamw", "sgd", "asgd", "ntasgd", "muon", "adagrad"]
DECOUPLED = ("adamw", "muon")
"""Optimizers whose weight decay shrinks the weights, apart from the gradient."""
AVERAGING = ("asgd", "ntasgd")
"""Optimizers that are evaluated with a mean of the weights."""
LARGEST = 1e30
"""Largest rate or weight; float32 does not reach much further."""
MUON_SHARE = 0.15
"""With Muon, the learning rate of tables and vectors (AdamW) as a share of the matrices'."""

STATE_KEYS: dict[type[Optimizer], tuple[str, ...]] = {
    Adagrad: ("sum",),
    Lamb: ("exp_avg", "exp_avg_sq"),
    Adam: ("step", "exp_avg", "exp_avg_sq"),
    AdamW: ("step", "exp_avg", "exp_avg_sq"),
    SGD: ("momentum_buffer",),
    Muon: ("momentum_buffer",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """Which optimizer updates which weights, and how fast."""

    name: OptimizerName = "adamw"
    """`muon` uses Muon for matrices and AdamW for everything else. `asgd` is `sgd` evaluated with
    the mean of its weights since the first step, `ntasgd` since the valid loss stopped falling."""
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
    decay_schedule: DecaySchedule = "lr"
    """What the shrinkage per step follows: the schedule of the learning rate, or with `constant`
    none: it is `lr` x `weight_decay` in every step whose rate is not 0, also called independent
    weight decay. `constant` is for `adamw` and `muon` only."""
    decay_vectors: bool = True
    """Whether weight decay applies to biases, gains and other vectors, as in SHA-RNN's code."""
    momentum: float | None = None
    """Of `sgd`, `asgd`, `ntasgd` and `muon`. None: 0, for `muon` 0.95 (Nesterov)."""
    patience: int = 5
    """`ntasgd` only: averaging begins when a valid loss is above the best of all before the
    latest `patience` ones."""
    min_trust: float = 0.25
    """`lamb` only: smallest trust ratio; 0 means no floor."""
    clip: float = 0.0
    """Largest norm of all gradients together; 0 turns clipping off."""
    tensor_clip: float = 0.0
    """`adagrad` only: largest gradient norm of a single tensor; 0 turns it off."""
    ema_decay: tuple[float, ...] = ()
    """Decay per step of an exponential moving average of the weights, which is evaluated and saved
    as `best`; 0 turns it off. Of several averages, as with `0.99,0.9975`, and the weights
    themselves the best is saved. Not for `asgd` and `ntasgd`, which have their own mean."""
    ema_update_every: int = 1
    """Steps from one update of these averages to the next; `ema_decay` is per step all the same."""
    lookahead: bool = False
    """Whether to use Lookahead: every fifth step slow weights move 0.8 of the way."""
    trainable: tuple[str, ...] = ()
    """Names of the parameters to train, as shell patterns such as `*.init_states.*`; the others are
    frozen. If empty, all are trained."""

    def __post_init__(self) -> None:
        # An average that is turned off is none.
        object.__setattr__(self, "ema_decay", tuple(decay for decay in self.ema_decay if decay))
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
        if self.ema_update_every < 1:
            raise UserError(
                f"optim: ema_update_every must be at least 1, not {self.ema_update_every}"
            )
        if len(set(self.ema_decay)) < len(self.ema_decay):
            raise UserError(f"optim: ema_decay must be different numbers, not {self.ema_decay}")
        if self.decay_schedule == "constant" and self.name not in DECOUPLED:
            raise UserError(
                f"optim: decay_schedule constant is for {' and '.join(DECOUPLED)}, not {self.name}"
            )
        if self.ema_decay and self.name in AVERAGING:
            raise UserError(f"optim: {self.name} averages the weights already; set ema_decay to 0")
        shares = {"momentum": (self.momentum or 0.0,), "ema_decay": self.ema_decay}
        for field, values in {"betas": self.betas, **shares}.items():
            if not all(0 <= value < 1 for value in values):
                raise UserError(f"optim: {field} must be at least 0 and below 1, not {values}")


def _nearest(pattern: str, names: Iterable[str]) -> list[str]:
    return get_close_matches(pattern, names, n=2, cutoff=0)


def freeze_others(model: LanguageModel, patterns: Sequence[str]) -> None:
    """Freeze every parameter whose name matches none of `patterns`; without any, freeze none."""
    named = dict(model.named_parameters())
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in named):
            raise UserError(
                f"optim.trainable: no parameter is named {pattern}; `sparing info RUN "
                f"--parameters` lists all, such as {' and '.join(_nearest(pattern, named))}"
            )
    for name, parameter in named.items() if patterns else ():
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)


def build_optimizer(model: LanguageModel, config: OptimConfig) -> OptimizerSet:
    """Optimizers for every trainable parameter of `model`, which must be on its device."""
    matrices: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for group in _groups(model, config):
        with_muon = config.name == "muon" and group["role"] == "matrix"
        (matrices if with_muon else others).append(group)
    optimizers: list[Optimizer] = []
    if matrices:
        optimizers.append(Muon(matrices, momentum=_momentum(config)))
    if others:
        optimizers.append(_single_optimizer(others, config, model.device))
    for optimizer in optimizers:
        _init_state(optimizer)
    if config.lookahead:
        optimizers = [Lookahead(optimizer) for optimizer in optimizers]
    return OptimizerSet(optimizers, _averaging(model, config), config.decay_schedule)


def _averaging(model: LanguageModel, config: OptimConfig) -> Averaging | None:
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if config.name in AVERAGING:
        return Averaging(trainable, config.patience if config.name == "ntasgd" else 0)
    if config.ema_decay:
        return Averaging(trainable, decays=config.ema_decay, every=config.ema_update_every)
    return None


def _groups(model: LanguageModel, config: OptimConfig) -> list[dict[str, Any]]:
    groups = []
    for group in model.parameter_groups():
        trainable = [(name, p) for name, p in group.named if p.requires_grad]
        settings = {
            "params": trainable,
            "role": group.role,
            "blocks": group.blocks,
            "lr": _lr(config, group.role),
            "weight_decay": _decay(config, group.role),
        }
        groups += [settings] if trainable else []
    return groups


def _lr(config: OptimConfig, role: str) -> float:
    if role == "matrix":
        return config.lr
    own = config.table_lr if role == "table" else config.vector_lr
    if role == "architecture" and config.architecture_lr is not None:
        own = config.architecture_lr
    share = MUON_SHARE if config.name == "muon" else 1.0
    return config.lr * share if own is None else own


def _decay(config: OptimConfig, role: str) -> float:
    if role == "architecture":
        return config.architecture_decay
    return config.weight_decay if config.decay_vectors or role != "vector" else 0.0


def _momentum(config: OptimConfig) -> float:
    default = 0.95 if config.name == "muon" else 0.0
    return default if config.momentum is None else config.momentum


def _single_optimizer(
    groups: list[dict[str, Any]], config: OptimConfig, device: torch.device
) -> Optimizer:
    """One optimizer for all groups, in its fastest form on this device."""
    eps = config.eps if config.eps is not None else 1e-6 if config.name == "lamb" else 1e-8
    if config.name == "lamb":
        return Lamb(groups, betas=config.betas, eps=eps, min_trust=config.min_trust)
    if config.name == "adagrad":
        return Adagrad(groups, tensor_clip=config.tensor_clip)
    fused = device.type in ("cpu", "cuda")
    if config.name in ("sgd", "asgd", "ntasgd"):
        # Torch has no fused SGD for sharded tensors.
        fused = fused and not is_dtensor(groups[0]["params"][0][1])
        return SGD(groups, momentum=_momentum(config), fused=fused, foreach=not fused)
    kind = Adam if config.name == "adam" else AdamW
    return kind(groups, betas=config.betas, eps=eps, fused=fused, foreach=not fused)


def _init_state(optimizer: Optimizer) -> None:
    """Create the state that torch would create in the first step, so that it can be loaded."""
    keys = STATE_KEYS[type(optimizer)]
    for group in optimizer.param_groups:
        if isinstance(optimizer, SGD) and not group["momentum"]:
            continue
        for p in group["params"]:
            optimizer.state[p] = {key: _zeros(key, p, group) for key in keys}


def _zeros(key: str, p: Tensor, group: dict[str, Any]) -> Tensor:
    if key == "step":
        return torch.zeros((), device=p.device if group["fused"] else "cpu")
    return torch.zeros_like(p)
