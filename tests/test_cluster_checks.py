"""The functional checks: their parts by themselves, and the whole suite on a real cluster."""

import io
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from asking import COMMAND, ask, environment
from clusters import TestCluster, until
from limited_account import limited_account
from stackmark.cluster.checks import capacity
from stackmark.cluster.checks.capacity import fitting, sized
from stackmark.cluster.checks.devices import seen_in, shared, wrong_count
from stackmark.cluster.checks.lifecycle import first_wrong
from stackmark.cluster.checks.programs import idle, numbered
from stackmark.cluster.checks.suite import AREAS, CASES, Suite, chosen
from stackmark.cluster.checks.work import CaseFailed, Checked, Work, runs
from stackmark.errors import SpecError
from stackmark.kubernetes import names
from stackmark.kubernetes.client import Json
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.place import PodPlace
from stackmark.show.cluster_checks import junit_case, print_checks

pytestmark = pytest.mark.cluster_whole
# What `programs.devices` prints: with MIG and the driver's tool, with CDI, and with a stand-in.
MIG = """env NVIDIA_VISIBLE_DEVICES MIG-5f0e
node /dev/nvidia0
node /dev/nvidiactl
GPU 0: NVIDIA H200 (UUID: GPU-11aa)
  MIG 1g.18gb     Device  0: (UUID: MIG-5f0e)
"""
CDI = """env NVIDIA_VISIBLE_DEVICES void
node /dev/nvidia1
node /dev/nvidia-uvm
node /dev/dri/renderD129
node /dev/dri/*
"""
TWO_BY_VARIABLE = "env NVIDIA_VISIBLE_DEVICES GPU-a,GPU-b\nnode /dev/null\n"
AMD = "node /dev/kfd\nnode /dev/dri/card1\nnode /dev/dri/renderD128\n"


def test_a_log_is_whole_only_if_every_line_is_there_once_and_in_order() -> None:
    whole = numbered(5)
    assert first_wrong(whole, whole) == ""
    for broken, named in (
        (whole[:3], ["3", "6"]),
        ([*whole, "end"], ["7", "6"]),
        # Of the first line that is wrong: its number, what it says, and what it should say.
        ([whole[0], *whole], ["2", "0", "1"]),
        ([whole[1], whole[0], *whole[2:]], ["1", "1", "0"]),
    ):
        assert re.findall(r"\d+", first_wrong(broken, whole)) == named


@pytest.mark.parametrize(
    ("text", "names_seen"),
    [
        (MIG, {"MIG-5f0e"}),
        (CDI, {"/dev/nvidia1"}),
        (TWO_BY_VARIABLE, {"GPU-a", "GPU-b"}),
        (AMD, {"/dev/dri/renderD128"}),
        ("env NVIDIA_VISIBLE_DEVICES all\nnode /dev/null\nnode /dev/nvidia-caps\n", set()),
        ("\x1b[31mnonsense\n", set()),
    ],
)
def test_devices_are_seen_by_whichever_witness_speaks(text: str, names_seen: set[str]) -> None:
    seen = seen_in(text)
    assert seen.names == names_seen
    assert wrong_count(seen, len(names_seen)) == ""


def test_witnesses_that_disagree_with_what_was_asked_for_are_named() -> None:
    said = wrong_count(seen_in(TWO_BY_VARIABLE), 1)
    assert said.startswith("NVIDIA_VISIBLE_DEVICES ")
    assert [word for word in ("2 devices", "GPU-a, GPU-b", " 1 ") if word not in said] == []
    # No witness at all, so each that was looked for is named.
    assert "nvidia-smi" in wrong_count(seen_in("node /dev/null\n"), 1)
    # One agrees, the other does not: two device nodes for a pod that was given one by its variable.
    both = "env NVIDIA_VISIBLE_DEVICES GPU-a\nnode /dev/nvidia0\nnode /dev/nvidia1\n"
    said = wrong_count(seen_in(both), 1)
    assert said.startswith("device nodes ")
    assert "2 devices" in said


def test_a_device_node_of_the_same_number_on_two_nodes_is_two_devices() -> None:
    one = frozenset({"/dev/nvidia0"})
    assert shared([("node-1", one), ("node-2", one)]) == []
    assert shared([("node-1", one), ("node-1", one)]) == ["/dev/nvidia0"]


