"""The sections about why one may believe it: what differs, what was held equal, what failed, how it was measured."""

import re
from collections import Counter
from collections.abc import Sequence

from stackmark.show.report.charts.shapes import LETTERS, letter
from stackmark.show.report.markup import NOTHING, Markup, element, join, text
from stackmark.show.report.tables import Cell, Row, badge, bullets, numeric, paragraph, plain, section, table
from stackmark.show.report.wording import (
    bad_runs,
    measured_runs,
    say_order,
    say_ratio,
    say_took,
)
from stackmark.show.result import say_flag
from stackmark.units import counted, say_minute_utc, say_rate, say_seconds
from stackmark.verdict.examined import CovariateLine, Examined, ExaminedRun, FactDifference
from stackmark.verdict.rules import say_rules

# Below this weight a difference is a curiosity, and is folded away where there are others.
CURIOUS = 20
_NUMBERS = re.compile(r"[\d.,]+")


def what_differs(examined: Examined) -> Markup:
    if len(examined.arms) < 2:
        return NOTHING
    found = sorted(examined.differences, key=lambda one: (-one.shows_effect, -one.weight))
    if not found:
        known = all(arm.facts for arm in examined.arms)
        said = paragraph(
            "No fact about the stack differs between the arms, beyond what was asked for."
            if known
            else "It cannot be told: the facts of an arm are not known."
        )
        return section("What differs between the arms", said, name="differences")
    main = [one for one in found if one.shows_effect or one.weight >= CURIOUS] or found
    rest = [one for one in found if one not in main]
    lead = paragraph(
        "Ranked by what is known to matter. A fact that differs is a candidate for the cause, not the cause.", "note"
    )
    parts = [lead, _differences(examined, main)]
    if rest:
        name = element("summary", text(f"{counted(len(rest), 'more difference')}, not known to matter"))
        parts.append(element("details", name, _differences(examined, rest)))
    return section("What differs between the arms", *parts, name="differences")


def _differences(examined: Examined, found: Sequence[FactDifference]) -> Markup:
    head = [
        ("Fact", False),
        *_arm_heads(examined, False),
        ("Why it may matter", False),
    ]
    rows = []
    for one in found:
        values = [one.values[index] if index < len(one.values) else "unknown" for index in range(len(examined.arms))]
        tag = element("span", text("effect seen"), class_="tag") if one.shows_effect else NOTHING
        why = join([tag, text(f" {one.why}" if one.shows_effect else one.why)])
        rows.append(Row([plain(one.key, one.subject), *map(plain, values), Cell(why)]))
    return table(head, rows, "facts")


def _arm_heads(examined: Examined, right: bool) -> list[tuple[str, bool]]:
    return [(f"{letter(arm.index)}  {arm.label}", right) for arm in examined.arms]


def conditions(examined: Examined) -> Markup:
    """Covariates, and the flags that runs carry."""
    flags = _flags(examined)
    if not examined.covariates and not flags:
        return NOTHING
    head = [
        ("Median over runs", False),
        *_arm_heads(examined, True),
        ("", False),
    ]
    still = [one for one in examined.covariates if not one.remark and not any(one.medians)]
    rows = []
    for one in examined.covariates:
        if one not in still:
            medians = [one.medians[index] if index < len(one.medians) else None for index in range(len(examined.arms))]
            values = [numeric(say_covariate(value, one.unit)) for value in medians]
            rows.append(Row([plain(covariate_name(one)), *values, plain(one.remark)]))
    shown = table(head, rows) if rows else NOTHING
    names = ", ".join(covariate_name(one) for one in still)
    quiet = paragraph(f"Nought in every arm: {names}.", "note") if still else NOTHING
    moved = bullets(list(examined.associations)) if examined.associations else NOTHING
    flagged = join([element("h3", text("Flags")), bullets(flags)]) if flags else NOTHING
    return section("Conditions while it ran", shown, quiet, moved, flagged, name="conditions")


def covariate_name(one: CovariateLine) -> str:
    """`power_w` in watts is power: what the unit says need not stand in the name."""
    words = one.name.split("_")
    said = {one.unit.lower(), one.unit.lower().lstrip("°")}
    return " ".join(words[:-1] if len(words) > 1 and words[-1].lower() in said else words)


def say_covariate(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.3g} %" if unit == "share" else f"{value:,.4g} {unit}"


def _flags(examined: Examined) -> list[str]:
    """Each flag once, in the first run's words, with how many runs of which arm had it."""
    first: dict[str, str] = {}
    counts: Counter[tuple[str, int]] = Counter()
    for run in measured_runs(examined):
        for flag in run.flags:
            kind = _NUMBERS.sub("#", flag)
            first.setdefault(kind, flag)
            counts[kind, run.arm] += 1
    return [f"{say_flag(said)} ({', '.join(f'{n} × {letter(arm)}' for (kind, arm), n in sorted(counts.items()) if kind == key)})"
            for key, said in first.items()]  # fmt: skip


