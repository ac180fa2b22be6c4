"""Arms as people type them."""

import pytest

from refusing import refused
from stackmark.experiments.arms import read_arm, read_arms
from stackmark.places.registry import find_place, place_kinds
from stackmark.workloads.registry import families

RESNET = "train/resnet50"


def test_names_of_place_options_and_of_parameters_are_disjoint() -> None:
    options = {name for kind in place_kinds().values() for name in kind.options.model_fields}
    parameters = {name for family in families().values() for name in family.params.model_fields}
    assert not options & parameters
    assert options


def test_every_option_of_a_place_says_what_it_is() -> None:
    for kind in place_kinds().values():
        for name, info in kind.options.model_fields.items():
            assert info.description, f"{kind.name} {name}"


def test_a_bare_place_is_an_arm() -> None:
    arm = read_arm("host", RESNET)
    assert (arm.label, arm.place, arm.place_options, arm.typed) == ("host", "host", {}, {})


def test_a_key_is_an_option_of_the_place_or_a_parameter_of_the_workload() -> None:
    arm = read_arm("container,shm=64m,batch=32,cuda-graph=no,seconds=2min", RESNET)
    assert arm.place_options == {"shm": "64m"}
    assert arm.typed == {"batch": 32, "cuda_graph": False, "seconds": 120.0}


def test_a_key_may_hold_an_equals_sign_and_be_given_several_times() -> None:
    arm = read_arm("container,ulimit=memlock=-1,ulimit=nofile=1024,env=A=b=c", RESNET)
    assert arm.place_options == {"ulimit": ["memlock=-1", "nofile=1024"], "env": ["A=b=c"]}


def test_a_piece_without_an_equals_sign_goes_on_with_the_value_before_it() -> None:
    assert read_arm("container,cpuset=0,2,shm=1g", RESNET).place_options == {"cpuset": "0,2", "shm": "1g"}


@pytest.mark.parametrize("place", ["host", "container"])
def test_gpus_are_named_with_a_plus_between_them(place: str) -> None:
    near = read_arm(f"{place},gpu-ids=0+1", RESNET)
    assert (near.label, near.place_options) == (f"{place},gpu-ids=0+1", {"gpus": "0,1"})
    assert find_place(place, {"gpu_ids": "0+1"}).options() == {"gpus": "0,1"}
    with refused("gpus", "gpu_ids"):
        read_arm(f"{place},gpu-ids=0,gpus=1", RESNET)
    with refused("'x'"):
        read_arm(f"{place},gpu-ids=0+x", RESNET)


@pytest.mark.parametrize("place", ["host", "container"])
def test_gpus_is_a_count_and_is_stored_as_a_number(place: str) -> None:
    """A text that is stored names GPUs, as it did when `gpus=1` was the GPU with the number 1."""
    assert read_arm(f"{place},gpus=2", RESNET).place_options == {"gpus": 2}
    assert read_arm(f"{place},gpus=all", RESNET).place_options == {"gpus": "all"}
    assert find_place(place, {"gpus": 2}).options() == {"gpus": 2}
    assert find_place(place, {"gpus": "1"}).options() == {"gpus": "1"}
    with refused("--gpus 0", "--gpu-ids 0", "--gpus none"):
        read_arm(f"{place},gpus=0", RESNET)
    with refused("--gpu-ids 0+1"):
        read_arm(f"{place},gpus=0,1", RESNET)
    with refused("'2x'"):
        read_arm(f"{place},gpus=2x", RESNET)
    with refused("'300'"):
        read_arm(f"{place},gpus=300", RESNET)


def test_a_count_of_gpus_for_all_arms_is_one_in_each_place() -> None:
    arms = read_arms(["pod,image=x:1", "host"], RESNET, {"gpus": "1"})
    assert [arm.place_options["gpus"] for arm in arms] == ["1", 1]


def test_options_for_all_arms_go_to_those_that_have_them_and_an_arms_own_comes_before() -> None:
    arms = read_arms(["host", "container", "container,shm=64m"], RESNET, {"shm": "1g"})
    assert [arm.place_options for arm in arms] == [{}, {"shm": "1g"}, {"shm": "64m"}]


def test_an_option_that_no_arm_can_use_is_refused() -> None:
    with refused("--shm", "host"):
        read_arms(["host", "host,batch=2"], RESNET, {"shm": "1g"})


def test_two_equal_arms_are_told_apart() -> None:
    assert [arm.label for arm in read_arms(["host", "host"], RESNET)] == ["host", "host (2)"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("shm=64m", "'shm=64m'"),
        ("hots", "'hots'"),
        ("host,shm=64m", "'shm'"),
        ("container,smh=64m", "'smh'"),
        ("host,btach=3", "'btach'"),
        ("host,batch", "'batch'"),
        ("host,=3", "'=3'"),
        ("host,batch=many", "'many'"),
        ("host,batch=-1", "got -1"),
        ("host,batch=1,batch=2", "'batch'"),
        ("host,precision=fp17", "fp32"),
        ("host,cuda_graph=maybe", "'maybe'"),
        ("container,shm=a lot", "a lot"),
        ("container,shm=1g,shm=2g", "'shm'"),
    ],
)
def test_a_wrong_arm_is_a_sentence(text: str, named: str) -> None:
    with refused(named):
        read_arm(text, RESNET)


@pytest.mark.parametrize(("text", "right"), [("hots", "host"), ("container,smh=64m", "shm"), ("host,btach=3", "batch")])
def test_of_a_mistyped_word_the_nearest_is_named(text: str, right: str) -> None:
    with refused(f" {right}?"):
        read_arm(text, RESNET)


def test_one_arm_is_no_comparison_and_ten_are_too_many() -> None:
    with refused("--published"):
        read_arms(["host"], RESNET)
    with refused("10", "9"):
        read_arms(["host"] * 10, RESNET)
