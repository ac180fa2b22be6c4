"""Images that have nothing of ours, in pods of a real cluster: restricted, as a user without a name, on a read-only root."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from clusters import TestCluster, until
from hostile_images import image_without_python
from stackmark.events import Failed, Result, gathered_facts
from stackmark.experiments.recorder import Listener, Silent
from stackmark.ids import new_id
from stackmark.places.bundle import worker_bundle
from stackmark.places.place import Facts, Outcome
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.place import PodPlace, not_enforced
from stackmark.spec import Request, Scalar, Task
from worker_images import conda_image, debian_image, foreign_image, image_without_shell, load_image, python_image

pytestmark = pytest.mark.cluster

# As OpenShift gives them.
UNKNOWN_UID = 1_000_730_000
FACTS = Task(do="facts")
GEMM = Task(do="probe", request=Request(workload="op/gemm", params={"device": "cpu"}))
STEPS: dict[str, Scalar] = {"batch": 2, "steps": 3, "warmup_steps": 1, "warmup_seconds": 0.0, "tune": "fast"}
TRAIN = Task(
    do="run", request=Request(workload="train/trivial_cifar10", params={"device": "cpu", **STEPS}), lifeline=False
)


@dataclass
class Run:
    options: PodOptions
    outcome: Outcome
    failed: str | None
    facts: Facts = field(default_factory=dict)
    steps: int = 0


def ran(cluster: TestCluster, image: str, task: Task = FACTS, *, python: str | None = None) -> Run:
    """Run a task in the image, and see that nothing is left of it."""
    if cluster.script is None:
        pytest.skip("this cluster has no script that loads an image")
    load_image(cluster, image)
    given = {"image": image, "namespace": cluster.namespace, "kubeconfig": cluster.kubeconfig, "gpus": "none"}
    read = PodOptions.model_validate({**given, "user": str(UNKNOWN_UID), "python": python})
    place, listener, mark = PodPlace(read), Listener(Silent()), new_id("r")
    try:
        outcome = place.run(task, listener, mark=mark, time_limit_s=60)
    finally:
        place.stored(mark)
    until(lambda: not (cluster.pods() or cluster.jobs() or cluster.maps()), within_s=40)
    events = listener.stream.events
    failed = next((event.kind for event in events if isinstance(event, Failed)), None)
    steps = sum(event.steps for event in events if isinstance(event, Result))
    return Run(read, outcome, failed, gathered_facts(events), steps)


@pytest.mark.parametrize(
    ("make", "python", "version"),
    [
        (conda_image, None, "3.11"),
        (lambda: python_image("3.10"), None, "3.10"),
        (image_without_shell, "/usr/bin/python3", "3.10"),
    ],
    ids=["conda", "python 3.10", "no shell"],
)
def test_an_image_without_anything_of_ours_runs_the_worker_that_was_sent(
    restricted_cluster: TestCluster, podman_reach: object, make: Callable[[], str], python: str | None, version: str
) -> None:
    run = ran(restricted_cluster, make(), python=python)
    assert (run.outcome.failure, run.outcome.exit_code, run.failed) == (None, 0, None)
    assert run.facts["stackmark"]["bundle_sha256"] == worker_bundle().sha256
    assert str(run.facts["software"]["python"]).startswith(version)
    assert run.facts["process"]["uid"] == UNKNOWN_UID
    assert not_enforced(run.options, 0, run.facts) == []
    run.facts["stackmark"]["bundle_sha256"] = "0" * 64
    assert len(not_enforced(run.options, 0, run.facts)) == 1


def test_an_image_of_conda_s_layout_trains_in_a_restricted_pod(
    restricted_cluster: TestCluster, podman_reach: object
) -> None:
    run = ran(restricted_cluster, conda_image(), TRAIN)
    assert (run.outcome.failure, run.outcome.exit_code, run.failed) == (None, 0, None)
    assert run.facts["software"]["executable"] == "/opt/conda/bin/python"
    assert run.steps == 3


@pytest.mark.parametrize(
    ("make", "task", "kind"),
    [
        (lambda: python_image("3.6"), FACTS, "old_python"),
        (debian_image, GEMM, "missing_package"),
        (image_without_python, FACTS, "no_python"),
        (image_without_shell, FACTS, "start_error"),
        (lambda: foreign_image(labelled=False), FACTS, "other_architecture"),
    ],
    ids=["python 3.6", "no torch", "no python", "no shell", "another architecture"],
)
def test_what_an_image_lacks_is_a_failure_of_its_own_kind(
    restricted_cluster: TestCluster, podman_reach: object, make: Callable[[], str], task: Task, kind: str
) -> None:
    run = ran(restricted_cluster, make(), task)
    assert (run.outcome.failure.kind if run.outcome.failure else run.failed) == kind
