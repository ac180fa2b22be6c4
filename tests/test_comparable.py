"""Which runs may be compared, and why not, in sentences."""

import json
import pickle
from copy import deepcopy
from dataclasses import replace

import pytest

from stackmark.remarks import Remark
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


def kinds(remarks: list[Remark]) -> list[str]:
    return [remark.kind for remark in remarks]


def test_the_same_work_on_the_same_chip_may_be_compared() -> None:
    assert reasons_not_comparable(BEFORE, AFTER) == []
    assert not_known(BEFORE, AFTER) == []


def test_another_workload_is_the_one_reason_that_matters() -> None:
    other = replace(AFTER, workload="train/gpt2", unit="sequences/s", params={"batch": 8})
    (reason,) = reasons_not_comparable(BEFORE, other)
    assert reason.kind == "other-workload"
    assert "train/resnet50" in reason
    assert "train/gpt2" in reason


def test_a_parameter_that_nobody_typed_in_an_arm_is_a_reason() -> None:
    other = replace(AFTER, params={**PARAMS, "batch": 128, "fused": False}, samples_per_step=128)
    batch, fused = reasons_not_comparable(BEFORE, other)
    assert (batch.kind, fused.kind) == ("other-parameter", "other-parameter")
    assert [word for word in ("batch", "64", "128") if word not in batch] == []
    assert [word for word in ("fused", "true", "false") if word not in fused] == []


def test_what_was_typed_in_an_arm_is_the_question_and_no_reason() -> None:
    other = replace(AFTER, params={**PARAMS, "batch": 128}, samples_per_step=128)
    assert reasons_not_comparable(BEFORE, other, typed_keys=["batch"]) == []


def test_another_parameter_is_a_reason_beside_a_typed_one() -> None:
    other = replace(AFTER, params={**PARAMS, "batch": 128, "precision": "fp32"}, samples_per_step=128)
    (reason,) = reasons_not_comparable(BEFORE, other, typed_keys={"batch"})
    assert reason.kind == "other-parameter"
    assert [word for word in ("precision", "bf16", "fp32") if word not in reason] == []


@pytest.mark.parametrize("key", ["seconds", "seed", "steps", "warmup_seconds"])
def test_for_how_long_was_measured_is_no_reason(key: str) -> None:
    assert reasons_not_comparable(replace(BEFORE, params={key: 1}), replace(AFTER, params={key: 2})) == []


def test_a_parameter_that_came_with_a_later_version_is_no_reason() -> None:
    assert reasons_not_comparable(BEFORE, replace(AFTER, params={**PARAMS, "brand_new": 3})) == []


def test_other_samples_or_another_model_under_the_same_name_are_reasons() -> None:
    (reason,) = reasons_not_comparable(BEFORE, replace(AFTER, samples_per_step=32))
    assert (reason.kind, "64" in reason, "32" in reason) == ("other-samples", True, True)
    (reason,) = reasons_not_comparable(BEFORE, replace(AFTER, operations_per_sample=23.1e9))
    assert (reason.kind, "2.45e+10" in reason, "2.31e+10" in reason) == ("other-model", True, True)


def test_another_unit_has_no_ratio() -> None:
    (reason,) = reasons_not_comparable(BEFORE, replace(AFTER, unit="1/ms"))
    assert (reason.kind, "images/s" in reason, " ms" in reason) == ("other-unit", True, True)


def test_another_chip_is_a_reason_unless_it_was_asked_for() -> None:
    other = replace(AFTER, chip="NVIDIA L4", chip_uuid="GPU-9", machine_id="m2")
    (reason,) = reasons_not_comparable(BEFORE, other)
    assert (reason.kind, "NVIDIA H200" in reason, "NVIDIA L4" in reason) == ("other-chip-model", True, True)
    assert reasons_not_comparable(BEFORE, other, may_differ_chip=True) == []
    assert reasons_not_comparable(BEFORE, other, typed_keys=["device"]) == []


def test_another_chip_of_the_same_model_is_another_chip() -> None:
    (reason,) = reasons_not_comparable(BEFORE, replace(AFTER, chip_uuid="GPU-2"))
    assert (reason.kind, "GPU-1" in reason, "GPU-2" in reason) == ("other-chip", True, True)


def test_another_machine_with_the_same_kind_of_cpu_is_another_machine() -> None:
    cpu = replace(BEFORE, chip="EPYC 9654", chip_uuid=None)
    assert kinds(reasons_not_comparable(cpu, replace(cpu, label="after", machine_id="m2"))) == ["other-machine"]


def test_another_number_of_ranks_is_a_reason() -> None:
    assert kinds(reasons_not_comparable(BEFORE, replace(AFTER, ranks=2, samples_per_step=128))) == ["other-ranks"]
    assert reasons_not_comparable(BEFORE, replace(AFTER, ranks=2, samples_per_step=128), typed_keys=["ranks"]) == []


def test_what_an_imported_log_does_not_say_is_no_reason_but_is_told() -> None:
    log = replace(AFTER, chip=None, chip_uuid=None, machine_id="", operations_per_sample=None, samples_per_step=None)
    assert reasons_not_comparable(BEFORE, log) == []
    assert kinds(not_known(BEFORE, log)) == ["unknown-chip", "unknown-machine"]
    assert all("after" in remark and "before" not in remark for remark in not_known(BEFORE, log))


def test_a_value_of_any_length_is_cut() -> None:
    long = replace(AFTER, params={**PARAMS, "precision": "x" * 10_000})
    (reason,) = reasons_not_comparable(BEFORE, long)
    assert len(reason) < 200


def test_a_remark_is_a_string_that_keeps_its_kind_when_it_is_copied() -> None:
    (reason,) = reasons_not_comparable(BEFORE, replace(AFTER, unit="1/ms"))
    copied = pickle.loads(pickle.dumps(deepcopy(reason)))
    assert (copied, copied.kind) == (str(reason), "other-unit")
    assert json.loads(json.dumps([reason])) == [str(reason)]
