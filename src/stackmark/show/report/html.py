"""The report as one HTML file: to be mailed, kept, printed, shown.

Nothing is fetched and nothing is run: the page has no script, and its policy forbids scripts and requests, so that even a
hole in the escaping would stay without effect. Colours follow the reader's light or dark; on paper they are light.
The answer stands first, in one plain sentence with what to do, because that is all that many will read; what it rests on follows.
"""

import re
from collections.abc import Mapping
from importlib.resources import files

from stackmark.show.answer import answers, beware, is_interference, title_of, what_to_do
from stackmark.show.report import evidence, measured
from stackmark.show.report.charts.setup import COLOURS
from stackmark.show.report.heading import NO_HEADING, Heading
from stackmark.show.report.markup import NOTHING, Markup, element, join, text
from stackmark.show.report.tables import Cell, Row, badge, bullets, numeric, paragraph, plain, prose, table
from stackmark.show.report.telemetry import while_it_ran
from stackmark.show.sections import SIGNS, Headline, Sections
from stackmark.show.wording import (
    LETTERS,
    measured_runs,
    say_change,
    say_counts,
    say_interval,
    say_ratio,
    sentence,
    stopped,
)
from stackmark.units import counted, say_minute, say_offset, say_span, say_zone
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import Examined
from stackmark.verdict.family import HOLM_NOTE
from stackmark.verdict.needed import percent

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
# The tags of our own headings. Text is escaped, so these characters are in a page only where we wrote them as a tag.
_HEADING = re.compile(r"(</?h)([1-4])(?=[ >])")
# Kinds of cells in a heat map.
HEAT_CLASSES = (
    "heat0", "undecided", "broken", "empty", *(f"{way}{depth}" for way in ("slow", "fast") for depth in range(1, 6)),
)  # fmt: skip
# Parts of the set-up: dark and light in turn, so that neighbours differ on black and white paper too.
PARTS = ("#3d5a80", "#a9c4e0", "#4f7a4a", "#c5dcb4", "#8a6a2a", "#ead49a", "#7b4a6c", "#dfbdd3")


def render_html(examined: Examined, *, generated_unix_s: float, version: str, heading: Heading = NO_HEADING) -> str:
    """Return the whole page. It depends on nothing but its arguments and the time zone: the same data give the same bytes."""
    return page(
        heading.title or title_of(examined),
        element(
            "main",
            experiment(Sections(examined), heading),
            footer(generated_unix_s, version),
        ),
    )


def experiment(sections: Sections, heading: Heading = NO_HEADING, *, steps: bool = True) -> Markup:
    """Return everything about one experiment: its head, its answer, what it rests on. `steps` is whether step times are drawn."""
    return join(
        [
            _head(sections, heading),
            _verdict(sections),
            *(
                shown(sections)
                for shown in (*measured.SECTIONS, while_it_ran, *evidence.SECTIONS)
                if steps or shown not in (measured.step_times, while_it_ran)
            ),
            _stored(sections.examined),
        ]
    )


def nested(content: Markup, name: str, levels: int = 1) -> Markup:
    """Return an experiment as a part of a larger page: its anchors get a prefix, and its headings go down."""
    anchored = content.replace(' id="', f' id="{name}-')
    return Markup(_HEADING.sub(lambda found: f"{found[1]}{min(6, int(found[2]) + levels)}", anchored))


def page(title: str, body: Markup) -> str:
    """Return an HTML file around what it shows."""
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
    arms = arm_rules([f"var(--a{arm})" for arm in range(len(LETTERS))])
    heat = heat_rules({name: f"var(--{name})" for name in HEAT_CLASSES}, dark="var(--deep-ink)")
    return sheet.replace("/*arms*/", arms).replace("/*parts*/", part_rules()).replace("/*heat*/", heat)


def arm_rules(colours: list[str]) -> str:
    rules = []
    for arm, colour in enumerate(colours):
        rules.append(
            f"svg .sign.a{arm} {{ fill: {colour}; stroke: {colour}; }} svg .arrow.a{arm} {{ fill: {colour}; }}"
        )
        rules.append(f"svg .thin.a{arm}, svg .thick.a{arm}, svg .mean.a{arm} {{ stroke: {colour}; }}")
        rules.append(f"svg .trail.a{arm}, svg .steps.a{arm} {{ stroke: {colour}; fill: none; }}")
        rules.append(f"svg .band.a{arm}, svg .counts.a{arm}, svg .ink.a{arm}, svg .bar.a{arm} {{ fill: {colour}; }}")
    return "\n".join(rules)


def heat_rules(colours: Mapping[str, str], dark: str = "#ffffff") -> str:
    """Return the fill of each kind of cell in a heat map, and the ink of the two deepest colours on either side."""
    fills = [f"svg .{name} {{ fill: {colour}; }}" for name, colour in colours.items()]
    inks = [f"svg .ink-{way}{depth} {{ fill: {dark}; }}" for way in ("slow", "fast") for depth in (4, 5)]
    return "\n".join([*fills, *inks])


def part_rules() -> str:
    rules = []
    for part, colour in enumerate(PARTS[:COLOURS]):
        ink = "#ffffff" if part % 2 == 0 else "#15191f"
        rules.append(f"svg .p{part} {{ fill: {colour}; }} svg .q{part} {{ fill: {ink}; font-weight: 600; }}")
        rules.append(f".s{part} {{ background: {colour}; color: {ink}; }}")
    return "\n".join(rules)


