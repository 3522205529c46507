"""The page and a server that refuses, waits, or is gone."""

from selenium.webdriver.common.keys import Keys
from tests.serve.page.browser import Page


def test_a_server_that_wants_a_token_is_given_one(page: Page) -> None:
    page.script.token = "secret"
    page.driver.get("about:blank")
    page.driver.get(page.address)
    page.until(lambda: page.shown("#token"))
    page.type("wrong" + Keys.ENTER, "#token-field")
    page.until(lambda: page.text("#token .hint") == "The server did not accept this token.")
    page.type("secret" + Keys.ENTER, "#token-field")
    page.until(lambda: page.text("#facts").startswith("tiny"))
    page.open("#text=to")
    page.until(page.scored)
    assert not page.shown("#token")


def test_without_a_token_the_page_says_what_is_missing(page: Page) -> None:
    page.script.token = "secret"
    page.driver.get("about:blank")
    page.driver.get(page.address)
    page.until(lambda: page.shown("#token"))
    page.type(Keys.ESCAPE, "#token-field")
    page.until(lambda: page.shown("#notice"))
    assert page.text("#notice p") == "The server asks for a token."


def test_a_busy_server_is_asked_again_when_it_says(page: Page) -> None:
    page.open("#text=to")
    page.until(page.scored)
    page.until(lambda: page.text(".what") == "next")
    page.script.busy = 1
    page.find("#go").click()
    page.until(lambda: page.text("#notice p") == "The server is busy. Trying again in 1 s")
    page.until(lambda: page.value == "towrote the first program.")
    assert not page.shown("#notice")


def test_a_server_that_is_gone_can_be_tried_again(page: Page) -> None:
    page.open("#text=to")
    page.until(page.scored)
    page.until(lambda: page.text(".what") == "next")
    page.script.fails = True
    page.find("#go").click()
    page.until(lambda: page.text("#notice p").startswith("The server does not answer."))
    assert page.value == "towro"
    page.script.fails = False
    page.find("#notice button").click()
    page.until(lambda: not page.shown("#notice"))
    page.until(lambda: page.text("#go") == "Continue" and page.text(".what") == "next")


def test_an_error_of_the_server_is_shown_in_its_words(page: Page) -> None:
    page.script.models = ("tiny",)
    page.open("#text=to")
    page.until(page.scored)
    page.run("window.fetch = async () => new Response(JSON.stringify("
             "{error: {message: 'at most 100 tokens'}}), {status: 400})")  # fmt: skip
    page.find("#go").click()
    page.until(lambda: page.text("#notice p") == "at most 100 tokens")
    page.find("#notice button").click()
    assert not page.shown("#notice")
