"""One experiment with its report, live while it runs; one run with its facts, its steps and its log."""

import itertools
import json
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from stackmark.api import browsing
from stackmark.api.baselines import list_baselines
from stackmark.api.browsing import Progress, RunRow
from stackmark.api.stored import SUITE, load, load_run
from stackmark.errors import LedgerError, SpecError, StackmarkError
from stackmark.figures import say_figure
from stackmark.show.facts import say_fact
from stackmark.show.report import write_report, write_suite_report
from stackmark.show.report.html import experiment as experiment_report
from stackmark.show.report.markup import NOTHING, Markup, element, join, text
from stackmark.show.report.suite import suite as suite_report
from stackmark.show.report.tables import Row, plain, table
from stackmark.show.runs import run_lines
from stackmark.show.safe import short_id
from stackmark.show.sections import Sections
from stackmark.units import counted, say_seconds
from stackmark.web.asking import Answer, Ask
from stackmark.web.charts import step_chart
from stackmark.web.live import Snapshot
from stackmark.web.pages.lists import run_table
from stackmark.web.parts import LONG, command, cut, facts, hidden, lines, link, path, text_input, trouble

# Of a log, on the page of its run: the end of it. The file has all of it.
SHOWN_LINES = 400
MOST_RUNS = 200
MOST_FILE_LINES = 200_000


# --- one experiment -------------------------------------------------------------------------------------------------------


def experiment(ask: Ask) -> Answer:
    """Show the report of an experiment, and what of it is running."""
    found = load(ask.where["id"], ask.book)
    progress = browsing.progress_of(found.id, ask.book)
    head = join(
        [
            element(
                "p",
                element("strong", text(f"Experiment {found.id}")),
                text(f", {counted(len(progress.runs), 'run')}. " if progress.runs else ". "),
                link(
                    path("experiments", found.id, "report.html"),
                    "Report as one file",
                    download=f"stackmark-{found.id}.html",
                ),
                class_="eyebrow",
            ),
            _live(progress),
        ]
    )
    body = [head, element("div", report_of(ask, progress), id="report")]
    # Those of a suite are on the pages of its rows.
    if found.kind() is not SUITE:
        body.append(element("section", element("h2", text("Its runs")), _runs(progress), id="its-runs"))
    if found.row.command:
        said = element("h2", text("The command that made it"))
        body.append(element("section", said, command(cut(found.row.command, LONG), "its-command")))
    if found.row.note:
        body.append(element("section", element("h2", text("Note")), element("p", text(cut(found.row.note, LONG)))))
    body.append(_actions(ask, found.id, progress))
    return Answer(f"Experiment {short_id(found.id)}", join(body), here="/")


def report(ask: Ask) -> Answer:
    """Return the report alone, for a page whose runs went on."""
    progress = browsing.progress_of(ask.where["id"], ask.book)
    body = join(
        [element("div", report_of(ask, progress), id="report"), element("div", _runs(progress), id="runs-table")]
    )
    return Answer("Report", body, fragment=True)


def report_of(ask: Ask, progress: Progress) -> Markup:
    """Return the report, made once while no run of it changes. That of a check also depends on its baseline, and is not kept."""
    if not any(run.status != "running" for run in progress.runs) and load(progress.id, ask.book).kind().has_arms:
        return element("p", text("No run has ended yet."), class_="note")
    key = ("report", progress.id, progress.state)
    row = load(progress.id, ask.book).row
    return _report(ask, progress.id) if row.kind == "check" else ask.kept.get(key, lambda: _report(ask, progress.id))


def _report(ask: Ask, experiment_id: str) -> Markup:
    try:
        found = browsing.shown(experiment_id, ask.book)
    except StackmarkError as error:
        # One damaged row hides no other page.
        return trouble(error.message, error.hint)
    if found.suite is not None:
        return suite_report(found.suite)
    if found.lines:
        return join([element("h1", text("What it shows")), lines(found.lines, "result")])
    assert found.examined is not None
    return experiment_report(Sections(found.examined))


def report_file(ask: Ask) -> Answer:
    """Return the report as `stackmark report` writes it."""
    found = browsing.shown(ask.where["id"], ask.book)
    with tempfile.TemporaryDirectory(prefix="stackmark-web-") as folder:
        target = str(Path(folder) / "report.html")
        if found.suite is not None:
            written = write_suite_report(found.suite, target)
        elif found.examined is None:
            return Answer(
                "Report", file=("\n".join(found.lines).encode(), "text/plain; charset=utf-8", "stackmark.txt")
            )
        else:
            written = write_report(found.examined, target)
        data = written.read_bytes()
    return Answer(
        "Report", file=(data, "text/html; charset=utf-8", f"stackmark-{load(ask.where['id'], ask.book).id}.html")
    )


