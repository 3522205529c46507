"""A tiny config of every family, dropout off, memory longer than any text of the laws."""

from typing import Any

import torch

from sparing.config import with_settings
from sparing.models import FAMILIES
from sparing.models.adaptive_span.config import AdaptiveSpanConfig
from sparing.models.api import LanguageModel
from sparing.models.awd_lstm import AWDLSTMConfig
from sparing.models.mlstm import MLSTMConfig
from sparing.models.sha_rnn.config import SHARNNConfig
from sparing.models.stack.config import StackConfig
from sparing.models.supernet.config import SupernetConfig
from sparing.models.transformer_xl.config import TransformerXLConfig

VOCAB = 11

_SHA = {
    "vocab_size": VOCAB,
    "dim": 8,
    "depth": 3,
    "boom_dim": 16,
    "memory": 64,
    "dropout_input": 0.0,
    "dropout_hidden": 0.0,
    "dropout_output": 0.0,
}

_SPAN = {
    "vocab_size": VOCAB,
    "dim": 8,
    "depth": 2,
    "heads": 2,
    "ff_dim": 16,
    "span_limit": 64,
    "span_start": 0.25,
    "span_penalty": 1e-3,
    "ramp": 4,
    "dropout": 0.0,
}

_XL = {
    "vocab_size": VOCAB,
    "dim": 8,
    "depth": 2,
    "heads": 2,
    "head_dim": 3,
    "ff_dim": 12,
    "memory": 64,
    "dropout": 0.0,
}


def _span(**settings: Any) -> tuple[str, AdaptiveSpanConfig]:
    return "adaptive_span", AdaptiveSpanConfig(**(_SPAN | settings))


def _xl(**settings: Any) -> tuple[str, TransformerXLConfig]:
    return "transformer_xl", TransformerXLConfig(**(_XL | settings))


_AWD = {
    "vocab_size": VOCAB,
    "dim": 8,
    "hidden_dim": 10,
    "dropout_embedding": 0.0,
    "dropout_input": 0.0,
    "dropout_hidden": 0.0,
    "dropout_output": 0.0,
    "weight_drop": 0.0,
}

_MLSTM = {
    "vocab_size": VOCAB,
    "dim": 6,
    "hidden_dim": 8,
    "dropout_input": 0.0,
    "dropout_hidden": 0.0,
}

_STACK = [
    "dim=8",
    "windowed.heads=2",
    "windowed.head_dim=4",
    "windowed.span_limit=64",
    "windowed.span_starts=3.5,20.25",
    "windowed.span_penalty=1e-3",
    "windowed.ramp=4",
    "relative.heads=2",
    "relative.head_dim=4",
    "relative.memory=64",
    "single_head.memory=64",
    "feedforward.dim=16",
]


def _stack(pattern: str, *settings: str) -> tuple[str, StackConfig]:
    config = StackConfig(vocab_size=VOCAB)
    return "stack", with_settings(config, [f"pattern={pattern}", *_STACK, *settings])


def _supernet(pattern: str, *settings: str) -> tuple[str, SupernetConfig]:
    config = SupernetConfig(vocab_size=VOCAB)
    return "supernet", with_settings(config, [f"pattern={pattern}", *_STACK, *settings])


