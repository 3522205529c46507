"""From settings to optimizers: which parameter is moved by what, and how fast."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from sparing.models.api import LanguageModel
from sparing.train.distributed.dtensor import is_dtensor
from sparing.train.optim.adagrad import Adagrad
from sparing.train.optim.averaging import Averaging
from sparing.train.optim.config import OptimConfig
from sparing.train.optim.lamb import Lamb
from sparing.train.optim.lookahead import Lookahead
from sparing.train.optim.muon import Muon
from sparing.train.optim.state import OptimizerSet

MUON_SHARE = 0.15
"""Beside Muon, AdamW moves tables and vectors at this share of the matrices' rate."""

STATE_KEYS: dict[type[Optimizer], tuple[str, ...]] = {
    Adagrad: ("sum",),
    Lamb: ("exp_avg", "exp_avg_sq"),
    Adam: ("step", "exp_avg", "exp_avg_sq"),
    AdamW: ("step", "exp_avg", "exp_avg_sq"),
    SGD: ("momentum_buffer",),
    Muon: ("momentum_buffer",),
}


def build_optimizer(model: LanguageModel, config: OptimConfig) -> OptimizerSet:
    """Optimizers for every trainable parameter of `model`, which is on its device already."""
    matrices: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for group in _groups(model, config):
        by_muon = config.name == "muon" and group["role"] == "matrix"
        (matrices if by_muon else others).append(group)
    optimizers: list[Optimizer] = []
    if matrices:
        optimizers.append(Muon(matrices, momentum=_momentum(config)))
    if others:
        optimizers.append(_plain(others, config, model.device))
    for optimizer in optimizers:
        _seed_state(optimizer)
    if config.lookahead:
        optimizers = [Lookahead(optimizer) for optimizer in optimizers]
    return OptimizerSet(optimizers, config, _averaging(model, config))


def _averaging(model: LanguageModel, config: OptimConfig) -> Averaging | None:
    if config.name not in ("asgd", "ntasgd"):
        return None
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return Averaging(trainable, config.patience if config.name == "ntasgd" else 0)


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
    customary = 0.95 if config.name == "muon" else 0.0
    return customary if config.momentum is None else config.momentum


def _plain(groups: list[dict[str, Any]], config: OptimConfig, device: torch.device) -> Optimizer:
    """One optimizer for all groups, in its quickest form on this device."""
    eps = config.eps if config.eps is not None else 1e-6 if config.name == "lamb" else 1e-8
    if config.name == "lamb":
        return Lamb(groups, betas=config.betas, eps=eps, min_trust=config.min_trust)
    if config.name == "adagrad":
        return Adagrad(groups, tensor_clip=config.tensor_clip)
    fused = device.type in ("cpu", "cuda")
    if config.name in ("sgd", "asgd", "ntasgd"):
        # Torch has no fused form of it for tensors of which a part is here.
        fused = fused and not is_dtensor(groups[0]["params"][0][1])
        return SGD(groups, momentum=_momentum(config), fused=fused, foreach=not fused)
    kind = Adam if config.name == "adam" else AdamW
    return kind(groups, betas=config.betas, eps=eps, fused=fused, foreach=not fused)


def _seed_state(optimizer: Optimizer) -> None:
    """Make the state now that torch would make at the first step, so that it can be loaded."""
    keys = STATE_KEYS[type(optimizer)]
    for group in optimizer.param_groups:
        if isinstance(optimizer, SGD) and not group["momentum"]:
            continue
        for p in group["params"]:
            optimizer.state[p] = {key: _blank(key, p, group) for key in keys}


def _blank(key: str, p: Tensor, group: dict[str, Any]) -> Tensor:
    if key == "step":
        return torch.zeros((), device=p.device if group["fused"] else "cpu")
    return torch.zeros_like(p)
