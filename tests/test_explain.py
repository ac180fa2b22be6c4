"""Why two arms differ: from facts that were collected for real, on a host and in podman with limits, on one machine."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from examined_sample import arm, run, sample_examined
from naming import missing, numbers
from stackmark.machine.facts import collect
from stackmark.machine.reading import told_cpus
from stackmark.spec import Scalar
from stackmark.verdict.covariates import BY_NAME, apart, covariate_lines, covariates_of
from stackmark.verdict.examined import ExaminedArm, ExaminedRun, FactDifference, Facts
from stackmark.verdict.explain import (
    FOLLOWING_PARAMETER,
    PACKAGES_NAMED,
    Arm,
    explain,
    explain_facts,
    setup_finding,
    steadiness_finding,
)
from stackmark.verdict.fact_values import differing, say_value
from stackmark.verdict.known_causes import CAUSES, NOISE, NOT_KNOWN, UNKNOWN_WEIGHT, cause_of, is_noise

DATA = Path(__file__).parent / "data"
REAL: dict[str, Facts] = json.loads((DATA / "facts_of_arms.json").read_text())
SYNTHETIC: dict[str, Scalar] = {"data": "device", "data_workers": 0}
FOLDER: dict[str, Scalar] = {"data": "/data/imagenet", "data_workers": 8}


def h200(**device: JsonValue) -> Facts:
    """Facts of a real H200, with some of the device's changed."""
    facts: Facts = {}
    for line in (DATA / "h200_gpt2.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "facts":
            facts.setdefault(event["subject"], {}).update(event["facts"])
    devices = facts["gpu"]["devices"]
    assert isinstance(devices, list)
    assert isinstance(devices[0], dict)
    devices[0].update(device)
    return facts


def changed(facts: Facts, subject: str, **values: JsonValue) -> Facts:
    return {**facts, subject: {**facts.get(subject, {}), **values}}


def blocks(*values: float) -> list[tuple[int | None, float]]:
    return list(enumerate(values))


def names(found: tuple[FactDifference, ...]) -> list[str]:
    return [f"{one.subject}.{one.key}" for one in found]


def examined_pair(
    labels: tuple[str, str], options: tuple[dict[str, JsonValue], ...], covariates: Any, **more: Any
) -> Any:
    """Two arms with real facts and six runs each; `covariates` makes a run's from its arm and block."""
    rates = (700.0, more.pop("rate", 300.0))
    arms = [
        arm(
            index, "container", [rates[index]] * 6, label,
            facts=REAL[label], place_options=options[index], params=more.get("params", SYNTHETIC),
        )
        for index, label in enumerate(labels)
    ]  # fmt: skip
    runs = [
        replace(run(index, block, rates[index], "container", 2 * block + index), covariates=covariates(index, block))
        for block in range(6)
        for index in range(2)
    ]
    return arms, runs


# The right cause comes first


def test_a_cpu_limit_that_throttled_comes_first_and_says_how_often() -> None:
    dice = random.Random(4)

    def covariates(index: int, block: int) -> dict[str, float]:
        stops = 312.0 + block if index else 0.0
        return {
            "cgroup_throttled_times": stops, "cgroup_throttled_s": stops * 0.026, "load_1m": 2.0 + dice.random(),
            "cpu_s": 20.0 - 9 * index, "involuntary_switches": 400.0 + 3000 * index,
        }  # fmt: skip

    found = explain(*examined_pair(("container", "container,cpus=1"), ({}, {"cpus": "1"}), covariates))
    assert names(found)[0] == "cgroup.cpu_limit_cpus"
    assert missing(found[0].why, "cpu.max", "100 %", "314", "8.18 s") == []
    assert found[0].values == ("no limit", "1 CPU")
    assert found[0].shows_effect
    assert found[0].weight == 100
    assert "process.cpus_usable" not in names(found)  # the same thing once more


def test_the_counters_own_names_tell_the_same() -> None:
    def covariates(index: int, block: int) -> dict[str, float]:
        return {"cpu_quota_stops": 50.0 * index, "cpu_quota_stopped_s": 2.0 * index}

    found = explain(*examined_pair(("container", "container,cpus=1"), ({}, {"cpus": "1"}), covariates))
    assert missing(found[0].why, "cpu.max", "100 %", "50", "2.00 s") == []


def test_a_cpu_limit_comes_first_without_any_counter() -> None:
    found = explain(*examined_pair(("container", "container,cpus=1"), ({}, {"cpus": "1"}), lambda *_: {}))
    assert names(found)[0] == "cgroup.cpu_limit_cpus"
    assert numbers(found[0].why) == [2, 100]
    assert not found[0].shows_effect


def test_a_limit_that_was_never_reached_is_not_made_the_cause() -> None:
    arms, runs = examined_pair(
        ("container", "container,cpus=1"), ({}, {"cpus": "1"}), lambda *_: {"cgroup_throttled_times": 0.0}
    )
    warmer = [
        replace(one, covariates={**one.covariates, "steal_s": 3.0 * one.arm + 0.01 * (one.block or 0)}) for one in runs
    ]
    found = explain(arms, warmer)
    assert names(found)[:2] == ["measured.steal_s", "cgroup.cpu_limit_cpus"]
    assert found[0].shows_effect
    assert (found[1].shows_effect, numbers(found[1].why)) == (False, [100])


@pytest.mark.parametrize(
    ("workers", "told"),
    [
        (8, [3.91, 8, 16, 62.5]),
        (0, [62.5]),
    ],
)
def test_a_small_shm_matters_where_it_is_used(workers: int, told: list[float]) -> None:
    params: dict[str, Scalar] = {**FOLDER, "data_workers": workers}
    options: tuple[dict[str, JsonValue], ...] = ({"shm": "64m"}, {"shm": "1g"})
    sides = [
        Arm(f"container,shm={size['shm']}", REAL[label], params, size)
        for label, size in zip(("container", "container,shm=1g"), options, strict=True)
    ]
    found = explain_facts(sides)
    assert names(found) == ["limits.shm_mib"]
    assert numbers(found[0].why) == told
    assert (found[0].weight > 90) == bool(workers)


def test_one_cpu_of_two_comes_before_a_memory_limit_that_was_typed_beside_it() -> None:
    label = "container,cpuset=0,memory=2g"
    sides = [Arm("host", REAL["host"], FOLDER), Arm(label, REAL[label], FOLDER, {"memory": "2g", "cpuset": "0"})]
    found = explain_facts(sides)
    assert names(found)[:3] == ["cgroup.cpuset", "cgroup.memory_limit_mib", "limits.shm_mib"]
    assert numbers(found[0].why) == [1, 2]


def test_a_typed_parameter_comes_before_all_that_follows_from_it() -> None:
    kernels: dict[str, JsonValue] = {"hash": "aa", "count": 9, "heaviest": ["sgemm"]}
    other: dict[str, JsonValue] = {"hash": "bb", "count": 8, "heaviest": ["hgemm"]}
    sides = [
        Arm("host,precision=fp32", {**h200(), "kernels": kernels}, {"precision": "fp32", "layout": "nchw"},
            typed=frozenset({"precision"}), rate_per_s=1.0),
        Arm("host,precision=bf16", {**h200(), "kernels": other}, {"precision": "bf16", "layout": "nhwc"},
            typed=frozenset({"precision"}), rate_per_s=3.0),
    ]  # fmt: skip
    found = explain_facts(sides, {"clock_sm_end_mhz": [blocks(1700, 1701, 1702, 1700), blocks(1980, 1979, 1980, 1981)]})
    assert names(found)[:2] == ["parameter.precision", "parameter.layout"]
    assert found[1].weight == FOLLOWING_PARAMETER
    assert missing(found[1].why, "precision") == []
    by_name = {one.key: one for one in found}
    assert by_name["hash"].weight == cause_of("kernels", "hash").weight // 2
    assert missing(by_name["hash"].why, "layout", "precision") == []
    assert by_name["clock_sm_end_mhz"].weight < 50


def test_other_kernels_are_named() -> None:
    sides = [
        Arm(label, {**h200(), "kernels": {"hash": mark, "count": 3, "heaviest": ["relu", f"conv_{mark}"]}})
        for label, mark in (("host", "aa"), ("container", "bb"))
    ]
    (found,) = explain_facts(sides)
    assert found.weight >= 80
    assert missing(found.why, "host: conv_aa", "container: conv_bb") == []
    assert "relu" not in found.why


def test_kernels_drawn_by_autotuning_weigh_less() -> None:
    sides = [
        Arm(mark, {**h200(), "kernels": {"hash": mark, "count": 3, "heaviest": []}}, {"autotune": True})
        for mark in "ab"
    ]
    (found,) = explain_facts(sides)
    assert found.weight == 50


def test_a_different_cudnn_is_said_as_versions() -> None:
    sides = [Arm("a", h200()), Arm("b", changed(h200(), "software", cudnn=90501))]
    (found,) = explain_facts(sides)
    assert found.values == ("9.19.0", "9.5.1")
    assert found.key == "cudnn"


def test_a_lower_clock_in_the_slower_arm_is_an_effect_and_in_the_faster_one_is_not() -> None:
    clocks = {"clock_sm_end_mhz": [blocks(1980, 1980, 1980, 1980), blocks(1890, 1900, 1885, 1890)]}
    for rate, effect in ((90.0, True), (110.0, False)):
        sides = [Arm("host", h200(), rate_per_s=100.0), Arm("container", h200(), rate_per_s=rate)]
        (found,) = explain_facts(sides, clocks)
        assert found.shows_effect is effect
        assert (found.weight > 80) is effect
        assert found.values == ("1,980 MHz", "1,890 MHz")


def test_a_power_limit_that_held_the_clock_down_is_an_effect() -> None:
    sides = [Arm("a", h200()), Arm("b", h200(power_limit_w=400.0))]
    (found,) = explain_facts(sides, {"limited_power_cap_share": [blocks(0.0, 0.0), blocks(0.97, 0.99)]})
    assert numbers(found.why) == [98, 400]
    assert found.shows_effect


def test_cpus_far_from_the_gpu_are_named() -> None:
    near, far = h200(near_cpus="0-15"), h200(near_cpus="0-15")
    sides = [Arm("a", near), Arm("b", changed(far, "cgroup", cpuset="64-79"))]
    found = explain_facts(sides)
    assert names(found)[0] == "cgroup.cpuset"
    assert found[0].weight > cause_of("cgroup", "cpuset").weight
    assert missing(found[0].why, "b", "GPU") == []


def test_how_ranks_exchange_is_a_cause_and_what_each_run_measures_is_none() -> None:
    def sides(*transports: str) -> list[Arm]:
        nccl: list[dict[str, JsonValue]] = [{"transports": [way], "peers": [f"0 -> 1 via {way}"]} for way in transports]
        return [
            Arm(str(number), changed(h200(), "ranks", backend="nccl", nccl=one, clock_offset_s=0.1 * number))
            for number, one in enumerate(nccl)
        ]

    assert explain_facts(sides("P2P/CUMEM", "P2P/CUMEM")) == ()
    (found,) = explain_facts(sides("P2P/CUMEM", "SHM/direct"))
    assert names((found,)) == ["ranks.nccl.transports"]
    assert found.weight >= 90


def test_a_binding_that_was_typed_is_shown_by_the_cpus() -> None:
    bound = changed(
        changed(h200(), "process", cpus="0-15"), "binding", bind="numa", cpus="0-15", allowed="0-31", processes=1
    )
    sides = [Arm("a", changed(h200(), "process", cpus="0-31")), Arm("b", bound, {}, {"bind": "numa"})]
    (found,) = explain_facts(sides)
    assert names((found,)) == ["process.cpus"]
    assert found.weight >= 96


def test_another_process_on_the_gpu_is_seen_through_a_pid_namespace() -> None:
    # In a container our own process is counted among the others, so that number alone says nothing.
    alone = [Arm("host", h200()), Arm("container", h200(processes_besides_us=1))]
    assert explain_facts(alone) == ()
    shared = [Arm("host", h200()), Arm("container", h200(processes=2, processes_besides_us=2))]
    assert names(explain_facts(shared)) == ["gpu.devices.0.processes"]


# What is left out, and what comes last


def test_host_and_container_differ_in_what_a_container_is_and_nothing_else() -> None:
    sides = [Arm("host", REAL["host"], SYNTHETIC), Arm("container", REAL["container"], SYNTHETIC)]
    found = explain_facts(sides)
    assert names(found)[0] == "limits.seccomp"
    assert max(one.weight for one in found) < 40  # none of it explains a difference
    assert {"container.root_filesystem", "limits.shm_mib", "container.engine", "limits.capabilities"} <= set(
        names(found)
    )
    left_out = ("hostname", "uptime_s", "path", "memory_now_mib", "free_mib", "init_process", "load_1m")
    assert not [name for name in names(found) if name.endswith(left_out)]


def test_two_runs_of_one_place_differ_in_nothing() -> None:
    later = changed(REAL["container"], "host", uptime_s=99999.0, load_1m=7.0, hostname="0123456789ab")
    later = changed(later, "cgroup", path="/libpod_parent/libpod-0123", memory_now_mib=900.0, throttled_times=4)
    later = changed(later, "gpu", devices=[], under_test=None)
    assert explain_facts([Arm("a", REAL["container"]), Arm("b", later)]) == ()


def test_two_runs_on_one_gpu_differ_in_nothing() -> None:
    warmer = h200(temperature_c=61, power_w=640.2, clock_sm_mhz=1935, clock_reasons=[], memory_used_mib=1.0, index=1)
    assert explain_facts([Arm("a", h200()), Arm("b", warmer)]) == ()


def test_an_unknown_fact_comes_last() -> None:
    a, b = changed(h200(), "host", colour="grey", kernel="5.15"), changed(h200(), "host", colour="black")
    found = explain_facts([Arm("a", a), Arm("b", b)])
    assert names(found) == ["host.kernel", "host.colour"]
    assert found[-1].why == NOT_KNOWN
    assert found[-1].weight < 10


def test_what_one_arm_could_not_see_weighs_half() -> None:
    whole, blind = h200(), changed(h200(), "gpu", driver=None)
    (found,) = explain_facts([Arm("a", whole), Arm("b", blind)])
    assert found.weight == cause_of("gpu", "driver").weight // 2
    assert found.values == ("580.159.04", "unknown")


def test_a_commit_that_one_arm_could_not_see_is_not_called_another_version() -> None:
    mine: dict[str, JsonValue] = {"version": "0.1.0", "commit": "aa"}
    unseen: dict[str, JsonValue] = {"version": "0.1.0", "commit": None}
    other: dict[str, JsonValue] = {"version": "0.1.0", "commit": "bb"}

    def found(second: dict[str, JsonValue]) -> FactDifference:
        sides = [Arm("host", {**h200(), "stackmark": mine}), Arm("container", {**h200(), "stackmark": second})]
        return next(one for one in explain_facts(sides) if one.key == "commit")

    assert "two versions" in found(other).why
    assert "two versions" not in found(unseen).why
    assert found(unseen).weight < found(other).weight / 5


def test_an_arm_without_facts_makes_no_differences() -> None:
    assert explain_facts([Arm("a", h200()), Arm("b", {})]) == ()
    assert explain_facts([Arm("a", h200())]) == ()
    assert explain([], []) == ()


def test_an_option_that_no_fact_shows_is_still_listed() -> None:
    sides = [Arm(f"container,user={user}", REAL["container"], {}, {"user": user}) for user in ("root", "1000")]
    (found,) = explain_facts(sides)
    assert (found.subject, found.key, found.values) == ("option", "user", ("root", "1000"))


def test_an_ulimit_is_taken_for_the_limit_it_names() -> None:
    more = changed(REAL["container"], "limits", locked_memory_mib="unlimited", open_files=1024)
    sides = [Arm("a", REAL["container"], {}, {}), Arm("b", more, {}, {"ulimit": ["memlock=-1"]})]
    by_name = {one.key: one for one in explain_facts(sides)}
    assert by_name["locked_memory_mib"].weight == 60  # asked for, and of no use to one process
    assert by_name["open_files"].weight < 60
    assert "ulimit" not in by_name


def test_an_option_of_one_place_is_asked_for_where_the_other_place_has_none() -> None:
    arms: list[ExaminedArm] = [
        arm(0, "host", [1.0], "host", facts=REAL["host"]),
        arm(1, "container", [1.0], "container,cpus=1", facts=REAL["container,cpus=1"], place_options={"cpus": "1"}),
    ]
    found = explain(arms, [])
    assert not [one for one in found if one.subject == "option"]
    assert names(found)[0] == "cgroup.cpu_limit_cpus"
    assert found[0].weight > 90


@pytest.mark.parametrize("value", [True, [], {}, "x" * 9999, [{"a": [1, {"b": None}]}, 3], -1, 1e308, "0-", "9" * 5000])
def test_no_value_from_a_foreign_worker_breaks_it(value: JsonValue) -> None:
    keys = [
        ("cgroup", "cpu_limit_cpus"), ("cgroup", "cpuset"), ("limits", "shm_mib"), ("limits", "open_files"), ("gpu", "devices"),
        ("kernels", "hash"), ("kernels", "heaviest"), ("software", "torch_threads"), ("environment", "WORLD_SIZE"),
        ("host", "boot_id"), ("container", "root_filesystem"), ("software", "nccl"), ("made", "up"),
    ]  # fmt: skip
    for subject, key in keys:
        for first in (None, 1, "a"):
            facts: list[Facts] = [{subject: {"same": 1, key: one}} for one in (first, value)]
            sides = [Arm("a", facts[0], {"data_workers": 3}), Arm("b", facts[1], {"data_workers": True})]
            for one in explain_facts(sides):
                assert all(len(said) < 200 for said in one.values)


# Values and paths


def test_nested_values_are_compared_by_path() -> None:
    a: Facts = {"gpu": {"devices": [{"uuid": "x", "power_limit_w": 700.0}], "tags": ["b", "a"], "n": 2}}
    b: Facts = {"gpu": {"devices": [{"uuid": "x", "power_limit_w": 400.0}], "tags": ["a", "b"], "n": 2.0}}
    assert list(differing([a, b])) == [("gpu", "devices.0.power_limit_w", (700.0, 400.0))]


def test_true_is_not_one_and_nothing_is_not_zero() -> None:
    a: Facts = {"s": {"x": True, "y": 0, "z": None, "same": None}}
    b: Facts = {"s": {"x": 1, "y": None, "z": []}}
    assert [path for _, path, _ in differing([a, b])] == ["x", "y"]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("shm_mib", 62.5, "62.5 MiB"), ("memory_limit_mib", 131072.0, "128 GiB"), ("locked_memory_mib", "unlimited", "unlimited"),
        ("cpu_limit_cpus", 1.0, "1 CPU"), ("cpu_limit_cpus", 1.5, "1.5 CPUs"), ("power_limit_w", 700.0, "700 W"),
        ("clock_max_mhz", 3200, "3200 MHz"), ("governor", None, "unknown"), ("turbo", False, "no"),
        ("flags", ["avx", "fma"], "avx fma"),
        ("flags", [], "none"), ("cudnn", 91900, "9.19.0"),
    ],
)  # fmt: skip
def test_a_value_is_said_with_the_unit_of_its_name(key: str, value: JsonValue, said: str) -> None:
    assert say_value(key, value) == said


