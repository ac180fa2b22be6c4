"""The family `command/`: a user's own program, as it is. See workload.Workload for the contract.

It is run whole, once a run, and is neither warmed up nor told anything: whatever it does to warm up is part of it, and
`--metric-skip` leaves the figures of that time out. What it printed is kept with the run, its exit code decides.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from stackmark.model import ValidationError
from stackmark.spec import SCRATCH_VARIABLE, AnyParams, Request, explain
from stackmark.workloads.command.definition import CommandParams, complete, split_command, variables_in, with_values
from stackmark.workloads.command.impl.program import Exit, Program
from stackmark.workloads.command.mlperf_log import time_to_train
from stackmark.workloads.command.output import ProgramOutput
from stackmark.workloads.workload import Metric, Rig, TimedFigure, TimedWhole, WorkloadFailure


def probe(request: Request, _rig: Rig) -> tuple[AnyParams, dict[str, str]]:
    """Complete the open parameters. The program itself is not run: it may take an hour."""
    try:
        params, choices = complete(request)
    except ValidationError as error:
        raise WorkloadFailure("bad_parameter", explain(error), "see: stackmark run --help") from error
    if not params.cmd:
        raise WorkloadFailure(
            "bad_parameter",
            "there is no program to run: only an image has an entry point",
            "give one: --cmd PROGRAM; or an image: --on container --image REF",
        )
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
            f"--cmd refers to {{env:{name}}}, but {name} is not set where the program runs",
            f"set it: export {name}=…; a container or a pod gets it by name: --env {name}",
        ) from error


def _found(program: str, cwd: str) -> str | None:
    """Which file it is here: in another place the same name may be another program."""
    path = program if "/" not in program else os.path.join(cwd, program)
    found = shutil.which(path)
    return os.path.realpath(found) if found else None


def _run(params: CommandParams, words: list[str], cwd: str, log: Callable[[str], None], rig: Rig) -> TimedFigure:
    # A program that prints its arguments would put the values into the log.
    began_unix_s = time.time()
    printed = ProgramOutput(params, log, [os.environ.get(name, "") for name in variables_in(words)])
    try:
        with _scratch(), Program(_filled(words), cwd, printed.out, printed.err) as program:
            ended = program.run()
    finally:
        printed.close()
    if ended.code:
        raise printed.failure(ended.code)
    for sentence in printed.flags():
        rig.flag(sentence)
    if ended.left_behind:
        rig.flag(f"left-behind: the program left {ended.left_behind} process(es) running; they were killed")
    figure, more = printed.figure(ended.wall_s), list[Metric]()
    if params.mlperf_log:
        figure, more = time_to_train(Path(cwd, params.mlperf_log), began_unix_s, ended.wall_s)
    return TimedFigure(figure, ended.wall_s, (*_metrics(ended), *more), ended.memory_peak_mib)


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


def _metrics(ended: Exit) -> list[Metric]:
    return [
        Metric("command_wall_s", ended.wall_s, "s", False),
        Metric("command_user_s", ended.user_s, "s", False),
        Metric("command_system_s", ended.system_s, "s", False),
        Metric("cpu_s", ended.user_s + ended.system_s, "s", False),
        Metric("involuntary_switches", ended.involuntary_switches, "times", False),
    ]
