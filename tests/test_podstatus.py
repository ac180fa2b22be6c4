"""What the JSON of pods, Jobs, events and nodes says, in words. The JSON is a real cluster's, recorded."""

import copy
import json
import time
from pathlib import Path
from typing import cast

import pytest

from stackmark.kubernetes import status, why
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.objects import matches, quantity, requests, untolerated, words
from stackmark.kubernetes.why import holders_among

CASES = cast(dict[str, Json], json.loads((Path(__file__).parent / "data/kubernetes/pod_cases.json").read_text()))
NODES = cast(list[Json], CASES.pop("nodes"))


def case(name: str) -> Json:
    return copy.deepcopy(CASES[name])


def failure(name: str, gone: bool = False) -> tuple[str, str, str] | None:
    seen = case(name)
    found = why.failure_of(seen["pod"], seen["events"], gone=gone)
    return (found.kind, found.message, found.hint) if found else None


def waits(name: str) -> str:
    seen = case(name)
    return why.waiting_sentence(seen["pod"], seen["events"], seen.get("nodes", NODES), seen.get("others", []))


# Where it stands


@pytest.mark.parametrize(
    ("name", "phase"),
    [("too_many_gpus", "pending"), ("image_pull", "pulling"), ("bad_config", "creating"), ("running", "running"),
     ("done", "ended"), ("oom", "ended"), ("evicted", "ended"), ("out_of_gpus", "ended")],
)  # fmt: skip
def test_each_pod_stands_somewhere(name: str, phase: str) -> None:
    assert status.phase_of(case(name)["pod"]) == phase


def test_a_pod_that_is_not_there_is_gone() -> None:
    assert status.phase_of(None) == "gone"


def test_a_pod_that_its_node_should_have_ended_long_ago_is_gone() -> None:
    pod = case("running")["pod"]
    pod["metadata"]["deletionTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 300))

    assert status.phase_of(pod) == "gone"


def test_a_pod_behind_a_gate_is_queued() -> None:
    pod = case("too_many_gpus")["pod"]
    pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]

    assert status.phase_of(pod) == "queued"


def test_a_pull_that_goes_on_shows_in_the_events() -> None:
    seen = case("running")
    pod = seen["pod"]
    pod["status"]["phase"] = "Pending"
    pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "ContainerCreating"}}
    began = {"reason": "Pulling", "involvedObject": {"fieldPath": "spec.containers{worker}"}}

    assert status.phase_of(pod, events=[began]) == "pulling"
    assert status.phase_of(pod, events=[began, {**began, "reason": "Pulled"}]) == "creating"


def test_the_code_the_image_and_the_restarts_are_the_containers_own() -> None:
    pod = case("own_code")["pod"]

    assert status.exit_code(pod) == 13
    assert "sha256:" in str(status.image_id(pod))
    assert status.restarts(pod) == 0
    assert status.exit_code(case("running")["pod"]) is None


# When what happened


def test_the_parts_of_a_pods_life_are_timed_apart() -> None:
    seen = case("done")
    times = status.timeline(seen["pod"], seen["events"])

    assert times.run_s == pytest.approx(3, abs=1)
    assert times.pull_s == 0  # the image was there
    assert times.ended is not None
    assert times.created is not None
    assert times.pod_s == times.ended - times.created
    assert times.queue_s is not None
    assert times.start_s is not None
    assert times.run_s is not None
    assert times.queue_s + times.start_s + times.run_s == times.pod_s


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ('Successfully pulled image "x" in 1.234s (1.5s including waiting). Image size: 7 bytes.', 1.234),
        ('Successfully pulled image "x" in 2m3.5s (2m3.5s including waiting)', 123.5),
        ('Successfully pulled image "x" in 45.2ms (45.2ms including waiting)', 0.0452),
        ('Container image "x" already present on machine', 0.0),
    ],
)
def test_a_pulls_time_is_in_the_words_of_its_event(said: str, seconds: float) -> None:
    seen = case("done")
    pulled = next(one for one in seen["events"] if one["reason"] == "Pulled")
    pulled["message"] = said

    assert status.timeline(seen["pod"], seen["events"]).pull_s == pytest.approx(seconds)


