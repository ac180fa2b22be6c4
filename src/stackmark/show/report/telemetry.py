"""The section about what the machine did while it ran: power, temperature, clocks, use, memory, CPUs, pressure."""

from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.show.report.charts import telemetry as charts
from stackmark.show.report.markup import NOTHING, Markup, element, join, text
from stackmark.show.report.tables import Row, badge, bullets, numeric, paragraph, plain, section, table
from stackmark.show.sections import Sections
from stackmark.show.telemetry import OF_GPU, OF_HOST, say_value
from stackmark.show.wording import letter
from stackmark.units import counted, say_percent
from stackmark.verdict.covariates import counted_runs
from stackmark.verdict.examined import Examined, ExaminedArm
from stackmark.verdict.telemetry import Telemetry, say_waited

# Quantities that are drawn: of the GPU under test, and of the host. The table has the others.
DRAWN_OF_GPU = ("use", "power_w", "temperature_c", "clock_sm_mhz", "memory_mib")
DRAWN_OF_HOST = ("run.cpus", "cpu.others", "pressure.cpu", "memory.used_mib")
# A page with a picture of each quantity of each arm would be megabytes.
MOST_ARMS = 9


def while_it_ran(sections: Sections) -> Markup:
    examined = sections.examined
    runs = [_sampled(examined, arm) for arm in examined.arms]
    if not any(runs):
        return NOTHING
    every = [one for mine in runs for one in mine]
    lead = (
        f"Sampled {max(one.hz for one in every):g} times a second by a process of its own, which used "
        f"{say_percent(max(one.cost_share for one in every), 1)} of one CPU at the most. Each line is a run; the shaded part is "
        "what was measured. A sample is a look at one moment: what changes between two looks is not seen."
    )
    shown = [arm for arm, mine in zip(examined.arms, runs, strict=True) if mine][:MOST_ARMS]
    pictures = [_pictures(name, words, examined, shown, runs) for name, words in _drawn(every)]
    problems = sorted({problem for one in every for problem in one.problems})
    said = waits(examined)
    more = len(examined.arms) - len(shown)
    return section(
        "What the machine did while it ran",
        paragraph(lead, "note"),
        bullets(said) if said else NOTHING,
        *pictures,
        paragraph(f"{counted(more, 'more arm')} not drawn.", "note") if more and len(shown) == MOST_ARMS else NOTHING,
        _table(examined),
        paragraph("; ".join(problems), "note") if problems else NOTHING,
        name="telemetry",
    )


def _sampled(examined: Examined, arm: ExaminedArm) -> list[Telemetry]:
    return [run.telemetry for run in counted_runs(examined.runs, arm.index) if run.telemetry]


def _drawn(every: Sequence[Telemetry]) -> list[tuple[str, str]]:
    """Names and words of what is drawn: of the GPU under test under the name `gpu.`, whichever it was in each run."""
    of_gpu = [(f"gpu.{name}", f"GPU: {dict(OF_GPU)[name]}") for name in DRAWN_OF_GPU]
    of_host = [(name, dict(OF_HOST)[name]) for name in DRAWN_OF_HOST]
    return [
        (name, words) for name, words in (*of_gpu, *of_host) if any(_name(name, one) in one.series for one in every)
    ]


def _name(name: str, one: Telemetry) -> str:
    return f"{one.gpu}.{name.removeprefix('gpu.')}" if name.startswith("gpu.") else name


def _pictures(
    name: str, words: str, examined: Examined, shown: Sequence[ExaminedArm], runs: Sequence[Sequence[Telemetry]]
) -> Markup:
    """One quantity, the arms side by side."""
    drawn = {
        arm.index: [found for one in runs[arm.index] for found in charts.sampled(_name(name, one), [one])]
        for arm in shown
    }
    drawn = {index: mine[: charts.MOST_RUNS] for index, mine in drawn.items() if mine}
    if not drawn:
        return NOTHING
    x, y = charts.time_scale([*drawn.values()]), charts.value_scale(name, [*drawn.values()])
    figures = [
        element(
            "figure",
            charts.over_time(name, mine, index, x, y, f"{words}, {letter(index)}"),
            element("figcaption", badge(arm)),
        )
        for arm in shown
        if (index := arm.index) in drawn and (mine := drawn[index])
    ]
    return element("div", element("h3", text(words)), element("div", *figures, class_="small-ones"))


@dataclass(frozen=True)
class SampledRow:
    """A quantity over the measured parts: of each arm its mean, and from the lowest to the highest sample; None without one."""

    name: str
    words: str
    cells: tuple[tuple[str, str] | None, ...]


def sampled_rows(examined: Examined) -> list[SampledRow]:
    """Return what was sampled of the GPU under test and of the host, in the order in which it is shown."""
    runs = [_sampled(examined, arm) for arm in examined.arms]
    wanted = [*((f"gpu.{name}", f"GPU: {words}") for name, words in OF_GPU), *OF_HOST]
    rows = [SampledRow(name, words, tuple(_mean_and_reach(name, mine) for mine in runs)) for name, words in wanted]
    return [row for row in rows if any(row.cells)]


def _mean_and_reach(name: str, runs: Sequence[Telemetry]) -> tuple[str, str] | None:
    spans = [span for one in runs if (span := one.spans.get(_name(name, one)))]
    if not spans:
        return None
    mean = sum(span.mean for span in spans) / len(spans)
    low, high = min(span.minimum for span in spans), max(span.maximum for span in spans)
    return say_value(name, mean), f"{say_value(name, low)} to {say_value(name, high)}"


def waits(examined: Examined) -> list[str]:
    """Say of each arm how long its GPU waited, where one was sampled."""
    told = ((letter(arm.index), say_waited(_sampled(examined, arm), None)) for arm in examined.arms)
    return [f"{name}: {said}" for name, said in told if said]


def _table(examined: Examined) -> Markup:
    """The mean of each quantity over the measured parts of an arm's runs, with the lowest and the highest sample."""
    rows = [
        Row([plain(row.words), *(numeric(*cell) if cell else numeric("–") for cell in row.cells)])
        for row in sampled_rows(examined)
    ]
    head = [("Mean over the measured part", False)]
    head += [(f"{letter(arm.index)}  {arm.label}", True) for arm in examined.arms]
    summary = element("summary", text("All that was sampled"))
    return element("details", summary, join([table(head, rows)])) if rows else NOTHING
