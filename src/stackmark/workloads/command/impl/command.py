"""The family `command/`: a user's own program, as it is. See workload.Workload for the contract.

It is run whole, once a run, and is neither warmed up nor told anything: whatever it does to warm up is part of it, and
`--metric-skip` leaves the figures of that time out. What it printed is kept with the run, its exit code decides.
"""

import errno
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

from stackmark.events import Figure
from stackmark.model import ValidationError
from stackmark.spec import SCRATCH_VARIABLE, AnyParams, Request, explain
from stackmark.workloads.command.definition import CommandParams, guess_unit, split_command, variables_in, with_values
from stackmark.workloads.command.impl.output import Finder, Lines, OutputLines, short
from stackmark.workloads.command.impl.program import Exit, Program
from stackmark.workloads.workload import Metric, Rig, TimedFigure, TimedWhole, WorkloadFailure

# What a shell says by these exit codes, and people often see.
CODES = {126: "it cannot be executed", 127: "a program in it was not found"}


def probe(request: Request, _rig: Rig) -> tuple[AnyParams, dict[str, str]]:
    """Completes what is left open. The program itself is not run: it may take an hour."""
    values, choices = dict(request.typed()), {}
    if values.get("metric") and not values.get("metric_unit"):
        values["metric_unit"] = guess_unit(str(values["metric"]))
        choices["metric_unit"] = "from the words before the group in the pattern"
    try:
        params = CommandParams.model_validate(values)
    except ValidationError as error:
        raise WorkloadFailure("bad_parameter", explain(error), "see: stackmark run --help") from error
    _filled(split_command(params.cmd))  # what is missing is said before the first run
    return params, choices


def run(_name: str, params: AnyParams, rig: Rig) -> Generator[TimedWhole, None, None]:
    assert isinstance(params, CommandParams)
    words = split_command(params.cmd)
    cwd = os.path.abspath(params.cwd)
    yield TimedWhole(
        run=lambda log: _run(params, words, cwd, log, rig),
        device=params.device,
        facts={"words": [*words[:100]], "program": _found(words[0], cwd), "cwd": cwd},
    )


def _filled(words: list[str]) -> list[str]:
    """Put the values of variables for `{env:NAME}`, as late as can be: here, in the process that starts the program."""
    try:
        return with_values(words, os.environ)
    except KeyError as error:
        name = error.args[0]
        raise WorkloadFailure(
            "bad_parameter",
            f"--cmd refers to {{env:{name}}}, and {name} is not set where the program runs",
            f"set it: export {name}=…; a container or a pod gets it by name: --env {name}",
        ) from error


def _found(program: str, cwd: str) -> str | None:
    """Which file it is here: in another place the same name may be another program."""
    path = program if "/" not in program else os.path.join(cwd, program)
    found = shutil.which(path)
    return os.path.realpath(found) if found else None


def _run(params: CommandParams, words: list[str], cwd: str, log: Callable[[str], None], rig: Rig) -> TimedFigure:
    kept = OutputLines(log)
    # A program that prints its arguments would put the values into the log.
    hidden = [os.environ.get(name, "") for name in variables_in(words)]
    out, err = Lines(kept.take, hidden), Lines(kept.take, hidden)
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
        with (
            _scratch(),
            Program(_filled(words), cwd, lambda *read: take(out, *read), lambda *read: take(err, *read)) as program,
        ):
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
    return TimedFigure(figure, ended.wall_s, tuple(_metrics(ended)), ended.memory_peak_mib)


@contextmanager
def _scratch() -> Iterator[None]:
    """Give the program a folder to write to where its place gave none, as a pod does; it is deleted afterwards."""
    if SCRATCH_VARIABLE in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="stackmark-scratch-", ignore_cleanup_errors=True) as folder:
        os.environ[SCRATCH_VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[SCRATCH_VARIABLE]


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
    hint = "all that it printed is in the log: stackmark show RUN --log"
    if os.strerror(errno.EROFS).lower() in last.lower():
        hint = (
            f"in a container the program's folder is read-only: write to ${SCRATCH_VARIABLE}, which is deleted after the run, "
            "or to a folder that is mounted to be written: --mount SRC:DST:rw"
        )
    return WorkloadFailure("command_failed", f"the program {how}{said}", hint)
