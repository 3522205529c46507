"""Where a step's time goes."""

import pytest

from sparing import device
from sparing.bench.profile import bench_profile
from sparing.bench.size import small
from sparing.errors import UserError
from sparing.runs.config import with_settings
from sparing.runs.recipes import recipe

TINY = ["train.batch=2", "train.segment=8", "model.dim=16", "model.boom_dim=16", "model.memory=16"]


def test_the_longest_come_first_and_add_up_to_no_more_than_all() -> None:
    run = with_settings(small(recipe("quickstart"), "train"), TINY)
    found = bench_profile(run, device.pick("cpu", "float32"), steps=2, rows=1000)
    spent = [row["ms"] for row in found["work"]]
    assert spent == sorted(spent, reverse=True)
    assert 0 < sum(spent) <= found["busy_ms"] * (1 + 1e-9)
    assert any("lstm" in row["what"] or "mm" in row["what"] for row in found["work"])


def test_no_more_rows_are_told_than_asked_for() -> None:
    run = with_settings(small(recipe("quickstart"), "train"), TINY)
    found = bench_profile(run, device.pick("cpu", "float32"), steps=1, rows=6)
    assert len(found["work"]) == 6


def test_no_rows_are_refused() -> None:
    run = recipe("quickstart")
    with pytest.raises(UserError, match="at least 1"):
        bench_profile(run, device.pick("cpu", "float32"), steps=1, rows=0)
