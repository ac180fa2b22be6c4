"""`stackmark plot`."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import click

from stackmark.cli.options import ledger_option, not_empty, read_margin
from stackmark.cli.saying import notice
from stackmark.errors import SpecError
from stackmark.units import counted


def _of_suite(kind: Literal["bars", "heatmap", "load"], experiments: Sequence[str], output: Path, margin: float | None,
              ledger: str | None) -> None:  # fmt: skip
    """Draw the table of a suite."""
    from stackmark.api.suites import load_suite

    if len(experiments) > 1:
        raise SpecError(
            f"--kind {kind} draws one suite, got {len(experiments)}", hint="draw each into a file of its own"
        )
    found = load_suite(experiments[0], ledger, margin)
    found.plot(output, kind)
    notice(f"picture of {found.id} written to {output}")


def _whatever(experiments: Sequence[str], output: Path, margin: float | None, ledger: str | None) -> None:
    """Draw an experiment as its kind is drawn: a suite as a heat map, any other as a forest plot."""
    from stackmark.api.stored import SUITE, load
    from stackmark.api.suites import load_suite

    if len(experiments) == 1 and load(experiments[0], ledger).kind() is SUITE:
        found = load_suite(experiments[0], ledger, margin)
        found.plot(output)
        notice(f"picture of {found.id} written to {output}")
    else:
        _forest(experiments, output, margin, ledger)


def _forest(experiments: Sequence[str], output: Path, margin: float | None, ledger: str | None) -> None:
    """Draw the ratio with its intervals against the margin, and the rate of every run."""
    from stackmark.api.ledgers import Ledger
    from stackmark.api.stored import FAULT, load
    from stackmark.show.plot import plot_png, plot_svg
    from stackmark.show.writing import write_picture

    _require_one("forest", experiments)
    with Ledger.open(ledger, create=False) as book:
        stored = load(experiments[0], book)
        if stored.kind() is FAULT:
            from stackmark.cli.cluster_fault import draw

            draw(stored.fault(), output)
            return
        examined = stored.verdict(margin).examined
    write_picture(output, lambda: plot_svg(examined), lambda: plot_png(examined))
    notice(f"picture of {examined.experiment_id} written to {output}")


def _require_one(kind: str, experiments: Sequence[str]) -> None:
    if len(experiments) > 1:
        raise SpecError(
            f"--kind {kind} draws one experiment, got {len(experiments)}",
            hint="draw each into a file of its own, or several with --kind published",
        )


def _quality(experiments: Sequence[str], output: Path, margin: float | None, ledger: str | None) -> None:
    """Draw the quality of every run against time."""
    from stackmark.api.stored import load
    from stackmark.show.plot import png_of, quality_svg
    from stackmark.show.writing import write_picture

    _require_one("quality", experiments)
    examined = load(experiments[0], ledger).verdict(margin).examined
    if not any(run.evaluations for arm in examined.quality if arm for run in arm.runs):
        raise SpecError(
            f"--kind quality draws training to a target, but {examined.experiment_id} has no evaluation",
            hint="leave --kind out, or draw an experiment of a workload that is trained to a quality",
        )
    write_picture(output, lambda: quality_svg(examined), lambda: png_of(quality_svg(examined)))
    notice(f"picture of {examined.experiment_id} written to {output}")


def _latency(experiments: Sequence[str], output: Path, margin: float | None, ledger: str | None) -> None:
    """Draw the latencies of each arm by percentile."""
    from stackmark.api.stored import load
    from stackmark.show.plot import latency_svg, png_of
    from stackmark.show.writing import write_picture

    _require_one("latency", experiments)
    examined = load(experiments[0], ledger).verdict(margin).examined
    if not examined.latencies:
        raise SpecError(
            f"--kind latency draws latencies of queries, but no run of {examined.experiment_id} has any",
            hint="leave --kind out, or draw an experiment of serve/; its scenario offline has one query a run",
        )
    write_picture(output, lambda: latency_svg(examined), lambda: png_of(latency_svg(examined)))
    notice(f"picture of {examined.experiment_id} written to {output}")


def _published(experiments: Sequence[str], output: Path, margin: float | None, ledger: str | None) -> None:
    """Draw each benchmark next to the nearest published number."""
    from stackmark.api.published_charts import published_chart

    if margin is not None:
        raise SpecError("--margin does not apply to --kind published, whose margin is 5 %", hint="leave it out")
    chart = published_chart(experiments, ledger)
    chart.plot(output)
    for one in chart.missing:
        notice(f"no published number for {one}: it is not in the picture")
    all_of_them = counted(len(chart.pairs), "benchmark")
    of = f"{chart.drawn} of {all_of_them}" if chart.drawn < len(chart.pairs) else all_of_them
    notice(f"picture of {of} written to {output}")


# What --kind draws. Each function is given the experiments, the file, the margin and the ledger.
KINDS: dict[str, Callable[[Sequence[str], Path, float | None, str | None], None]] = {
    "forest": _forest,
    "published": _published,
    "quality": _quality,
    "latency": _latency,
    "heatmap": partial(_of_suite, "heatmap"),
    "bars": partial(_of_suite, "bars"),
    "load": partial(_of_suite, "load"),
}


@click.command(
    "plot",
    epilog="""\b
Examples:
  stackmark plot last -o verdict.svg
  stackmark plot x-01k9 -o verdict.png --margin 2%
  stackmark plot last x-01k9 --kind published -o study.png
  stackmark plot last --kind heatmap -o suite.svg
  stackmark plot last --kind quality -o curves.svg
  stackmark plot last --kind latency -o latency.svg
""",
)
@click.argument("experiments", metavar="EXPERIMENT…", nargs=-1, required=True, callback=not_empty)
@click.option(
    "--kind",
    type=click.Choice(list(KINDS)),
    help="What to draw: forest (the ratio and every run), published (next to published numbers), quality (training to a target), "
    "latency (of queries, by percentile), heatmap (ratios of a suite), bars (rates of a suite), "
    "load (latency of a server against its load). [default: of a suite load, heatmap or bars, else forest]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    required=True,
    callback=not_empty,
    help="The file, which ends in .svg or .png.",
)
@click.option("--margin", metavar="SHARE", help="What counts as a difference. [default: as it was asked, or 1%]")
@ledger_option
def command(
    experiments: tuple[str, ...], kind: str | None, output: Path, margin: str | None, ledger: str | None
) -> int:
    """Draw a stored EXPERIMENT: the ratio with its intervals against the margin, and the rate of every run.

    EXPERIMENT is an id, any unique beginning of one, or `last`; --kind published takes several. Everything is computed from
    the ledger; nothing is run.
    """
    from stackmark.show.writing import check_picture

    check_picture(output, "verdict.svg")
    (KINDS[kind] if kind else _whatever)(
        experiments, output, read_margin(margin) if margin is not None else None, ledger
    )
    return 0
