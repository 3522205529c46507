"""Recipes of the multiplicative LSTM (arXiv:1609.07959)."""

from sparing.data.tokens import DataConfig
from sparing.models.mlstm import MLSTMConfig
from sparing.runs.config import EvaluateConfig, RunConfig
from sparing.training.config import TrainConfig
from sparing.training.optim import OptimConfig
from sparing.training.schedule import ScheduleConfig

DECAY = 108_000 / 180_000
"""The rate would reach zero here, as a share of the run; it stays at its floor before that."""
FLOOR = 7e-5 / 1e-3


def enwik8_mlstm() -> RunConfig[MLSTMConfig]:
    """Multiplicative LSTM of 2800 units on enwik8, the settings of its author's code.

    Published: 1.24 test bits per byte in 40 epochs, 46M parameters (arXiv:1609.07959); about a
    week on a GTX 1080 Ti.
    """
    return RunConfig(
        recipe="enwik8_mlstm",
        family="mlstm",
        model=MLSTMConfig(vocab_size=205),
        data=DataConfig(corpus="enwik8", vocab="symbols"),
        train=TrainConfig(batch=100, segment=200, epochs=40, checkpoint_every=1000, log_every=50),
        optim=OptimConfig(name="adam", lr=1e-3),
        schedule=ScheduleConfig(shape="linear", floor=FLOOR, end=DECAY * (1 - FLOOR)),
        evaluate=EvaluateConfig(batch=10, segment=1000),
    )


RECIPES = (enwik8_mlstm,)