def neighbours(examined: Examined) -> Markup:
    if not examined.published:
        return NOTHING
    head = [("Published", False), ("What", False), ("This one over it", True), ("What differs", False)]
    rows = [
        Row(
            [
                plain(f"{one.value:,g} {one.unit}"),
                plain(one.what, f"{one.source}, {one.date}"),
                numeric(say_ratio(one.ratio), one.arm),
                plain("; ".join(one.differs) or "nothing that is known"),
            ]
        )
        for one in examined.published
    ]
    lead = paragraph(
        "The nearest that others printed. A ratio to a number from another recipe is context, not a result.", "note"
    )
    return section("Published neighbours", lead, table(head, rows), name="published")


def held_equal(examined: Examined) -> Markup:
    if not examined.held and not examined.not_held:
        return NOTHING

    def column(title: str, items: Sequence[str], mark: str, class_: str) -> Markup:
        lines = [element("li", element("span", text(mark)), text(item)) for item in items]
        content = element("ul", *lines, class_=class_) if lines else paragraph("Nothing that is known.", "note")
        return element("div", element("h3", text(title)), content)

    parts = [column("Held equal", examined.held, "✓", "yes"), column("Not held equal", examined.not_held, "✗", "no")]
    return section("What was held equal", element("div", *parts, class_="held"), name="held")


def failures(examined: Examined) -> Markup:
    bad = bad_runs(examined)
    if not bad:
        return NOTHING
    head = [("Run", False), ("Arm", False), ("Block", True), ("Kind", False), ("What happened", False)]
    rows = [
        Row(
            [
                Cell(element("code", text(run.run_id[:14]))),
                Cell(_arm(examined, run)),
                numeric(_block(run)),
                plain(run.failure_kind or run.status),
                plain(run.failure_message or "no reason is known", run.failure_hint or ""),
            ]
        )
        for run in bad
    ]
    lead = paragraph("A failure is never a number: these runs are in no rate and in no ratio.", "note")
    return section("Runs that failed", lead, table(head, rows), name="failed")


def how_measured(examined: Examined) -> Markup:
    facts = [*examined.method, say_rules(examined.rules_made)]
    if examined.order:
        facts.append(f"Order of the runs, a word a block: {say_order(examined, LETTERS)}" + _seed(examined))
    if examined.blocks_planned:
        again = f"; {counted(examined.blocks_repeated, 'block')} repeated" if examined.blocks_repeated else ""
        facts.append(f"{examined.blocks_whole} of {counted(examined.blocks_planned, 'block')} whole{again}.")
    took = say_took(examined)
    facts.append(f"Begun {say_minute_utc(examined.created_unix_s)}" + (f"; it took {took}." if took else "."))
    name = element("summary", text(f"All {counted(len(examined.runs), 'run')}, one a line"))
    return section("How it was measured", bullets(facts), element("details", name, _all_runs(examined)), name="method")


def _seed(examined: Examined) -> str:
    return f" (seed {examined.seed})." if examined.seed is not None else "."


def _all_runs(examined: Examined) -> Markup:
    head = [
        ("Run", False),
        ("Arm", False),
        ("Block", True),
        ("Rate", True),
        ("Steadiness", False),
        ("Steps used", True),
    ]
    head += [("Launch", True), ("Set-up", True), ("Remarks", False)]
    rows = []
    for run in sorted(examined.runs, key=lambda run: run.started_unix_s):
        remarks: list[str] = [run.role] if run.role != "measured" else []
        remarks += [] if run.counted or run.role != "measured" else [f"{run.status}, not counted"]
        rows.append(
            Row(
                [
                    Cell(element("code", text(run.run_id[:14]))),
                    plain(letter(run.arm)),
                    numeric(_block(run)),
                    numeric(say_rate(run.rate_per_s) if run.rate_per_s else "–"),
                    plain(run.steady or "–"),
                    numeric(f"{len(run.step_s) - run.first_step:,} of {len(run.step_s):,}" if run.step_s else "–"),
                    numeric(say_seconds(run.start_s) if run.start_s is not None else "–"),
                    numeric(say_seconds(sum(seconds for _, seconds in run.setup)) if run.setup else "–"),
                    plain("; ".join(remarks)),
                ]
            )
        )
    return table(head, rows)


def _block(run: ExaminedRun) -> str:
    if run.block is None:
        return "–"
    return f"{run.block + 1}" + (f" (attempt {run.attempt + 1})" if run.attempt else "")


def _arm(examined: Examined, run: ExaminedRun) -> Markup:
    return badge(examined.arms[run.arm]) if run.arm < len(examined.arms) else text(letter(run.arm))


def repeat(examined: Examined) -> Markup:
    look = f"stackmark report {examined.experiment_id}"
    return section(
        "To repeat it",
        element("pre", element("code", text(examined.command))),
        element("p", text("This page again, from the ledger: "), element("code", text(look)), class_="note"),
        name="repeat",
    )
