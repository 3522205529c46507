"""The training step: gradients, micro-batches and the update."""

import itertools
from collections.abc import Callable

import pytest
import torch
from tests.training.toy import (
    MODEL,
    stack_training,
    steep,
    toy_training,
)
from torch import Tensor

from sparing.errors import is_out_of_memory
from sparing.models.api import Output, State
from sparing.models.sha_rnn.model import SHARNN
from sparing.models.stack.config import StackConfig, WindowedAttentionConfig
from sparing.models.stack.model import Stack
from sparing.training.state import LossScale, Training
from sparing.training.step import OutOfMemoryError, compute_gradients, train_step, update_weights


def lively_training() -> Training:
    """A stack whose blocks change the stream from the start."""
    torch.manual_seed(5)
    training = stack_training()
    for parameter in training.model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return training


@pytest.mark.parametrize("micro_batches", [2, 4])
@pytest.mark.parametrize("start", [toy_training, lively_training])
def test_micro_batches_change_no_gradient_and_no_state(
    start: Callable[[], Training], micro_batches: int
) -> None:
    whole, cut = start(), start()
    for segment in (next(whole.stream.segments()), *[next(whole.stream.segments())] * 2):
        nats, norm, state = compute_gradients(whole, segment, 1)
        cut_nats, cut_norm, cut_state = compute_gradients(cut, segment, micro_batches)
        assert cut_nats == pytest.approx(nats, rel=1e-5)
        assert cut_norm.item() == pytest.approx(norm.item(), rel=1e-5)
        for name in state:
            torch.testing.assert_close(cut_state[name], state[name])
        for (name, p), q in zip(
            whole.model.named_parameters(), cut.model.parameters(), strict=True
        ):
            torch.testing.assert_close(q.grad, p.grad, msg=name)
        whole.state, cut.state = state, cut_state
        whole.optimizer.zero_grad()
        cut.optimizer.zero_grad()


@pytest.mark.parametrize(("micro_batches", "buffers"), [(1, 1), (2, 3)])
def test_a_memory_is_copied_only_with_several_micro_batches(
    micro_batches: int, buffers: int
) -> None:
    windowed = WindowedAttentionConfig(heads=1, head_dim=8, span_limit=200)
    config = StackConfig(vocab_size=7, pattern="a", dim=8, windowed=windowed)
    training = toy_training(Stack(config))
    memories = []
    for segment in itertools.islice(training.stream.segments(), 3):
        _, _, training.state = compute_gradients(training, segment, micro_batches)
        memories.append(training.state["blocks.0.entries"])
    assert len({memory.untyped_storage().data_ptr() for memory in memories}) == buffers


def after_two_updates(bad: range, *, zeroed: bool) -> list[Tensor]:
    training = toy_training(steep(bad))
    for number, segment in enumerate(itertools.islice(training.stream.segments(), 2)):
        nats, norm, _ = compute_gradients(training, segment, 1)
        for parameter in training.model.parameters() if zeroed and number else ():
            if parameter.grad is not None:
                parameter.grad.zero_()
        assert update_weights(training, nats, norm)
    return list(training.model.parameters())


def test_an_update_without_finite_gradients_is_one_with_zeros() -> None:
    wanted = after_two_updates(range(0), zeroed=True)
    found = after_two_updates(range(2, 3), zeroed=False)
    assert all(map(torch.equal, found, wanted))


def test_gradients_do_not_depend_on_the_loss_scale() -> None:
    plain, scaled = toy_training(), toy_training()
    scaled.scale = LossScale(1024.0, 0, True)
    segment = next(plain.stream.segments())
    norms = [compute_gradients(training, segment, 1)[1].item() for training in (plain, scaled)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    for p, q in zip(plain.model.parameters(), scaled.model.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_a_step_updates_the_weights_and_carries_the_state() -> None:
    training = toy_training()
    before, weights = training.state, [p.detach().clone() for p in training.model.parameters()]
    result = train_step(training, next(training.stream.segments()), 2)
    assert (result.updated, result.overflowed) == (True, False)
    assert result.grad_norm.item() > 0
    assert training.state is not before
    assert not any(map(torch.equal, training.model.parameters(), weights))
    assert all(parameter.grad is None for parameter in training.model.parameters())


@pytest.mark.parametrize(("scale", "overflowed"), [(1024.0, True), (0.5, False)])
def test_only_a_scale_above_one_is_blamed_for_an_overflow(scale: float, overflowed: bool) -> None:
    training = toy_training(steep(range(1, 2)))
    training.scale = LossScale(scale, 0, True)
    result = train_step(training, next(training.stream.segments()), 1)
    assert (result.updated, result.overflowed) == (False, overflowed)
    assert training.scale.value == scale / 2


def test_out_of_memory_is_raised_before_anything_changes() -> None:
    class Full(SHARNN):
        def forward(self, tokens_BT: Tensor, state: State) -> Output:
            raise torch.OutOfMemoryError("out of memory")

    training = toy_training(Full(MODEL))
    before = training.state
    with pytest.raises(OutOfMemoryError) as caught:
        train_step(training, next(training.stream.segments()), 1)
    assert is_out_of_memory(caught.value)
    assert training.state is before
