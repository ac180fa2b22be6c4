"""A privileged pod on the node that stops a service of the host, and starts it again by itself.

What stops the kubelet or the runtime cannot rely on either: the pod only begins it. On the host a process is left, outside of
the pod's cgroup and of its session (by systemd where there is one), that stops the part, waits, and starts it again; a second
one starts the part once more a while later, should the first have been killed. Neither needs the API server, the pod, or us. The
moments it was done in are the node's own, written to a file on the host that the pod prints when it is over.

As in litmus' `kubelet-service-kill` the pod tolerates whatever the node becomes. To delete it ends the fault early, as far as
the kubelet hears of that.
"""

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from stackmark.cluster.faults.means import Commands, Plan, Setting, Target, commands_for, distribution_of
from stackmark.cluster.faults.record import MISSING_KEPT, Disk, FaultTimes
from stackmark.errors import ClusterError, SpecError, StreamError
from stackmark.events import Event, Steps, read_event
from stackmark.kubernetes import names
from stackmark.kubernetes.client import ApiError, Json, Unreachable
from stackmark.kubernetes.manifest.build import pod_spec, printing, sleeper
from stackmark.kubernetes.manifest.request import PodRequest, VolumeMount
from stackmark.kubernetes.pods import Awaited, NotReached, Pods
from stackmark.kubernetes.rights import Right
from stackmark.kubernetes.status import exit_code
from stackmark.places.pod.place import PodPlace
from stackmark.places.pod.setup import PodSetup
from stackmark.spec import COPY_VARIABLE, Task

# Between the helper's start and the fault: its first line is through the log by then.
DELAY_S = 2.0
# After the part should run again, the second guard starts it once more; the pod lives a little longer.
GUARD_S, POD_S = 30.0, 240.0
# How long a pod may take to start before it is given up, and how long its times are waited for at the end.
START_S, TIMES_S = 120.0, 180.0
LOOK_S = 0.3
# Two lines of shell for each process, in files of a folder on the host: what a person wrote into a command is never read by a
# second shell, nor by systemd, which has a meaning of its own for $ and %.
# On the host: $1 the folder, $2 seconds, $3 delay. A sleep in the background is waited for, so that a signal is heard at once.
OUT_OF_THE_POD = r"""
for f in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs; do { [ ! -w "$f" ] || echo $$ >"$f"; } 2>/dev/null; done
"""
FAULT = (
    OUT_OF_THE_POD
    + r"""
dir=$1 seconds=$2 delay=$3
say() { echo "$1 $(date +%s.%N) $2" >>"$dir/moments"; }
healed=
heal() {
  [ -z "$healed" ] || return 0
  healed=1; say over 0
  tries=0
  until /bin/sh "$dir/start" >/dev/null 2>&1; do tries=$((tries + 1)); [ $tries -lt 3 ] || break; sleep 2; done
  say healed $tries
}
trap heal EXIT
trap 'exit 1' INT TERM HUP
say pid $$
sleep "$delay" & wait $!
say stopping 0
/bin/sh "$dir/stop" >/dev/null 2>&1; say stopped $?
sleep "$seconds" & wait $!
"""
)
# The second guard: $1 the folder, $2 when it strikes. It clears the folder away when nobody needs it any more.
GUARD = (
    OUT_OF_THE_POD
    + r"""
trap '' HUP
sleep "$2"; grep -q '^healed' "$1/moments" || /bin/sh "$1/start" >/dev/null 2>&1
sleep 120; rm -rf "$1"
"""
)
# In the pod: the way into the host. By its first process, or, where that lets nobody in, by its root folder, as `oc debug` does.
ENTER = r"""
if nsenter -t 1 -m -u -i -n true 2>/dev/null; then exec nsenter -t 1 -m -u -i -n /bin/sh -c "$@"; fi
exec chroot /host /bin/sh -c "$@"
"""
# In the pod, but in the host's namespaces: begins both, then prints the moments, and passes a TERM on.
BEGIN = r"""
dir=$1 stop=$2 start=$3 seconds=$4 delay=$5 strikes=$6 fault=$7 guard=$8
umask 077; mkdir -p "$dir" && : >"$dir/moments" || exit 1
for f in stop start fault guard; do eval "printf '%s\n' \"\$$f\"" >"$dir/$f" || exit 1; done
begin() { unit=${dir##*/}-$1; script=$dir/$1; shift
  if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null 2>&1
  then systemd-run --quiet --collect --unit="$unit" /bin/sh "$script" "$dir" "$@"
  else setsid /bin/sh "$script" "$dir" "$@" </dev/null >/dev/null 2>&1 & fi; }
end() { pid=$(sed -n 's/^pid [0-9.N]* //p' "$dir/moments"); [ -z "$pid" ] || kill -TERM "$pid" 2>/dev/null; }
trap end TERM INT
begin guard "$strikes"
begin fault "$seconds" "$delay"
until grep -q '^healed' "$dir/moments"; do sleep 0.2; done
cat "$dir/moments"
"""
_MOMENT = re.compile(r"^(stopping|stopped|over|healed) (\d+(?:\.\d+)?)N? ?(\d*)$", re.MULTILINE)


