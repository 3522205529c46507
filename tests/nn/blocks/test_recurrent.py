"""Recurrent layers as branches."""

from typing import Literal

import pytest
import torch
from tests.nn.blocks import laws

from sparing.nn.blocks.recurrent import RecurrentBlock


@pytest.mark.parametrize("core", ["lstm", "qrnn"])
def test_it_obeys_the_laws(core: Literal["lstm", "qrnn"]) -> None:
    laws.everything(RecurrentBlock(laws.DIM, core=core, dropout=0.0))


@pytest.mark.parametrize("core", ["lstm", "qrnn"])
def test_an_idle_block_starts_anew(core: Literal["lstm", "qrnn"]) -> None:
    block = laws.lively(RecurrentBlock(laws.DIM, core=core, dropout=0.0))
    _, state = laws.read(block, laws.stream(), 6)
    assert all(tensor.any() for tensor in state.values())
    idle = block.idle(laws.stream(), state)
    assert idle.keys() == state.keys()
    assert not any(tensor.any() for tensor in idle.values())


def test_the_work_of_an_lstm_is_eight_matrices() -> None:
    block = RecurrentBlock(laws.DIM, core="lstm", dropout=0.0)
    assert block.flops_per_token() == 2 * 8 * laws.DIM**2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("core", ["lstm", "qrnn"])
def test_a_gpu_computes_what_a_cpu_does(core: Literal["lstm", "qrnn"]) -> None:
    answers = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        # cuDNN has no gradients for what is not training.
        block = laws.lively(RecurrentBlock(laws.DIM, core=core, dropout=0.0)).train()
        x_BTD = torch.randn(3, 7, laws.DIM, dtype=torch.float64, requires_grad=True)
        block, given_BTD = block.to(device), x_BTD.to(device)
        y_BTD, state = block(given_BTD, block.initial_state(3, given_BTD.detach()))
        y_BTD.square().sum().backward()
        gradients = [x_BTD.grad, *(p.grad for p in block.parameters())]
        answers.append([x.detach().cpu() for x in (y_BTD, *state.values(), *gradients)])
    torch.testing.assert_close(*answers, rtol=1e-8, atol=1e-10)