def test_cpu_lists_are_read() -> None:
    assert told_cpus("0-3,8") == {0, 1, 2, 3, 8}
    assert told_cpus("") == told_cpus(None) == told_cpus("a-b") == set()


# Two images

# Invented: no such images were measured. What is plausible in them are the names of packages and the shape of versions.
OLD_SAMPLE_IMAGE: Facts = {
    "container": {"image": "registry.example/sample:old", "image_digest": "sha256:aaaa", "software": "image"},
    "host": {"distribution": "Ubuntu 22.04.5 LTS", "hostname": "3f1c"},
    "software": {
        "python": "3.10.12", "torch": "2.6.0", "torch_git": "aaaa", "cuda": "12.6", "cudnn": 90501, "nccl": "2.21.5",
        "cublas": "12.6.4.1", "triton": "3.2.0", "numpy": "1.26.4", "libc": "glibc 2.35", "mkl": "2024.2", "onednn": "3.5.3",
        "executable": "/usr/bin/python3", "torch_cuda_archs": ["sm_80", "sm_90"],
    },
    "packages": {
        "torch": "2.6.0", "triton": "3.2.0", "numpy": "1.26.4", "nvidia-cublas-cu12": "12.6.4.1", "nvidia-cudnn-cu12": "9.5.1.17",
        "flash-attn": "2.7.3", "pip": "24.0", "attrs": "23.1.0", "certifi": "2024.8.30", "idna": "3.7", "jinja2": "3.1.4",
        "requests": "2.32.0", "tqdm": "4.66.1", "left-alone": "1.0",
    },
}  # fmt: skip
NEW_SAMPLE_IMAGE: Facts = {
    "container": {"image": "registry.example/sample:new", "image_digest": "sha256:bbbb", "software": "image"},
    "host": {"distribution": "Ubuntu 24.04.2 LTS", "hostname": "9a02"},
    "software": {
        "python": "3.12.3", "torch": "2.9.0", "torch_git": "bbbb", "cuda": "13.0", "cudnn": 91300, "nccl": "2.27.7",
        "cublas": "13.0.2.14", "triton": "3.5.0", "numpy": "2.3.1", "libc": "glibc 2.39", "mkl": "2024.2", "onednn": "3.9.1",
        "executable": "/opt/venv/bin/python3", "torch_cuda_archs": ["sm_90", "sm_100"],
    },
    "packages": {
        "torch": "2.9.0", "triton": "3.5.0", "numpy": "2.3.1", "nvidia-cublas": "13.0.2.14", "nvidia-cudnn-cu13": "9.13.0.50",
        "pip": "25.1", "attrs": "25.1.0", "certifi": "2025.6.15", "idna": "3.10", "jinja2": "3.1.6",
        "requests": "2.32.0", "tqdm": "4.67.1", "brand-new": "0.1",
    },
}  # fmt: skip
SAMPLE_OPTIONS: tuple[dict[str, JsonValue], ...] = (
    {"image": "registry.example/sample:old"},
    {"image": "registry.example/sample:new"},
)


