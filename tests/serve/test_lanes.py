"""Lanes of every family: read, written, kept and restored as one text at a time would be."""

from collections.abc import Callable
from contextlib import suppress
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.models.tiny import CONFIGS, tiny

from sparing import device
from sparing.data.vocab import SymbolVocab
from sparing.generate.decode import prefill
from sparing.lm import LM
from sparing.models.api import eval_mode
from sparing.runs.config import RunConfig
from sparing.serve import lanes as module
from sparing.serve.lanes import Lanes
from sparing.training.config import TrainConfig

CHUNK = 5
NAMES = [name for name in CONFIGS if not name.startswith("supernet")]


def lm_of(name: str) -> LM:
    family, config = CONFIGS[name]
    run = RunConfig(recipe="tiny", family=family, model=config, train=TrainConfig(steps=1))
    vocab = SymbolVocab(bytes(range(97, 97 + config.vocab_size)))
    return LM(tiny(name), vocab, run, device.pick("cpu", "float32"))


def random_ids(length: int, seed: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.random.default_rng(seed).integers(0, 11, length)


def read_all(lanes: Lanes, lane: int, ids: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
    for at in range(0, len(ids), CHUNK):
        lanes.read(lane, ids[at : at + CHUNK])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("block", [16, 512])
def test_lanes_of_different_ages_predict_what_each_would_alone(
    name: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    lm = lm_of(name)
    ids = [random_ids(length, length) for length in (3, 23, 57)]
    with eval_mode(lm.model, lm.hardware):
        lanes = Lanes(lm, 4, CHUNK)
        # The second lane holds another text before; the last one joins between two steps.
        lanes.begin(2)
        read_all(lanes, 2, random_ids(31, 0))
        lanes.write(2)
        lanes.step({2: 1})
        lanes.leave(2)
        for lane, text in zip((0, 2), ids[:2], strict=True):
            lanes.begin(lane)
            read_all(lanes, lane, text[:-2])
            lanes.write(lane)
        lanes.begin(3)
        lanes.read(3, ids[2][:CHUNK])
        lanes.step({0: int(ids[0][-2]), 2: int(ids[1][-2])})
        read_all(lanes, 3, ids[2][CHUNK:-1])
        lanes.write(3)
        found = lanes.step({0: int(ids[0][-1]), 2: int(ids[1][-1]), 3: int(ids[2][-1])})
        for lane, text in zip((0, 2, 3), ids, strict=True):
            state = lm.model.initial_state(1, inference=True)
            expected, _ = prefill(lm.model, torch.from_numpy(text)[None], state, CHUNK)
            torch.testing.assert_close(found[lane], expected[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("reach", range(8, 21))
def test_empty_slots_that_are_attended_to_are_never_left_out(
    reach: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its heads look `reach` slots back, even where nothing was written, and rings have 16 or 32.
    monkeypatch.setattr(module, "BLOCK", 16)
    lm, ids = lm_of("adaptive_span"), random_ids(CHUNK + 1, 1)
    for name, parameter in lm.model.named_parameters():
        if "span" in name:
            parameter.data.fill_((reach - 4) / 64)
    with eval_mode(lm.model, lm.hardware):
        lanes = Lanes(lm, 2, CHUNK)
        lanes.begin(0)
        read_all(lanes, 0, random_ids(23, 2))
        lanes.write(0)
        lanes.begin(1)
        read_all(lanes, 1, ids[:-1])
        lanes.write(1)
        found = lanes.step({0: 1, 1: int(ids[-1])})[1]
        state = lm.model.initial_state(1, inference=True)
        expected, _ = prefill(lm.model, torch.from_numpy(ids)[None], state, CHUNK)
    torch.testing.assert_close(found, expected[0], rtol=1e-9, atol=1e-9)


def finish(lanes: Lanes) -> None:
    lanes.write(1)
    lanes.step({0: 1, 1: 2})
    # The engine frees a lane after the step that follows the lane's last token.
    lanes.step({0: 3})


def cancel(lanes: Lanes) -> None:
    lanes.step({0: 1})


def cancel_restored(lanes: Lanes) -> None:
    kept = lanes.keep(1)
    lanes.leave(1)
    lanes.begin(1)
    lanes.restore(1, kept)


def break_off(lanes: Lanes) -> None:
    model = lanes.lm.model

    def fail(*given: torch.Tensor) -> None:
        model(*given)
        raise RuntimeError("no memory is left")

    with pytest.MonkeyPatch.context() as patch, suppress(RuntimeError):
        patch.setattr(lanes, "_model", Mock(wraps=model, side_effect=fail, device=model.device))
        lanes.read(1, random_ids(CHUNK, 3))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("end", [finish, cancel, cancel_restored, break_off])
def test_nothing_is_left_of_the_text_before(name: str, end: Callable[[Lanes], None]) -> None:
    lm, text, answers = lm_of(name), random_ids(CHUNK, 1), list[torch.Tensor]()
    with eval_mode(lm.model, lm.hardware):
        for used in (False, True):
            lanes = Lanes(lm, 2, CHUNK)
            lanes.begin(0)
            lanes.write(0)
            if used:
                lanes.begin(1)
                read_all(lanes, 1, random_ids(3 * CHUNK, 2))
                end(lanes)
                lanes.leave(1)
            lanes.begin(1)
            answers.append(lanes.read(1, text))
    assert torch.equal(*answers)


@pytest.mark.parametrize("name", ["stack in rounds", "sha_rnn", "transformer_xl", "adaptive_span"])
@pytest.mark.parametrize("block", [16, 512])
def test_a_lane_goes_on_from_what_was_kept_in_another(
    name: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    lm, ids = lm_of(name), random_ids(40, 1)
    with eval_mode(lm.model, lm.hardware):
        lanes = Lanes(lm, 3, CHUNK)
        lanes.begin(0)
        read_all(lanes, 0, ids[:20])
        kept = lanes.keep(0)
        read_all(lanes, 0, ids[20:])
        lanes.begin(2)
        read_all(lanes, 2, random_ids(33, 2))
        for lane in (2, 1):
            lanes.restore(lane, kept)
            read_all(lanes, lane, ids[20:])
            lanes.write(lane)
        lanes.write(0)
        first, second, third = lanes.step({0: 1, 1: 1, 2: 1})
    assert torch.equal(first, second)
    assert torch.equal(first, third)


def test_what_is_kept_is_as_small_as_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 16)
    lm = lm_of("transformer_xl")
    lanes, sizes = Lanes(lm, 1, CHUNK), []
    with eval_mode(lm.model, lm.hardware):
        lanes.begin(0)
        for _ in range(4):
            lanes.read(0, random_ids(CHUNK, 0))
            sizes.append(lanes.keep(0).nbytes)
    assert sizes == [sizes[0] * count for count in (1, 2, 3, 4)]
