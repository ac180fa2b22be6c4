"""Inject a fault by a script: for test clusters of plain processes, and for users who have such a script.

    PATH kill PART [NODE]      PATH start PART [NODE]      PATH cut NODE      PATH join NODE

NODE is the number at the end of the node's name (node-1 is 1), or the name itself. The commands run on this machine, in the
healer's process.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from stackmark.cluster.faults import healer
from stackmark.cluster.faults.means import Plan, Setting, Target
from stackmark.cluster.faults.record import FaultTimes, Part
from stackmark.errors import ClusterError, SpecError

# Parts that are not on a node.
CONTROL: tuple[Part, ...] = ("api-server",)
# What starting a part may take before it is given up: its own patience and the healer's further tries.
START_S = 300.0
LOOK_S = 0.1


class Script:
    name = "script"
    lead_s = 2.0

    def __init__(self, setting: Setting) -> None:
        self._path = Path(setting.how).expanduser() if setting.how else None

    def plan(self, target: Target) -> Plan:
        stop, start = self._commands(target)
        return Plan(
            does=(f"on this machine, in a separate process: {' '.join(stop)}",),
            heals=(
                f"the same process, {target.seconds:g} s later, or as soon as stackmark dies: {' '.join(start)}",
                "it also does so if stackmark is interrupted or killed",
            ),
        )

    def hurt(self, target: Target, heal: threading.Event) -> FaultTimes:
        stop, start = self._commands(target)
        argv = [sys.executable, "-I", healer.__file__, f"{target.seconds:g}", *stop, "--", *start]
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0
        )
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = time.monotonic() + target.seconds + START_S
        told: dict[str, dict[str, object]] = {}
        reader = threading.Thread(target=_read, args=(process, told), daemon=True)
        reader.start()
        try:
            while reader.is_alive():
                if heal.is_set() and not process.stdin.closed:
                    process.stdin.close()  # its lifeline: it heals at once
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"{' '.join(start)} has not ended after {START_S:.0f} s", command=" ".join(start)
                    )
                reader.join(LOOK_S)
        finally:
            with suppress(OSError):
                process.stdin.close()
            if not reader.is_alive():
                process.wait()
                process.stdout.close()
        return _done(told, stop, start)

    def _commands(self, target: Target) -> tuple[list[str], list[str]]:
        if self._path is None:
            raise SpecError("--means script needs the path of a script", hint="write it like --means script:./cluster")
        if not self._path.is_file() or not os.access(self._path, os.X_OK):
            raise SpecError(f"{self._path} is not an executable script", hint="--means script:PATH")
        path = str(self._path.resolve())
        node = node_number(target.node)
        if target.part == "node-network":
            return [path, "cut", node], [path, "join", node]
        where = [] if target.part in CONTROL else [node]
        return [path, "kill", target.part, *where], [path, "start", target.part, *where]


def node_number(name: str) -> str:
    found = re.search(r"(\d+)$", name)
    return str(int(found[1])) if found else name


def _read(process: "subprocess.Popen[bytes]", told: dict[str, dict[str, object]]) -> None:
    assert process.stdout is not None
    for line in iter(process.stdout.readline, b""):
        with suppress(ValueError, KeyError, TypeError):
            said = json.loads(line)
            told[str(said["what"])] = said


def _done(told: dict[str, dict[str, object]], stop: list[str], start: list[str]) -> FaultTimes:
    stopped, over, started = told.get("stopped"), told.get("over"), told.get("started")
    if stopped is None or over is None:
        raise ClusterError("the process that stops and starts the part has died", command=" ".join(start))
    if stopped.get("code"):
        raise ClusterError(f"{' '.join(stop)} failed: {stopped.get('said')}", command=" ".join(stop))
    if started is None or started.get("code"):
        why = started.get("said") if started else "it has not ended"
        raise ClusterError(f"the part could not be started again: {why}", command=" ".join(start))
    return FaultTimes(
        # A part that was killed is gone while the command that kills it still runs.
        begun_unix_s=_number(told["stopping"]["at"]),
        over_unix_s=_number(over["at"]),
        healed_unix_s=_number(started["at"]),
        said=tuple(str(part.get("said")) for part in (stopped, started) if part.get("said")),
    )


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
