"""Run a user's program in an image: the engine runs it as it is, and its record says when and how it started and ended.

The container is kept until that record was read, so `--rm` is not used. No worker holds a lifeline either: a small shell, which
waits for the driver's end, removes the container when the driver is killed.
"""

import json
import math
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

from stackmark.errors import PlaceError
from stackmark.failures import FOREIGN_PROGRAM, PlaceFailure
from stackmark.machine.gpu_use import ProgramWatch
from stackmark.machine.orphans import end_marked, handles, marked
from stackmark.places.container import trouble
from stackmark.places.container.engine import Engine, container_name
from stackmark.places.container.launch import SCRATCH
from stackmark.places.outside import OutsideEnd, OutsideRun, ProcessWatch, coarse_clock, program_code, unknown
from stackmark.places.place import Handle, Outcome
from stackmark.places.process import supervise
from stackmark.spec import Task

# How well an engine's time stamps say when a program started and ended. They have nanoseconds, but podman writes the start down
# some milliseconds after the program began, and docker the end when it hears of it: `sleep 1.5` took 1.496 s by podman 4.3.
TICK_S = 0.02
# How late an engine may note a start: podman was seen 0.03 s late on two busy cores.
NOTED_LATE_S = 1.0
# Codes by which an engine's client says that it failed itself; the program's own codes come from the container's record.
ENGINES_OWN = (125, 126, 127)
_NO_PROGRAM = re.compile(
    r"executable file .*not found|no such file or directory|exec format error|permission denied", re.IGNORECASE
)
_NO_ENTRY_POINT = re.compile(r"no command or entrypoint provided|no command specified", re.IGNORECASE)
_WATCHDOG = 'read -r word; [ "$word" = done ] || exec "$@"'


@dataclass(frozen=True)
class Record:
    """The engine's record of an ended container."""

    started_unix_s: float
    finished_unix_s: float
    code: int

    @property
    def wall_s(self) -> float:
        return self.finished_unix_s - self.started_unix_s


def run_outside(
    engine: Engine,
    process: subprocess.Popen[bytes],
    argv: Sequence[str],
    task: Task,
    run: OutsideRun,
    handle: Callable[[], Handle],
    *,
    mark: str,
    image: str,
    words: Sequence[str],
    time_limit_s: float | None,
    limited: bool,
    ran_out_of_memory: Callable[[], PlaceFailure | None],
) -> Outcome:
    """Follow the engine's client to the program's end and say what it came to; `limited`: limits were asked for."""
    record: Record | None = None

    def clean_up() -> None:
        nonlocal record
        record = _record(engine, mark)
        engine.remove_run(mark, look_again=process.returncode < 0)
        end_marked(mark)

    # Of all GPUs that this machine has: which of them the program used is seen while it runs.
    gpus = ProgramWatch(lambda: set(marked(mark)))
    process_watch = ProcessWatch(lambda: _first_process(engine, mark), task.sample_hz)
    with _watchdog(engine, mark), gpus, process_watch as seen:
        ended = supervise(
            process,
            task,
            run,
            handle,
            ask=lambda polite: _ask_to_end(engine, mark, polite),
            clean_up=clean_up,
            time_limit_s=time_limit_s,
            raw=run,
        )
    run.facts(seen.facts or unknown("cgroup", "limits", "process"))
    if seen.sampled:
        run.samples(*seen.sampled)
    failure = ended.failure
    if failure is None and process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        failure = PlaceFailure("killed", f"{engine.kind}'s client was ended by {name}", "the container ended with it")
    if failure is not None:
        run.cut_off()
        return Outcome(process.returncode, failure, (), ended.interruption)
    if record is None:
        _never_began(engine, run, process.returncode, _by_hand(argv), image, words)
        return Outcome(process.returncode)
    if record.code and FOREIGN_PROGRAM.search(run.last_words):
        run.cut_off()
        raise _foreign(_by_hand(argv), image, words)
    by_metric = bool(task.spec and task.spec.params.get("metric"))
    failure = (ran_out_of_memory() if record.code else None) or _odd_times(record, engine)
    if failure:
        run.cut_off()
        return Outcome(record.code, failure)
    flags = []
    if limited and not seen.facts:
        flags.append("not-verified: the program ended before its limits could be read")
    if task.spec and not by_metric:
        flags += coarse_clock(record.wall_s, TICK_S, f"{engine.kind}'s")
    wall_s = max(record.wall_s, TICK_S) if by_metric else record.wall_s
    run.end(OutsideEnd(program_code(record.code), wall_s, TICK_S, tuple(seen.metrics()), tuple(flags), gpus))
    return Outcome(record.code)


