"""Start the sampler next to a run, and put what it read into the stream when the measured part is over.

Until then nothing is read from it: the worker's threads do nothing for it while steps are timed. A sampler that cannot be started
or does not answer costs its samples and a line in the log, never the run.
"""

import json
import math
import os
import subprocess
import sys
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stackmark import events
from stackmark.machine.software import bundle_file
from stackmark.worker.stream import Emitter

if TYPE_CHECKING:
    from typing_extensions import Self

# How long it may take to write what it has; a machine that is busy to the last CPU runs it late.
ANSWER_S = 10.0
# Of a name and its number with all that JSON puts around them: so many fit into an event.
NAMES_PER_EVENT = 150
_RUN = (
    "import sys; sys.path[0] = sys.argv[1]; from stackmark.machine.sampler import main; "
    "main(int(sys.argv[2]), float(sys.argv[3]))"
)


class Sampling:
    """The sampler of this worker, in a `with`: it is started at entry, and read by `finish`, or at the exit."""

    def __init__(self, emitter: Emitter, hz: float) -> None:
        self._emitter, self._hz = emitter, hz
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Self":
        if self._hz > 0:
            try:
                self._process = subprocess.Popen(
                    _command(os.getpid(), self._hz),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            except OSError as error:
                self._emitter(events.Log, line=f"the machine is not sampled: {error}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def finish(self) -> None:
        """End the sampler and emit what it read; the second time nothing is left to do."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            out, _ = process.communicate(timeout=ANSWER_S)
            lines = [json.loads(line) for line in out.decode().splitlines()]
            if not lines:
                raise ValueError(f"the sampler ended with code {process.returncode}")
            self._emit(lines[0], lines[1:])
        except (OSError, ValueError, TypeError, LookupError, subprocess.SubprocessError) as error:
            self._emitter(events.Log, line=f"the machine was not sampled: {type(error).__name__}: {error}")
        finally:
            with suppress(OSError):
                process.kill()
            process.wait()

    def _emit(self, about: dict[str, Any], samples: list[list[Any]]) -> None:
        self._emitter(events.Sampled, **about)
        for at_s, values in samples:
            named = [(name, value) for name, value in values.items() if math.isfinite(value)]
            for first in range(0, len(named), NAMES_PER_EVENT):
                some = dict(named[first : first + NAMES_PER_EVENT])
                self._emitter(events.Sample, at_s=self._emitter.since(at_s), values=some)


def _command(pid: int, hz: float) -> list[str]:
    """Return the command of the sampler, from where this worker's own code is: never with the working folder on the path."""
    bundle = bundle_file()
    if bundle:
        return [sys.executable, "-c", _RUN, str(bundle), str(pid), str(hz)]
    return [sys.executable, "-P", "-m", "stackmark.machine.sampler", str(pid), str(hz)]