CONFIGS: dict[str, tuple[str, Any]] = {
    "sha_rnn": ("sha_rnn", SHARNNConfig(**_SHA, attention_at=(1,))),
    "sha_rnn all layers": ("sha_rnn", SHARNNConfig(**_SHA, attention_at=(0, 1, 2))),
    "sha_rnn no attention": ("sha_rnn", SHARNNConfig(**_SHA, attention_at=())),
    "sha_rnn gru": ("sha_rnn", SHARNNConfig(**_SHA, attention_at=(1,), core="gru")),
    "sha_rnn qrnn": ("sha_rnn", SHARNNConfig(**_SHA, attention_at=(1,), core="qrnn")),
    "sha_rnn pre-norm": (
        "sha_rnn",
        SHARNNConfig(**_SHA, attention_at=(1,), residual=True, skip="raw"),
    ),
    "sha_rnn as drawn": (
        "sha_rnn",
        SHARNNConfig(
            **_SHA,
            attention_at=(1,),
            wiring="figure",
            boom_norm="single",
            gate="paper",
            gelu="erf",
            bias=False,
        ),
    ),
    "awd_lstm": ("awd_lstm", AWDLSTMConfig(**_AWD)),
    "awd_lstm one layer": ("awd_lstm", AWDLSTMConfig(**_AWD, depth=1)),
    "awd_lstm untied": ("awd_lstm", AWDLSTMConfig(**_AWD, depth=2, tied=False)),
    "awd_lstm split": ("awd_lstm", AWDLSTMConfig(**_AWD, depth=2, cutoffs=(3, 7))),
    "awd_lstm qrnn": ("awd_lstm", AWDLSTMConfig(**_AWD, core="qrnn", depth=4)),
    "mlstm": ("mlstm", MLSTMConfig(**_MLSTM)),
    "mlstm deployed": ("mlstm", MLSTMConfig(**_MLSTM, normed=False)),
    "sha_rnn deployed": ("sha_rnn", SHARNNConfig(**_SHA, attention_at=(1,), gate="vector")),
    "adaptive_span": _span(),
    "adaptive_span cached": _span(cache="kv"),
    "adaptive_span masked": _span(start="masked"),
    "adaptive_span masked cached": _span(start="masked", cache="kv"),
    "adaptive_span by layer": _span(span="layer", mask="paper", span_gradient="closed"),
    "adaptive_span fixed": _span(span="fixed"),
    "adaptive_span dynamic": _span(span="dynamic"),
    "adaptive_span words": _span(cutoffs=(3, 7), shrink=2),
    "adaptive_span words untied": _span(cutoffs=(3, 7), shrink=2, tied=False),
    "adaptive_span expire": _span(span="expire", span_start=0.05, ramp=64, positions=5),
    "all-attention": _span(persistent=6),
    "all-attention masked": _span(persistent=6, start="masked"),
    "stack": _stack("a f a f"),
    "stack dense": _stack("ff"),
    "stack n-grams": _stack("fa", "ngrams.lengths=2,4", "ngrams.rows=64", "ngrams.dim=3"),
    "stack with mtp": _stack(
        "a f",
        "windowed.gated=true",
        "windowed.key_shift=true",
        "windowed.rotary_fraction=0.5",
        "feedforward.activation=swiglu",
        "mtp.tokens=2",
    ),
    "stack in rounds": _stack(
        "a [f a l] f",
        "rounds=3",
        "ngrams.lengths=2",
        "ngrams.rows=16",
        "ngrams.dim=3",
        "windowed.key_shift=true",
    ),
    "stack gelu": _stack("aif", "feedforward.activation=gelu"),
    "stack of Transformer-XL": _stack("xfxf"),
    "stack of SHA-RNN": _stack("lb lsb lb", "tied=true"),
    "stack of scans": _stack("gfgif", "cutoffs=3,7", "shrink=2", "tied=true"),
    "stack with learned starts": _stack(
        "gaflf",
        "qrnn.learnable_init_states=true",
        "lstm.learnable_init_states=true",
        "windowed.key_shift=true",
    ),
    "supernet": _supernet("xfxf"),
    "supernet of PAR": _supernet(
        "xfx",
        "cutoffs=3,7",
        "shrink=2",
        "search.costs=3,1,0",
        "search.budget=0.6",
        "search.pricing=hinge",
    ),
    "supernet wide": _supernet(
        "xfx",
        "search.candidates=lsaxgbfi",
        "embedding_skip=false",
        "tied=true",
        "windowed.key_shift=true",
    ),
    "transformer_xl": _xl(),
    "transformer_xl cached": _xl(cache="kv"),
    "transformer_xl pre-norm": _xl(norm="pre", shared_bias=False),
    "transformer_xl pre-norm cached": _xl(norm="pre", cache="kv", clamp=3),
    "transformer_xl test time": _xl(same_length=True, clamp=5),
    "transformer_xl adaptive": _xl(cutoffs=(3, 7)),
    "transformer_xl shrinking": _xl(cutoffs=(3, 7), shrink=2),
    "transformer_xl untied": _xl(
        cutoffs=(3, 7), shrink=2, tied=False, tied_projections="none", same_length=True
    ),
}


ROUGH_STARTS = {
    "adaptive_span words": 4.0,
    "adaptive_span words untied": 0.6,
    "stack of scans": 0.5,
    "supernet of PAR": 0.5,
}
"""Configs whose faithful first weights start this far from log V; the others within 0.25."""


FIRST_OF_FAMILY = list({family: name for name, (family, _) in reversed(CONFIGS.items())}.values())


def tiny(name: str) -> LanguageModel:
    """A model with lively weights: fresh ones are so small that laws would hold by accident."""
    torch.manual_seed(7)
    family, config = CONFIGS[name]
    model = FAMILIES[family].model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()
