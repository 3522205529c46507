"""Downloads that resume where they broke off and verify checksums."""

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
from sparing.files import add_path_to_errors

ATTEMPTS = 5
"""Consecutive attempts without new bytes before a download is given up."""
PAUSE_S = 1.0
TIMEOUT_S = 30.0
BLOCK_BYTES = 1 << 20
USER_AGENT = "sparing"
"""WikiText's server rejects Python's default user agent."""
NETWORK_ERRORS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)


def download(url: str, target: Path, *, checksum: str = "", progress: bool = True) -> Path:
    """Download `url` to `target`; verify it if a `checksum` such as `sha256:...` is given."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    failures, furthest = 0, _size(part)
    while not target.exists():
        try:
            complete = _transfer(url, part, progress)
            reason = "the connection was interrupted"
        except urllib.error.HTTPError as problem:
            raise UserError(f"{url} answers {problem.code} {problem.reason}") from None
        except NETWORK_ERRORS as problem:
            complete, reason = False, str(getattr(problem, "reason", problem))
        if complete:
            verify_checksum(part, checksum)
            os.replace(part, target)
            break
        failures = 0 if _size(part) > furthest else failures + 1
        furthest = max(furthest, _size(part))
        if failures >= ATTEMPTS:
            raise UserError(f"cannot download {url}: {reason}; run the command again to resume")
        time.sleep(PAUSE_S)
    return target


def verify_checksum(path: Path, checksum: str) -> None:
    """Delete a downloaded file that does not match its checksum, and raise a UserError."""
    if not checksum:
        return
    algorithm, _, _ = checksum.partition(":")
    with open(path, "rb") as handle:
        found = f"{algorithm}:{hashlib.file_digest(handle, algorithm).hexdigest()}"
    if found != checksum:
        path.unlink()
        raise UserError(f"wrong checksum for {path.name}: expected {checksum}, found {found}")


def _transfer(url: str, part: Path, progress: bool) -> bool:
    """Download the bytes missing in `part`; return whether it is complete."""
    begin = _size(part)
    headers = {"User-Agent": USER_AGENT}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as problem:
        if problem.code == 416 and begin:
            return _is_complete(problem.headers.get("Content-Range"), begin, part)
        raise
    with response:
        if response.status != 206:
            begin = 0
        length = response.headers.get("Content-Length")
        total = None if length is None else begin + int(length)
        _copy(response, part, begin, total=total, progress=progress)
    return total is None or _size(part) == total


def _is_complete(content_range: str | None, size: int, part: Path) -> bool:
    """The server has no bytes after `size`: `part` is complete, or it is of another file."""
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
        # With None, tqdm prints only to a terminal.
        disable=None if progress else True,
    )
    with bar, open(part, "ab" if begin else "wb") as handle:
        while block := response.read(BLOCK_BYTES):
            with add_path_to_errors(part):
                handle.write(block)
                handle.flush()
            bar.update(len(block))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
