"""A worker in a pod: one Job, whose log is the worker's stream, and whose status says what the worker could not.

The pod lives without us: when we are killed it goes on to its end or its deadline, and is found again by its labels (the next
command through the ledger, `stackmark cluster clean`, and after a day the cluster itself by the Job's TTL). So nothing hangs
on a connection: the log is followed through lost ones, and the pod is removed only when all it said is stored.
"""

import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import JsonValue

from stackmark.errors import ClusterError, PlaceError, Terminated
from stackmark.kubernetes import checks, manifest, names, notes, trouble
from stackmark.kubernetes.client import connect
from stackmark.kubernetes.following import Following
from stackmark.kubernetes.options import LONGEST_DEADLINE_S, PodOptions
from stackmark.kubernetes.patience import AGAIN_S, COMING_BACK_S, patiently, wait_until_ready
from stackmark.kubernetes.ready import Ready, has_resource, make_ready
from stackmark.kubernetes.removing import remove, remove_of_dead_drivers
from stackmark.places.place import Facts, Outcome, Watch
from stackmark.places.process import ended_from_outside, worker_environment
from stackmark.secrets_masking import value_of
from stackmark.spec import Spec, Task

# A pod without a limit of its own: so many times what the spec says it measures, and this for its set-up.
DEADLINE_TIMES, DEADLINE_SETUP_S = 5.0, 3600.0


