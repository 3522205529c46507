"""The page in the browser, in the words of its reader."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.support.wait import WebDriverWait
from tests.serve.page.fake import Script

PROMPT = "Ada "
STUCK_S = 120
"""How long a page may do nothing before a test gives up on it, on the busiest of machines."""


class Page:
    """The page in the browser, in the words of its reader."""

    def __init__(self, driver: Chrome, address: str, script: Script | None = None) -> None:
        self.driver, self.address = driver, address
        self.script = script or Script()

    def open(self, fragment: str = "") -> None:
        self.driver.get("about:blank")
        self.driver.get(self.address + fragment)
        self.until(lambda: self.text("#facts") != "Loading the model…")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, condition: Callable[[], Any]) -> Any:
        wait = WebDriverWait(self.driver, STUCK_S, poll_frequency=0.03)
        return wait.until(lambda driver: condition())

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        content = "return document.querySelector(arguments[0]).textContent.trim()"
        return str(self.run(content, selector))

    def shown(self, selector: str) -> bool:
        return bool(self.find(selector).is_displayed())

    @property
    def value(self) -> str:
        return str(self.run("return document.getElementById('text').value"))

    def characters(self, editor: str = "#sheet") -> list[tuple[str, list[str]]]:
        """The characters behind a text box, with their classes."""
        spans = f"[...document.querySelectorAll('{editor} .ink span')]"
        found = self.run(f"return {spans}.map(each => [each.textContent, each.className])")
        return [(text, names.split()) for text, names in found]

    def steps(self, editor: str = "#sheet", kind: str = "bits") -> list[int | None]:
        """The step of the colour of each character."""
        found = [names for _, names in self.characters(editor)]
        return [
            next((int(name[5:]) for name in names if kind in names and name[:5] == "step-"), None)
            for names in found
        ]

    def type(self, keys: str, selector: str = "#text") -> None:
        self.find(selector).send_keys(keys)

    def scored(self, editor: str = "#sheet") -> bool:
        steps = self.steps(editor)
        return bool(steps) and None not in steps

    def alternatives(self) -> list[list[str]]:
        rows = "[...document.querySelectorAll('.lists li')]"
        cells = "[...row.querySelectorAll('.code, .share')].map(each => each.textContent)"
        found: list[list[str]] = self.run(f"return {rows}.map(row => {cells})")
        return found

    def size(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@contextmanager
def watched(page: Page) -> Iterator[Page]:
    """A page, and afterwards: nothing in its console, no request to anybody else."""
    driver = page.driver
    driver.get_log("performance")
    yield page
    # Answers with an error are logged too; tests ask for them.
    console = [entry for entry in driver.get_log("browser") if entry["source"] != "network"]
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    requests = [
        each["params"]["request"]["url"]
        for each in messages
        if each["method"] == "Network.requestWillBeSent"
    ]
    page.run("if (location.protocol !== 'about:') { sessionStorage.clear(); localStorage.clear() }")
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    page.prefer("light")
    driver.get("about:blank")
    assert not console
    assert requests
    assert not [url for url in requests if not url.startswith((page.address, "about:"))]
