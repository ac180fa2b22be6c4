"""What `stackmark ceilings` does: measures them, or finds those that are kept, and shows them to people or to programs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from stackmark.cli.options import read_requests
from stackmark.cli.saying import print_json, repeatable, say
from stackmark.errors import Exit, LedgerError, SpecError, StackmarkError, WorkerError
from stackmark.experiments.arms import place_of
from stackmark.experiments.ceilings import WORKLOAD, MeasuredCeilings, every_kept, of_experiment
from stackmark.experiments.cleaning import clean_up
from stackmark.experiments.driver import machine_name
from stackmark.experiments.operator_list import go_through, start
from stackmark.experiments.result import list_result
from stackmark.ledger.store import Ledger
from stackmark.show.ceilings import ceilings_json, print_ceilings
from stackmark.show.live import watching
from stackmark.show.terminal import standard_output
from stackmark.spec import Request
from stackmark.workloads.registry import check_request

ONE_PRECISION = "one_precision"


@dataclass(frozen=True)
class CeilingsAsked:
    """How they are to be measured and shown; `asked` is the whole command line."""

    asked: Sequence[str]
    place: str
    place_options: Mapping[str, JsonValue]
    runs: int
    time_limit_s: float | None
    ledger: str | None
    as_json: bool


def measure_ceilings(params: Mapping[str, str | None], wanted: CeilingsAsked) -> Exit:
    """One measurement a device and precision that were typed; what is printed is of this measurement alone."""
    typed: dict[str, Any] = {name: value for name, value in params.items() if value is not None}
    if "precision" in typed:
        typed["set"] = ONE_PRECISION
    requests = read_requests([WORKLOAD], typed)
    for request in requests:
        check_request(request)
    codes: list[Exit] = []
    results: list[dict[str, Any]] = []
    with Ledger.open(wanted.ledger) as book:
        for request in requests:
            try:
                found, code = _measure(request, book, wanted)
            except LedgerError:
                raise
            except StackmarkError as error:
                if len(requests) == 1:
                    raise
                say(f"{WORKLOAD}: {error.message}", error.hint, error.command)
                codes.append(error.exit_code)
                continue
            codes.append(code)
            results.append(ceilings_json(found))
            if not wanted.as_json:
                print_ceilings(found, standard_output())
    if wanted.as_json:
        print_json({"ceilings": results})
    return codes[0] if len(codes) == 1 else Exit.PART_FAILED if any(codes) else Exit.DONE


def _measure(request: Request, book: Ledger, wanted: CeilingsAsked) -> tuple[MeasuredCeilings, Exit]:
    place = place_of(wanted.place, WORKLOAD, wanted.place_options)
    with watching(quiet=wanted.as_json) as watcher:
        for sentence in clean_up(book):
            watcher.notice(sentence)
        started = start(request, place, book, watcher, wanted.runs, repeatable(wanted.asked))
        go_through(started, place, book, watcher, wanted.time_limit_s)
    measured = list_result(book, started.experiment)
    found = of_experiment(measured.listed)
    if found is None:
        last = measured.runs[-1]
        raise WorkerError(last.failure_message or "no row gave a number", hint=last.failure_hint)
    return found, measured.exit_code


def show_kept(device: str | None, wanted: CeilingsAsked) -> Exit:
    with Ledger.open(wanted.ledger, create=False) as book:
        found = every_kept(book, machine_name(), device)
    if not found:
        of = f" of {device}" if device else ""
        raise SpecError(f"no ceilings{of} of this machine are kept", hint="measure them: stackmark ceilings")
    if wanted.as_json:
        print_json({"ceilings": [ceilings_json(one) for one in found]})
        return Exit.DONE
    console = standard_output()
    for number, one in enumerate(found):
        if number:
            print(file=console.file)
        print_ceilings(one, console)
    return Exit.DONE