class Helper:
    name = "helper"
    lead_s = 8.0

    def __init__(self, setting: Setting) -> None:
        self._setting, self._cluster = setting, setting.cluster
        if bool(setting.stop_command) != bool(setting.start_command):
            raise SpecError(
                "--stop-command and --start-command must be used together",
                hint="use both --stop-command and --start-command",
            )

    def plan(self, target: Target) -> Plan:
        commands = self._commands(target)
        space = self._setting.namespace
        kind = distribution_of(self._node(target.node), self._setting.distribution)
        by = "" if self._setting.stop_command else f" (as on {kind}; --distribution selects another)"
        warnings = [
            "the helper's pod is privileged, in the host's process namespace: Pod Security `privileged` must be allowed "
            f"in the namespace {space}"
        ]
        if target.part in ("api-server",) and not self._setting.stop_command:
            warnings.append(f"if the node loses power meanwhile, restore the manifest yourself: {commands.start}")
        return Plan(
            does=(
                f"starts the privileged pod {space}/{self._pod_name(target)} on {target.node}, "
                f"from the image {self._setting.image}",
                f"on the host{by}: {commands.stop}",
            ),
            heals=(
                f"a process on the host, {target.seconds:g} s later, by itself: {commands.start}",
                f"a second process on the host, {GUARD_S:g} s after that, if the first has died: the same command",
            ),
            rights=(
                Right("create", "", "pods", namespace=space),
                Right("delete", "", "pods", namespace=space),
                Right("get", "", "pods", "log", namespace=space),
            ),
            warnings=tuple(warnings),
        )

    def hurt(self, target: Target, heal: threading.Event) -> FaultTimes:
        path = f"/api/v1/namespaces/{self._setting.namespace}/pods"
        name = self._pod_name(target)
        self._cluster.create(path, self.manifest(target))
        asked = time.time()
        try:
            self._wait_for_start(target)
            planned = time.time() + DELAY_S
            return self._wait_for_end(f"{path}/{name}", target, heal, planned)
        finally:
            self._remove(f"{path}/{name}", asked + target.seconds)

    def manifest(self, target: Target) -> Json:
        """Return the manifest. The worker's image has sh, nsenter and chroot, or gets them from the host's folders."""
        setting, commands = self._setting, self._commands(target)
        name = self._pod_name(target)
        words = [
            f"/run/{name}", commands.stop, commands.start, f"{target.seconds:g}", f"{DELAY_S:g}",
            f"{DELAY_S + target.seconds + GUARD_S:g}", FAULT, GUARD,
        ]  # fmt: skip
        command = ["/bin/sh", "-c", ENTER, "enter", BEGIN, "begin", *words]
        mounts = [*(setting.worker.get("volumeMounts") or ()), {"name": "host-root", "mountPath": "/host"}]
        root = {"name": "host-root", "hostPath": {"path": "/", "type": "Directory"}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": setting.namespace,
                "labels": names.labels("fault", target.mark),
            },
            "spec": {
                "restartPolicy": "Never",
                "hostPID": True,
                "hostNetwork": True,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "activeDeadlineSeconds": round(target.seconds + START_S + POD_S),
                "terminationGracePeriodSeconds": 5,
                "nodeName": target.node,
                "tolerations": [{"operator": "Exists"}],
                "containers": [
                    {
                        "name": names.CONTAINER,
                        "image": setting.image,
                        "imagePullPolicy": "IfNotPresent",
                        "command": [word.replace("$", "$$") for word in command],
                        "securityContext": {"privileged": True, "runAsUser": 0, "runAsNonRoot": False},
                        "volumeMounts": mounts,
                    }
                ],
                "volumes": [*setting.volumes, root],
            },
        }

    def _commands(self, target: Target) -> Commands:
        setting = self._setting
        if setting.stop_command and setting.start_command:
            return Commands(setting.stop_command, setting.start_command)
        return commands_for(target.part, self._node(target.node), setting.distribution)

    def _node(self, name: str) -> Json:
        found = next((node for node in self._setting.nodes if node["metadata"]["name"] == name), None)
        if found is None:
            raise SpecError(f"the cluster has no node {name!r}", command="kubectl get nodes")
        return found

    def _pod_name(self, target: Target) -> str:
        return f"{names.object_name(target.mark)}-helper"

    def _wait_for_start(self, target: Target) -> None:
        name, namespace = self._pod_name(target), self._setting.namespace
        pods = Pods(self._cluster, namespace, f"{names.RUN_LABEL}={target.mark}", patience_s=0.0)
        one = Awaited(target.mark)
        try:
            pods.wait([one], _has_started, START_S)
        except NotReached as error:
            said = f": {pods.last_words(name)}" if one.phase == "ended" else ""
            raise ClusterError(
                f"the helper on {target.node} did not start: {error.message}{said}",
                hint="it needs an image with sh, nsenter and chroot: --helper-image",
                command=f"kubectl -n {namespace} describe pod {name}",
            ) from error

    def _wait_for_end(self, path: str, target: Target, heal: threading.Event, planned: float) -> FaultTimes:
        """Its log has the moments once it is over; the API server or the kubelet may take their time to hand it out."""
        over = planned + target.seconds
        asked_to_end = False
        while time.time() < over + TIMES_S:
            if heal.is_set() and not asked_to_end:
                # As far as the kubelet hears of it: its TERM ends the fault at once. Else the node does, when its time is up.
                asked_to_end = self._tell_to_end(path)
            elif time.time() >= over or asked_to_end:
                done = self._times(path)
                if done is not None:
                    return done
                if asked_to_end and self._gone(path):
                    return FaultTimes(begun_unix_s=planned, over_unix_s=time.time(), exact=False)
            heal.wait(LOOK_S) if not heal.is_set() else time.sleep(LOOK_S)
        return FaultTimes(
            begun_unix_s=planned, over_unix_s=over, exact=False, said=("the helper's times could not be read",)
        )

    def _tell_to_end(self, path: str) -> bool:
        try:
            self._cluster.delete(path, grace_s=5)
        except (Unreachable, ApiError):
            return False
        return True

    def _gone(self, path: str) -> bool:
        try:
            self._cluster.get(path)
        except ApiError as error:
            return error.status == 404
        except Unreachable:
            return False
        return False

    def _times(self, path: str) -> FaultTimes | None:
        try:
            text = self._cluster.text(f"{path}/log", timeout_s=5)
        except (Unreachable, ApiError):
            return None
        found = {what: (float(at), code) for what, at, code in _MOMENT.findall(text)}
        if "healed" not in found or "stopping" not in found:
            return None
        code = found.get("stopped", (0.0, "0"))[1]
        if code not in ("", "0"):
            raise ClusterError(
                f"the command that stops it ended with code {code} on the node; the start command was run nevertheless",
                hint="try it yourself on the node",
            )
        return FaultTimes(
            begun_unix_s=found["stopping"][0],
            over_unix_s=found["over"][0],
            healed_unix_s=found["healed"][0],
            clock="node",
        )

    def _remove(self, path: str, not_before: float) -> None:
        """Never while the fault lasts: its end would be ours to order. A pod that cannot be removed has a deadline."""
        if time.time() < not_before:
            return
        try:
            self._cluster.delete(path, grace_s=1)
        except (Unreachable, ApiError):
            return


