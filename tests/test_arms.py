"""Arms as people type them."""

import pytest

from stackmark.errors import SpecError
from stackmark.experiments.arms import read_arm, read_arms
from stackmark.places.registry import place_kinds
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


def test_options_for_all_arms_go_to_those_that_have_them_and_an_arms_own_comes_before() -> None:
    arms = read_arms(["host", "container", "container,shm=64m"], RESNET, {"shm": "1g"})
    assert [arm.place_options for arm in arms] == [{}, {"shm": "1g"}, {"shm": "64m"}]


def test_an_option_that_no_arm_can_use_is_refused() -> None:
    with pytest.raises(SpecError, match="--shm is no option of host"):
        read_arms(["host", "host,batch=2"], RESNET, {"shm": "1g"})


def test_two_equal_arms_are_told_apart() -> None:
    assert [arm.label for arm in read_arms(["host", "host"], RESNET)] == ["host", "host (2)"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no place"),
        ("shm=64m", "the place comes first"),
        ("hots", "no place 'hots'; did you mean host"),
        ("host,shm=64m", "'shm', which is an option of container and pod, not of host"),
        ("container,smh=64m", "did you mean shm"),
        ("host,btach=3", "did you mean batch"),
        ("host,batch", "no key=value"),
        ("host,=3", "no key=value"),
        ("host,batch=many", "a whole number"),
        ("host,batch=-1", "greater than or equal to 1"),
        ("host,batch=1,batch=2", "twice"),
        ("host,precision=fp17", "fp32"),
        ("host,cuda_graph=maybe", "yes or no"),
        ("container,shm=a lot", "a lot"),
        ("container,shm=1g,shm=2g", "twice"),
    ],
)
def test_a_wrong_arm_is_a_sentence(text: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_arm(text, RESNET)
    assert says in caught.value.message


def test_one_arm_is_no_comparison_and_ten_are_too_many() -> None:
    with pytest.raises(SpecError) as caught:
        read_arms(["host"], RESNET)
    assert "--published" in (caught.value.hint or "")
    with pytest.raises(SpecError, match="10 arms are more than the 9"):
        read_arms(["host"] * 10, RESNET)
