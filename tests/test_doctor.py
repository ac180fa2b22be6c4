"""The doctor's judgements, on a recorded node and on labels as the vendors' documentation prints them."""

from dataclasses import replace
from typing import Any

import pytest

from doctor_sample import H200, RECORDED, WISH, look, node, of, on_bus, real_visit, seen, stand_in
from naming import missing, numbers
from stackmark.cluster.doctor import advice, cluster_diagnostics, pod_diagnostics
from stackmark.cluster.doctor.diagnosing import OF_GPUS, expects_gpu, make_report, worth_adding
from stackmark.cluster.doctor.evidence import RIGHTS, Addition, Look, NodeVisit, RightReview
from stackmark.cluster.doctor.results import DIAGNOSTICS, Diagnostic, Report, Result
from stackmark.errors import SpecError
from stackmark.kubernetes.nodes import Node, holders, untolerated
from stackmark.kubernetes.rights import Right


def diagnostic(report: Report, name: Diagnostic, where: str | None = "node-2") -> Result:
    found = [one for one in report.results if one.diagnostic == name and one.node in (where, None)]
    assert len(found) == 1, found
    return found[0]


def kinds(result: Result) -> list[str]:
    return [finding.kind for finding in result.findings]


# All diagnostics


def test_every_diagnostic_is_told_once_for_each_node() -> None:
    report = make_report(seen(node("a"), node("b")), WISH, {})
    for name in ("a", "b"):
        assert [one.diagnostic for one in report.results if one.node in (name, None)] == list(DIAGNOSTICS)


def test_a_node_whose_diagnostics_are_all_well_is_fit() -> None:
    made = node(like="whole")
    report = of(
        made, real_visit(), kubelets={"node-2": {"cpuManagerPolicy": "static", "topologyManagerPolicy": "best-effort"}}
    )
    told = {one.diagnostic: one.status for one in report.results if one.diagnostic not in ("nodes", "driver")}
    assert set(told.values()) == {"ok"}, told
    assert kinds(diagnostic(report, "nodes")) == ["cgroup-v1"]  # as recorded
    assert kinds(diagnostic(report, "driver")) == ["stale-label"]  # 580.95.05 by the label
    assert report.status == "warning"


def test_where_the_api_is_away_everything_else_is_skipped() -> None:
    report = make_report(seen(trouble="the API server does not answer", nodes=None), WISH, {})
    assert [one.status for one in report.results] == ["failed"] + ["skipped"] * (len(DIAGNOSTICS) - 1)
    assert report.status == "failed"


def test_a_missing_label_does_not_forbid_looking_at_allocatable() -> None:
    report = of(node())
    assert diagnostic(report, "pci").status == "unknown"
    told = diagnostic(report, "allocatable")
    assert (told.status, numbers(told.evidence)) == ("ok", [2, 2])


def test_stand_ins_fail_at_the_driver_and_tell_what_can_still_be_told() -> None:
    report = of(node(), stand_in())
    assert {one.diagnostic: one.status for one in report.results} == {
        "api": "ok", "permissions": "ok", "nodes": "warning", "pci": "warning", "driver": "failed", "runtime": "skipped",
        "device-plugin": "ok", "allocatable": "ok", "pod": "unknown", "vector-add": "skipped",
    }  # fmt: skip
    assert kinds(diagnostic(report, "driver")) == ["no-driver"]
    assert missing(diagnostic(report, "pod").evidence, "1", "NVIDIA_VISIBLE_DEVICES") == []
    assert report.status == "failed"


def test_a_node_without_a_gpu_beside_one_that_has_some_is_no_failure() -> None:
    plain = node("cpu-1")
    for part in ("capacity", "allocatable"):
        del plain["status"][part]["nvidia.com/gpu"]
    report = make_report(seen(plain, node("gpu-1", like="whole")), WISH, {"cpu-1": NodeVisit(plain=look("plain"))})
    told = {one.diagnostic: one.status for one in report.results if one.node == "cpu-1"}
    assert told.pop("nodes") == "ok"
    assert set(told.values()) == {"skipped"}


