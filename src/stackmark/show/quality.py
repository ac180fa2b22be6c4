"""Training to a quality in words: whether the target was reached, after how long, the curves, and MLPerf's score."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from stackmark.show.safe import safe_line, short_id
from stackmark.show.terminal import Line
from stackmark.units import counted, say_percent, say_seconds
from stackmark.verdict.time_to_quality import Evaluation, QualityResult, Share, TrainedRun

# Runs whose times stand on one screen, and evaluations of a curve in text.
RUNS_SHOWN, POINTS_SHOWN = 20, 12
# Evaluations of one run, a line each.
LINES_SHOWN = 200


def quality_lines(result: QualityResult, hint: str = "") -> list[Line]:
    """Return what ends a `run`: the target, every run's time, the score. `hint` is what to do where a run missed its target."""
    return [("target", say_target(result, hint)), ("runs", say_times(result.runs)), ("score", say_score(result))]


def detailed_lines(result: QualityResult, hint: str = "") -> list[Line]:
    """Return also what the times say together, and every curve."""
    lines = quality_lines(result, hint)
    if said := say_model(result):
        lines.append(("model", said))
    lines.append(("seeds", say_seeds(result)))
    return [*lines, *(("curve", f"{short_id(run.run_id)}: {say_curve(run)}") for run in result.runs)]


def say_target(result: QualityResult, hint: str = "") -> str:
    """`BLEU 95 reached in 5 of 5 runs (at least 48 %, 95 %), after 3 to 4 epochs`."""
    share = result.reached
    parts = [f"{say_qualities(result.target, result.units)} reached in {share.count} of {counted(share.of, 'run')}"]
    parts[0] += f" ({say_share(share)})"
    if after := [run.epochs for run in result.runs if run.reached]:
        parts.append(f"after {_range(after)}")
    if missed := [run.epochs for run in result.runs if not run.reached]:
        parts.append(f"{len(missed)} ended without it after {_range(missed)}")
    return ", ".join(parts) + (f"\n{hint.splitlines()[0]}" if hint and missed else "")


def say_share(share: Share) -> str:
    """`at least 48 %, 95 %`: the interval of a share, of which one end may be that of all shares."""
    low, high = f"{100 * share.low:.0f}", f"{100 * share.high:.0f}"
    if share.count == share.of:
        return f"at least {low} %, 95 %"
    return f"at most {high} %, 95 %" if share.count == 0 else f"{low} to {high} %, 95 %"


def _range(epochs: Sequence[float]) -> str:
    low, high = min(epochs), max(epochs)
    return f"{low:.4g} {'epoch' if low == 1 else 'epochs'}" if low == high else f"{low:.4g} to {high:.4g} epochs"


def say_qualities(values: Mapping[str, float], units: Mapping[str, str]) -> str:
    """`box mAP 0.5 and mask mAP 0.4`."""
    return " and ".join(f"{safe_line(name)} {value:.4g}{_unit(units.get(name, ''))}" for name, value in values.items())


def _unit(unit: str) -> str:
    return f" {unit}" if unit else ""


def say_times(runs: Sequence[TrainedRun]) -> str:
    """`60.1 s (3 epochs), 80.3 s (4), >100 s (5)`: each run's time, or how long it was trained without its target."""
    said = [
        f"{'' if run.reached else '>'}{say_seconds(run.time_s)} ({_range([run.epochs]) if first else f'{run.epochs:.4g}'})"
        for first, run in zip([True, *[False] * len(runs)], runs[:RUNS_SHOWN], strict=False)
    ]
    more = len(runs) - RUNS_SHOWN
    return ", ".join(said) + (f", and {more} more" if more > 0 else "")


def say_score(result: QualityResult) -> str:
    score = result.score
    if score.minutes is None:
        return f"none by MLPerf's rule: {score.why}"
    took = say_seconds(60 * score.minutes) if score.minutes < 1 else f"{score.minutes:.4g} min"
    return f"{took} by MLPerf's rule" if score.official else f"{took} by MLPerf's rule, unofficial: {score.why}"


def say_model(result: QualityResult) -> str:
    """Say the median time by the model, whose times lie between evaluations; nothing where too few runs reached the target."""
    median = result.median
    if median is None:
        return ""
    low = say_seconds(median.low_s) if median.low_s is not None else "unknown"
    high = say_seconds(median.high_s) if median.high_s is not None else "unknown"
    spread = f", runs spread by {say_percent(median.spread, figures=2)}" if median.spread is not None else ""
    crossing = f"; interpolated: {say_seconds(result.crossing_s)}" if result.crossing_s is not None else ""
    return (
        f"median {say_seconds(median.seconds)}, 95 % interval {low} to {high}{spread}; log-normal, each time between two "
        f"evaluations{crossing}"
    )


def say_seeds(result: QualityResult) -> str:
    found = result.seeds
    if found is None:
        known = sorted({run.seed for run in result.runs if run.seed is not None})
        which = f"{', '.join(map(str, known[:RUNS_SHOWN]))}; " if known else ""
        return f"{which}the seed's share of the variance is not known: {result.no_seeds}"
    sure = ""
    if found.low is not None and found.high is not None:
        sure = f" (95 % interval {100 * found.low:.0f} to {100 * found.high:.0f} %)"
    of = f"{found.seeds} seeds, {counted(found.runs, 'run')}"
    return f"{100 * found.share:.0f} % of the variance of ln time is the seed's{sure}: {of}"


def say_curve(run: TrainedRun) -> str:
    """`10.1 s BLEU 17.3, 20.2 s BLEU 34.5 …`: the evaluations, some left out of many."""
    if not run.evaluations:
        return "no evaluation"
    return ", ".join(f"{say_seconds(one.clock_s)} {say_qualities(one.quality, {})}" for one in chosen(run.evaluations))


def chosen(evaluations: Sequence[Evaluation], most: int = POINTS_SHOWN) -> list[Evaluation]:
    """Return at most this many evaluations, evenly spread, with the first and the last."""
    last = len(evaluations) - 1
    if last < most:
        return list(evaluations)
    return [evaluations[round(number * last / (most - 1))] for number in range(most)]


def evaluation_lines(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return a line for each evaluation of one run; of very many, some are left out."""
    shown = chosen(evaluations, LINES_SHOWN)
    said = [
        f"epoch {one.epoch:.4g}, {counted(one.samples, 'sample')}, {say_seconds(one.clock_s)}: {say_qualities(one.quality, {})}"
        + (": target reached" if one.reached else "")
        for one in shown
    ]
    left_out = len(evaluations) - len(shown)
    return [*said, *([f"{counted(left_out, 'evaluation')} in between: --json"] if left_out else [])]


# --- for programs


def quality_json(result: QualityResult) -> dict[str, Any]:
    """Return all of it, each run with its curve and what is known of its time."""
    made = asdict(result)
    for told, run in zip(made["runs"], result.runs, strict=True):
        told |= {
            "reached": run.reached,
            "time_s": run.time_s,
            "after_s": run.span.low_s,
            "until_s": run.span.high_s,
            "crossing_s": run.crossing_s,
            "epochs": run.epochs,
        }
    return made
