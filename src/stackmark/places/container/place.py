"""Run a worker in a container: the engine's client is our child; the worker's two streams and its lifeline go through it.

When we die, by kill -9 too, the client's standard input ends, with it the worker's, and the worker ends itself; `--rm` removes
the container. When the client dies, the engine closes the worker's standard input: the same. What is left all the same (a worker
that stands still) is found by its labels: at the end of a run, by the next command through the ledger, and by the next
container through the name of its driver.

What takes long only once (finding the engine, making the bare image) happens before the first start, not in it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import JsonValue

from stackmark.errors import PlaceError
from stackmark.events import EVENT_PREFIX
from stackmark.failures import PlaceFailure, killed, signal_name
from stackmark.machine.orphans import MARK_VARIABLE, end_marked, start_ticks
from stackmark.places.bundle import NAME as BUNDLE_NAME
from stackmark.places.bundle import worker_bundle
from stackmark.places.container import bare_image, checks, gpus, trouble
from stackmark.places.container.engine import DRIVER_LABEL, Engine, container_name, find_engine
from stackmark.places.container.launch import Image, Launch, driver_lives, launch
from stackmark.places.container.options import ContainerOptions
from stackmark.places.container.outside import run_outside
from stackmark.places.container.software import host_software
from stackmark.places.folders import private_folder, scratch_folder
from stackmark.places.image_python import NO_PYTHON_EXIT
from stackmark.places.mounts import not_mounted
from stackmark.places.outside import (
    FROM_INSIDE,
    OF_PROCESS,
    OutsideRun,
    facts_about_us,
    facts_of_container,
    facts_of_machine,
    params_of,
    refuse_worker_options,
    runs_outside,
    unknown,
    words_of,
)
from stackmark.places.place import Facts, Handle, Outcome, Watch, not_bound
from stackmark.places.process import Reading, oom_kills, start, supervise, worker_environment
from stackmark.secrets_masking import value_of
from stackmark.spec import Spec, Task

# The codes that engines keep for themselves, and 1, 2 and 255, which Python and engines end with when they do not get to work.
NEVER_BEGAN = (1, 2, 125, 126, 127, 255)
# A worker that spoke never ends with one of these: the engine lost it.
ENGINES_OWN = (125, 126, 127)
# The kernel drops a signal to the first process of a container that has no handler for it yet, so it is sent again.
ASK_AGAIN_S = 1.0
# What conmon, which watches podman's containers, leaves in the client's working folder when the kernel ran out of memory.
OOM_FILE = "oom"


class ContainerPlace:
    name = "container"

    def __init__(
        self,
        options: ContainerOptions | None = None,
        cache: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._options = options or ContainerOptions()
        self._cache = cache.absolute() if cache else None
        self._environment = worker_environment(os.environ if environment is None else environment)
        # Handed to the engine's client in its environment, and to the container by name: neither `ps` nor the ledger has them.
        self._named = {name: value_of(name, self._environment) for name in self._options.named_variables}
        self._prepared: tuple[Engine, Image] | None = None

    def options(self) -> dict[str, JsonValue]:
        """Return the options as typed."""
        return self._options.model_dump(mode="json", exclude_unset=True)

    def prepare(self) -> tuple[Engine, Image]:
        """Find the engine and the image, once. Containers of dead drivers are removed as well."""
        if self._prepared is None:
            wanted = "podman" if self._options.rootfs and self._options.engine == "auto" else self._options.engine
            engine = find_engine(wanted, self._environment)
            if self._options.rootfs and engine.kind != "podman":
                raise PlaceError(
                    "rootfs needs podman: docker runs images only", hint="install podman, or leave out rootfs"
                )
            image = self._image(engine)
            remove_abandoned(engine)
            self._prepared = engine, image
        return self._prepared

    def offers_gpus(self) -> bool:
        """Return whether a container gets a GPU: as typed, else whether this machine has one."""
        return gpus.wanted(self._options, Task(do="facts"))

    def not_enforced(self, spec: Spec, facts: Facts) -> list[str]:
        outside = runs_outside(spec, self._options.image)
        if outside and not facts.get("process"):
            return []  # it ended before it could be looked at, which is flagged
        mounted = worker_bundle().sha256 if self._options.image and not outside else None
        wanted = gpus.wanted(self._options, Task(do="run", spec=spec))
        found = checks.not_enforced(self._options, wanted, facts, mounted)
        # Nothing of ours looks from inside at what a program in an image sees.
        if outside:
            return found
        return [*found, *not_mounted(self._options.mounts, facts), *not_bound(self._options.bind, facts)]

    def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
        engine, image = self.prepare()
        if runs_outside(task.spec or task.request, self._options.image):
            refuse_worker_options(self._options.bind, self._options.python)
            return self._run_outside(engine, image, task, watch, mark, time_limit_s)
        counting = _Counting(watch)
        # conmon writes into the client's working folder, so each client has one of its own.
        with private_folder(mark) as folder:
            scratch = scratch_folder(folder, task)
            # A file in a folder that only this user can enter: the container sees it by its mount alone.
            bundle = worker_bundle().write(folder / BUNDLE_NAME) if image.software is None else None
            plan = launch(engine, self._options, image, task, mark, self._cache, self._environment, scratch, bundle)
            began_unix_s, oom_before = time.time(), oom_kills()
            process = self._start(plan, mark, folder)

            def clean_up() -> None:
                # A client that was killed may have asked for a container that is still being made.
                engine.remove_run(mark, look_again=process.returncode < 0)
                end_marked(mark)

            ended = supervise(
                process,
                task,
                counting,
                lambda: self._handle(engine, image, plan, process, folder, began_unix_s),
                ask=lambda polite: engine.send(mark, polite),
                clean_up=clean_up,
                time_limit_s=time_limit_s,
                again_s=ASK_AGAIN_S,
            )
            failure = ended.failure
            if failure is None and process.returncode != 0:
                oom = _ran_out_of_memory(engine, mark, folder, began_unix_s)
                failure = self._out_of_memory() if oom else None
            if failure is None:
                # Where the engine says nothing, the machine's own counter is asked.
                failure = self._failure(
                    engine, plan, process.returncode, ended.reading, counting.events, oom_kills() > oom_before
                )
        return Outcome(process.returncode, failure, tuple(ended.reading.stderr_lines), ended.interruption)

    def _run_outside(
        self, engine: Engine, image: Image, task: Task, watch: Watch, mark: str, time_limit_s: float | None
    ) -> Outcome:
        """Run a user's program in an image, in which nothing of ours runs."""
        run = OutsideRun(watch)
        told = {
            "engine": engine.kind, "kubernetes": False, "engine_version": engine.version, "software": image.kind,
            "image": image.name, "image_digest": image.digest,
        }  # fmt: skip
        about = [*facts_of_machine(), facts_of_container(told), *unknown(*FROM_INSIDE), facts_about_us()]
        if task.spec is None:
            assert task.request is not None
            run.probe(task.request, [*about, *unknown(*OF_PROCESS)])
            return Outcome(0)
        params = params_of(task.spec)
        words = words_of(params)
        with private_folder(mark) as folder:
            plan = launch(
                engine, self._options, image, task, mark, self._cache, self._environment, scratch_folder(folder, task),
                program=words,
            )  # fmt: skip
            run.begin(params, about)
            began_unix_s = time.time()
            process = self._start(plan, mark, folder)
            return run_outside(
                engine,
                process,
                plan.argv,
                task,
                run,
                lambda: self._handle(engine, image, plan, process, folder, began_unix_s),
                mark=mark,
                image=str(image.name),
                words=words,
                time_limit_s=time_limit_s,
                limited=bool(self._options.model_fields_set - {"image", "engine", "gpus", "mount", "env"}),
                ran_out_of_memory=lambda: (
                    self._out_of_memory() if _ran_out_of_memory(engine, mark, folder, began_unix_s) else None
                ),
            )

    def _image(self, engine: Engine) -> Image:
        if self._options.image is not None:
            return _inspected(engine, self._options.image)
        software = host_software(sys.executable, self._environment)
        if self._options.rootfs:
            return Image(None, None, software)
        name = bare_image.made(engine)
        return Image(name, _inspected(engine, name).digest, software)

    def _start(self, plan: Launch, mark: str, folder: Path) -> subprocess.Popen[bytes]:
        try:
            return start(plan.argv, {**self._environment, **self._named, MARK_VARIABLE: mark}, folder)
        except OSError as error:
            raise PlaceError(f"{plan.argv[0]} cannot be started: {error}", command=trouble.shell(plan.argv)) from error

    def _handle(
        self, engine: Engine, image: Image, plan: Launch, process: subprocess.Popen[bytes], folder: Path, began: float
    ) -> Handle:
        return {
            "pid": process.pid,
            "start_ticks": start_ticks(process.pid),
            "engine": engine.kind,
            "engine_version": engine.version,
            "container": plan.name,
            "software": image.kind,
            "image": image.name,
            "image_digest": image.digest,
            "gpus_by": plan.gpu_way,
            "command": list(plan.argv),
            "folder": str(folder),
            # From here to the worker's hello is what the engine takes to start a container.
            "launched_unix_s": began,
        }

    def _failure(
        self, engine: Engine, plan: Launch, code: int, reading: Reading, events: int, oom: bool
    ) -> PlaceFailure | None:
        if code < 0:
            message = f"{engine.kind}'s client was ended by {signal_name(-code)}"
            return PlaceFailure("killed", message, "the container ended with it")
        if events == 0 and (code in (*NEVER_BEGAN, NO_PYTHON_EXIT) or (self._options.python and code < 128)):
            said = "\n".join(reading.stderr_lines) or trouble.exit_meaning(code)
            if self._options.image is None:
                raise trouble.refused(engine.kind, said, plan.argv)
            raise trouble.image_refused(engine.kind, code, said, plan.argv, self._options.image, self._options.python)
        if code in ENGINES_OWN:
            return trouble.lost(engine.kind, "\n".join(reading.stderr_lines))
        number = code - 128
        # SIGINT and SIGTERM the worker answers itself, with a last event and these codes.
        if 0 < number < signal.NSIG and number not in (signal.SIGINT, signal.SIGTERM):
            limited = number == signal.SIGKILL and oom and self._options.memory is not None
            return self._out_of_memory() if limited else killed(number, oom)
        return None

    def _out_of_memory(self) -> PlaceFailure:
        """Whatever the worker said of it: a loader process that was killed is a crash to the worker that waits for it."""
        limit = (
            f"its limit of {self._options.memory} was too low" if self._options.memory else "the host ran out of memory"
        )
        return PlaceFailure(
            "out_of_host_memory",
            f"the kernel's OOM killer ended a process in the container: {limit}",
            "raise memory=, or use a smaller --batch or fewer --data-workers",
        )