def test_a_node_that_was_named_is_expected_to_have_a_gpu() -> None:
    plain = node("cpu-1")
    for part in ("capacity", "allocatable"):
        del plain["status"][part]["nvidia.com/gpu"]
    nodes = [Node(plain), Node(node("gpu-1", like="whole"))]
    assert not expects_gpu(nodes[0], nodes, WISH)
    assert expects_gpu(nodes[0], nodes, replace(WISH, named=("cpu-1",)))
    report = make_report(seen(plain), WISH, {"cpu-1": NodeVisit(plain=look("plain"))})
    assert kinds(diagnostic(report, "pci", "cpu-1")) == ["no-gpu"]
    assert diagnostic(report, "driver", "cpu-1").status == "skipped"
    assert kinds(diagnostic(report, "device-plugin", "cpu-1")) == ["no-plugin"]


def test_where_only_cpus_are_asked_for_the_diagnostics_of_gpus_are_skipped() -> None:
    added = Addition(figure="13 GB/s", checked=10, devices=1)
    report = of(node(), NodeVisit(plain=look("plain"), addition=added), replace(WISH, gpus=0))
    assert {diagnostic(report, one).status for one in OF_GPUS} == {"skipped"}
    assert "--gpus none" in diagnostic(report, "driver").evidence
    assert diagnostic(report, "vector-add").status == "ok"
    assert report.status == "warning"


def test_a_node_that_does_not_exist_is_a_sentence_with_the_nearest() -> None:
    with pytest.raises(SpecError) as refused:
        make_report(seen(node()), replace(WISH, named=("node-3",)), {})
    assert missing(refused.value.message, "node-3", "node-2") == []


def test_a_cluster_without_nodes_fails() -> None:
    report = make_report(seen(), WISH, {})
    assert kinds(diagnostic(report, "nodes")) == ["no-nodes"]


def test_a_node_selector_narrows_the_nodes_and_closes_a_named_one() -> None:
    marked = node("b")
    marked["metadata"]["labels"]["test"] = "yes"
    wish = replace(WISH, labels={"test": "yes"})
    assert make_report(seen(node("a"), marked), wish, {}).nodes == ("b",)
    assert missing(str(cluster_diagnostics.closed(Node(node("a")), wish)), "test=yes", "--node-selector") == []
    assert cluster_diagnostics.closed(Node(marked), wish) is None
    (finding,) = diagnostic(make_report(seen(node("a")), wish, {}), "nodes").findings
    assert finding.kind == "no-nodes"
    assert missing(finding.what, "test=yes") == []


def test_where_nodes_cannot_be_read_the_pod_says_where_it_ran() -> None:
    report = make_report(seen(nodes=None), WISH, {"somewhere": stand_in()})
    told = {one.diagnostic: one.status for one in report.results if one.node == "somewhere"}
    assert told["nodes"] == told["device-plugin"] == told["allocatable"] == "unknown"
    assert told["driver"] == "failed"


# Permissions


def test_each_missing_right_is_named_with_a_role_that_gives_it() -> None:
    rights = tuple(replace(right, allowed=right.right.verb not in ("create", "delete")) for right in RIGHTS)
    report = of(node(), rights=rights, user="system:serviceaccount:default:poor")
    (finding,) = diagnostic(report, "permissions").findings
    assert finding.kind == "missing-rights"
    assert missing(finding.what, "create jobs.batch", "delete jobs.batch", "delete pods") == []
    assert (
        missing("\n".join(finding.do), "create role", "--verb=create,delete", "--resource=jobs.batch,configmaps,pods")
        == []
    )
    assert report.status == "failed"


def test_a_right_that_is_only_for_looking_is_a_warning() -> None:
    rights = tuple(replace(right, allowed=right.right.resource != "nodes") for right in RIGHTS)
    result = diagnostic(of(node(), rights=rights), "permissions")
    assert result.status == "warning"
    assert kinds(result) == ["less-seen", "less-seen"]
    assert [
        missing(f.what, name) for f, name in zip(result.findings, ("list nodes", "get nodes/proxy"), strict=True)
    ] == [[], []]


