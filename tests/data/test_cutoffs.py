"""Cut-offs against all possible ones, and against quadratic dynamic programming."""

import os
import time
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

from sparing.bench.micro import zipf_counts
from sparing.data.cutoffs import CutoffConfig, count_ids, cutoff_cost, optimal_cutoffs
from sparing.data.splits import read_splits
from sparing.data.vocab import train_vocab
from sparing.errors import UserError

VARIANTS = [
    {"dim": 16},
    {"dim": 64, "shrink": 4, "least_head": 1},
    {"dim": 27, "shrink": 3, "least_head": 5},
    {"dim": 8, "least_head": 4},
]


def random_counts(words: int, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return np.sort(draw.zipf(1.3, words).clip(max=10**6))[::-1].astype(np.int64)


def allowed(words: int, config: CutoffConfig) -> list[int]:
    return [
        place
        for place in range(config.head, words)
        if (place + config.clusters) % config.align == 0
    ]


def every_cut(counts: np.ndarray, config: CutoffConfig) -> float:
    places = combinations(allowed(len(counts), config), config.clusters)
    return min(cutoff_cost(counts, cuts, config) for cuts in places)


def direct(counts: np.ndarray, config: CutoffConfig) -> float:
    """Plain dynamic programming in O(K N^2)."""
    words, places = len(counts), allowed(len(counts), config)
    seen = [0, *np.cumsum(counts).tolist()]
    best = {at: seen[-1] * config.dim * (at + config.clusters) for at in places}
    for cluster in range(1, config.clusters + 1):
        width = config.dim // config.shrink**cluster
        projection = config.dim * width if config.shrink > 1 else 0
        ends = places if cluster < config.clusters else [words]
        best = {
            end: min(
                best[begin] + (seen[end] - seen[begin]) * (width * (end - begin) + projection)
                for begin in places
                if begin < end and begin in best
            )
            for end in ends
            if any(begin < end and begin in best for begin in places)
        }
    head_projection = config.dim**2 if config.shrink > 1 else 0
    return best[words] / seen[-1] + head_projection


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("clusters", [1, 2, 3])
@pytest.mark.parametrize("align", [1, 3])
def test_no_other_cut_is_cheaper(clusters: int, align: int, variant: dict[str, int]) -> None:
    for seed in range(4):
        counts = random_counts(26, seed)
        config = CutoffConfig(clusters=clusters, align=align, **variant)
        found = optimal_cutoffs(counts, config)
        assert found.cost == pytest.approx(every_cut(counts, config), rel=1e-12)
        assert found.cost == pytest.approx(cutoff_cost(counts, found.cutoffs, config), rel=1e-12)
        assert set(found.cutoffs) <= set(allowed(26, config))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("words", "clusters"), [(199, 3), (350, 2), (800, 1)])
def test_the_cost_equals_that_of_quadratic_dynamic_programming(
    words: int, clusters: int, variant: dict[str, int]
) -> None:
    counts = random_counts(words, words)
    config = CutoffConfig(clusters=clusters, align=1, **variant)
    assert optimal_cutoffs(counts, config).cost == pytest.approx(direct(counts, config), rel=1e-12)


def test_eight_hundred_words_in_three_clusters() -> None:
    for counts in (random_counts(800, 0), np.random.default_rng(1).integers(0, 50, 800)):
        config = CutoffConfig(clusters=3, dim=32, align=1)
        assert optimal_cutoffs(counts, config).cost == pytest.approx(
            direct(counts, config), rel=1e-12
        )


def test_the_cost_of_a_small_example_by_hand() -> None:
    # Six tokens in eight fall on the head of two words; of the rest one on each of two words.
    counts, config = [4, 2, 1, 1], CutoffConfig(clusters=1, dim=10)
    assert cutoff_cost(counts, (2,), config) == 10 * (2 + 1) + 0.25 * 10 * 2
    narrow = CutoffConfig(clusters=1, dim=10, shrink=2)
    assert cutoff_cost(counts, (2,), narrow) == 10 * 3 + 10 * 10 + 0.25 * (5 * 2 + 10 * 5)


def test_rows_including_cluster_symbols_are_aligned() -> None:
    found = optimal_cutoffs(zipf_counts(5000), CutoffConfig(clusters=3))
    assert [(cut + 3) % 64 for cut in found.cutoffs] == [0, 0, 0]
    free = optimal_cutoffs(zipf_counts(5000), CutoffConfig(clusters=3, align=1))
    assert free.cost <= found.cost < 1.01 * free.cost
    sizes = [high - low for low, high in pairwise([*found.cutoffs])]
    assert all(size % 64 == 0 for size in sizes)


def test_the_head_has_a_minimum_size_with_narrow_clusters() -> None:
    counts = zipf_counts(20_000)
    starved = optimal_cutoffs(counts, CutoffConfig(clusters=2, shrink=4, least_head=1))
    assert starved.cutoffs[0] < 500
    assert optimal_cutoffs(counts, CutoffConfig(clusters=2, shrink=4)).cutoffs[0] >= 2000


def test_counts_beyond_int64_give_the_same_cutoffs() -> None:
    counts, config = random_counts(300, 5), CutoffConfig(clusters=2, align=1)
    assert (
        optimal_cutoffs(counts * 2**40, config).cutoffs == optimal_cutoffs(counts, config).cutoffs
    )


def test_a_large_vocabulary_takes_little_cpu_time() -> None:
    started_at = time.process_time()
    found = optimal_cutoffs(zipf_counts(267_735), CutoffConfig(clusters=3, align=1))
    assert time.process_time() - started_at < 15
    assert 0.05 < found.cost / found.plain < 0.15


def test_ids_are_counted() -> None:
    ids = np.array([3, 0, 3, 3, 1], np.uint16)
    assert count_ids(ids, 5).tolist() == [1, 1, 0, 3, 0]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"clusters": 0}, "clusters must be at least 1"),
        ({"align": 0}, "align must be"),
        ({"least_head": 0}, "at least 1 word"),
        ({"dim": 8, "shrink": 3}, "dim 8 leaves no width for cluster 3"),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        CutoffConfig(**wrong)


def test_too_few_words_are_refused() -> None:
    with pytest.raises(UserError, match=r"100 words cannot be cut 3 times"):
        optimal_cutoffs(zipf_counts(100), CutoffConfig())
    for counts in ([], [0, 0], [3, -1]):
        with pytest.raises(UserError, match="how often"):
            optimal_cutoffs(counts, CutoffConfig())


def test_wikitext_2_has_the_documented_cutoffs(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Path(os.environ.get("SPARING_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (shared / "wikitext-2.tar.xz").exists():
        pytest.skip("WikiText-2 is not at hand")
    monkeypatch.setenv("SPARING_DATA", str(shared))
    text = bytes(read_splits("wikitext-2")["train"])
    vocab = train_vocab("words", text)
    counts = count_ids(vocab.encode(text), vocab.size)
    expected = {1: ((3663,), 25.6), 2: ((1015, 9184), 14.0), 3: ((433, 4282, 13523), 9.6)}
    started_at = time.process_time()
    for clusters, (cutoffs, percent) in expected.items():
        found = optimal_cutoffs(counts, CutoffConfig(clusters=clusters, align=1))
        assert found.cutoffs == cutoffs
        assert 100 * found.cost / found.plain == pytest.approx(percent, abs=0.05)
    assert time.process_time() - started_at < 2
