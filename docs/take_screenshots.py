"""Take the screenshots of docs/page.md: the package's model in headless Chromium.

.venv/bin/python docs/take_screenshots.py
"""

import base64
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).parents[1]))

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys
from tests.serve.page.browser import Page
from tests.serve.page.conftest import QUIET

IMAGES = Path(__file__).parent / "images"
PROMPT = "'''Ada Lovelace''' was an English "
SETTINGS = {
    "text": PROMPT,
    "first": "She went to their house.",
    "second": "She went to there house.",
    "length": 260,
    "seed": 13,
}


def main() -> None:
    """Let the model write once, and show the same text in three ways."""
    with serving() as address, browsing() as driver:
        page = Page(driver, address)
        page.size(1200, 900)
        page.open("#" + urlencode(SETTINGS))
        page.type(Keys.CONTROL + Keys.ENTER)
        page.until(lambda: page.text("#go") == "Continue" and len(page.value) > len(PROMPT))
        page.until(lambda: page.scored() and page.text("#verdict"))
        look_at(page, page.value.index("trustee"))
        shoot(page, "page_light", 1200, 900)
        page.size(390, 844)
        shoot(page, "page_phone", 390, 844, scale=2)
        page.size(1200, 960)
        page.prefer("dark")
        page.find("#sampling summary").click()
        page.find("#heads summary").click()
        look_at(page, page.value.rindex("Irving") + 3)
        page.until(lambda: page.text("#heads .fact").startswith("Choose a head"))
        page.run("document.querySelectorAll('.option input')[4].click()")
        page.until(lambda: any(page.steps(kind="weight")))
        shoot(page, "page_dark", 1200, 960)


def look_at(page: Page, position: int) -> None:
    """Move the cursor to a character, and wait until the panel speaks of it."""
    page.run(
        "const text = document.getElementById('text'); text.focus();"
        "text.setSelectionRange(arguments[0], arguments[0])",
        position,
    )
    page.until(lambda: page.text(".what") == page.value[position])


def shoot(page: Page, name: str, width: int, height: int, scale: float = 1) -> None:
    """Write what the browser shows to an image."""
    page.run("scrollTo(0, 0)")
    area = {"x": 0, "y": 0, "width": width, "height": height, "scale": scale}
    shot = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": area})
    (IMAGES / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server with the package's model."""
    command = [sys.executable, "-m", "sparing", "serve", "--port", "0", "--device", "cpu"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    ) as process:
        assert process.stdout is not None
        found = (re.search(r"http://[\d.]+:\d+", line) for line in process.stdout)
        try:
            yield next(match[0] for match in found if match) + "/"
        finally:
            process.terminate()


@contextmanager
def browsing() -> Iterator[webdriver.Chrome]:
    """A headless browser."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*QUIET, "--hide-scrollbars"):
        options.add_argument(flag)
    driver = webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=options)
    try:
        yield driver
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
