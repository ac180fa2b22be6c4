"""Which node this machine is, and what a comparison with a pod on it needs."""

import sys
from collections.abc import Sequence

import pytest

from refusing import refused
from stackmark.errors import ClusterError, WorkerError
from stackmark.experiments.arms import ArmRequest, read_arms
from stackmark.experiments.compare import following, leading
from stackmark.experiments.probing import Resolved
from stackmark.kubernetes.client import connect
from stackmark.kubernetes.nodes import Node, smallest_image
from stackmark.machine import host as machine
from stackmark.places.place import Facts
from stackmark.spec import Spec

CHIP = "GPU-11111111-2222-3333-4444-555555555555"


def led(node: str | None, chip: object = CHIP) -> Resolved:
    """What the leading arm's probe gave: the node is the cluster's word, the GPU its worker's."""
    told: Facts = {"container": {"node": "a lie"}, "gpu": {"under_test": chip}}  # type: ignore[dict-item]
    return Resolved(Spec(workload="train/resnet20", params={}), {}, told, {"node": node} if node else {})


def data(images: Sequence[tuple[str, int]] = (), **info: str) -> dict[str, object]:
    listed = [{"names": [name], "sizeBytes": size} for name, size in images]
    return {"metadata": {"name": "a"}, "status": {"nodeInfo": info, "images": listed}}


def test_a_node_is_named_in_the_ledger_as_its_own_host_names_itself() -> None:
    raw = "3d1219c7c4c5404aaa1f6d2a48adfda4"
    assert Node(data(machineID=raw)).machine_id == machine.app_specific_id(bytes.fromhex(raw), machine.APPLICATION_ID)


@pytest.mark.parametrize("raw", ["", "uninitialized", "ab"])
def test_a_node_without_an_id_has_none(raw: str) -> None:
    node = Node(data(machineID=raw, bootID=""))
    assert (node.boot_id, node.machine_id, node.images) == (None, None, [])


def test_the_sandbox_s_image_is_taken_before_a_smaller_one_of_somebody_s() -> None:
    images = (("reg/app:1", 10), ("reg/pause:3.9", 300), ("reg/pause@sha256:00", 300), ("<none>:<none>", 1))
    assert smallest_image(Node(data(images))) == "reg/pause:3.9"
    assert smallest_image(Node(data(images[:1]))) == "reg/app:1"
    assert smallest_image(Node(data(images[2:]))) is None


def arm(place: str, **options: str) -> ArmRequest:
    return ArmRequest(place, place, dict(options), {})


def test_the_pod_is_asked_first_and_the_others_follow_its_gpu() -> None:
    arms = [arm("host"), arm("container", shm="1g"), arm("pod", image="i")]
    assert leading(arms) == 2
    host, container, pod = (one.place_options for one in following(arms, 2, led("n")))
    assert host == {"gpus": CHIP}
    assert container == {"gpus": CHIP, "shm": "1g"}
    assert pod == {"image": "i", "node": "n"}


def test_what_was_typed_is_not_changed() -> None:
    arms = [
        arm("pod", node="mine"),
        ArmRequest("host", "host", {"gpus": "0"}, {}),
        ArmRequest("h", "host", {}, {"device": "cpu"}),
    ]
    assert [one.place_options for one in following(arms, 0, led("n"))] == [{"node": "mine"}, {"gpus": "0"}, {}]


def test_without_a_pod_the_first_arm_is_asked_and_nobody_is_moved() -> None:
    arms = [arm("container"), arm("host")]
    assert leading(arms) == 0
    assert following(arms, 0, led(None)) == arms


@pytest.mark.parametrize("lie", ["0,1; rm -rf /", "all", 7, ["GPU-1"], "GPU-"])
def test_a_worker_names_a_gpu_by_its_uuid_or_not_at_all(lie: object) -> None:
    with refused("UUID", error=WorkerError):
        following([arm("pod"), arm("host")], 0, led("n", lie))


def test_without_the_package_the_command_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with refused("'stackmark[k8s]'", error=ClusterError):
        connect()


def test_a_number_of_gpus_holds_for_a_pod_and_a_container_alike() -> None:
    arms = read_arms(["container", "pod"], "train/resnet20", {"gpus": "1"})
    assert [int(str(arm.place_options["gpus"])) for arm in arms] == [1, 1]