def _by_hand(argv: Sequence[str]) -> list[str]:
    """Return the command without the folder that is gone with the run: an engine refuses to mount what is not there."""
    return [word for word in argv if not (word.startswith("--volume=") and word.endswith(f":{SCRATCH}"))]


def _never_began(
    engine: Engine, run: OutsideRun, code: int, argv: Sequence[str], image: str, words: Sequence[str]
) -> None:
    """Tell a program that the image cannot start, which is a failed run, from an engine that cannot run the image."""
    said = run.last_words or trouble.exit_meaning(code)
    if words and _NO_PROGRAM.search(said):
        run.not_started(words[0], trouble.own_words(said))
        return
    if _NO_ENTRY_POINT.search(said):
        raise PlaceError(
            f"the image {image} has no entry point",
            hint="give a program: --cmd PROGRAM",
            command=trouble.shell(argv),
        )
    raise trouble.refused(engine.kind, said, argv, image, what="the program")


def _foreign(argv: Sequence[str], image: str, words: Sequence[str]) -> PlaceError:
    """Explain a program that the kernel cannot run, as runc says only after the container's start."""
    program = f"the program {words[0]!r}" if words else "the entry point"
    return PlaceError(
        f"{program} of the image {image} cannot be run by this machine: exec format error",
        hint="use an image for this machine's architecture; or, if it is a script, give its interpreter: --cmd 'sh FILE'",
        command=trouble.shell(argv),
        kind="other_architecture",
    )


def _record(engine: Engine, mark: str) -> Record | None:
    """Read how a container went; None where it never started, or the engine does not know it."""
    answer = engine.ask("inspect", "--type", "container", "--format", "{{json .State}}", container_name(mark))
    if answer.code:
        return None
    try:
        state = json.loads(answer.out)
        started, finished = _unix_s(state["StartedAt"]), _unix_s(state["FinishedAt"])
        made = Record(started, finished, int(state["ExitCode"]))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise PlaceError(
            f"{engine.kind}'s answer about the container cannot be read: {error}",
            command=trouble.shell([*engine.command, "inspect", container_name(mark)]),
        ) from error
    # A container that never started has the year 1, or in docker the code of its runtime's error.
    return made if started > 0 and not (state.get("Error") and made.code in ENGINES_OWN) else None


def _odd_times(record: Record, engine: Engine) -> PlaceFailure | None:
    """Refuse time stamps of a clock that was set back meanwhile, or of a container that has no end.

    An engine notes the start a moment after it: a program that ends at once ended before that. Its exit code and what it
    printed count all the same, and its time is below the resolution.
    """
    if math.isfinite(record.wall_s) and record.wall_s >= -NOTED_LATE_S:
        return None
    message = f"{engine.kind} reports that the program ended {-record.wall_s:.3g} s before it started"
    return PlaceFailure("impossible_result", message, "was the machine's clock changed? run it again")


def _unix_s(text: str) -> float:
    moment = datetime.fromisoformat(text)
    return moment.timestamp() if moment.year > 1 else 0.0


def _ask_to_end(engine: Engine, mark: str, polite: signal.Signals) -> bool:
    """Send a signal to the program; one without a handler would not get it, as process 1, and is killed at once."""
    pid = _first_process(engine, mark)
    return engine.send(mark, polite if pid is None or handles(pid, polite) else signal.SIGKILL)


def _first_process(engine: Engine, mark: str) -> int | None:
    answer = engine.ask("inspect", "--type", "container", "--format", "{{.State.Pid}}", container_name(mark))
    text = answer.out.strip()
    return int(text) if answer.code == 0 and text.isdecimal() and int(text) > 0 else None


@contextmanager
def _watchdog(engine: Engine, mark: str) -> Iterator[None]:
    """Remove the container when this process dies, however it dies: a shell waits for the end of a pipe that only we hold."""
    now = ["--time", "0"] if engine.kind == "podman" else []
    remove = [*engine.command, "rm", "--force", "--volumes", *now, container_name(mark)]
    dog = subprocess.Popen(
        ["sh", "-c", _WATCHDOG, "stackmark-watchdog", *remove],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(engine.environment),
        start_new_session=True,
    )
    try:
        yield
    finally:
        with suppress(OSError):
            assert dog.stdin is not None
            dog.stdin.write(b"done\n")
            dog.stdin.close()
        deadline = time.monotonic() + 1.0
        while dog.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
