"""What `check` does: a baseline is measured again, and what changed is printed, for people, programs and test reports."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stackmark.api.options import repeatable
from stackmark.api.stored import is_named
from stackmark.cli.saying import notice, print_json, say
from stackmark.cli.trusting import confirm_trust
from stackmark.errors import Exit, LedgerError, SpecError, Terminated
from stackmark.experiments.baseline import SeriesOptions, held_by, parts_in
from stackmark.experiments.check import RULES, Checked, check, decided
from stackmark.experiments.cleaning import clean_up
from stackmark.ledger.store import Ledger
from stackmark.show.check import check_json, junit_case, print_check, stack_changed
from stackmark.show.junit import render_junit
from stackmark.show.live import watching
from stackmark.show.terminal import standard_output
from stackmark.show.writing import check_writable, write_whole
from stackmark.units import counted, say_moment


@dataclass(frozen=True)
class Check:
    """What was typed; `asked` is the whole command line."""

    name: str
    margin: float
    runs: int | None
    fail_on: Sequence[str]
    junit: str | None
    time_limit_s: float | None
    anyway: bool
    ledger: str | None
    as_json: bool
    asked: Sequence[str]
    trusted: bool = False


def check_now(wanted: Check) -> Exit:
    _check_junit(wanted.junit)
    began_unix_s = time.time()
    done: list[Checked] = []
    with Ledger.open(wanted.ledger, create=False) as book:
        held = held_by(book, wanted.name)
        # A ledger that is locked or read-only is found now, and not after the first run.
        book.writing(lambda _: None)
        confirm_trust(parts_in(held), book.where, trusted=wanted.trusted)
        try:
            with watching(quiet=wanted.as_json) as watcher:
                for sentence in clean_up(book):
                    watcher.notice(sentence)
                how = SeriesOptions(watcher, wanted.runs, wanted.time_limit_s, repeatable(wanted.asked))
                for one in check(book, wanted.name, how, margin=wanted.margin, anyway=wanted.anyway):
                    done.append(one)
                    if one.trouble:
                        watcher.notice(f"{one.label}: {one.trouble.message}")
        except (KeyboardInterrupt, Terminated, LedgerError):
            if done and not wanted.as_json:
                _print(wanted, decided(done))
            say(
                f"the check of {wanted.name} is not finished: {counted(len(done), 'workload')} checked",
                "finished runs are stored, and the next check within the hour counts them as one series with its own",
            )
            raise
    checked = decided(done)
    if wanted.as_json:
        print_json(check_json(wanted.name, wanted.margin, checked))
    else:
        _print(wanted, checked)
    if wanted.junit:
        write_whole(Path(wanted.junit), _junit(wanted, checked, began_unix_s).encode())
    _say_undecided(wanted, checked)
    return exit_code(checked, wanted.fail_on)


def _say_undecided(wanted: Check, checked: Sequence[Checked]) -> None:
    """Say where nothing was decided: an exit code of 0 is read as `not slower`."""
    open_ones = [one.label for one in checked if _undecided(one)]
    if open_ones and wanted.fail_on and "inconclusive" not in wanted.fail_on:
        undecided = f"--fail-on {wanted.fail_on[0]}: nothing was decided about {', '.join(open_ones)}"
        notice(f"{undecided}, which is no failure; --fail-on inconclusive makes it one")


def _check_junit(path: str | None) -> None:
    """Before anything is measured. Standard output has the result already."""
    if path is None:
        return
    hint = "give a file in a folder that may be written, e.g. --junit check.xml"
    if path == "-":
        raise SpecError("--junit: standard output holds the result already", hint=hint)
    try:
        check_writable(Path(path))
    except SpecError as error:
        raise SpecError(f"--junit: {error.message}", hint=hint) from error


def exit_code(checked: Sequence[Checked], fail_on: Sequence[str]) -> Exit:
    """A workload without a verdict counts before any verdict: what could not be measured or compared was not checked."""
    codes = [one.trouble.code for one in checked if one.trouble]
    if not codes:
        return Exit.VERDICT_NAMED if any(_named(one, fail_on) for one in checked) else Exit.DONE
    if len(codes) < len(checked):
        return Exit.PART_FAILED
    return codes[0] if len(set(codes)) == 1 else Exit.RUN_FAILED


def _named(one: Checked, fail_on: Sequence[str]) -> bool:
    """Tell whether --fail-on names today's verdict, or that of the latest checks together."""
    if "alarm" in fail_on and one.alarm and one.alarm.rings:
        return True
    if "inconclusive" in fail_on and _undecided(one):
        return True
    words = [word for word in fail_on if word != "inconclusive"]
    return any(is_named(seen, words) for seen in (one.comparison, one.lately_comparison) if seen)


def _undecided(one: Checked) -> bool:
    seen = [pair for pair in (one.comparison, one.lately_comparison) if pair]
    return bool(seen) and all(pair.word == "INCONCLUSIVE" for pair in seen)


def _print(wanted: Check, checked: Sequence[Checked]) -> None:
    print_check(checked, standard_output(), repeatable(wanted.asked))


def _junit(wanted: Check, checked: Sequence[Checked], began_unix_s: float) -> str:
    properties = [("baseline", wanted.name), ("margin", f"{wanted.margin:g}"), ("rules", str(RULES))]
    properties += [("changed", change) for change in stack_changed(checked)]
    when = say_moment(began_unix_s, "%Y-%m-%dT%H:%M:%S", utc=True)
    cases = [junit_case(one, failed=_named(one, wanted.fail_on)) for one in checked]
    return render_junit(f"stackmark check {wanted.name}", cases, properties, when)
