"""How a rate grows with the number of ranks, in a terminal: the bars, the table, and the lines under them.

A bar is what perfect scaling would give. Its full part is the speed-up that was measured; what is missing is divided into what
the exchange took, what waiting for the slowest rank took, and the rest.
"""

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from stackmark.figures import figure_unit
from stackmark.show.safe import safe_line, short_id
from stackmark.show.terminal import Column, Line, print_table
from stackmark.show.wording import signed
from stackmark.units import say_percents, say_seconds, say_size
from stackmark.verdict.examined import Examined
from stackmark.verdict.scaling import PublishedScaling, Scaling, ScalingPoint

LEAST_WIDTH, MOST_WIDTH = 20, 64
# Full, communication, stragglers, other: distinguished without colour.
SIGNS, ASCII_SIGNS = "█▒░·", "#x:."
WORDS = ("speed-up", "communication", "stragglers", "other")
COLUMNS = (
    Column("ranks", right=True, style="cyan"),
    Column("rate", right=True, drop=4),
    Column("speed-up", right=True),
    Column("efficiency", right=True),
    Column("95 %"),
    Column("communication", right=True, drop=3),
    Column("stragglers", right=True, drop=2),
    Column("other", right=True, drop=1),
    Column("verdict"),
)
LOSSES = ("communication", "stragglers", "other")


def refusals(scaling: Scaling) -> list[str]:
    """Say why there is no efficiency, for the head of the answer."""
    return [f"NO EFFICIENCY: {said}" for said in scaling.refused]


def print_scaling_bars(scaling: Scaling, console: Console) -> None:
    """Print a bar for each number of ranks, and under them what its parts are."""
    for said in scaling_bars(scaling, console.width, ascii_only=console.options.ascii_only):
        console.print(Text(said), no_wrap=True, crop=True)


def scaling_bars(scaling: Scaling, width: int, *, ascii_only: bool = False) -> list[str]:
    """Return the bars as lines; nothing where there is no room, or nothing to draw."""
    drawn = [point for point in scaling.points if point.speedup]
    if not scaling.is_drawable:
        return []
    names = [safe_line(point.label) for point in drawn]
    ends = [f"{point.speedup:.2f} of {point.ranks}" for point in drawn]
    room = max(map(cell_len, names))
    plot = min(MOST_WIDTH, width - room - max(map(cell_len, ends)) - 4)
    if plot < LEAST_WIDTH:
        return []
    signs = ASCII_SIGNS if ascii_only else SIGNS
    most = max(max(point.ranks, point.speedup or 0.0) for point in drawn)
    lines = []
    used: dict[int, None] = {}
    for name, end, point in zip(names, ends, drawn, strict=True):
        bar = ""
        for index, until in enumerate(parts_of(point)):
            cells = round(plot * until / most) - len(bar)
            if cells > 0:
                bar += signs[index] * cells
                used[index] = None
        lines.append(f"{name:<{room}}  {bar:<{plot}}  {end}".rstrip())
    key = "  ".join(f"{signs[index]} {WORDS[index]}" for index in sorted(used))
    return [*lines, f"{'':<{room}}  {key}"]


def parts_of(point: ScalingPoint) -> list[float]:
    """Return where each part of a bar ends, as speed-ups: measured, communication, stragglers, other (the ideal)."""
    speedup = point.speedup or 0.0
    lost = max(point.ranks - speedup, 0.0)
    if point.losses is None:
        return [speedup, speedup, speedup, speedup + lost]
    # What the ranks say of their steps may exceed what was lost: the bar ends at the ideal.
    communication = min(max(point.losses.communication, 0.0) * point.ranks, lost)
    stragglers = min(max(point.losses.stragglers, 0.0) * point.ranks, lost - communication)
    first = speedup + communication
    return [speedup, first, first + stragglers, speedup + lost]


def print_scaling_table(examined: Examined, console: Console, styles: dict[str, str]) -> None:
    """Print a row for each number of ranks."""
    assert examined.scaling
    words = {pair.b: pair.word for pair in examined.comparisons}
    unit = next((arm.unit for arm in examined.arms if arm.throughput), "")
    with_losses = any(point.losses for point in examined.scaling.points)
    kept = [index for index, column in enumerate(COLUMNS) if with_losses or column.name not in LOSSES]
    rows = [
        [_cells(point, unit, words.get(point.label, ""))[index] for index in kept] for point in examined.scaling.points
    ]
    columns = [COLUMNS[index] for index in kept]
    colours = [styles.get(words.get(point.label, ""), "") for point in examined.scaling.points]
    print_table(console, columns, rows, colours, note=False)