def node(name: str, gpus: str = "2", **spec: object) -> Json:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": dict(spec),
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "1", "memory": "1Gi", "pods": "110", "nvidia.com/gpu": gpus},
        },
    }


def pod_on(where: str, gpus: str, phase: str = "Running") -> Json:
    wants = {"cpu": "250m", "memory": "128Mi", "nvidia.com/gpu": gpus}
    return {
        "metadata": {"name": "p", "namespace": "n"},
        "spec": {"nodeName": where, "containers": [{"resources": {"requests": wants}}]},
        "status": {"phase": phase},
    }


def test_what_is_free_is_what_living_pods_do_not_hold() -> None:
    tainted = node("c", taints=[{"key": "other", "effect": "NoSchedule"}])
    nodes = [node("a"), node("b"), tainted, node("d", unschedulable=True)]
    pods = [pod_on("a", "1"), pod_on("a", "1", "Succeeded"), pod_on("b", "2")]
    wanted: Json = {"spec": {"containers": [{"resources": {"requests": {"cpu": "250m", "memory": "64Mi"}}}]}}
    found = capacity.node_capacities(nodes, pods, "nvidia.com/gpu", wanted)
    assert [(one.node, one.devices, one.free, one.pods) for one in found] == [("a", 2, 1, 109), ("b", 2, 0, 109)]
    # Three quarters of a CPU are left on each: three more pods of a quarter.
    assert capacity.count_fitting(found, wanted) == 6


def test_a_quota_says_how_many_more_there_may_be() -> None:
    quota = {"status": {"hard": {"pods": "5", "requests.cpu": "1"}, "used": {"pods": "2", "requests.cpu": "500m"}}}
    assert capacity.left_by_quota([quota], {"pods": 1, "requests.cpu": 0.05}) == 3
    assert capacity.left_by_quota([quota], {"pods": 1, "requests.cpu": 0.25}) == 2
    assert capacity.left_by_quota([quota], {"requests.nvidia.com/gpu": 1}) is None


def test_areas_choose_cases_and_keep_those_that_make_their_pods() -> None:
    assert len(chosen([])) == len(CASES)
    assert {case.area for case in chosen(["job"])} == {"image", "job"}
    assert [(case.name, case.scope) for case in chosen(["devices"]) if case.area == "gpu"] == [
        ("create", "many"), ("delete", "many")
    ]  # fmt: skip
    with pytest.raises(SpecError) as caught:
        chosen(["device"])
    assert "'device'" in caught.value.message
    assert "devices" in caught.value.message


def test_create_logs_exec_and_delete_are_cases_for_one_and_many_with_devices_and_without() -> None:
    table = {(case.area, case.name, case.scope) for case in CASES}
    for area in ("cpu", "gpu"):
        for name in ("create", "logs", "exec", "delete"):
            assert {(area, name, "one"), (area, name, "many")} <= table
    assert len(table) == len(CASES), "two cases have one name"
    assert set(AREAS) == {"cpu", "job", "gpu", "devices", "policy", "network"}


def test_a_failed_case_stands_below_the_table_with_what_to_do() -> None:
    lines = (
        Checked("cpu", "create", "one", "passed", 1.5, "1 pod runs"),
        Checked("cpu", "logs", "one", "failed", 2.0, "line 7 is \x1b[2J missing", "look at the node", "kubectl logs"),
        Checked("gpu", "create", "one", "left out", 0.0, "no node has nvidia.com/gpu"),
    )
    out = io.StringIO()
    print_checks(Suite("test", "https://here", "v1", "ns", "image", False, 2, lines), Console(file=out))
    text = out.getvalue()
    assert "\x1b" not in text
    below = {line[:12].strip(): line[12:] for line in text.splitlines()}
    assert [word for word in ("cpu", "logs", "one", "line 7", "\\x1b[2J") if word not in below["failed"]] == []
    assert (below["hint"], below["by hand"]) == (lines[1].hint, lines[1].command)
    assert re.findall(r"\d+", below["result"]) == ["3", "1", "1", "1"]
    assert [junit_case(line).outcome for line in lines] == ["passed", "failure", "skipped"]


