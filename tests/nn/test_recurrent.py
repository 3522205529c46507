"""Recurrent cores: dropped weights, and QRNN against its formulas."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sparing.nn.recurrent import CORES, GRUCore, LSTMCore, QRNNCore
from sparing.ops.dropout import dropout

CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)


def lstm(weight_drop: float) -> tuple[LSTMCore, Tensor, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    core = LSTMCore(6, 4, weight_drop=weight_drop).double()
    state = (torch.randn(2, 6).double(), torch.randn(2, 6).double())
    return core, torch.randn(2, 5, 4).double(), state


def by_hand(core: LSTMCore, w_hh: Tensor, x_BTD: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
    """One step after the other with the given recurrent matrix."""
    (h, c), outputs, cell = state, [], core.cell
    for x in x_BTD.unbind(1):
        gates = F.linear(x, cell.weight_ih_l0, cell.bias_ih_l0) + F.linear(h, w_hh, cell.bias_hh_l0)
        i, f, g, o = gates.chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs, dim=1)


def test_one_mask_on_the_recurrent_weights_serves_the_whole_segment() -> None:
    core, x, state = lstm(0.4)
    torch.manual_seed(9)
    found, after = core(x, state)
    torch.manual_seed(9)
    dropped = dropout(core.cell.weight_hh_l0, 0.4)
    assert (dropped == 0).any()
    expected = by_hand(core, dropped, x, state)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(after[0], expected[:, -1])
    ours, theirs = (
        torch.autograd.grad(y.pow(2).sum(), list(core.parameters())) for y in (found, expected)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.equal(ours[1] == 0, dropped == 0)


def test_training_passes_differ_and_evaluation_uses_the_raw_weights() -> None:
    core, x, state = lstm(0.5)
    before = {name: tensor.clone() for name, tensor in core.state_dict().items()}
    assert not torch.equal(core(x, state)[0], core(x, state)[0])
    core.eval()
    torch.testing.assert_close(core(x, state)[0], by_hand(core, core.cell.weight_hh_l0, x, state))
    torch.testing.assert_close(core.state_dict(), before, rtol=0, atol=0)


def test_without_weight_drop_training_is_the_plain_layer() -> None:
    core, x, state = lstm(0.0)
    expected, _ = core.cell(x, tuple(tensor[None] for tensor in state))
    assert torch.equal(core(x, state)[0], expected)


@pytest.mark.parametrize("device", [CUDA])
def test_cudnn_takes_dropped_weights_without_a_word(device: str) -> None:
    core, x, state = lstm(0.4)
    core, x, state = core.float().to(device), x.float().to(device), state
    state = tuple(tensor.float().to(device) for tensor in state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for low in (False, True):
            with torch.autocast(device, torch.bfloat16, enabled=low):
                torch.manual_seed(9)
                found, _ = core(x, state)
                torch.manual_seed(9)
                dropped = dropout(core.cell.weight_hh_l0, 0.4)
            expected = by_hand(core, dropped, x, state)
            # cuDNN multiplies float32 in TF32, which keeps ten bits.
            close = {"rtol": 0, "atol": 3e-2 if low else 5e-3}
            torch.testing.assert_close(found.float(), expected, **close)
            ours, theirs = (
                torch.autograd.grad(y.float().sum(), core.cell.weight_hh_l0)[0]
                for y in (found, expected)
            )
            torch.testing.assert_close(ours, theirs, rtol=0, atol=10 * close["atol"])


def qrnn_by_hand(
    core: QRNNCore, weight: Tensor, x_BTD: Tensor, state: tuple[Tensor, ...]
) -> Tensor:
    cell, before, outputs = state[0], state[-1], []
    for x in x_BTD.unbind(1):
        seen = torch.cat([before, x], dim=-1) if core.window == 2 else x
        z, f, o = F.linear(seen, weight, core.gates.bias).chunk(3, dim=-1)
        f = torch.sigmoid(f)
        cell, before = f * cell + (1 - f) * torch.tanh(z), x
        outputs.append(torch.sigmoid(o) * cell)
    return torch.stack(outputs, dim=1)


def qrnn(window: int, **rates: float) -> tuple[QRNNCore, Tensor, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    core = QRNNCore(5, 3, window=window, **rates).double()
    state = tuple(torch.randn(2, dim).double() for dim in core.state_dims)
    return core, torch.randn(2, 7, 3).double(), state


@pytest.mark.parametrize("window", [1, 2])
def test_qrnn_is_its_formula_and_carries_what_it_needs(window: int) -> None:
    core, x, state = qrnn(window)
    found, after = core(x, state)
    torch.testing.assert_close(found, qrnn_by_hand(core, core.gates.weight, x, state))
    assert core.state_names == ("cell", "input")[:window]
    pieces, carried = [], state
    for piece in x.split([1, 4, 2], dim=1):
        y, carried = core(piece, carried)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, dim=1), found)
    torch.testing.assert_close(carried, after)


def test_qrnn_drops_its_input_weights() -> None:
    core, x, state = qrnn(2, weight_drop=0.3)
    torch.manual_seed(4)
    found, _ = core(x, state)
    torch.manual_seed(4)
    dropped = dropout(core.gates.weight, 0.3)
    torch.testing.assert_close(found, qrnn_by_hand(core, dropped, x, state))
    core.eval()
    torch.testing.assert_close(core(x, state)[0], qrnn_by_hand(core, core.gates.weight, x, state))


def test_zoneout_keeps_cells_in_training_and_slows_them_in_evaluation() -> None:
    core, x, state = qrnn(1, zoneout=0.5)
    with torch.no_grad():
        core.gates.weight.zero_()
        core.gates.bias.copy_(torch.tensor([50.0, -50.0, 50.0]).repeat_interleave(5))
    cells = torch.stack([core(x[:, :1], state)[1][0] for _ in range(400)])
    assert set(cells[:, 0, 0].tolist()) == {state[0][0, 0].item(), 1.0}
    assert (cells == 1).double().mean().item() == pytest.approx(0.5, abs=0.05)
    core.eval()
    halfway = (state[0] + 1) / 2
    torch.testing.assert_close(core(x[:, :1], state)[1][0], halfway)


def test_zoneout_blends_with_whatever_precision_a_model_has() -> None:
    core, x, state = qrnn(1, zoneout=0.5)
    with torch.autocast("cpu", torch.bfloat16):
        # Autocast leaves 64 bits alone.
        y, _ = core(x, state)
    assert y.dtype == torch.float64


def test_a_qrnn_keeps_small_changes_in_low_precision() -> None:
    core, x, state = qrnn(1)
    core, x = core.float(), x.float()
    with torch.autocast("cpu", torch.bfloat16):
        y, (cell,) = core(x, (state[0].float(),))
    assert (y.dtype, cell.dtype) == (torch.bfloat16, torch.float32)


def test_a_wider_window_is_refused() -> None:
    with pytest.raises(ValueError, match="window must be 1 or 2"):
        QRNNCore(4, window=3)


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["lstm", "lstm dropped", "gru"])
def test_small_gradients_survive_bfloat16(kind: str) -> None:
    # In float16 the least number is 6e-8: the mean loss of a large batch has smaller gradients.
    torch.manual_seed(0)
    dropped = LSTMCore(32, weight_drop=0.2)
    core = {"lstm": LSTMCore(32), "lstm dropped": dropped, "gru": GRUCore(32)}[kind].cuda()
    x_BTD, state = torch.randn(2, 5, 32).cuda(), tuple(torch.zeros(2, 2, 32).cuda())
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y_BTD, _ = core(x_BTD, state[: len(core.state_names)])
    (1e-9 * y_BTD.float().sum()).backward()
    assert y_BTD.dtype == torch.bfloat16
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in core.parameters())
