"""From a trained model to an exported folder that has been loaded again and compared."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparing.errors import UserError
from sparing.export.card import model_card
from sparing.export.onnx.card import USE
from sparing.export.onnx.check import check_graphs
from sparing.export.onnx.folder import write_graphs
from sparing.export.onnx.graph import LANES, GraphOptions, trace
from sparing.export.onnx.quantize import quantize
from sparing.export.trained import Exported, Trained, new_folder
from sparing.models.api import LanguageModel, State
from sparing.models.onnx_runtime import CHUNK, STEP, require_onnx_runtime


@dataclass(frozen=True, slots=True)
class ExportedGraphs(Exported):
    """What was written."""

    extra_bits_per_token: float
    """What a token that the model writes costs more under the graphs."""


def write_onnx(trained: Trained, out: Path, options: GraphOptions) -> ExportedGraphs:
    """Write a model to the new folder `out`, as graphs for ONNX Runtime."""
    model = copy.deepcopy(trained.model).requires_grad_(False).eval()
    model.collapse()
    parameters = sum(weight.numel() for weight in model.parameters())
    state = model.static_state(LANES, chunk=options.chunk)
    graphs = build_graphs(model, state, options)
    use = USE.format(chunk=options.chunk, weights=options.weights)
    card = model_card(trained, library="onnx", use=use, parameters=parameters)
    with new_folder(out) as scratch:
        write_graphs(scratch, graphs, trained, state, options)
        (scratch / "README.md").write_text(card, encoding="utf-8")
        found = check_graphs(scratch, trained.model, trained.vocab.size)
        sizes = [path.stat().st_size for path in scratch.iterdir()]
    return ExportedGraphs(
        len(sizes), sum(sizes), parameters, found.largest_difference, found.extra_bits
    )


def build_graphs(model: LanguageModel, state: State, options: GraphOptions) -> dict[str, Any]:
    """The graphs (`onnx.ModelProto`) by the names of their files."""
    lengths = {STEP: 1, CHUNK: options.chunk}
    graphs = {name: trace(model, state, length) for name, length in lengths.items()}
    return {name: quantize(proto) if options.int8 else proto for name, proto in graphs.items()}


def require_onnx() -> None:
    """Refuse, before any work, to export without the libraries that write and check graphs."""
    require_onnx_runtime()
    try:
        import onnx  # noqa: F401  # only whether they are there
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError("--format onnx needs ONNX: pip install 'sparing[onnx]'") from None
