"""`stackmark canary`."""

import json
import math
import os
import shlex
import sys
import time
from typing import TYPE_CHECKING

import click

from stackmark.cli.options import (
    json_option,
    ledger_option,
    not_empty,
    read_margin,
    seconds_of,
    trust_option,
)
from stackmark.cli.saying import notice, say, watching
from stackmark.errors import ClusterError, Exit, LedgerError, PlaceError, SpecError

if TYPE_CHECKING:
    from stackmark.api.canary import Canary, CanaryPlan

# A busy machine is asked again after a minute, then two, four …: at most as long as a turn is apart from the next.
FIRST_WAIT_S = 60.0
SHORTEST_S = 1.0


@click.command(
    "canary",
    epilog="""\b
Examples:
  stackmark canary train/resnet50 --baseline before-driver-580 --every 1h
  stackmark canary --baseline before-driver-580 --within 60s --runs 1
  stackmark canary --baseline night --every 1h --on-slower "/opt/bin/page gpu-7"
  stackmark canary --baseline night --every 1h --print systemd > stackmark-canary.service
""",
)
@click.argument("workload", required=False)
@click.option("--baseline", "name", metavar="NAME", callback=not_empty, required=True, help="What it is compared with.")
@click.option("--every", metavar="TIME", help="For ever, a turn each: 1h, 15min.")
@click.option("--once", is_flag=True, help="Take one turn; exit with 8 where it is slower.")
@click.option(
    "--within",
    metavar="TIME",
    help="A turn must fit into this time, else it does not begin. Without --every: one turn.",
)
@click.option("--on", "place", metavar="PLACE", callback=not_empty, help="Only what the baseline holds of this place.")
@click.option(
    "--each-node", is_flag=True, help="Pods on each node that the baseline has; say which nodes it does not have."
)
@click.option("--margin", default="1%", metavar="SHARE", help="What counts as a difference. [default: 1%]")
@click.option(
    "--runs", type=click.IntRange(1, 1000), metavar="N", help="Fresh processes a turn. [default: as in the baseline]"
)
@click.option(
    "--on-slower", metavar="COMMAND", callback=not_empty,
    help="Start this program when it is slower: an argument list, not a shell's line; the turn is JSON on its standard input.",
)  # fmt: skip
@click.option(
    "--print", "form", type=click.Choice(["systemd", "cronjob"]),
    help="Print what keeps it running instead: a systemd unit, or a CronJob for each workload.",
)  # fmt: skip
@click.option(
    "--node", "nodes", metavar="NODE", multiple=True, callback=not_empty,
    help="With --print cronjob: a CronJob for this node; may be repeated.",
)  # fmt: skip
@click.option("--image", metavar="REF", callback=not_empty, help="With --print cronjob: the image of its pods.")
@click.option("--namespace", metavar="NAME", callback=not_empty, help="With --print cronjob: where they are.")
@click.option("--anyway", is_flag=True, help="Compare with another chip or machine too; the reasons are said.")
@trust_option
@ledger_option
@json_option
@click.pass_obj
def command(
    asked: tuple[str, ...],
    /,
    workload: str | None,
    name: str,
    every: str | None,
    once: bool,
    within: str | None,
    place: str | None,
    each_node: bool,
    margin: str,
    runs: int | None,
    on_slower: str | None,
    form: str | None,
    nodes: tuple[str, ...],
    image: str | None,
    namespace: str | None,
    anyway: bool,
    trusted: bool,
    ledger: str | None,
    as_json: bool,
) -> int:
    """Check a baseline for ever, or once before a job: has this machine become slower?

    Each turn is an ordinary check of what the baseline NAME holds, or of WORKLOAD in it. Where somebody else's job uses the
    machine, nothing is measured, or the turn is INCONCLUSIVE. A run that fails is a result too. Two canaries never run at
    the same time.
    """
    from stackmark.api.canary import plan_canary, prepare_canary
    from stackmark.api.ledgers import Ledger
    from stackmark.api.options import repeatable
    from stackmark.cli.trusting import confirm_trust

    every_s, within_s = seconds_of("--every", every), seconds_of("--within", within)
    if every_s is not None and (once or every_s < SHORTEST_S):
        raise SpecError(
            "--once and --every cannot be combined" if once else f"--every must be at least 1 s, got {every}",
            hint="leave one of them out" if once else "write it like 1h or 15min",
        )
    if within_s is not None and within_s <= 0:
        raise SpecError(f"--within must be above 0, got {within}", hint="write it like 60s")
    if every_s is None and not once and within_s is None:
        raise SpecError("a canary needs --every or --once", hint="for ever: --every 1h; before a job: --within 60s")
    hook = _read_hook(on_slower)
    if (nodes or image or namespace) and form != "cronjob":
        raise SpecError("--node, --image and --namespace are for --print cronjob", hint="leave them out")
    plan = plan_canary(
        name, workload, place=place, margin=read_margin(margin), runs=runs, within_s=within_s, anyway=anyway, each_node=each_node,
        command=repeatable(asked),
    )  # fmt: skip
    with Ledger.open(ledger, create=False) as book:
        if form:
            options = {key: value for key, value in (("image", image), ("namespace", namespace)) if value}
            return _print(form, plan, book, every_s, asked, ledger, options, nodes)
        prepare_canary(plan, book, confirm_trust(trusted))
    if every_s is None:
        return int(_turn(plan, ledger, hook, as_json).turn.exit_code)
    return _for_ever(plan, ledger, hook, as_json, every_s)