def remove_left(run_id: str, handle: Mapping[str, JsonValue]) -> list[str]:
    """Remove what a killed driver's run left: its container, and its client's folder."""
    removed = []
    kind = handle.get("engine")
    if kind in ("podman", "docker"):
        with suppress(PlaceError):  # the engine is gone since; so is then the container
            count = find_engine(str(kind), os.environ).remove_run(run_id)
            removed = [f"a container of {kind}"] if count else []
    folder = Path(str(handle.get("folder") or "/"))
    # The ledger is only believed where the folder is one that we make: with the run's name, directly in the temporary folder.
    if folder.parent == Path(tempfile.gettempdir()) and folder.name.startswith(f"stackmark-{run_id}-"):
        shutil.rmtree(folder, ignore_errors=True)
    return removed


def remove_abandoned(engine: Engine) -> int:
    """Remove our containers whose driver has ended, also those of probes, which no ledger knows."""
    listed = engine.ask(
        "ps", "--all", "--no-trunc", "--filter", f"label={DRIVER_LABEL}",
        "--format", '{{.ID}} {{index .Labels "' + DRIVER_LABEL + '"}}' if engine.kind == "podman"
        else '{{.ID}} {{.Label "' + DRIVER_LABEL + '"}}',
    )  # fmt: skip
    if listed.code:
        raise trouble.refused(engine.kind, listed.err, [*engine.command, "ps", "--all"])
    gone = [
        words[0] for line in listed.out.splitlines() if len(words := line.split()) == 2 and not driver_lives(words[1])
    ]
    if gone:
        engine.remove(gone)
    return len(gone)


