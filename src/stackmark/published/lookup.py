"""Look up published rows for a result: the nearest ones, and the one row that a user asked to compare with.

The rows are those that ship and those that the user added to the ledger. A comparison with a published number is one-sample:
our runs have a spread, the printed number has none that anybody knows. So the margin is wide and stated, everything that
differs stands next to it, and where the recipe differs the ratio is called context.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stackmark.errors import SpecError
from stackmark.figures import figure_unit, is_cost, unit_kind
from stackmark.ledger import added
from stackmark.ledger.store import Ledger
from stackmark.published.checks import Finding, too_fast
from stackmark.published.chips import chip_distance, parse_chip
from stackmark.published.file import read_file
from stackmark.published.near import Match, nearest
from stackmark.published.operators import OperatorIndex
from stackmark.published.search import search, understand
from stackmark.published.serving import ServedQuery
from stackmark.published.table import Published, load, load_all
from stackmark.spec import Scalar, Spec
from stackmark.units import say_rate
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import PublishedNeighbour
from stackmark.verdict.unpaired import PUBLISHED_MARGIN, compare_published
from stackmark.workloads.registry import definitions, known

UNCERTAINTY = "published value of unknown uncertainty"
SERVE, SINGLE_STREAM = "serve/", "single-stream"
# This many chips are named where none fits; the rest is counted.
_CHIPS_NAMED = 12


def known_rows(ledger: Ledger | None, *, operators: bool = False) -> tuple[Published, ...]:
    """Return the shipped rows and those the user added. The long table of operators only on request."""
    return (load_all() if operators else load()) + (added.rows(ledger) if ledger is not None else ())


def known_operators(ledger: Ledger | None) -> OperatorIndex:
    """Return all published times of single operators, by problem."""
    return OperatorIndex(known_rows(ledger, operators=True))


# --- what is near -------------------------------------------------------------------------------------------------------


def published_name(workload: str, params: Mapping[str, Scalar]) -> str:
    """Return the table's name of what was measured: a forward pass is not training."""
    if params.get("mode") in ("forward", "eval"):
        return f"infer/{workload.partition('/')[2]}"
    return workload


def near(
    spec: Spec,
    unit: str,
    chip: str | None,
    framework: str | None,
    rows: Sequence[Published] | None = None,
    limit: int = 3,
) -> list[Match]:
    """Return the published rows nearest to a spec as it ran.

    None for the preset tiny: it is not MLPerf's task, so minutes next to its seconds would mislead who did not ask for them.
    """
    if spec.params.get("preset") == "tiny":
        return []
    return _near(spec, unit, chip, framework, load() if rows is None else rows, limit)


def _near(
    spec: Spec, unit: str, chip: str | None, framework: str | None, rows: Sequence[Published], limit: int
) -> list[Match]:
    return nearest(
        rows,
        workload=published_name(spec.workload, spec.params),
        chip=chip,
        count=spec.ranks,
        precision=str(spec.params.get("precision") or "unknown"),
        batch=_batch(spec),
        unit=unit,
        framework=framework,
        data=str(spec.params.get("data") or ("synthetic" if spec.workload.startswith(SERVE) else "")),
        sequence_length=_sequence_tokens(spec.workload),
        preset=str(spec.params.get("preset") or ""),
        served=_served(spec.workload, spec.params),
        limit=limit,
    )


def _served(workload: str, params: Mapping[str, Scalar]) -> ServedQuery | None:
    """Return what a network that answers queries was asked; None of other workloads, and of endpoints, whose model is theirs."""
    if not workload.startswith(SERVE) or "scenario" not in params:
        return None
    bound, seconds = (params.get(name) for name in ("latency_bound", "seconds"))
    return ServedQuery(
        scenario=str(params["scenario"]),
        seconds=float(seconds) if isinstance(seconds, int | float) else 0.0,
        mlperf=bool(params.get("mlperf")),
        bound_s=float(bound) if isinstance(bound, int | float) else 0.0,
        weights=bool(params.get("weights")),
    )


