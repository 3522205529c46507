"""Optimizers, built from settings and saved as plain tensors."""

from sparing.train.optim.adagrad import Adagrad
from sparing.train.optim.averaging import Averaging, Lookahead
from sparing.train.optim.build import OptimConfig, build_optimizer
from sparing.train.optim.clip import clip_
from sparing.train.optim.lamb import Lamb
from sparing.train.optim.muon import Muon
from sparing.train.optim.state import OptimizerSet

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
]
