"""The report as a reader meets it: in a real browser, wide and narrow, in light and dark, and on paper."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import examined_sample as sample
import suite_sample
from browser import PACKAGE, Browser, find_browser, running_browser
from leaving_out import leave_out
from stackmark.show.plot import plot_svg
from stackmark.show.report.html import render_html
from stackmark.show.report.suite import render_suite_html
from stackmark.verdict.examined import Examined
from stackmark.verdict.suite import SuiteResult

PAGES: dict[str, Callable[[], Examined | SuiteResult]] = {
    "equivalent": sample.sample_examined,
    "slower": sample.slower_examined,
    "three arms": sample.three_arms,
    "a failed run": sample.with_failed_run,
    "one arm": sample.one_arm,
    "open": sample.open_experiment,
    "nothing measured": sample.nothing_measured,
    "hostile": sample.hostile,
    "suite": suite_sample.twelve,
    "hostile suite": suite_sample.hostile,
    "suite without a comparison": suite_sample.uncompared,
}


def rendered(found: Examined | SuiteResult) -> str:
    if isinstance(found, SuiteResult):
        return render_suite_html(found, generated_unix_s=sample.T0, version="0.1.0")
    return render_html(found, generated_unix_s=sample.T0, version="0.1.0")


# WCAG's least contrast of text of ordinary size.
LEGIBLE = 4.5


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        leave_out(f"no browser is installed (apt-get install {PACKAGE})")
    with running_browser(program) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, make in PAGES.items():
        found[name] = folder / f"{name.replace(' ', '-')}.html"
        found[name].write_text(rendered(make()), encoding="utf-8")
    return found


@pytest.mark.parametrize("name", PAGES)
def test_the_page_asks_nobody_for_anything_and_the_browser_has_no_complaint(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    browser.open(pages[name])
    assert browser.requests() == [pages[name].as_uri()]
    assert browser.complaints() == []
    assert browser.value("document.scripts.length") == 0


def test_the_browser_of_these_tests_sees_requests_and_complaints(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<!doctype html><img src='missing.png'><script>console.error('oh')</script>")
    browser.open(page)
    assert len(browser.requests()) == 2
    assert browser.complaints()


OUTSIDE = """
[...document.querySelectorAll('body *')].filter(one => {
  if (one.closest('thead') && getComputedStyle(one.closest('thead')).position === 'absolute') return false
  const box = one.getBoundingClientRect()
  return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1)
}).map(one => one.tagName + '.' + (one.getAttribute('class') || '') + ' ' + one.textContent.slice(0, 40))
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [375, 700, 1000, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_reaches_beyond_the_window(
    browser: Browser, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    browser.open(pages[name], width=width, dark=dark)
    assert browser.value("innerWidth") == width
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    assert browser.value(OUTSIDE) == []


CONTRAST = """
(() => {
  const light = c => {
    const [r, g, b] = c.match(/[\\d.]+/g).map(v => v / 255).map(v =>
       v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const ground = one => {
    for (; one; one = one.parentElement) {
      const c = getComputedStyle(one).backgroundColor
      if (c !== 'rgba(0, 0, 0, 0)' && c !== 'transparent') return c
    }
    return 'rgb(255, 255, 255)'
  }
  const bad = []
  for (const one of document.querySelectorAll('main *')) {
    const own = [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim())
    if (!own || !one.getClientRects().length) continue
    const svg = one instanceof SVGElement
    if (svg && (one.tagName !== 'text' || one.classList.contains('on'))) continue
    const ink = getComputedStyle(one)[svg ? 'fill' : 'color']
    const [a, b] = [light(ink), light(ground(one))].sort((x, y) => y - x)
    const contrast = (a + 0.05) / (b + 0.05)
    if (contrast < LEGIBLE) bad.push(contrast.toFixed(2) + ' ' + one.textContent.slice(0, 30))
  }
  return bad
})()
""".replace("LEGIBLE", str(LEGIBLE))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_all_text_is_legible(browser: Browser, pages: dict[str, Path], name: str, dark: bool) -> None:
    browser.open(pages[name], dark=dark)
    assert browser.value(CONTRAST) == []


def test_the_page_follows_light_and_dark_and_its_pictures_with_it(browser: Browser, pages: dict[str, Path]) -> None:
    ask = "['body', '.forest .margin', '.rates .sign'].map(one => getComputedStyle(document.querySelector(one)))"
    colours = f"{ask}.map((style, index) => index ? style.fill : style.backgroundColor)"
    browser.open(pages["equivalent"])
    light = browser.value(colours)
    browser.open(pages["equivalent"], dark=True)
    dark = browser.value(colours)
    assert light[0] == "rgb(255, 255, 255)"
    assert all(a != b for a, b in zip(light, dark, strict=True))
    browser.media("print", dark=True)
    assert browser.value(colours)[:2] == light[:2], "paper is white"


def test_a_narrow_window_gets_pictures_whose_words_are_not_shrunk(browser: Browser, pages: dict[str, Path]) -> None:
    seen = "[...document.querySelectorAll('.forest text')].filter(one => one.getClientRects().length).map(one => {"
    sizes = f"{seen} return one.getBoundingClientRect().height }})"
    for width in (375, 1280):
        browser.open(pages["three arms"], width=width)
        heights = browser.value(sizes)
        assert len(heights) > 5
        assert min(heights) > 9


def test_the_shapes_stand_on_the_screen_where_the_numbers_say(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["equivalent"])
    found = browser.value("""
    (() => {
      const forest = [...document.querySelectorAll('.forest')].find(one => one.getClientRects().length)
      const middle = one => { const box = one.getBoundingClientRect(); return (box.left + box.right) / 2 }
      const ticks = [...forest.querySelectorAll('.tick')].map(one => [one.textContent, middle(one)])
      const bar = forest.querySelector('line.thick').getBoundingClientRect()
      return {ticks, bar: [bar.left, bar.right], point: middle(forest.querySelector('.point'))}
    })()""")
    places = {float(said.replace("−", "-").removesuffix(" %")): x for said, x in found["ticks"]}
    (low, left), (high, right) = min(places.items()), max(places.items())
    comparison = sample.sample_examined().comparisons[0]
    assert comparison.interval_90 is not None

    def place(ratio: float) -> float:
        # Within two per cent the logarithm is a straight line to a hundredth of a tick.
        return float(left + (100 * (ratio - 1) - low) / (high - low) * (right - left))

    assert found["point"] == pytest.approx(place(comparison.ratio), abs=1.5)
    assert found["bar"] == pytest.approx(
        [place(comparison.interval_90.low), place(comparison.interval_90.high)], abs=1.5
    )


@pytest.mark.parametrize("name", PAGES)
def test_it_prints_on_a4(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name])
    pdf = browser.pdf(dark=True)
    boxes = {tuple(map(float, box.split())) for box in re.findall(rb"/MediaBox \[([^\]]+)\]", pdf)}
    assert len(boxes) == 1
    assert next(iter(boxes))[2:] == pytest.approx((595, 842), abs=1)
    pages_made = len(re.findall(rb"/Type /Page\b", pdf))
    assert 1 <= pages_made <= 12


def test_on_paper_nothing_stays_folded(browser: Browser, pages: dict[str, Path]) -> None:
    heights = "[...document.querySelectorAll('details table')].map(one => one.getBoundingClientRect().height)"
    cells = "[...document.querySelectorAll('details td')]"
    shown = f"{cells}.filter(one => one.checkVisibility({{contentVisibilityAuto: true}})).length"
    browser.open(pages["equivalent"])
    assert browser.value(shown) == 0
    browser.media("print", dark=False)
    assert browser.value(shown) > 20
    assert min(browser.value(heights)) > 20


def test_tables_keep_their_meaning_where_they_are_stacked(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["equivalent"], width=375)
    browser.call("Accessibility.enable")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    roles = [node.get("role", {}).get("value") for node in nodes if not node.get("ignored")]
    assert roles.count("table") >= 5
    assert "columnheader" in roles
    assert "rowheader" in roles
    drawn = [node for node in nodes if node.get("role", {}).get("value") == "image" and not node.get("ignored")]
    pictures = [node["name"]["value"] for node in drawn]
    assert pictures
    assert all(pictures), "each says what it shows"


def test_the_picture_on_its_own_opens_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "plot.svg"
    page.write_text(plot_svg(sample.hostile()), encoding="utf-8")
    browser.open(page)
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]
    assert browser.value("document.querySelectorAll('script, image, foreignObject').length") == 0
    assert browser.value("getComputedStyle(document.querySelector('.paper')).fill") == "rgb(255, 255, 255)"


def test_a_link_in_the_table_of_a_suite_opens_the_page_of_its_row(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "suite.html"
    page.write_text(rendered(suite_sample.recorded_suite(tmp_path)), encoding="utf-8")
    browser.open(page)
    opened = (
        "[...document.querySelectorAll('details')].filter(one => one.querySelector('.row-page')).map(one => one.open)"
    )
    assert browser.value(opened) == [False, False, False]
    browser.value("document.querySelector('a[href=\"#row2\"]').click()")
    assert browser.value(opened) == [False, True, False]