def _read_hook(text: str | None) -> list[str]:
    try:
        words = shlex.split(text or "")
    except ValueError as error:
        raise SpecError(f"--on-slower: {error}", hint="close the quotes") from error
    if text is not None and not words:
        raise SpecError("--on-slower is empty", hint="name a program and its arguments")
    return words


def _turn(plan: "CanaryPlan", ledger: str | None, hook: list[str], as_json: bool) -> "Canary":
    from stackmark.api.canary import call_hook, carry_out_turn
    from stackmark.api.ledgers import Ledger

    # Opened for each turn: a month is long to hold a ledger open that others move, restore or migrate.
    with Ledger.open(ledger, create=False) as book:
        found = carry_out_turn(plan, book, lambda: watching(quiet=True))
    print(json.dumps(found.to_dict()) if as_json else found, flush=True)
    if found.turn.state == "slower" and hook and (wrong := call_hook(hook, found)):
        say(wrong)
    return found


def _for_ever(plan: "CanaryPlan", ledger: str | None, hook: list[str], as_json: bool, every_s: float) -> int:
    """Take turns until somebody ends it. A ledger or a place that fails now may work at the next turn."""
    next_s, wait_s = time.monotonic(), FIRST_WAIT_S
    while True:
        state = ""
        try:
            found = _turn(plan, ledger, hook, as_json)
        except (ClusterError, LedgerError, PlaceError) as error:
            say(error.message, error.hint, error.command)
        else:
            if found.turn.exit_code == Exit.WRONG_USE:
                return Exit.WRONG_USE  # said above: it would be so for ever
            state = found.turn.state
        if state in ("busy", "overlap"):
            pause_s = min(wait_s, every_s)
            wait_s *= 2
        else:
            wait_s = FIRST_WAIT_S
            # Turns that a long one ran over are left out, and do not follow it at once.
            next_s += every_s * max(1, math.ceil((time.monotonic() - next_s) / every_s))
            pause_s = max(0.0, next_s - time.monotonic())
        time.sleep(pause_s)


def _print(
    form: str, plan: "CanaryPlan", book: object, every_s: float | None, asked: tuple[str, ...], ledger: str | None,
    options: dict[str, str], nodes: tuple[str, ...],
) -> int:  # fmt: skip
    from stackmark.api.canary import print_cronjobs
    from stackmark.api.ledgers import Ledger
    from stackmark.show.canary import systemd_unit

    assert isinstance(book, Ledger)
    if every_s is None:
        raise SpecError(f"--print {form} needs --every", hint="e.g. --every 1h")
    if form == "cronjob":
        print(print_cronjobs(plan, book, every_s, options, nodes, notice), end="")
        return Exit.DONE
    words = [*_without_print(asked)]
    if ledger is None:
        words += ["--ledger", book.where]
    elif "://" not in ledger:
        words = [os.path.abspath(word) if word == ledger else word for word in words]
    program = [sys.executable, "-P", "-m", "stackmark"]
    print(systemd_unit(plan.name, [*program, *words], os.getcwd()), end="")
    return Exit.DONE


def _without_print(asked: tuple[str, ...]) -> list[str]:
    words = list(asked)
    if "--print" in words:
        at = words.index("--print")
        del words[at : at + 2]
    return [word for word in words if not word.startswith("--print=")]
