"""`--mount`: one grammar for every place, what each place makes of it, and how it is verified."""

from pathlib import Path
from typing import Any

import pytest

from refusing import refused
from remark_kinds import kinds_of
from stackmark.errors import PlaceError, SpecError
from stackmark.experiments.manifesting import manifest_for, read_pod_options
from stackmark.kubernetes.manifest.build import job
from stackmark.kubernetes.manifest.request import PodRequest, forbidden_by_restricted
from stackmark.machine import container as machine
from stackmark.places.container.engine import Engine
from stackmark.places.container.launch import Image, launch
from stackmark.places.container.options import ContainerOptions
from stackmark.places.container.software import HostSoftware
from stackmark.places.host import HostOptions
from stackmark.places.mounts import Mount, covering, not_mounted, read_mount, read_mounts
from stackmark.places.place import Facts
from stackmark.places.pod.finished import options_of
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.request import pod_request, remarks
from stackmark.places.registry import find_place
from stackmark.spec import Request, Scalar, Spec, Task

Json = dict[str, Any]
PODMAN = Engine("podman", "/usr/bin/podman", "4.3.1")
HOST = HostSoftware("/usr/bin/python3", ("/usr",))
EVERY = ["claim:imagenet:/data", "hostpath:/srv/in:/in", "nfs:10.0.0.7:/exports/a:/nfs", "claim:results:/out:rw"]


def asking(**params: Scalar) -> Task:
    return Task(do="run", request=Request(workload="train/resnet50", params=params))


def in_pod(options: Json, task: Task | None = None, **more: Any) -> PodRequest:
    read = PodOptions.model_validate(options)
    return pod_request(
        read, mark="r-1", kind="run", namespace="n", image="localhost/any:1", task=task or asking(), **more
    )


def said_of(task: Task, *mounts: str, **more: Any) -> list[str]:
    options = {"mount": [*mounts]}
    return remarks(PodOptions.model_validate(options), in_pod(options, task, **more), task)


def worker_of(request: PodRequest) -> tuple[Json, Json]:
    spec: Json = job(request)["spec"]["template"]["spec"]
    return spec, spec["containers"][0]


def volumes_of(request: PodRequest) -> dict[str, tuple[Json, Json]]:
    """Volume and mount by target."""
    spec, worker = worker_of(request)
    named = {one["name"]: one for one in spec["volumes"]}
    return {mount["mountPath"]: (named[mount["name"]], mount) for mount in worker["volumeMounts"]}


# The grammar


@pytest.mark.parametrize(
    ("text", "kind", "source", "target", "read_only", "server"),
    [
        ("/data:/data", "path", "/data", "/data", True, ""),
        ("/a/./b//c/:/d/", "path", "/a/b/c", "/d", True, ""),
        ("/out:/results:rw", "path", "/out", "/results", False, ""),
        ("hostpath:/raid:/data:ro", "hostpath", "/raid", "/data", True, ""),
        ("claim:imagenet-2012.a:/data", "claim", "imagenet-2012.a", "/data", True, ""),
        ("claim:results:/out:rw", "claim", "results", "/out", False, ""),
        ("nfs:files.example:/exports/a:/data", "nfs", "/exports/a", "/data", True, "files.example"),
        ("nfs:files.example:/:/data:rw", "nfs", "/", "/data", False, "files.example"),
        ("nfs:[fd00::7]:/a:/data", "nfs", "/a", "/data", True, "[fd00::7]"),
    ],
)
def test_a_mount_is_a_source_a_target_and_a_mode(
    text: str, kind: Any, source: str, target: str, read_only: bool, server: str
) -> None:
    assert read_mount(text) == Mount(text, kind, source, target, read_only, server)


@pytest.mark.parametrize(
    "text",
    [
        "", "/a", "/a:", ":/a", "a:/b", "/a:b", "/a:/b:", "/a:/b:rx", "/a:/b:RO", "/a:/b:/c", "/:/a", "/a:/", "/a:/./",
        "/a:/b/../c", "/a/..:/b", "/a\n:/b", "claim:/data",
        "claim:Upper:/data", "claim:a/b:/data", "claim::/data", "hostpath:a:/data",
        "hostpath:/data", "nfs:server:/data", "nfs:/a:/data", "nfs:-x:/a:/data", "nfs:a b:/a:/data", "s3:bucket:/data",
    ],
)  # fmt: skip
def test_what_is_not_a_mount_is_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_mount(text)
    assert caught.value.message.startswith("mount: ")


@pytest.mark.parametrize("target", ["/proc", "/sys/fs", "/dev/shm", "/dev", "/dev/shm/a"])
@pytest.mark.parametrize("place", ["container", "pod"])
def test_what_a_place_sets_up_itself_is_not_hidden(place: str, target: str) -> None:
    with refused(target):
        find_place(place, {"mount": f"/a:{target}"})


