"""`stackmark cluster sweep`.

Standard output holds the result and nothing else. Whatever can be refused is refused before the first pod.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stackmark.cli.options import (
    OfAPod,
    json_option,
    ledger_option,
    not_empty,
    parameter_options,
    pod_options,
    read_margin,
    seconds_of,
    taken_pod_options,
    time_limit_option,
    trust_option,
)
from stackmark.cli.saying import looking, print_json, say, watching
from stackmark.errors import LedgerError, SpecError, StackmarkError, Terminated

if TYPE_CHECKING:
    from stackmark.api.cluster_experiments import SweepResult
    from stackmark.api.stored import Experiment


@click.command(
    "sweep",
    cls=OfAPod,
    epilog="""\b
Examples:
  stackmark cluster sweep train/resnet50 --image nvcr.io/nvidia/pytorch:26.10-py3 --gpus 1
  stackmark cluster sweep train/resnet50 --gpus 1 --nodes pool=gpu --seconds 10 -o sweep.svg --junit sweep.xml
  stackmark cluster sweep train/resnet20 --device cpu --gpus 0 --cpus 4 --memory 4g
  stackmark cluster sweep --resume x-01k9
""",
)
@click.argument("workload", required=False)
@click.option("--nodes", metavar="SELECTOR", callback=not_empty, help="Only nodes with such labels: pool=gpu,zone!=b.")
@click.option("--margin", metavar="SHARE", default="1%", help="How much slower counts as slow. [default: 1%]")
@click.option(
    "--confirm",
    type=click.IntRange(0, 100),
    metavar="N",
    help="Pairs of runs by which a flagged device is confirmed, 0 or 2 and more. [default: 4 to 12, by the noise]",
)
@click.option(
    "--more-runs",
    type=click.IntRange(0, 20),
    metavar="N",
    help="Runs of each device more where one leaves it open. [default: 3 for up to 64 devices of a kind]",
)
@click.option("--at-once", type=click.IntRange(1, 10_000), metavar="N", help="Pods at once. [default: as many as go]")
@click.option("--one-a-node", is_flag=True, help="One device of each node at a time.")
@click.option("--resume", metavar="EXPERIMENT", callback=not_empty, help="Go on with a sweep that was begun before.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    callback=not_empty,
    help="Also draw it: a file that ends in .svg or .png.",
)
@click.option("--junit", metavar="FILE", callback=not_empty, help="Also write JUnit XML: a case a device.")
@click.option("--fail-on-slow", is_flag=True, help="Exit with 8 where a device is named, or a group is slow.")
@time_limit_option
@trust_option
@ledger_option
@json_option
@pod_options()
@parameter_options
@click.pass_obj
def command(
    asked: tuple[str, ...],
    /,
    workload: str | None,
    resume: str | None,
    ledger: str | None,
    as_json: bool,
    **typed: Any,
) -> int:
    """Run WORKLOAD on every GPU of every node: which one is slow?

    Each device is compared with the median of its kind. Where one run of each leaves it open, all are run some times more. A
    device that is below the median by more than the margin, and by more than chance allows, is run again together with a good
    one, and is named only when that confirms it. --gpus 0 sweeps nodes by their CPUs.
    """
    from stackmark.api.cluster_experiments import plan_sweep, start_sweep
    from stackmark.api.ledgers import Ledger
    from stackmark.api.options import repeatable
    from stackmark.cli.compare import one_request
    from stackmark.show.result import error_json

    wanted = SweepOutput(
        output=typed.pop("output"),
        junit=typed.pop("junit"),
        fail_on_slow=typed.pop("fail_on_slow"),
        time_limit_s=seconds_of("--time-limit", typed.pop("time_limit")),
        trusted=typed.pop("trusted"),
        ledger=ledger,
        as_json=as_json,
    )
    margin, options = read_margin(typed.pop("margin")), taken_pod_options(typed)
    design = {name: typed.pop(name) for name in ("nodes", "confirm", "more_runs", "at_once", "one_a_node")}
    if resume is not None:
        _refuse_new(workload, {**typed, **options, "nodes": design["nodes"]})
        return _go_on(resume, wanted)
    request = one_request(workload, typed, arms=False)
    wanted.check_files()
    plan = plan_sweep(request, options, margin=margin, **design, command=repeatable(asked))
    with Ledger.open(ledger) as book:
        try:
            with watching(quiet=as_json) as watcher:
                experiment = start_sweep(plan, book, watcher)
        except LedgerError:
            raise
        except StackmarkError as error:
            if as_json:
                print_json(error_json(request, error))
            raise
        return carry_on(experiment, wanted, prepared=True)


@dataclass(frozen=True)
class SweepOutput:
    """Print where the runs of a sweep are, and how to continue it."""

    output: Path | None = None
    junit: str | None = None
    fail_on_slow: bool = False
    time_limit_s: float | None = None
    trusted: bool = False
    ledger: str | None = None
    as_json: bool = False

    def check_files(self) -> None:
        """Refuse files that cannot be written before anything is measured."""
        from stackmark.show.writing import check_picture, check_writable

        if self.output is not None:
            check_picture(self.output, "sweep.svg")
            check_writable(self.output)
        if self.junit == "-":
            raise SpecError(
                "--junit: standard output holds the result already", hint="give a file, e.g. --junit sweep.xml"
            )
        if self.junit is not None:
            check_writable(Path(self.junit))


def _refuse_new(workload: str | None, typed: dict[str, Any]) -> None:
    """Refuse what would change a plan that is stored already."""
    what = workload or next((name for name, value in typed.items() if value is not None), None)
    if what:
        raise SpecError(f"--resume goes on with what was asked before, and {what} was given too", hint="leave it out")


def _go_on(experiment: str, wanted: SweepOutput) -> int:
    """Go on with a sweep; of one that is finished, print what it showed before."""
    from stackmark.api.cluster_experiments import is_open_sweep
    from stackmark.api.ledgers import Ledger, clean
    from stackmark.api.stored import load

    wanted.check_files()
    with Ledger.open(wanted.ledger, create=False) as book:
        found = load(experiment, book)
        is_open_sweep(found)
        with looking(quiet=wanted.as_json) as looker:
            clean(book, looker.notice)
        return carry_on(found, wanted)


def carry_on(experiment: "Experiment", wanted: SweepOutput, *, prepared: bool = False) -> int:
    """Run what is missing, then say what the sweep shows. `prepared`: this command made the plan, nothing is to be confirmed."""
    from stackmark.api.cluster_experiments import carry_out_sweep, is_open_sweep, prepare_sweep, sweep_result
    from stackmark.api.options import repeatable
    from stackmark.cli.trusting import confirm_trust

    again = repeatable(["resume", experiment.id, *(("--ledger", wanted.ledger) if wanted.ledger else ())])
    if is_open_sweep(experiment):
        if not prepared:
            prepare_sweep(experiment, confirm_trust(wanted.trusted))
        try:
            # The bar is gone before the table is printed: both may go to one screen.
            with looking(quiet=wanted.as_json) as looker:
                carry_out_sweep(experiment, looker, time_limit_s=wanted.time_limit_s)
        except (KeyboardInterrupt, Terminated, StackmarkError):
            say(f"{experiment.id} is not finished", f"go on with: {again}")
            raise
    return _report(sweep_result(experiment), wanted, again)


def _report(found: "SweepResult", wanted: SweepOutput, again: str) -> int:
    from stackmark.show.sweep import print_sweep
    from stackmark.show.terminal import standard_output
    from stackmark.show.writing import write_whole

    if wanted.as_json:
        print_json(found.to_dict())
    else:
        print_sweep(found.swept, standard_output(), f"{again}  # tries again what failed" if found.wants_more else "")
    if wanted.junit:
        write_whole(Path(wanted.junit), found.junit().encode())
    if wanted.output:
        found.plot(wanted.output)
    return found.exit_code(fail_on_slow=wanted.fail_on_slow)