def head(eyebrow: str, title: str, heading: Heading, *more: Markup) -> Markup:
    """Return the top of a page: what it is about, and what the person who made it wrote over it."""
    over = element("p", element("strong", text("stackmark")), text(f" · {eyebrow}"), class_="eyebrow")
    author = element("p", text(f"By {heading.author}"), class_="author") if heading.author else NOTHING
    note = (
        element("p", join(map(text, heading.note_lines), Markup("<br>")), class_="remark") if heading.note else NOTHING
    )
    return element("header", over, element("h1", text(heading.title or title)), author, note, *more)


def _head(sections: Sections, heading: Heading) -> Markup:
    examined = sections.examined
    when = say_minute(examined.created_unix_s)
    if examined.ended_unix_s is not None and examined.ended_unix_s >= examined.created_unix_s:
        when = say_span(examined.created_unix_s, examined.ended_unix_s)
    imported = "imported " if examined.kind == "import" else ""
    arms = element("p", *(badge(arm) for arm in examined.arms), class_="about")
    return head(f"{examined.title or examined.workload} · {imported}{when}", title_of(examined), heading, arms)


def _verdict(sections: Sections) -> Markup:
    examined, said = sections.examined, sections.headlines
    told = answers(sections)
    if sections.is_summed_up:
        cards = [_many(sections, told[0])]
    elif examined.comparisons:
        cards = [
            _card(
                one,
                comparison,
                answer,
                sections.sentence(comparison),
                several=len(said) > 1,
                of_rates=not sections.direction,
            )
            for one, comparison, answer in zip(said, examined.comparisons, told, strict=True)
        ]
    else:
        cards = [_card(said[0], None, ". ".join(told))]
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
        element("p", element("b", text("What to do: ")), prose(what_to_do(sections)), class_="do"),
        _beware(sections),
        paragraph(holm, "note"),
        scope if examined.scope else NOTHING,
        *(
            element("p", element("b", text("Bad runs: ")), text(sentence(said)), class_="note")
            for said in sections.bad_run_shares
        ),
        class_="several" if len(said) > 1 else None,
        id="verdict",
        aria_label="Verdict",
    )


def _card(
    head: Headline,
    comparison: Comparison | None,
    answer: str,
    precise: str = "",
    *,
    several: bool = False,
    of_rates: bool = True,
) -> Markup:
    mark = element("span", text(head.sign), class_="mark", aria_hidden="true")
    of = (
        element("span", text(f"{comparison.b} against {comparison.a}"), class_="of")
        if comparison and several
        else NOTHING
    )
    parts = [
        element("p", mark, text(head.word), of, class_="word"),
        element("p", text(stopped(answer)), class_="sentence"),
    ]
    if comparison:
        parts.append(_figures(comparison, "Ratio" if of_rates else "Ratio of rates"))
        parts.append(paragraph(stopped(precise), "precise"))
        if comparison.needed:
            parts.append(
                element("p", element("b", text("To decide it: ")), prose(comparison.needed.sentence), class_="needs")
            )
        # What other programs did stands under "Beware", and Holm once below all cards.
        notes = [note for note in comparison.notes if not is_interference(note)]
        parts.append(bullets([note for note in notes if not (several and note.startswith(HOLM_NOTE))]))
    return element("div", *parts, class_=f"verdict {head.colour}")


def _many(sections: Sections, answer: str) -> Markup:
    """How many of which word, and a line each."""
    rows = [
        Row([Cell(join([text(f"{SIGNS[one.word][0]} "), text(one.word)])), plain(f"{one.b} against {one.a}"),
             numeric(f"{say_ratio(one.ratio)} ({say_change(one.ratio)})"), numeric(say_interval(one.interval_90)),
             plain(head.sentence)])
        for one, head in zip(sections.examined.comparisons, sections.headlines, strict=True)
    ]  # fmt: skip
    heads = [("Verdict", False), ("Of", False), ("Ratio", True), ("90 % interval", True), ("In words", False)]
    card = element("div", element("p", text(sections.words), class_="word"),
                   element("p", text(stopped(answer)), class_="sentence"), class_="verdict plain")  # fmt: skip
    return join([card, table(heads, rows)])


def _figures(comparison: Comparison, ratio: str) -> Markup:
    pairs = [
        (ratio, f"{say_ratio(comparison.ratio)} ({say_change(comparison.ratio)})"),
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


def _beware(sections: Sections) -> Markup:
    """The warnings, the most severe first: what other programs did may make the verdict itself wrong."""
    found = beware(sections)
    if not found:
        return NOTHING
    items = [
        element("li", prose(stopped(one.text)), class_="grave" if one.severity == "high" else None) for one in found
    ]
    return element("div", element("h2", text("Beware")), element("ul", *items), class_="beware", role="note")


def _stored(examined: Examined) -> Markup:
    runs = counted(len(measured_runs(examined)), "run")
    name = (
        [text("Experiment "), element("code", text(examined.experiment_id)), text(", ")]
        if examined.experiment_id
        else []
    )
    return element("p", *name, text(f"{runs}. "), prose(sentence(examined.state_sentence)), class_="stored note")


def footer(generated_unix_s: float, version: str) -> Markup:
    """Say by what and when the page was made, and in which zone its times are."""
    zone = say_zone(generated_unix_s)
    offset = "" if zone.startswith("UTC") else f" ({say_offset(generated_unix_s)})"
    said = (
        f"Made by stackmark {version} on {say_minute(generated_unix_s)} from what the ledger holds; nothing was measured for it. "
        f"All times are in {zone}{offset}, the zone of the machine that made this page."
    )
    return element("footer", paragraph(said))
