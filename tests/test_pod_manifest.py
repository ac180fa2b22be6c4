"""What is created in a cluster: valid in every version, accepted by a real API server, and doing what it says in a real pod."""

import base64
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from clusters import TestCluster, until
from leaving_out import leave_out
from refusing import refused
from stackmark.kubernetes.client import ApiError
from stackmark.kubernetes.manifest.build import (
    anchor,
    claim_template,
    config_map,
    cronjob,
    job,
    pod,
    printing,
    sleeping,
)
from stackmark.kubernetes.manifest.request import PodRequest, forbidden_by_restricted
from stackmark.places.bundle import TARGET, worker_bundle
from stackmark.places.container.software import HostSoftware
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.request import carried, gpus_of, pod_request, proxies, remarks, root_links
from stackmark.spec import SPEC_LIMIT_BYTES, Request, Scalar, Task, read_task

Json = dict[str, Any]
VERSIONS = [f"1.{minor}" for minor in range(28, 38)]
BUSYBOX = "localhost/busybox:1"
# What people ask for; each is made as a Job, a Pod and a CronJob.
ASKED: dict[str, Json] = {
    "nothing": {},
    "a gpu": {"gpus": "1", "cpus": "2", "memory": "8Gi", "shm": "1Gi"},
    "openshift": {"gpus": "1", "cpus": "8", "memory": "32g", "openshift": True},
    "a place": {"node": "node-1", "node_selector": ["a/b=c"], "toleration": ["x=y:NoSchedule", "z", "w:NoExecute"]},
    "another vendor": {"gpus": "2", "resource": "amd.com/gpu"},
    "a fraction": {"cpus": "0.5", "memory": "64m"},
    "a registry": {"pull_secret": ["a", "b"], "pull": "Always"},
    "names": {"runtime_class": "nvidia", "service_account": "runner", "priority_class": "high", "queue": "team-a"},
    "dra": {"gpus": "2", "dra": "gpu.nvidia.com"},
    "rdma": {"rdma": "rdma/hca=2", "cap": ["IPC_LOCK"], "network_attachment": ["net-a", "other/net-b@net1"]},
    "host network": {"host_network": True},
    "root": {"user": "0"},
    "a user": {"user": "1234:5678"},
    "the image's user": {"user": "image"},
    "variables": {"env": ["A=$(HOME)", "B=${C} $$"], "env_from_proxy": True},
    "a deadline": {"deadline": "2h"},
    "a claim": {"mount": ["claim:imagenet:/data", "claim:results:/out:rw"]},
    "a folder of the node": {"mount": ["hostpath:/srv:/data"]},
    "nfs": {"mount": ["nfs:files.example:/exports/a:/data"]},
}  # fmt: skip
# Those that `restricted` refuses, by a word of ours.
FORBIDDEN = {
    "rdma": "IPC_LOCK", "host network": "hostNetwork", "root": "root", "host software": "hostPath",
    "a folder of the node": "hostPath", "nfs": "NFS",
}  # fmt: skip
HOST = HostSoftware("/usr/bin/python3", ("/usr",))


TASK = Task(do="run", request=Request(workload="train/resnet50"))


def wanted(options: Json | None = None, **more: Any) -> PodRequest:
    read = PodOptions.model_validate(options or {})
    given: Json = {"mark": "r-1", "kind": "run", "namespace": "n", "image": "localhost/stackmark:1"}
    return pod_request(read, **{**given, "gpus": read.gpu_count or 0, "task": TASK, **more})


def said_of(options: Json | None = None, task: Task = TASK, **more: Any) -> list[str]:
    return remarks(PodOptions.model_validate(options or {}), wanted(options, task=task, **more), task)


def made(name: str, **more: Any) -> dict[str, Json]:
    one = wanted(None if name == "host software" else ASKED[name], **more)
    if name == "host software":
        one = wanted(software=HOST, cache="/var/tmp", **more)
    found = {"job": job(one), "pod": pod(one), "cronjob": cronjob(one, "0 * * * *")}
    return found | ({"claim": claim} if (claim := claim_template(one)) else {})


def spec_of(found: Json) -> Json:
    template: Json = found["spec"]["template"]["spec"]
    return template


def worker_of(found: Json) -> Json:
    container: Json = spec_of(found)["containers"][0]
    return container