def test_rights_that_nobody_tells_are_unknown() -> None:
    assert (
        diagnostic(of(node(), rights=(RightReview(Right("create", "batch", "jobs")),)), "permissions").status
        == "unknown"
    )


def test_a_quota_without_room_is_told() -> None:
    quota = {
        "metadata": {"name": "small"},
        "status": {"hard": {"requests.nvidia.com/gpu": "4"}, "used": {"requests.nvidia.com/gpu": "4"}},
    }
    (finding,) = diagnostic(of(node(), quotas=[quota]), "permissions").findings
    assert (finding.kind, finding.status) == ("quota", "warning")
    assert missing(finding.what, "small", "nvidia.com/gpu") == []
    assert numbers(finding.what) == [0, 4]


# Nodes


def condition(made: dict[str, Any], kind: str, status: str) -> dict[str, Any]:
    kept = [one for one in made["status"]["conditions"] if one["type"] != kind]
    made["status"]["conditions"] = [
        *kept,
        {"type": kind, "status": status, "reason": "R", "message": "M", "lastTransitionTime": "T"},
    ]
    return made


@pytest.mark.parametrize(
    ("kind", "status", "result", "called"),
    [
        ("Ready", "Unknown", "failed", "not-ready"),
        ("MemoryPressure", "True", "warning", "condition"),
        ("NetworkUnavailable", "True", "failed", "condition"),
        ("ReadonlyFilesystem", "True", "warning", "condition"),
        ("AcceleratedHardwareReady", "False", "warning", "condition"),
    ],
)
def test_a_bad_condition_is_told_with_its_message(kind: str, status: str, result: str, called: str) -> None:
    told = diagnostic(of(condition(node(), kind, status), kubelets={}), "nodes")
    assert (told.status, kinds(told)) == (result, [called])
    assert missing(told.findings[0].what, kind, "R: M") == []


def test_a_cordoned_node_gets_no_pod_and_says_how_it_is_opened() -> None:
    made = node()
    made["spec"]["unschedulable"] = True
    (finding,) = diagnostic(of(made), "nodes").findings
    assert finding.kind == "cordoned"
    assert missing(finding.do[0], "$ kubectl", "--context test", "uncordon node-2") == []


def test_a_taint_is_told_as_the_option_that_tolerates_it() -> None:
    made = node()
    made["spec"]["taints"] = [
        {"key": "nodetype", "value": "gpu", "effect": "NoSchedule"},
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
        {"key": "soft", "effect": "PreferNoSchedule"},
    ]
    (finding,) = diagnostic(of(made), "nodes").findings
    assert finding.kind == "taint"
    assert missing(finding.do[0], "--toleration nodetype=gpu:NoSchedule") == []
    assert finding.do[0].count("--toleration") == 1


@pytest.mark.parametrize(
    ("toleration", "left"),
    [
        ({"operator": "Exists"}, []),
        ({"key": "k", "operator": "Exists"}, []),
        ({"key": "k", "value": "v", "operator": "Equal"}, []),
        ({"key": "k", "value": "v"}, []),
        ({"key": "k", "value": "w", "operator": "Equal"}, ["k=v:NoExecute"]),
        ({"key": "k", "operator": "Exists", "effect": "NoSchedule"}, ["k=v:NoExecute"]),
        ({"key": "other", "operator": "Exists"}, ["k=v:NoExecute"]),
    ],
)
def test_tolerations_are_matched_as_the_scheduler_matches_them(toleration: dict[str, str], left: list[str]) -> None:
    assert untolerated([{"key": "k", "value": "v", "effect": "NoExecute"}], [toleration]) == left


def test_the_kubelets_policies_are_told_by_its_configuration() -> None:
    result = diagnostic(of(node(), kubelets={"node-2": RECORDED["kubelet"]}), "nodes")
    assert kinds(result) == ["no-cpu-manager", "topology"]
    strict = {"cpuManagerPolicy": "static", "topologyManagerPolicy": "single-numa-node"}
    (finding,) = diagnostic(of(node(), kubelets={"node-2": strict}), "nodes").findings
    assert finding.kind == "topology"
    assert missing(finding.what, "topologyManagerPolicy", "single-numa-node") == []