def test_the_time_in_a_queue_counts_from_the_jobs_creation() -> None:
    seen = case("done")
    created = status.timeline(seen["pod"], seen["events"]).created
    assert created is not None
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created - 100))
    times = status.timeline(seen["pod"], seen["events"], {"metadata": {"creationTimestamp": stamp}})

    assert times.queue_s is not None
    assert times.queue_s >= 100


def test_a_pod_that_never_started_has_no_times_of_it() -> None:
    seen = case("too_many_gpus")
    times = status.timeline(seen["pod"], seen["events"])

    assert times.created is not None
    assert (times.scheduled, times.queue_s, times.started, times.run_s) == (None, None, None, None)


# How it failed


@pytest.mark.parametrize(
    ("name", "kind", "cause", "way_out"),
    [
        ("oom", "out_of_host_memory", "20Mi", "--memory"),
        ("killed", "killed", "SIGKILL", "kill -9"),
        ("deadline", "deadline", "2 s", "--deadline"),
        ("evicted", "evicted", 'EmptyDir volume "d" exceeds the limit "1Mi"', "--shm"),
        ("preempted", "preempted", "priority", "--priority-class"),
        ("out_of_gpus", "refused_by_node", "UnexpectedAdmissionError", "stackmark cluster doctor"),
        ("image_pull", "image_pull", "unreachable", "--image"),
        ("image_never", "image_pull", "--pull Never", "--pull"),
        ("bad_config", "bad_container_config", 'secret "not-there" not found', "namespace team-a"),
        (
            "start_error",
            "start_error",
            "/no/such/program",
            "kubectl -n team-a get events --field-selector involvedObject.name=start",
        ),
        ("deleted", "deleted", "deleted", "audit log"),
    ],
)
def test_each_failure_has_its_kind_its_cause_and_a_way_out(name: str, kind: str, cause: str, way_out: str) -> None:
    found = failure(name)

    assert found is not None
    assert found[0] == kind
    assert cause in found[1]
    assert way_out in found[2]


@pytest.mark.parametrize("name", ["done", "running", "own_code", "too_many_gpus", "selector", "unbound_volume"])
def test_what_works_waits_or_speaks_for_itself_has_not_failed(name: str) -> None:
    assert failure(name) is None


def test_a_pod_that_is_gone_while_it_ran_was_deleted() -> None:
    found = failure("running", gone=True)

    assert found is not None
    assert found[0] == "deleted"


def test_a_pod_whose_work_was_done_before_it_was_deleted_has_not_failed() -> None:
    assert failure("done", gone=True) is None


def test_of_a_pod_that_nobody_saw_its_events_tell() -> None:
    events = [{"reason": "TaintManagerEviction", "message": "Marking for deletion Pod team-a/x"}]

    found = why.failure_of(None, events)

    assert found is not None
    assert found.kind == "node_lost"


def test_a_node_that_is_lost_is_not_somebody_who_deleted_the_pod() -> None:
    seen = case("deleted")
    seen["pod"]["status"]["conditions"].append(
        {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting",
        }
    )
    found = why.failure_of(seen["pod"], seen["events"])

    assert found is not None
    assert found.kind == "node_lost"


def test_a_registry_that_failed_once_is_given_another_try() -> None:
    seen = case("image_pull")
    for one in seen["events"]:
        one["count"] = 1

    assert why.failure_of(seen["pod"], seen["events"]) is None


def test_a_pod_that_is_given_up_while_its_image_is_pulled_again_names_the_image() -> None:
    seen = case("image_pull")
    for one in seen["events"]:
        one["count"] = 1
    found = why.unfinished_pull(seen["pod"], seen["events"])

    assert found is not None
    assert found.kind == "image_pull"
    assert "--image" in found.hint


