"""Optimizers, built from settings and saved as plain tensors."""

from sparing.training.optim.adagrad import Adagrad
from sparing.training.optim.averaging import Averaging, Lookahead
from sparing.training.optim.build import OptimConfig, build_optimizer, freeze_others
from sparing.training.optim.clip import clip_
from sparing.training.optim.lamb import Lamb
from sparing.training.optim.muon import Muon
from sparing.training.optim.state import OptimizerSet

__all__ = [
    "Adagrad",
    "Averaging",
    "Lamb",
    "Lookahead",
    "Muon",
    "OptimConfig",
    "OptimizerSet",
    "build_optimizer",
    "clip_",
    "freeze_others",
]