class PodPlace:
    name = "pod"

    def __init__(
        self,
        options: PodOptions | None = None,
        cache: Path | None = None,
        kind: names.Kind = "run",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._options = options or PodOptions()
        self._cache = cache.absolute() if cache else None
        self._kind = kind
        self._environment = worker_environment(os.environ if environment is None else environment)
        for name in self._options.named_variables:
            value_of(name, self._environment)  # what is missing is said before anything is created
        self._ready: Ready | None = None
        self._remarked = False
        self._tidied = False
        self._offered: bool | None = None

    def options(self) -> dict[str, JsonValue]:
        """As they were typed."""
        return self._options.model_dump(mode="json", exclude_unset=True)

    def prepare(self) -> Ready:
        """Finds the cluster, the rights, the image or the host's own software, once."""
        if self._ready is None:
            try:
                self._ready = make_ready(self._options, self._environment)
            except ClusterError as error:
                raise trouble.explained(error, "the cluster is asked") from error
        return self._ready

    def has_own_files(self) -> bool:
        """Whether the pod runs an image without the host's folders in it."""
        return self._options.image is not None and self._options.host_software != "yes"

    def not_enforced(self, spec: Spec, facts: Facts) -> list[str]:
        return checks.not_enforced(self._options, self._gpus(Task(do="run", spec=spec)), facts)

    def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
        ready, wanted = self._prepared(task, watch, mark, time_limit_s)
        self._remark(wanted, watch)
        self._tidy(ready, watch)
        following = Following(ready, wanted, watch, time_limit_s)
        interruption: BaseException | None = None
        followed = False
        try:
            following.create()
            following.wait_for_worker()
            following.read()
            followed = True
        except (KeyboardInterrupt, Terminated) as error:
            interruption, followed = error, True
        except ClusterError as error:
            raise trouble.explained(error, f"the Job {names.object_name(mark)}") from error
        finally:
            if not followed:
                self.stored(mark)
        if interruption or following.timed_out:
            following.end_early()
            failure = ended_from_outside(interruption, not following.timed_out, time_limit_s)
            return Outcome(following.exit_code, failure, tuple(following.stderr_lines), interruption)
        failure = following.failure()
        return Outcome(following.exit_code, failure, tuple(following.stderr_lines))

    def stored(self, mark: str) -> str | None:
        """Remove the Job, its pod and its claim: their log is in the ledger now."""
        if self._ready is None:
            return None
        ready = self._ready
        try:
            remove(ready.cluster, ready.namespace, mark)
        except ClusterError as error:
            notes.give_up(mark)
            name = f"{ready.namespace}/{names.object_name(mark)}"
            return f"the Job {name} could not be removed: {error.message}; the next stackmark command removes it"
        notes.forget(mark)
        return None

    def _prepared(
        self, task: Task, watch: Watch, mark: str, time_limit_s: float | None
    ) -> tuple[Ready, manifest.Wanted]:
        """Find what the pod needs. A cluster that answered before is waited for; one that never did is an error at once.

        Every run comes after a probe, or after a command that looked at its places first.
        """
        try:
            if task.do == "run" or self._ready is not None:
                options = self._options
                known = (
                    self._ready.cluster
                    if self._ready
                    else connect(options.context, options.kubeconfig, options.namespace)
                )
                wait_until_ready(known, watch.waiting)
                ready = self._prepare_again()
            else:
                ready = self.prepare()
            return ready, patiently(lambda: self.wanted(ready, task, mark, time_limit_s), watch.waiting)
        except ClusterError as error:
            raise trouble.explained(error, "the cluster is asked") from error

    def _prepare_again(self) -> Ready:
        """Prepare for a run in a cluster that was fit for it: one that has just come back knows no rights for a moment."""
        until = time.monotonic() + COMING_BACK_S
        while True:
            try:
                return self.prepare()
            except PlaceError:
                if time.monotonic() > until:
                    raise
            time.sleep(AGAIN_S)

    def _tidy(self, ready: Ready, watch: Watch) -> None:
        """Remove what earlier drivers left. What cannot be removed now is found by the next command."""
        said = notes.remove_orphans(ready.cluster.server)
        if not self._tidied:
            with suppress(ClusterError):
                count = remove_of_dead_drivers(ready.cluster, ready.namespace)
                said += [notes.removed_sentence(count, ready.namespace, ready.cluster.context)] if count else []
                self._tidied = True
        for sentence in said:
            watch.waiting(sentence)

    def wanted(self, ready: Ready, task: Task, mark: str, time_limit_s: float | None = None) -> manifest.Wanted:
        """What the pod of this task is made of. A place that needs more in its pod adds to it."""
        if self._cache and ready.software is not None:
            self._cache.mkdir(parents=True, exist_ok=True)
        return manifest.Wanted(
            mark=mark,
            kind="probe" if task.do == "probe" and self._kind == "run" else self._kind,
            options=ready.options,
            namespace=ready.namespace,
            image=ready.image,
            task=task,
            node=ready.node,
            gpus=self._gpus(task),
            software=ready.software,
            cache=str(self._cache) if self._cache and ready.software is not None else None,
            deadline_s=self._options.deadline_s or _deadline(task, time_limit_s),
            environment=self._environment,
            claim_version=ready.claim_version,
            about={"kubernetes_version": ready.cluster.version},
        )

    def _remark(self, wanted: manifest.Wanted, watch: Watch) -> None:
        """Once. What a namespace forbids, it will say itself."""
        forbidden = manifest.forbidden_by_restricted(wanted)
        for sentence in () if self._remarked else manifest.remarks(wanted):
            if sentence not in forbidden:
                watch.waiting(sentence)
        self._remarked = True

    def _gpus(self, task: Task) -> int:
        """How many. Where it is left to us: one, unless the work is on the CPU or the cluster has none."""
        count = self._options.gpu_count
        if count is not None:
            return count
        asked = task.spec or task.request
        device = str(asked.params.get("device", "auto")) if asked else "auto"
        if device == "cpu":
            return 0
        if device.startswith("cuda"):
            return 1
        if self._offered is None:
            # Once: what all runs of a place ask for must not depend on an API server that is away.
            self._offered = has_resource(self.prepare(), self._options.resource)
        return int(self._offered)


def _deadline(task: Task, time_limit_s: float | None) -> int:
    """The pod's own, for the case that nobody is there to end it: well after ours."""
    if time_limit_s == math.inf:
        return LONGEST_DEADLINE_S
    if time_limit_s is not None:
        return math.ceil(time_limit_s) + 120
    params = task.spec.params if task.spec else task.request.params if task.request else {}
    spans = [params.get(name) for name in ("seconds", "warmup_seconds", "timeout")]
    known = sum(float(span) for span in spans if isinstance(span, int | float))
    return math.ceil(DEADLINE_SETUP_S + DEADLINE_TIMES * known)