def two_images(*facts: Facts, **params: Scalar) -> tuple[FactDifference, ...]:
    sides = zip(("old", "new"), facts, SAMPLE_OPTIONS, strict=True)
    return explain_facts([Arm(label, known, params, asked, frozenset()) for label, known, asked in sides])


def test_two_images_are_told_apart_by_what_is_in_them_the_framework_first() -> None:
    found = names(two_images(OLD_SAMPLE_IMAGE, NEW_SAMPLE_IMAGE))
    assert found[:5] == ["software.torch", "software.cuda", "software.cudnn", "software.cublas", "packages.flash-attn"]
    order = ["software.torch", "software.cuda", "software.cudnn", "software.python", "software.triton", "software.nccl",
             "software.libc", "software.numpy", "host.distribution", "container.image", "packages.others"]  # fmt: skip
    assert [one for one in found if one in order] == order
    assert found[-3:] == ["container.image", "container.image_digest", "packages.others"]


def test_what_is_the_same_package_under_another_name_is_said_once() -> None:
    found = names(two_images(OLD_SAMPLE_IMAGE, NEW_SAMPLE_IMAGE))
    assert [one for one in found if one.startswith("packages.")] == ["packages.flash-attn", "packages.others"]
    assert not {"software.executable", "host.hostname", "software.torch_git"} & set(found)


