"""`--patch`: merged by name, as the API server does it, which is asked here, and what may not be patched away."""

import json
from pathlib import Path
from typing import Any

import pytest

from clusters import TestCluster
from refusing import refused
from stackmark.kubernetes.manifest import build
from stackmark.kubernetes.manifest.patch import LIMIT_BYTES, merged, patched_for, read_patch
from stackmark.kubernetes.manifest.request import PodRequest
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.request import pod_request
from stackmark.spec import Request, Task

Json = dict[str, Any]


def wanted(**options: object) -> PodRequest:
    task = Task(do="run", request=Request(workload="train/trivial"))
    read = PodOptions.model_validate(options)
    return pod_request(read, mark="r-1", kind="run", namespace="n", image="localhost/pause:1", task=task)


def inside(spec: Json) -> Json:
    """A patch of a Job's pod."""
    return {"spec": {"template": {"spec": spec}}}


def worker(**fields: object) -> Json:
    return {"containers": [{"name": "worker", **fields}]}


# As the API server does it

PATCHES: dict[str, Json] = {
    "a variable is added": worker(env=[{"name": "NEW", "value": "1"}]),
    "a variable is changed": worker(env=[{"name": "HOME", "value": "/home"}]),
    "a variable goes": worker(env=[{"name": "HOME", "$patch": "delete"}]),
    "a container is added": {"containers": [{"name": "other", "image": "localhost/pause:1"}]},
    "a mount is added by its path": worker(volumeMounts=[{"name": "tmp", "mountPath": "/more"}]),
    "a mount is changed by its path": worker(volumeMounts=[{"mountPath": "/tmp", "name": "shm"}]),
    "a volume is added": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "imagenet"}}]},
    "a volume's size": {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}}]},
    "tolerations are one": {"tolerations": [{"key": "a", "operator": "Exists"}]},
    "a command is one": worker(command=["sleep", "1"]),
    "a field goes": {"enableServiceLinks": None, "securityContext": {"runAsUser": None}},
    "a mapping is merged": {"securityContext": {"fsGroup": 7}},
    "pull secrets by name": {"imagePullSecrets": [{"name": "b"}, {"name": "a"}]},
    "host aliases": {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}]},
    "spread": {
        "topologySpreadConstraints": [
            {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
        ]
    },
    "resources": worker(resources={"limits": {"memory": "2Gi"}, "requests": None}),
    "drop the added": worker(securityContext={"capabilities": {"drop": ["NET_RAW"], "add": ["IPC_LOCK"]}}),
    "old and new ones mixed": worker(
        env=[{"name": "N1", "value": ""}, {"name": "STACKMARK_NODE", "value": "x", "valueFrom": None}, {"name": "N2"}]
    ),
    "in another order": worker(env=[{"name": "STACKMARK_POD_UID"}, {"name": "HOME", "value": "h"}, {"name": "N"}]),
}


@pytest.fixture(scope="module")
def stored(cluster: TestCluster) -> Json:
    """A pod as we make it, as a PodTemplate, which unlike a Job can be patched."""
    spec = build.pod(wanted(pull_secret=["a"], memory="1g", cpus="1"))["spec"]
    body = {"metadata": {"name": "patched"}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": spec}}
    path = f"/api/v1/namespaces/{cluster.namespace}/podtemplates"
    made = cluster.cluster.create(path, body)
    assert isinstance(made["template"]["spec"], dict)
    return made


@pytest.mark.cluster
@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_does_what_the_api_server_would_do(name: str, stored: Json, cluster: TestCluster) -> None:
    patch = {"template": {"spec": PATCHES[name]}}
    path = f"/api/v1/namespaces/{cluster.namespace}/podtemplates/patched"
    theirs = cluster.cluster.patch(path, patch, "strategic", dryRun="All")["template"]["spec"]
    ours = merged(stored["template"], patch["template"])["spec"]
    # The server sets what is missing to its defaults: what it would make of ours.
    body = {"metadata": {"name": "ours"}, "template": {"spec": ours}}
    completed = cluster.cluster.create(path.rpartition("/")[0], body, dryRun="All")["template"]["spec"]
    assert sorted_by_name(completed) == sorted_by_name(theirs)


def sorted_by_name(spec: Json) -> Json:
    """The server puts what is added first; the order means nothing in lists of things with names."""
    containers = [
        {**one, **{key: sorted(one[key], key=json.dumps) for key in ("env", "volumeMounts") if key in one}}
        for one in spec["containers"]
    ]
    lists = {key: sorted(spec[key], key=json.dumps) for key in ("volumes", "imagePullSecrets")}
    return {**spec, **lists, "containers": sorted(containers, key=json.dumps)}


def test_another_kind_of_volume_takes_the_place_of_the_one_before() -> None:
    """Plain strategic merge would leave both kinds, which no server takes."""
    ours = patched_for(
        build.job(wanted()), inside({"volumes": [{"name": "tmp", "persistentVolumeClaim": {"claimName": "d"}}]})
    )
    volumes = {volume["name"]: volume for volume in ours["spec"]["template"]["spec"]["volumes"]}
    assert volumes["tmp"] == {"name": "tmp", "persistentVolumeClaim": {"claimName": "d"}}


def test_the_original_stays_as_it_was() -> None:
    before = build.job(wanted())
    copy = json.loads(json.dumps(before))
    patched_for(before, inside(worker(env=[{"name": "HOME", "value": "x"}])))
    assert before == copy


# What the patch is for


def env_of(spec: Json) -> Json:
    return {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}


def test_a_patch_of_a_job_reaches_the_pod_of_each_kind() -> None:
    patch = inside(worker(env=[{"name": "NEW", "value": "1"}]))
    job = patched_for(build.job(wanted()), patch)
    pod = patched_for(build.pod(wanted()), patch)
    cron = patched_for(build.cronjob(wanted(), "0 * * * *"), patch)
    for spec in (job["spec"]["template"]["spec"], pod["spec"], cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]):
        assert env_of(spec)["NEW"] == "1"


