"""The page in a real browser: headless Chromium, and a server whose model is known beforehand."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.fake import FakeServer, Script, bits_of

selenium = pytest.importorskip("selenium", reason="the page is tested with selenium")
from selenium import webdriver  # noqa: E402  # an extra
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium with its driver here"),
    pytest.mark.story,
]
PROMPT = "Ada "
QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--force-device-scale-factor=1", "--window-size=1200,900",
)  # fmt: skip
STUCK_S = 10
"""How long a page may do nothing before a test gives up on it, on the busiest of machines."""


class Page:
    """The page in the browser, in the words of its reader."""

    def __init__(self, driver: webdriver.Chrome, server: FakeServer) -> None:
        self.driver, self.server = driver, server

    def open(self, fragment: str = "") -> None:
        self.driver.get("about:blank")
        self.driver.get(self.server.address + fragment)
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


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*QUIET, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(service=Service(str(DRIVER)), options=options)
    # Away from the browser's own first page, before a test looks at its requests.
    driver.get("about:blank")
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()


@pytest.fixture
def page(driver: webdriver.Chrome, server: FakeServer) -> Iterator[Page]:
    """A page, and after the test: nothing in its console, no request to anybody else."""
    server.script = Script()
    driver.get_log("performance")
    page = Page(driver, server)
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
    assert not console
    assert requests
    assert not [url for url in requests if not url.startswith((server.address, "about:"))]


def test_an_empty_page_offers_a_beginning(page: Page) -> None:
    page.open()
    page.until(lambda: page.alternatives())
    assert page.text("#facts") == "tiny · 7.8M parameters · reads bytes · 1.0385 bits per byte"
    assert page.text(".what") == "next"
    page.find("#examples button").click()
    page.until(lambda: page.text("#go") == "Go on" and page.value.endswith("program."))
    assert page.value.startswith("'''Ada Lovelace'''")
    assert not page.shown("#examples")


def test_what_the_model_writes_appears_as_it_comes(page: Page) -> None:
    page.server.script.delay_s = 0.02
    page.open()
    page.type(PROMPT + Keys.CONTROL + Keys.ENTER)
    page.until(lambda: page.text("#go") == "Stop")
    page.until(lambda: PROMPT < page.value < PROMPT + "wrote the first program.")
    page.until(lambda: page.text("#go") == "Go on")
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
    asked = next(body for _, body in page.server.script.asked if body.get("stream"))
    wanted = {
        "model": "tiny", "prompt": PROMPT, "temperature": 0.5, "top_p": 0.9, "top_k": 20,
        "min_p": 0.1, "max_tokens": 6, "seed": 7, "stream": True,
    }  # fmt: skip
    assert asked.items() >= wanted.items()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_surprisal_and_leave_the_text_readable(page: Page, scheme: str) -> None:
    page.prefer(scheme)
    page.open("#text=aZb")
    page.until(page.scored)
    assert page.steps() == [min(15, int(2 * bits_of(byte))) for byte in b"aZb"]
    for kind in ("bits", "weight"):
        colours = page.run(LUMINANCES, kind)
        ink, steps = colours[0], colours[1:]
        assert sorted(set(steps), reverse=scheme == "light") == steps
        lightest = [max(ink, each) + 0.05 for each in steps]
        darkest = [min(ink, each) + 0.05 for each in steps]
        assert min(a / b for a, b in zip(lightest, darkest, strict=True)) >= 4.5


LUMINANCES = """
const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const luminance = (colour) => {
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  const linear = [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map((each) =>
    each / 255 <= 0.04045 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const box = document.body.appendChild(document.createElement("span"));
const found = [luminance(getComputedStyle(document.body).color)];
for (let step = 0; step < 16; step++) {
  box.className = `${arguments[0]} step-${step}`;
  found.push(luminance(getComputedStyle(box).backgroundColor));
}
box.remove();
return found;
"""


def test_arrow_keys_show_the_alternatives(page: Page) -> None:
    page.open("#text=to+be")
    page.until(page.scored)
    page.type(Keys.HOME)
    page.until(lambda: page.text(".what") == "t")
    assert page.text("#alternatives .fact") == "2.00 bits, 25 %"
    assert page.alternatives()[:3] == [["e", "50 %"], ["t", "25 %"], ["␣", "13 %"]]
    assert page.text(".lists .chosen .code") == "t"
    page.type(Keys.ARROW_RIGHT)
    page.until(lambda: page.text(".what") == "o")
    assert page.alternatives()[-1] == ["o", "84 %"]
    page.until(lambda: page.text("#spoken").startswith("o: 0.25 bits, 84 %. Expected: e 50 %"))
    page.type(Keys.END)
    page.until(lambda: page.text(".what") == "next")


def test_pointing_at_a_character_shows_its_alternatives(page: Page) -> None:
    page.open("#text=to+be")
    page.until(page.scored)
    box = page.run("return document.querySelectorAll('#sheet .ink span')[3]")
    ActionChains(page.driver).move_to_element(box).perform()
    page.until(lambda: page.text(".what") == "b")
    assert page.run("return document.querySelector('.pointed').textContent") == "b"
    ActionChains(page.driver).move_to_element(page.find("h1")).perform()
    page.until(lambda: page.text(".what") == "next")


def test_an_alternative_is_put_there_and_the_model_goes_on(page: Page) -> None:
    page.open("#text=to+be&length=5")
    page.until(page.scored)
    page.type(Keys.HOME + Keys.ARROW_RIGHT)
    page.until(lambda: page.text(".what") == "o")
    page.find(".lists li button").click()
    page.until(lambda: page.value == "tewrote" and page.text("#go") == "Go on")
    page.find("#undo").click()
    page.find("#undo").click()
    page.until(lambda: page.value == "to be")


def test_two_texts_are_scored_against_each_other(page: Page) -> None:
    page.open()
    page.type("eee", ".side:nth-child(1) textarea")
    page.type("eet", ".side:nth-child(2) textarea")
    page.until(lambda: page.text("#verdict"))
    assert page.text("#verdict") == "The first is 3.36 times as probable: 1.75 bits less."
    assert page.text(".side:nth-child(1) .fact") == "0.75 bits · 0.250 bits per byte"
    assert page.steps(".side:nth-child(2)") == [0, 0, 4]
    page.type(Keys.ARROW_LEFT, ".side:nth-child(2) textarea")
    page.until(lambda: page.text(".side:nth-child(2) .readout") == "t  2.00 bits, 25 %")


def test_a_link_restores_texts_and_settings(page: Page) -> None:
    page.open()
    page.type("naïve & <b>\n#1")
    page.type("one", ".side:nth-child(1) textarea")
    page.run(
        "const set = (id, value) => { const input = document.getElementById(id); input.value = value;"
        "input.dispatchEvent(new Event('input')) }; set('temperature', 0.6); set('seed', 12)"
    )
    page.until(lambda: "seed=12" in page.driver.current_url and "one" in page.driver.current_url)
    fragment = page.driver.current_url.partition("#")[2]
    page.open("#" + fragment)
    page.until(page.scored)
    assert page.value == "naïve & <b>\n#1"
    values = "return ['temperature', 'seed', 'length'].map(id => document.getElementById(id).value)"
    assert page.run(values) == ["0.6", "12", "200"]
    assert page.run("return document.querySelector('.side textarea').value") == "one"
    page.open("#temperature=99&top_p=much&seed=-3&nonsense=1")
    values = "return ['temperature', 'top_p', 'seed'].map(id => document.getElementById(id).value)"
    assert page.run(values) == ["2", "0.95", "0"]


def test_a_small_screen_never_scrolls_sideways(page: Page) -> None:
    page.size(360, 740)
    page.open("#text=" + "long" * 60 + "&first=" + "x" * 200 + "&second=y")
    page.until(page.scored)
    page.find("#heads summary").click()
    page.until(lambda: page.run("return document.querySelectorAll('.option').length") == 5)
    for selector in ("html", "#sheet", ".side .sheet", ".panels"):
        assert page.run(
            "const box = document.querySelector(arguments[0]);"
            "return box.scrollWidth <= box.clientWidth",
            selector,
        )


def test_dark_and_light_follow_the_system_and_the_reader(page: Page) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    page.open()
    light = page.run(ground)
    page.prefer("dark")
    dark = page.run(ground)
    assert dark != light
    page.find("#theme").click()
    assert page.text("#theme") == "Theme: light"
    assert page.run(ground) == light
    page.find("#theme").click()
    page.open()
    assert (page.text("#theme"), page.run(ground)) == ("Theme: dark", dark)


def test_everything_that_can_be_used_has_a_name(page: Page) -> None:
    page.server.script.models = ("tiny", "other")
    page.open("#text=to+be")
    page.until(page.scored)
    page.type(Keys.HOME + Keys.ARROW_RIGHT)
    page.find("#heads summary").click()
    page.until(lambda: page.run("return document.querySelectorAll('.option').length") == 5)
    nodes = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    used = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
        and any(each["name"] == "focusable" for each in node.get("properties", []))
        and node["role"]["value"] not in ("RootWebArea", "generic")
    ]
    assert not [role for role, name in used if not name.strip()]
    assert {
        ("textbox", "Text"), ("textbox", "First text"), ("button", "Go on"), ("combobox", "Model"),
        ("slider", "Temperature"), ("slider", "Top p"), ("spinbutton", "Seed"),
        ("button", "e, 50 %: put it there and go on"), ("button", "space, 13 %: put it there and go on"),
        ("radio", "Block 1, head 1: can look back 5,000; half of its attention is on the last token itself"),
    } <= set(used)  # fmt: skip
    # The coloured copy of the text is for eyes only.
    assert len([1 for node in nodes if node.get("name", {}).get("value") == "b"]) == 0


def test_the_heads_show_how_far_and_where_they_look(page: Page) -> None:
    page.open("#text=to+be+or")
    page.until(page.scored)
    page.find("#heads summary").click()
    far = "#heads input[value='1.1']"
    page.until(lambda: page.run("return document.querySelector(arguments[0])", far))
    widths = page.run("return [...document.querySelectorAll('.option .bar')].map(each => "
                      "Number(each.style.getPropertyValue('--span')))")  # fmt: skip
    assert widths[3] == max(widths) > widths[0] > 0
    page.run("document.querySelector(arguments[0]).click()", far)
    page.until(lambda: page.steps(kind="weight") == [15, 0, 0, 0, 0, 0, 0, 0])
    assert page.text("#legend-title") == "Attention of block 1, head 1"
    assert "within the last 8" in page.text("#heads .fact")
    page.type(Keys.HOME + Keys.ARROW_RIGHT * 2)
    page.until(lambda: page.steps(kind="weight") == [15, 0] + [None] * 6)
    page.run("document.querySelector('#heads input').click()")
    page.until(page.scored)


def test_a_model_without_a_picture_of_its_attention_says_so(page: Page) -> None:
    page.server.script.attention = False
    page.open("#text=to")
    page.find("#heads summary").click()
    page.until(lambda: page.text("#heads .fact") == "This model does not show its attention.")
    assert not [path for path, _ in page.server.script.asked if path == "/attention"]


def test_another_model_scores_the_text_anew(page: Page) -> None:
    page.server.script.models = ("tiny", "other")
    page.open("#text=to")
    page.until(page.scored)
    page.type("o", "#model")
    page.until(lambda: page.scored() and not page.run("return document.querySelector('.stale')"))
    assert [body["model"] for path, body in page.server.script.asked if path == "/score"] == [
        "tiny", "other",
    ]  # fmt: skip
    page.until(lambda: "model=other" in page.driver.current_url)


def test_escape_stops_and_the_server_is_told(page: Page) -> None:
    page.server.script.written, page.server.script.delay_s = b"on and on " * 400, 0.01
    page.open("#length=4000")
    page.type(PROMPT + Keys.CONTROL + Keys.ENTER)
    page.until(lambda: len(page.value) > 10)
    page.type(Keys.ESCAPE)
    assert page.text("#go") == "Go on"
    value = page.value
    page.until(lambda: page.server.script.cut == 1)
    assert page.value == value
    assert len(value) < 4000


def test_typing_takes_over_from_the_model(page: Page) -> None:
    page.server.script.written, page.server.script.delay_s = b"on and on " * 400, 0.01
    page.open("#length=4000")
    page.type(PROMPT + Keys.CONTROL + Keys.ENTER)
    page.until(lambda: len(page.value) > 10)
    page.type("!")
    assert page.text("#go") == "Go on"
    assert page.value.endswith("!")
    page.until(page.scored)
    assert page.steps()[-1] == 15


def test_typing_again_cancels_a_score_that_nobody_needs(page: Page) -> None:
    page.open()
    page.type("to be or not to be")
    page.until(page.scored)
    asked = [body["texts"] for path, body in page.server.script.asked if path == "/score"]
    assert asked[-1] == ["to be or not to be"]
    # Less than one request for a key.
    assert len(asked) < 18


def test_a_server_that_wants_a_token_is_given_one(page: Page) -> None:
    page.server.script.token = "secret"
    page.driver.get("about:blank")
    page.driver.get(page.server.address)
    page.until(lambda: page.shown("#token"))
    page.type("wrong" + Keys.ENTER, "#token-field")
    page.until(lambda: page.text("#token .hint") == "The server did not accept this token.")
    page.type("secret" + Keys.ENTER, "#token-field")
    page.until(lambda: page.text("#facts").startswith("tiny"))
    page.open("#text=to")
    page.until(page.scored)
    assert not page.shown("#token")


def test_without_a_token_the_page_says_what_is_missing(page: Page) -> None:
    page.server.script.token = "secret"
    page.driver.get("about:blank")
    page.driver.get(page.server.address)
    page.until(lambda: page.shown("#token"))
    page.type(Keys.ESCAPE, "#token-field")
    page.until(lambda: page.shown("#notice"))
    assert page.text("#notice p") == "The server asks for a token."


def test_a_busy_server_is_asked_again_when_it_says(page: Page) -> None:
    page.open("#text=to")
    page.until(page.scored)
    page.until(lambda: page.text(".what") == "next")
    page.server.script.busy = 1
    page.find("#go").click()
    page.until(lambda: page.text("#notice p") == "The server is busy. Trying again in 1 s.")
    page.until(lambda: page.value == "towrote the first program.")
    assert not page.shown("#notice")


def test_a_server_that_is_gone_can_be_tried_again(page: Page) -> None:
    page.open("#text=to")
    page.until(page.scored)
    page.until(lambda: page.text(".what") == "next")
    page.server.script.fails = True
    page.find("#go").click()
    page.until(lambda: page.text("#notice p").startswith("The server does not answer."))
    assert page.value == "towro"
    page.server.script.fails = False
    page.find("#notice button").click()
    page.until(lambda: not page.shown("#notice"))
    page.until(lambda: page.text("#go") == "Go on" and page.text(".what") == "next")


def test_an_error_of_the_server_is_shown_in_its_words(page: Page) -> None:
    page.server.script.models = ("tiny",)
    page.open("#text=to")
    page.until(page.scored)
    page.run("window.fetch = async () => new Response(JSON.stringify("
             "{error: {message: 'at most 100 tokens'}}), {status: 400})")  # fmt: skip
    page.find("#go").click()
    page.until(lambda: page.text("#notice p") == "at most 100 tokens")
    page.find("#notice button").click()
    assert not page.shown("#notice")


def test_bytes_of_a_character_are_summed_and_broken_ones_shown(page: Page) -> None:
    page.server.script.written = "é".encode() + b"\xff\x00" + "e\u0301".encode() + b"\xe2\x82"
    page.open()
    page.type("a" + Keys.CONTROL + Keys.ENTER)
    page.until(lambda: page.text("#go") == "Go on" and len(page.value) > 1)
    page.until(page.scored)
    texts = [text for text, _ in page.characters()]
    assert texts == ["a", "é", "\ufffd", "␀", "e\u0301", "\ufffd"]
    page.type(Keys.HOME + Keys.ARROW_RIGHT)
    page.until(lambda: page.text(".what") == "é")
    assert page.text("#alternatives .fact") == "15.5 bits, 0.002 % · written by the model"
    assert page.text(".part") == "byte 1 of 2: C3, 7.75 bits"
    page.type(Keys.ARROW_RIGHT)
    page.until(lambda: "not UTF-8" in page.text("#alternatives .fact"))


def test_what_the_model_writes_is_never_markup(page: Page) -> None:
    page.server.script.written = b"<img src=x onerror=alert(1)><script>alert(2)</script>"
    page.open()
    page.type(PROMPT + Keys.CONTROL + Keys.ENTER)
    page.until(lambda: page.text("#go") == "Go on" and page.value.endswith("</script>"))
    page.type(Keys.HOME)
    page.until(page.scored)
    assert not page.run("return document.querySelector('main img, main script')")


TEXTS = {
    "prose": "The quick  brown fox\tjumps over the lazy dog. " * 30 + "\n\nend\n",
    "no blanks": "antidisestablishmentarianism" * 40,
    "right to left": "שלום עולם, زه السلام عليكم (abc 123) ושוב. " * 12 + "\nabc שלום\nمرحبا",
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
    sizes = [len(body["texts"][0]) for path, body in page.server.script.asked if path == "/score"]
    assert max(sizes) <= 6000
    assert len(page.value) == 240_000
    page.find("#link").click()
    page.until(lambda: "too long for a link" in page.text("#notice p"))


def test_the_page_says_nothing_aloud_while_it_writes(page: Page) -> None:
    page.server.script.delay_s = 0.01
    page.open()
    page.run("window.said = []; const spoken = document.getElementById('spoken');"
             "new MutationObserver(() => said.push(spoken.textContent)).observe(spoken,"
             "{childList: true, subtree: true, characterData: true})")  # fmt: skip
    page.type(PROMPT + Keys.CONTROL + Keys.ENTER)
    page.until(lambda: len(page.run("return said")) > 1)
    assert page.run("return said") == ["Writing.", "Written: wrote the first program."]


def test_its_files_load_nothing_from_elsewhere() -> None:
    folder = Path(__file__).parents[2] / "src" / "sparing" / "serve" / "page"
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, path.name
        assert "innerHTML" not in text, path.name
        assert " style=" not in text, path.name