def test_a_package_that_matters_and_is_missing_is_not_installed() -> None:
    found = {one.key: one for one in two_images(OLD_SAMPLE_IMAGE, NEW_SAMPLE_IMAGE)}
    assert found["flash-attn"].values == ("2.7.3", "not installed")
    assert found["flash-attn"].weight == cause_of("packages", "flash-attn").weight


def test_packages_that_do_not_matter_are_counted() -> None:
    (line,) = [one for one in two_images(OLD_SAMPLE_IMAGE, NEW_SAMPLE_IMAGE) if one.key == "others"]
    assert numbers(line.why) == [2, 6]  # in one image only, and in another version
    assert [len(value.split(", ")) for value in line.values] == [PACKAGES_NAMED, PACKAGES_NAMED]


def test_a_few_packages_are_named_each() -> None:
    few = changed(OLD_SAMPLE_IMAGE, "packages", pip="25.1", tqdm="4.67.1")
    assert {"packages.pip", "packages.tqdm"} <= set(names(two_images(OLD_SAMPLE_IMAGE, few)))


def test_nccl_comes_higher_where_ranks_use_it() -> None:
    def weight(**variables: JsonValue) -> int:
        sides = [{**image, "environment": {**variables}} for image in (OLD_SAMPLE_IMAGE, NEW_SAMPLE_IMAGE)]
        return next(one.weight for one in two_images(*sides) if one.key == "nccl")

    assert weight() < cause_of("software", "python").weight < weight(WORLD_SIZE="8")


