"""From a trained model to an exported folder that has been loaded again and compared."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparing.errors import UserError
from sparing.export.card import model_card
from sparing.export.onnx.card import USE
from sparing.export.onnx.check import check_folder
from sparing.export.onnx.folder import SOURCE, write_folder
from sparing.export.onnx.graph import LANES, trace
from sparing.export.onnx.quantize import quantize
from sparing.export.trained import Exported, Trained, new_folder
from sparing.models.api import LanguageModel, State
from sparing.models.onnx_runtime import CHUNK, STEP, Weights, require_onnx_runtime

LENGTH = 64
"""Tokens that the graph for many tokens reads, unless another number is asked for."""


@dataclass(frozen=True, slots=True)
class ExportedGraphs(Exported):
    """What was written."""

    extra_bits_per_token: float
    """What a token that the model writes costs more under the graphs."""


def write_onnx(
    trained: Trained, out: Path, *, int8: bool = False, chunk: int = LENGTH
) -> ExportedGraphs:
    """Write a model to the new folder `out`, as graphs for ONNX Runtime."""
    weights: Weights = "int8" if int8 else "float32"
    model, state = deployed(trained.model, chunk)
    parameters = sum(weight.numel() for weight in model.parameters())
    graphs = build_graphs(model, state, chunk, weights)
    lines = len(SOURCE.read_text(encoding="utf-8").splitlines())
    card = model_card(
        trained.settings,
        trained.results,
        library="onnx",
        use=USE.format(lines=lines, chunk=chunk, weights=weights),
        parameters=parameters,
        step=trained.step,
        checkpoint=trained.checkpoint,
    )
    with new_folder(out) as scratch:
        write_folder(scratch, graphs, trained, state, chunk=chunk, weights=weights)
        (scratch / "README.md").write_text(card, encoding="utf-8")
        found = check_folder(scratch, trained.model, trained.vocab.size)
        sizes = [path.stat().st_size for path in scratch.iterdir()]
    return ExportedGraphs(
        len(sizes), sum(sizes), parameters, found.largest_difference, found.extra_bits
    )


def deployed(model: LanguageModel, chunk: int) -> tuple[LanguageModel, State]:
    """A copy without what only training needs, and its state for segments of up to `chunk`."""
    model = copy.deepcopy(model).requires_grad_(False).eval()
    model.collapse()
    return model, model.static_state(LANES, chunk=chunk)


def build_graphs(
    model: LanguageModel, state: State, chunk: int, weights: Weights
) -> dict[str, Any]:
    """The graphs (`onnx.ModelProto`) by the names of their files."""
    graphs = {name: trace(model, state, length) for name, length in ((STEP, 1), (CHUNK, chunk))}
    if weights == "int8":
        return {name: quantize(proto) for name, proto in graphs.items()}
    return graphs


def require_onnx() -> None:
    """Refuse, before any work, to export without the libraries that write and check graphs."""
    require_onnx_runtime()
    try:
        import onnx
        import onnxscript  # noqa: F401  # only whether they are there
    except ImportError:
        raise UserError("--format onnx needs ONNX: pip install 'sparing[onnx]'") from None
