"""Measure scaling: `scale`, and the table of scaling of stored runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from stackmark.api.ledgers import Ledger, LedgerLike, clean, opened
from stackmark.api.options import Option, command_of, read_request
from stackmark.api.stored import Experiment, carry_out_compare
from stackmark.api.verdicts import Verdict, is_named, several
from stackmark.errors import Exit
from stackmark.experiments.arms import place_of, read_arms
from stackmark.experiments.recorder import Watcher
from stackmark.experiments.scale import ScaleRequest, check_scale
from stackmark.experiments.scale import start as start_experiment
from stackmark.experiments.scaling_tables import OPTION, tabulate_scaling
from stackmark.experiments.scaling_tables import ScalingTable as StoredTable
from stackmark.experiments.selecting import read_conditions
from stackmark.show.callbacks import ProgressLike, watcher_of
from stackmark.show.scaling_table import print_scaling_rows, scaling_table_json
from stackmark.show.terminal import printed
from stackmark.spec import Request
from stackmark.verdict.scaling import MARGIN


def plan_scale(
    request: Request,
    ranks: Sequence[int],
    *,
    on: str = "host",
    place_options: Mapping[str, JsonValue] | None = None,
    strong: bool = False,
    margin: float | None = None,
    **design: Any,
) -> ScaleRequest:
    """Refuse what can be refused without a worker. `design` are the further fields of `ScaleRequest`: blocks, seed …"""
    options = place_options or {}
    place_of(on, request.workload, options)  # a parameter of the workload has its own option
    (place,) = read_arms([on], request.workload, options, least=1)
    chosen = MARGIN if margin is None else margin
    asked = ScaleRequest(request=request, place=place, ranks=tuple(ranks), strong=strong, margin=chosen, **design)
    check_scale(asked)
    return asked


def start_scale(asked: ScaleRequest, ledger: Ledger, watcher: Watcher) -> Experiment:
    """Probe each rank count, and store the design: from here on it can be resumed."""
    ledger.writing(lambda _: None)  # one that is locked or read-only is found now
    clean(ledger, watcher.notice)
    return Experiment(start_experiment(asked, ledger, watcher), ledger)


def scale(
    workload: str,
    *,
    ranks: Sequence[int],
    on: str = "host",
    strong: bool = False,
    margin: float | None = None,
    blocks: int | None = None,
    pause_s: float = 0.0,
    repeats: int = 2,
    order_seed: int | None = None,
    primers: bool = True,
    time_limit_s: float | None = None,
    anyway: bool = False,
    ledger: LedgerLike = None,
    progress: ProgressLike = None,
    **options: Option,
) -> Verdict:
    """Measure a workload at several rank counts in interleaved blocks, and return the efficiency of each against one rank.

    `ranks` must contain 1. The batch of each rank is fixed; with `strong` that of all ranks together. One that was interrupted
    goes on with `load("last").resume()`.
    """
    request, place_options = read_request(workload, 1, options)
    typed = {
        "ranks": ",".join(map(str, ranks)), "on": on if on != "host" else None, "strong": strong or None, "margin": margin,
        "blocks": blocks, "pause": f"{pause_s:g}s" if pause_s else None, "repeats": repeats if repeats != 2 else None,
        "order_seed": order_seed, "primers": None if primers else False,
    }  # fmt: skip
    asked = plan_scale(
        request, ranks, on=on, place_options=place_options, strong=strong, margin=margin, blocks=blocks, pause_s=pause_s,
        most_repeats=repeats, seed=order_seed, primers=primers,
        command=command_of(["scale"], request.workload, {**typed, **options}),
    )  # fmt: skip
    watcher = watcher_of(progress)
    with opened(ledger, create=True) as book:
        experiment = start_scale(asked, book, watcher)
        carry_out_compare(experiment, watcher, time_limit_s=time_limit_s, anyway=anyway)
        return experiment.verdict()


@dataclass(frozen=True)
class ScalingTable:
    """Stored runs by their number of ranks, each against the runs of one rank with the same settings."""

    table: StoredTable

    @property
    def words(self) -> tuple[str, ...]:
        """Return the word of each row that has an efficiency: SCALES, FALLS SHORT or INCONCLUSIVE."""
        return tuple(one.word for one in self.table.comparisons)

    def exit_code(self, fail_on: Sequence[str] = ()) -> Exit:
        """Return 8 where `fail_on` names the verdict of a row, 7 where no row has an efficiency, else 0."""
        if any(is_named(one, fail_on) for one in self.table.comparisons):
            return Exit.VERDICT_NAMED
        return Exit.DONE if self.table.comparisons else Exit.PART_FAILED

    def to_dict(self) -> dict[str, JsonValue]:
        """Return what `stackmark scale --stored … --json` prints."""
        return scaling_table_json(self.table)

    def __str__(self) -> str:
        return printed(lambda console: print_scaling_rows(self.table, console))


def scaling_table(
    conditions: Sequence[str],
    *,
    margin: float | None = None,
    ledger: LedgerLike | Sequence[LedgerLike] = None,
    command: str = "",
) -> ScalingTable:
    """Tabulate the scaling of stored runs, imported ones too. `conditions` select them: `["chip=Tesla T4"]`."""
    read_conditions(conditions, OPTION)  # a typo is found before a ledger is opened
    with several(ledger) as sources:
        found = tabulate_scaling(sources, conditions, margin=MARGIN if margin is None else margin, command=command)
    return ScalingTable(found)
