"""The report as one HTML file: to be mailed, kept, printed, shown.

Nothing is fetched and nothing is run: the page has no script, and its policy forbids scripts and requests, so that even a
hole in the escaping would stay without effect. Colours follow the reader's light or dark; on paper they are light.
The verdict stands first, with its scope, because that is all that many will read; what it rests on follows.
"""

from importlib.resources import files

from stackmark.show.report import evidence, measured
from stackmark.show.report.charts.setup import COLOURS
from stackmark.show.report.markup import NOTHING, Markup, element, join, text
from stackmark.show.report.tables import Cell, Row, badge, bullets, numeric, paragraph, plain, prose, table
from stackmark.show.sections import SIGNS, Headline, Sections
from stackmark.show.wording import LETTERS, measured_runs, say_change, say_counts, say_interval, say_ratio, sentence
from stackmark.units import counted, say_minute_utc
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import Examined
from stackmark.verdict.needed import percent

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
# Parts of the set-up: dark and light in turn, so that neighbours differ on black and white paper too.
PARTS = ("#3d5a80", "#a9c4e0", "#4f7a4a", "#c5dcb4", "#8a6a2a", "#ead49a", "#7b4a6c", "#dfbdd3")


def render_html(examined: Examined, *, generated_unix_s: float, version: str) -> str:
    """The whole page. It depends on nothing but its arguments: the same data give the same bytes."""
    sections = Sections(examined)
    body = element(
        "main",
        _head(examined),
        _verdict(sections),
        *(shown(sections) for shown in (*measured.SECTIONS, *evidence.SECTIONS)),
        _foot(examined, generated_unix_s, version),
    )
    title = f"{sections.headlines[0].word}: {' and '.join(arm.label for arm in examined.arms)}, {examined.workload}"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            '<meta name="color-scheme" content="light dark">',
            element("title", text(title)),
            f"<style>\n{style()}</style>",
            "</head>",
            f"<body>{body}</body>",
            "</html>",
            "",
        ]
    )


def style() -> str:
    """The style sheet, with a rule for each arm and each part of the set-up."""
    sheet = files("stackmark.show.report").joinpath("page.css").read_text(encoding="utf-8")
    return sheet.replace("/*arms*/", arm_rules([f"var(--a{arm})" for arm in range(len(LETTERS))])).replace(
        "/*parts*/", part_rules()
    )


def arm_rules(colours: list[str]) -> str:
    rules = []
    for arm, colour in enumerate(colours):
        rules.append(
            f"svg .sign.a{arm} {{ fill: {colour}; stroke: {colour}; }} svg .arrow.a{arm} {{ fill: {colour}; }}"
        )
        rules.append(f"svg .thin.a{arm}, svg .thick.a{arm}, svg .mean.a{arm} {{ stroke: {colour}; }}")
        rules.append(f"svg .trail.a{arm}, svg .steps.a{arm} {{ stroke: {colour}; fill: none; }}")
        rules.append(f"svg .band.a{arm}, svg .counts.a{arm}, svg .ink.a{arm} {{ fill: {colour}; }}")
    return "\n".join(rules)


def part_rules() -> str:
    rules = []
    for part, colour in enumerate(PARTS[:COLOURS]):
        ink = "#ffffff" if part % 2 == 0 else "#15191f"
        rules.append(f"svg .p{part} {{ fill: {colour}; }} svg .q{part} {{ fill: {ink}; font-weight: 600; }}")
        rules.append(f".s{part} {{ background: {colour}; color: {ink}; }}")
    return "\n".join(rules)


def _head(examined: Examined) -> Markup:
    arms = [badge(arm) for arm in examined.arms]
    over = element(
        "p", element("strong", text("stackmark")), text(f" · {examined.workload} · {say_minute_utc(examined.created_unix_s)}"),
        class_="eyebrow",
    )  # fmt: skip
    return element(
        "header", over, element("h1", text(examined.title or examined.workload)), element("p", *arms, class_="about")
    )


