"""Windows cover every token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparing.data.tokens import Split
from sparing.errors import UserError
from sparing.evaluation.window import (
    Window,
    evenly_spaced_windows,
    read_windows,
    sliding_windows,
)


@given(tokens=st.integers(1, 40), window=st.integers(1, 20), data=st.data())
def test_sliding_windows_score_every_token_once_from_full_windows(
    tokens: int, window: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, window))
    windows = list(sliding_windows(tokens, window, stride))
    scored = [at for item in windows for at in range(item.scored, item.end)]
    assert scored == list(range(tokens))
    assert {item.end - item.begin for item in windows} == {min(window, tokens)}
    assert all(item.end - item.scored <= stride for item in windows[1:])


@pytest.mark.parametrize("stride", [0, 5])
def test_a_stride_outside_the_window_is_refused(stride: int) -> None:
    with pytest.raises(UserError, match="stride"):
        list(sliding_windows(10, 4, stride))


def test_a_window_begins_with_the_token_before_its_first_target() -> None:
    split = Split(ids=np.array([5, 6, 7, 8], dtype=np.uint8), size_bytes=4, words=0, start=9)
    inputs_BT, targets_BT = read_windows(split, [Window(0, 0, 3), Window(1, 3, 4)])
    assert inputs_BT.tolist() == [[9, 5, 6], [5, 6, 7]]
    assert targets_BT.tolist() == [[5, 6, 7], [-1, -1, 8]]


def test_evenly_spaced_windows_reach_both_ends_but_not_the_first_token() -> None:
    windows = evenly_spaced_windows(tokens=101, length=10, count=5)
    assert [item.begin for item in windows] == [1, 24, 46, 68, 91]
    assert all(item.end - item.begin == 10 and item.scored == item.begin for item in windows)


def test_evenly_spaced_windows_are_all_different() -> None:
    assert [item.begin for item in evenly_spaced_windows(tokens=6, length=4, count=50)] == [1, 2]


def test_a_context_as_long_as_the_split_is_refused() -> None:
    with pytest.raises(UserError, match="at most 9"):
        evenly_spaced_windows(tokens=10, length=10, count=1)
