"""The page for everybody: links, small screens, themes, names for screen readers."""

from selenium.webdriver.common.keys import Keys
from tests.serve.page.browser import Page
from tests.serve.page.fake import PAGE


def test_a_link_restores_texts_and_settings(page: Page) -> None:
    page.open()
    page.type("naïve & <b>\n#1")
    page.type("one", ".side:nth-child(1) textarea")
    for name, value in {"temperature": 0.6, "seed": 12}.items():
        page.run(
            "const input = document.getElementById(arguments[0]); input.value = arguments[1];"
            "input.dispatchEvent(new Event('input'))", name, value,
        )  # fmt: skip
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


def test_on_the_smallest_screen_names_do_not_overlap_and_fingers_find_the_heads(page: Page) -> None:
    page.size(320, 640)
    page.open("#text=to")
    page.until(page.scored)
    page.find("#heads summary").click()
    page.until(lambda: page.run("return document.querySelectorAll('.option').length") == 5)
    names = page.run(
        "return [...document.querySelectorAll('.numbers label')]"
        ".map(each => each.scrollWidth - each.clientWidth)"
    )
    assert names == [0, 0, 0]
    heights = page.run(
        "return [...document.querySelectorAll('.option')]"
        ".map(each => each.getBoundingClientRect().height)"
    )
    # WCAG 2.2, target size.
    assert min(heights) >= 24


def test_nothing_below_moves_when_the_alternatives_arrive(page: Page) -> None:
    top = "return document.querySelector('#heads').getBoundingClientRect().top"
    for width in (320, 700, 1200):
        page.size(width, 640)
        page.open("#text=to")
        page.until(lambda: page.alternatives())
        with_alternatives = page.run(top)
        page.run("document.querySelector('.lists').replaceChildren()")
        assert page.run(top) == with_alternatives


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
    page.script.models = ("tiny", "other")
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
        ("textbox", "Text"), ("textbox", "First text"), ("button", "Continue"),
        ("combobox", "Model"), ("slider", "Temperature"), ("slider", "Top p"),
        ("spinbutton", "Seed"),
        ("button", "e, 50 %: put it there and continue"),
        ("button", "space, 13 %: put it there and continue"),
        ("radio", "Block 1, head 1: can look back 5,000; "
                  "half of its attention is on the last token itself"),
    } <= set(used)  # fmt: skip
    # The coloured copy of the text is for eyes only.
    assert len([1 for node in nodes if node.get("name", {}).get("value") == "b"]) == 0


def test_its_files_load_nothing_from_elsewhere() -> None:
    for path in PAGE.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, path.name
        assert "innerHTML" not in text, path.name
        assert " style=" not in text, path.name