def _verdict(sections: Sections) -> Markup:
    examined, said = sections.examined, sections.headlines
    if sections.is_summed_up:
        cards = [_many(sections)]
    else:
        cards = [
            _card(head, examined.comparisons[index] if examined.comparisons else None, several=len(said) > 1)
            for index, head in enumerate(said)
        ]
    holm = (
        f"{sections.family} comparisons: Holm's procedure decided each word; the intervals are not adjusted."
        if sections.family > 1
        else ""
    )
    scope = element("p", element("b", text("Scope: ")), text(examined.scope), class_="scope")
    return element(
        "section",
        _state(examined),
        *cards,
        paragraph(holm, "note"),
        scope if examined.scope else NOTHING,
        *(
            element("p", element("b", text("Bad runs: ")), text(sentence(said)), class_="note")
            for said in sections.bad_run_shares
        ),
        _warnings(examined),
        class_="several" if len(said) > 1 else None,
        id="verdict",
        aria_label="Verdict",
    )


def _card(head: Headline, comparison: Comparison | None, *, several: bool) -> Markup:
    mark = element("span", text(head.sign), class_="mark", aria_hidden="true")
    of = (
        element("span", text(f"{comparison.b} against {comparison.a}"), class_="of")
        if comparison and several
        else NOTHING
    )
    parts = [element("p", mark, text(head.word), of, class_="word"), paragraph(head.sentence, "sentence")]
    if comparison:
        parts.append(_figures(comparison))
        if comparison.needed:
            parts.append(
                element("p", element("b", text("To decide it: ")), prose(comparison.needed.sentence), class_="needs")
            )
        parts.append(bullets(comparison.notes))
    return element("div", *parts, class_=f"verdict {head.colour}")


def _many(sections: Sections) -> Markup:
    """How many of which word, and a line each."""
    rows = [
        Row([Cell(join([text(f"{SIGNS[one.word][0]} "), text(one.word)])), plain(f"{one.b} against {one.a}"),
             numeric(f"{say_ratio(one.ratio)} ({say_change(one.ratio)})"), numeric(say_interval(one.interval_90)),
             plain(head.sentence)])
        for one, head in zip(sections.examined.comparisons, sections.headlines, strict=True)
    ]  # fmt: skip
    heads = [("Verdict", False), ("Of", False), ("Ratio", True), ("90 % interval", True), ("In words", False)]
    card = element("div", element("p", text(sections.words), class_="word"), class_="verdict plain")
    return join([card, table(heads, rows)])


def _figures(comparison: Comparison) -> Markup:
    pairs = [
        ("Ratio", f"{say_ratio(comparison.ratio)} ({say_change(comparison.ratio)})"),
        ("90 % interval", say_interval(comparison.interval_90)),
        ("95 % interval", say_interval(comparison.interval_95)),
        ("Margin", f"± {percent(comparison.margin)}"),
        ("From", say_counts(comparison)),
    ]
    return element(
        "dl", *(element("div", element("dt", text(name)), element("dd", text(said))) for name, said in pairs)
    )


def _state(examined: Examined) -> Markup:
    # What ended too early is among the warnings already.
    if examined.state == "done" or any(examined.state_sentence in warning for warning in examined.warnings):
        return NOTHING
    word = {"open": "Not finished. ", "short": "Ended before it was whole. "}[examined.state]
    return element("p", element("b", text(word)), prose(sentence(examined.state_sentence)), class_="state")


def _warnings(examined: Examined) -> Markup:
    if not examined.warnings:
        return NOTHING
    return element("div", element("h2", text("Beware")), bullets(examined.warnings), class_="beware", role="note")


def _foot(examined: Examined, generated_unix_s: float, version: str) -> Markup:
    runs = counted(len(measured_runs(examined)), "run")
    lines = [
        element(
            "p",
            text("Experiment "),
            element("code", text(examined.experiment_id)),
            text(f", {runs}. "),
            prose(sentence(examined.state_sentence)),
        ),
        paragraph(
            f"Made by stackmark {version} on {say_minute_utc(generated_unix_s)} from what the ledger holds; nothing was "
            "measured. All moments are in UTC."
        ),
    ]
    return element("footer", join(lines))