def test_images_of_which_nothing_else_is_known_are_the_difference() -> None:
    only = [{"container": facts["container"]} for facts in (OLD_SAMPLE_IMAGE, NEW_SAMPLE_IMAGE)]
    found = two_images(*only)
    assert names(found)[0] == "container.image"
    assert found[0].weight > UNKNOWN_WEIGHT


# The tables


def test_every_fact_that_is_collected_is_in_a_table() -> None:
    """A new fact is known to matter, known to be noise, or it stands here as nobody's concern."""
    nobodys = {
        "host.kernel_version", "host.hypervisor_flag", "cpu.vendor", "cpu.sockets", "cpu.l2_cache", "cpu.l3_cache",
        "cpu.clock_min_mhz", "memory.swap_total_mib", "memory.hugepage_mib", "cgroup.cpuset_cpus", "process.cpus_allowed",
        "numa.node.0.distance", "gpu.cuda_driver", "software.torch_git", "gpu.devices.0.architecture",
        "gpu.devices.0.compute_capability", "gpu.devices.0.memory_total_mib", "gpu.devices.0.cuda_cores",
        "gpu.devices.0.power_limit_default_w", "gpu.devices.0.power_limit_min_w", "gpu.devices.0.power_limit_max_w",
        "gpu.devices.0.compute_mode", "gpu.devices", "gpu_amd.devices",
    }  # fmt: skip
    here: Facts = {}
    for piece in collect("cpu"):
        here.setdefault(piece.subject, {}).update(piece.facts)
    for facts in (here, REAL["container"], h200()):
        none: Facts = {subject: {"": 1} for subject in facts}
        for subject, path, _ in differing([facts, none]):
            name = re.sub(r"node\.\d+", "node.0", f"{subject}.{path}")
            known = is_noise(subject, path) or cause_of(subject, path).why != NOT_KNOWN
            assert path == "" or known != (name in nobodys), name