# On a real cluster


@dataclass(frozen=True)
class Full:
    """One whole suite, which several tests look at."""

    code: int
    told: Json
    junit: ElementTree.Element
    notices: str

    def of(self, area: str) -> list[Json]:
        return [case for case in self.told["cases"] if case["area"] == area]


def image(cluster: TestCluster) -> str:
    return "localhost/busybox:1" if cluster.script else "docker.io/library/busybox:1.37"


@pytest.fixture(scope="module")
def full(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Full:
    file = tmp_path_factory.mktemp("check") / "check.xml"
    answer = ask("cluster", "check", "--image", image(cluster), "--pods", "3", "--json", "--junit", str(file))
    assert answer.out, answer.err
    return Full(answer.code, json.loads(answer.out), ElementTree.parse(file).getroot(), answer.err)


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_every_case_passes_or_says_why_it_was_left_out(full: Full) -> None:
    failed = [case for case in full.told["cases"] if case["result"] == "failed"]
    assert failed == []
    assert full.code == 0
    assert all(case["evidence"] for case in full.told["cases"])
    assert len(full.told["cases"]) == len(CASES)
    for area in ("image", "cpu", "job", "policy"):
        assert [case["result"] for case in full.of(area)] == ["passed"] * len(full.of(area))


def _devices(evidence: str) -> set[str]:
    return set(re.findall(r"GPU-\d-\d", evidence))


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_devices_are_given_held_and_returned(full: Full, test_cluster: TestCluster) -> None:
    if test_cluster.script is None:
        pytest.skip("how many devices are free on somebody's own cluster is not known")
    said = {case["case"]: case for case in full.of("devices")}
    assert {case["result"] for case in said.values()} == {"passed"}, said
    # Which of the four devices a pod gets is the scheduler's choice.
    assert len(_devices(said["exactly those asked for"]["evidence"])) in (2, 3)
    assert len(_devices(said["each pod its own"]["evidence"])) == 3
    assert "3 nvidia.com/gpu" in said["more than any node has"]["evidence"]
    assert "2 ran, 1 waited and ran" in said["more than are free"]["evidence"]
    assert "a new pod ran with the same" in said["return after delete"]["evidence"]


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_its_namespace_is_gone_afterwards(full: Full, test_cluster: TestCluster) -> None:
    name = full.told["namespace"]
    assert name.startswith("stackmark-check-")
    left = [one["metadata"]["name"] for one in test_cluster.cluster.items("/api/v1/namespaces")]
    assert [one for one in left if one.startswith(name)] == []


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_junit_has_every_case_and_counts_those_left_out(full: Full) -> None:
    suite = full.junit[0]
    assert (suite.get("tests"), suite.get("failures")) == (str(len(CASES)), str(full.told["failed"]))
    assert suite.get("skipped") == str(full.told["left_out"])
    assert suite.find("testcase[@name='cpu: exec (many)']") is not None


@pytest.mark.cluster
def test_an_image_without_a_shell_fails_the_first_case_and_leaves_the_others_out(cluster: TestCluster) -> None:
    bare = "localhost/pause:1" if cluster.script else "registry.k8s.io/pause:3.10"
    answer = ask("cluster", "check", "--image", bare, "--namespace", cluster.namespace, "--area", "job")
    assert answer.code == 6
    assert '"sh"' in answer.out
    result = next(line for line in answer.out.splitlines() if line.startswith("result"))
    assert re.findall(r"\d+", result) == ["4", "1", "3"]
    assert until(lambda: not cluster.pods())
    assert cluster.cluster.get(f"/api/v1/namespaces/{cluster.namespace}")["status"]["phase"] == "Active"


@pytest.mark.cluster
def test_who_may_not_make_a_namespace_is_told_to_name_one(cluster: TestCluster, tmp_path: Path) -> None:
    config = limited_account(cluster, tmp_path, "nobody", [])
    answer = ask("cluster", "check", "--kubeconfig", config, "--image", image(cluster))
    assert answer.code == 4
    assert "--namespace" in answer.err


@pytest.mark.cluster
def test_without_the_right_to_see_nodes_cases_about_devices_are_left_out(cluster: TestCluster, tmp_path: Path) -> None:
    rules: list[Json] = [
        {
            "apiGroups": ["", "batch"],
            "resources": ["pods", "jobs", "services", "pods/log", "events", "configmaps"],
            "verbs": ["*"],
        },
    ]
    config = limited_account(cluster, tmp_path, "pods-only", rules)
    words = ["--image", image(cluster), "--namespace", cluster.namespace, "--area", "devices", "--json"]
    answer = ask("cluster", "check", "--kubeconfig", config, *words)
    assert answer.code == 0, answer.err
    cases = json.loads(answer.out)["cases"]
    assert {case["result"] for case in cases[1:]} == {"left out"}
    assert "nodes" in cases[1]["evidence"]


@pytest.fixture
def work(cluster: TestCluster) -> Iterator[Work]:
    options = PodOptions(image=image(cluster), kubeconfig=cluster.kubeconfig)
    made = Work(PodPlace(sized(options, cluster.namespace), kind="check").prepare(), "check-test", 2, 5.0)
    made.begin(5.0)
    yield made
    made.groups.clear()
    made.remove_leftovers(wait_for_all=True)


@pytest.mark.cluster
def test_many_are_no_more_than_the_quota_leaves(cluster: TestCluster, work: Work) -> None:
    path = f"/api/v1/namespaces/{cluster.namespace}/resourcequotas"
    cluster.cluster.create(path, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "3"}}})
    try:
        until(lambda: (cluster.cluster.get(f"{path}/few").get("status") or {}).get("used"))
        said: list[str] = []
        assert fitting(work, 10, said.append) == 3
        (sentence,) = said
        assert re.findall(r"\d+", sentence) == ["3", "10"]
        assert "quota" in sentence
    finally:
        cluster.cluster.delete(f"{path}/few")


