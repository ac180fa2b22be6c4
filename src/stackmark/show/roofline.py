"""Runs against the limits of their machine, for a terminal and for programs; the picture is in roofline_plot.py."""

from collections.abc import Callable, Sequence

from pydantic import JsonValue
from rich.console import Console

from stackmark.show.safe import safe_line
from stackmark.show.terminal import NAME_WIDTH, Column, Line, is_screen, print_lines, print_table
from stackmark.units import say_count, say_moment
from stackmark.verdict.ceilings import Ceilings
from stackmark.verdict.roofline import (
    Point,
    Roofline,
    Standing,
    Work,
    doubts,
    say_bound,
    say_operations,
    say_share,
    say_standing,
)
from stackmark.workloads.op.definition import say_problem

# Said once under a table or a picture: what the bytes are, and what they are not.
LEAST = (
    "at the least: every matrix operator reads its operands and writes its result once, all else is fused into them for nothing, "
    "and nothing stays in a cache"
)
CALLED = (
    "as called: every operator of the framework reads its inputs and writes its outputs once; a compiler moves less"
)
COLUMNS = (
    Column("what"),
    Column("FLOP/s", right=True),
    Column("FLOP/B", right=True, drop=1),
    Column("of matrix rate", right=True),
    Column("of copy", right=True),
    Column("of the roof", right=True, drop=2),
    Column("nearer limit"),
)


def print_roofline(found: Roofline, console: Console) -> None:
    names = labels(found.points)
    title = f"roofline of {found.ceilings.chip or found.ceilings.device}"
    if is_screen(console):
        print_lines(console, title, _head(found), {})
    else:
        for line in [safe_line(title), *(f"{name:<{NAME_WIDTH}}{safe_line(said)}" for name, said in _head(found))]:
            print(line, file=console.file)
    rows = [_cells(name, found.standing(point)) for name, point in zip(names, found.points, strict=True)]
    print_table(console, COLUMNS, rows)
    print_lines_below(found, console)


def print_lines_below(found: Roofline, console: Console) -> None:
    said = list(dict.fromkeys(doubt.what for point in found.points for doubt in doubts(found.standing(point))))
    for sentence in (f"bytes {LEAST}", f"bytes {CALLED}", *said, *found.left_out):
        print(sentence, file=console.file)


def say_limits(work: Work | None, sentences: Sequence[str]) -> str:
    """The line of one run; empty where nobody counted its operations."""
    if work is None:
        return ""
    return "\n".join(
        [f"{say_count(work.rate_per_s * work.operations)}FLOP/s of the model's own operations", *sentences]
    )


def _head(found: Roofline) -> list[Line]:
    lines: list[Line] = [("ceilings", say_ceilings_from(found.ceilings))]
    lines += [("matrix", say_rate_of(found.ceilings, precision)) for precision in found.ceilings.matrix]
    if found.ceilings.copy_bytes_per_s:
        lines.append(("copy", f"{say_count(found.ceilings.copy_bytes_per_s)}B/s"))
    return lines


def say_ceilings_from(ceilings: Ceilings) -> str:
    when = say_moment(ceilings.measured_unix_s, "%Y-%m-%d", utc=True)
    threads = f", {ceilings.threads} thread{'' if ceilings.threads == 1 else 's'}" if ceilings.threads else ""
    return f"measured on {when}{threads}" + (f" ({ceilings.run_id})" if ceilings.run_id else "")


def say_rate_of(ceilings: Ceilings, precision: str) -> str:
    rate = ceilings.matrix[precision]
    sustained, cold = (say_operations(per_s, precision) for per_s in (rate.sustained_per_s, rate.cold_per_s))
    return f"{precision} {sustained} sustained, {cold} cold"


