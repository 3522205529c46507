"""Copies of a named corpus: looked for in a folder, read, verified, kept."""

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from sparing.data import archive, local
from sparing.data.corpora import CORPORA, Corpus
from sparing.data.fetch import home
from sparing.data.folder import building
from sparing.data.local import SPLITS
from sparing.errors import UserError
from sparing.files import write_bytes
from sparing.units import counted


def find(corpus: Corpus, folder: Path) -> Path | None:
    """The first file or folder there whose name says that it is a copy."""
    plain = ("", ".xz", ".gz", ".bz2", ".zip")
    suffixes = (*plain, ".tar", ".tar.xz", ".tar.gz", ".tgz", ".tar.bz2")
    names = [corpus.name + suffix for suffix in suffixes]
    names += [url.rpartition("/")[2] for url in corpus.urls if "{split}" not in url]
    found = [folder / name for name in names if (folder / name).exists()]
    found += [path for pattern in corpus.local_names for path in sorted(folder.glob(pattern))]
    return found[0] if found else None


def stored(corpus: Corpus) -> Path:
    """Where a verified copy is kept."""
    return home() / "corpora" / corpus.name


def store(folder: Path, splits: Mapping[str, bytes]) -> Path:
    """Keep the splits in a folder of their own, unless it is there already."""
    if not folder.exists():
        with building(folder) as scratch:
            for split, text in splits.items():
                write_bytes(scratch / f"{split}.txt", text)
    return folder


def read(corpus: Corpus, place: Path) -> dict[str, bytes]:
    """The splits of a copy: an archive, a folder of splits, or a folder with either of them."""
    if not place.is_dir():
        return arrange(corpus, archive.unpack(place), place)
    if all((place / f"{split}.txt").is_file() for split in SPLITS):
        splits = {split: archive.read(place / f"{split}.txt") for split in SPLITS}
        return _verified(corpus, splits, place)
    if copy := find(corpus, place):
        return read(corpus, copy)
    files = [path for path in place.iterdir() if path.is_file()]
    wanted = {m.format(split=split) for m in corpus.members for split in SPLITS}
    members = {path.name: archive.read(path) for path in files if path.name in wanted}
    return arrange(corpus, members, place)


def arrange(corpus: Corpus, members: Mapping[str, bytes], place: Path) -> dict[str, bytes]:
    """The splits, verified, of the files that were found in `place`."""
    files = {PurePosixPath(name).name: data for name, data in members.items()}
    if corpus.members:
        splits = {split: _member(corpus, files, split, place) for split in SPLITS}
        return _verified(corpus, splits, place)
    if len(files) > 1:
        files = {name: data for name, data in files.items() if name == corpus.name}
    if not files:
        raise UserError(f"{place} holds no copy of {corpus.name}")
    return _verified(corpus, _cut(corpus, next(iter(files.values())), place), place)


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


def _verified(corpus: Corpus, splits: dict[str, bytes], place: Path) -> dict[str, bytes]:
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
    return splits