def _cells(point: ScalingPoint, unit: str, word: str) -> list[str]:
    figure = figure_unit(unit)
    rate = figure.scaled(point.rate_per_s).say(point.rate_per_s) if point.rate_per_s else "no run counts"
    if point.efficiency is None:
        return [str(point.ranks), rate, "", "", "", "", "", "", "no efficiency" if point.refused else ""]
    bounds = say_percents(point.low, point.high) if point.low and point.high else ""
    lost = point.losses
    shares = [lost.communication, lost.stragglers, lost.other] if lost else []
    said = [say_loss(share) for share in shares] or ["", "", ""]
    efficiency = f"{100 * point.efficiency:.1f} %" if point.ranks > 1 else ""
    return [str(point.ranks), rate, f"{point.speedup:.2f}", efficiency, bounds, *said, word]


def scaling_lines(scaling: Scaling, *, all_of_them: bool = True) -> list[Line]:
    """Return what stands under the table: what was held, which device, what was expected, what others published.

    Unless all are wanted, only the largest group's expectation and published number.
    """
    held = "the batch of each rank is fixed" if scaling.mode == "weak" else "the batch of all ranks together is fixed"
    batches = [str(point.batch) for point in scaling.points if point.batch]
    each = f": {', '.join(dict.fromkeys(batches))} a rank" if batches else ""
    lines: list[Line] = [("scaling", f"{scaling.mode}: {held}{each}")]
    if scaling.devices:
        lines.append(("devices", scaling.devices))
    known = [point for point in scaling.points if point.expected]
    lines += [("expected", say_expected(point)) for point in (known if all_of_them else ())]
    lines += [("expected", say_expected_briefly(point)) for point in (() if all_of_them else known[-1:])]
    if missing := [point.missing for point in scaling.points if point.missing]:
        more = f" ({len(missing) - 1} more)" if len(missing) > 1 else ""
        lines.append(("expected", f"needs the all-reduce rate of this machine: {missing[-1]}{more}"))
    if all_of_them:
        return [*lines, *(("published", say_published(one)) for one in scaling.published)]
    return [*lines, *(("published", say_published_briefly(one)) for one in scaling.published[-1:])]


def point_lines(scaling: Scaling) -> list[Line]:
    """Return a line for each number of ranks, for a pipe."""
    return [("ranks", f"{point.label}: {say_point(point)}") for point in scaling.points if point.ranks > 1]


def say_point(point: ScalingPoint) -> str:
    if point.efficiency is None or point.speedup is None:
        return point.refused or "no efficiency"
    bounds = f", 95 % interval {say_percents(point.low, point.high)}" if point.low and point.high else ""
    said = f"speed-up {point.speedup:.2f} of {point.ranks}, efficiency {100 * point.efficiency:.1f} %{bounds}"
    if lost := point.losses:
        shares = f"{say_loss(lost.communication)} communication, {say_loss(lost.stragglers)} stragglers"
        said += f"; lost: {shares}, {say_loss(lost.other)} other"
    return said


def say_loss(share: float) -> str:
    """`3.1 %`, with a real minus and none for nothing."""
    return f"{signed(100 * share, 1).removeprefix('+')} %"


def say_expected(point: ScalingPoint) -> str:
    """Say what the exchange should take, and which efficiencies follow."""
    found = point.expected
    assert found
    low, high = 100 * found.efficiency_low, 100 * found.efficiency_high
    return (
        f"{point.label}: {low:.1f} % if the exchange follows the compute, {high:.1f} % if compute hides it: "
        f"{say_size(found.exchanged_bytes)} at {found.bus_gb_per_s:.3g} GB/s take {say_seconds(found.exchange_s)} "
        f"({short_id(found.run_id)})"
    )


def say_expected_briefly(point: ScalingPoint) -> str:
    found = point.expected
    assert found
    low, high = 100 * found.efficiency_low, 100 * found.efficiency_high
    rate = f"{say_size(found.exchanged_bytes)} a step at {found.bus_gb_per_s:.3g} GB/s"
    return f"{point.label}: {low:.1f} to {high:.1f} %, from {rate}"


def say_published_briefly(one: PublishedScaling) -> str:
    return f"{100 * one.efficiency:.1f} %: {one.one:,.5g} to {one.several:,.5g} {one.unit}, {one.what}"


def say_published(one: PublishedScaling) -> str:
    """`99.0 %: 219 to 1,734 images/s; resnet50, 8 × NVIDIA P100 …`."""
    rates = f"{one.one:,.5g} to {one.several:,.5g} {one.unit}"
    source = f"{one.source}, {one.date}"
    return f"{100 * one.efficiency:.1f} %: {rates}; {one.what}, {one.framework}, {one.data} data ({source})"
