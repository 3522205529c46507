"""Laws of every residual block; each block's test calls these."""

import torch
from torch import Tensor

from sparing.nn.block import Block
from sparing.nn.state import State, select_lanes

DIM = 8


def lively(block: Block) -> Block:
    """Perturb the weights, so that laws cannot hold by accident; float64, dropout off."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return block.double().eval()


def stream(batch: int = 2, length: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(batch, length, DIM, dtype=torch.float64, generator=generator)


def read(
    block: Block, hidden_BTD: Tensor, size: int, *, inference: bool = False
) -> tuple[Tensor, State]:
    first = block.initial_state(hidden_BTD.size(0), hidden_BTD, inference=inference)
    state, pieces = first, []
    for piece_BTD in hidden_BTD.split(size, dim=1):
        delta_BTD, state = block(piece_BTD, state)
        pieces.append(delta_BTD)
    return torch.cat(pieces, dim=1), state


def the_future_is_invisible(block: Block) -> None:
    hidden_BTD = stream()
    changed_BTD = hidden_BTD.clone()
    # Along one channel only: a norm removes what is added to all equally.
    changed_BTD[:, 7, 0] += 1
    before, after = read(block, hidden_BTD, 12)[0], read(block, changed_BTD, 12)[0]
    torch.testing.assert_close(before[:, :7], after[:, :7], rtol=0, atol=0)
    assert (before[:, 7:] - after[:, 7:]).abs().amax() > 1e-3


def segments_do_not_change_the_answer(block: Block) -> None:
    whole, whole_state = read(block, stream(), 12)
    for size in (1, 5):
        cut, cut_state = read(block, stream(), size)
        torch.testing.assert_close(cut, whole)
        assert cut_state.keys() == whole_state.keys()
        for key, tensor in cut_state.items():
            torch.testing.assert_close(tensor, whole_state[key])


def lanes_do_not_talk(block: Block) -> None:
    together, state = read(block, stream(3), 6)
    alone, alone_state = read(block, stream(3)[1:2], 6)
    torch.testing.assert_close(together[1:2], alone)
    for key, tensor in select_lanes(state, slice(1, 2)).items():
        torch.testing.assert_close(tensor, alone_state[key])


def reset_lanes_are_fresh(block: Block) -> None:
    """And the others are not changed, also if the block skips the step after the reset."""
    state = read(block, stream(3), 4)[1]
    chosen = torch.tensor([False, True, False])
    for skip in (False, True):
        on, fresh, found = (
            read_on(block, first, skip=skip)
            for first in (state, block.initial_state(3, stream()), block.reset_lanes(state, chosen))
        )
        torch.testing.assert_close(found[chosen], fresh[chosen])
        torch.testing.assert_close(found[~chosen], on[~chosen])


def read_on(block: Block, state: State, *, skip: bool) -> Tensor:
    pieces = []
    for number, piece_BTD in enumerate((-stream(3)).split(2, dim=1)):
        if skip and number == 0:
            state = block.skip_step(piece_BTD, state)
            continue
        delta_BTD, state = block(piece_BTD, state)
        pieces.append(delta_BTD)
    return torch.cat(pieces, dim=1)


def state_is_lanes_first_and_free_of_the_graph(block: Block) -> None:
    hidden_BTD = stream(3).requires_grad_()
    first = block.initial_state(3, hidden_BTD)
    state = block(hidden_BTD, first)[1]
    assert state.keys() == first.keys()
    assert all(tensor.size(0) == 3 and not tensor.requires_grad for tensor in state.values())


def every_parameter_gets_a_gradient(block: Block) -> None:
    first = block.initial_state(2, stream())
    delta_BTD, after = block(stream(), first)
    again_BTD, _ = block(stream() + delta_BTD, after)
    again_BTD.square().sum().backward()
    assert not [name for name, p in block.named_parameters() if p.grad is None or not p.grad.any()]


def a_full_state_is_as_large_as_promised(block: Block) -> None:
    _, state = read(block, stream(1, 40), 8)
    assert sum(tensor.numel() for tensor in state.values()) == block.state_numbers()


def everything(block: Block) -> None:
    """All of them, on lively weights."""
    block = lively(block)
    for law in (
        the_future_is_invisible,
        segments_do_not_change_the_answer,
        lanes_do_not_talk,
        reset_lanes_are_fresh,
        state_is_lanes_first_and_free_of_the_graph,
        every_parameter_gets_a_gradient,
        a_full_state_is_as_large_as_promised,
    ):
        law(block)
    assert block.flops_per_token() > 0
    assert all(isinstance(value, float) for value in block.telemetry().values())
