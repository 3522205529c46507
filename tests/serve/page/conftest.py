"""One headless Chromium and one server for all tests of the page."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from tests.serve.page.browser import Page, watched
from tests.serve.page.fake import FakeServer, Script

QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--force-device-scale-factor=1", "--window-size=1200,900",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever opens a browser belongs to the slow tier."""
    for item in items:
        if "driver" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.story)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    binary, program = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and program):
        pytest.skip("no chromium with its driver here")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*QUIET, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    # With the path of the driver, Selenium looks for none elsewhere.
    driver = webdriver.Chrome(service=Service(program), options=options)
    # Away from the browser's own first page, before a test looks at its requests.
    driver.get("about:blank")
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def fake() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()


@pytest.fixture
def page(driver: webdriver.Chrome, fake: FakeServer) -> Iterator[Page]:
    """A page of the server whose model is known; what it does is in `page.script`."""
    fake.script = Script()
    with watched(Page(driver, fake.address, fake.script)) as page:
        yield page


@dataclass
class RealServer:
    """`sparing serve` with the model of the package, in a process of its own."""

    process: subprocess.Popen[str]
    address: str


@pytest.fixture
def real() -> Iterator[RealServer]:
    command = [sys.executable, "-m", "sparing", "serve", "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )
    with process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"http://[\d.]+:\d+", line):
                yield RealServer(process, found[0] + "/")
                break
        else:
            pytest.fail("".join(said))
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