def _live(progress: Progress) -> Markup:
    """What is running; a script keeps it up to date."""
    if not progress.running:
        return NOTHING
    where = path("experiments", progress.id, "events")
    return element(
        "section",
        element("h2", text("Running now")),
        element("div", live_lines(progress), id="live-lines"),
        class_="live",
        data_live=where,
        data_report=path("experiments", progress.id, "report"),
    )


def live_lines(progress: Progress) -> Markup:
    """Say what its driver last told: how far the run at hand is, how fast, and how long all of it still takes."""
    told = progress.told
    if told is None:
        good, bad = _ended(progress.runs, progress.lost)
        return element("p", text(f"{counted(good, 'run')} done" + (f", {counted(bad, 'run')} failed" if bad else "")))
    good, bad = _ended(told.runs, progress.lost)
    of = f" of {told.planned}" if told.planned else ""
    said = f"{good}{of} runs done" + (f", {counted(bad, 'run')} failed" if bad else "")
    left = f", about {say_seconds(max(1.0, round(told.left_s)))} left" if told.left_s is not None else ""
    parts = [element("p", text(said + left))]
    if told.share is not None:
        bar = element("progress", value=f"{told.share:.3f}", max="1", aria_label="How much of the experiment is done")
        parts.append(bar)
    now = told.current
    if now is not None:
        words = [
            f"Run {now.number} of {now.of}",
            cut(now.label, 80),
            f"{cut(now.workload, 80)}: {cut(now.said or now.phase)}",
        ]
        if now.rows_of:
            words.append(f"{now.rows_done} of {now.rows_of} problems")
        if now.steps_done:
            words.append(f"step {now.steps_done:,}" + (f" of {now.steps_expected:,}" if now.steps_expected else ""))
        if now.rate_per_s:
            words.append(say_figure(now.rate_per_s, now.rate_unit))
        parts.append(element("p", text(", ".join(word for word in words if word)), class_="now"))
    return join(parts)


def _ended(runs: Sequence[RunRow], lost: frozenset[str]) -> tuple[int, int]:
    """Count the runs that gave a number, and those that failed; a primer is neither."""
    measured = [run for run in runs if run.role == "measured"]
    return (
        sum(run.status == "done" for run in measured),
        sum(run.status in ("failed", "invalid") or run.id in lost for run in measured),
    )


def snapshot(progress: Progress) -> Snapshot:
    """Return what browsers that follow an experiment get: at once when a run ends, and each time its driver tells something."""
    html = live_lines(progress)
    ended = sum(run.status != "running" for run in (progress.told.runs if progress.told else progress.runs))
    message: dict[str, object] = {"html": html, "ended_runs": ended}
    return Snapshot((progress.state, html), message, ended=not progress.running)


def _runs(progress: Progress) -> Markup:
    shown = progress.runs[-MOST_RUNS:]
    more = len(progress.runs) - len(shown)
    note = (
        element("p", text(f"The last {len(shown)} of {len(progress.runs)} runs."), class_="note") if more else NOTHING
    )
    rows = run_table(shown, lost=progress.lost) if shown else element("p", text("It has no run."))
    return element("div", note, rows, id="runs-table")


def _actions(ask: Ask, experiment_id: str, progress: Progress) -> Markup:
    if not ask.actions or not ask.secret:
        return NOTHING
    names = [one.name for one in list_baselines(ask.book).baselines]
    known = element("datalist", *(element("option", value=name) for name in names), id="baselines")
    save = element(
        "form", hidden("secret", ask.secret), hidden("experiment", experiment_id), known,
        text_input("name", "Save in the baseline", "", hint="a new name, or one that exists", list="baselines", required=""),
        element("button", text("Save"), type="submit"), method="post", action="/baselines", class_="action",
    )  # fmt: skip
    runs = counted(len(progress.runs), "run") if progress.runs else "all that belongs to it"
    delete = element(
        "form", hidden("secret", ask.secret),
        element("div", element("label", text(f"To delete it with {runs} for good, type its id"), for_="in-sure"),
                element("input", id="in-sure", name_="sure", required="", autocomplete="off",
                        pattern=experiment_id), class_="field"),
        element("button", text("Delete"), type="submit", class_="danger"),
        method="post", action=path("experiments", experiment_id, "delete"), class_="action",
    )  # fmt: skip
    return element("section", element("h2", text("Actions")), save, delete, id="actions")