@pytest.mark.parametrize("name", ["running", "too_many_gpus", "bad_config"])
def test_a_pod_that_waits_for_something_else_pulls_no_image(name: str) -> None:
    seen = case(name)
    assert why.unfinished_pull(seen["pod"], seen["events"]) is None


@pytest.mark.parametrize(
    "said", ["failed to authorize: 401 Unauthorized", "pull access denied, repository does not exist"]
)
def test_an_image_that_the_registry_refuses_names_both_options(said: str) -> None:
    seen = case("image_pull")
    seen["pod"]["status"]["containerStatuses"][0]["state"]["waiting"]["message"] = said
    found = why.failure_of(seen["pod"], [])

    assert found is not None
    assert found.kind == "image_pull"
    assert [option for option in ("--image", "--pull-secret") if option not in found.hint] == []


def test_an_image_for_another_architecture_is_not_waited_for() -> None:
    seen = case("image_pull")
    waiting = seen["pod"]["status"]["containerStatuses"][0]["state"]["waiting"]
    waiting["message"] = (
        'failed to pull and unpack image "registry.example/arm:1": no match for platform in manifest: not found'
    )
    found = why.failure_of(seen["pod"], [])

    assert found is not None
    assert found.kind == "other_architecture"


def test_an_image_that_the_registry_does_not_have_is_not_waited_for() -> None:
    seen = case("image_pull")
    waiting = seen["pod"]["status"]["containerStatuses"][0]["state"]["waiting"]
    waiting["message"] = 'failed to resolve reference "registry.example/none:1": registry.example/none:1: not found'
    found = why.failure_of(seen["pod"], [])

    assert found is not None
    assert found.kind == "image_pull"
    assert "registry.example/none:1" in found.message
    assert [option for option in ("--image", "--pull-secret") if option not in found.hint] == []


@pytest.mark.parametrize(
    ("name", "kind", "cause"),
    [
        ("job_quota", "quota", "quota small"),
        ("job_security", "forbidden_by_policy", "hostPath"),
        ("job_account", "no_service_account", "not-there"),
    ],
)
def test_a_job_whose_pods_are_refused_says_why(name: str, kind: str, cause: str) -> None:
    seen = case(name)
    found = why.job_refused(seen["job"], seen["events"])

    assert found is not None
    assert found.kind == kind
    assert cause in found.message


def test_a_job_that_is_suspended_was_not_refused() -> None:
    seen = case("job_suspended")

    assert why.job_refused(seen["job"], seen["events"]) is None


# Why it waits


def test_the_shortage_is_named_with_who_holds_the_devices() -> None:
    said = waits("gpus_held")
    assert "nvidia.com/gpu: node-1" in said
    assert "holder-a (team-a), holder-b" in said
    assert said.count("(team-a)") == 2


def test_who_holds_devices_is_not_guessed_where_one_may_not_see() -> None:
    seen = case("gpus_held")
    said = why.waiting_sentence(seen["pod"], seen["events"], NODES, [])

    assert "nvidia.com/gpu: node-1" in said
    assert "holder" not in said


def test_a_taint_is_named_as_the_option_that_tolerates_it() -> None:
    assert "node-2" in waits("tainted")
    assert "--toleration nodetype=gpu:NoSchedule" in waits("tainted")


def test_several_nodes_of_one_reason_are_one_clause() -> None:
    seen = case("gpus_held")
    del seen["pod"]["spec"]["nodeSelector"]
    said = why.waiting_sentence(seen["pod"], seen["events"], [NODES[0], *NODES[2:]], seen["others"])

    assert ", ".join(["node-3", "node-4", "node-5"]) in said
    assert said.count("--toleration reserved=yes:NoSchedule") == 1