def _batch(spec: Spec) -> int | None:
    batch = spec.params.get("batch")
    return batch if isinstance(batch, int) and not isinstance(batch, bool) and batch > 0 else None


def _sequence_tokens(workload: str) -> int | None:
    definition = known(workload)
    return (definition.sequence_tokens or None) if definition else None


def neighbours(
    spec: Spec,
    rate: float,
    unit: str,
    chip: str | None,
    framework: str | None,
    rows: Sequence[Published] | None = None,
    limit: int = 3,
    *,
    arm: str = "",
) -> tuple[PublishedNeighbour, ...]:
    """Return the nearest rows for a report, with the ratio of our figure to theirs as context."""
    ours = figure_unit(unit).value(rate)
    return tuple(
        PublishedNeighbour(
            value=match.row.value,
            unit=match.row.unit,
            what=say_row(match.row),
            source=match.row.source,
            date=match.row.date,
            arm=arm,
            ratio=ours / match.row.value,
            differs=match.differs,
            sure=f"{how_sure(match)}; {UNCERTAINTY}" if not spread_of(match.row) else how_sure(match),
        )
        for match in near(spec, unit, chip, framework, rows, limit)
    )


def say_row(row: Published) -> str:
    """Format like `resnet50, 8 × NVIDIA H200, fp16, batch 256`."""
    chips = f"{row.count} × {row.chip}" if row.count != 1 else row.chip
    batch = f", batch {row.batch}" if row.batch else ""
    precision = "precision not stated" if row.precision == "unknown" else row.precision
    return f"{row.model}, {chips}, {precision}{batch}" + (" (added by you)" if row.added else "")


def how_sure(match: Match) -> str:
    """Say in one sentence how comparable the row is to the result."""
    related, chip_far, *_ = match.distance
    if not parse_chip(match.row.chip).named:
        worth = "an unnamed chip: only the order of magnitude can be compared"
    elif chip_far:
        worth = "a different chip: only the order of magnitude can be compared"
    elif related:
        worth = "the same chip, but a related workload"
    elif match.differs:
        worth = f"the same chip and workload; {len(match.differs)} settings differ or are not stated"
    else:
        worth = "the same recipe, as far as stated"
    spread = spread_of(match.row)
    return f"{worth}; {spread}" if spread else worth


def spread_of(row: Published) -> str:
    """Return how far the source's single runs differ, where it gives them."""
    runs_s = row.extra.get("runs_s")
    if not isinstance(runs_s, list) or len(runs_s) < 2:
        return ""
    return f"its {len(runs_s)} runs lie between {min(runs_s) / 60:.4g} and {max(runs_s) / 60:.4g} min"


# --- one row to be compared with -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """The candidate rows of `--published TEXT`, found before anything is measured."""

    text: str
    rows: tuple[Published, ...]


@dataclass(frozen=True)
class AgainstPublished:
    """Our runs compared with one published row. `context` says that the recipe differs, so that the ratio is not a verdict."""

    match: Match
    comparison: Comparison
    context: bool
    sure: str


def find_reference(
    text: str, workload: str, params: Mapping[str, Scalar], unit: str, rows: Sequence[Published] | None = None
) -> Reference:
    """Find the rows of this workload, or a related one, that match the text; raise a sentence with the alternatives."""
    name = published_name(workload, params)
    known = load() if rows is None else rows
    matches = nearest(
        known, workload=name, chip=None, count=1, precision="unknown", batch=None, unit=unit, limit=len(known),
        served=_served(workload, {"scenario": SINGLE_STREAM, **params}),
    )  # fmt: skip
    of_workload = [match.row for match in matches]
    if not of_workload:
        raise SpecError(
            f"the table of published results has no row for {name} in {figure_unit(unit).name}",
            hint="search the table: stackmark published search WORDS; add a row: stackmark published add FILE.csv",
        )
    hits = search(of_workload, understand(text, of_workload))
    if not text.strip() or not hits:
        chips = list(dict.fromkeys(row.chip for row in sorted(of_workload, key=lambda row: row.date, reverse=True)))
        more = f" and {len(chips) - _CHIPS_NAMED} more" if len(chips) > _CHIPS_NAMED else ""
        raise SpecError(
            f"--published: no row for {name} fits {text!r}",
            hint=f"there are rows for {', '.join(chips[:_CHIPS_NAMED])}{more}; see: "
            f"stackmark published search {name.partition('/')[2]}",
        )
    return Reference(text, tuple(hit.row for hit in hits))


