import pytest
from tests.bench.small import CPU, small_run
from tests.training.workers import Workers

from sparing.bench.distributed import bench_distributed
from sparing.errors import UserError
from sparing.launch import Launch


def test_a_world_of_one_is_compared_with_no_world() -> None:
    figures = bench_distributed(small_run(), CPU, 4)
    assert figures["steps"] == 6
    alone, joint = figures["alone_s"], figures["together_s"]
    assert figures["overhead"] == joint["median"] / alone["median"] - 1
    assert figures["overhead_of_least"] == joint["least"] / alone["least"] - 1
    assert figures["tokens_per_s"] == 4 * 6 / joint["median"]
    assert figures["gradient_bytes"] > 1000


def benched(launch: Launch) -> tuple[float, int]:
    figures = bench_distributed(small_run(), CPU, 1, sharded=True)
    return figures["overhead"], figures["batch"]


def test_two_processes_share_the_batch() -> None:
    group = Workers(2)
    try:
        for overhead, batch in group(benched):
            assert overhead > -1
            assert batch == 4
    finally:
        group.close()


def test_nonsense_is_refused() -> None:
    with pytest.raises(UserError, match="steps must be at least 1"):
        bench_distributed(small_run(), CPU, 0)
    with pytest.raises(UserError, match="--shard needs several processes"):
        bench_distributed(small_run(), CPU, 1, sharded=True)
