"""A run on several nodes as pods: which pods, what is applied, and which of their ends is the cause. No cluster is needed."""

from typing import Any

import kubernetes_validate
import pytest
import yaml

from asking import ask
from refusing import refused
from stackmark.errors import Exit
from stackmark.events import Failed, write_event
from stackmark.failures import PlaceFailure
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.log.lines import Closing
from stackmark.kubernetes.manifest.build import job, service
from stackmark.kubernetes.manifest.request import PodGroup, PodRequest
from stackmark.kubernetes.pods import Awaited
from stackmark.places.pod.member import Member, cause_among
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.request import gpus_of, group_of, pod_request
from stackmark.spec import Request, Task

IMAGE = "registry.example/pytorch:1"
COMPLETE = (
    *("--device", "cpu", "--precision", "fp32", "--set", "training", "--rows", "0"),
    *("--budget", "0", "--row-seconds", "0.1"),
)
MANIFEST = ("manifest", "op/all-reduce", "--ranks", "4", "--ranks-per-node", "2", "--image", IMAGE, "--without-worker")


def options(**typed: object) -> PodOptions:
    return PodOptions.model_validate({"image": IMAGE, "ranks_per_node": "2", **typed})


def asked(ranks: int = 4, **params: str) -> Request:
    return Request(workload="op/all-reduce", params=params, ranks=ranks)


def group_request(*, queue: str | None = None, **more: Any) -> PodRequest:
    task = Task(do="run", request=asked())
    given = {"namespace": "ns", "image": IMAGE, "task": task, "gpus": 2, "group": PodGroup(2, 2), **more}
    return pod_request(options(queue=queue), mark="r-1", kind="run", **given)


def pod_spec(found: Json) -> Json:
    inner: Json = found["spec"]["template"]["spec"]
    return inner


# Which pods


def test_each_node_has_a_pod_with_its_share_of_the_ranks() -> None:
    assert group_of(options(), asked(6)) == PodGroup(3, 2)


@pytest.mark.parametrize("typed", [{"ranks_per_node": None}, {"ranks_per_node": "4"}])
def test_a_run_whose_ranks_fit_on_one_node_has_one_pod(typed: dict[str, object]) -> None:
    assert group_of(options(**typed), asked(4)) is None


def test_fewer_ranks_than_a_node_may_have_are_in_one_pod_with_as_many_gpus() -> None:
    """As in a measurement of scaling, whose one rank has the options of the largest group."""
    assert group_of(options(ranks_per_node="4"), asked(1)) is None
    assert group_of(options(ranks_per_node="4"), asked(2)) is None
    assert gpus_of(options(ranks_per_node="4"), asked(1)) == 1


def test_a_pod_gets_a_gpu_for_each_of_its_ranks() -> None:
    assert gpus_of(options(), asked(8)) == 2
    assert gpus_of(options(), asked(8, device="cpu")) == 0


@pytest.mark.parametrize(
    ("typed", "ranks", "named"),
    [
        ({}, 3, "--ranks-per-node 2"),
        ({"node": "node-1"}, 4, "--node node-1"),
        ({"image": None}, 4, "--image"),
        ({"gpus": "1"}, 4, "--gpus 1"),
    ],
)
def test_what_cannot_be_a_group_is_refused_with_its_option(typed: dict[str, object], ranks: int, named: str) -> None:
    with refused(named):
        group_of(options(**typed), asked(ranks))


@pytest.mark.parametrize("text", ["0", "two", "-1", "9999"])
def test_ranks_per_node_is_a_number_of_ranks(text: str) -> None:
    with pytest.raises(ValueError, match="ranks_per_node"):
        options(ranks_per_node=text)


# What is applied


def test_the_job_makes_all_pods_at_once_and_one_that_fails_ends_it() -> None:
    found = job(group_request())
    spec = found["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (
        "Indexed",
        2,
        2,
        0,
    )
    assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == ["FailJob"]
    assert kubernetes_validate.validate(found, "1.28", strict=True)
    assert kubernetes_validate.validate(found, "1.37", strict=True)


def test_two_pods_of_a_group_are_never_on_one_node() -> None:
    (term,) = pod_spec(job(group_request()))["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"] == {"stackmark.io/run": "r-1"}


def test_the_pods_find_the_first_one_by_the_name_that_the_service_gives_it() -> None:
    request = group_request()
    found, serves = job(request), service(request)
    assert serves is not None
    values = {one["name"]: one.get("value") for one in pod_spec(found)["containers"][0]["env"]}
    name = serves["metadata"]["name"]
    assert pod_spec(found)["subdomain"] == name
    assert (values["MASTER_ADDR"], values["STACKMARK_NODE_RANKS"]) == (f"{found['metadata']['name']}-0.{name}", "2")
    assert str(serves["spec"]["ports"][0]["port"]) == values["MASTER_PORT"]
    assert serves["spec"]["clusterIP"] == "None"
    assert serves["spec"]["selector"] == {"batch.kubernetes.io/job-name": found["metadata"]["name"]}
    assert kubernetes_validate.validate(serves, "1.28", strict=True)