def test_rows_of_the_tables_are_whole() -> None:
    for cause in CAUSES:
        assert 0 < cause.weight <= 95
        assert cause.why
    assert all(NOISE.values())
    patterns = [cause.pattern for cause in CAUSES]
    assert len(patterns) == len(set(patterns))


# Covariates


def with_covariates(made: Any) -> tuple[tuple[ExaminedArm, ...], tuple[ExaminedRun, ...]]:
    base = sample_examined()
    return base.arms, tuple(replace(one, covariates=made(one.arm, one.block)) for one in base.runs)


def test_a_covariate_is_remarked_on_only_where_arms_are_clearly_apart() -> None:
    dice = random.Random(7)

    def made(index: int, block: int) -> dict[str, float]:
        return {"temperature_start_c": 41.0 + 6 * index + dice.gauss(0, 0.5), "load_1m": 3.0 + dice.gauss(0, 1.0)}

    by_name = {line.name: line for line in covariate_lines(*with_covariates(made))}
    remark = by_name["temperature_start_c"].remark
    assert remark.index("container") < remark.index("host")
    assert by_name["temperature_start_c"].unit == "°C"
    assert by_name["load_1m"].remark == ""


def test_equal_arms_are_hardly_ever_called_apart() -> None:
    dice = random.Random(11)
    known = BY_NAME["load_1m"]
    wrong = sum(
        apart(known, [blocks(*(dice.gauss(9, 2) for _ in range(6))) for _ in range(2)]) is not None for _ in range(2000)
    )
    assert wrong / 2000 < 0.01 + 3 * (0.01 * 0.99 / 2000) ** 0.5


