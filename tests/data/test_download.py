"""Downloads: resumed, verified, given up."""

import hashlib
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sparing.data import download as module
from sparing.data.download import download
from sparing.errors import UserError

CONTENT = bytes(range(256)) * 40
CHECKSUM = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Host(ThreadingHTTPServer):
    """Serves one file, breaking off after `most` bytes of each answer."""

    most: int | None = None
    ranged = True
    status: int | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/text.zip"


class Answer(BaseHTTPRequestHandler):
    server: Host

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        if self.server.status:
            self.send_error(self.server.status)
            return
        begin = int(asked[6:-1]) if asked and self.server.ranged else 0
        if begin >= len(CONTENT):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(CONTENT) - begin))
        self.end_headers()
        end = None if self.server.most is None else begin + self.server.most
        self.wfile.write(CONTENT[begin:end])

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    with Host() as host:
        thread = threading.Thread(target=host.serve_forever, args=(0.01,))
        thread.start()
        yield host
        host.shutdown()
        thread.join()


def test_a_download_leaves_only_the_complete_file(host: Host, tmp_path: Path) -> None:
    path = download(host.url, tmp_path / "new" / "text.zip", checksum=CHECKSUM, progress=False)
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]


def test_an_interrupted_download_resumes(host: Host, tmp_path: Path) -> None:
    host.most = 4000
    path = download(host.url, tmp_path / "text.zip", checksum=CHECKSUM, progress=False)
    assert path.read_bytes() == CONTENT
    assert host.asked == [None, "bytes=4000-", "bytes=8000-"]


def test_a_partial_file_of_an_earlier_run_is_resumed(host: Host, tmp_path: Path) -> None:
    (tmp_path / "text.zip.part").write_bytes(CONTENT[:5000])
    path = download(host.url, tmp_path / "text.zip", checksum=CHECKSUM, progress=False)
    assert path.read_bytes() == CONTENT
    assert host.asked == ["bytes=5000-"]


def test_a_complete_partial_file_is_not_downloaded_again(host: Host, tmp_path: Path) -> None:
    (tmp_path / "text.zip.part").write_bytes(CONTENT)
    path = download(host.url, tmp_path / "text.zip", checksum=CHECKSUM, progress=False)
    assert path.read_bytes() == CONTENT


def test_a_partial_file_longer_than_the_file_is_discarded(host: Host, tmp_path: Path) -> None:
    (tmp_path / "text.zip.part").write_bytes(CONTENT + b"x")
    path = download(host.url, tmp_path / "text.zip", checksum=CHECKSUM, progress=False)
    assert path.read_bytes() == CONTENT


def test_a_server_without_ranges_sends_the_whole_file_again(host: Host, tmp_path: Path) -> None:
    host.ranged = False
    (tmp_path / "text.zip.part").write_bytes(b"something else")
    path = download(host.url, tmp_path / "text.zip", checksum=CHECKSUM, progress=False)
    assert path.read_bytes() == CONTENT


def test_a_server_that_never_completes_is_given_up(host: Host, tmp_path: Path) -> None:
    host.ranged, host.most = False, 100
    with pytest.raises(UserError, match=r"cannot download http://.*run the command again"):
        download(host.url, tmp_path / "text.zip", progress=False)
    assert not (tmp_path / "text.zip").exists()
    assert len(host.asked) == module.ATTEMPTS + 1


def test_a_wrong_checksum_names_both_and_deletes_the_file(host: Host, tmp_path: Path) -> None:
    wrong = "sha256:" + "0" * 64
    with pytest.raises(UserError, match=f"expected {wrong}, found {CHECKSUM}"):
        download(host.url, tmp_path / "text.zip", checksum=wrong, progress=False)
    assert list(tmp_path.glob("text*")) == []


def test_an_http_error_is_reported(host: Host, tmp_path: Path) -> None:
    host.status = 403
    with pytest.raises(UserError, match="answers 403 Forbidden"):
        download(host.url, tmp_path / "text.zip", progress=False)


def test_an_unreachable_server_is_reported(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = host.url
    host.server_close()
    monkeypatch.setattr(module, "ATTEMPTS", 2)
    with pytest.raises(UserError, match="cannot download"):
        download(url, tmp_path / "text.zip", progress=False)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_a_terminal(
    terminal: bool, host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    download(host.url, tmp_path / "text.zip", progress=True)
    assert ("text.zip" in capsys.readouterr().err) == terminal