def _cells(name: str, standing: Standing) -> list[str]:
    least, called, matrix, roof = (
        standing.least_share,
        standing.called_share,
        standing.matrix_share,
        standing.roof_share,
    )
    return [
        name,
        say_operations(standing.operations_per_s, standing.work.precision),
        _span(standing.intensity_called, standing.intensity_least, _figures),
        say_share(matrix) if matrix is not None else "–",
        _span(least, called, say_share),
        say_share(roof) if roof is not None else "–",
        say_bound(standing) or "not known",
    ]


def _span(low: float | None, high: float | None, say: Callable[[float], str]) -> str:
    known = [say(value) for value in (low, high) if value is not None]
    if len(known) == 2 and known[0] != known[1]:
        return f"{known[0].removesuffix(' %')} to {known[1]}"
    return known[0] if known else "–"


def _figures(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def labels(points: Sequence[Point]) -> list[str]:
    """Each point's name, with the settings in which they differ, so that no two are alike where that can be had."""
    several = len({point.workload for point in points}) > 1
    keys = dict.fromkeys(key for point in points for key in point.details)
    telling = [key for key in keys if len({point.details.get(key) for point in points}) > 1]
    # A setting that only follows the workload says nothing more than its name.
    telling = [key for key in telling if not _follows(points, key)]
    named = []
    for point in points:
        settings = [_setting(key, point.details[key]) for key in telling if key in point.details]
        if point.op:
            operator = f"{point.op} " if several else ""
            named.append(" ".join([f"{operator}{say_problem(point.op, point.shape)}", *settings]))
        else:
            named.append(", ".join([point.workload, *settings]))
    twice = {name for name in named if named.count(name) > 1}
    return [f"{name}, {point.run_id}" if name in twice else name for name, point in zip(named, points, strict=True)]


def _follows(points: Sequence[Point], key: str) -> bool:
    values: dict[str, set[str | None]] = {}
    for point in points:
        values.setdefault(f"{point.workload}{sorted(point.shape.items(), key=str)}", set()).add(point.details.get(key))
    return len(values) > 1 and key != "precision" and all(len(found) == 1 for found in values.values())


def _setting(key: str, value: str) -> str:
    return value if key in ("precision", "arm", "device", "mode", "optimizer") else f"{key} {value}"


# For programs


def roofline_json(found: Roofline) -> dict[str, JsonValue]:
    ceilings = found.ceilings
    return {
        "chip": ceilings.chip,
        "device": ceilings.device,
        "ceilings": {
            "run": ceilings.run_id,
            "measured_unix_s": ceilings.measured_unix_s,
            "matrix": {
                precision: {"sustained_per_s": rate.sustained_per_s, "cold_per_s": rate.cold_per_s}
                for precision, rate in ceilings.matrix.items()
            },
            "copy_bytes_per_s": ceilings.copy_bytes_per_s,
        },
        "points": [
            {
                "name": name,
                "workload": point.workload,
                "of": point.run_id,
                "shape": dict(point.shape),
                "details": dict(point.details),
                **standing_json(found.standing(point)),
            }
            for name, point in zip(labels(found.points), found.points, strict=True)
        ],
        "left_out": list(found.left_out),
        "bytes": {"least": LEAST, "called": CALLED},
    }


def standing_json(standing: Standing) -> dict[str, JsonValue]:
    work = standing.work
    return {
        "rate_per_s": work.rate_per_s,
        "precision": work.precision,
        "compiled": work.compiled,
        "operations": work.operations,
        "least_bytes": work.least_bytes,
        "called_bytes": work.called_bytes,
        "operations_per_s": standing.operations_per_s,
        "intensity_least": standing.intensity_least,
        "intensity_called": standing.intensity_called,
        "matrix_share": standing.matrix_share,
        "matrix_share_cold": standing.cold_share,
        "copy_share_least": standing.least_share,
        "copy_share_called": standing.called_share,
        "roof_per_s": standing.roof_per_s(standing.intensity),
        "roof_share": standing.roof_share,
        "bound": standing.bound or None,
        "ceilings_out_of_date": list(standing.out_of_date),
        "sentence": say_standing(standing),
        "doubts": [doubt.what for doubt in doubts(standing)],
    }