def test_a_volume_that_is_not_there_is_named() -> None:
    assert all(named in waits("unbound_volume") for named in ("not-there", "team-a", "get pvc"))


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/1 …", "imagenet"),
        ("0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind.", "imagenet"),
        ('0/1 nodes are available: persistentvolumeclaim "other" is being deleted.', "is being deleted"),
        ('0/1 nodes are available: persistentvolumeclaim "other" bound to non-existent persistentvolume "v".', '"v"'),
        ("0/1 nodes are available: 1 cannot allocate all claims. still not schedulable", "cannot allocate"),
    ],
)
def test_a_claim_that_is_not_bound_is_named_with_what_the_scheduler_says(told: str, named: str) -> None:
    pod: Json = {
        "metadata": {"name": "p", "namespace": "team-a"},
        "spec": {"volumes": [{"name": "mount-0", "persistentVolumeClaim": {"claimName": "imagenet"}}]},
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": told}]},
    }
    said = why.waiting_sentence(pod, [])
    assert named in said
    assert "claim" in said


def test_a_folder_that_a_node_does_not_have_is_a_failure_and_not_a_wait() -> None:
    pod: Json = {
        "metadata": {"name": "p", "namespace": "team-a"},
        "spec": {"nodeName": "node-1"},
        "status": {
            "phase": "Pending",
            "containerStatuses": [{"name": "worker", "state": {"waiting": {"reason": "ContainerCreating"}}}],
        },
    }
    text = 'MountVolume.SetUp failed for volume "mount-0" : hostPath type check failed: /srv/none is not a directory'
    events: list[Json] = [{"type": "Warning", "reason": "FailedMount", "message": text}]
    failure = why.failure_of(pod, events)
    assert failure is not None
    assert failure.kind == "bad_container_config"
    assert "/srv/none" in failure.message


def test_a_device_plugin_that_is_away_is_told_from_devices_that_are_held() -> None:
    seen, nodes = case("gpus_held"), copy.deepcopy(NODES)
    nodes[0]["status"]["allocatable"]["nvidia.com/gpu"] = "0"
    said = why.waiting_sentence(seen["pod"], seen["events"], nodes, [])

    assert "node-1" in said
    assert "device plugin" in said
    assert "device plugin" not in waits("gpus_held")
    assert why.hopeless_sentence(seen["pod"], nodes) is None


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("too_many_gpus", ["3 nvidia.com/gpu", "node-1", "2 nvidia.com/gpu"]),
        ("too_much_memory", ["4.00 TiB", "node-1", "23.4 GiB"]),
        ("selector", ["test=yes"]),
    ],
)
def test_what_no_node_could_ever_give_is_hopeless(name: str, named: list[str]) -> None:
    said = why.hopeless_sentence(case(name)["pod"], NODES)
    assert said is not None
    assert all(word in said for word in named)


@pytest.mark.parametrize("name", ["gpus_held", "tainted", "unbound_volume"])
def test_what_may_come_is_not_hopeless(name: str) -> None:
    assert why.hopeless_sentence(case(name)["pod"], NODES) is None


def test_without_a_list_of_nodes_nothing_is_hopeless() -> None:
    assert why.hopeless_sentence(case("too_many_gpus")["pod"], []) is None


def test_an_autoscaler_that_adds_a_node_is_hope() -> None:
    assert why.hopeless_sentence(case("selector")["pod"], NODES, [{"reason": "TriggeredScaleUp"}]) is None


def test_a_resource_that_no_node_offers_is_hopeless() -> None:
    pod = case("too_many_gpus")["pod"]
    pod["spec"]["containers"][0]["resources"] = {"limits": {"amd.com/gpu": "1"}}

    assert "amd.com/gpu" in str(why.hopeless_sentence(pod, NODES))


def test_a_queue_that_has_not_admitted_a_job_is_named() -> None:
    said = why.waiting_sentence({}, [], job=case("job_suspended")["job"])

    assert "queue gpus" in said
    assert "get workloads" in said


