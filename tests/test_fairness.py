"""What is said beside a verdict of arms that could not be alike."""

from dataclasses import replace

from examined_sample import sample_examined
from stackmark.experiments.fairness import warnings
from stackmark.spec import Scalar
from stackmark.verdict.examined import ExaminedArm


def arms(*params: dict[str, Scalar]) -> list[ExaminedArm]:
    first = sample_examined().arms[0]
    return [replace(first, index=n, label=f"arm {n}", params=of, typed={}) for n, of in enumerate(params)]


def about_batch(*params: dict[str, Scalar], asked: tuple[str, ...] = ()) -> list[str]:
    return [one for one in warnings(arms(*params), (), "", asked) if "batch" in one]


def test_a_batch_that_was_chosen_for_a_cpu_is_said_beside_the_gpu_that_has_it_too() -> None:
    (said,) = about_batch({"device": "cpu", "batch": 2}, {"device": "cuda:0", "batch": 2})
    assert all(named in said for named in ("2", "arm 0", "--batch"))


def test_a_batch_that_was_typed_is_the_persons_own() -> None:
    assert about_batch({"device": "cpu", "batch": 2}, {"device": "cuda:0", "batch": 2}, asked=("batch",)) == []


def test_on_one_kind_of_device_there_is_nothing_to_say() -> None:
    assert about_batch({"device": "cuda:0", "batch": 2}, {"device": "cuda:1", "batch": 2}) == []
