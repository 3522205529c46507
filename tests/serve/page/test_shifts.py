"""Nothing on the page moves but the text itself, as the browser's own layout shifts say."""

import pytest
from selenium.webdriver.common.keys import Keys
from tests.serve.page.browser import Page

WATCH = """
window.moved = [];
const note = (list) => {
  for (const entry of list) for (const { node, previousRect, currentRect } of entry.sources) {
    const element = node?.nodeType === Node.TEXT_NODE ? node.parentElement : node;
    // A line of text that grows, and what is said of another character.
    if (!element || element.closest(".ink, .headline")) continue;
    const [was, is] = [previousRect, currentRect].map(({ x, y }) => [x, y].map(Math.round));
    window.moved.push([element.id || element.className || element.tagName, was, is]);
  }
};
window.watching = new PerformanceObserver((list) => note(list.getEntries()));
window.watching.observe({ type: "layout-shift", buffered: true });
window.seen = () => { note(window.watching.takeRecords()); return window.moved.splice(0); };
"""
SETTLED = (
    "const done = arguments[0];"
    "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50)))"
)


def moved(page: Page) -> object:
    """What has moved since this was asked last: each element, and from where to where."""
    page.driver.execute_async_script(SETTLED)
    return page.run("return window.seen()")


def write_on(page: Page) -> None:
    page.type(Keys.CONTROL + Keys.ENTER)
    page.until(lambda: page.text("#go") == "Stop")
    page.until(lambda: page.text("#go") == "Continue")
    page.until(page.scored)
    page.until(lambda: page.text(".what") == "next")


@pytest.mark.parametrize("width", [320, 360, 700, 1200])
def test_nothing_moves_while_a_text_is_typed_scored_and_written(page: Page, width: int) -> None:
    page.size(width, 900)
    page.script.delay_s = 0.01
    page.open()
    page.run(WATCH)
    page.until(lambda: page.alternatives())
    assert not moved(page), "while it loads"
    page.type("to be")
    page.until(page.scored)
    page.until(lambda: page.text(".what") == "next")
    assert not moved(page), "while one types"
    page.script.written = b"on and on, line by line.\n" * 12
    write_on(page)
    assert not moved(page), "while the model writes, beyond the end of the sheet"
    page.script.busy = 1
    write_on(page)
    assert not moved(page), "while a busy server is waited for"


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_moves_whatever_character_is_looked_at(page: Page, width: int) -> None:
    page.size(width, 900)
    # None of the alternatives; and one of three bytes, each with alternatives of its own.
    page.open("#text=tX\u20ac")
    page.run(WATCH)
    page.until(page.scored)
    page.find("#heads summary").click()
    page.until(lambda: page.run("return document.querySelectorAll('.option').length") == 5)
    moved(page)
    top = "return scrollY + document.querySelector('#heads').getBoundingClientRect().top"
    before = page.run(top)
    for name in ("\u20ac", "X", "t"):
        page.type(Keys.ARROW_LEFT)
        page.until(lambda name=name: page.text(".what") == name)
        assert page.run(top) == before
    page.until(lambda: page.text("#heads .fact").startswith("There is nothing before"))
    page.run("document.querySelector('#clear').focus()")
    assert not moved(page)
    assert page.run("return document.querySelectorAll('.option').length") == 5


def test_the_end_is_shown_when_the_model_goes_on(page: Page) -> None:
    page.size(1200, 900)
    page.open("#text=" + "line%0A" * 60)
    page.until(page.scored)
    page.run("document.getElementById('sheet').scrollTop = 0")
    page.find("#go").click()
    page.until(lambda: page.text("#go") == "Continue")
    left = (
        "const s = document.getElementById('sheet');"
        "return s.scrollHeight - s.scrollTop - s.clientHeight"
    )
    assert abs(page.run(left)) < 2
