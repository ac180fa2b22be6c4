"""The sections of a verdict are decided once: the terminal, the page and the Markdown show the same ones."""

import html
import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from examined_sample import sample_examined, slower_examined, three_arms, with_failed_run
from stackmark.show.report.html import render_html
from stackmark.show.report.markdown import render_markdown
from stackmark.show.sections import Sections
from stackmark.show.verdict import print_verdict
from stackmark.verdict.examined import Examined

EXPERIMENTS = [sample_examined(), slower_examined(), three_arms(), with_failed_run()]


def flat(text: str) -> str:
    """On one line, without what Markdown escapes."""
    return " ".join(text.replace("\\", "").replace("\N{ZERO WIDTH SPACE}", "").split())


def rendered(examined: Examined) -> dict[str, str]:
    out = io.StringIO()
    print_verdict(examined, Console(file=out, force_terminal=False), details=True)
    page = html.unescape(re.sub(r"<[^>]*>", " ", render_html(examined, generated_unix_s=0.0, version="1")))
    return {
        "terminal": flat(out.getvalue()),
        "page": flat(page),
        "Markdown": flat(html.unescape(render_markdown(examined))),
    }


@pytest.mark.parametrize("examined", EXPERIMENTS)
def test_every_renderer_says_what_the_sections_say(examined: Examined) -> None:
    sections = Sections(replace(examined, not_held=("the moon was not held",), warnings=("beware of this",)))
    for name, shown in rendered(sections.examined).items():
        for head in sections.headlines:
            assert flat(head.sentence.rstrip(".")) in shown, name
        for arm in sections.arms:
            assert f"{arm.figure} {arm.spread}" in shown, name
            assert (arm.setup in shown, arm.steadiness in shown) == (True, True), name
        for row in sections.differences[:2]:
            assert row.fact.key in shown, name
            assert flat(row.fact.why) in shown, name
        for failure in sections.failures:
            assert f"{failure.kind}" in shown, name
            assert flat(failure.message) in shown, name
        for said in (*sections.bad_run_shares, *sections.examined.not_held, *sections.examined.warnings):
            assert flat(said)[1:] in shown, name
        assert flat(sections.examined.scope) in shown, name


def test_what_shows_an_effect_comes_first_everywhere() -> None:
    first, *others = slower_examined().differences
    late = replace(first, key="throttled_late", shows_effect=True, weight=30)
    early = replace(first, key="clock_early", shows_effect=False, weight=90)
    for name, shown in rendered(replace(slower_examined(), differences=(early, late, *others))).items():
        assert shown.index("throttled_late") < shown.index("clock_early"), name