def env_of(found: Json) -> dict[str, str]:
    return {one["name"]: one["value"] for one in worker_of(found)["env"] if "value" in one}


# Valid


# Every manifest in the oldest and the newest version, and three with much in them in all that lie between.
CASES = [
    (name, version)
    for name in (*ASKED, "host software")
    for version in VERSIONS
    if version in (VERSIONS[0], VERSIONS[-1]) or name in ("a gpu", "names", "dra")
    if not (name == "dra" and version in ("1.28", "1.29", "1.30"))  # claims had another shape there
]


@pytest.mark.parametrize(("name", "version"), CASES)
def test_a_manifest_is_valid_in_the_versions_that_are_kept(name: str, version: str) -> None:
    for kind, found in made(name).items():
        if kind != "claim":
            assert kubernetes_validate.validate(found, version, strict=True) == version


@pytest.mark.parametrize(("api", "first", "last"), [("v1", 34, 37), ("v1beta2", 33, 37), ("v1beta1", 32, 37)])
def test_a_claim_is_valid_where_its_version_is_served(api: str, first: int, last: int) -> None:
    claim = claim_template(wanted(ASKED["dra"], claim_version=api))
    assert claim is not None
    for minor in range(first, last + 1):
        assert kubernetes_validate.validate(claim, f"1.{minor}", strict=True) == f"1.{minor}"


def test_the_schemas_do_refuse_a_slip() -> None:
    slip = job(wanted())
    slip["spec"]["backofLimit"] = 0
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(slip, "1.37", strict=True)


# What stands in it


def test_nothing_is_started_twice_and_the_deadline_stands_on_the_pod() -> None:
    found = job(wanted(deadline_s=77))
    assert (found["spec"]["backoffLimit"], spec_of(found)["restartPolicy"]) == (0, "Never")
    assert [rule["action"] for rule in found["spec"]["podFailurePolicy"]["rules"]] == ["FailJob"]
    assert spec_of(found)["activeDeadlineSeconds"] == 77
    assert "activeDeadlineSeconds" not in found["spec"]
    assert found["spec"]["ttlSecondsAfterFinished"] == 86_400


def test_the_typed_deadline_is_the_pods() -> None:
    assert spec_of(job(wanted(ASKED["a deadline"], deadline_s=77)))["activeDeadlineSeconds"] == 7200


def test_requests_equal_limits_and_sizes_are_bytes() -> None:
    given = worker_of(job(wanted(ASKED["a gpu"])))["resources"]
    assert given["requests"] == given["limits"] == {"cpu": "2", "memory": str(8 << 30), "nvidia.com/gpu": "1"}


def test_shared_memory_is_as_typed_or_half_of_the_memory() -> None:
    sizes = [
        spec_of(job(wanted(asked)))["volumes"][0]["emptyDir"]
        for asked in ({"shm": "1g", "memory": "8g"}, {"memory": "8g"}, {})
    ]
    assert sizes == [{"medium": "Memory", "sizeLimit": str(size << 30)} for size in (1, 4, 8)]


def test_labels_stand_on_the_job_and_on_its_pod() -> None:
    found = job(wanted())
    assert found["metadata"]["labels"] == found["spec"]["template"]["metadata"]["labels"]
    assert found["metadata"]["labels"]["stackmark.io/run"] == "r-1"


def test_what_nobody_waits_for_names_no_driver() -> None:
    assert "stackmark.io/driver" in job(wanted())["metadata"]["labels"]
    assert "stackmark.io/driver" not in job(wanted(driven=False))["metadata"]["labels"]


def test_kueues_label_stands_on_the_job_which_waits() -> None:
    found = job(wanted(ASKED["names"]))
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert found["spec"]["suspend"] is True
    assert "suspend" not in job(wanted())["spec"]
    assert "kueue.x-k8s.io/queue-name" not in cronjob(wanted(ASKED["names"]), "@daily")["metadata"]["labels"]


def test_on_openshift_no_uid_is_set() -> None:
    assert spec_of(job(wanted()))["securityContext"]["runAsUser"] == 1001
    security = spec_of(job(wanted(ASKED["openshift"])))["securityContext"]
    assert security == {"seccompProfile": {"type": "RuntimeDefault"}, "runAsNonRoot": True}


