"""A graph with weights in 8 bits; what it computes from them is scaled back at once."""

import tempfile
from collections import Counter
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

    split_gemms(proto)
    with tempfile.TemporaryDirectory() as scratch, quiet():
        path = Path(scratch) / "graph.onnx"
        quantize_dynamic(
            proto,
            path,
            op_types_to_quantize=KINDS,
            weight_type=QuantType.QInt8,
            per_channel=True,
            nodes_to_exclude=nodes_in_float(proto),
        )
        return onnx.load(path)


def nodes_in_float(proto: Any) -> list[str]:
    """Return the names of nodes whose weights ONNX Runtime cannot run in int8.

    Products with several matrices at once, and LSTMs that share their weights.
    """
    dims = {tensor.name: len(tensor.dims) for tensor in proto.graph.initializer}
    uses = Counter(name for node in proto.graph.node for name in node.input if name in dims)

    def unfit(node: Any) -> bool:
        if node.op_type == "MatMul":
            return any(dims.get(name, 0) > 2 for name in node.input)
        return node.op_type == "LSTM" and uses[node.input[1]] > 1

    return [node.name for node in proto.graph.node if unfit(node)]


def split_gemms(proto: Any) -> None:
    """Replace each Gemm by a product and a sum.

    The library would do so too, but transposes a matrix once for every Gemm that uses it.
    """
    from onnx import helper, numpy_helper

    matrices = {tensor.name: tensor for tensor in proto.graph.initializer}
    nodes = list[Any]()
    for node in proto.graph.node:
        given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type != "Gemm" or given.get("transB") != 1 or node.input[1] not in matrices:
            nodes.append(node)
            continue
        x, matrix, *bias = node.input
        if (turned := f"{matrix}.T") not in matrices:
            columns = numpy_helper.to_array(matrices[matrix]).T.copy()
            matrices[turned] = numpy_helper.from_array(columns, turned)
        (out,) = node.output
        product = f"{out}.product" if bias else out
        nodes.append(helper.make_node("MatMul", [x, turned], [product], f"{node.name}.product"))
        if bias:
            nodes.append(helper.make_node("Add", [product, *bias], [out], f"{node.name}.sum"))
    used = {name for node in nodes for name in node.input}
    del proto.graph.node[:], proto.graph.initializer[:]
    proto.graph.node.extend(nodes)
    proto.graph.initializer.extend(each for name, each in matrices.items() if name in used)
