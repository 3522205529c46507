"""Where corpora live on this machine, and the download that brings them here.

A broken download goes on where it stopped; nothing unverified takes its final name.
"""

import hashlib
import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tqdm import tqdm

from sparing.errors import UserError
from sparing.files import naming

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
