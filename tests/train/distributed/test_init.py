"""Processes find those of their own start, whatever earlier ones have left in the store."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore, Store

from sparing.errors import LostProcessError
from sparing.launch import Launch
from sparing.train.distributed import init as rendezvous
from sparing.train.distributed.init import meeting_place


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store that torchrun keeps over all its restarts."""
    store = HashStore()
    monkeypatch.setattr(rendezvous, "rendezvous", lambda *_, **__: iter([(store, 0, 0)]))
    return store


def meet(size: int) -> list[Store]:
    """Where each of `size` processes has found the others."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: meeting_place(Launch(rank, size), 20), range(size)))


@pytest.mark.usefixtures("shared")
def test_all_find_the_same_place() -> None:
    first, *others = meet(3)
    first.set("address", "10.0.0.1")
    assert [place.get("address") for place in others] == [b"10.0.0.1"] * 2


@pytest.mark.usefixtures("shared")
def test_an_address_of_an_earlier_start_is_not_taken() -> None:
    for place in meet(3):
        place.set("address", "of the dead")
    again = meet(2)
    assert not any(place.check(["address"]) for place in again)
    again[0].set("address", "of the living")
    assert again[1].get("address") == b"of the living"


def test_a_process_that_asked_and_died_is_not_taken_for_a_living_one(shared: Store) -> None:
    shared.set("sparing/asks/1", "the dead")
    with pytest.raises(LostProcessError, match=r"rank 0 of 2 did not find the others in 0\.1 s"):
        meeting_place(Launch(0, 2), 0.1)


def test_an_answer_to_somebody_else_is_not_heard(shared: Store) -> None:
    shared.set("sparing/told/the dead", "an old place")
    with pytest.raises(LostProcessError, match="rank 1 of 2 did not find the others"):
        meeting_place(Launch(1, 2), 0.1)