def choose(reference: Reference, spec: Spec, unit: str, chip: str | None, framework: str | None) -> Match | None:
    """Choose of the candidate rows the one whose recipe is nearest to what ran; the chip is the requested one.

    None where the probe chose to measure something that these rows are not of: a forward pass instead of training.
    """
    matches = _near(spec, unit, chip, framework, reference.rows, len(reference.rows))
    asked = understand(reference.text, reference.rows).chip

    def distance(match: Match) -> tuple[float, ...]:
        related, chip_far, *rest = match.distance
        if asked is not None:
            there = parse_chip(match.row.chip)
            chip_far = float(asked.variant != there.variant) + float(chip_distance(asked, there))
        return (related, chip_far, *rest)

    return min(matches, key=distance, default=None)


def higher_is_better(row: Published) -> bool:
    """Tell the direction of a row: of times and costs less is better."""
    return unit_kind(row.unit) != "time" and not is_cost(row.unit)


def against(label: str, rates: Sequence[float], match: Match, margin: float = PUBLISHED_MARGIN) -> AgainstPublished:
    """Compare the logarithms of our rates with one constant (one-sample)."""
    row = match.row
    comparison = compare_published(
        label,
        [math.log(rate) for rate in rates],
        row.value if higher_is_better(row) else 1 / row.value,  # as the ledger has figures: a time as its reciprocal
        margin=margin,
        what=f"{say_rate(row.value)} {row.unit}",
    )
    return AgainstPublished(match, comparison, bool(match.differs), how_sure(match))


# --- where the rows come from -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    source: str
    added: bool
    rows: int
    first: str
    last: str
    chips: int
    units: tuple[str, ...]


def sources(rows: Sequence[Published]) -> list[Source]:
    """Return each source once, the largest first; rows a user added under the same name are a separate source."""
    of: dict[tuple[str, bool], list[Published]] = defaultdict(list)
    for row in rows:
        of[row.source, bool(row.added)].append(row)
    found = [
        Source(name, is_added, len(some), min(row.date for row in some), max(row.date for row in some),
               len({row.chip for row in some}), tuple(sorted({row.unit for row in some})))
        for (name, is_added), some in of.items()
    ]  # fmt: skip
    return sorted(found, key=lambda one: (one.added, -one.rows, one.source))


# --- the user's own rows ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AddReport:
    """The result of adding a file: new rows, known rows, and what was refused (then none is new)."""

    added: int
    duplicates: int
    findings: tuple[Finding, ...]


def workload_names() -> frozenset[str]:
    """Return the allowed workload names of a row: ours, their forward passes, and the shipped table's others."""
    ours = {name for one in definitions() for name in (one.name, *one.published_as)}
    return frozenset(ours | {row.workload for row in load() if row.workload})


def add_file(path: Path, ledger: Ledger) -> AddReport:
    """Add the rows of a file, all of them or none."""
    reading = read_file(path, workload_names())
    known = known_rows(ledger, operators=True)
    seen = set(known)
    fresh: dict[Published, int] = {}
    for row, line in zip(reading.rows, reading.lines, strict=True):
        if row not in seen:
            fresh.setdefault(row, line)
    findings = [*reading.findings, *too_fast(tuple(fresh), known, lines=tuple(fresh.values()))]
    if findings:
        return AddReport(0, 0, tuple(sorted(findings, key=lambda finding: finding.line)))
    new = added.add(ledger, tuple(fresh), path.name)
    return AddReport(new, len(reading.rows) - new, ())