def test_the_worker_s_own_folders_are_not_hidden() -> None:
    for target in ("/opt/stackmark", "/opt/stackmark/a", "/opt"):
        for place in ("container", "pod"):
            with refused("/opt/stackmark"):
                find_place(place, {"mount": f"/a:{target}", "image": "localhost/any:1"})
    with refused("/tmp"):
        find_place("pod", {"mount": "/a:/tmp"})
    assert PodOptions(mount=("/a:/tmp/data",)).mounts[0].target == "/tmp/data"
    # The host's own software brings no file of ours, and may lie in /opt.
    assert ContainerOptions(mount=("/opt:/opt",)).mounts[0].target == "/opt"


def test_two_mounts_with_one_target_and_too_many_mounts_are_refused() -> None:
    with refused("/data"):
        read_mounts(["/a:/data", "claim:x:/data/"])
    with refused("33"):
        read_mounts([f"/a:/data/{number}" for number in range(33)])


def test_the_innermost_mount_covers_a_path() -> None:
    found = read_mounts(["/a:/data", "/b:/data/train:rw"])
    assert covering(found, "/data/train/x") == found[1]
    assert covering(found, "/data/val") == found[0]
    assert covering(found, "/database") is None


# On the host and in a container


def test_on_the_host_a_path_stays_where_it_is(tmp_path: Path) -> None:
    assert HostOptions(mount=(f"{tmp_path}:{tmp_path}", "hostpath:/data:/data:rw")).mounts[1].target == "/data"
    for text in ("/a:/data", "claim:x:/data", "nfs:s:/a:/data"):
        with refused("/data"):
            find_place("host", {"mount": text})


def test_a_path_that_is_not_there_is_refused_before_a_worker_starts(tmp_path: Path) -> None:
    place = find_place("host", {"mount": f"{tmp_path}/none:{tmp_path}/none"})
    with pytest.raises(PlaceError) as caught:
        place.run(asking(), None, mark="r-1")  # type: ignore[arg-type]  # nobody listens yet
    assert f"{tmp_path}/none" in caught.value.message


@pytest.mark.parametrize("text", ["claim:x:/data", "nfs:s:/a:/data"])
def test_a_container_has_neither_claims_nor_nfs(text: str) -> None:
    with refused(text):
        find_place("container", {"mount": text})


def volumes_in_container(task: Task, *mounts: str) -> list[str]:
    options = ContainerOptions(mount=mounts)
    made = launch(PODMAN, options, Image("localhost/bare:1", "sha256:1", HOST), task, "r-1", None, {})
    return [word.removeprefix("--volume=") for word in made.argv if word.startswith("--volume=")]


def test_a_mount_in_the_place_of_data_replaces_the_host_s_folder_of_that_name(tmp_path: Path) -> None:
    other = tmp_path / "other"
    (tmp_path / "data/imagenet").mkdir(parents=True)
    other.mkdir()
    task = Task(do="run", spec=Spec(workload="train/resnet50", params={"data": f"{tmp_path}/data/imagenet"}))
    assert f"{tmp_path}/data/imagenet:{tmp_path}/data/imagenet:ro" in volumes_in_container(task)
    given = volumes_in_container(task, f"hostpath:{other}:{tmp_path}/data")
    assert f"{other}:{tmp_path}/data:ro" in given
    assert not any(f"{tmp_path}/data/imagenet" in one for one in given)


# In a pod


def test_each_kind_of_source_becomes_a_volume_and_a_claim_is_read_only_in_itself() -> None:
    found = volumes_of(in_pod({"mount": EVERY}))
    assert found["/data"][0]["persistentVolumeClaim"] == {"claimName": "imagenet", "readOnly": True}
    assert found["/in"][0]["hostPath"] == {"path": "/srv/in", "type": "Directory"}
    assert found["/nfs"][0]["nfs"] == {"server": "10.0.0.7", "path": "/exports/a", "readOnly": True}
    assert [found[target][1].get("readOnly") for target in ("/data", "/in", "/nfs")] == [True, True, True]
    assert found["/out"][0]["persistentVolumeClaim"] == {"claimName": "results"}
    assert "readOnly" not in found["/out"][1]


def test_a_plain_path_is_a_folder_or_a_file_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("")
    found = volumes_of(in_pod({"mount": [f"{tmp_path}:/data", f"{tmp_path}/list.txt:/list.txt"]}))
    assert found["/data"][0]["hostPath"] == {"path": str(tmp_path), "type": "Directory"}
    assert found["/list.txt"][0]["hostPath"]["type"] == "File"


def test_with_the_host_s_software_a_claim_replaces_the_host_s_folder_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "imagenet").mkdir()
    task = asking(data=f"{tmp_path}/imagenet")
    assert "hostPath" in volumes_of(in_pod({}, task, software=HOST))[f"{tmp_path}/imagenet"][0]
    found = volumes_of(in_pod({"mount": [f"claim:x:{tmp_path}"]}, task, software=HOST))
    assert "persistentVolumeClaim" in found[str(tmp_path)][0]
    assert f"{tmp_path}/imagenet" not in found


