"""The raw text of a corpus: from a local copy, from the cache, or downloaded."""

import hashlib
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from sparing.data import local
from sparing.data.archives import unpack
from sparing.data.corpora import CORPORA, SPLITS, STDLIB, Corpus
from sparing.data.download import download
from sparing.data.text import Text, split_blocks
from sparing.data.textfile import Unpacking, cache_dir, open_text
from sparing.errors import UserError, unknown_name
from sparing.files import add_path_to_errors, atomic_folder, expand_home, lock_folder
from sparing.units import pluralize

GIVE_COPY = "give a copy with the variable SPARING_DATA (or with --from on the command line)"
LOCAL_SUFFIXES = (
    *("", ".xz", ".lzma", ".gz", ".bz2", ".zst", ".zip"),
    *(".tar", ".tar.xz", ".tar.gz", ".tgz", ".tar.bz2", ".tar.zst"),
)


def check_source(name: str, source: Path) -> None:
    """Refuse a local copy that does not exist, or of a corpus that takes none."""
    corpus = CORPORA.get(name)
    if corpus is None or not (corpus.urls or corpus.local_names):
        raise UserError(
            f"--from takes a copy of a named corpus, and {name} is not one; did you mean --data?"
        )
    if not source.exists():
        raise UserError(f"--from {source} does not exist")


def read_splits(
    name_or_path: str, source: Path | None = None, how: Unpacking | None = None
) -> dict[str, Text]:
    """Return the raw texts of train, valid and test.

    A named corpus is searched for in `source`, then in the cache, then in `$SPARING_DATA`, and
    downloaded otherwise. Any other name is a file or folder of text, split 90/5/5 by bytes.
    """
    how = how or Unpacking.of()
    corpus = _find_corpus(name_or_path)
    if source is not None and (corpus is None or corpus.name == STDLIB):
        raise UserError(f"--from is for corpora that can be downloaded; {name_or_path} is not one")
    if corpus is None:
        return local.split_by_bytes(local.read_path(expand_home(name_or_path), how))
    if corpus.name == STDLIB:
        return local.read_stdlib()
    path = _find_nearest_copy(corpus, source)
    if path is None:
        return _download_splits(corpus, how)
    return read_copy(corpus, path, how)


def fetch_corpus(name: str, source: Path | None = None, how: Unpacking | None = None) -> Path:
    """Store a verified copy of a named corpus in the cache; return its folder."""
    if name not in CORPORA:
        raise unknown_name("corpus", name, CORPORA)
    if name == STDLIB:
        return local.stdlib_folder()
    folder = _stored_folder(CORPORA[name])
    _store_splits(folder, read_splits(name, source, how), replace=source is not None)
    return folder


def fingerprint(name_or_path: str, source: Path | None = None) -> str:
    """A string that changes when the text of a corpus does, found without reading that text."""
    corpus = _find_corpus(name_or_path)
    if corpus is None:
        return local.path_fingerprint(expand_home(name_or_path))
    if corpus.name == STDLIB:
        return local.stdlib_fingerprint()
    if corpus.checksums:
        return corpus.name
    path = _find_nearest_copy(corpus, source)
    if path is None:
        raise _no_download_error(corpus)
    return local.path_fingerprint(path)


def find_copy(corpus: Corpus, folder: Path) -> Path | None:
    """Return the first file or folder in `folder` whose name marks it as a copy."""
    names = [corpus.name + suffix for suffix in LOCAL_SUFFIXES]
    names += [url.rpartition("/")[2] for url in corpus.urls if "{split}" not in url]
    found = [folder / name for name in names if (folder / name).exists()]
    found += [path for pattern in corpus.local_names for path in sorted(folder.glob(pattern))]
    return found[0] if found else None


def read_copy(corpus: Corpus, path: Path, how: Unpacking) -> dict[str, Text]:
    """Read the splits of a copy: an archive, a folder of splits, or a folder with either."""
    if not path.is_dir():
        return _arrange_splits(corpus, unpack(path, how), path)
    if all((path / f"{split}.txt").is_file() for split in SPLITS):
        splits: dict[str, Text] = {split: open_text(path / f"{split}.txt") for split in SPLITS}
        return _verify_splits(corpus, splits, path)
    if copy := find_copy(corpus, path):
        return read_copy(corpus, copy, how)
    files = [file for file in path.iterdir() if file.is_file()]
    wanted = {m.format(split=split) for m in corpus.members for split in SPLITS}
    members = {file.name: open_text(file) for file in files if file.name in wanted}
    return _arrange_splits(corpus, members, path)


def _find_corpus(name_or_path: str) -> Corpus | None:
    """The corpus of that name; None for an existing path."""
    if name_or_path in CORPORA:
        return CORPORA[name_or_path]
    if not name_or_path or not expand_home(name_or_path).exists():
        if "/" in name_or_path or Path(name_or_path).suffix:
            raise UserError(f"there is no text at {name_or_path}; check the path")
        raise unknown_name("corpus (and no such file)", name_or_path, CORPORA)
    return None


def _find_nearest_copy(corpus: Corpus, source: Path | None) -> Path | None:
    if source is not None:
        return expand_home(source)
    if _stored_folder(corpus).exists():
        return _stored_folder(corpus)
    shared = os.environ.get("SPARING_DATA")
    return find_copy(corpus, expand_home(shared)) if shared else None


