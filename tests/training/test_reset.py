"""Which lanes begin a text, with which state and from which token."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.toy import (
    MODEL,
    PLAIN,
    Shelf,
    budget,
    callbacks,
    entries,
    text,
    toy_training,
)
from torch import Tensor

from sparing.data.stream import Segment, Stream, StreamConfig
from sparing.models.api import Output, State
from sparing.models.sha_rnn.model import SHARNN
from sparing.training.distributed.world import World
from sparing.training.loop import fit
from sparing.training.reset import begin_segment, lanes_to_reset
from sparing.training.state import Training


def chosen(step: int = 0, world: World | None = None, **settings: Any) -> list[bool]:
    """The lanes of this process that are reset."""
    training, config = toy_training(batch=4), budget(**settings)
    training.counters.step, training.world = step, world or World()
    lanes: list[bool] = lanes_to_reset(training, config).tolist()
    local = training.world.lanes(config.batch)
    return lanes[local.start : local.stop]


def second_segment(training: Training) -> Segment:
    """The first segment that is read with a carried state."""
    segments = training.stream.segments()
    next(segments)
    return next(segments)


def test_which_lanes_are_reset_depends_on_seed_and_step_alone() -> None:
    first = chosen(7, batch=64, state_reset=0.5)
    assert chosen(7, batch=64, state_reset=0.5) == first
    assert chosen(8, batch=64, state_reset=0.5) != first
    assert chosen(7, batch=64, state_reset=0.5, seed=5) != first
    training = toy_training()
    before = torch.get_rng_state()
    begin_segment(training, second_segment(training), budget(state_reset=0.5))
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_reset_lane_state_and_segment_are_the_same_objects() -> None:
    training = toy_training()
    state, segment = training.state, second_segment(training)
    assert begin_segment(training, segment, budget(state_reset=1e-9)) is segment
    assert training.state is state


@pytest.mark.parametrize("state_reset", [0.01, 0.3])
def test_as_many_lanes_are_reset_as_configured(state_reset: float) -> None:
    found = [sum(chosen(step, batch=2000, state_reset=state_reset)) for step in range(10)]
    assert sum(found) / 20_000 == pytest.approx(state_reset, abs=4 * (state_reset / 20_000) ** 0.5)
    assert len(set(found)) > 1


@pytest.mark.parametrize("state_reset", [-0.1, 1.1, math.inf, math.nan])
def test_a_state_reset_that_is_no_probability_is_refused(state_reset: float) -> None:
    with pytest.raises(ValueError, match=r"train\.state_reset must be from 0 to 1, not"):
        budget(state_reset=state_reset)


@pytest.mark.parametrize("size", [2, 3])
def test_which_lanes_are_reset_does_not_depend_on_the_number_of_processes(size: int) -> None:
    class One(World):
        def __init__(self, rank: int) -> None:
            self.rank, self.size = rank, size

    settings: dict[str, Any] = {"batch": 12, "state_reset": 0.5}
    parts = [chosen(3, One(rank), **settings) for rank in range(size)]
    assert [lane for part in parts for lane in part] == chosen(3, **settings)


@pytest.mark.parametrize("state_reset", [0.5, 1.0])
def test_lanes_that_are_reset_read_a_text_of_their_own(state_reset: float) -> None:
    """The same result as for a text that begins there, and others as if nothing had happened."""
    training = toy_training()
    training.stream.split = replace(training.stream.split, start=6)
    training.counters.step = 2
    first, second = (next(training.stream.segments()), second_segment(training))
    training.state = training.model(first.inputs_BT, training.state).state
    carried = training.model(second.inputs_BT, training.state).hidden_BTD
    read = begin_segment(training, second, budget(state_reset=state_reset))
    found = training.model(read.inputs_BT, training.state).hidden_BTD
    lanes = chosen(2, state_reset=state_reset)
    assert any(lanes)
    for lane, begins in enumerate(lanes):
        own = torch.cat([torch.tensor([6]), second.inputs_BT[lane, 1:]])[None]
        alone = training.model(own, training.fresh_state(1)).hidden_BTD[0]
        torch.testing.assert_close(found[lane], alone if begins else carried[lane])
    assert torch.equal(read.targets_BT, second.targets_BT)


def losses(folder: Path, *, dropout: float = 0.0, **settings: Any) -> list[float]:
    """Of every step."""
    folder.mkdir()
    torch.manual_seed(5)
    training = toy_training(SHARNN(replace(MODEL, dropout_hidden=dropout)))
    fit(training, budget(**settings), PLAIN, callbacks(folder, Shelf()))
    return [entry["nats_per_token"] for entry in entries(folder, "train")]


def test_without_state_resets_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never, often = (
        losses(tmp_path / str(share), dropout=0.3, state_reset=share) for share in (1e-12, 0.5)
    )
    monkeypatch.setattr(SHARNN, "reset_lanes", None)
    assert losses(tmp_path / "without", dropout=0.3) == never != often


def test_state_resets_do_not_depend_on_micro_batches(tmp_path: Path) -> None:
    whole, cut = (losses(tmp_path / str(n), state_reset=0.3, micro_batches=n) for n in (1, 4))
    assert cut == pytest.approx(whole, rel=1e-4)


class Watched(SHARNN):
    """Notes which lanes each segment is read with a fresh state."""

    def __init__(self) -> None:
        super().__init__(MODEL)
        self.found: list[list[bool]] = []

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        self.found.append((~state["blocks.0.hidden"].any(1)).tolist())
        return super().forward(tokens_BT, state)


@pytest.mark.parametrize("state_reset", [0.4, 1.0])
def test_lanes_are_reset_before_their_segment_is_read(tmp_path: Path, state_reset: float) -> None:
    model, config = Watched(), budget(steps=9, state_reset=state_reset)
    fit(toy_training(model), config, PLAIN, callbacks(tmp_path, Shelf()))
    wanted = [chosen(step, state_reset=state_reset) for step in range(1, 9)]
    assert model.found == [[True] * 4, *wanted]
    assert any(map(any, wanted))


def test_lanes_that_begin_a_chunk_are_reset_with_those_drawn() -> None:
    training = toy_training()
    begins = np.array([False, True, False, True])
    assert lanes_to_reset(training, budget(), begins).tolist() == begins.tolist()
    often = budget(state_reset=0.9)
    both = lanes_to_reset(training, often, begins)
    assert both.tolist() == (lanes_to_reset(training, often) | begins).tolist()


@pytest.mark.parametrize("reset", [True, False])
def test_the_state_is_carried_across_the_joints_of_chunks_unless_it_is_reset(
    tmp_path: Path, *, reset: bool
) -> None:
    training = toy_training(model := Watched())
    stream = StreamConfig(batch=4, segment=6, shuffle_chunk=24, shuffle_reset=reset)
    training.stream = Stream(text(), stream)
    config = budget(steps=17, shuffle_chunk=24, shuffle_reset=reset)
    fit(training, config, PLAIN, callbacks(tmp_path, Shelf()))
    wanted = [segment.begins_B for segment in Stream(text(), stream).one_epoch()]
    fresh = [[False] * 4 if begins is None else begins.tolist() for begins in wanted[1:17]]
    assert model.found[:17] == [[True] * 4, *fresh]
    assert any(map(any, fresh)) == reset
