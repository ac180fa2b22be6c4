"""The lists of experiments and of runs: filters, search, both orders of time, and pages that begin at a row."""

from stackmark.api import browsing
from stackmark.api.browsing import Edge, ExperimentFilter, Page, RunFilter, RunRow
from stackmark.api.stored import ListedExperiment
from stackmark.errors import SpecError
from stackmark.figures import name_of_figures, say_figure
from stackmark.show.experiments import SHORT_KINDS, say_runs, say_verdicts
from stackmark.show.report.markup import NOTHING, Markup, element, join, text
from stackmark.show.report.tables import Cell, Row, numeric, plain, table
from stackmark.show.runs import say_state
from stackmark.show.safe import short_id
from stackmark.show.sections import SIGNS
from stackmark.units import counted, say_moment, say_zone
from stackmark.web.asking import Answer, Ask, as_glob, edge_text
from stackmark.web.parts import choice, cut, link, path, query, text_input

KINDS = {
    "run": "run", "compare": "compare", "noise": "noise", "scale": "scale", "check": "check", "suite": "suite",
    "sweep": "sweep", "fault": "fault", "import": "import",
}  # fmt: skip
STATES = {"done": "done", "running": "running", "failed": "failed", "invalid": "invalid"}
ORDERS = {"newest": "newest first", "oldest": "oldest first"}
RUN_ORDERS = {**ORDERS, "fastest": "highest rate first", "slowest": "lowest rate first"}
ANY = ("", "any")
FORM = "%Y-%m-%d %H:%M"


# --- experiments ----------------------------------------------------------------------------------------------------------


def experiments(ask: Ask) -> Answer:
    """List experiments. A verdict that is not known yet is fetched when the page is there: computing fifty takes seconds."""
    workload, words = ask.get("workload"), ask.get("q")
    wanted = ExperimentFilter.model_validate(
        {
            "workload": as_glob(workload) or None,
            "chip": ask.get("chip") or None,
            "place": ask.get("place") or None,
            "status": ask.one_of("state", STATES) or None,
            "kind": ask.one_of("kind", KINDS) or None,
            "text": words or None,
            "since_unix_s": ask.day("since"),
            "until_unix_s": ask.day("until", end=True),
        }
    )
    order = ask.one_of("sort", ORDERS)
    page = browsing.page_of_experiments(wanted, edge=ask.edge(), oldest_first=order == "oldest", ledger=ask.book)
    filtered = any(ask.get(name) for name in ("workload", "q", "chip", "place", "state", "kind", "since", "until"))
    rows = [_experiment_row(ask, one) for one in page.rows]
    zone = say_zone(page.rows[0].created_unix_s) if page.rows else ""
    heads = [
        ("Experiment", False), (f"Date ({zone})" if zone else "Date", False), ("Kind", False), ("Arms", False),
        ("Runs", True), ("State", False), ("Verdict", False),
    ]  # fmt: skip
    nothing = (
        "No experiment fits. Remove a filter."
        if filtered
        else "No experiment is stored yet. Begin with: stackmark run train/resnet50"
    )
    shown = table(heads, rows, "list") if rows else element("p", text(nothing))
    first = not ask.get("from") and order != "oldest"
    listed = element(
        "div", shown, _pages(ask, "/", page), id="list", data_list="/events" if first else None,
        data_state=browsing.newest_change(ask.book) if first else None,
    )  # fmt: skip
    return Answer(
        "Experiments", join([element("h1", text("Experiments")), _filters(ask, "/", ORDERS), listed]), here="/"
    )


def _experiment_row(ask: Ask, one: ListedExperiment) -> Row:
    name = cut(_several(one.workloads)) or "no run yet"
    return Row(
        [
            Cell(
                join([link(path("experiments", one.id), name), element("small", text(short_id(one.id)), title=one.id)])
            ),
            whole(say_moment(one.created_unix_s, FORM)),
            whole(SHORT_KINDS.get(one.kind, one.kind)),
            plain(cut(", ".join(one.arms), 80)),
            numeric(say_runs(one)),
            Cell(state_mark(one.state)),
            Cell(verdict_cell(ask, one)),
        ]
    )


