"""What may be asked of a pod: what the API server is told, and a sentence for what cannot be."""

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from stackmark.cli.options import parameter_fields
from stackmark.errors import SpecError
from stackmark.kubernetes.manifest.build import cpu_quantity
from stackmark.places.container.options import ContainerOptions
from stackmark.places.pod.options import PodOptions
from stackmark.places.registry import find_place


def options(**typed: object) -> PodOptions:
    return PodOptions.model_validate(typed)


def refused(**typed: object) -> str:
    with pytest.raises(SpecError) as error:
        find_place("pod", typed)  # type: ignore[arg-type]
    return error.value.message


def test_no_option_has_the_name_of_a_workloads_parameter() -> None:
    assert not PodOptions.model_fields.keys() & parameter_fields().keys()


@pytest.mark.parametrize("name", sorted(PodOptions.model_fields.keys() & ContainerOptions.model_fields.keys()))
def test_a_name_that_a_container_has_too_takes_what_that_takes(name: str) -> None:
    typed = {
        "image": "a:1",
        "python": "/opt/conda/bin/python",
        "cpus": "1.5",
        "memory": "16g",
        "shm": "1g",
        "gpus": "1",
        "env": ["A=b=c"],
        "mount": ["/data:/data"],
        "user": "1000:0",
        "bind": "numa",
    }[name]
    # A Python is that of an image.
    given = {"image": "a:1", name: typed}
    assert getattr(options(**given), name) == getattr(ContainerOptions.model_validate(given), name)


def test_options_are_kept_as_they_were_typed() -> None:
    typed = {"memory": "8Gi", "cpus": 2, "env": "A=1"}
    assert options(**typed).model_dump(exclude_unset=True) == {"memory": "8Gi", "cpus": "2", "env": ("A=1",)}


@pytest.mark.parametrize(
    ("typed", "quantity"),
    [("2", "2"), ("1.5", "1500m"), ("0.5", "500m"), (".25", "250m"), ("16", "16"), ("0.125", "125m")],
)
def test_cpus_are_whole_or_in_thousandths(typed: str, quantity: str) -> None:
    count = options(cpus=typed).cpu_count
    assert count is not None
    assert cpu_quantity(count) == quantity


@given(st.decimals(min_value="0.01", max_value=9999, places=3))
def test_no_thousandth_of_a_cpu_is_lost(cpus: object) -> None:
    count = options(cpus=str(cpus)).cpu_count
    assert count is not None
    said = cpu_quantity(count)
    assert (Fraction(said.removesuffix("m")) / 1000 if said.endswith("m") else Fraction(said)) == Fraction(str(cpus))


def test_sizes_have_the_one_grammar_of_all_places() -> None:
    sizes = [options(memory=text).memory_bytes for text in ("8Gi", "8g", "8GiB", "10GB", "64m")]
    assert sizes == [8 << 30, 8 << 30, 8 << 30, 10**10, 64 << 20]


def test_gpus_are_a_number_and_none_is_one_too() -> None:
    assert [options(gpus=text).gpu_count for text in ("auto", "none", "0", "1", "8")] == [None, 0, 0, 1, 8]


@pytest.mark.parametrize(
    ("typed", "taint"),
    [
        ("nodetype=gpu:NoSchedule", {"key": "nodetype", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}),
        ("nodetype:NoExecute", {"key": "nodetype", "operator": "Exists", "effect": "NoExecute"}),
        ("example.com/x", {"key": "example.com/x", "operator": "Exists"}),
        ("a=", {"key": "a", "operator": "Equal", "value": ""}),
    ],
)
def test_a_toleration_is_read_as_a_taint_is_written(typed: str, taint: dict[str, str]) -> None:
    assert options(toleration=typed).tolerations == (taint,)


def test_an_rdma_resource_is_one_unless_a_number_is_given() -> None:
    assert options(rdma="rdma/hca").rdma_request == ("rdma/hca", 1)
    assert options(rdma="rdma/hca=4").rdma_request == ("rdma/hca", 4)


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ({"gpus": "GPU-8d3b2f6e-1111-2222-3333-444455556666"}, "GPU-8d3b2f6e"),
        ({"gpus": "0,1"}, "'0,1'"),
        ({"gpus": "all"}, "all"),
        ({"gpus": "-1"}, "1024"),
        ({"gpus": "٣"}, "1024"),
        ({"gpus": "99999"}, "1024"),
        ({"resource": "cpu"}, "nvidia.com/gpu"),
        ({"resource": "kubernetes.io/x"}, "nvidia.com/gpu"),
        ({"resource": "nvidia.com/"}, "nvidia.com/gpu"),
        ({"cpus": "0"}, "0.01"),
        ({"cpus": "two"}, "'two'"),
        ({"memory": "1k"}, "6 MiB"),
        ({"memory": "lots"}, "'lots'"),
        ({"shm": "0"}, "'0'"),
        ({"image": "-v"}, "'-v'"),
        ({"namespace": "A_b"}, "'A_b'"),
        ({"namespace": "x" * 64}, "x" * 64),
        ({"node": "node one"}, "'node one'"),
        ({"node": "n" * 254}, "n" * 100),
        ({"pull_secret": "NAME"}, "'NAME'"),
        ({"node_selector": "test"}, "'test'"),
        ({"node_selector": "test=a b"}, "'test=a b'"),
        ({"node_selector": "a/b/c=x"}, "'a/b/c=x'"),
        ({"toleration": "a=b:Never"}, "PreferNoSchedule"),
        ({"toleration": ":NoSchedule"}, "':NoSchedule'"),
        ({"env": "A-B"}, "'A-B'"),
        ({"env": "NOT_SET_HERE"}, "NOT_SET_HERE"),
        ({"env": "STACKMARK_SPEC=x"}, "STACKMARK_SPEC"),
        ({"cap": "IPC LOCK"}, "IPC_LOCK"),
        ({"rdma": "rdma/hca=0"}, "'0'"),
        ({"network_attachment": "a b"}, "'a b'"),
        ({"user": "root"}, "'root'"),
        ({"deadline": "never"}, "'never'"),
        ({"deadline": "0"}, "30 days"),
        ({"pull": "Sometimes"}, "IfNotPresent"),
        ({"host_software": "yes", "openshift": True}, "restricted-v2"),
        ({"host_software": "yes", "python": "/usr/bin/python3"}, "python"),
        ({"python": " "}, "python"),
        ({"user": "1000", "openshift": True}, "UID"),
        ({"dra": "gpu.nvidia.com", "resource": "amd.com/gpu"}, "GPUs"),
        ({"rdma": "nvidia.com/gpu"}, "resource"),
        ({"patch": " "}, "patch"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_key(typed: dict[str, object], named: str) -> None:
    message = refused(**typed)
    assert all(key in message for key in typed)
    assert named in message


@given(st.sampled_from(sorted(PodOptions.model_fields)), st.text(max_size=40))
def test_no_text_is_more_than_refused(name: str, text: str) -> None:
    """Whatever is typed is taken or refused in a sentence: nothing crashes."""
    with suppress(ValidationError):
        PodOptions.model_validate({name: text})
