"""Streams: lanes, segments, epochs, resuming and prefetching."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from sparing.data.stream import (
    IGNORE_INDEX,
    Cursor,
    Segment,
    Stream,
    StreamConfig,
    _draw_lengths,
    prefetch,
)
from sparing.data.tokens import Split
from sparing.errors import UserError

START = 9_999


def counting(tokens: int) -> Split:
    """A text in which every token is its own position."""
    return Split(np.arange(tokens, dtype=np.uint16), tokens, 0, START)


@st.composite
def streams(draw: st.DrawFn, *, shuffled: bool | None = None) -> tuple[Split, StreamConfig]:
    segment = draw(st.integers(1, 20))
    chunks: dict[str, Any] = {}
    if draw(st.booleans()) if shuffled is None else shuffled:
        chunks = {"shuffle_chunk": segment * draw(st.integers(1, 5)), "shuffle_reset": True}
    config = StreamConfig(
        batch=draw(st.integers(1, 9)),
        segment=segment,
        randomised=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
        length_std=draw(st.sampled_from([0.0, 5.0, 40.0])),
        halved=draw(st.sampled_from([0.0, 0.05, 1.0])),
        longest=draw(st.sampled_from([None, 1, 25])),
        pad_last=draw(st.booleans()),
        random_epoch_offset=draw(st.booleans()),
        **chunks,
    )
    least = config.batch * config.segment
    return counting(draw(st.integers(least, least + 200))), config


def same(one: Segment, other: Segment) -> bool:
    return (
        torch.equal(one.inputs_BT, other.inputs_BT)
        and torch.equal(one.targets_BT, other.targets_BT)
        and one[2:6] == other[2:6]
        and np.array_equal(one.begins_B, other.begins_B)
    )


def kept(segment: Segment) -> torch.Tensor:
    return segment.targets_BT[segment.targets_BT != IGNORE_INDEX]


@given(streams())
def test_every_token_is_a_target_exactly_once(made: tuple[Split, StreamConfig]) -> None:
    split, config = made
    segments = list(Stream(split, config).one_epoch())
    targets = torch.cat([kept(segment) for segment in segments])
    assert sorted(targets.tolist()) == list(range(split.ids.size))
    assert sum(segment.count for segment in segments) == split.ids.size


@given(streams())
def test_each_input_is_the_token_before_its_target(made: tuple[Split, StreamConfig]) -> None:
    for segment in Stream(*made).one_epoch():
        counted = segment.targets_BT != IGNORE_INDEX
        inputs, targets = segment.inputs_BT[counted], segment.targets_BT[counted]
        assert torch.equal(inputs, torch.where(targets == 0, START, targets - 1))
        assert inputs.dtype == targets.dtype == torch.int64
        assert segment.inputs_BT.is_contiguous()
        assert segment.targets_BT.is_contiguous()


@given(streams(shuffled=False))
def test_lanes_are_contiguous_across_segments(made: tuple[Split, StreamConfig]) -> None:
    split, config = made
    lanes = torch.cat([s.targets_BT for s in Stream(split, config).one_epoch()], dim=1)
    lengths = [len(lane[lane != IGNORE_INDEX]) for lane in lanes]
    assert max(lengths) - min(lengths) <= 1
    for lane in lanes:
        run = lane[lane != IGNORE_INDEX]
        assert run.tolist() == list(range(int(run[0]), int(run[0]) + len(run)))


@given(streams(), st.integers(0, 30))
def test_a_stream_resumes_from_its_cursor(made: tuple[Split, StreamConfig], stopped: int) -> None:
    whole = list(islice(Stream(*made).segments(), stopped + 4))
    cursor = whole[stopped].cursor
    resumed = islice(Stream(*made, cursor=cursor).segments(), 3)
    assert all(same(*pair) for pair in zip(whole[stopped + 1 :], resumed, strict=True))


@given(streams(), st.integers(1, 4))
def test_the_lanes_of_all_processes_make_up_the_batch(
    made: tuple[Split, StreamConfig], processes: int
) -> None:
    split, config = made
    assume(config.batch >= processes)
    edges = [config.batch * process // processes for process in range(processes + 1)]
    parts = [Stream(split, config, range(*pair)).segments() for pair in pairwise(edges)]
    for whole in islice(Stream(split, config).segments(), 8):
        shares = [next(part) for part in parts]
        assert torch.equal(torch.cat([s.inputs_BT for s in shares]), whole.inputs_BT)
        assert torch.equal(torch.cat([s.targets_BT for s in shares]), whole.targets_BT)
        assert {share.count for share in shares} == {whole.count}
        assert {share.cursor for share in shares} == {whole.cursor}


@given(streams())
def test_only_the_first_segment_of_an_epoch_is_fresh(made: tuple[Split, StreamConfig]) -> None:
    stream = Stream(*made)
    epoch = list(stream.one_epoch())
    assert [segment.fresh for segment in epoch] == [True] + [False] * (len(epoch) - 1)
    assert epoch[-1].cursor == Cursor(1, 0, 0)
    following = list(islice(stream.segments(), len(epoch) + 1))[-1]
    assert following.fresh
    assert following.cursor.epoch >= 1


def test_a_short_example_by_hand() -> None:
    stream = Stream(counting(7), StreamConfig(batch=2, segment=3))
    first, second = stream.one_epoch()
    assert first.inputs_BT.tolist() == [[START, 0, 1], [2, 3, 4]]
    assert first.targets_BT.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert first.cursor == Cursor(0, 1, 3)
    assert second.targets_BT.tolist() == [[IGNORE_INDEX], [6]]
    assert second.count == 1
    assert stream.tokens_per_epoch == 7


@pytest.mark.parametrize("random_epoch_offset", [False, True])
def test_wrapping_at_the_end_of_a_text_does_not_copy_it(
    tmp_path: Path, random_epoch_offset: bool
) -> None:
    size, segment = 4_000_000, 64
    np.arange(size, dtype=np.uint16).tofile(tmp_path / "ids")
    ids = np.memmap(tmp_path / "ids", np.uint16, "r")
    config = StreamConfig(
        batch=1, segment=segment, pad_last=True, random_epoch_offset=random_epoch_offset
    )
    stream = Stream(Split(ids, size, 0, START), config)
    epoch = int(random_epoch_offset)
    position = size - stream._epoch_offset(epoch) - 20
    tracemalloc.start()
    inputs_BT, _ = stream._window(Cursor(epoch, 0, position), segment)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert inputs_BT[0, 20:].tolist() == [ids[-1], *range(segment - 21)]
    assert peak_bytes < 100_000


@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_a_padded_text_repeats_itself_as_often_as_it_must(tokens: int) -> None:
    stream = Stream(counting(tokens), StreamConfig(batch=1, segment=8, pad_last=True))
    inputs_BT, _ = stream._window(Cursor(), 8)
    assert inputs_BT.tolist() == [[START, *(np.arange(7) % tokens)]]


def test_random_epoch_offset_starts_every_later_epoch_elsewhere() -> None:
    stream = Stream(
        counting(40), StreamConfig(batch=2, segment=5, random_epoch_offset=True, seed=3)
    )
    walk = stream.segments()
    epochs = []
    for _ in range(3):
        lanes = torch.cat([next(walk).targets_BT for _ in range(4)], dim=1)
        epochs.append(lanes)
        assert sorted(lanes.flatten().tolist()) == list(range(40))
        for lane in lanes:
            assert torch.equal(lane, (lane[0] + torch.arange(20)) % 40)
    assert epochs[0][:, 0].tolist() == [0, 20]
    assert len({int(lanes[0, 0]) for lanes in epochs}) == 3


def epoch_of(made: tuple[Split, StreamConfig], epoch: int) -> list[Segment]:
    found = []
    for segment in Stream(*made, cursor=Cursor(epoch)).segments():
        found.append(segment)
        if segment.cursor.epoch != epoch:
            return found
    raise AssertionError


@given(streams(shuffled=True), st.integers(0, 3))
def test_a_shuffled_epoch_has_every_token_once_after_the_one_before_it(
    made: tuple[Split, StreamConfig], epoch: int
) -> None:
    segments = epoch_of(made, epoch)
    targets = torch.cat([kept(segment) for segment in segments])
    assert sorted(targets.tolist()) == list(range(made[0].ids.size))
    for segment in segments:
        counted = segment.targets_BT != IGNORE_INDEX
        inputs, targets = segment.inputs_BT[counted], segment.targets_BT[counted]
        assert torch.equal(inputs, torch.where(targets == 0, START, targets - 1))


@given(streams(shuffled=True), st.integers(0, 3))
def test_a_lane_reads_on_but_where_it_begins_a_chunk(
    made: tuple[Split, StreamConfig], epoch: int
) -> None:
    split, config = made
    assume(not config.randomised)
    before = None
    for segment in epoch_of(made, epoch):
        for lane, targets in enumerate(segment.targets_BT.tolist()):
            read = [token for token in targets if token != IGNORE_INDEX]
            begins = segment.begins_B is not None and bool(segment.begins_B[lane])
            last = [] if before is None or begins else before[lane][-1:]
            assert all((one + 1) % split.ids.size == two for one, two in pairwise(last + read))
        before = segment.targets_BT.tolist()


def test_a_lane_begins_a_chunk_once_in_its_length() -> None:
    config = StreamConfig(batch=4, segment=5, shuffle_chunk=20, shuffle_reset=True)
    made = counting(4 * 1000), config
    (first, *rest) = epoch_of(made, 1)
    assert first.fresh
    assert first.begins_B.all()
    at = {
        lane: [n for n, s in enumerate(rest, 1) if s.begins_B is not None and s.begins_B[lane]]
        for lane in range(4)
    }
    for begins in at.values():
        assert begins[0] <= 4
        assert {two - one for one, two in pairwise(begins)} == {4}
    # Not all lanes at once.
    assert len({begins[0] for begins in at.values()}) > 1


def test_every_epoch_and_every_seed_has_an_order_of_its_own() -> None:
    def order(epoch: int, seed: int = 3, **more: Any) -> list[list[int]]:
        config = StreamConfig(batch=8, segment=5, shuffle_chunk=20, seed=seed, **more)
        segments = epoch_of((counting(8 * 400), config), epoch)
        return torch.cat([segment.targets_BT for segment in segments], dim=1).tolist()

    orders = [order(0), order(1), order(2), order(1, seed=4), order(1, random_epoch_offset=True)]
    for at, one in enumerate(orders):
        for two in orders[:at]:
            same_places = np.equal(np.concatenate(one), np.concatenate(two))
            assert same_places.mean() < 0.03
    assert order(1) == orders[1]
    # The first epoch is shuffled as well.
    assert orders[0][0] != list(range(400))


def test_the_settings_of_an_order_are_those_that_change_it() -> None:
    plain = StreamConfig(batch=4, segment=5, seed=3)
    changes = [
        {"seed": 4}, {"segment": 40}, {"shuffle_chunk": 20}, {"shuffle_reset": True},
        {"random_epoch_offset": True}, {"pad_last": True}, {"randomised": True},
    ]  # fmt: skip
    for start in ({}, {"shuffle_chunk": 40}, {"random_epoch_offset": True}):
        one = replace(plain, **start)
        for change in changes:
            two = replace(one, **change)
            for epoch in (0, 1):
                texts = [read_by_lanes(config, epoch) for config in (one, two)]
                same = torch.equal(*texts)
                assert same == (one.order(epoch) == two.order(epoch)), (start, change, epoch)


def read_by_lanes(config: StreamConfig, epoch: int) -> torch.Tensor:
    segments = epoch_of((counting(4 * 400), config), epoch)
    wanted = torch.cat([segment.targets_BT for segment in segments], dim=1)
    return wanted[wanted != IGNORE_INDEX]


def test_without_chunks_the_order_is_that_of_the_text() -> None:
    plain = epoch_of((counting(60), StreamConfig(batch=2, segment=5)), 1)
    assert torch.cat([s.targets_BT for s in plain], dim=1).tolist() == [
        list(range(30)),
        list(range(30, 60)),
    ]
    assert all(segment.begins_B is None for segment in plain)


def test_a_padded_last_segment_has_no_extra_targets() -> None:
    plain = list(Stream(counting(10), StreamConfig(batch=2, segment=3)).one_epoch())
    filled = list(Stream(counting(10), StreamConfig(batch=2, segment=3, pad_last=True)).one_epoch())
    assert same(filled[0], plain[0])
    assert filled[1].inputs_BT.tolist() == [[2, 3, 4], [7, 8, 9]]
    assert filled[1].targets_BT.tolist() == [[3, 4, IGNORE_INDEX], [8, 9, IGNORE_INDEX]]
    assert filled[1][2:] == plain[1][2:]


def lengths(count: int, segment: int, **settings: float) -> np.ndarray:
    config = StreamConfig(batch=1, segment=segment, randomised=True, **settings)
    return _draw_lengths(np.random.default_rng(1), config, count)


def test_randomised_lengths_are_distributed_as_published() -> None:
    drawn = lengths(200_000, 1024)
    assert drawn.mean() == pytest.approx(995.8, abs=1.0)
    assert (drawn == 1024).mean() == pytest.approx(0.475, abs=0.01)
    assert (drawn < 600).mean() == pytest.approx(0.05, abs=0.005)
    assert drawn.max() == 1024
    assert lengths(1000, 8).min() == 5


def test_lengths_of_awd_lstm_vary_around_the_segment() -> None:
    drawn = lengths(200_000, 70, longest=90)
    near = drawn[drawn > 52]
    assert near.mean() == pytest.approx(69.5, abs=0.1)
    assert near.std() == pytest.approx(5.0, abs=0.1)
    assert (drawn <= 52).mean() == pytest.approx(0.05, abs=0.005)
    assert drawn[drawn <= 52].mean() == pytest.approx(34.5, abs=0.3)
    assert 85 < drawn.max() <= 90


def test_the_distribution_of_lengths_can_be_set() -> None:
    assert set(lengths(500, 70, length_std=0.0, halved=0.0)) == {70}
    assert set(lengths(500, 70, length_std=0.0, halved=1.0)) == {35}
    assert lengths(500, 70, length_std=20.0, halved=0.0, longest=75).max() == 75


def test_epochs_and_seeds_draw_other_lengths() -> None:
    def drawn(seed: int, epoch: int) -> list[int]:
        config = StreamConfig(batch=1, segment=64, randomised=True, seed=seed)
        segments = Stream(counting(2000), config, cursor=Cursor(epoch)).segments()
        return [segment.inputs_BT.size(1) for segment in islice(segments, 10)]

    assert drawn(1, 0) == drawn(1, 0)
    assert drawn(1, 0) != drawn(2, 0)
    assert drawn(1, 0) != drawn(1, 1)


def test_text_too_short_to_train_on_is_refused_with_its_numbers() -> None:
    stream = Stream(counting(99), StreamConfig(batch=10, segment=10))
    with pytest.raises(UserError, match=r"99 tokens.*10 x 10 = 100; lower one of them"):
        stream.segments()
    with pytest.raises(UserError, match="99 tokens, too few for a batch of 100 lanes"):
        Stream(counting(99), StreamConfig(batch=100, segment=1))
    with pytest.raises(UserError, match="at least 1"):
        Stream(counting(99), StreamConfig(batch=0, segment=1))


def test_text_shorter_than_a_segment_can_still_be_scored() -> None:
    (segment,) = Stream(counting(3), StreamConfig(batch=1, segment=64)).one_epoch()
    assert segment.targets_BT.tolist() == [[0, 1, 2]]


def test_a_cursor_of_another_corpus_is_refused() -> None:
    with pytest.raises(UserError, match="position 50, but its lanes have 10 tokens"):
        Stream(counting(20), StreamConfig(batch=2, segment=2), cursor=Cursor(0, 3, 50))


def test_a_memory_mapped_file_gives_the_same_segments_as_an_array(tmp_path: Path) -> None:
    def draw(split: Split) -> Iterator[Segment]:
        return Stream(split, StreamConfig(batch=3, segment=5)).one_epoch()

    counting(100).ids.tofile(tmp_path / "ids.bin")
    mapped = Split(np.memmap(tmp_path / "ids.bin", np.uint16, "r"), 100, 0, START)
    assert all(same(*pair) for pair in zip(draw(mapped), draw(counting(100)), strict=True))


def stream() -> Stream:
    split = Split(np.arange(103, dtype=np.uint8), 103, 0, 10)
    return Stream(split, StreamConfig(batch=4, segment=8))


def test_prefetch_on_a_cpu_passes_segments_through() -> None:
    segments = list(stream().one_epoch())
    passed = list(prefetch(iter(segments), torch.device("cpu")))
    assert all(one is other for one, other in zip(segments, passed, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_prefetch_to_a_gpu_keeps_values_and_order() -> None:
    device = torch.device("cuda", 0)
    passed = list(prefetch(stream().one_epoch(), device))
    for one, other in zip(stream().one_epoch(), passed, strict=True):
        assert other.inputs_BT.device == other.targets_BT.device == device
        assert torch.equal(one.inputs_BT, other.inputs_BT.cpu())
        assert torch.equal(one.targets_BT, other.targets_BT.cpu())
        assert one[2:] == other[2:]
