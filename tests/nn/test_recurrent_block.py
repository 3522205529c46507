"""Residual blocks with a recurrent state: the laws, and learned states at the start of a text."""

from typing import Literal

import pytest
import torch
from tests.nn import block_laws as laws

from sparing.nn.recurrent_block import RecurrentBlock


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("core", ["lstm", "qrnn"])
def test_it_obeys_the_laws(core: Literal["lstm", "qrnn"], learned: bool) -> None:
    laws.everything(RecurrentBlock(laws.DIM, core=core, dropout=0.0, learnable_init_states=learned))


def learning_block(core: Literal["lstm", "qrnn"]) -> RecurrentBlock:
    block = RecurrentBlock(laws.DIM, core=core, dropout=0.0, learnable_init_states=True)
    return laws.lively(block)


@pytest.mark.parametrize("core", ["lstm", "qrnn"])
def test_a_text_begins_with_the_learned_state(core: Literal["lstm", "qrnn"]) -> None:
    block, x_BTD = learning_block(core), laws.stream()
    assert block.init_states is not None
    learned = tuple(block.init_states[name].expand(2, -1) for name in block.core.state_names)
    expected_BTD = block.finish_output(block.core(block.prepare_input(x_BTD), learned)[0])
    found_BTD, state = block(x_BTD, block.initial_state(2, x_BTD))
    torch.testing.assert_close(found_BTD, expected_BTD)
    assert state["seen"].tolist() == [12, 12]


@pytest.mark.parametrize("core", ["lstm", "qrnn"])
def test_only_lanes_that_begin_teach_the_learned_state(core: Literal["lstm", "qrnn"]) -> None:
    block, x_BTD = learning_block(core), laws.stream()
    assert block.init_states is not None
    own = list(block.init_states.parameters())
    _, carried = block(x_BTD, block.initial_state(2, x_BTD))
    for lanes, teaches in ([True, False], True), ([False, False], False):
        state = block.reset_lanes(carried, torch.tensor(lanes))
        delta_BTD, _ = block(x_BTD, state)
        one, other = (torch.autograd.grad(y.square().sum(), own, retain_graph=True) for y in
                      (delta_BTD[0], delta_BTD[1]))  # fmt: skip
        assert all(bool(each.any()) == teaches for each in one)
        assert not any(each.any() for each in other)


def test_a_block_that_has_learned_nothing_begins_with_zeros() -> None:
    plain = RecurrentBlock(laws.DIM, core="qrnn", dropout=0.0)
    block = RecurrentBlock(laws.DIM, core="qrnn", dropout=0.0, learnable_init_states=True)
    missing = block.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert missing == ["init_states.cell", "init_states.input"]
    x_BTD = torch.randn(2, 5, laws.DIM)
    found, expected = (each(x_BTD, each.initial_state(2, x_BTD))[0] for each in (block, plain))
    assert torch.equal(found, expected)


def test_cells_of_a_scan_are_carried_in_full_by_a_model_of_sixteen_bits() -> None:
    torch.manual_seed(0)
    block = RecurrentBlock(laws.DIM, core="qrnn", dropout=0.0).bfloat16().eval()
    with torch.no_grad():
        # Slow cells: what one step adds is less than their sixteen bits can hold.
        block.core.gates.bias.chunk(3)[1].fill_(6.0)
    hidden_BTD = laws.stream(length=400).bfloat16()
    whole, in_steps = laws.read(block, hidden_BTD, 400), laws.read(block, hidden_BTD, 1)
    assert whole[1]["cell"].dtype == in_steps[1]["cell"].dtype == torch.float32
    torch.testing.assert_close(in_steps[1]["cell"], whole[1]["cell"], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("core", ["lstm", "qrnn"])
def test_a_skipped_block_is_reset(core: Literal["lstm", "qrnn"], learned: bool) -> None:
    block = laws.lively(
        RecurrentBlock(laws.DIM, core=core, dropout=0.0, learnable_init_states=learned)
    )
    _, state = laws.read(block, laws.stream(), 6)
    assert all(tensor.any() for tensor in state.values())
    skipped = block.skip_step(laws.stream(), state)
    assert skipped.keys() == state.keys()
    # The text goes on: what is learned for its start is not used in its middle.
    assert not learned or skipped.pop("seen").tolist() == [24, 24]
    assert not any(tensor.any() for tensor in skipped.values())


def test_a_fresh_lstm_keeps_most_of_what_its_cells_hold() -> None:
    block, silence = RecurrentBlock(laws.DIM, core="lstm", dropout=0.0), torch.zeros(1, 1, laws.DIM)
    empty = block.initial_state(1, silence)
    full = empty | {"cell": torch.ones_like(empty["cell"])}
    after_empty, after_full = (block(silence, state)[1]["cell"] for state in (empty, full))
    assert (after_full - after_empty).min() > 0.7


def test_the_work_of_an_lstm_is_eight_matrices() -> None:
    block = RecurrentBlock(laws.DIM, core="lstm", dropout=0.0)
    assert block.flops_per_token() == 2 * 8 * laws.DIM**2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("core", "dtype"),
    # In float32, cuDNN would multiply in TF32.
    [("lstm", torch.float64), ("qrnn", torch.float64), ("qrnn", torch.float32)],
)
def test_a_gpu_computes_what_a_cpu_does(core: Literal["lstm", "qrnn"], dtype: torch.dtype) -> None:
    answers = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        # cuDNN has no gradients for what is not training.
        fresh = RecurrentBlock(laws.DIM, core=core, dropout=0.0, learnable_init_states=True)
        block = laws.lively(fresh).train().to(dtype)
        x_BTD = torch.randn(3, 70, laws.DIM, dtype=dtype, requires_grad=True)
        block, given_BTD = block.to(device), x_BTD.to(device)
        y_BTD, state = block(given_BTD, block.initial_state(3, given_BTD.detach()))
        y_BTD.square().sum().backward()
        gradients = [x_BTD.grad, *(p.grad for p in block.parameters())]
        answers.append([x.detach().cpu() for x in (y_BTD, *state.values(), *gradients)])
    error = 1e-9 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(*answers, rtol=error, atol=error)