def test_the_chance_is_that_of_a_paired_t_test() -> None:
    from scipy.stats import ttest_ind, ttest_rel

    from stackmark.verdict.covariates import _chance

    a, b = [3.0, 4.0, 4.5, 6.0, 5.0], [3.5, 4.6, 4.4, 6.9, 5.8]
    assert _chance(blocks(*a), blocks(*b)) == pytest.approx(ttest_rel(a, b).pvalue)
    loose = [[(None, value) for value in values] for values in (a, b[:4])]
    assert _chance(loose[0], loose[1]) == pytest.approx(ttest_ind(a, b[:4], equal_var=False).pvalue)


def test_the_spread_of_arms_is_taken_block_by_block() -> None:
    """A machine that warms up during the experiment does not hide that one arm starts cooler in each block."""

    def made(index: int, block: int) -> dict[str, float]:
        return {"temperature_start_c": 40.0 + 5 * block + 4 * index + 0.1 * (block % 2)}

    (line,) = covariate_lines(*with_covariates(made))
    assert missing(line.remark, "container", "host", "42 °C", "67.1 °C") == []


def test_a_drift_needs_more_than_noise() -> None:
    dice = random.Random(3)
    (line,) = covariate_lines(*with_covariates(lambda *_: {"temperature_end_c": 50 + dice.gauss(0, 2)}))
    assert line.remark == ""


