"""The page while somebody writes, or the model does."""

import pytest
from selenium.webdriver.common.keys import Keys
from tests.serve.page.browser import PROMPT, Page


def test_an_empty_page_offers_a_beginning(page: Page) -> None:
    page.open()
    page.until(lambda: page.alternatives())
    assert page.text("#facts") == "tiny · 7.8M parameters · reads bytes · 1.0385 bits per byte"
    assert page.text(".what") == "next"
    page.find("#examples button").click()
    page.until(lambda: page.text("#go") == "Continue" and page.value.endswith("program."))
    assert page.value.startswith("'''Ada Lovelace'''")
    assert not page.shown("#examples")


def test_what_the_model_writes_appears_as_it_comes(page: Page) -> None:
    page.script.delay_s = 0.02
    page.open()
    page.type(PROMPT + Keys.CONTROL + Keys.ENTER)
    page.until(lambda: page.text("#go") == "Stop")
    page.until(lambda: PROMPT < page.value < PROMPT + "wrote the first program.")
    page.until(lambda: page.text("#go") == "Continue")
    assert page.value == PROMPT + "wrote the first program."
    characters = page.characters()
    assert "".join(text for text, _ in characters) == page.value
    assert ["written" in names for _, names in characters] == [False] * 4 + [True] * 24
    page.until(page.scored)
    assert page.text("#spoken") == "Written: wrote the first program."


def test_a_request_carries_the_settings(page: Page) -> None:
    page.open("#temperature=0.5&top_p=0.9&top_k=20&min_p=0.1&length=6&seed=7")
    page.type(PROMPT + Keys.CONTROL + Keys.ENTER)
    page.until(lambda: page.value == PROMPT + "wrote ")
    asked = next(body for _, body in page.script.asked if body.get("stream"))
    wanted = {
        "model": "tiny", "prompt": PROMPT, "temperature": 0.5, "top_p": 0.9, "top_k": 20,
        "min_p": 0.1, "max_tokens": 6, "seed": 7, "stream": True,
    }  # fmt: skip
    assert asked.items() >= wanted.items()


def test_an_alternative_is_put_there_and_the_model_goes_on(page: Page) -> None:
    page.open("#text=to+be&length=5")
    page.until(page.scored)
    page.type(Keys.HOME + Keys.ARROW_RIGHT)
    page.until(lambda: page.text(".what") == "o")
    page.find(".lists li button").click()
    page.until(lambda: page.value == "tewrote" and page.text("#go") == "Continue")
    page.find("#undo").click()
    page.until(lambda: page.value == "to be")


def test_escape_stops_and_the_server_is_told(page: Page) -> None:
    page.script.written, page.script.delay_s = b"on and on " * 400, 0.01
    page.open("#length=4000")
    page.type(PROMPT + Keys.CONTROL + Keys.ENTER)
    page.until(lambda: len(page.value) > 10)
    page.type(Keys.ESCAPE)
    assert page.text("#go") == "Continue"
    value = page.value
    page.until(lambda: page.script.cut == 1)
    assert page.value == value
    assert len(value) < 4000


def test_typing_takes_over_from_the_model(page: Page) -> None:
    page.script.written, page.script.delay_s = b"on and on " * 400, 0.01
    page.open("#length=4000")
    page.type(PROMPT + Keys.CONTROL + Keys.ENTER)
    page.until(lambda: len(page.value) > 10)
    page.type("!")
    assert page.text("#go") == "Continue"
    assert page.value.endswith("!")
    page.until(page.scored)
    assert page.steps()[-1] == 15


def test_typing_again_cancels_a_score_that_nobody_needs(page: Page) -> None:
    page.open()
    page.type("to be or not to be")
    page.until(page.scored)
    asked = [body["texts"] for path, body in page.script.asked if path == "/score"]
    assert asked[-1] == ["to be or not to be"]
    # Less than one request for a key.
    assert len(asked) < 18


