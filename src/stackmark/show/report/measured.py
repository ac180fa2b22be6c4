"""The sections about what was measured: the ratio, the arms, every run, step times, set-up."""

from collections.abc import Sequence
from statistics import median

from stackmark.figures import FigureUnit
from stackmark.show.report.charts import bars, forest, latency, quality, rates, setup, steps
from stackmark.show.report.charts.scaling import NARROW as SCALING_NARROW
from stackmark.show.report.charts.scaling import scaling_chart
from stackmark.show.report.markup import NOTHING, Markup, element, join, text
from stackmark.show.report.operators import problems
from stackmark.show.report.tables import Cell, Row, badge, figure, numeric, paragraph, plain, section, table
from stackmark.show.scaling import scaling_lines
from stackmark.show.sections import ArmRow, Sections
from stackmark.show.serving import name_among, pair_words, say_value
from stackmark.show.wording import Percentiles, block_ratios, letter, measured_runs, setup_parts, setup_total_s
from stackmark.units import counted, say_seconds
from stackmark.verdict.examined import Examined, ExaminedArm, ExaminedRun
from stackmark.verdict.needed import percent
from stackmark.verdict.scaling import Scaling
from stackmark.workloads.command.definition import telling_params

# Small pictures in one page: beyond these the page would be megabytes, and more cannot be compared by eye.
MOST_PICTURES = 72


def the_figures(sections: Sections) -> Markup:
    """Bars of the arms' figures from zero, above the ratio: how fast it is, before how the arms compare."""
    examined = sections.examined
    if not bars.drawable(examined):
        return NOTHING
    caption = (
        "From zero, with the 95 % interval of each arm over its own runs. Whether two arms differ is not read from these "
        "intervals: the picture below compares them block by block."
        if block_ratios_exist(sections)
        else "From zero, with the 95 % interval of each arm over its own runs."
    )
    drawn = figure(bars.bars(examined), bars.bars(examined, bars.NARROW), caption)
    return section(
        "How fast each arm is" if not sections.direction else "The figure of each arm", drawn, name="figures"
    )


def block_ratios_exist(sections: Sections) -> bool:
    examined = sections.examined
    return any(block_ratios(examined, comparison) for comparison in examined.comparisons)


def the_ratio(sections: Sections) -> Markup:
    examined = sections.examined
    if examined.scaling and examined.scaling.is_drawable:
        return _the_scaling(examined.scaling)
    if not examined.comparisons:
        return NOTHING
    blocks = block_ratios_exist(sections)
    caption = (
        "Thick bar: 90 % interval, which is compared with the margin. Thin line: 95 % interval, which shows whether there is "
        f"a difference at all. {'Small hollow signs: the ratio of each block. ' if blocks else ''}"
        f"Shaded: differences of up to {percent(examined.margin)}. "
        "To the right of the line the first-named is the faster."
    )
    drawn = figure(forest.forest(examined), forest.forest(examined, forest.NARROW), caption)
    return section("The ratio against the margin", drawn, name="ratio")


def _the_scaling(scaling: Scaling) -> Markup:
    caption = (
        "The line above each column is perfect scaling. Its lowest part is the speed-up, with its 95 % interval; what is missing "
        "is what the exchange took, what waiting for the slowest rank took, and the rest. Dashed: what others published."
    )
    drawn = figure(scaling_chart(scaling), scaling_chart(scaling, SCALING_NARROW), caption)
    lines = [element("p", text(f"{name.capitalize()}: {said}"), class_="note") for name, said in scaling_lines(scaling)]
    return section("How it scales", drawn, *lines, name="ratio")


def the_arms(sections: Sections) -> Markup:
    head = [
        ("Arm", False),
        (f"{sections.figure_name.capitalize()}, 95 % interval{sections.direction}", True),
        ("Runs", True),
    ]
    head += [("Step, median", True), ("Set-up", True), ("Steadiness", False)]
    rows = [_arm_row(one, sections.step(one.arm)) for one in sections.arms]
    return section("The arms", table(head, rows), _settings(sections.examined), name="arms")


