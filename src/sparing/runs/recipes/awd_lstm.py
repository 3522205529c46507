"""Recipes of AWD-LSTM and AWD-QRNN (arXiv:1708.02182 and arXiv:1803.08240)."""

from dataclasses import replace

from sparing.data.tokens import DataConfig
from sparing.models.awd_lstm import AWDLSTMConfig
from sparing.runs.config import EvaluateConfig, RunConfig
from sparing.training.config import TrainConfig
from sparing.training.optim import OptimConfig
from sparing.training.schedule import ScheduleConfig


def wikitext2_awd_lstm() -> RunConfig[AWDLSTMConfig]:
    """AWD-LSTM on the words of WikiText-2, the settings of its public code.

    Published: 68.7 valid and 65.6 test perplexity per word in 750 epochs, 33.6M parameters; 67.4
    and 64.7 fine-tuned: `--resume --checkpoint best --set optim.name=asgd --set train.epochs=1500`;
    52.2 and 50.6 with `sparing evaluate --cache 3785 --cache-theta 0.662 --cache-lambda 0.1279`.
    """
    return RunConfig(
        recipe="wikitext2_awd_lstm",
        family="awd_lstm",
        model=AWDLSTMConfig(vocab_size=33_278),
        data=DataConfig(corpus="wikitext-2", vocab="words"),
        train=TrainConfig(
            batch=80,
            segment=70,
            randomised=True,
            longest=90,
            lr_by_length=True,
            epochs=750,
            seed=1882,
            checkpoint_every=1000,
            log_every=50,
        ),
        optim=OptimConfig(name="ntasgd", lr=30.0, weight_decay=1.2e-6, patience=5, clip=0.25),
        schedule=ScheduleConfig(shape="constant"),
        evaluate=EvaluateConfig(batch=10, segment=70),
    )


def enwik8_awd_lstm() -> RunConfig[AWDLSTMConfig]:
    """AWD-LSTM of three layers on enwik8, the settings of its public code.

    Published: 1.232 test bits per byte in 50 epochs, 47M parameters (arXiv:1803.08240).
    """
    base = wikitext2_awd_lstm()
    return replace(
        base,
        recipe="enwik8_awd_lstm",
        model=AWDLSTMConfig(
            vocab_size=205,
            hidden_dim=1840,
            dropout_embedding=0.0,
            dropout_input=0.1,
            dropout_hidden=0.1,
            dropout_output=0.4,
            weight_drop=0.2,
            activation_penalty=0.0,
            change_penalty=0.0,
        ),
        data=DataConfig(corpus="enwik8", vocab="symbols"),
        train=replace(base.train, batch=128, segment=200, longest=220, epochs=50, seed=1111),
        optim=OptimConfig(name="adam", lr=1e-3, weight_decay=1.2e-6, clip=0.25),
        schedule=ScheduleConfig(shape="drops", drops=(25 / 50, 35 / 50)),
        evaluate=EvaluateConfig(batch=10, segment=200),
    )


def wikitext103_awd_qrnn() -> RunConfig[AWDLSTMConfig]:
    """AWD-QRNN of four layers on the words of WikiText-103, the settings of its public code.

    Published: 32.0 valid and 33.0 test perplexity per word in 14 epochs, 151M parameters in the
    paper, 154M by this count of its command (arXiv:1803.08240). Its split softmax has the short
    list and three clusters.
    """
    base = enwik8_awd_lstm()
    return replace(
        base,
        recipe="wikitext103_awd_qrnn",
        model=replace(
            base.model,
            vocab_size=267_735,
            cutoffs=(2_800, 20_000, 76_000),
            hidden_dim=2500,
            depth=4,
            core="qrnn",
            dropout_output=0.1,
            weight_drop=0.0,
        ),
        data=DataConfig(corpus="wikitext-103", vocab="words"),
        train=replace(base.train, batch=60, segment=140, longest=160, epochs=14),
        optim=replace(base.optim, weight_decay=0.0),
        schedule=ScheduleConfig(shape="drops", drops=(12 / 14,)),
        evaluate=EvaluateConfig(batch=10, segment=140),
    )


RECIPES = (wikitext2_awd_lstm, enwik8_awd_lstm, wikitext103_awd_qrnn)
