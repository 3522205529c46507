"""The page shows what the model expected, and where it looked."""

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from tests.serve.page.browser import Page
from tests.serve.page.fake import bits_of


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


def test_a_small_screen_shows_five_alternatives_and_what_stands_there(page: Page) -> None:
    page.size(360, 740)
    page.open("#text=tno")
    page.until(page.scored)
    shown = ("return [...document.querySelectorAll('.lists li')].filter(each => each.offsetHeight)"
             ".map(each => each.querySelector('.code').textContent)")  # fmt: skip
    five = ["e", "t", "␣", "C3", "↵"]
    for name, more in (("o", ["o"]), ("n", ["n"]), ("t", [])):
        page.type(Keys.ARROW_LEFT)
        page.until(lambda name=name: page.text(".what") == name)
        assert page.run(shown) == five + more


def test_pointing_at_a_character_shows_its_alternatives(page: Page) -> None:
    page.open("#text=to+be")
    page.until(page.scored)
    box = page.run("return document.querySelectorAll('#sheet .ink span')[3]")
    ActionChains(page.driver).move_to_element(box).perform()
    page.until(lambda: page.text(".what") == "b")
    assert page.run("return document.querySelector('.pointed').textContent") == "b"
    ActionChains(page.driver).move_to_element(page.find("h1")).perform()
    page.until(lambda: page.text(".what") == "next")


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
    assert page.text("#legend figcaption") == "Attention of block 1, head 1"
    assert "within the last 8" in page.text("#heads .fact")
    page.type(Keys.HOME + Keys.ARROW_RIGHT * 2)
    page.until(lambda: page.steps(kind="weight") == [15, 0] + [None] * 6)
    page.type(Keys.HOME)
    page.until(lambda: page.text("#heads .fact").startswith("There is nothing before"))
    page.until(page.scored)
    page.type(Keys.ARROW_RIGHT)
    page.until(lambda: page.steps(kind="weight") == [15] + [None] * 7)
    page.run("document.querySelector('#heads input').click()")
    page.until(page.scored)


def test_a_model_without_a_picture_of_its_attention_says_so(page: Page) -> None:
    page.script.attention = False
    page.open("#text=to")
    page.find("#heads summary").click()
    page.until(lambda: page.text("#heads .fact") == "This model does not show its attention.")
    assert not [path for path, _ in page.script.asked if path == "/attention"]


def test_another_model_scores_the_text_anew(page: Page) -> None:
    page.script.models = ("tiny", "other")
    page.open("#text=to")
    page.until(page.scored)
    page.type("o", "#model")
    page.until(lambda: page.scored() and not page.run("return document.querySelector('.stale')"))
    assert [body["model"] for path, body in page.script.asked if path == "/score"] == [
        "tiny", "other",
    ]  # fmt: skip
    page.until(lambda: "model=other" in page.driver.current_url)


def test_with_colours_of_the_system_the_bars_of_the_heads_are_still_seen(page: Page) -> None:
    page.open("#text=to be")
    page.until(page.scored)
    page.find("#heads summary").click()
    page.until(lambda: page.run("return document.querySelectorAll('.option').length") == 5)
    features = [{"name": "forced-colors", "value": "active"}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    colour = "return getComputedStyle(document.querySelector(arguments[0]), arguments[1])"
    ground = page.run(f"{colour}.backgroundColor", ".option", None)
    for part in ("::before", "::after"):
        assert page.run(f"{colour}.backgroundColor", ".option .bar", part) != ground