def test_bytes_of_a_character_are_summed_and_broken_ones_shown(page: Page) -> None:
    page.script.written = "é".encode() + b"\xff\x00" + "e\u0301".encode() + b"\xe2\x82"
    page.open()
    page.type("a" + Keys.CONTROL + Keys.ENTER)
    page.until(lambda: page.text("#go") == "Continue" and len(page.value) > 1)
    page.until(page.scored)
    texts = [text for text, _ in page.characters()]
    assert texts == ["a", "é", "\ufffd", "␀", "e\u0301", "\ufffd"]
    page.type(Keys.HOME + Keys.ARROW_RIGHT)
    page.until(lambda: page.text(".what") == "é")
    assert page.text("#alternatives .fact") == "15.5 bits, 0.002 % · written by the model"
    assert page.text(".part") == "byte 1 of 2: C3, 7.75 bits"
    page.type(Keys.ARROW_RIGHT)
    page.until(lambda: "not UTF-8" in page.text("#alternatives .fact"))
    assert page.text(".what") == "FF"


def test_what_the_model_writes_is_never_markup(page: Page) -> None:
    page.script.written = b"<img src=x onerror=alert(1)><script>alert(2)</script>"
    page.open()
    page.type(PROMPT + Keys.CONTROL + Keys.ENTER)
    page.until(lambda: page.text("#go") == "Continue" and page.value.endswith("</script>"))
    page.type(Keys.HOME)
    page.until(page.scored)
    assert not page.run("return document.querySelector('main img, main script')")


TEXTS = {
    "prose": "The quick  brown fox\tjumps over the lazy dog. " * 30 + "\n\nend\n",
    "no blanks": "antidisestablishmentarianism" * 40,
    "right to left": "שלום עולם, زه السلام عليكم (abc 123) ושוב. " * 12 + "\nabc שלום\nمرحبا",  # noqa: RUF001
    "signs": "👩‍👩‍👧‍👦 naïve e\u0301tude 日本語のテキスト 🇩🇪 " * 12,
}


@pytest.mark.parametrize("kind", TEXTS)
def test_the_box_and_the_colours_break_lines_alike(page: Page, kind: str) -> None:
    page.open()
    for width in (360, 900):
        page.size(width, 900)
        page.run("const box = document.getElementById('text'); box.value = arguments[0];"
                 "box.dispatchEvent(new Event('input'))", TEXTS[kind])  # fmt: skip
        wrong = page.run(
            """
            const box = document.getElementById("text");
            const spans = [...document.querySelectorAll("#sheet .ink span")];
            const wrong = [];
            if (box.scrollHeight > box.clientHeight) wrong.push(["height", box.scrollHeight]);
            let offset = 0;
            for (const span of spans) {
              const place = span.getClientRects()[0];
              const inside = place.top > 0 && place.bottom < innerHeight && place.width > 4;
              if (inside && span.textContent.trim()) {
                // Between text to the left and text to the right one edge has two offsets.
                const found = [0.25, 0.75].map((share) => document.caretPositionFromPoint(
                  place.left + share * place.width, place.top + place.height / 2));
                const good = found.some((each) => each.offsetNode !== box
                  || each.offset === offset || each.offset === offset + span.textContent.length);
                if (!good) wrong.push([span.textContent, offset, found.map((each) => each.offset)]);
              }
              offset += span.textContent.length;
            }
            return wrong;
            """
        )
        assert not wrong, width


def test_of_a_very_long_text_the_end_is_scored(page: Page) -> None:
    page.open()
    page.run("const box = document.getElementById('text'); box.value = arguments[0];"
             "box.dispatchEvent(new Event('input'))", "so it goes. " * 20_000)  # fmt: skip
    page.until(lambda: "bits per byte" in page.text("#count"))
    assert "240,000 characters" in page.text("#count")
    assert "only the last 4,500 are read" in page.text("#count")
    sizes = [len(body["texts"][0]) for path, body in page.script.asked if path == "/score"]
    assert max(sizes) <= 6000
    assert len(page.value) == 240_000
    page.find("#link").click()
    page.until(lambda: "too long for a link" in page.text("#notice p"))


def test_the_page_says_nothing_aloud_while_it_writes(page: Page) -> None:
    page.script.delay_s = 0.01
    page.open()
    page.run("window.said = []; const spoken = document.getElementById('spoken');"
             "new MutationObserver(() => said.push(spoken.textContent)).observe(spoken,"
             "{childList: true, subtree: true, characterData: true})")  # fmt: skip
    page.type(PROMPT + Keys.CONTROL + Keys.ENTER)
    page.until(lambda: len(page.run("return said")) > 1)
    assert page.run("return said") == ["Writing.", "Written: wrote the first program."]
