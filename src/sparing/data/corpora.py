"""The corpora known by name: download addresses, checksums and splits."""

from collections.abc import Mapping
from dataclasses import dataclass, field

STDLIB = "python-stdlib"
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """A public text with standard splits."""

    name: str
    description: str
    urls: tuple[str, ...] = ()
    """Download addresses, tried in order; `{split}` in an address stands for three plain files."""
    sizes: tuple[int, int, int] | None = None
    """Bytes of train, valid and test, if one file is cut by offset."""
    members: tuple[str, ...] = ()
    """Names of the files of the splits in the archive, with `{split}` for the split's name."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """Known checksums: of an archive under its file name, of a split under the split's name, of all
    splits joined under `text`."""
    local_names: tuple[str, ...] = ()
    """Patterns of other file names that a local copy may have."""


CORPORA: dict[str, Corpus] = {
    corpus.name: corpus
    for corpus in (
        Corpus(
            name=STDLIB,
            description="source files of the running Python's standard library; no download",
        ),
        Corpus(
            name="enwik8",
            description="first 100,000,000 bytes of the English Wikipedia dump of March 2006",
            urls=(
                "https://mattmahoney.net/dc/enwik8.zip",
                "http://mattmahoney.net/dc/enwik8.zip",
            ),
            sizes=(90_000_000, 5_000_000, 5_000_000),
            checksums={
                "enwik8.zip": "sha256:"
                "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
                "text": "sha256:2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
            },
        ),
        Corpus(
            name="text8",
            description="100,000,000 lower-case letters and spaces, cleaned from enwik9",
            urls=(
                "https://mattmahoney.net/dc/text8.zip",
                "http://mattmahoney.net/dc/text8.zip",
                "https://github.com/piskvorky/gensim-data/releases/download/text8/text8.gz",
            ),
            sizes=(90_000_000, 5_000_000, 5_000_000),
            checksums={
                "text8.zip": "sha256:"
                "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
                "text": "sha256:6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7",
            },
        ),
        Corpus(
            name="text8-prefix",
            description="the beginning of text8, split 90/5/5; not comparable with text8",
            local_names=("text8_first_*",),
        ),
        Corpus(
            name="wikitext-2",
            description="2 million word tokens of good Wikipedia articles, 33,278 words",
            urls=(
                "https://wikitext.smerity.com/wikitext-2-v1.zip",
                "https://raw.githubusercontent.com/pytorch/examples/main/"
                "word_language_model/data/wikitext-2/{split}.txt",
            ),
            members=("wiki.{split}.tokens", "{split}.txt"),
            checksums={
                "wikitext-2-v1.zip": "sha256:"
                "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
                "train": "sha256:9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
                "valid": "sha256:f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
                "test": "sha256:d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
            },
        ),
        Corpus(
            name="wikitext-103",
            description="103 million word tokens of good Wikipedia articles, 267,735 words",
            urls=("https://wikitext.smerity.com/wikitext-103-v1.zip",),
            members=("wiki.{split}.tokens", "{split}.txt"),
            checksums={
                "wikitext-103-v1.zip": "sha256:"
                "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
                "train": "sha1:b7497e2dfe77e72cfef5e3dbc61b7b53712ac211",
                "valid": "sha256:9aee9f52d6e77de6c7751fc5e7c44287db3ec0eaf15477098acc6b93c1c4250b",
                "test": "sha256:56db52eb157b1ab5c89646eef70510c1eca6e12a3bfdb99f0d6b05b4eacb75b9",
            },
        ),
    )
}
