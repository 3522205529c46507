"""The corpora: where each comes from, how its bytes are verified, how it splits."""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from sparing.data import local
from sparing.data.archive import read, unpack
from sparing.data.fetch import download, home
from sparing.data.folder import building
from sparing.errors import UserError, unknown
from sparing.files import locked, write_bytes
from sparing.units import counted

SPLITS = local.SPLITS
STDLIB = "python-stdlib"


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """A text with a public home and agreed splits."""

    name: str
    description: str
    urls: tuple[str, ...] = ()
    """Public homes, tried in order; `{split}` in one stands for three plain files."""
    sizes: tuple[int, int, int] | None = None
    """Bytes of train, valid and test where one file is cut by offset."""
    members: tuple[str, ...] = ()
    """Names a split's own file may have in the archive, `{split}` in place of the split."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """Known ones, of the archive by its name, of a split by its name, of all splits joined
    under `text`."""
    local_names: tuple[str, ...] = ()
    """Patterns of further file names that hold a copy."""


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


def check_source(name: str, source: Path) -> None:
    """Refuse a local copy that is not there, or of a corpus that takes none."""
    corpus = CORPORA.get(name)
    if corpus is None or not (corpus.urls or corpus.local_names):
        raise UserError(f"--from holds a copy of a named corpus, not of {name}; is it --data?")
    if not source.exists():
        raise UserError(f"--from {source} does not exist")


def read_splits(
    name_or_path: str, source: Path | None = None, *, progress: bool = True
) -> dict[str, bytes]:
    """The raw bytes of train, valid and test, from the nearest place that has them.

    A named corpus is looked for in `source`, then under `home()`, then in `$SPARING_DATA`, and
    downloaded otherwise. Any other name is a file or folder of text, split 90/5/5 by bytes.
    """
    corpus = _find(name_or_path)
    if source is not None and (corpus is None or corpus.name == STDLIB):
        raise UserError(f"--from is for corpora with a public home; {name_or_path} has none")
    if corpus is None:
        return local.split_by_bytes(local.read_path(Path(name_or_path).expanduser()))
    if corpus.name == STDLIB:
        return local.read_stdlib()
    place = _nearest(corpus, source)
    return _download(corpus, progress) if place is None else _read_place(corpus, place)


def get(name: str, source: Path | None = None, *, progress: bool = True) -> Path:
    """Keep a verified copy of a named corpus under `home()`; the folder it lies in."""
    if name not in CORPORA:
        raise unknown("corpus", name, CORPORA)
    if name == STDLIB:
        return local.stdlib_folder()
    folder = _stored(CORPORA[name])
    splits = read_splits(name, source, progress=progress)
    if source is not None and folder.exists():
        shutil.rmtree(folder)
    return _store(folder, splits)


def fingerprint(name_or_path: str, source: Path | None = None) -> str:
    """Changes when the text of a corpus does; found without reading that text."""
    corpus = _find(name_or_path)
    if corpus is None:
        return local.fingerprint(Path(name_or_path).expanduser())
    if corpus.name == STDLIB:
        return local.stdlib_fingerprint()
    if corpus.checksums:
        return corpus.name
    place = _nearest(corpus, source)
    if place is None:
        raise _homeless(corpus)
    return local.fingerprint(place)


def _find(name_or_path: str) -> Corpus | None:
    if name_or_path in CORPORA:
        return CORPORA[name_or_path]
    if not name_or_path or not Path(name_or_path).expanduser().exists():
        if "/" in name_or_path or Path(name_or_path).suffix:
            raise UserError(
                f"there is no text at {name_or_path}; bring it back there, or name another"
            )
        raise unknown("corpus (and no such file)", name_or_path, CORPORA)
    return None


def _nearest(corpus: Corpus, source: Path | None) -> Path | None:
    if source is not None:
        return source.expanduser()
    if _stored(corpus).exists():
        return _stored(corpus)
    shared = os.environ.get("SPARING_DATA")
    return _copy_in(corpus, Path(shared).expanduser()) if shared else None


def _copy_in(corpus: Corpus, folder: Path) -> Path | None:
    suffixes = ("", ".xz", ".gz", ".zip", ".tar.xz", ".tar.gz", ".tgz", ".tar")
    names = [corpus.name + suffix for suffix in suffixes]
    names += [url.rpartition("/")[2] for url in corpus.urls if "{split}" not in url]
    found = [folder / name for name in names if (folder / name).exists()]
    found += [path for pattern in corpus.local_names for path in sorted(folder.glob(pattern))]
    return found[0] if found else None


def _stored(corpus: Corpus) -> Path:
    return home() / "corpora" / corpus.name


def _store(folder: Path, splits: Mapping[str, bytes]) -> Path:
    if not folder.exists():
        with building(folder) as scratch:
            for split, text in splits.items():
                write_bytes(scratch / f"{split}.txt", text)
    return folder


def _read_place(corpus: Corpus, place: Path) -> dict[str, bytes]:
    if not place.is_dir():
        splits = _arrange(corpus, unpack(place), place)
    elif all((place / f"{split}.txt").is_file() for split in SPLITS):
        splits = {split: read(place / f"{split}.txt") for split in SPLITS}
    elif copy := _copy_in(corpus, place):
        return _read_place(corpus, copy)
    else:
        files = [path for path in place.iterdir() if path.is_file()]
        wanted = {m.format(split=split) for m in corpus.members for split in SPLITS}
        members = {path.name: read(path) for path in files if path.name in wanted}
        splits = _arrange(corpus, members, place)
    _verify(corpus, splits, place)
    return splits


def _arrange(corpus: Corpus, members: Mapping[str, bytes], place: Path) -> dict[str, bytes]:
    files = {PurePosixPath(name).name: data for name, data in members.items()}
    if corpus.members:
        return {split: _member(corpus, files, split, place) for split in SPLITS}
    if len(files) > 1:
        files = {name: data for name, data in files.items() if name == corpus.name}
    if not files:
        raise UserError(f"{place} holds no copy of {corpus.name}")
    return _cut(corpus, next(iter(files.values())), place)


def _member(corpus: Corpus, files: Mapping[str, bytes], split: str, place: Path) -> bytes:
    names = [pattern.format(split=split) for pattern in corpus.members]
    for name in names:
        if name in files:
            return files[name]
    raise UserError(f"{place} holds no {' or '.join(names)}, so it is no copy of {corpus.name}")


def _cut(corpus: Corpus, text: bytes, place: Path) -> dict[str, bytes]:
    if corpus.sizes is None:
        return local.split_by_bytes(text)
    if len(text) != sum(corpus.sizes):
        prefix = f"{corpus.name}-prefix"
        hint = f"; a shorter text goes by the name {prefix}" if prefix in CORPORA else ""
        raise UserError(
            f"{place} holds {counted(len(text), 'byte')}, "
            f"but {corpus.name} has {sum(corpus.sizes):,}{hint}"
        )
    first, second = corpus.sizes[0], corpus.sizes[0] + corpus.sizes[1]
    return {"train": text[:first], "valid": text[first:second], "test": text[second:]}


def _verify(corpus: Corpus, splits: Mapping[str, bytes], place: Path) -> None:
    parts = {split: [text] for split, text in splits.items()} | {"text": list(splits.values())}
    for part, texts in parts.items():
        expected = corpus.checksums.get(part)
        if expected is None:
            continue
        digest = hashlib.new(expected.partition(":")[0])
        for text in texts:
            digest.update(text)
        found = f"{digest.name}:{digest.hexdigest()}"
        if found != expected:
            raise UserError(
                f"wrong checksum for {corpus.name} ({part}) in {place}: "
                f"expected {expected}, found {found}"
            )


def _download(corpus: Corpus, progress: bool) -> dict[str, bytes]:
    if not corpus.urls:
        raise _homeless(corpus)
    folder, problems = home() / "downloads" / corpus.name, []
    # The lock lies outside the folder, which goes away under those who wait for it.
    with locked(home() / "downloads" / ".locks" / corpus.name, wait=True):
        if _stored(corpus).exists():
            return _read_place(corpus, _stored(corpus))
        for url in corpus.urls:
            try:
                splits = _fetch(corpus, url, folder, progress=progress)
            except UserError as problem:
                problems.append(str(problem))
                continue
            _store(_stored(corpus), splits)
            shutil.rmtree(folder)
            return splits
    raise UserError(
        f"cannot get {corpus.name}; give a local copy with --from PATH or the variable "
        f"SPARING_DATA ({'; '.join(problems)})"
    )


def _fetch(corpus: Corpus, url: str, folder: Path, *, progress: bool) -> dict[str, bytes]:
    urls = [url.format(split=split) for split in SPLITS] if "{split}" in url else [url]
    members: dict[str, bytes] = {}
    try:
        for part in urls:
            name = part.rpartition("/")[2]
            checksum = corpus.checksums.get(name, "")
            members |= unpack(download(part, folder / name, checksum=checksum, progress=progress))
        splits = _arrange(corpus, members, folder)
        _verify(corpus, splits, folder)
    except UserError:
        _discard(folder)
        raise
    return splits


def _discard(folder: Path) -> None:
    """Remove complete downloads that turned out to be wrong; broken ones may still go on."""
    for path in folder.iterdir():
        if path.suffix != ".part" and not path.name.startswith("."):
            path.unlink()


def _homeless(corpus: Corpus) -> UserError:
    return UserError(
        f"{corpus.name} has no public home; give a copy with --from PATH or the variable "
        "SPARING_DATA"
    )
