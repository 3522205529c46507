"""Reading in lock step: what the model predicts, what it learns, and that it forgets it again."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from tests.compress.small import CPU, TEXT, small_compressor
from tests.models.tiny import CONFIGS, FIRST_OF_FAMILY, VOCAB, tiny
from torch import Tensor

from sparing.compress import lanes
from sparing.compress.lanes import MAX_NORM, Learning, open_lanes
from sparing.errors import UserError
from sparing.models.api import LanguageModel

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


@torch.no_grad()
def carried_logits(model: LanguageModel, ids_BT: Tensor) -> np.ndarray:
    state, found = model.initial_state(len(ids_BT), inference=True), []
    for ids_B1 in ids_BT.split(1, dim=1):
        out = model(ids_B1, state)
        state = out.state
        found.append(model.head.logits(out.hidden_BTD[:, -1]).numpy())
    return np.stack(found)


def read_all(name: str, ids_BT: Tensor, learning: Learning | None) -> np.ndarray:
    with open_lanes(tiny(name), CPU, *ids_BT.shape, learning) as read:
        return np.stack([read(ids_B) for ids_B in ids_BT.T.numpy()])


# More tokens than a block of slots and than most memories; no multiple of the chunk.
LONG_BT = torch.from_numpy(np.random.default_rng(0).integers(0, VOCAB, (2, 70)))


@pytest.mark.parametrize("name", CONFIGS)
def test_memories_cut_to_the_text_predict_what_whole_ones_do(name: str) -> None:
    wanted = carried_logits(tiny(name), LONG_BT)
    np.testing.assert_allclose(read_all(name, LONG_BT, None), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", FIRST_OF_FAMILY)
def test_memories_cut_to_the_text_hold_what_was_read_while_learning(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learning = Learning(chunk=9, rate=1e-2)
    monkeypatch.setattr(lanes, "BLOCK", 4)
    found = read_all(name, LONG_BT, learning)
    monkeypatch.setattr(lanes, "fill_static", lambda empty, carried: None)
    wanted = read_all(name, LONG_BT, learning)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


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
