"""A graph with weights in 8 bits; what it computes from them is scaled back at once."""

import tempfile
from pathlib import Path
from typing import Any

from sparing.export.onnx.graph import quiet

KINDS = ["MatMul", "Gather", "LSTM"]


def quantize(proto: Any) -> Any:
    """Return the graph with matrices and tables as int8, each column with a scale of its own.

    What they are multiplied with is rounded to 8 bits as it comes, by its largest number.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as scratch, quiet():
        path = Path(scratch) / "graph.onnx"
        quantize_dynamic(
            proto,
            path,
            op_types_to_quantize=KINDS,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )
        return onnx.load(path)
