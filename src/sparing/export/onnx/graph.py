"""From a model to an ONNX graph: tokens and state in, logits and state out."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparing.models.api import LanguageModel, Output, State
from sparing.models.onnx_runtime import Weights

OPSET = 24
LANES = 3
"""Lanes of the example that is traced; neither 0 nor 1, which torch would treat as constants."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphOptions:
    """How a model becomes graphs."""

    chunk: int = 64
    """Tokens that the second graph reads; the first one reads one."""
    int8: bool = False

    @property
    def weights(self) -> Weights:
        """Precision of the matrices."""
        return "int8" if self.int8 else "float32"


class FlatModel(nn.Module):
    """A model whose state goes in and out as single tensors."""

    def __init__(self, model: LanguageModel, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, tokens_BT: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Return logits (B, T, V) and what is carried on."""
        out: Output = self.model(tokens_BT, dict(zip(self.names, state, strict=True)))
        logits_BTV = self.model.head.logits(out.hidden_BTD)
        return (logits_BTV, *(out.state[name] for name in self.names))


def trace(model: LanguageModel, state: State, length: int) -> Any:
    """Return the graph (`onnx.ModelProto`) that reads `length` tokens in any number of lanes.

    `state` is that of `LANES` lanes before the first token. Inputs are `tokens` and `in.NAME`,
    outputs `logits` and `out.NAME`.
    """
    names, lanes = list(state), {0: torch.export.Dim.DYNAMIC}
    tokens_BT = torch.zeros(LANES, length, dtype=torch.int64)
    with torch.no_grad(), quiet():
        program: Any = torch.onnx.export(
            FlatModel(model, names).eval(),
            (tokens_BT, *state.values()),
            dynamic_shapes=(lanes, tuple(lanes for _ in names)) if names else (lanes,),
            dynamo=True,
            input_names=["tokens", *(f"in.{name}" for name in names)],
            output_names=["logits", *(f"out.{name}" for name in names)],
            opset_version=OPSET,
            optimize=False,
            verbose=False,
        )
        _simplify(program.model)
        return _bare(program.model_proto)


def _simplify(model: Any) -> None:
    """Compute what is constant, and drop what is unused or there twice.

    The exporter's own optimizer also tries all its rewrites on every node. For a large graph that
    takes longer than everything else, and ONNX Runtime rewrites a graph when it loads it.
    """
    import onnx_ir.passes.common as passes
    from onnx_ir.passes import Sequential
    from onnxscript import optimizer

    passes.InlinePass()(model)
    optimizer.fold_constants(model)
    clean = Sequential(
        passes.RemoveUnusedNodesPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.OutputFixPass(),
        passes.NameFixPass(),
    )
    clean(model)


def _bare(proto: Any) -> Any:
    """Remove what runs no differently without: shapes in between, and traces of source files."""
    del proto.graph.value_info[:]
    for node in proto.graph.node:
        del node.metadata_props[:]
    del proto.metadata_props[:]
    return proto


@contextmanager
def quiet() -> Iterator[None]:
    """Keep libraries from reporting at length on what they do."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
