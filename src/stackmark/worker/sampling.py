"""Start the sampler next to a run, and put what it read into the stream when the measured part is over.

Until then nothing is read from it: the worker's threads do nothing for it while steps are timed. A sampler that cannot be started
or does not answer costs its samples and a line in the log, never the run.
"""

import os
from types import TracebackType
from typing import TYPE_CHECKING

from stackmark import events
from stackmark.machine.sampler import Sampler, pieces
from stackmark.worker.stream import Emitter

if TYPE_CHECKING:
    from typing_extensions import Self


class Sampling:
    """The sampler of this worker, in a `with`: it is started at entry, and read by `finish`, or at the exit."""

    def __init__(self, emitter: Emitter, hz: float) -> None:
        self._emitter, self._hz = emitter, hz
        self._sampler: Sampler | None = None

    def __enter__(self) -> "Self":
        if self._hz > 0:
            try:
                self._sampler = Sampler(os.getpid(), self._hz)
            except OSError as error:
                self._emitter(events.Log, line=f"the machine is not sampled: {error}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def finish(self) -> None:
        """End the sampler and emit what it read; the second time nothing is left to do."""
        sampler, self._sampler = self._sampler, None
        if sampler is None:
            return
        try:
            about, samples = sampler.finish()
            self._emitter(events.Sampled, **about)
        except (ValueError, TypeError) as error:
            self._emitter(events.Log, line=f"the machine was not sampled: {error}")
            return
        for at_s, values in pieces(samples):
            self._emitter(events.Sample, at_s=self._emitter.since(at_s), values=values)
