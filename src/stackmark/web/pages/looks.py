"""Looks over many runs: machines and chips, trends, published numbers next to ours, baselines and their checks."""

from stackmark.api import browsing
from stackmark.api.baselines import BaselineTrend, list_baselines, show_baseline, trend
from stackmark.api.browsing import Chip, RunFilter, RunRow
from stackmark.api.published import search_published
from stackmark.api.published_charts import published_chart
from stackmark.errors import SpecError, StackmarkError
from stackmark.figures import figure_unit
from stackmark.show.report.charts.published import NARROW, WIDE, caption, drawn_pairs, footnotes, published_bars
from stackmark.show.report.markup import NOTHING, Markup, element, join, text
from stackmark.show.report.tables import Cell, Row, badge_of, bullets, figure, numeric, plain, table
from stackmark.show.sections import SIGNS
from stackmark.show.trend import change_lines, say_no_change, trends_svg
from stackmark.show.wording import say_spread, sentence
from stackmark.units import counted, say_moment
from stackmark.verdict.published_pairs import PublishedPair
from stackmark.web.asking import Answer, Ask, as_glob
from stackmark.web.charts import Series, trend_chart
from stackmark.web.pages.lists import ANY
from stackmark.web.parts import choice, code, cut, link, notice, path, query, text_input, trouble

# Points of a trend, and its colours: what more differs is left out and counted.
MOST_POINTS, MOST_SERIES = 600, 6
# Workloads whose newest experiment stands next to published numbers: each is examined again.
MOST_OURS = 12
# Of one of them: an operator list has hundreds of problems.
MOST_PAIRS = 4
MOST_NAMES = 400
DAY = "%Y-%m-%d"


# --- machines and chips ---------------------------------------------------------------------------------------------------


def machines(ask: Ask) -> Answer:
    """List the chips of the ledger, and what was measured on them lately."""
    found = browsing.chips(ask.book)
    heads = [
        ("Chip", False), ("Devices", False), ("Machines", False), ("Places", False), ("Measured lately", False),
        ("Last run", False),
    ]  # fmt: skip
    rows = [_chip_row(one) for one in found]
    shown = table(heads, rows, "list") if rows else element("p", text("No run of this ledger says what chip it used."))
    note = notice(
        f"Devices, machines, places and workloads are those of the last {browsing.LATELY} runs on each chip. "
        "What a machine is in detail stands under the facts of its runs."
    )
    return Answer(
        "Machines",
        join([element("h1", text("Machines and chips")), shown, note if rows else NOTHING]),
        here="/machines",
    )


def _chip_row(one: Chip) -> Row:
    works = join(
        (
            link(query("/trends", {"workload": name, "chip": one.name}), cut(name, 60), class_="tight")
            for name in one.workloads[:6]
        ),
        text(", "),
    )
    more = text(f" and {len(one.workloads) - 6} more") if len(one.workloads) > 6 else NOTHING
    return Row(
        [
            Cell(link(query("/runs", {"chip": one.name}), cut(one.name, 80))),
            plain(_few(one.devices) or "–"),
            plain(_few(one.machines) or "–"),
            plain(_few(one.places)),
            Cell(join([works, more])),
            Cell(link(path("runs", one.last.id), say_moment(one.last.started_unix_s, "%Y-%m-%d"), class_="whole")),
        ]
    )