def test_without_the_kubelets_configuration_a_pods_own_cpus_tell_of_a_cpu_manager() -> None:
    shares = replace(look("with_gpus", 1), cpus=1)
    own = replace(look("with_gpus", 1, cgroup={"cpuset_cpus": 1}), cpus=1)
    all_of_it = replace(look("with_gpus", 1), cpus=2)
    told = [kinds(diagnostic(of(node(), NodeVisit(with_gpus=one)), "nodes")) for one in (shares, own, all_of_it)]
    assert told == [["no-cpu-manager", "cgroup-v1"], ["cgroup-v1"], ["cgroup-v1"]]


# PCI, driver, runtime


def test_a_gpu_on_the_bus_without_a_driver_fails_at_the_driver() -> None:
    made = node(like="not-allocatable")
    report = of(made, NodeVisit(plain=look("plain", pci=on_bus(None, None))))
    assert numbers(diagnostic(report, "pci").evidence) == [2]
    (finding,) = diagnostic(report, "driver").findings
    assert any(line.endswith("-y nvidia-open") and "apt-get" in line for line in finding.do)
    assert kinds(diagnostic(report, "allocatable")) == ["pci-not-allocatable"]


@pytest.mark.parametrize(("driver", "kind"), [("nouveau", "nouveau"), ("vfio-pci", "vfio-pci")])
def test_a_gpu_that_another_driver_holds_is_told(driver: str, kind: str) -> None:
    report = of(node(), NodeVisit(plain=look("plain", pci=on_bus(driver))))
    assert kinds(diagnostic(report, "driver")) == [kind]


def test_labels_tell_of_hardware_and_driver_where_no_pod_looked() -> None:
    report = of(node(like="whole"))
    assert diagnostic(report, "pci").evidence == "label pci-10de.present"
    assert missing(diagnostic(report, "driver").evidence, "580.95.05") == []
    assert diagnostic(report, "runtime").status == "unknown"


def test_a_driver_on_the_node_that_is_not_in_the_pod_is_the_runtimes_fault() -> None:
    loaded = on_bus("nvidia", module="580.159.04")
    visit = NodeVisit(with_gpus=look("with_gpus", 1, pci=loaded))
    report = of(node(like="whole"), visit, runtime_classes=[{"metadata": {"name": "nvidia"}}])
    assert diagnostic(report, "driver").status == "ok"
    (finding,) = diagnostic(report, "runtime").findings
    assert finding.kind == "not-handed-in"
    assert "--runtime-class nvidia" in finding.do[0]
    assert any("nvidia-ctk runtime" in line and "--runtime=containerd" in line for line in finding.do)
    assert any("nvidia-ctk cdi" in line and "--output=/etc/cdi/nvidia.yaml" in line for line in finding.do)
    assert not any("setsebool" in line for line in finding.do)


def test_on_red_hat_selinux_is_named_and_its_own_package_manager() -> None:
    lines = advice.runtime("nvidia", "Red Hat Enterprise Linux 9.6 (Plow)", "cri-o://1.31.3", openshift=False)
    assert (
        missing("\n".join(lines), "setsebool", "container_use_devices", "dnf install", "nvidia-container-toolkit") == []
    )
    assert any("--runtime=crio" in line and "restart crio" in line for line in lines)


def test_on_openshift_the_operators_are_named_and_no_package_manager() -> None:
    for lines in (advice.driver("nvidia", "Red Hat Enterprise Linux CoreOS 418", True), advice.plugin("nvidia", True)):
        assert lines == advice.NVIDIA_OPENSHIFT
        assert not any("helm" in line or "dnf" in line for line in lines)
    assert advice.driver("amd", "Red Hat Enterprise Linux CoreOS 418", True) == advice.AMD_OPENSHIFT


def test_amd_gets_amds_own_commands() -> None:
    ubuntu = "Ubuntu 24.04.1 LTS"
    assert any("rocm/gpu-operator-charts" in line for line in advice.driver("amd", ubuntu, False))
    assert any("k8s-ds-amdgpu-dp.yaml" in line for line in advice.plugin("amd", False))


