"""WikiText-2 in words, from a local copy to exact perplexities."""

import os
from pathlib import Path

import pytest
from tests.cli.conftest import Sparing

FOLDER = Path(os.environ.get("SPARING_DATA", Path(__file__).parents[3] / "shared" / "data"))
LOCAL = FOLDER / "wikitext-2.tar.xz"


@pytest.mark.soak
@pytest.mark.skipif(not LOCAL.exists(), reason="no local copy of WikiText-2")
def test_awd_lstm_trains_on_words_and_counts_them_exactly(sparing: Sparing, tmp_path: Path) -> None:
    out = tmp_path / "run"
    small = [
        "model.dim=16", "model.hidden_dim=24", "train.batch=20", "train.segment=35",
        "train.longest=45", "train.steps=100", "train.evaluate_bytes=20000", "optim.lr=10",
        "train.log_every=10",
    ]  # fmt: skip
    words = [word for setting in small for word in ("--set", setting)]
    said = sparing("train", "wikitext2_awd_lstm", "--from", LOCAL, "--out", out, *words, "--quiet")
    assert said.status == 0, said.err
    # A few lanes at a time: the softmax over 33,278 words must stay in the cache.
    reading = ("--batch", 16, "--segment", 8, "--json")
    for split, tokens in (("valid", 217_646), ("test", 245_569)):
        report = sparing("evaluate", out, "--split", split, *reading).json()
        assert report["tokens"] == tokens
        assert report["perplexity_per_word"] == pytest.approx(report["perplexity_per_token"])
        # Knowing nothing is 33,278; knowing how often each word occurs, about a thousand.
        assert 100 < report["perplexity_per_word"] < 5000
    more = sparing(
        "evaluate", out, "--bytes", 20000, "--cache", 500, "--cache-theta", 0.1, *reading
    )
    plain = sparing("evaluate", out, "--bytes", 20000, *reading)
    assert more.json()["perplexity_per_word"] < plain.json()["perplexity_per_word"]