def test_throttling_of_single_runs_is_noticed_and_other_covariates_are_not() -> None:
    one_each = [[(0, 0.0)], [(0, 300.0)]]
    assert apart(BY_NAME["cgroup_throttled_times"], one_each) == (0, 1)
    assert apart(BY_NAME["load_1m"], one_each) is None


def test_busy_neighbours_are_said_where_all_arms_had_them() -> None:
    (line,) = covariate_lines(*with_covariates(lambda *_: {"other_cpus": 1.4}))
    assert missing(line.remark, "1.4 CPUs") == []
    (line,) = covariate_lines(*with_covariates(lambda *_: {"other_cpus": 0.1}))
    assert line.remark == ""


def test_counts_are_said_as_counts() -> None:
    (line,) = covariate_lines(*with_covariates(lambda index, _: {"cgroup_throttled_times": 46.0 * index}))
    assert missing(line.remark, "46 times", "container", "0 times", "host") == []


def test_power_is_energy_over_time_and_numbers_that_are_none_are_dropped() -> None:
    made = replace(
        sample_examined().runs[0],
        covariates={"energy_j": 3000.0, "counters_elapsed_s": 5.0, "cpu_stolen_cpus": 0.5, "x_mhz": float("nan")},
    )
    assert covariates_of(made) == {"power_w": 600.0, "steal_s": 2.5}


def test_an_unknown_covariate_is_shown_without_a_remark() -> None:
    (line,) = covariate_lines(*with_covariates(lambda index, block: {"fan_w": 10.0 + 50 * index}))
    assert (line.name, line.unit, line.medians, line.remark) == ("fan_w", "W", (10.0, 60.0), "")


def test_runs_that_do_not_count_do_not_colour_a_covariate() -> None:
    arms, runs = with_covariates(lambda *_: {"load_1m": 1.0})
    failed = replace(runs[0], counted=False, status="failed", covariates={"load_1m": 99.0})
    (line,) = covariate_lines(arms, (failed, *runs[1:]))
    assert line.medians == (1.0, 1.0)


# Findings


def test_unequal_steadiness_is_a_finding() -> None:
    host, other = arm(0, "host", [1.0]), arm(1, "container", [1.0])
    flat = replace(host, steadiness=(("flat", 6),))
    drooping = replace(other, steadiness=(("slow-down", 4), ("flat", 2)))
    said = steadiness_finding([flat, drooping]) or ""
    assert [missing(said, one, "×", kind) for one, kind in ((6, "flat"), (4, "slow-down"), (2, "flat"))] == [[], [], []]
    assert missing(said, "host", "container") == []
    once = replace(other, steadiness=(("flat", 5), ("warm-up", 1)))
    assert steadiness_finding([flat, once]) is None
    assert steadiness_finding([flat, replace(other, steadiness=())]) is None
    assert steadiness_finding([]) is None


def test_where_set_up_time_went_is_a_sentence() -> None:
    said = setup_finding(sample_examined().arms) or ""
    assert missing(said, "container", "10.7 s", "9.59 s", "start", "570 ms") == []
    assert said.index("9.59 s") < said.index("570 ms")


def test_a_part_that_only_one_arm_has_is_told() -> None:
    quick = arm(0, "host", [1.0], setup=(("import", 4.0), ("model", 1.0)))
    slow = arm(1, "container", [1.0], setup=(("import", 3.0), ("compile", 60.0)))
    assert missing(setup_finding([quick, slow]) or "", "container", "58.0 s", "compile", "60.0 s") == []


def test_equal_set_up_is_no_finding() -> None:
    same = arm(0, "host", [1.0])
    assert setup_finding([same, same]) is None
    assert setup_finding([same, replace(same, setup=())]) is None
    assert setup_finding([]) is None
