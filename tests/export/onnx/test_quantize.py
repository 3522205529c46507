"""Weights in 8 bits: close to the model, and a quarter of the size."""

import numpy as np
import pytest
import torch
from tests.export.onnx.test_graph import CHUNK, run_graph, smallest
from tests.models.tiny import VOCAB, tiny

from sparing.export.onnx.graph import LANES, trace
from sparing.export.onnx.quantize import quantize, split_gemms


# Its matrices are used once per token, by operators that multiply and add in one.
@pytest.mark.parametrize("name", ["mlstm"])
def test_logits_stay_close_and_every_matrix_is_int8(name: str) -> None:
    from onnx import TensorProto

    model = smallest(name).requires_grad_(False)
    model.collapse()
    proto = trace(model, model.static_state(LANES, chunk=CHUNK), CHUNK)
    tokens_BN = torch.randint(VOCAB, (2, 10 * CHUNK))
    exact = run_graph(proto, tokens_BN, model.static_state(2, chunk=CHUNK))
    split_gemms(proto)
    split = run_graph(proto, tokens_BN, model.static_state(2, chunk=CHUNK))
    np.testing.assert_allclose(split, exact, atol=1e-5)
    rounded = quantize(proto)
    found = run_graph(rounded, tokens_BN, model.static_state(2, chunk=CHUNK))
    assert 0 < np.abs(found - exact).max() < 0.1 * np.abs(exact).max()
    wide = [each for each in rounded.graph.initializer if each.data_type == TensorProto.FLOAT]
    assert max(len(each.dims) for each in wide) < 2


@pytest.mark.parametrize("name", ["all-attention", "stack in rounds"])
def test_what_cannot_run_in_int8_stays_in_float32(name: str) -> None:
    model = tiny(name).float().eval().requires_grad_(False)
    proto = trace(model, model.static_state(LANES, chunk=CHUNK), CHUNK)
    split_gemms(proto)
    tokens_BN = torch.randint(VOCAB, (2, 2 * CHUNK))
    exact = run_graph(proto, tokens_BN, model.static_state(2, chunk=CHUNK))
    found = run_graph(quantize(proto), tokens_BN, model.static_state(2, chunk=CHUNK))
    assert 0 < np.abs(found - exact).max() < 0.1 * np.abs(exact).max()