def _few(names: tuple[str, ...]) -> str:
    shown = ", ".join(cut(name, 44) for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


# --- trends ---------------------------------------------------------------------------------------------------------------


def trends(ask: Ask) -> Answer:
    """Draw the figure of a workload over time."""
    names = list(browsing.values_of("workload", ask.book))[:MOST_NAMES]
    chips = [name for name in browsing.values_of("chip", ask.book) if name]
    places = list(browsing.values_of("place", ask.book))
    workload = ask.get("workload") or _newest_workload(ask)
    form = element(
        "form",
        choice("workload", "Workload", [(name, name) for name in names], workload),
        choice("chip", "Chip", [ANY, *((name, name) for name in chips)], ask.get("chip")),
        choice("place", "Place", [ANY, *((name, name) for name in places)], ask.get("place")),
        text_input("since", "Since", ask.get("since"), kind="date"),
        element("div", element("button", text("Show"), type="submit", class_="main"), class_="buttons"),
        method="get", action="/trends", class_="filters", role="search",
    )  # fmt: skip
    head = [element("h1", text("Trends")), form]
    if not workload:
        return Answer("Trends", join([*head, element("p", text("No run is stored yet."))]), here="/trends")
    wanted = RunFilter(
        workload=as_glob(workload) if any(sign in workload for sign in "*?[") else workload,
        chip=ask.get("chip") or None, place=ask.get("place") or None, status="done", since_unix_s=ask.day("since"),
    )  # fmt: skip
    rows = browsing.page_of_runs(wanted, limit=MOST_POINTS, ledger=ask.book).rows
    timed = [row for row in rows if row.rate_per_s and row.role == "measured"]
    if not timed:
        return Answer("Trends", join([*head, element("p", text("No run with a figure fits."))]), here="/trends")
    parts = [
        *_trend_parts(cut(workload, 80), timed),
        _changes_link(ask, timed[0].workload, few=len(rows) < MOST_POINTS),
    ]
    return Answer("Trends", join([*head, *parts]), here="/trends")


def _changes_link(ask: Ask, workload: str, *, few: bool) -> Markup:
    """Link to what `stackmark trend` shows. Where that takes a moment, a script puts it in this place."""
    values = {"workload": workload, "place": ask.get("place"), "machine": ask.get("chip")}
    where = query("/trends/changes", values)
    shown = element("p", link(where, "When did it change, and what changed with it?"))
    part = query("/trends/changes", {**values, "part": "1"})
    return element("section", shown, id="changes", data_verdict=part if few else None)


def changes(ask: Ask) -> Answer:
    """Show when the figure of a workload changed, computed as `stackmark trend` does."""
    workload = ask.get("workload")
    parts = [element("h2", text(f"When did {cut(workload, 80)} change?")), *_change_parts(ask, workload)]
    if ask.get("part"):
        return Answer("Changes", join(parts), fragment=True)
    back = element("p", link(query("/trends", {"workload": workload}), "All runs as points"), class_="note")
    return Answer("Changes", join([element("h1", text("Trends")), *parts, back]), here="/trends")


def _change_parts(ask: Ask, workload: str) -> list[Markup]:
    try:
        found = trend(workload, machine=ask.get("machine") or None, place=ask.get("place") or None, ledger=ask.book)
    except SpecError as error:
        return [notice(sentence(said)) for said in (error.message, error.hint) if said]
    parts = []
    for one in found.trends[:MOST_SERIES]:
        said = [line for change in one.changes for line in change_lines(change, figure_unit(one.unit))]
        about = element("h3", text(cut(one.about or one.label, 160)))
        parts += [about, bullets([cut(line, 400) for line in said]) if said else notice(sentence(say_no_change(one)))]
    if any(one.changes for one in found.trends):
        where = {"workload": workload, "machine": ask.get("machine"), "place": ask.get("place")}
        picture = element(
            "img", src=query("/trends/changes.svg", where), class_="paper", loading="lazy",
            alt=f"The series of {cut(workload, 80)} over time, with a line where each change begins",
        )  # fmt: skip
        parts.append(Markup(picture.removesuffix("</img>")))
    left = len(found.trends) - MOST_SERIES
    if left > 0:
        parts.append(notice(f"{counted(left, 'more trend')}: `stackmark trend {cut(workload, 80)}` shows all."))
    note = "Computed from series, as `stackmark trend` does. What changed at the same time need not be the cause."
    return [*parts, notice(note)]


def changes_picture(ask: Ask) -> Answer:
    found = trend(
        ask.get("workload"), machine=ask.get("machine") or None, place=ask.get("place") or None, ledger=ask.book
    )
    svg = trends_svg(found.workload, found.trends[:MOST_SERIES], "Trend of")
    return Answer("Trend", file=(svg.encode(), "image/svg+xml", ""))


def _newest_workload(ask: Ask) -> str:
    newest = browsing.page_of_runs(RunFilter(status="done"), limit=1, ledger=ask.book).rows
    return newest[0].workload if newest else ""


def _trend_parts(workload: str, rows: list[RunRow]) -> list[Markup]:
    """A picture and a table for the runs of one unit; runs that differ in what may matter have colours of their own."""
    unit = rows[0].rate_unit or ""
    groups: dict[str, list[RunRow]] = {}
    for row in rows:
        if (row.rate_unit or "") == unit:
            groups.setdefault(_condition(row), []).append(row)
    ordered = sorted(groups.items(), key=lambda pair: -len(pair[1]))
    series = [Series(name, tuple(reversed(found))) for name, found in ordered[:MOST_SERIES]]
    own = figure_unit(unit)
    legend = element("p", *(badge_of(index, one.label) for index, one in enumerate(series)), class_="about note")
    lines = []
    for index, one in enumerate(series):
        values = [row.rate_per_s for row in one.runs if row.rate_per_s]
        middle = sorted(values)[len(values) // 2]
        last = one.runs[-1]
        change = own.say_shift(values[-1] / middle)[0]
        lines.append(
            Row(
                [
                    Cell(badge_of(index, one.label)),
                    numeric(str(len(values))),
                    numeric(own.say(middle)),
                    numeric(own.say(min(values))),
                    numeric(own.say(max(values))),
                    Cell(link(path("runs", last.id), f"{own.say(values[-1])} ({change})"), numeric=True),
                ]
            )
        )
    heads = [
        ("Conditions", False),
        ("Runs", True),
        ("Median", True),
        ("Lowest rate", True),
        ("Highest rate", True),
        ("Last, against the median", True),
    ]
    left = len(ordered) - len(series)
    said = f"Runs in {counted(left, 'further condition')} are not drawn. " if left > 0 else ""
    what = "A point is a run, not a verdict: `stackmark check` compares with a baseline."
    note = f"{said}The newest {MOST_POINTS} runs at most. {what}"
    return [
        element("h2", text(workload)),
        legend,
        trend_chart(series, unit, workload),
        table(heads, lines),
        notice(note),
    ]


def _condition(row: RunRow) -> str:
    """Name what runs must have in common to be points of one line."""
    parts = [
        row.chip,
        row.place,
        row.precision,
        f"batch {row.batch}" if row.batch else "",
        f"{row.ranks} ranks" if row.ranks > 1 else "",
    ]
    return cut(", ".join(part for part in parts if part) or "unknown", 90)


# --- published ------------------------------------------------------------------------------------------------------------


def published(ask: Ask) -> Answer:
    """Show the newest results next to published numbers, and search these."""
    words = ask.get("q")
    body = [element("h1", text("Published against ours"))]
    form = element(
        "form",
        text_input("q", "Search published numbers", words, hint="a model, a chip, a year: resnet50 V100", kind="search"),
        element("div", element("button", text("Search"), type="submit", class_="main"), class_="buttons"),
        method="get", action="/published", class_="filters", role="search",
    )  # fmt: skip
    if words:
        return Answer("Published", join([*body, form, _found(ask, words)]), here="/published")
    newest = _newest_experiments(ask)
    body += [ask.kept.get(("published", newest), lambda: _ours(ask, newest)), form]
    return Answer("Published", join(body), here="/published")


def _found(ask: Ask, words: str) -> Markup:
    found = search_published(words, ledger=ask.book)
    if not found.rows:
        return element("p", text(cut(found.why or "No row fits.", 600)))
    heads = [
        ("What", False),
        ("Value", True),
        ("Chip", False),
        ("Framework", False),
        ("Date", False),
        ("Source", False),
    ]
    rows = [
        Row(
            [
                plain(cut(f"{row.model} {row.task}"), cut(row.precision, 60)),
                numeric(f"{row.value:,.10g} {row.unit}"),
                plain(f"{row.count} × {row.chip}" if row.count > 1 else row.chip, cut(row.system, 100)),
                plain(cut(row.framework, 80) or "–"),
                plain(row.date),
                plain(cut(row.source, 120)),
            ]
        )
        for row in found.rows
    ]
    more = (
        f"{len(found.rows)} of {found.total} rows that fit."
        if found.total > len(found.rows)
        else f"{counted(found.total, 'row')}."
    )
    return join([table(heads, rows, "list"), notice(more)])


def _newest_experiments(ask: Ask) -> tuple[str, ...]:
    """Return the experiment of the newest good run of each workload, the newest first."""
    newest: list[RunRow] = []
    for name in browsing.values_of("workload", ask.book)[:MOST_NAMES]:
        if name.startswith(("command/", "check/")) or any(sign in name for sign in "*?["):
            continue
        newest += browsing.page_of_runs(RunFilter(workload=name, status="done"), limit=1, ledger=ask.book).rows
    newest.sort(key=lambda row: -row.started_unix_s)
    return tuple(dict.fromkeys(row.experiment_id for row in newest))[:MOST_OURS]


def _ours(ask: Ask, experiments: tuple[str, ...]) -> Markup:
    pairs: list[PublishedPair] = []
    of: list[Markup] = []
    for one in experiments:
        try:
            found = published_chart([one], ask.book).pairs
        except StackmarkError:
            continue  # nobody published a number of its metric, or it cannot be examined; its own page says why
        pairs += found[:MOST_PAIRS]
        of.append(
            element(
                "li",
                link(path("experiments", one), _few(tuple(dict.fromkeys(pair.benchmark for pair in found)))),
            )
        )
    if not pairs:
        said = "None of the newest results has a published number of the same metric."
        return element("p", text(said if experiments else "No result is stored yet."))
    wide, narrow = (published_bars(pairs, layout) for layout in (WIDE, NARROW))
    notes = [element("li", text(note)) for note in footnotes(drawn_pairs(pairs))]
    return join(
        [
            notice(
                "The newest result of each workload. A ratio to a number from another recipe is context, not a result."
            ),
            figure(wide, narrow, caption(pairs)),
            element("ol", *notes, class_="note sources"),
            element("h2", text("Our results in this picture")),
            element("ul", *of),
        ]
    )


# --- baselines ------------------------------------------------------------------------------------------------------------


def baselines(ask: Ask) -> Answer:
    """List the baselines."""
    found = list_baselines(ask.book).baselines
    heads = [("Baseline", False), ("Experiments", True), ("First", False), ("Last", False), ("Workloads", False)]
    rows = [
        Row(
            [
                Cell(link(path("baselines", one.name), cut(one.name, 80))),
                numeric(str(one.experiments)),
                plain(say_moment(one.first_unix_s, DAY)),
                plain(say_moment(one.last_unix_s, DAY)),
                plain(_few(tuple(one.workloads))),
            ]
        )
        for one in found
    ]
    shown = (
        table(heads, rows, "list")
        if rows
        else notice("No baseline is saved. Save one with `stackmark baseline save NAME train/resnet50`.")
    )
    return Answer("Baselines", join([element("h1", text("Baselines")), shown]), here="/baselines")


def baseline(ask: Ask) -> Answer:
    """Show the series of a baseline and the checks against it."""
    name = ask.where["name"]
    found = show_baseline(name, ledger=ask.book)
    picture = element(
        "img", src=path("baselines", name, "trend.svg"), class_="paper",
        alt=f"The figures of {cut(name, 80)} over time, as in the table",
    )  # fmt: skip
    body = [
        element("h1", text(f"Baseline {cut(name, 80)}")),
        Markup(picture.removesuffix("</img>"))
        if found.trends
        else element("p", text("None of its runs gave a figure.")),
        *(_trend_table(found, index) for index in range(len(found.trends))),
        element("p", text("Measure it again: "), code(f"stackmark check {cut(name, 80)}"), class_="note"),
    ]
    return Answer(f"Baseline {name}", join(body), here="/baselines")


def _trend_table(found: BaselineTrend, index: int) -> Markup:
    trend = found.trends[index]
    unit = figure_unit(trend.unit)
    heads = [
        ("Series", False),
        (f"{unit.name}{unit.direction}", True),
        ("95 %", False),
        ("Runs", True),
        ("Against the baseline", True),
        ("Verdict", False),
    ]
    rows = []
    for point in trend.points:
        word = point.word or ""
        said = f"{SIGNS[word][0]} {word}" if word in SIGNS else point.kind
        shown = element("span", text(said), class_=f"verdict-word {SIGNS[word][1]}" if word in SIGNS else "quiet")
        where = link(path("experiments", point.experiment_ids[0]), say_moment(point.began_unix_s, "%Y-%m-%d %H:%M"))
        rows.append(
            Row(
                [
                    Cell(where),
                    numeric(unit.number(point.throughput.rate_per_s)),
                    plain(say_spread(point.throughput)),
                    numeric(str(point.throughput.runs)),
                    numeric(unit.say_shift(point.ratio_to_baseline)[0]),
                    Cell(shown),
                ]
            )
        )
    return element("section", element("h2", text(cut(trend.label, 120))), table(heads, rows))


def baseline_picture(ask: Ask) -> Answer:
    found = show_baseline(ask.where["name"], ledger=ask.book)
    return Answer("Trend", file=(trends_svg(found.name, found.trends).encode(), "image/svg+xml", ""))


def problem(message: str, hint: str | None, title: str = "It did not work") -> Markup:
    """Return a page about an error."""
    return join(
        [element("h1", text(title)), trouble(message, hint), element("p", link("/", "The list of experiments"))]
    )
