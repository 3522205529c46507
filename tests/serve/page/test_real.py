"""The page and the real server, with the model that comes with the package."""

from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys
from tests.serve.page.browser import Page, watched
from tests.serve.page.conftest import RealServer


def test_a_reader_writes_looks_and_compares(driver: Chrome, real: RealServer) -> None:
    with watched(Page(driver, real.address)) as page:
        page.open("#length=12&seed=1&temperature=0&first=their+house&second=there+house")
        assert page.text("#facts").startswith("enwik8_small · 7.8M parameters · reads bytes")
        page.type("The [[United " + Keys.CONTROL + Keys.ENTER)
        page.until(lambda: page.text("#go") == "Continue" and "States" in page.value)
        page.until(page.scored)
        page.until(lambda: page.text(".what") == "next")
        # Three letters into a name that it knows, the model is sure.
        steps = dict(zip(range(len(page.value)), page.steps(), strict=True))
        at = page.value.index("States")
        assert steps[at + 3] == 0 < steps[0]
        page.type(Keys.HOME + Keys.ARROW_RIGHT * at)
        page.until(lambda: page.text(".what") == "S")
        assert page.alternatives()[0][0] == "S"
        page.until(lambda: page.text("#verdict"))
        assert page.text("#verdict").startswith("The first is")
        page.find("#heads summary").click()
        page.until(lambda: page.text("#heads .fact").startswith("Choose a head"))
        assert len(page.run("return document.querySelectorAll('.option')")) == 13
        page.run("document.querySelectorAll('.option input')[4].click()")
        page.until(lambda: 15 in page.steps(kind="weight"))