def test_with_dra_gpus_are_asked_by_a_claim_and_by_nothing_else() -> None:
    one = wanted(ASKED["dra"])
    found, claim = job(one), claim_template(one)
    assert claim is not None
    assert worker_of(found)["resources"] == {"claims": [{"name": "gpus"}]}
    assert spec_of(found)["resourceClaims"][0]["resourceClaimTemplateName"] == claim["metadata"]["name"]
    request = claim["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    assert (request["deviceClassName"], request["count"]) == ("gpu.nvidia.com", 2)


def test_with_dra_and_no_gpu_there_is_no_claim() -> None:
    one = wanted({"dra": "gpu.nvidia.com", "gpus": "none"})
    assert claim_template(one) is None
    assert "resourceClaims" not in spec_of(job(one))


def test_the_pin_goes_through_the_scheduler() -> None:
    spec = spec_of(job(wanted(node="node-2")))
    assert "nodeName" not in spec
    assert '"values": ["node-2"]' in json.dumps(spec["affinity"])


def test_the_task_is_in_a_variable_and_says_that_no_lifeline_is_held() -> None:
    params: dict[str, Scalar] = {"batch": 4, "device": "cpu"}
    task = Task(do="run", request=Request(workload="train/resnet50", params=params))
    read = read_task(env_of(job(wanted(task=task)))["STACKMARK_SPEC"].replace("$$", "$"))
    assert read == task.model_copy(update={"lifeline": False})


def test_a_task_too_long_for_a_variable_is_refused() -> None:
    long: dict[str, Scalar] = {"cmd": "x" * SPEC_LIMIT_BYTES}
    with refused(str(SPEC_LIMIT_BYTES)):
        job(wanted(task=Task(do="run", request=Request(workload="command/run", params=long))))


def test_proxies_go_in_both_cases_whichever_is_set() -> None:
    found = proxies({"http_proxy": "a", "HTTPS_PROXY": "b", "no_proxy": "c", "NO_PROXY": "d", "ftp_proxy": ""})
    assert found == {
        "http_proxy": "a", "HTTP_PROXY": "a", "https_proxy": "b", "HTTPS_PROXY": "b", "no_proxy": "c", "NO_PROXY": "d",
    }  # fmt: skip


def test_an_image_gets_nothing_of_the_drivers_environment() -> None:
    mine = {"OMP_NUM_THREADS": "3", "PATH": "/x", "STACKMARK_LEDGER": "secret", "PYTHONPATH": "/y"}
    assert env_of(job(wanted(environment=mine))).keys() == {
        "HOME", "STACKMARK_SPEC", "STACKMARK_PLACE", "STACKMARK_WORKER_LOG",
    }  # fmt: skip


def test_the_hosts_software_gets_its_settings_but_not_which_gpus_are_to_be_seen() -> None:
    mine = {
        "OMP_NUM_THREADS": "3", "PATH": "/x", "STACKMARK_LEDGER": "secret", "CUDA_VISIBLE_DEVICES": "7", "AWS_SECRET": "s",
        "CUDA_CACHE_PATH": "/c", "STACKMARK_SPEC": "no", "STACKMARK_NODE": "no",
    }  # fmt: skip
    assert carried(mine, software=True) == {"OMP_NUM_THREADS": "3", "PATH": "/x"}
    assert carried(mine, software=False) == {"OMP_NUM_THREADS": "3"}


def test_the_hosts_folders_are_read_only_and_have_to_be_there() -> None:
    found = job(wanted(software=HOST, cache="/var/tmp/cache"))
    volumes = {one["name"]: one.get("hostPath") for one in spec_of(found)["volumes"]}
    mounts = {one["mountPath"]: one for one in worker_of(found)["volumeMounts"]}
    assert mounts["/usr"]["readOnly"] is True
    assert volumes[mounts["/usr"]["name"]] == {"path": "/usr", "type": "Directory"}
    assert "readOnly" not in mounts["/var/tmp/cache"]
    for link, target in root_links().items():
        assert volumes[mounts[link]["name"]]["path"] == target
    assert worker_of(found)["command"][0] == "/usr/bin/python3"
    assert len(mounts) == len(worker_of(found)["volumeMounts"])


def test_the_hosts_software_runs_as_who_owns_it() -> None:
    security = spec_of(job(wanted(software=HOST)))["securityContext"]
    assert security["runAsUser"] == os.getuid()
    assert ("runAsNonRoot" in security) == (os.getuid() != 0)


def test_what_a_caller_mounts_goes_before_what_we_would_mount_there() -> None:
    own = ({"name": "own", "emptyDir": {}}, {"name": "own", "mountPath": "/usr"})
    mounts = worker_of(job(replace(wanted(software=HOST), volumes=(own,))))["volumeMounts"]
    assert [mount["name"] for mount in mounts if mount["mountPath"] == "/usr"] == ["own"]


def test_an_image_gets_the_worker_from_a_config_map_and_cannot_write_beside_its_volumes() -> None:
    one = wanted()
    held = config_map(one)
    assert held is not None
    assert held["immutable"] is True
    (content,) = held["binaryData"].values()
    assert base64.b64decode(content) == worker_bundle().content
    found = job(one)
    assert {"name": held["metadata"]["name"]} in [volume.get("configMap") for volume in spec_of(found)["volumes"]]
    (mount,) = [one for one in worker_of(found)["volumeMounts"] if TARGET.startswith(one["mountPath"] + "/")]
    assert mount["readOnly"] is True
    assert worker_of(found)["securityContext"]["readOnlyRootFilesystem"] is True
    assert worker_of(job(wanted({"python": "/opt/conda/bin/python"})))["command"] == ["/opt/conda/bin/python", TARGET]


@pytest.mark.parametrize("more", [{"software": HOST}, {"command": ("true",)}], ids=["host software", "a command"])
def test_what_runs_no_worker_of_ours_in_an_image_gets_no_config_map(more: Json) -> None:
    one = wanted(**more)
    assert config_map(one) is None
    assert not any("configMap" in volume for volume in spec_of(job(one))["volumes"])
    assert "readOnlyRootFilesystem" not in worker_of(job(one))["securityContext"]


def test_an_anchor_starts_no_pod_even_where_a_queue_lets_it_go() -> None:
    found = anchor(wanted({"queue": "team-a"}))
    assert (found["spec"]["suspend"], found["spec"]["parallelism"]) == (True, 0)
    assert not any("kueue" in label for label in found["metadata"]["labels"])


@pytest.mark.parametrize("python", [None, sys.executable], ids=["by the shell", "by a Python"])
def test_what_waits_ends_at_once_when_it_is_asked_to_and_what_prints_prints(python: str | None, tmp_path: Path) -> None:
    with subprocess.Popen(sleeping(python, 600)) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.terminate()
        assert process.wait(30) == 0
    (tmp_path / "file").write_bytes(b"a\nb")
    assert subprocess.run(printing(python, str(tmp_path / "file")), capture_output=True).stdout == b"a\nb"


@pytest.mark.parametrize("name", [*ASKED, "host software"])
def test_what_restricted_forbids_is_said(name: str) -> None:
    one = wanted(software=HOST) if name == "host software" else wanted(ASKED[name])
    said = " ".join(forbidden_by_restricted(one))
    assert (FORBIDDEN[name] in said) if name in FORBIDDEN else not said


def test_a_fraction_and_half_a_guarantee_are_said() -> None:
    assert str(ASKED["a fraction"]["cpus"]) in said_of(ASKED["a fraction"])[0]
    assert "Guaranteed" in said_of({"cpus": "2"})[0]
    assert said_of(ASKED["a gpu"]) == []


def test_gpus_left_to_us_are_one_unless_the_work_is_on_the_cpu() -> None:
    def count(**params: Scalar) -> int:
        return gpus_of(PodOptions(), Request(workload="train/vgg16", params=params), lambda: offered)

    offered = True
    assert (count(), count(device="cuda:0"), count(device="cpu")) == (1, 1, 0)
    assert gpus_of(PodOptions(), Request(workload="op/allreduce", ranks=2)) == 2
    assert gpus_of(PodOptions(gpus="2"), None) == 2
    offered = False
    assert (count(), count(device="cuda:0"), count(device="cpu")) == (0, 1, 0)


# Accepted by a real API server


@pytest.mark.parametrize("schedule", ["", "* * * *", "0 * * * * *", "hourly"])
def test_a_schedule_that_has_not_five_fields_is_refused(schedule: str) -> None:
    with refused(repr(schedule)):
        cronjob(wanted(), schedule)


@pytest.mark.cluster
@pytest.mark.parametrize("schedule", ["0 * * * *", "*/15 0-6 1,15 * MON-FRI", "@hourly"])
def test_the_api_server_takes_the_schedule(schedule: str, cluster: TestCluster) -> None:
    body = cronjob(wanted(namespace=cluster.namespace), schedule)
    path = f"/apis/batch/v1/namespaces/{cluster.namespace}/cronjobs"
    cluster.cluster.create(path, body, dryRun="All", fieldValidation="Strict")


PATHS = {"job": "/apis/batch/v1/namespaces/{}/jobs", "cronjob": "/apis/batch/v1/namespaces/{}/cronjobs"}


@pytest.mark.cluster
@pytest.mark.parametrize("name", [*ASKED, "host software"])
def test_the_api_server_takes_it_and_restricted_takes_what_we_do_not_warn_of(
    name: str, restricted_cluster: TestCluster
) -> None:
    # Names of what would have to be there first: an account, a class.
    options = {key: value for key, value in ASKED.get(name, {}).items() if not key.endswith(("_class", "_account"))}
    more: Json = {"software": HOST} if name == "host software" else {}
    one = wanted(options, namespace=restricted_cluster.namespace, **more)
    cluster, namespace = restricted_cluster.cluster, restricted_cluster.namespace
    for kind, body in (("job", job(one)), ("cronjob", cronjob(one, "@daily"))):
        cluster.create(PATHS[kind].format(namespace), body, dryRun="All", fieldValidation="Strict")
    path = f"/api/v1/namespaces/{namespace}/pods"
    if name in FORBIDDEN:
        with pytest.raises(ApiError, match="violates PodSecurity"):
            cluster.create(path, pod(one), dryRun="All", fieldValidation="Strict")
    else:
        assert cluster.create(path, pod(one), dryRun="All", fieldValidation="Strict")["kind"] == "Pod"
    if claim := claim_template(one):
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"
        assert cluster.create(path, claim, dryRun="All", fieldValidation="Strict")["kind"] == claim["kind"]


# In a real pod


def ended_pod(cluster: TestCluster, mark: str) -> Json:
    def look() -> Json | None:
        pods = cluster.cluster.items(
            f"/api/v1/namespaces/{cluster.namespace}/pods", labelSelector=f"stackmark.io/run={mark}"
        )
        ended = [one for one in pods if one["status"].get("phase") in ("Succeeded", "Failed")]
        return ended[0] if ended else None

    return until(look)


def log_of(cluster: TestCluster, name: str) -> str:
    return cluster.cluster.text(f"/api/v1/namespaces/{cluster.namespace}/pods/{name}/log", container="worker")


@pytest.mark.cluster
def test_a_pod_in_a_restricted_namespace_is_what_was_asked_for(restricted_cluster: TestCluster) -> None:
    """A user without a name, its own shared memory and /tmp, its devices, no account, its node's name, and `$` as typed."""
    tricky = "$(HOME) $$ ${HOME} `x` \"q\" 'r' $"
    script = "id -u; df -k /dev/shm | tail -1; touch /tmp/x && echo wrote; env; ls /var/run/secrets 2>&1; exit 3"
    one = wanted(
        {"gpus": "1", "cpus": "1", "memory": "256m", "shm": "64m", "env": [f"TRICKY={tricky}"]},
        mark="asked", namespace=restricted_cluster.namespace, image=BUSYBOX, task=None, command=("sh", "-c", script),
    )  # fmt: skip
    restricted_cluster.cluster.create(PATHS["job"].format(restricted_cluster.namespace), job(one))
    ended = ended_pod(restricted_cluster, "asked")
    said = log_of(restricted_cluster, ended["metadata"]["name"]).splitlines()
    env = dict(line.split("=", 1) for line in said if "=" in line)
    assert said[0] == "1001"
    assert said[1].split()[1] == str(64 * 1024)
    assert said[2] == "wrote"
    assert env["TRICKY"] == tricky
    assert env["STACKMARK_NODE"] == ended["spec"]["nodeName"]
    assert env["STACKMARK_POD_UID"] == ended["metadata"]["uid"]
    assert (env["STACKMARK_CPU_LIMIT_MILLI"], env["STACKMARK_MEMORY_LIMIT_BYTES"]) == ("1000", str(256 << 20))
    assert len(env["NVIDIA_VISIBLE_DEVICES"].split(",")) == 1
    assert "No such file" in said[-1]
    assert ended["status"]["qosClass"] == "Guaranteed"


@pytest.mark.cluster
def test_a_command_word_with_a_dollar_is_handed_over_as_it_is(restricted_cluster: TestCluster) -> None:
    one = wanted(
        mark="dollar", namespace=restricted_cluster.namespace, image=BUSYBOX, task=None,
        command=("echo", "$(STACKMARK_NODE)", "$$", "a$"),
    )  # fmt: skip
    restricted_cluster.cluster.create(f"/api/v1/namespaces/{restricted_cluster.namespace}/pods", pod(one))
    ended = ended_pod(restricted_cluster, "dollar")
    assert log_of(restricted_cluster, ended["metadata"]["name"]) == "$(STACKMARK_NODE) $$ a$\n"


@pytest.mark.cluster
def test_a_failed_pod_fails_its_job_and_is_not_started_again(restricted_cluster: TestCluster) -> None:
    one = wanted(
        mark="fails",
        namespace=restricted_cluster.namespace,
        image=BUSYBOX,
        task=None,
        command=("sh", "-c", "echo why; exit 9"),
    )
    path = PATHS["job"].format(restricted_cluster.namespace)
    restricted_cluster.cluster.create(path, job(one))
    ended = ended_pod(restricted_cluster, "fails")

    def failed() -> Json | None:
        status = restricted_cluster.cluster.get(f"{path}/stackmark-fails")["status"]
        return status if any(one["type"] == "Failed" for one in status.get("conditions") or ()) else None

    assert until(failed)["failed"] == 1
    (state,) = ended["status"]["containerStatuses"]
    # The end of its log stands in its status, for the case that the log cannot be had.
    assert state["state"]["terminated"]["message"] == "why\n"
    pods = restricted_cluster.cluster.items(
        f"/api/v1/namespaces/{restricted_cluster.namespace}/pods", labelSelector="stackmark.io/run=fails"
    )
    assert len(pods) == 1


@pytest.mark.cluster
def test_a_pod_that_is_evicted_fails_its_job_and_is_not_started_again(restricted_cluster: TestCluster) -> None:
    """An eviction, as a drained node does it: another pod would be another measurement, begun in silence."""
    namespace = restricted_cluster.namespace
    one = wanted(
        mark="evicted", namespace=namespace, image=BUSYBOX, task=None,
        command=("sh", "-c", "trap 'exit 1' TERM; sleep 600 & wait"),
    )  # fmt: skip
    path = PATHS["job"].format(namespace)
    restricted_cluster.cluster.create(path, job(one))

    def running() -> Json | None:
        pods = restricted_cluster.cluster.items(
            f"/api/v1/namespaces/{namespace}/pods", labelSelector="stackmark.io/run=evicted"
        )
        return pods[0] if pods and pods[0]["status"].get("phase") == "Running" else None

    name = until(running)["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    restricted_cluster.cluster.create(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)

    def reason() -> str | None:
        status = restricted_cluster.cluster.get(f"{path}/stackmark-evicted")["status"]
        found = [one for one in status.get("conditions") or () if one["type"] == "Failed"]
        return found[0]["reason"] if found else None

    assert until(reason) == "PodFailurePolicy"
    pods = restricted_cluster.cluster.items(
        f"/api/v1/namespaces/{namespace}/pods", labelSelector="stackmark.io/run=evicted"
    )
    assert [one["metadata"]["name"] for one in pods] in ([name], [])


@pytest.mark.cluster
def test_the_hosts_software_runs_in_an_image_without_a_file(cluster: TestCluster, tmp_path: Path) -> None:
    """The python of this machine, where this machine is the node."""
    python = os.path.realpath("/usr/bin/python3")
    if not os.path.exists(python) or cluster.script is None:
        leave_out("the nodes are this machine only on a cluster of the script's, and it needs a /usr/bin/python3")
    one = wanted(
        mark="host", namespace=cluster.namespace, image="localhost/pause:1", software=HostSoftware(python, ("/usr",)),
        task=None, command=(python, "-c", "import ssl, sys; print(sys.version_info[0], open('/usr/x', 'w'))"),
    )  # fmt: skip
    cluster.cluster.create(PATHS["job"].format(cluster.namespace), job(one))
    ended = ended_pod(cluster, "host")
    assert "Read-only file system: '/usr/x'" in log_of(cluster, ended["metadata"]["name"])
