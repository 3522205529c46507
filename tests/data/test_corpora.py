import hashlib
from pathlib import Path

from sparing.data.corpora import CORPORA, SPLITS
from sparing.data.splits import find_copy


def test_every_downloadable_corpus_has_checksums() -> None:
    for corpus in CORPORA.values():
        if corpus.urls:
            assert "text" in corpus.checksums or set(SPLITS) <= set(corpus.checksums)
            assert find_copy(corpus, Path("nowhere")) is None


def test_enwik8_has_its_published_checksums(enwik8: dict[str, bytes]) -> None:
    assert [len(text) for text in enwik8.values()] == [90_000_000, 5_000_000, 5_000_000]
    assert [text.count(b"\n") for text in enwik8.values()] == [1_017_182, 54_258, 56_583]
    found = hashlib.sha256(enwik8["test"]).hexdigest()
    assert found == "86f62c0adeb6c27763f308b8913bec743626421a4d2b4010f1e177a40eef7750"
