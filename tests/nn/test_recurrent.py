"""Recurrent cores against their equations."""

import pytest
import torch

from sparing.nn.recurrent import CORES, QRNNCore


@pytest.mark.parametrize("name", CORES)
def test_segments_and_single_steps_agree(name: str) -> None:
    torch.manual_seed(0)
    core = CORES[name](4).double()
    x_BTD = torch.randn(3, 7, 4, dtype=torch.float64)
    state = tuple(torch.randn(3, 4, dtype=torch.float64) for _ in core.state_names)
    whole, last = core(x_BTD, state)
    steps = []
    for t in range(7):
        y_BTD, state = core(x_BTD[:, t : t + 1], state)
        steps.append(y_BTD)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)
    for one, other in zip(state, last, strict=True):
        torch.testing.assert_close(one, other)


def test_the_qrnn_is_its_equations() -> None:
    torch.manual_seed(0)
    core = QRNNCore(2).double()
    x_BTD = torch.randn(1, 3, 2, dtype=torch.float64)
    cell, last = (torch.randn(1, 2, dtype=torch.float64) for _ in range(2))
    y_BTD, _ = core(x_BTD, (cell, last))
    for t in range(3):
        z, f, o = core.gates(torch.cat([last, x_BTD[:, t]], dim=-1)).chunk(3, dim=-1)
        cell = torch.sigmoid(f) * cell + (1 - torch.sigmoid(f)) * torch.tanh(z)
        torch.testing.assert_close(y_BTD[:, t], torch.sigmoid(o) * cell)
        last = x_BTD[:, t]
