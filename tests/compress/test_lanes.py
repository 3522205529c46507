"""Reading in lock step: what the model predicts, what it learns, and that it forgets it again."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from tests.compress.small import CPU, TEXT, small_compressor

from sparing.compress.lanes import MAX_NORM, Learning, open_lanes
from sparing.errors import UserError

IDS_BT = np.frombuffer(TEXT, np.uint8).astype(np.int64)[:240].reshape(3, 80)


def logits_of(learning: Learning | None) -> np.ndarray:
    model = small_compressor().model
    with open_lanes(model, CPU, 3, 80, learning) as read:
        return np.stack([read(IDS_BT[:, at]) for at in range(80)], axis=1)


def test_steps_predict_what_the_model_predicts_for_whole_lanes() -> None:
    model = small_compressor().model.eval()
    with torch.no_grad():
        out = model(torch.from_numpy(IDS_BT.copy()), model.initial_state(3))
        whole_BTV = model.head.logits(out.hidden_BTD).numpy()
    np.testing.assert_allclose(logits_of(None), whole_BTV, rtol=1e-9)


def test_nothing_is_learned_before_the_first_chunk_is_read_and_something_after_it() -> None:
    fixed_BTV, learned_BTV = logits_of(None), logits_of(Learning(chunk=20, rate=1e-2))
    assert np.array_equal(learned_BTV[:, :20], fixed_BTV[:, :20])
    assert np.abs(learned_BTV[:, 20] - fixed_BTV[:, 20]).max() > 1e-3


def test_learning_the_same_text_twice_gives_the_same_bits() -> None:
    learning = Learning(chunk=7, rate=1e-2)
    assert np.array_equal(logits_of(learning), logits_of(learning))


def test_the_update_is_one_of_the_optimizer_on_the_mean_loss_of_the_chunk() -> None:
    learning, model = Learning(chunk=20, rate=1e-2), small_compressor().model.eval()
    optimizer = learning.optimizer(list(model.parameters()))
    read_BT = torch.from_numpy(IDS_BT.copy())
    out = model(read_BT[:, :20], model.initial_state(3))
    model.head.nats(out.hidden_BTD, read_BT[:, 1:21]).mean().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    assert norm > MAX_NORM
    optimizer.step()
    with torch.no_grad():
        after = model(read_BT[:, 20:21], out.state)
        logits_BV = model.head.logits(after.hidden_BTD[:, -1]).numpy()
    np.testing.assert_allclose(logits_of(learning)[:, 20], logits_BV, rtol=1e-9)


@pytest.mark.parametrize("learning", [None, Learning(chunk=5)])
def test_the_model_is_left_as_it_was(learning: Learning | None) -> None:
    model = small_compressor().model.train()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with suppress(KeyboardInterrupt), open_lanes(model, CPU, 3, 80, learning) as read:
        for at in range(12):
            read(IDS_BT[:, at])
        raise KeyboardInterrupt
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(("chunk", "rate"), [(0, 0.1), (1 << 21, 0.1), (5, 0.0), (5, float("nan"))])
def test_learning_that_makes_no_sense_is_refused(chunk: int, rate: float) -> None:
    with pytest.raises(UserError, match="learning needs"):
        Learning(chunk=chunk, rate=rate)