def _arm_row(one: ArmRow, quantiles: Percentiles | None) -> Row:
    interval = numeric("no run that counts")
    if one.figure:
        interval = numeric(one.figure, f"{one.spread}: {one.bounds}" if one.bounds else "one run: no interval")
    step = numeric("–")
    if quantiles:
        step = numeric(
            say_seconds(quantiles.p50_s), f"p90 {say_seconds(quantiles.p90_s)}, p99 {say_seconds(quantiles.p99_s)}"
        )
    below = [part for part in (one.cv, f"{one.failed} failed" if one.failed else "") if part]
    return Row(
        [
            Cell(join([badge(one.arm), element("small", text(one.arm.chip or "chip unknown"))])),
            interval,
            numeric(str(one.runs), ", ".join(below)),
            step,
            numeric(one.setup or "–"),
            plain(one.steadiness or "–"),
        ]
    )


def _settings(examined: Examined) -> Markup:
    """What differs by wish, an arm a line, and what is alike in all: folded, since few readers ask for it."""
    items = []
    for arm in examined.arms:
        own = [f"{name} {_value(value)}" for name, value in (*arm.typed.items(), *arm.place_options.items())]
        items.append(
            element("li", badge(arm), text(f": in the place {arm.place}" + (f"; {', '.join(own)}" if own else "")))
        )
    shared = [
        Row([plain(name), plain(_value(value))])
        for name, value in telling_params(examined.arms[0].params if examined.arms else {}).items()
        if all(arm.params.get(name) == value for arm in examined.arms)
    ]
    title = "Parameters" if len(examined.arms) < 2 else "Parameters, the same in all arms unless an arm names its own"
    alike = table([("Parameter", False), ("Value", False)], shared, "params") if shared else NOTHING
    return element("details", element("summary", text(title)), element("ul", *items, class_="note"), alike)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def the_limits(sections: Sections) -> Markup:
    if not sections.limits:
        return NOTHING
    rows = [Row([Cell(badge(arm)), plain(said[0], " ".join(said[1:]))]) for arm, said in sections.limits]
    return section("Against the limits of the machine", table([("Arm", False), ("Share", False)], rows), name="limits")


def every_run(sections: Sections) -> Markup:
    examined = sections.examined
    if not any(run.counted and run.rate_per_s for run in examined.runs):
        return NOTHING
    legend = element("p", *(join([badge(arm), text(" ")]) for arm in examined.arms), class_="about note")
    lost = any(not run.counted for run in measured_runs(examined))
    caption = (
        ("From left to right as they ran. " if examined.order else "One after the other. ")
        + "The level lines are the arms' means."
        + (" × at the bottom: a run that does not count." if lost else "")
    )
    drawn = figure(rates.rates(examined), rates.rates(examined, rates.NARROW), caption)
    return section("Every run", legend, drawn, name="runs")


def the_quality(sections: Sections) -> Markup:
    """Draw the curves of workloads that are trained to a target, with every run's time below."""
    found = sections.examined.quality
    names = quality.drawable(found)
    if not names:
        return NOTHING
    caption = (
        "A line for each run, a dot for each evaluation. The dashed line is the target; a run ends where an evaluation reached "
        "it, or at its limit with ×."
    )
    drawn = [
        figure(quality.curves(found, name), quality.curves(found, name, quality.NARROW), caption) for name in names
    ]
    said = element("ul", *(element("li", text(f"{name}: {text_}")) for name, text_ in sections.quality), class_="note")
    return section("Quality against time", *drawn, said, name="quality")


def the_latencies(sections: Sections) -> Markup:
    """Show percentiles with their verdicts, and the whole distribution of each arm."""
    examined = sections.examined
    if not examined.compared and not examined.latencies:
        return NOTHING
    head = [
        ("Metric", False),
        *((f"{letter(arm.index)}  {arm.label}", True) for arm in examined.arms),
        *((f"{pair.b} / {pair.a}", False) for pair in (examined.compared[0].pairs if examined.compared else ())),
    ]
    rows = [
        Row(
            [
                plain(name_among(one, examined.compared)),
                *(numeric(say_value(one, value)) for value in one.values),
                *(plain(*said) for said in pair_words(one)),
            ]
        )
        for one in examined.compared
    ]
    drawn = []
    for name in latency.names(examined.latencies):
        queries = ", ".join(f"{one.queries:,}" for one in examined.latencies if one.name == name)
        caption = (
            f"The latency ({name}) that a share of the queries stays within, over all counted runs of an arm together "
            f"({queries} queries). Each further nine has the same width; the curve ends where ten queries lie beyond it."
        )
        wide, narrow = (
            latency.curves_of(examined.latencies, name, examined.arms, layout)
            for layout in (latency.WIDE, latency.NARROW)
        )
        drawn.append(figure(wide, narrow, caption))
    return section("Latency by percentile", table(head, rows) if rows else NOTHING, *drawn, name="latency")