def test_a_single_pod_needs_no_service() -> None:
    request = group_request(group=None)
    assert service(request) is None
    assert "completionMode" not in job(request)["spec"]
    assert "subdomain" not in pod_spec(job(request))


def test_a_printed_manifest_of_several_pods_has_their_service() -> None:
    answer = ask(*MANIFEST, *COMPLETE, "--threads", "1")
    assert answer.code == 0, answer.err
    assert [one["kind"] for one in yaml.safe_load_all(answer.out)] == ["Service", "Job"]


def test_a_printed_manifest_of_several_pods_leaves_nothing_for_each_of_them_to_choose() -> None:
    answer = ask(*MANIFEST, *COMPLETE)
    assert (answer.code, answer.out) == (Exit.WRONG_USE, "")
    assert "--threads" in answer.err


@pytest.mark.parametrize("kind", ["pod", "cronjob"])
def test_several_pods_are_printed_as_a_job_only(kind: str) -> None:
    answer = ask(*MANIFEST, *COMPLETE, "--threads", "1", "--kind", kind)
    assert (answer.code, answer.out) == (Exit.WRONG_USE, "")
    assert "--kind" in answer.err


def test_volcano_starts_all_pods_of_its_queue_together() -> None:
    found = job(group_request(queue="team-a", queue_kind="volcano"))
    template = found["spec"]["template"]
    wanted = {"scheduling.volcano.sh/queue-name": "team-a", "scheduling.volcano.sh/group-min-member": "2"}
    assert wanted.items() <= found["metadata"]["annotations"].items()
    assert wanted.items() <= template["metadata"]["annotations"].items()
    assert template["spec"]["schedulerName"] == "volcano"
    # Its pods wait, and not the Job.
    assert "suspend" not in found["spec"]
    assert "kueue.x-k8s.io/queue-name" not in found["metadata"]["labels"]


def test_a_group_in_a_queue_of_kueue_waits_as_a_job() -> None:
    found = job(group_request(queue="team-a"))
    assert found["spec"]["suspend"] is True
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert "schedulerName" not in pod_spec(found)


# Which end is the cause


def member(number: int, *, failed_at: float | None = None, deleted: bool = False, **state: object) -> Member:
    meta = {"name": f"p-{number}", **({"deletionTimestamp": "2026-11-18T10:00:00Z"} if deleted else {})}
    pod = {"metadata": meta, "spec": {"nodeName": f"node-{number}"}, **state}
    one = Awaited("r-1", index=number, pod=pod)
    return Member(one, Closing(None), range(2 * number, 2 * number + 2), 4, failed_at=failed_at)


EVICTED, DELETED = PlaceFailure("evicted", "the node was short of memory"), PlaceFailure("deleted", "it was deleted")


def test_the_cause_names_the_ranks_the_pod_and_its_node() -> None:
    found = cause_among([(member(1, failed_at=1.0), EVICTED)], [])
    assert found is not None
    assert found.kind == "evicted"
    assert found.message.startswith("ranks 2 and 3 of 4, pod p-1 on node-1: ")


def test_a_pod_that_was_removed_after_another_failed_is_not_the_cause() -> None:
    removed, first = member(0, failed_at=1.0, deleted=True), member(1, failed_at=2.0)
    found = cause_among([(removed, DELETED), (first, EVICTED)], [removed, first])
    assert found is not None
    assert found.kind == "evicted"


def test_a_pod_that_somebody_deleted_is_the_cause_if_nothing_else_is() -> None:
    removed = member(0, failed_at=1.0, deleted=True)
    found = cause_among([(removed, DELETED)], [removed, member(1)])
    assert found is not None
    assert found.kind == "deleted"


def test_of_two_pods_that_were_removed_the_one_that_lost_no_other_is_the_cause() -> None:
    first, second = (member(number, failed_at=1.0, deleted=True) for number in (0, 1))
    first.take(write_event(Failed(seq=3, rank=1, t=1.0, kind="lost_rank", message="another is gone")))
    found = cause_among([(first, DELETED), (second, DELETED)], [first, second])
    assert found is not None
    assert "pod p-1 " in found.message


@pytest.mark.parametrize(("kind", "knows"), [("rank_died", True), ("lost_rank", False), ("terminated", False)])
def test_a_rank_that_reports_the_cause_itself_is_believed_and_not_one_that_lost_another(kind: str, knows: bool) -> None:
    speaker = member(0)
    speaker.take(write_event(Failed(seq=3, rank=1, t=1.0, kind=kind, message="it ended")))
    assert speaker.knows_cause is knows
    assert (cause_among([(member(1, failed_at=1.0), EVICTED)], [speaker]) is None) is knows