@pytest.mark.cluster
def test_a_case_whose_time_is_up_says_why_its_pod_waits(work: Work) -> None:
    greedy = replace(work, setup=replace(work.setup, options=work.options.model_copy(update={"memory": "900TiB"})))
    greedy.begin(1.0)
    made = greedy.create([greedy.pod(greedy.request("greedy", idle()))])
    with pytest.raises(CaseFailed) as raised:
        greedy.wait(made, runs, "run", early=False)
    assert "900 TiB" in str(raised.value)
    assert "--time-limit" in (raised.value.hint or "")
    greedy.begin(60.0)
    with pytest.raises(CaseFailed) as raised:
        greedy.wait(made, runs, "run")
    assert "900 TiB" in str(raised.value)


@pytest.mark.cluster
def test_only_what_the_suite_made_is_removed(cluster: TestCluster, work: Work) -> None:
    body: Json = {
        "metadata": {"name": "not-ours", "labels": names.labels("check", "another-suite")},
        "spec": {"containers": [{"name": "c", "image": image(cluster), "command": ["sleep", "600"]}]},
    }
    cluster.cluster.create(f"/api/v1/namespaces/{cluster.namespace}/pods", body)
    try:
        work.begin(60.0)
        work.start("ours", 1, idle(), keep=False)
        work.remove_leftovers(wait_for_all=True)
        assert [pod["metadata"]["name"] for pod in cluster.pods()] == ["not-ours"]
    finally:
        cluster.cluster.delete(f"/api/v1/namespaces/{cluster.namespace}/pods/not-ours", grace_s=0)


@pytest.mark.cluster
def test_an_interrupted_check_says_what_was_done_and_leaves_nothing(cluster: TestCluster, tmp_path: Path) -> None:
    words = [*COMMAND, "cluster", "check", "--image", image(cluster), "--area", "cpu", "--pods", "2"]
    # A shell that starts a command in the background has it ignore SIGINT: it is put back.
    process = subprocess.Popen(
        words,
        env=environment(tmp_path / "l.sqlite3", **cluster.variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    assert "starts, one" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 130, err
    assert "image  starts  one   passed" in out
    name = next(line.split()[1] for line in out.splitlines() if line.startswith("namespace"))
    listed = cluster.cluster.items("/api/v1/namespaces", fieldSelector=f"metadata.name={name}")
    assert listed == []