# --- one run --------------------------------------------------------------------------------------------------------------


def run(ask: Ask) -> Answer:
    """Show a run: its numbers, its steps, its log, all facts."""
    found = load_run(ask.where["id"], ask.book)
    row = found.row
    head = element(
        "header",
        element(
            "p", element("strong", text(f"Run {cut(row.id, 80)}")), text(" of "),
            link(path("experiments", row.experiment_id), f"experiment {short_id(row.experiment_id)}"), class_="eyebrow",
        ),
        element("h1", text(f"{cut(row.workload, 80)} in the place {cut(row.place, 80)}")),
    )  # fmt: skip
    body = [head]
    known: dict[str, dict[str, object]] = {}
    try:
        judged = found.judged()
        known = {subject: dict(values) for subject, values in judged.facts.items()}
        said = [(name, value) for name, value in run_lines(judged) if name != "more"]
    except (LedgerError, SpecError, ValueError) as error:
        body.append(trouble(f"the output of this run cannot be read: {error}", None))
        said = [("state", f"{row.status} {row.failure_kind or ''} {row.failure_message or ''}")]
    if browsing.is_lost(row):
        said.insert(0, ("lost", "its stackmark has ended without storing it; the next command says so and cleans up"))
    body.append(element("section", facts([(name, _several_lines(value)) for name, value in said]), id="numbers"))
    if steps := browsing.steps_of(row.id, ask.book):
        body.append(element("section", element("h2", text("Steps")), step_chart(steps, row.workload), id="steps"))
    body.append(_log(ask, row.id))
    body.append(_spec(row.spec.model_dump(mode="json"), row.place_options))
    body.append(_facts(known))
    return Answer(f"Run {short_id(row.id)}", join(body), here="/runs")


def _several_lines(value: object) -> Markup:
    return join(element("span", text(cut(line, LONG)), class_="fact-line") for line in str(value).split("\n")[:40])


def _log(ask: Ask, run_id: str) -> Markup:
    found = load_run(run_id, ask.book)
    last: deque[str] = deque(maxlen=SHOWN_LINES)
    count = 0
    for line in found.log():
        count += 1
        last.append(line)
    if not count:
        return element("section", element("h2", text("Log")), element("p", text("It printed nothing."), class_="note"))
    said = f"The last {len(last)} of {count:,} lines. " if count > len(last) else ""
    whole = element(
        "p", text(said), link(path("runs", run_id, "log.txt"), "All of it as a file", download=""), class_="note"
    )
    return element("section", element("h2", text("Log")), whole, lines(list(last)), id="log")


def log_file(ask: Ask) -> Answer:
    found = load_run(ask.where["id"], ask.book)
    data = "\n".join(itertools.islice(found.log(), MOST_FILE_LINES)).encode("utf-8", "backslashreplace")
    return Answer("Log", file=(data, "text/plain; charset=utf-8", f"stackmark-{short_id(found.id)}.log"))


def _spec(spec: Mapping[str, object], options: Mapping[str, object]) -> Markup:
    params = spec.get("params")
    rows = [
        Row([plain(cut(str(name))), plain(cut(json.dumps(value), LONG))])
        for name, value in [*(params.items() if isinstance(params, dict) else ()), *options.items()]
    ]
    shown = table([("Parameter", False), ("Value", False)], rows, "params") if rows else NOTHING
    return element(
        "section", element("h2", text("Spec")), element("details", element("summary", text("All parameters")), shown)
    )


def _facts(known: dict[str, dict[str, object]]) -> Markup:
    """All facts of the machine and the stack, folded by subject."""
    if not known:
        return NOTHING
    parts = []
    for subject, values in list(known.items())[:40]:
        rows = [
            Row([plain(cut(str(name))), plain(cut(say_fact(value), LONG))])  # type: ignore[arg-type]
            for name, value in list(values.items())[:200]
        ]
        summary = element("summary", text(f"{cut(subject)} ({counted(len(values), 'fact')})"))
        parts.append(element("details", summary, table([("Fact", False), ("Value", False)], rows, "params")))
    return element("section", element("h2", text("Facts")), *parts, id="facts")