def test_a_printed_manifest_has_the_mounts_and_takes_no_path_of_this_machine() -> None:
    request = Request(workload="train/resnet50", params={"data": "/data"})
    made = manifest_for(request, read_pod_options({"image": "localhost/any:1", "mount": ["claim:imagenet:/data"]}))
    assert {"claimName": "imagenet", "readOnly": True} in [
        one.get("persistentVolumeClaim") for one in made.objects[-1]["spec"]["template"]["spec"]["volumes"]
    ]
    assert not any("--mount" in sentence for sentence in made.warnings)
    with refused("/srv:/data"):
        manifest_for(request, read_pod_options({"image": "localhost/any:1", "mount": ["/srv:/data"]}))


def test_a_pod_that_has_ended_still_says_what_was_mounted() -> None:
    spec, _ = worker_of(in_pod({"mount": [*EVERY, "nfs:[fd00::7]:/a:/b"]}))
    read = options_of({"spec": spec})["mount"]
    assert isinstance(read, list)
    assert [str(one).removesuffix(":ro") for one in read] == [*EVERY, "nfs:[fd00::7]:/a:/b"]
    next(one for one in spec["volumes"] if one["name"] == "mount-4")["nfs"]["server"] = "no server:/x"
    assert options_of({"spec": spec})["mount"] == read[:-1]


def test_restricted_forbids_folders_of_the_node_and_nfs_and_allows_claims() -> None:
    said = forbidden_by_restricted(in_pod({"mount": EVERY}))
    assert [target for target in ("/data", "/in", "/nfs", "/out") if any(f" {target}," in one for one in said)] == [
        "/in", "/nfs",
    ]  # fmt: skip


# Paths of a workload


def test_a_path_that_no_mount_covers_is_said_and_one_that_is_covered_is_not() -> None:
    task = asking(data="/data/imagenet")
    assert "--mount claim:NAME:/data/imagenet" in said_of(task)[0]
    assert "--mount claim:NAME:/data/imagenet" in said_of(task, "claim:x:/database")[0]
    assert said_of(task, "claim:x:/data") == []
    assert said_of(task, software=HOST) == forbidden_by_restricted(in_pod({}, task, software=HOST))


def test_a_path_that_is_written_needs_a_writable_mount() -> None:
    task = asking(checkpoint_dir="/out", trace_file="/traces/a.json")
    said = said_of(task, "claim:x:/out")
    assert ("--mount claim:x:/out:rw" in said[0], "--mount claim:NAME:/traces:rw" in said[1]) == (True, True)
    assert said_of(task, "claim:x:/out:rw", "claim:y:/traces:rw") == []


# Was it done?

MOUNTINFO = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 254:1 /srv /data ro,relatime shared:1 - ext4 /dev/vda1 rw
31 22 0:40 / /out rw,relatime - nfs4 server:/a rw,vers=4.2
32 22 0:41 / /stale rw,relatime - nfs4 server:/b ro,vers=4.2
33 22 254:1 /a /with\\040space rw - ext4 /dev/vda1 rw
34 22 254:1 /b /data/over ro - ext4 /dev/vda1 rw
35 22 254:1 /c /data/over rw - ext4 /dev/vda1 rw
broken line
"""


def test_the_kernel_s_table_says_what_is_mounted_and_how() -> None:
    paths = ["/data", "/out", "/stale", "/with space", "/data/over", "/data/none", "/none"]
    found = machine.mounts_at(paths, MOUNTINFO)
    assert list(found.values()) == [
        "read-only", "writable", "read-only", "writable", "writable", "not mounted", "not mounted",
    ]  # fmt: skip


@pytest.mark.parametrize("told", ["[]", '{"mounts": 3}', '{"mounts": [3, null]}', "no json"])
def test_a_worker_that_is_told_nonsense_says_nothing_of_mounts(told: str) -> None:
    assert not machine.read(environ={"STACKMARK_PLACE": told}).facts.get("mounts")


def test_a_worker_says_what_is_at_the_targets_that_its_place_names() -> None:
    facts = machine.read(environ={"STACKMARK_PLACE": '{"mounts": ["/proc", "/nowhere"], "image": "x"}'}).facts
    assert facts["mounts"] == {"/proc": "writable", "/nowhere": "not mounted"}
    assert facts["image"] == "x"


@pytest.mark.parametrize(
    ("seen", "kinds"),
    [
        ({"/data": "read-only", "/out": "writable"}, []),
        ({"/data": "writable", "/out": "writable"}, ["mount"]),
        ({"/data": "read-only", "/out": "read-only"}, ["mount"]),
        ({"/data": "not mounted", "/out": "writable"}, ["mount"]),
        (None, ["mount", "mount"]),
    ],
)
def test_a_mount_that_is_not_as_it_was_asked_for_is_said(seen: Any, kinds: list[str]) -> None:
    facts: Facts = {"container": {"mounts": seen}}
    assert kinds_of([*not_mounted(read_mounts(["claim:a:/data", "claim:b:/out:rw"]), facts)]) == kinds
