"""A user's program in a pod's image that holds nothing of ours: restricted, as a user without a name, watched from outside."""

import sys

import pytest

from clusters import TestCluster, until
from fake_nvml import UUID, driver_that_lists
from hostile_images import image_with_entry_point, image_without_python
from stackmark.events import Failed, Log, Metric, Probe, Result, Stream, gathered_facts
from stackmark.experiments.recorder import Listener, Silent
from stackmark.ids import new_id
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.place import PodPlace
from stackmark.spec import Request, Scalar, Spec, Task
from stackmark.workloads.command.definition import CommandParams
from worker_images import load_image

pytestmark = pytest.mark.cluster

UNKNOWN_UID = 1_000_730_000
LIE = '{"event":"result","seq":7,"rank":0,"t":0}'


def ran(cluster: TestCluster, image: str, **params: Scalar) -> Stream:
    """Run a program in the image, and see that nothing is left of it."""
    if cluster.script is None:
        pytest.skip("this cluster has no script that loads an image")
    load_image(cluster, image)
    given = {"image": image, "namespace": cluster.namespace, "kubeconfig": cluster.kubeconfig, "gpus": "none"}
    place = PodPlace(PodOptions.model_validate({**given, "user": str(UNKNOWN_UID)}))
    listener, mark = Listener(Silent()), new_id("r")
    complete = CommandParams.model_validate({"cwd": ".", **params}).model_dump(mode="json")
    try:
        outcome = place.run(Task(do="run", spec=Spec(workload="command/own", params=complete)), listener, mark=mark)
    finally:
        place.stored(mark)
    until(lambda: not (cluster.pods() or cluster.jobs() or cluster.maps()), within_s=40)
    assert (outcome.failure, listener.broken) == (None, None)
    return listener.stream


def test_the_figure_is_what_the_program_prints_and_its_lines_are_no_events(
    restricted_cluster: TestCluster, podman_reach: object
) -> None:
    command = f"sh -c 'echo rate: 2.5; echo $0; echo last >&2' '{LIE}'"
    stream = ran(restricted_cluster, image_without_python(), cmd=command, metric="rate: ([0-9.]+)")
    closed = stream.ended()
    assert isinstance(closed, Result)
    assert closed.figure is not None
    assert closed.figure.value == 2.5
    # The two streams are stamped each for itself, so a line of one may come before an older one of the other.
    assert {event.line for event in stream.events if isinstance(event, Log)} == {"rate: 2.5", LIE, "last"}
    facts = gathered_facts(stream.events)
    assert facts["container"]["kubernetes"] is True
    assert facts["software"] == facts["cgroup"] == {}


def test_on_the_driver_s_own_machine_the_chip_is_the_gpu_that_lists_the_pod_s_process(
    restricted_cluster: TestCluster, podman_reach: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver_that_lists("sleep", "7.5"))
    stream = ran(restricted_cluster, image_without_python(), cmd="sleep 7.5")
    closed, gpu = stream.ended(), gathered_facts(stream.events)["gpu"]
    assert isinstance(closed, Result)
    assert (gpu["under_test"], gpu["chip_by"]) == (UUID, "process list")
    assert closed.memory_peak_mib == 700
    assert any(isinstance(event, Metric) and event.name == "energy_j" for event in stream.events)


def test_a_time_of_whole_seconds_is_flagged(restricted_cluster: TestCluster, podman_reach: object) -> None:
    closed = ran(restricted_cluster, image_without_python(), cmd="sleep 3").ended()
    assert isinstance(closed, Result)
    assert closed.figure is not None
    assert closed.figure.value in (2, 3, 4, 5)
    assert any(flag.startswith("coarse-clock:") for flag in closed.flags)


def test_an_image_runs_its_entry_point(restricted_cluster: TestCluster, podman_reach: object) -> None:
    closed = ran(restricted_cluster, image_with_entry_point(), metric="speed ([0-9]+)").ended()
    assert isinstance(closed, Result)
    assert closed.figure is not None
    assert closed.figure.value == 42


@pytest.mark.parametrize("command", ["nosuch", "sh -c 'exit 7'"])
def test_a_program_that_fails_or_is_not_there_is_a_failed_run(
    restricted_cluster: TestCluster, podman_reach: object, command: str
) -> None:
    closed = ran(restricted_cluster, image_without_python(), cmd=command).ended()
    assert isinstance(closed, Failed)
    assert closed.kind == "command_failed"


def test_a_probe_finds_the_node_that_the_other_runs_follow_to(
    restricted_cluster: TestCluster, podman_reach: object
) -> None:
    image = image_without_python()
    load_image(restricted_cluster, image)
    given = {"image": image, "namespace": restricted_cluster.namespace, "kubeconfig": restricted_cluster.kubeconfig}
    place, listener, mark = (
        PodPlace(PodOptions.model_validate({**given, "gpus": "none"})),
        Listener(Silent()),
        new_id("r"),
    )
    request = Request(workload="command/own", params={"cmd": "sleep 600", "cwd": "."})
    assert place.run(Task(do="probe", request=request), listener, mark=mark).failure is None
    assert place.stored(mark) is None
    names = [node["metadata"]["name"] for node in restricted_cluster.cluster.items("/api/v1/nodes")]
    assert listener.handle["node"] in names
    assert any(isinstance(event, Probe) for event in listener.stream.events)
    until(lambda: not (restricted_cluster.pods() or restricted_cluster.jobs()), within_s=40)
