"""The bench of cut-offs counts and times."""

import pytest
from sparing.bench.cutoffs import TOKENS

from sparing.bench.micro import bench_cutoffs, zipf_counts
from sparing.errors import UserError


def test_words_by_zipfs_law_are_as_many_as_asked_for() -> None:
    counts = zipf_counts(1000)
    assert len(counts) == 1000
    assert counts.sum() == pytest.approx(TOKENS, rel=1e-4)
    assert counts[0] == pytest.approx(10 * counts[9], rel=1e-3)
    assert (counts[:-1] >= counts[1:]).all()


def test_each_number_of_clusters_has_its_figures() -> None:
    found = bench_cutoffs(zipf_counts(500), most=2, turns=2)
    assert list(found) == ["1 cluster", "2 clusters"]
    assert len(found["2 clusters"]["cutoffs"]) == 2
    assert found["2 clusters"]["of_plain"] < found["1 cluster"]["of_plain"] < 1
    assert found["1 cluster"]["elapsed_s"] > 0
    with pytest.raises(UserError, match="at least one turn"):
        bench_cutoffs(zipf_counts(500), turns=0)