def _stored_folder(corpus: Corpus) -> Path:
    return cache_dir() / "corpora" / corpus.name


def _store_splits(folder: Path, splits: Mapping[str, Text], *, replace: bool = False) -> None:
    """Write the splits into `folder`; if it exists, only to `replace` what is in it."""
    if folder.exists() and not replace:
        return
    with atomic_folder(folder, replace=replace) as scratch:
        for split, text in splits.items():
            with add_path_to_errors(folder), open(scratch / f"{split}.txt", "wb") as file:
                file.writelines(split_blocks(text))


def _download_splits(corpus: Corpus, how: Unpacking) -> dict[str, Text]:
    """Download a corpus from the first address that works, and store it in the cache."""
    if not corpus.urls:
        raise _no_download_error(corpus)
    folder, problems = cache_dir() / "downloads" / corpus.name, []
    # The lock is outside the folder, which is deleted while other processes wait for the lock.
    with lock_folder(cache_dir() / "downloads" / ".locks" / corpus.name, wait_s=math.inf):
        if _stored_folder(corpus).exists():
            return read_copy(corpus, _stored_folder(corpus), how)
        for url in corpus.urls:
            try:
                splits = _download_from(corpus, url, folder, how)
            except UserError as problem:
                problems.append(str(problem))
                continue
            _store_splits(_stored_folder(corpus), splits)
            shutil.rmtree(folder)
            return splits
    raise UserError(f"cannot get {corpus.name}; {GIVE_COPY} ({'; '.join(problems)})")


def _download_from(corpus: Corpus, url: str, folder: Path, how: Unpacking) -> dict[str, Text]:
    urls = [url.format(split=split) for split in SPLITS] if "{split}" in url else [url]
    members: dict[str, Text] = {}
    try:
        for part in urls:
            name = part.rpartition("/")[2]
            checksum = corpus.checksums.get(name, "")
            file = download(part, folder / name, checksum=checksum, progress=how.progress)
            members |= unpack(file, how)
        return _arrange_splits(corpus, members, folder)
    except UserError:
        _discard_downloads(folder)
        raise


def _discard_downloads(folder: Path) -> None:
    """Delete complete downloads, whose content is wrong; partial ones can still be resumed."""
    for path in folder.iterdir():
        if path.suffix != ".part" and not path.name.startswith("."):
            path.unlink()


def _arrange_splits(corpus: Corpus, members: Mapping[str, Text], path: Path) -> dict[str, Text]:
    """Return the verified splits, given the files found in `path`."""
    if corpus.members:
        splits = {split: _find_member(corpus, members, split, path) for split in SPLITS}
        return _verify_splits(corpus, splits, path)
    files = (
        list(members.values()) if len(members) == 1 else _files_named(corpus.name, members, path)
    )
    if not files:
        raise UserError(f"{path} holds no copy of {corpus.name}")
    return _verify_splits(corpus, _cut_splits(corpus, files[0], path), path)


def _find_member(corpus: Corpus, members: Mapping[str, Text], split: str, path: Path) -> Text:
    names = [pattern.format(split=split) for pattern in corpus.members]
    for name in names:
        if found := _files_named(name, members, path):
            return found[0]
    raise UserError(f"{path} holds no {' or '.join(names)}, so it is not a copy of {corpus.name}")


def _files_named(name: str, members: Mapping[str, Text], path: Path) -> list[Text]:
    """The file called `name`, in whatever folder of an archive; a UserError if there are two."""
    found = [each for each in members if PurePosixPath(each).name == name]
    if len(found) > 1:
        raise UserError(f"{path} holds both {found[0]} and {found[1]}; remove one of them")
    return [members[each] for each in found]


def _cut_splits(corpus: Corpus, text: Text, path: Path) -> dict[str, Text]:
    if corpus.sizes is None:
        return local.split_by_bytes(text)
    if len(text) != sum(corpus.sizes):
        prefix = f"{corpus.name}-prefix"
        hint = f"; a shorter text goes by the name {prefix}" if prefix in CORPORA else ""
        raise UserError(
            f"{path} holds {pluralize(len(text), 'byte')}, "
            f"but {corpus.name} has {sum(corpus.sizes):,}{hint}"
        )
    first, second = corpus.sizes[0], corpus.sizes[0] + corpus.sizes[1]
    return {"train": text[:first], "valid": text[first:second], "test": text[second:]}


def _verify_splits(corpus: Corpus, splits: dict[str, Text], path: Path) -> dict[str, Text]:
    parts = {split: [text] for split, text in splits.items()} | {"text": list(splits.values())}
    for part, texts in parts.items():
        expected = corpus.checksums.get(part)
        if expected is None:
            continue
        digest = hashlib.new(expected.partition(":")[0])
        for block in (block for text in texts for block in split_blocks(text)):
            digest.update(block)
        found = f"{digest.name}:{digest.hexdigest()}"
        if found != expected:
            raise UserError(
                f"wrong checksum for {corpus.name} ({part}) in {path}: "
                f"expected {expected}, found {found}"
            )
    return splits


def _no_download_error(corpus: Corpus) -> UserError:
    return UserError(f"{corpus.name} cannot be downloaded; {GIVE_COPY}")