def test_a_patch_may_say_that_it_is_for_a_pod() -> None:
    patch = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"annotations": {"a": "b"}},
        "spec": {"schedulerName": "volcano"},
    }
    cron = patched_for(build.cronjob(wanted(), "@daily"), patch)
    template = cron["spec"]["jobTemplate"]["spec"]["template"]
    assert template["metadata"]["annotations"]["a"] == "b"
    assert template["spec"]["schedulerName"] == "volcano"
    assert patched_for(build.pod(wanted()), patch)["spec"]["schedulerName"] == "volcano"


def test_a_patch_for_a_cronjob_is_for_nothing_else() -> None:
    patch = {"kind": "CronJob", "spec": {"timeZone": "Etc/UTC"}}
    assert patched_for(build.cronjob(wanted(), "@daily"), patch)["spec"]["timeZone"] == "Etc/UTC"
    with refused("CronJob", "Job"):
        patched_for(build.job(wanted()), patch)


@pytest.mark.parametrize(
    ("patch", "named"),
    [
        ({"metadata": {"name": "other"}}, "name"),
        ({"metadata": {"namespace": "other"}}, "namespace"),
        ({"metadata": {"labels": {"stackmark.io/run": "x"}}}, "stackmark.io/run"),
        ({"metadata": {"labels": None}}, "app.kubernetes.io/managed-by"),
        ({"spec": {"template": {"metadata": {"labels": {"$patch": "replace"}}}}}, "$patch: 'replace'"),
        ({"spec": {"backoffLimit": 3}}, "backoffLimit"),
        ({"spec": {"completions": 2}}, "completions"),
        (inside({"restartPolicy": "OnFailure"}), "restartPolicy"),
        (inside({"containers": [{"name": "worker", "$patch": "delete"}]}), "worker"),
        ({"spec": None}, "worker"),
        ({"spec": "all"}, "worker"),
        (inside({"containers": None}), "worker"),
        ({"kind": "Deployment"}, "Deployment"),
        (inside({"containers": [{"image": "x"}]}), "containers"),
        (inside({"containers": ["worker"]}), "containers"),
        (inside({"containers": [{"name": {"a": 1}}]}), "containers"),
        (inside({"containers": 7}), "containers"),
        (inside({"securityContext": {"$retainKeys": 1}}), "$retainKeys"),
        (inside({"securityContext": {"$patch": "explode"}}), "$patch: 'explode'"),
    ],
)
def test_what_the_measurement_stands_on_cannot_be_patched_away(patch: Json, named: str) -> None:
    with refused(named):
        patched_for(build.job(wanted()), patch)


# Reading it


def test_yaml_and_json_are_read_alike(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("spec:\n  template:\n    spec: {schedulerName: volcano}\n")
    (tmp_path / "a.json").write_text('{"spec": {"template": {"spec": {"schedulerName": "volcano"}}}}')
    assert (
        read_patch(str(tmp_path / "a.yaml"))
        == read_patch(str(tmp_path / "a.json"))
        == inside({"schedulerName": "volcano"})
    )


def test_the_option_merges_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("spec: {template: {spec: {schedulerName: volcano}}}")
    assert build.job(wanted(patch=str(tmp_path / "a.yaml")))["spec"]["template"]["spec"]["schedulerName"] == "volcano"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", ""),
        (b"- a\n", ""),
        (b"{}", ""),
        (b"spec: {a: [}", "YAML"),
        (b"a: 1\n---\nb: 2\n", "2 documents"),
        (b"\xff\xfe", ""),
        (b"a: 2026-11-15\n", "JSON"),
        (b"1: a\n", "JSON"),
        (b"a: .nan\n", "JSON"),
        (b"a: !!python/object:os.system {}\n", "YAML"),
        (b"a: &a [*a]\n", "line 1"),
        (b"[" * 100_000, ""),
        (b'{"a":' * 400 + b"1" + b"}" * 400, ""),
        (b"#" * (LIMIT_BYTES + 1), str(LIMIT_BYTES)),
    ],
)
def test_a_file_that_is_no_patch_is_refused(content: bytes, named: str, tmp_path: Path) -> None:
    file = tmp_path / "patch"
    file.write_bytes(content)
    with refused(str(file), named):
        read_patch(str(file))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with refused(str(path)):
            read_patch(str(path))
