"""Recipes of Adaptive Span (arXiv:1905.07799) and all-attention (arXiv:1907.01470).

Each is a script of the public code. Where it fine-tunes at a tenth of the rate, the schedule drops.
"""

from dataclasses import replace

from sparing.data.tokens import DataConfig
from sparing.models.adaptive_span.config import AdaptiveSpanConfig
from sparing.runs.config import EvaluateConfig, RunConfig
from sparing.training.config import TrainConfig
from sparing.training.optim import OptimConfig
from sparing.training.schedule import ScheduleConfig

ENWIK8 = DataConfig(corpus="enwik8", vocab="symbols", symbol_order="appearance")
TEXT8 = DataConfig(corpus="text8", vocab="symbols", symbol_order="appearance")


def _dropping(share: float, warmup: int = 32_000) -> ScheduleConfig:
    """Constant after the warm-up, a tenth of it after that share of the run."""
    return ScheduleConfig(shape="drops", warmup=warmup, drops=(share,))


def enwik8_adaptive_span() -> RunConfig[AdaptiveSpanConfig]:
    """Adaptive Span with 12 layers and spans up to 8192, the script of the authors.

    Published: 1.04 valid, 1.02 test bits per byte with 39M parameters
    (arXiv:1905.07799, table 2), after 600,000 steps; 2 to 3 days on 8 V100.
    """
    return RunConfig(
        recipe="enwik8_adaptive_span",
        family="adaptive_span",
        model=AdaptiveSpanConfig(vocab_size=205),
        data=ENWIK8,
        train=TrainConfig(
            batch=64,
            segment=512,
            steps=600_000,
            evaluate_every=10_000,
            checkpoint_every=1000,
            log_every=50,
        ),
        optim=OptimConfig(name="adagrad", lr=0.07, tensor_clip=0.03),
        schedule=ScheduleConfig(shape="constant", warmup=32_000),
        evaluate=EvaluateConfig(batch=8, segment=512),
    )


def enwik8_adaptive_span_small() -> RunConfig[AdaptiveSpanConfig]:
    """Adaptive Span with 8 narrow layers and spans up to 1024, for one small GPU.

    Published: about 1.3 valid bits per byte after 150,000 steps (the authors' README).
    """
    base = enwik8_adaptive_span()
    return replace(
        base,
        recipe="enwik8_adaptive_span_small",
        model=AdaptiveSpanConfig(
            vocab_size=205,
            dim=256,
            depth=8,
            heads=4,
            ff_dim=1024,
            span_limit=1024,
            span_penalty=2e-6,
            dropout=0.0,
        ),
        train=replace(base.train, segment=256, steps=150_000),
        schedule=ScheduleConfig(shape="constant", warmup=8000),
        evaluate=EvaluateConfig(batch=8, segment=256),
    )


def enwik8_adaptive_span_large() -> RunConfig[AdaptiveSpanConfig]:
    """Adaptive Span with 24 wide layers; the rate drops to a tenth for the last 20,000 steps.

    Published: 1.00 valid, 0.98 test bits per byte with 209M parameters (arXiv:1905.07799, table 2)
    after 170,000 steps; 1.2 s a step on 8 V100.
    """
    base = enwik8_adaptive_span()
    return replace(
        base,
        recipe="enwik8_adaptive_span_large",
        model=replace(base.model, dim=768, depth=24, ff_dim=4096, dropout=0.4),
        train=replace(base.train, steps=170_000, micro_batches=2),
        schedule=_dropping(150_000 / 170_000),
    )


def text8_adaptive_span() -> RunConfig[AdaptiveSpanConfig]:
    """Adaptive Span with 12 layers on text8.

    Published: 1.05 valid, 1.11 test bits per byte with 38M parameters, mean span 314
    (arXiv:1905.07799, table 1) after 900,000 steps.
    """
    base = enwik8_adaptive_span()
    return replace(
        base,
        recipe="text8_adaptive_span",
        model=replace(base.model, vocab_size=27),
        data=TEXT8,
        train=replace(base.train, steps=900_000),
    )


def text8_adaptive_span_large() -> RunConfig[AdaptiveSpanConfig]:
    """Adaptive Span with 24 wide layers on text8; the rate drops for the last 20,000 steps.

    Published: 1.01 valid, 1.07 test bits per byte with 209M parameters, mean span 245
    (arXiv:1905.07799, table 1) after 270,000 steps.
    """
    base = enwik8_adaptive_span_large()
    return replace(
        base,
        recipe="text8_adaptive_span_large",
        model=replace(base.model, vocab_size=27),
        data=TEXT8,
        train=replace(base.train, steps=270_000),
        schedule=_dropping(250_000 / 270_000),
    )


def enwik8_all_attention_small() -> RunConfig[AdaptiveSpanConfig]:
    """All-attention with 18 layers of 1024 persistent vectors a head, no feed-forward layers.

    Published: 1.03 valid, 1.01 test bits per byte with 39M parameters (arXiv:1907.01470) after
    480,000 steps, the last 30,000 at a tenth of the rate.
    """
    base = enwik8_adaptive_span()
    return replace(
        base,
        recipe="enwik8_all_attention_small",
        model=replace(base.model, depth=18, persistent=1024, span_penalty=1e-7),
        train=replace(base.train, steps=480_000, micro_batches=2),
        schedule=_dropping(450_000 / 480_000),
    )


def enwik8_all_attention() -> RunConfig[AdaptiveSpanConfig]:
    """All-attention with 36 layers of 2048 persistent vectors a head, no feed-forward layers.

    Published: 1.00 valid, 0.98 test bits per byte with 114M parameters (arXiv:1907.01470) after
    210,000 steps, the last 10,000 at a tenth of the rate.
    """
    base = enwik8_all_attention_small()
    return replace(
        base,
        recipe="enwik8_all_attention",
        model=replace(base.model, depth=36, persistent=2048, dropout=0.4),
        train=replace(base.train, steps=210_000),
        schedule=_dropping(200_000 / 210_000),
    )


def wikitext103_all_attention() -> RunConfig[AdaptiveSpanConfig]:
    """All-attention with 36 layers on the words of WikiText-103, tied adaptive tables.

    Published: 18.8 valid, 19.7 test perplexity with 133M parameters (the authors' README; 19.7 and
    20.6 in arXiv:1907.01470) after 850,000 steps, the last 50,000 at a tenth of the rate.
    """
    base = enwik8_all_attention()
    return replace(
        base,
        recipe="wikitext103_all_attention",
        model=replace(
            base.model,
            vocab_size=267_735,
            span_limit=2048,
            span_penalty=5e-7,
            cutoffs=(20_000, 40_000, 200_000),
            dropout=0.3,
            dropout_embedding=0.1,
        ),
        data=DataConfig(corpus="wikitext-103", vocab="words"),
        train=replace(base.train, segment=256, steps=850_000),
        optim=OptimConfig(name="adam", lr=2.5e-4, clip=1.0),
        schedule=_dropping(800_000 / 850_000, warmup=8000),
        evaluate=EvaluateConfig(batch=8, segment=256),
    )


RECIPES = (
    enwik8_adaptive_span_small,
    enwik8_adaptive_span,
    enwik8_adaptive_span_large,
    text8_adaptive_span,
    text8_adaptive_span_large,
    enwik8_all_attention_small,
    enwik8_all_attention,
    wikitext103_all_attention,
)