def step_times(sections: Sections) -> Markup:
    examined = sections.examined
    runs = [run for run in measured_runs(examined) if len(run.step_s) > 1 or (run.step_s and run.steady)]
    if not runs:
        return NOTHING
    shown = runs[:MOST_PICTURES]
    one_scale = _alike([median(run.step_s) for run in shown])
    parts = []
    for arm in examined.arms:
        mine = [run for run in shown if run.arm == arm.index]
        if mine:
            scale = steps.step_scale(shown if one_scale else mine)
            drawn = [
                _small(run, steps.steps(run, scale, _name(run)), arm.figure_unit, turn)
                for turn, run in enumerate(mine, 1)
            ]
            parts.append(element("div", element("h3", badge(arm)), element("div", *drawn, class_="small-ones")))
    intro = (
        "The line is the median, the band reaches from the shortest to the longest step. The coloured bar at the bottom marks "
        "the steady part, by which a run is judged; a dashed line shows where it begins. A red mark at the top is a step "
        "beyond the scale. "
        + ("All pictures have the same scale, " if one_scale else "The pictures of an arm have the same scale, ")
        + "which does not begin at 0."
    )
    left_out = len(runs) - len(shown)
    more = f"{counted(left_out, 'more run')} could not be shown here; they are in the ledger." if left_out else ""
    return section("Step times", paragraph(intro, "note"), *parts, paragraph(more, "note"), name="steps")


def _alike(middles: Sequence[float]) -> bool:
    return min(middles) > 0 and max(middles) / min(middles) <= rates.MOST_APART


def _name(run: ExaminedRun) -> str:
    again = f", attempt {run.attempt + 1}" if run.attempt else ""
    return (
        f"{letter(run.arm)}, block {run.block + 1}{again}"
        if run.block is not None
        else f"{letter(run.arm)}, {run.run_id}"
    )


def _small(run: ExaminedRun, drawn: Markup, unit: FigureUnit, turn: int) -> Markup:
    number = f"block {run.block + 1}" if run.block is not None else f"run {turn}"
    again = f" (attempt {run.attempt + 1})" if run.attempt else ""
    rate = unit.say(run.rate_per_s) if run.rate_per_s else "no rate"
    after = element("span", text(f" · {run.steady or run.status}{'' if run.counted else ', not counted'}"))
    return element("figure", drawn, element("figcaption", text(f"{number}{again} · {rate}"), after))


def set_up(sections: Sections) -> Markup:
    examined = sections.examined
    arms = [arm for arm in examined.arms if arm.setup]
    if not arms:
        return NOTHING
    parts = setup_parts(arms)
    rows = [_part_row(number, name, arms) for number, name in enumerate(parts)]
    totals = [numeric(say_seconds(setup_total_s(arm))) for arm in arms]
    rows.append(Row([plain("in all"), *totals], class_="total"))
    head = [("Part", False), *((f"{letter(arm.index)}  {arm.label}", True) for arm in arms)]
    caption = "Median over an arm's runs, from the launch to the last thing that is done once. None of it is part of the rate."
    drawn = figure(setup.setup(arms), setup.setup(arms, setup.NARROW), caption)
    lead = paragraph(sections.setup_difference)
    return section("Set-up by part", lead, drawn, table(head, rows), name="set-up")


def _part_row(number: int, name: str, arms: Sequence[ExaminedArm]) -> Row:
    swatch = element("span", text(str(number + 1)), class_=f"swatch s{number % setup.COLOURS}")
    base = dict(arms[0].setup).get(name)
    cells = []
    for arm in arms:
        seconds = dict(arm.setup).get(name)
        more = seconds - base if seconds is not None and base is not None else 0.0
        cells.append(
            numeric(say_seconds(seconds) if seconds is not None else "–", f"+{say_seconds(more)}" if more >= 1 else "")
        )
    return Row([Cell(join([swatch, text(name)])), *cells])


SECTIONS = (
    the_figures, the_ratio, the_arms, problems, the_limits, the_quality, the_latencies, every_run, step_times, set_up,
)  # fmt: skip
