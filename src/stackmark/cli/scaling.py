"""What `scale` does: rank counts are measured as the arms of a comparison are, or stored runs are tabulated."""

from collections.abc import Sequence
from pathlib import Path

from stackmark.api.ledgers import Ledger
from stackmark.api.options import repeatable
from stackmark.api.published import published_scalings
from stackmark.api.scaling import plan_scale, scaling_table, start_scale
from stackmark.cli.comparing import Wanted, carry_on, check_report
from stackmark.cli.options import check_junit
from stackmark.cli.saying import notice, print_json, watching
from stackmark.errors import Exit, LedgerError, SpecError, StackmarkError
from stackmark.show.result import error_json
from stackmark.show.scaling_table import print_published_scaling, print_scaling_rows
from stackmark.show.terminal import standard_output
from stackmark.show.verdict_junit import unmeasured_junit
from stackmark.show.writing import write_whole
from stackmark.spec import Request
from stackmark.units import counted


def measure(request: Request, ranks: Sequence[int], place: str, strong: bool, wanted: Wanted) -> Exit:
    """Measure each rank count in blocks, and print the verdict."""
    check_report(wanted.report)
    check_junit(wanted.junit, "scale.xml")
    asked = plan_scale(
        request, ranks, on=place, place_options=wanted.place_options, strong=strong, margin=wanted.margin,
        blocks=wanted.blocks, pause_s=wanted.pause_s, most_repeats=wanted.repeats, seed=wanted.order_seed,
        primers=wanted.primers, command=repeatable(wanted.asked),
    )  # fmt: skip
    with Ledger.open(wanted.ledger) as book:
        try:
            with watching(quiet=wanted.as_json, details=wanted.details) as watcher:
                experiment = start_scale(asked, book, watcher)
        except LedgerError:
            raise
        except StackmarkError as error:
            if wanted.as_json:
                print_json(error_json(request, error))
            if wanted.junit:
                labels = [counted(number, "rank") for number in sorted(ranks)]
                write_whole(Path(wanted.junit), unmeasured_junit(request.workload, labels, error.message).encode())
            raise
        return carry_on(experiment, wanted, prepared=True)


def tabulate_published(text: str, wanted: Wanted) -> Exit:
    """Print the scaling that follows from published rates."""
    _refuse_outputs(wanted)
    if wanted.margin is not None or wanted.fail_on:
        raise SpecError("published numbers have no spread, so no verdict", hint="leave out --margin and --fail-on")
    found = published_scalings(text, ledger=wanted.ledger, notice=notice)
    if wanted.as_json:
        print_json(found.to_dict())
    else:
        print_published_scaling(found.rows, standard_output())
    return Exit.DONE


def _refuse_outputs(wanted: Wanted) -> None:
    for option, given in (("--report", wanted.report), ("--junit", wanted.junit)):
        if given:
            raise SpecError(f"{option} is for a measurement, not for a table", hint="use --json, or leave it out")


def tabulate(conditions: Sequence[str], wanted: Wanted) -> Exit:
    """Print the scaling table of stored runs."""
    _refuse_outputs(wanted)
    found = scaling_table(conditions, margin=wanted.margin, ledger=wanted.ledger, command=repeatable(wanted.asked))
    if wanted.as_json:
        print_json(found.to_dict())
    else:
        print_scaling_rows(found.table, standard_output(), details=wanted.details)
    return found.exit_code(wanted.fail_on)