def _has_started(one: Awaited) -> bool:
    return one.phase == "running" or (one.pod is not None and exit_code(one.pod) == 0)


# --- The worker's heartbeat on the node's disk: a copy of its events that needs no log, no kubelet and no API server
#
# The worker writes each event to a file in a folder of the pod before it goes to standard output. A second container of
# the pod keeps that folder open for reading when the worker has ended, however it ended. Where the pod itself is gone,
# so is its folder.


CONTAINER = "keeper"
FOLDER = "/stackmark-heartbeat"
FILE = f"{FOLDER}/events.jsonl"
VOLUME = "heartbeat"
# Longer than any run that is hurt: the pod's own deadline comes first.
WAIT_S = 1e6
READ_S, PAUSE_S = 60.0, 1.0


class KeptPod(PodPlace):
    """A pod whose worker also writes its heartbeat to disk."""

    def request(self, setup: PodSetup, task: Task, mark: str, time_limit_s: float | None = None) -> PodRequest:
        request = super().request(setup, task, mark, time_limit_s)
        return with_keeper(request, setup.python) if task.do == "run" else request


def with_keeper(request: PodRequest, python: str | None) -> PodRequest:
    volume: VolumeMount = ({"name": VOLUME, "emptyDir": {}}, {"name": VOLUME, "mountPath": FOLDER})
    kept = replace(request, volumes=(*request.volumes, volume), env={**request.env, COPY_VARIABLE: FILE})
    worker: Json = pod_spec(kept)["containers"][0]
    keeper = sleeper(worker, CONTAINER, python, WAIT_S, {"cpu": "100m", "memory": "64Mi"})
    return replace(kept, sidecars=(*kept.sidecars, keeper))