def _inspected(engine: Engine, name: str) -> Image:
    """What the engine knows of an image that is here."""
    argv = ["image", "inspect", name]
    answer = engine.ask(*argv)
    if answer.code:
        raise trouble.refused(engine.kind, answer.err, [*engine.command, *argv], name)
    try:
        (known,) = json.loads(answer.out)
        # podman's own digest, else (docker) the registry's where it came from one, else the image's id.
        remote = next(iter(known.get("RepoDigests") or ()), "").rpartition("@")[2]
        digest = known.get("Digest") or remote or known["Id"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlaceError(
            f"{engine.kind}'s answer about the image {name} cannot be read: {error}",
            command=trouble.shell([*engine.command, *argv]),
        ) from error
    return Image(name, str(digest), None)


def _ran_out_of_memory(engine: Engine, mark: str, folder: Path, since_unix_s: float) -> bool:
    """Whether the kernel killed because memory ran out in this container: each engine says it elsewhere.

    podman's own flag says no after an OOM kill up to 4.9, and with `--rm` there is no container left to ask; docker keeps the
    event.
    """
    if engine.kind == "podman":
        return (folder / OOM_FILE).exists()
    asked = ["--since", f"{since_unix_s:.6f}", "--until", f"{time.time():.6f}", "--filter", "event=oom"]
    return (
        "oom"
        in engine.ask("events", *asked, "--filter", f"container={container_name(mark)}", "--format", "{{.Action}}").out
    )


class _Counting:
    """Hands on, and counts the events: a worker that said none never began."""

    def __init__(self, watch: Watch) -> None:
        self._watch, self.events = watch, 0

    def started(self, handle: Handle) -> None:
        self._watch.started(handle)

    def waiting(self, sentence: str) -> None:
        self._watch.waiting(sentence)

    def line(self, text: str) -> None:
        self.events += text.startswith(EVENT_PREFIX)
        self._watch.line(text)

    def stderr(self, text: str) -> None:
        self._watch.stderr(text)
