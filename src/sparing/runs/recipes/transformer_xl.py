"""Recipes of Transformer-XL (arXiv:1901.02860), the settings of its PyTorch program.

Enwik8 is read as that program reads it: without newlines, 204 symbols.
"""

from dataclasses import replace

from sparing.data.tokens import DataConfig
from sparing.models.transformer_xl.config import TransformerXLConfig
from sparing.runs.config import EvaluateConfig, RunConfig
from sparing.training.config import TrainConfig
from sparing.training.optim import OptimConfig
from sparing.training.schedule import ScheduleConfig


def enwik8_transformer_xl() -> RunConfig[TransformerXLConfig]:
    """Transformer-XL of 12 layers on enwik8 without newlines.

    Published: 1.06 test bits per byte of the text without newlines, 41M parameters
    (arXiv:1901.02860, table 2). Measured with a longer memory: `sparing evaluate RUN --split test
    --segment 80 --set model.memory=2100 --set model.clamp=820 --set model.same_length=true`.
    """
    return RunConfig(
        recipe="enwik8_transformer_xl",
        family="transformer_xl",
        model=TransformerXLConfig(vocab_size=204),
        data=DataConfig(corpus="enwik8", vocab="symbols", newlines=False),
        train=TrainConfig(
            batch=22,
            segment=512,
            steps=400_000,
            evaluate_every=4000,
            checkpoint_every=2000,
            log_every=200,
        ),
        optim=OptimConfig(name="adam", lr=2.5e-4, clip=0.25),
        schedule=ScheduleConfig(shape="cosine"),
        evaluate=EvaluateConfig(batch=10, segment=512),
    )


def enwik8_transformer_xl_large() -> RunConfig[TransformerXLConfig]:
    """Transformer-XL of 24 layers on enwik8 without newlines.

    Published: 0.99 test bits per byte of the text without newlines, 277M parameters
    (arXiv:1901.02860, table 2). Measured with a longer memory: `sparing evaluate RUN --split test
    --segment 128 --set model.memory=3800 --set model.clamp=1000 --set model.same_length=true`.
    """
    base = enwik8_transformer_xl()
    return replace(
        base,
        recipe="enwik8_transformer_xl_large",
        model=TransformerXLConfig(
            vocab_size=204,
            dim=1024,
            depth=24,
            heads=8,
            head_dim=128,
            ff_dim=3072,
            memory=768,
            dropout=0.15,
            dropout_attention=0.15,
        ),
        train=replace(base.train, batch=64, segment=768),
        schedule=ScheduleConfig(shape="cosine", warmup=4000),
        evaluate=EvaluateConfig(batch=10, segment=768),
    )


def text8_transformer_xl() -> RunConfig[TransformerXLConfig]:
    """Transformer-XL of 12 layers on text8, the settings of enwik8.

    No published figure: the paper reports the large model only.
    """
    base = enwik8_transformer_xl()
    return replace(
        base,
        recipe="text8_transformer_xl",
        model=replace(base.model, vocab_size=27),
        data=DataConfig(corpus="text8", vocab="symbols"),
    )


def text8_transformer_xl_large() -> RunConfig[TransformerXLConfig]:
    """Transformer-XL of 24 layers on text8, the settings of enwik8.

    Published: 1.08 test bits per byte, 277M parameters (arXiv:1901.02860, table 3), measured like
    `enwik8_transformer_xl_large`. The warm-up is enwik8's: the text8 script has none.
    """
    base = enwik8_transformer_xl_large()
    return replace(
        base,
        recipe="text8_transformer_xl_large",
        model=replace(base.model, vocab_size=27),
        data=DataConfig(corpus="text8", vocab="symbols"),
    )


def wikitext103_transformer_xl() -> RunConfig[TransformerXLConfig]:
    """Transformer-XL of 16 layers on the words of WikiText-103.

    Published: 24.0 test perplexity per word, 151M parameters (arXiv:1901.02860, table 1). Measured
    with a longer memory: `sparing evaluate RUN --split test --segment 64 --set model.memory=640
    --set model.clamp=400 --set model.same_length=true`.
    """
    base = enwik8_transformer_xl()
    return replace(
        base,
        recipe="wikitext103_transformer_xl",
        model=TransformerXLConfig(
            vocab_size=267_735,
            dim=410,
            depth=16,
            heads=10,
            head_dim=41,
            ff_dim=2100,
            memory=150,
            cutoffs=(20_000, 40_000, 200_000),
        ),
        data=DataConfig(corpus="wikitext-103", vocab="words"),
        train=replace(base.train, batch=60, segment=150, steps=200_000),
        evaluate=EvaluateConfig(batch=10, segment=150),
    )


def wikitext103_transformer_xl_large() -> RunConfig[TransformerXLConfig]:
    """Transformer-XL of 18 layers on the words of WikiText-103, rare words in narrow vectors.

    Published: 18.3 test perplexity per word; the paper prints 257M parameters, its program builds
    285M (arXiv:1901.02860, table 1). Measured with a longer memory: `sparing evaluate RUN --split
    test --segment 128 --set model.memory=1600 --set model.clamp=1000 --set
    model.same_length=true`. The script trains for 4,000,000 steps, suspected to be a slip for
    400,000.
    """
    base = wikitext103_transformer_xl()
    return replace(
        base,
        recipe="wikitext103_transformer_xl_large",
        model=TransformerXLConfig(
            vocab_size=267_735,
            dim=1024,
            depth=18,
            heads=16,
            head_dim=64,
            ff_dim=4096,
            memory=384,
            dropout=0.2,
            dropout_attention=0.2,
            cutoffs=(20_000, 40_000, 200_000),
            shrink=4,
        ),
        train=replace(base.train, batch=128, segment=384, steps=4_000_000),
        schedule=ScheduleConfig(shape="cosine", warmup=16_000),
        evaluate=EvaluateConfig(batch=10, segment=384),
    )


RECIPES = (
    enwik8_transformer_xl,
    enwik8_transformer_xl_large,
    text8_transformer_xl,
    text8_transformer_xl_large,
    wikitext103_transformer_xl,
    wikitext103_transformer_xl_large,
)
