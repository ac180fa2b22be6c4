"""The family `command/`: a user's own program, as it is. See workload.Workload for the contract.

It is run whole, once a run, and is neither warmed up nor told anything: whatever it does to warm up is part of it, and
`--metric-skip` leaves the figures of that time out. What it printed is kept with the run, its exit code decides.
"""

import os
import shutil
import signal
from collections.abc import Callable, Generator

from pydantic import ValidationError

from stackmark.events import Figure
from stackmark.spec import AnyParams, Request, explain
from stackmark.workloads.command.figure import Finder
from stackmark.workloads.command.output import Kept, Lines, short
from stackmark.workloads.command.params import CommandParams, guess_unit, split_command
from stackmark.workloads.command.program import Exit, Program
from stackmark.workloads.workload import Metric, Rig, Told, Whole, WorkloadFailure

# What a shell says by these exit codes, and people often see.
CODES = {126: "it cannot be executed", 127: "a program in it was not found"}


def probe(request: Request, _rig: Rig) -> tuple[AnyParams, dict[str, str]]:
    """Completes what is left open. The program itself is not run: it may take an hour."""
    values, choices = dict(request.typed()), {}
    if values.get("metric") and not values.get("metric_unit"):
        values["metric_unit"] = guess_unit(str(values["metric"]))
        choices["metric_unit"] = "from the words before the group in the pattern"
    try:
        return CommandParams.model_validate(values), choices
    except ValidationError as error:
        raise WorkloadFailure("bad_parameter", explain(error), "see: stackmark run --help") from error


def run(_name: str, params: AnyParams, rig: Rig) -> Generator[Whole, None, None]:
    assert isinstance(params, CommandParams)
    words = split_command(params.cmd)
    cwd = os.path.abspath(params.cwd)
    yield Whole(
        run=lambda log: _run(params, words, cwd, log, rig),
        device=params.device,
        facts={"words": [*words[:100]], "program": _found(words[0], cwd), "cwd": cwd},
    )


def _found(program: str, cwd: str) -> str | None:
    """Which file it is here: in another place the same name may be another program."""
    path = program if "/" not in program else os.path.join(cwd, program)
    found = shutil.which(path)
    return os.path.realpath(found) if found else None


def _run(params: CommandParams, words: list[str], cwd: str, log: Callable[[str], None], rig: Rig) -> Told:
    kept = Kept(log)
    out, err = Lines(kept.take), Lines(kept.take)
    finder = Finder(params) if params.metric else None

    searching = finder is not None

    def take(lines: Lines, data: bytes, end: bool) -> None:
        nonlocal searching
        found = lines.feed(data, end)
        if finder and searching:
            # Where it fails, what the program still says while it is ended is kept, and not searched again.
            searching = False
            finder.search(found)
            searching = True

    try:
        with Program(words, cwd, lambda *read: take(out, *read), lambda *read: take(err, *read)) as program:
            ended = program.run()
    finally:
        kept.close()
    if ended.code:
        raise _failed(ended.code, err.last or out.last)
    if finder and out.cut + err.cut:
        rig.flag(f"long-lines: {out.cut + err.cut} lines of the program's output were only searched at their beginning")
    if ended.left_behind:
        rig.flag(f"left-behind: the program left {ended.left_behind} process(es) running, which were ended")
    figure = finder.figure(kept.ending()) if finder else _wall_time(ended)
    return Told(figure, ended.wall_s, tuple(_metrics(ended)), ended.memory_peak_mib)


def _wall_time(ended: Exit) -> Figure:
    return Figure(name="wall time", value=ended.wall_s, unit="s", higher_is_better=False)


def _metrics(ended: Exit) -> list[Metric]:
    return [
        Metric("command_wall_s", ended.wall_s, "s", False),
        Metric("command_user_s", ended.user_s, "s", False),
        Metric("command_system_s", ended.system_s, "s", False),
        Metric("cpu_s", ended.user_s + ended.system_s, "s", False),
        Metric("involuntary_switches", ended.involuntary_switches, "times", False),
    ]


def _failed(code: int, last: str) -> WorkloadFailure:
    if code < 0:
        known = {int(number) for number in signal.Signals}
        how = f"was ended by {signal.Signals(-code).name if -code in known else f'signal {-code}'}"
    else:
        how = f"ended with code {code}" + (f" ({CODES[code]})" if code in CODES else "")
    said = f"; its last words were: {short(last)}" if last else "; it said nothing"
    return WorkloadFailure(
        "command_failed", f"the program {how}{said}", "all that it printed is in the log: stackmark show RUN --log"
    )