def test_an_amd_gpu_is_known_by_its_device_nodes_since_every_pod_sees_its_cards() -> None:
    wish = replace(WISH, resource="amd.com/gpu")
    cards: dict[str, Any] = {"devices": [{"card": "card0"}, {"card": "card1"}]}
    pci = {"devices": 40, "gpus": [{"vendor": "amd", "driver": "amdgpu"}], "modules": {"amdgpu": "6.10.5"}}
    given = look("with_gpus", 1, gpu_amd=cards, pci={**pci, "device_nodes": ["/dev/kfd", "/dev/dri/renderD128"]})
    none = look("plain", gpu_amd=cards, pci={**pci, "device_nodes": []})
    report = of(node(like="amd"), NodeVisit(plain=none, with_gpus=given), wish)
    assert missing(diagnostic(report, "driver").evidence, "6.10.5") == []
    pod = diagnostic(report, "pod").evidence
    assert (numbers(pod), missing(pod, "/dev/dri/renderD128")) == ([1, 1], [])
    assert "seen-without-asking" not in kinds(diagnostic(report, "pod"))


# Device plugin, allocatable


@pytest.mark.parametrize(
    ("like", "found"),
    [
        ("whole", []), ("time-slicing", ["time-slicing"]), ("mps", ["mps"]), ("replicas", ["replicas"]), ("mig-single", ["mig"]),
    ],
)  # fmt: skip
def test_shared_gpus_are_known_by_their_labels(like: str, found: list[str]) -> None:
    assert kinds(diagnostic(of(node(like=like)), "allocatable")) == found


def test_eight_gpus_in_two_slices_are_shared_though_replicas_are_fewer_than_gpus() -> None:
    (finding,) = diagnostic(of(node(like="time-slicing")), "allocatable").findings
    assert numbers(finding.what) == [2, 8]


def test_mig_slices_under_their_own_names_are_offered_by_name() -> None:
    report = of(node(like="mig-mixed"))
    (finding,) = diagnostic(report, "device-plugin").findings
    assert finding.kind == "other-resource"
    assert missing(finding.do[0], "--resource nvidia.com/mig-1g.5gb") == []
    sliced = of(node(like="mig-mixed"), wish=replace(WISH, resource="nvidia.com/mig-1g.5gb"))
    assert kinds(diagnostic(sliced, "allocatable")) == ["mig"]


def test_a_dead_device_plugin_leaves_capacity_and_no_allocatable() -> None:
    made = node()
    made["status"]["allocatable"]["nvidia.com/gpu"] = "0"
    report = of(made)
    (finding,) = diagnostic(report, "allocatable").findings
    assert (finding.kind, finding.status) == ("none-allocatable", "failed")
    assert numbers(finding.what) == [0, 2]
    assert diagnostic(report, "device-plugin").status == "unknown"
    assert numbers(str(pod_diagnostics.why_no_pod(Node(made), seen(made), WISH))) == [0, 1]


def test_an_unhealthy_device_is_a_warning() -> None:
    made = node()
    made["status"]["allocatable"]["nvidia.com/gpu"] = "1"
    assert kinds(diagnostic(of(made), "allocatable")) == ["unhealthy"]


def test_more_gpus_than_a_node_has_fail() -> None:
    assert kinds(diagnostic(of(node(), wish=replace(WISH, gpus=3)), "allocatable")) == ["too-few"]


def test_a_gpu_on_the_bus_that_cannot_be_asked_for_is_a_warning() -> None:
    report = of(node(), NodeVisit(plain=look("plain", pci=on_bus("nvidia", "nvidia", "nvidia", module="580"))))
    (finding,) = diagnostic(report, "allocatable").findings
    assert (finding.kind, numbers(finding.what)) == ("pci-not-allocatable", [2, 3])


def plugin(reason: str = "", ready: bool = True) -> dict[str, Any]:
    daemonset = {"metadata": {"name": "nvdp-nvidia-device-plugin", "namespace": "gpu", "uid": "1"}}
    state = {"waiting": {"reason": reason}} if reason else {"running": {}}
    pod = {
        "metadata": {"name": "nvdp-abc", "namespace": "gpu", "ownerReferences": [{"uid": "1"}]},
        "spec": {"nodeName": "node-2"},
        "status": {"phase": "Running", "containerStatuses": [{"ready": ready, "restartCount": 7, "state": state}]},
    }
    return {"daemonsets": [daemonset], "pods": [pod]}


