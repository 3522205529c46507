"""Fetching a corpus: downloads that resume, checksums, and local copies."""

import hashlib
import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from tqdm import tqdm

from sparing.data import archive, local
from sparing.data.corpora import CORPORA, Corpus
from sparing.data.local import SPLITS, building
from sparing.errors import UserError
from sparing.files import naming, write_bytes
from sparing.units import counted

ATTEMPTS = 5
"""Tries in a row that may bring nothing new before a download is given up."""

PAUSE_S = 1.0
TIMEOUT_S = 30.0
BLOCK_BYTES = 1 << 20
USER_AGENT = "sparing"
"""WikiText's home turns Python's own default away."""

NETWORK = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)


def home() -> Path:
    """The cache folder: `$SPARING_HOME`, or `~/.cache/sparing`."""
    chosen = os.environ.get("SPARING_HOME")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "sparing"


def download(url: str, target: Path, *, checksum: str = "", progress: bool = True) -> Path:
    """Bring `url` to `target`, verified if a `checksum` such as `sha256:...` is known."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    failures, furthest = 0, _size(part)
    while not target.exists():
        try:
            complete = _transfer(url, part, progress)
            reason = "the connection broke off"
        except urllib.error.HTTPError as problem:
            raise UserError(f"{url} answers {problem.code} {problem.reason}") from None
        except NETWORK as problem:
            complete, reason = False, str(getattr(problem, "reason", problem))
        if complete:
            check(part, checksum)
            os.replace(part, target)
            break
        failures = 0 if _size(part) > furthest else failures + 1
        furthest = max(furthest, _size(part))
        if failures >= ATTEMPTS:
            raise UserError(f"cannot download {url}: {reason}; run it again to go on from there")
        time.sleep(PAUSE_S)
    return target


def check(path: Path, checksum: str) -> None:
    """Remove a downloaded file that does not match its checksum, and say so."""
    if not checksum:
        return
    algorithm, _, _ = checksum.partition(":")
    with open(path, "rb") as handle:
        found = f"{algorithm}:{hashlib.file_digest(handle, algorithm).hexdigest()}"
    if found != checksum:
        path.unlink()
        raise UserError(f"wrong checksum for {path.name}: expected {checksum}, found {found}")


def _transfer(url: str, part: Path, progress: bool) -> bool:
    """Fetch what `part` lacks; whether it is complete now."""
    begin = _size(part)
    headers = {"User-Agent": USER_AGENT}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as problem:
        if problem.code == 416 and begin:
            return _ends_at(problem.headers.get("Content-Range"), begin, part)
        raise
    with response:
        if response.status != 206:
            begin = 0
        length = response.headers.get("Content-Length")
        total = None if length is None else begin + int(length)
        _copy(response, part, begin, total=total, progress=progress)
    return total is None or _size(part) == total


def _ends_at(content_range: str | None, size: int, part: Path) -> bool:
    """The server has nothing after `size`: either that is all, or `part` is not its file."""
    if (content_range or "").rpartition("/")[2] == str(size):
        return True
    part.unlink()
    return False


def _copy(response: Any, part: Path, begin: int, *, total: int | None, progress: bool) -> None:
    bar = tqdm(
        total=total,
        initial=begin,
        desc=part.stem,
        unit="B",
        unit_scale=True,
        # None: tqdm stays silent where nobody watches, as in a log.
        disable=None if progress else True,
    )
    with bar, open(part, "ab" if begin else "wb") as handle:
        while block := response.read(BLOCK_BYTES):
            with naming(part):
                handle.write(block)
                handle.flush()
            bar.update(len(block))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


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
