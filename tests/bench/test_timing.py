import time

import pytest
import torch
from tests.bench.small import CPU

from sparing.bench.timing import quartiles, threads, time_calls, time_in_turns
from sparing.errors import UserError


def test_the_quartiles_of_known_durations() -> None:
    found = quartiles([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (found.median, found.least, found.lower, found.upper) == (3.0, 1.0, 2.0, 4.0)
    assert found.to_json() == {"median": 3.0, "least": 1.0, "lower": 2.0, "upper": 4.0}
    assert set(quartiles([7.0]).to_json().values()) == {7.0}


def test_a_clock_sees_the_whole_task() -> None:
    assert time_calls(lambda: time.sleep(0.02), CPU) >= 0.02


def test_tasks_take_turns() -> None:
    order: list[str] = []
    tasks = {name: lambda name=name: order.append(name) for name in "ab"}  # type: ignore[misc]
    durations = time_in_turns(tasks, 3, CPU)
    assert order == list("ababab")
    assert {name: len(times) for name, times in durations.items()} == {"a": 3, "b": 3}


def test_the_first_call_of_several_laps_is_not_counted() -> None:
    order: list[str] = []
    tasks = {name: lambda name=name: order.append(name) for name in "ab"}  # type: ignore[misc]
    durations = time_in_turns(tasks, 2, CPU, laps=2)
    assert order == list("aaabbbaaabbb")
    assert {name: len(times) for name, times in durations.items()} == {"a": 4, "b": 4}


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []

    def fail() -> None:
        with threads(before + 1):
            seen.append(torch.get_num_threads())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == [before + 1]
    assert torch.get_num_threads() == before
    with threads(None):
        assert torch.get_num_threads() == before
    with pytest.raises(UserError, match="threads must be from 1 to 4096"), threads(0):
        pass