def test_a_device_plugin_in_trouble_is_named_with_its_reason() -> None:
    made = node()
    for part in ("capacity", "allocatable"):
        del made["status"][part]["nvidia.com/gpu"]
    (finding,) = diagnostic(of(made, **plugin("CrashLoopBackOff", ready=False)), "device-plugin").findings
    assert finding.kind == "plugin-ill"
    assert missing(finding.what, "gpu/nvdp-abc", "CrashLoopBackOff", "7") == []
    assert missing(finding.do[0], "-n gpu", "logs nvdp-abc", "--previous") == []
    well = diagnostic(of(node(), **plugin()), "device-plugin")
    assert (well.status, missing(well.evidence, "nvidia.com/gpu", "1")) == ("ok", [])


def test_a_plugin_that_is_installed_and_registered_nothing_is_told() -> None:
    made = node()
    for part in ("capacity", "allocatable"):
        del made["status"][part]["nvidia.com/gpu"]
    (finding,) = diagnostic(of(made, daemonsets=plugin()["daemonsets"]), "device-plugin").findings
    assert finding.kind == "plugin-not-here"


def test_devices_that_are_only_offered_by_claims_are_told_with_the_option() -> None:
    made = node()
    for part in ("capacity", "allocatable"):
        del made["status"][part]["nvidia.com/gpu"]
    slices = [
        {"spec": {"nodeName": "node-2", "driver": "gpu.nvidia.com", "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}]}}
    ]
    classes = [{"metadata": {"name": "gpu.nvidia.com"}}]
    (finding,) = diagnostic(of(made, slices=slices, device_classes=classes), "device-plugin").findings
    assert finding.kind == "dra-only"
    assert missing(finding.do[0], "--dra gpu.nvidia.com") == []
    by_claim = of(made, wish=replace(WISH, dra="gpu.nvidia.com"), slices=slices, device_classes=classes)
    assert numbers(diagnostic(by_claim, "allocatable").evidence) == [2]
    wrong = of(made, wish=replace(WISH, dra="gpu.amd.com"), slices=slices, device_classes=classes)
    assert kinds(diagnostic(wrong, "device-plugin")) == ["no-device-class"]


def test_holders_of_gpus_are_named_and_finished_pods_hold_none() -> None:
    def pod(name: str, count: str, phase: str = "Running", where: str = "node-2") -> dict[str, Any]:
        limits = {"limits": {"nvidia.com/gpu": count}}
        return {
            "metadata": {"name": name, "namespace": "x"},
            "spec": {"nodeName": where, "containers": [{"resources": limits}]},
            "status": {"phase": phase},
        }

    pods = [pod("one", "1"), pod("two", "2"), pod("old", "2", "Succeeded"), pod("far", "2", where="node-1")]
    assert holders(pods, "node-2", "nvidia.com/gpu") == [("x/two", 2), ("x/one", 1)]
    busy = seen(node(), pods=pods[1:2])
    held = "x/two (2)"
    why, told = (
        str(pod_diagnostics.why_no_pod(Node(node()), busy, WISH)),
        diagnostic(make_report(busy, WISH, {}), "allocatable").evidence,
    )
    assert (numbers(why), held in why) == ([0, 2, 2], True)
    assert (numbers(told), held in told) == ([0, 2, 2, 2], True)


# The pod, and the vector add


def test_a_pod_that_sees_exactly_its_gpu_is_well() -> None:
    result = diagnostic(of(node(like="whole"), real_visit()), "pod")
    assert (result.status, numbers(result.evidence), missing(result.evidence, H200)) == ("ok", [1, 1], [])


def test_a_pod_that_sees_more_than_it_was_given_fails_and_names_them() -> None:
    (finding,) = diagnostic(of(node(like="whole"), real_visit(shown=2)), "pod").findings
    assert (finding.kind, finding.status) == ("more-seen", "failed")
    assert missing(finding.what, f"{H200[:-1]}1") == []
    assert H200 not in finding.what


def test_a_pod_that_sees_another_gpu_than_it_was_given_fails() -> None:
    other = H200.replace("GPU-0", "GPU-9")
    assert kinds(diagnostic(of(node(like="whole"), real_visit(given=other)), "pod")) == ["more-seen"]


def test_a_pod_that_sees_fewer_than_it_was_given_fails() -> None:
    assert kinds(diagnostic(of(node(like="whole"), real_visit(), replace(WISH, gpus=2)), "pod")) == ["fewer-seen"]


@pytest.mark.parametrize("given", ["void", "GPU-1-0", "0", "MIG-00000000-1111-2222-3333-444444444444"])
def test_devices_that_are_not_named_by_their_uuids_are_counted(given: str) -> None:
    """CDI names none, a plugin may have names of its own, and a slice is shown under its GPU's UUID."""
    assert diagnostic(of(node(like="whole"), real_visit(given=given)), "pod").status == "ok"
    assert kinds(diagnostic(of(node(like="whole"), real_visit(2, given)), "pod")) == ["more-seen"]


def test_the_pods_own_status_goes_before_the_variable() -> None:
    told = replace(look("with_gpus", 1), allocated=("GPU-a::0", "GPU-b"))
    assert pod_diagnostics.given(told) == ("GPU-a", "GPU-b")


def test_a_stand_in_pod_that_was_given_too_many_fails() -> None:
    visit = NodeVisit(with_gpus=look("with_gpus", 1, environment={"NVIDIA_VISIBLE_DEVICES": "GPU-2-0,GPU-2-1"}))
    assert kinds(diagnostic(of(node(), visit), "pod")) == ["wrong-count"]


def test_a_gpu_that_is_seen_without_asking_is_a_warning() -> None:
    visit = real_visit()
    assert visit.plain is not None
    uninvited = look(
        "plain",
        pci={**on_bus("nvidia", module="580"), "device_nodes": ["/dev/nvidia0", "/dev/nvidia1"]},
        limits={"shm_mib": 8192.0},
    )
    (finding,) = diagnostic(of(node(like="whole"), replace(visit, plain=uninvited)), "pod").findings
    assert finding.kind == "seen-without-asking"
    assert "/dev/nvidia0, /dev/nvidia1" in finding.what


def test_a_plain_pods_64_mib_of_shared_memory_are_a_warning() -> None:
    assert kinds(diagnostic(of(node(), NodeVisit(plain=look("plain"), why_not="busy")), "pod")) == ["small-shm"]


def test_a_pod_that_did_not_run_fails_with_the_places_own_words() -> None:
    visit = NodeVisit(with_gpus=Look(kind="image", trouble="not pulled", hint="its name?"))
    report = of(node(), visit)
    assert [(f.kind, f.what, f.do) for f in diagnostic(report, "pod").findings] == [
        ("image", "not pulled", ("its name?",))
    ]
    assert diagnostic(report, "vector-add").status == "skipped"


def test_where_the_gpus_are_busy_a_plain_pod_that_cannot_run_is_no_secret() -> None:
    plain = Look(kind="place", trouble="no-class")
    (finding,) = diagnostic(of(node(), NodeVisit(plain=plain, why_not="0 of 2 are free")), "pod").findings
    assert finding.what == "no-class"


def test_a_wrong_sum_fails_and_an_image_without_a_framework_tells_nothing() -> None:
    wrong = replace(real_visit(), addition=Addition(kind="wrong_result", trouble="3 wrong sums"))
    assert kinds(diagnostic(of(node(like="whole"), wrong), "vector-add")) == ["wrong_result"]
    bare = replace(real_visit(), addition=Addition(kind="missing_package", trouble="torch cannot be imported"))
    assert diagnostic(of(node(like="whole"), bare), "vector-add").status == "unknown"


def test_vectors_are_added_only_where_a_driver_answers() -> None:
    assert worth_adding(real_visit(), WISH)
    assert not worth_adding(stand_in(), WISH)
    assert worth_adding(NodeVisit(plain=look("plain")), replace(WISH, gpus=0))
