"""The raw text of a corpus, named or anybody's own, from the nearest place that has it."""

import math
import os
import shutil
from pathlib import Path

from sparing.data import fetch as copies
from sparing.data import local
from sparing.data.archive import unpack
from sparing.data.corpora import CORPORA, STDLIB, Corpus
from sparing.data.fetch import download, home
from sparing.data.local import SPLITS
from sparing.errors import UserError, unknown
from sparing.files import locked


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
    return _download(corpus, progress) if place is None else copies.read(corpus, place)


def get(name: str, source: Path | None = None, *, progress: bool = True) -> Path:
    """Keep a verified copy of a named corpus under `home()`; the folder it lies in."""
    if name not in CORPORA:
        raise unknown("corpus", name, CORPORA)
    if name == STDLIB:
        return local.stdlib_folder()
    folder = copies.stored(CORPORA[name])
    splits = read_splits(name, source, progress=progress)
    if source is not None and folder.exists():
        shutil.rmtree(folder)
    return copies.store(folder, splits)


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
    if copies.stored(corpus).exists():
        return copies.stored(corpus)
    shared = os.environ.get("SPARING_DATA")
    return copies.find(corpus, Path(shared).expanduser()) if shared else None


def _download(corpus: Corpus, progress: bool) -> dict[str, bytes]:
    if not corpus.urls:
        raise _homeless(corpus)
    folder, problems = home() / "downloads" / corpus.name, []
    # The lock lies outside the folder, which goes away under those who wait for it.
    with locked(home() / "downloads" / ".locks" / corpus.name, wait_s=math.inf):
        if copies.stored(corpus).exists():
            return copies.read(corpus, copies.stored(corpus))
        for url in corpus.urls:
            try:
                splits = _fetch(corpus, url, folder, progress=progress)
            except UserError as problem:
                problems.append(str(problem))
                continue
            copies.store(copies.stored(corpus), splits)
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
        return copies.arrange(corpus, members, folder)
    except UserError:
        _discard(folder)
        raise


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
