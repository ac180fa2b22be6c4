"""Which runs may be compared, and why not, in sentences."""

from dataclasses import replace

import pytest

from stackmark.spec import Scalar
from stackmark.verdict.comparable import Subject, not_known, reasons_not_comparable

PARAMS: dict[str, Scalar] = {
    "batch": 64,
    "precision": "bf16",
    "tune": "fast",
    "seconds": 10.0,
    "seed": 1,
    "fused": True,
}
BEFORE = Subject(
    label="before",
    workload="train/resnet50",
    params=PARAMS,
    unit="images/s",
    samples_per_step=64,
    operations_per_sample=24.5e9,
    chip="NVIDIA H200",
    chip_uuid="GPU-1",
    machine_id="m1",
)
AFTER = replace(BEFORE, label="after")


def test_the_same_work_on_the_same_chip_may_be_compared() -> None:
    assert reasons_not_comparable(BEFORE, AFTER) == []
    assert not_known(BEFORE, AFTER) == []


def test_another_workload_is_the_one_reason_that_matters() -> None:
    other = replace(AFTER, workload="train/gpt2", unit="sequences/s", params={"batch": 8})
    assert reasons_not_comparable(BEFORE, other) == [
        "before measured train/resnet50, after train/gpt2: their rates count different work"
    ]


def test_a_parameter_that_nobody_typed_in_an_arm_is_a_reason() -> None:
    other = replace(AFTER, params={**PARAMS, "batch": 128, "fused": False}, samples_per_step=128)
    assert reasons_not_comparable(BEFORE, other) == [
        "batch is 64 in before and 128 in after",
        "fused is true in before and false in after",
    ]


def test_what_was_typed_in_an_arm_is_the_question_and_no_reason() -> None:
    other = replace(AFTER, params={**PARAMS, "batch": 128}, samples_per_step=128)
    assert reasons_not_comparable(BEFORE, other, typed_keys=["batch"]) == []


def test_another_parameter_is_a_reason_beside_a_typed_one() -> None:
    other = replace(AFTER, params={**PARAMS, "batch": 128, "precision": "fp32"}, samples_per_step=128)
    assert reasons_not_comparable(BEFORE, other, typed_keys={"batch"}) == [
        "precision is bf16 in before and fp32 in after"
    ]


@pytest.mark.parametrize("key", ["seconds", "seed", "steps", "warmup_seconds"])
def test_for_how_long_was_measured_is_no_reason(key: str) -> None:
    assert reasons_not_comparable(replace(BEFORE, params={key: 1}), replace(AFTER, params={key: 2})) == []


def test_a_parameter_that_came_with_a_later_version_is_no_reason() -> None:
    assert reasons_not_comparable(BEFORE, replace(AFTER, params={**PARAMS, "brand_new": 3})) == []


def test_other_samples_or_another_model_under_the_same_name_are_reasons() -> None:
    (reason,) = reasons_not_comparable(BEFORE, replace(AFTER, samples_per_step=32))
    assert "64 samples" in reason
    (reason,) = reasons_not_comparable(BEFORE, replace(AFTER, operations_per_sample=23.1e9))
    assert "the model was not built alike" in reason


def test_another_unit_has_no_ratio() -> None:
    (reason,) = reasons_not_comparable(BEFORE, replace(AFTER, unit="1/ms"))
    assert reason == "before is in images/s, after in 1/ms: there is no ratio of the two"


def test_another_chip_is_a_reason_unless_it_was_asked_for() -> None:
    other = replace(AFTER, chip="NVIDIA L4", chip_uuid="GPU-9", machine_id="m2")
    assert reasons_not_comparable(BEFORE, other) == [
        "before ran on NVIDIA H200, after on NVIDIA L4: the ratio would be the chips'"
    ]
    assert reasons_not_comparable(BEFORE, other, may_differ_chip=True) == []
    assert reasons_not_comparable(BEFORE, other, typed_keys=["device"]) == []


def test_another_chip_of_the_same_model_is_another_chip() -> None:
    (reason,) = reasons_not_comparable(BEFORE, replace(AFTER, chip_uuid="GPU-2"))
    assert "two different chips of one model" in reason


def test_another_machine_with_the_same_kind_of_cpu_is_another_machine() -> None:
    cpu = replace(BEFORE, chip="EPYC 9654", chip_uuid=None)
    assert reasons_not_comparable(cpu, replace(cpu, label="after", machine_id="m2")) == [
        "before and after ran on different machines"
    ]


def test_another_number_of_ranks_is_a_reason() -> None:
    assert reasons_not_comparable(BEFORE, replace(AFTER, ranks=2, samples_per_step=128)) == [
        "before ran on 1 ranks, after on 2"
    ]
    assert reasons_not_comparable(BEFORE, replace(AFTER, ranks=2, samples_per_step=128), typed_keys=["ranks"]) == []


def test_what_an_imported_log_does_not_say_is_no_reason_but_is_told() -> None:
    log = replace(AFTER, chip=None, chip_uuid=None, machine_id="", operations_per_sample=None, samples_per_step=None)
    assert reasons_not_comparable(BEFORE, log) == []
    assert not_known(BEFORE, log) == [
        "the chip of after is not known, so it was not compared",
        "the machine of after is not known, so it was not compared",
    ]


def test_a_value_of_any_length_is_cut() -> None:
    long = replace(AFTER, params={**PARAMS, "precision": "x" * 10_000})
    (reason,) = reasons_not_comparable(BEFORE, long)
    assert len(reason) < 200