def read_disk(setup: PodSetup, pod: str, received: Sequence[Event]) -> Disk:
    """Compare the file of an ended worker with what was received from it."""
    deadline, why = time.monotonic() + READ_S, ""
    while time.monotonic() < deadline:
        try:
            done = setup.cluster.execute(
                setup.namespace, pod, printing(setup.python, FILE), container=CONTAINER, timeout_s=READ_S
            )
        except ClusterError as error:
            why = error.message
        else:
            if done.code == 0:
                return compared(done.out.splitlines(), received)
            why = (done.err or done.out).strip()[-300:] or f"it ended with code {done.code}"
        time.sleep(PAUSE_S)
    return Disk(read=False, why=why)


def compared(lines: Sequence[str], received: Sequence[Event]) -> Disk:
    """Compare the lines; a last line that is cut off is not an event, because its writer was killed."""
    known = {event.seq for event in received}
    events, missing = [], []
    for number, line in enumerate(lines, 1):
        try:
            event = read_event(line, number)
        except StreamError:
            continue
        if event is None:
            continue
        events.append(event)
        if event.seq not in known:
            missing.append(line)
    steps = sum(len(event.step_s) for event in events if isinstance(event, Steps) and event.phase == "measure")
    return Disk(
        read=True, events=len(events), steps=steps, missing=tuple(missing[:MISSING_KEPT]), missing_count=len(missing)
    )