def _several(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more" if names else ""


def verdict_key(one: ListedExperiment) -> object | None:
    """Return what a verdict depends on; None of a check, whose baseline may change."""
    return None if one.kind == "check" else ("verdict", one.id, tuple(sorted(one.runs.items())), one.state == "running")


def verdict_cell(ask: Ask, one: ListedExperiment) -> Markup:
    if one.verdicts is not None:
        return verdict_words(one)
    key = verdict_key(one)
    kept = ask.kept.peek(key) if key else None
    if kept is not None:
        return kept
    return element("span", text("not computed"), class_="quiet", data_verdict=path("experiments", one.id, "verdict"))


def verdict_words(one: ListedExperiment) -> Markup:
    """Show each word once, with its sign; of two equal arms the margin that they can decide."""
    if one.smallest_margin is not None or not one.verdicts:
        return text(say_verdicts(one) or "–")
    words = dict.fromkeys(one.verdicts)
    return join(
        (
            element("span", text(f"{SIGNS[word][0]} {word}"), class_=f"verdict-word {SIGNS[word][1]}")
            if word in SIGNS
            else text(cut(word))
            for word in words
        ),
        text(", "),
    )


def verdict(ask: Ask) -> Answer:
    """Compute the verdict of one row of the list."""
    one = browsing.one_listed(ask.where["id"], ask.book)
    key = verdict_key(one)
    body = ask.kept.get(key, lambda: verdict_words(one)) if key else verdict_words(one)
    return Answer("Verdict", body, fragment=True)


# --- runs -----------------------------------------------------------------------------------------------------------------


def runs(ask: Ask) -> Answer:
    """List runs."""
    wanted = run_filter(ask)
    order = ask.one_of("sort", RUN_ORDERS)
    if order in ("fastest", "slowest"):
        if not ask.get("workload"):
            raise SpecError(
                "runs of several workloads have no common figure to be sorted by", hint="filter by one workload first"
            )
        found = browsing.runs_by_rate(wanted, lowest_first=order == "slowest", ledger=ask.book)
        page: Page[RunRow] = Page(found)
    else:
        page = browsing.page_of_runs(wanted, edge=ask.edge(), oldest_first=order == "oldest", ledger=ask.book)
    body = run_table(page.rows) if page.rows else element("p", text("No run fits."))
    heading = element("h1", text("Runs"))
    listed = element("div", body, _pages(ask, "/runs", page), id="list")
    return Answer("Runs", join([heading, _filters(ask, "/runs", RUN_ORDERS, kinds=False), listed]), here="/runs")


def run_filter(ask: Ask) -> RunFilter:
    return RunFilter.model_validate(
        {
            "workload": as_glob(ask.get("workload")) or None,
            "chip": ask.get("chip") or None,
            "place": ask.get("place") or None,
            "status": ask.one_of("state", STATES) or None,
            "since_unix_s": ask.day("since"),
            "until_unix_s": ask.day("until", end=True),
        }
    )


def run_table(rows: tuple[RunRow, ...], *, lost: frozenset[str] = frozenset()) -> Markup:
    """Show runs, a line each."""
    zone = say_zone(rows[0].started_unix_s) if rows else ""
    heads = [
        ("Run", False), (f"Started ({zone})" if zone else "Started", False), ("Place", False), ("Chip", False),
        (name_of_figures([row.rate_unit for row in rows]).capitalize(), True), ("State", False),
    ]  # fmt: skip
    return table(heads, [_run_row(row, row.id in lost) for row in rows], "list")


def _run_row(row: RunRow, lost: bool) -> Row:
    settings = ", ".join(filter(None, (f"batch {row.batch}" if row.batch else "", row.precision, row.tune)))
    rate = say_figure(row.rate_per_s, row.rate_unit) if row.rate_per_s else "–"
    state = "lost: its stackmark has ended" if lost else cut(say_state(row))
    mark = "failed" if lost else row.status
    return Row(
        [
            Cell(
                join(
                    [
                        link(path("runs", row.id), cut(row.workload, 80)),
                        element("small", text(f"{short_id(row.id)} {cut(settings, 80)}"), title=cut(row.id, 80)),
                    ]
                )
            ),
            whole(say_moment(row.started_unix_s)),
            plain(cut(row.place, 80)),
            plain(cut(row.chip or "–", 80), f"{row.ranks} ranks" if row.ranks > 1 else ""),
            numeric(cut(rate, 60)),
            Cell(state_mark(mark, state)),
        ]
    )


def whole(content: str) -> Cell:
    """Show our own short words, which no narrow column tears apart."""
    return Cell(element("span", text(content), class_="whole"))


def state_mark(state: str, said: str = "") -> Markup:
    """Show a state by a sign and a word."""
    sign = {"done": "✓", "running": "▶", "failed": "✗", "invalid": "✗", "open": "…", "short": "✗", "empty": "–"}
    classes = {"done": "same", "running": "faster", "failed": "slower", "invalid": "slower", "short": "slower"}
    mark = element(
        "span", text(sign.get(state, "•")), class_=f"state-sign {classes.get(state, 'open')}", aria_hidden="true"
    )
    return element("span", mark, text(f" {said or state}"), class_="state-words" if said else "state-words whole")


# --- both -----------------------------------------------------------------------------------------------------------------


def _filters(ask: Ask, where: str, orders: dict[str, str], *, kinds: bool = True) -> Markup:
    """The filters as a form; without a script it works as well."""
    chips = [ANY, *((name, name) for name in browsing.values_of("chip", ask.book) if name)]
    places = [ANY, *((name, name) for name in browsing.values_of("place", ask.book))]
    names = browsing.values_of("workload", ask.book)[:300]
    known = element("datalist", *(element("option", value=cut(name)) for name in names), id="workloads")
    search = text_input("q", "Search", ask.get("q"), hint="in commands and notes, or an id: x-…, r-…", kind="search")
    controls = [
        search if kinds else NOTHING,
        text_input("workload", "Workload", ask.get("workload"), hint="a part of its name, or a glob: train/*", list="workloads"),
        choice("chip", "Chip", chips, ask.get("chip")),
        choice("place", "Place", places, ask.get("place")),
        choice("kind", "Kind", [ANY, *KINDS.items()], ask.get("kind")) if kinds else NOTHING,
        choice("state", "A run is" if kinds else "State", [ANY, *STATES.items()], ask.get("state")),
        text_input("since", "Since", ask.get("since"), kind="date"),
        text_input("until", "Until", ask.get("until"), kind="date"),
        choice("sort", "Order", [*orders.items()], ask.get("sort") or "newest"),
    ]  # fmt: skip
    buttons = element(
        "div",
        element("button", text("Show"), type="submit", class_="main"),
        link(where, "All", class_="reset"),
        class_="buttons",
    )
    active = [
        name for name in ("workload", "q", "chip", "place", "kind", "state", "since", "until", "sort") if ask.get(name)
    ]
    said = f"Search and filter ({counted(len(active), 'filter')} set)" if active else "Search and filter"
    form = element("form", known, *controls, buttons, method="get", action=where, class_="filters", role="search")
    return element("details", element("summary", text(said)), form, open="" if active else None, class_="filter-box")


def _pages(ask: Ask, where: str, page: Page[ListedExperiment] | Page[RunRow]) -> Markup:
    """Links to the pages before and after."""

    def at(edge: Edge | None, said: str, rel: str) -> Markup:
        if edge is None or not edge_text(edge):
            return NOTHING
        return link(query(where, {**ask.values, "from": edge_text(edge)}), said, rel=rel)

    oldest = ask.get("sort") == "oldest"
    names = ("← Older", "Newer →") if oldest else ("← Newer", "Older →")
    first = link(query(where, {**ask.values, "from": ""}), "First page") if ask.get("from") else NOTHING
    parts = [first, at(page.previous, names[0], "prev"), at(page.next, names[1], "next")]
    if not any(parts):
        return NOTHING
    return element("nav", *parts, class_="pages", aria_label="Pages of the list")
