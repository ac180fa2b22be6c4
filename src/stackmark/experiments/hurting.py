"""The run that is hurt: a pod's place with a fault beside it.

The run's own thread follows the log; the fault has one of its own, and so has whoever looks at the cluster. They meet here: the
measured part's beginning starts the fault's clock, Ctrl-C heals before it does anything else, and the pod is kept until its disk
was read and the cluster is well again.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from stackmark.cluster.faults.injecting import Injection
from stackmark.cluster.faults.keeper import KeptPod, read_disk
from stackmark.cluster.faults.looking import Looking
from stackmark.cluster.faults.record import Disk, State
from stackmark.errors import StackmarkError
from stackmark.events import Hello, Phase, Stream
from stackmark.experiments.recorder import Watcher
from stackmark.places.place import Handle, Outcome, Watch
from stackmark.spec import Spec, Task


class HurtPlace:
    """The pod's place with a fault beside it. The pod is kept until its disk was read, and until the cluster is well again."""

    name = "pod"

    def __init__(self, place: KeptPod, injection: Injection, watcher: Watcher) -> None:
        self._place, self._injection, self._watcher = place, injection, watcher
        self.offset_s: float | None = None
        self.states: tuple[State, ...] = ()
        self.disk: Disk | None = None

    def options(self) -> Handle:
        return self._place.options()

    def not_enforced(self, spec: Spec, facts: dict[str, Handle]) -> list[str]:
        return self._place.not_enforced(spec, facts)

    def stored(self, mark: str) -> str | None:
        return self._place.stored(mark)

    def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
        injection = self._injection
        setup = self._place.prepare()
        looking = Looking(setup.cluster, injection.node, injection.resource, setup.namespace, mark)
        listening = _Listening(watch, injection, self._watcher)
        looking.start()
        injection.start()
        try:
            outcome = self._place.run(task, listening, mark=mark, time_limit_s=time_limit_s)
            injection.ended.set()
            self._wait(outcome)
            if outcome.interruption is None and listening.pod:
                python = setup.python
                self.disk = read_disk(setup.cluster, setup.namespace, listening.pod, python, listening.stream.events)
            return outcome
        finally:
            injection.ended.set()
            injection.join()
            looking.stop()
            self.offset_s, self.states = listening.offset_s, looking.states

    def _wait(self, outcome: Outcome) -> None:
        injection = self._injection
        if injection.begun and not injection.over:
            what = "the node heals itself" if outcome.interruption else "waiting until the cluster is as it was"
            self._watcher.notice(f"{what}: at most {injection.target.seconds + injection.recover_s:.0f} s")
        injection.join()


class _Listening:
    """Hands on what the run says, hears when its measured part begins, and reads the two clocks against each other."""

    def __init__(self, watch: Watch, injection: Injection, watcher: Watcher) -> None:
        self._watch, self._injection, self._watcher = watch, injection, watcher
        self._hello: Hello | None = None
        self._told = False
        self.stream = Stream()
        self.offset_s: float | None = None
        self.pod = ""

    def started(self, handle: Handle) -> None:
        self.pod = str(handle.get("pod") or "")
        self._watch.started(handle)

    def waiting(self, sentence: str) -> None:
        self._watch.waiting(sentence)

    def stderr(self, text: str) -> None:
        self._watch.stderr(text)

    def line(self, text: str) -> None:
        self._watch.line(text)
        if self._injection.error is not None and not self._told:
            # What was to be measured cannot be: the run ends here, and not minutes later.
            self._told = True
            raise self._injection.error
        if self._injection.begun and not self._told:
            self._told = True
            self._watcher.notice(f"now: {self._injection.target.part} on {self._injection.target.node}")
        with suppress(StackmarkError):
            event = self.stream.feed(text)
            if isinstance(event, Hello):
                self._hello = event
            if event is not None and self._hello is not None:
                late = time.time() - (self._hello.time_unix_s - self._hello.t + event.t)
                self.offset_s = late if self.offset_s is None else min(self.offset_s, late)
            if isinstance(event, Phase) and event.phase == "measure" and event.state == "begin":
                self._injection.measuring.set()


@contextmanager
def healing_at_once(heal: threading.Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM heal first: what they raise may take its time to travel."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # One that is ignored (a job in the background of a script) stays ignored, and one that ends us leaves it to the healer.
    found = ((number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM))
    before = {number: handler for number, handler in found if callable(handler)}

    def healing(number: int, frame: FrameType | None) -> None:
        heal.set()
        before[signal.Signals(number)](number, frame)

    for number in before:
        signal.signal(number, healing)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
