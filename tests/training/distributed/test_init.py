"""Processes find those of their own start, whatever earlier ones left in the store."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore, Store

from sparing.errors import LostProcessError
from sparing.launch import Launch
from sparing.training.distributed import init
from sparing.training.distributed.init import store_of_start


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store that torchrun keeps over all its restarts."""
    store = HashStore()
    monkeypatch.setattr(init, "rendezvous", lambda *_, **__: iter([(store, 0, 0)]))
    return store


def stores(size: int) -> list[Store]:
    """The stores that each of `size` processes found."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: store_of_start(Launch(rank, size), 20), range(size)))


@pytest.mark.usefixtures("shared")
def test_all_processes_find_the_same_store() -> None:
    first, *others = stores(3)
    first.set("address", "10.0.0.1")
    assert [store.get("address") for store in others] == [b"10.0.0.1"] * 2


@pytest.mark.usefixtures("shared")
def test_keys_of_an_earlier_start_are_not_seen() -> None:
    for store in stores(3):
        store.set("address", "old")
    again = stores(2)
    assert not any(store.check(["address"]) for store in again)
    again[0].set("address", "new")
    assert again[1].get("address") == b"new"


def test_a_process_that_died_after_its_request_does_not_count(shared: Store) -> None:
    shared.set("sparing/request/1", "the dead")
    with pytest.raises(
        LostProcessError, match=r"rank 0 of 2 did not find the other processes in 0\.1 s"
    ):
        store_of_start(Launch(0, 2), 0.1)


def test_a_reply_to_another_process_is_ignored(shared: Store) -> None:
    shared.set("sparing/reply/the dead", "an old store")
    with pytest.raises(LostProcessError, match="rank 1 of 2 did not find the other processes"):
        store_of_start(Launch(1, 2), 0.1)
