"""Canary: check a baseline again and again, and say or do something when it has become slower."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stackmark.api.baselines import Watching
from stackmark.api.clusters import make_manifest
from stackmark.api.ledgers import Ledger, LedgerLike, clean, opened
from stackmark.api.options import canonical_workload, command_of
from stackmark.api.stored import Confirm, trust
from stackmark.errors import SpecError
from stackmark.experiments.baseline import HeldWorkload, parts_in
from stackmark.experiments.canary import CanaryPlan as CanaryPlan
from stackmark.experiments.canary import CanaryTurn as CanaryTurn
from stackmark.experiments.canary import held_of, take_turn
from stackmark.experiments.design import MARGIN, check_margin
from stackmark.places.registry import find_kind
from stackmark.show.callbacks import ProgressLike, watcher_of
from stackmark.show.canary import canary_json, say_turn
from stackmark.spec import Request
from stackmark.workloads.registry import definitions

# A hook that hangs must not keep the canary from its next turn.
HOOK_LIMIT_S = 60.0
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400


@dataclass(frozen=True)
class Canary:
    """The result of one turn."""

    plan: CanaryPlan
    turn: CanaryTurn

    @property
    def exit_code(self) -> int:
        return int(self.turn.exit_code)

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark canary --json` prints for a turn."""
        return canary_json(self.plan.name, self.plan.margin, self.turn)

    def __str__(self) -> str:
        return say_turn(self.turn)


def plan_canary(
    name: str, workload: str | None = None, *, place: str | None = None, margin: float = MARGIN, runs: int | None = None,
    within_s: float | None = None, anyway: bool = False, each_node: bool = False, command: str = "",
) -> CanaryPlan:  # fmt: skip
    """Read what was typed; nothing is looked up in the ledger yet."""
    check_margin(margin)
    if place is not None:
        find_kind(place)
    if workload is not None and " " not in workload:
        workload = canonical_workload(workload, (one.name for one in definitions()))
    if each_node and place not in (None, "pod"):
        raise SpecError(f"--each-node is for pods, not for {place}", hint="leave out --on, or use --on pod")
    return CanaryPlan(name, workload, "pod" if each_node else place, margin, runs, within_s, command, anyway, each_node)


def prepare_canary(plan: CanaryPlan, ledger: Ledger, confirm: Confirm) -> None:
    """Refuse before the first turn what no turn could do: no such baseline, too little time, a command that is not trusted."""
    confirm(parts_in(held_of(ledger, plan)), ledger.where)
    ledger.writing(lambda _: None)


def carry_out_turn(plan: CanaryPlan, ledger: Ledger, watching: Watching) -> Canary:
    with watching() as watcher:
        clean(ledger, watcher.notice)
        return Canary(plan, take_turn(ledger, plan, watcher))


def canary(
    name: str, workload: str | None = None, *, place: str | None = None, margin: float = MARGIN, runs: int | None = None,
    within_s: float | None = None, anyway: bool = False, trust_ledger: bool = False, ledger: LedgerLike = None,
    progress: ProgressLike = None,
) -> Canary:  # fmt: skip
    """Take one turn: check what the baseline holds, unless the machine is in use, and say in one word what it shows."""
    typed = {"baseline": name, "margin": margin if margin != MARGIN else None, "runs": runs, "once": True}
    command = command_of(["canary"], workload, typed)
    plan = plan_canary(
        name, workload, place=place, margin=margin, runs=runs, within_s=within_s, anyway=anyway, command=command
    )
    with opened(ledger) as book:
        prepare_canary(plan, book, trust(trust_ledger))
        watcher = watcher_of(progress)
        clean(book, watcher.notice)
        return Canary(plan, take_turn(book, plan, watcher))


def call_hook(argv: Sequence[str], found: Canary, *, limit_s: float = HOOK_LIMIT_S) -> str:
    """Start a program of the user's with the turn as JSON on its standard input; return what went wrong, or nothing.

    It is an argument list and no shell's line: what a ledger holds reaches it as data alone.
    """
    said = {
        "STACKMARK_STATE": found.turn.state,
        "STACKMARK_BASELINE": found.plan.name,
        "STACKMARK_EXPERIMENTS": " ".join(one.experiment_id for one in found.turn.checked if one.experiment_id),
    }
    try:
        done = subprocess.run(
            list(argv),
            input=json.dumps(found.to_dict()).encode(),
            env={**os.environ, **said},
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return f"--on-slower {argv[0]}: {error}"
    return f"--on-slower {argv[0]} ended with code {done.returncode}" if done.returncode else ""


# --- on a cluster -------------------------------------------------------------------------------------------------------


def cron_schedule(every_s: float) -> str:
    """Return the cron schedule of an interval; only what divides an hour or a day evenly has one."""
    minutes = round(every_s / MINUTE_S)
    if abs(every_s - minutes * MINUTE_S) < 1 and minutes >= 1:
        if minutes < 60 and 60 % minutes == 0:
            return f"*/{minutes} * * * *" if minutes > 1 else "* * * * *"
        hours = minutes // 60
        if minutes % 60 == 0 and hours < 24 and 24 % hours == 0:
            return f"0 */{hours} * * *" if hours > 1 else "0 * * * *"
        if minutes == DAY_S // MINUTE_S:
            return "0 0 * * *"
    raise SpecError(
        f"--every {every_s:g}s has no cron schedule", hint="use what divides an hour or a day: 15min, 1h, 6h, 24h"
    )


def print_cronjobs(
    plan: CanaryPlan,
    ledger: Ledger,
    every_s: float,
    place_options: Mapping[str, Any],
    nodes: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> str:
    """Return a CronJob for each workload of the baseline, or for each of them on each node, as YAML documents.

    A CronJob measures the very specs of the baseline; what it measured is collected with `results --from-cluster`.
    """
    schedule = cron_schedule(every_s)
    held = held_of(ledger, plan)
    each: Sequence[str | None] = nodes or (None,)
    parts = [_cronjob(plan, one, schedule, {**_of_pod(one), **place_options}, node) for one in held for node in each]
    say(
        f"collect what it measured with: stackmark results --from-cluster; judge it with: stackmark trend {held[0].spec.workload}"
    )
    return "---\n".join(parts)


def _of_pod(held: HeldWorkload) -> dict[str, Any]:
    return dict(held.place_options) if held.place == "pod" else {}


def _cronjob(plan: CanaryPlan, held: HeldWorkload, schedule: str, options: dict[str, Any], node: str | None) -> str:
    request = Request(workload=held.spec.workload, params=held.spec.params, ranks=held.spec.ranks)
    if node is not None:
        options = {**options, "node": node}
    return make_manifest(request, options, kind="cronjob", schedule=schedule, command=plan.command).yaml()