def test_of_a_large_cluster_a_few_nodes_are_named() -> None:
    seen = case("gpus_held")
    del seen["pod"]["spec"]["nodeSelector"]
    many = [{**copy.deepcopy(NODES[0]), "metadata": {"name": f"node-{number}"}} for number in range(1000)]
    holding = [
        {**seen["others"][0], "spec": {**seen["others"][0]["spec"], "nodeName": f"node-{number // 2}"}}
        for number in range(2000)
    ]
    said = why.waiting_sentence(seen["pod"], seen["events"], many, holding)

    assert "996 more" in said
    assert len(said) < 1000


@pytest.mark.parametrize(
    "pod", [{}, {"metadata": None, "spec": None, "status": None}, {"status": {"containerStatuses": []}}]
)
def test_json_with_nothing_in_it_is_no_error(pod: Json) -> None:
    why.failure_of(pod, [{}])
    status.timeline(pod, [{}])
    why.waiting_sentence(pod, [{}], [{}], [{}])
    why.hopeless_sentence(pod, [{}])
    assert status.phase_of(pod) == "pending"


def test_foreign_words_lose_their_control_characters_and_their_length() -> None:
    assert words("a\x1b[31mb\n c" + "x" * 9999).startswith("a [31mb c")
    assert len(words("x" * 9999)) <= 301


# What the scheduler counts


@pytest.mark.parametrize(
    ("text", "number"),
    [("2", 2), ("500m", 0.5), ("8Gi", 8 * 2**30), ("1k", 1000), ("1.5G", 1.5e9), ("1e3", 1000), ("128974848", 128974848),
     ("12E", 12e18), ("nothing", 0), ("", 0), (None, 0)],
)  # fmt: skip
def test_a_quantity_is_read_as_kubernetes_does(text: object, number: float) -> None:
    assert quantity(text) == pytest.approx(number)


def test_a_pod_holds_what_its_containers_ask_or_the_largest_that_goes_before() -> None:
    def container(cpu: str, **more: str) -> Json:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    pod = {
        "spec": {
            "containers": [container("1"), container("500m")],
            "initContainers": [container("4"), container("250m", restartPolicy="Always")],
            "overhead": {"cpu": "100m"},
        }
    }
    assert requests(pod)["cpu"] == pytest.approx(4.1)


def test_holders_are_those_that_run_on_the_node() -> None:
    others = case("gpus_held")["others"]
    ended = copy.deepcopy(others[0])
    ended["status"]["phase"] = "Succeeded"

    assert [one.pod for one in holders_among([*others, ended], "nvidia.com/gpu", "node-1")] == ["holder-a", "holder-b"]
    assert holders_among(others, "nvidia.com/gpu", "node-2") == []


@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        ({"key": "zone", "operator": "In", "values": ["a", "b"]}, True),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "zone", "operator": "Exists"}, True),
        ({"key": "other", "operator": "DoesNotExist"}, True),
        ({"key": "gpus", "operator": "Gt", "values": ["3"]}, True),
        ({"key": "gpus", "operator": "Lt", "values": ["3"]}, False),
        ({"key": "zone", "operator": "Gt", "values": ["3"]}, False),
    ],
)
def test_affinity_is_judged_as_the_scheduler_does(rule: Json, fits: bool) -> None:
    node = {"metadata": {"name": "n", "labels": {"zone": "a", "gpus": "4"}}}
    required = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
    pod = {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}}

    assert matches(node, pod) is fits


@pytest.mark.parametrize(
    ("toleration", "away"),
    [
        ({"key": "gpu", "operator": "Exists"}, False),
        ({"key": "gpu", "value": "yes", "effect": "NoSchedule"}, False),
        ({"key": "gpu", "value": "no"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, True),
        ({"operator": "Exists"}, False),
        ({"key": "other", "operator": "Exists"}, True),
    ],
)
def test_a_taint_keeps_away_who_does_not_tolerate_it(toleration: Json, away: bool) -> None:
    node = {"spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}}

    assert bool(untolerated(node, {"spec": {"tolerations": [toleration]}})) is away
