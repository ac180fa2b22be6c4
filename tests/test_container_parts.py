"""What a container's place works out before any engine is asked: options, settings, folders, GPUs, and what errors mean."""

import os
import shlex
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import pytest

from remark_kinds import kinds_of
from stackmark.errors import PlaceError, SpecError
from stackmark.machine.host import boot_id
from stackmark.places.bundle import TARGET
from stackmark.places.container import bare_image, checks, gpus, settings, software, trouble
from stackmark.places.container.engine import Engine
from stackmark.places.container.launch import Image, driver_lives, driver_name, launch
from stackmark.places.container.options import ContainerOptions
from stackmark.places.container.software import HostSoftware
from stackmark.places.image_python import image_command
from stackmark.places.place import SUBJECTS, Facts
from stackmark.places.registry import PLACES, find_place
from stackmark.spec import Request, Spec, Task
from stackmark.workloads.registry import families

SPEC = Spec(workload="train/resnet50", params={"device": "cpu"})
PODMAN = Engine("podman", "/usr/bin/podman", "4.3.1")
DOCKER = Engine("docker", "/usr/bin/docker", "20.10.24")
BARE = Image("localhost/bare:1", "sha256:1", HostSoftware("/usr/bin/python3", ("/usr",)))
THEIRS = Image("localhost/theirs:1", "sha256:2", None)
ZIP = Path("/tmp/folder/worker.pyz")


def command(
    engine: Engine = PODMAN, image: Image = BARE, spec: Spec = SPEC, environ: dict[str, str] | None = None, **asked: Any
) -> list[str]:
    named = {"image": THEIRS.name} if image is THEIRS else {}
    options = ContainerOptions.model_validate({**named, **asked})
    bundle = ZIP if image is THEIRS else None
    return launch(engine, options, image, Task(do="run", spec=spec), "r-1", None, environ or {}, None, bundle).argv


# Options


def test_no_option_has_the_name_of_a_workload_s_parameter() -> None:
    parameters = {name for family in families().values() for name in family.params.model_fields}
    for kind in PLACES.values():
        assert not parameters & set(kind.options.model_fields)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("shm", "64q", ""),
        ("shm", "0", ""),
        ("memory", "1m", "6 MiB"),
        ("memory", "-1g", ""),
        ("cpus", "0", ""),
        ("cpus", "nan", ""),
        ("cpuset", "3-1", ""),
        ("cpuset", "a", ""),
        ("ulimit", "memlok=-1", ""),
        ("ulimit", "nofile=5:2", ""),
        ("ulimit", "nofile=-1:2", ""),
        ("ulimit", "nofile=1g", ""),
        ("network", "--privileged", ""),
        ("seccomp", "profile.json", ""),
        ("cap_add", "SYS_NICE;rm", ""),
        ("gpus", "first", ""),
        ("mount", "/a", ""),
        ("mount", "a:/b", ""),
        ("mount", "/a:/b:rx", ""),
        ("env", "=x", ""),
        ("env", "STACKMARK_RUN=x", ""),
        ("image", "-v", ""),
        ("python", "-c", ""),
        ("python", "/a b", ""),
        ("read_only", "maybe", ""),
        ("user", "a b", ""),
        ("user", "0:2147483648", "2147483647"),
        ("ipc", "container:x", "host, private or shareable"),
        ("engine", "lxc", "podman"),
        ("privileged", "maybe", ""),
    ],
)
def test_a_value_that_cannot_be_is_a_sentence_with_its_key(key: str, value: str, allowed: str) -> None:
    with pytest.raises(SpecError) as caught:
        find_place("container", {key: value})
    shown = value.partition("=")[0] if key in ("ulimit", "env") else value
    assert [word for word in ("container", key, shown, allowed) if word not in caught.value.message] == []


@pytest.mark.parametrize(
    "asked",
    [
        {"image": "a", "rootfs": True},
        {"rootfs": True, "engine": "docker"},
        {"rootfs": True, "read_only": True},
        {"python": "/opt/conda/bin/python"},
        {"ipc": "host", "shm": "1g"},
        {"privileged": True, "cap_drop": ["ALL"]},
    ],
)
def test_options_that_do_not_go_together_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        find_place("container", asked)
    # The first of them, at least.
    assert next(iter(asked)) in caught.value.message


def test_options_are_stored_as_they_were_typed_and_read_again() -> None:
    typed: dict[str, Any] = {
        "shm": "64m",
        "ulimit": ["memlock=-1", "nofile=1024:2048"],
        "cpus": "1.5",
        "rootfs": True,
        "gpus": "0,1",
    }
    stored = find_place("container", typed).options()
    assert stored == typed
    assert find_place("container", stored).options() == typed


def test_quantities_reach_both_engines_in_bytes() -> None:
    for engine in (PODMAN, DOCKER):
        argv = command(engine, memory="1.5g", shm="64m", ulimit=["memlock=64MiB", "nofile=10"], cpus="0.50")
        assert {"--memory=1610612736b", "--memory-swap=1610612736b", "--shm-size=67108864b", "--cpus=0.5"} <= set(argv)
        assert {"--ulimit=memlock=67108864:67108864", "--ulimit=nofile=10:10"} <= set(argv)


def test_an_image_is_never_pulled_and_its_own_path_is_kept() -> None:
    argv = command(image=THEIRS, environ={"PATH": "/secret", "OMP_NUM_THREADS": "1", "CUDA_HOME": "/usr/local/cuda"})
    program, *rest = image_command()
    assert argv[argv.index("--pull=never") :] == [
        "--pull=never",
        f"--entrypoint={program}",
        "localhost/theirs:1",
        *rest,
    ]
    assert f"--volume={ZIP}:{TARGET}:ro" in argv
    assert "--env=OMP_NUM_THREADS" in argv
    assert not any("PYTHONPATH" in word for word in argv[: argv.index("--pull=never")])
    assert not {"--env=PATH", "--env=CUDA_HOME"} & set(argv)


def test_a_python_of_the_image_that_is_named_runs_the_worker() -> None:
    argv = command(image=THEIRS, python="/opt/conda/bin/python", env=["PYTHONPATH=/mine"])
    assert argv[argv.index("--pull=never") :] == [
        "--pull=never",
        "--entrypoint=/opt/conda/bin/python",
        "localhost/theirs:1",
        TARGET,
    ]
    assert "--env=PYTHONPATH=/mine" in argv


def test_a_read_only_root_has_a_temporary_folder_unless_one_is_mounted() -> None:
    assert {"--read-only", "--tmpfs=/tmp:exec,mode=1777"} <= set(command(DOCKER, read_only=True))
    assert {"--read-only", "--tmpfs=/tmp:exec,mode=1777,notmpcopyup"} <= set(command(read_only=True))
    mounted = command(read_only=True, mount=["/var:/tmp"])
    assert "--read-only" in mounted
    assert not [word for word in mounted if word.startswith("--tmpfs")]


def test_folders_of_the_workload_s_parameters_are_mounted(tmp_path: Path) -> None:
    params = {"device": "cpu", "data": str(tmp_path), "checkpoint_dir": str(tmp_path / "out"), "trace_file": ""}
    argv = command(spec=Spec(workload="train/resnet50", params=params))
    assert f"--volume={tmp_path}:{tmp_path}:ro" in argv
    assert f"--volume={tmp_path}/out:{tmp_path}/out" in argv
    assert (tmp_path / "out").is_dir()


def test_a_user_s_program_runs_where_the_user_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for params in ({}, {"cwd": str(tmp_path)}):
        argv = command(spec=Spec(workload="command/own", params={"cmd": "python train.py", **params}))
        assert {f"--volume={tmp_path}:{tmp_path}:ro", f"--workdir={tmp_path}"} <= set(argv)
    argv = command(spec=Spec(workload="command/own", params={"cmd": "python train.py", "cwd": "."}))
    assert "--workdir=/tmp" in argv
    monkeypatch.chdir("/tmp")
    with pytest.raises(PlaceError) as caught:
        command(spec=Spec(workload="command/own", params={"cmd": "python train.py"}))
    assert "/tmp" in caught.value.message


def test_a_folder_with_a_colon_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    with pytest.raises(PlaceError) as caught:
        command(spec=Spec(workload="train/resnet50", params={"data": str(tmp_path / "a:b")}))
    assert str(tmp_path / "a:b") in caught.value.message


def test_a_driver_is_known_by_more_than_its_pid() -> None:
    boot, namespace, pid, ticks = driver_name().rsplit(":", 3)
    assert driver_lives(driver_name())
    assert not driver_lives(f"{boot}:{namespace}:{pid}:{int(ticks) + 1}")
    assert not driver_lives(f"another boot:{namespace}:{pid}:{ticks}")
    assert driver_lives(f"{boot}:1:{pid}:{int(ticks) + 1}")  # of another pid namespace: it cannot be seen from here


# Settings by looking


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


CAPABLE = {"proc/self/status": "CapEff:\t000001ffffffffff\n"}
INCAPABLE = {"proc/self/status": "CapEff:\t000001fffeffffff\n", "proc/sys/kernel/pid_max": "4096\n"}


def test_without_systemd_and_with_hybrid_groups_podman_is_told(tmp_path: Path) -> None:
    (tmp_path / "runc").write_text("#!/bin/sh\n")
    (tmp_path / "runc").chmod(0o755)
    root = tree(tmp_path, {"sys/fs/cgroup/unified/cgroup.controllers": "hugetlb\n"})
    flags = settings.podman_flags({"PATH": str(tmp_path)}, root)
    assert flags == ["--runtime=runc", "--cgroup-manager=cgroupfs", "--events-backend=file"]


def test_an_ordinary_machine_is_left_alone(tmp_path: Path) -> None:
    root = tree(tmp_path, {"run/systemd/system/x": "", "sys/fs/cgroup/cgroup.controllers": "cpu memory\n", **CAPABLE})
    assert settings.podman_flags({"PATH": "/usr/bin"}, root) == []
    assert settings.podman_ulimits({}, {}, root) == {}


@pytest.mark.parametrize("where", ["etc/containers/containers.conf", "home/me/.config/containers/containers.conf"])
def test_somebody_s_own_settings_are_respected(tmp_path: Path, where: str) -> None:
    root = tree(tmp_path, {where: "[engine]\n", **INCAPABLE})
    env = {"HOME": "/home/me", "PATH": ""}
    assert settings.podman_flags(env, root) == []
    assert settings.podman_flags({"CONTAINERS_CONF": "/x", "PATH": ""}, tmp_path / "else") == []
    assert settings.podman_ulimits(env, {}, root) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root asks for more than it has")
def test_limits_that_cannot_be_raised_are_said_again_beside_those_asked_for(tmp_path: Path) -> None:
    root = tree(tmp_path, {"etc/containers/containers.conf": "", **INCAPABLE})
    said = settings.podman_ulimits({}, {"memlock": (1, 1)}, root)
    assert said["nproc"] == (4096, 4096)
    assert "nproc" not in settings.podman_ulimits({}, {"nproc": (5, 5)}, root)


# The host's own software


def test_python_says_itself_which_folders_it_needs(tmp_path: Path) -> None:
    (tmp_path / "extra").mkdir()
    found = software.host_software(
        sys.executable, {**os.environ, "PYTHONPATH": f"{tmp_path}/extra:{tmp_path}/missing:relative"}
    )
    for path in (
        sys.prefix,
        sys.base_prefix,
        "/usr",
        str(tmp_path / "extra"),
        os.path.realpath(sys.executable),
        software.__file__,
    ):
        assert software.within(path, found.folders)
    assert not software.within(str(tmp_path / "missing"), found.folders)
    assert not set(found.folders) & software.NEVER


def test_folders_behind_links_are_mounted_under_both_names(tmp_path: Path) -> None:
    (tmp_path / "real/lib").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    names = software.both_names([f"{tmp_path}/link/lib"])
    assert names == [f"{tmp_path}/link/lib", os.path.realpath(tmp_path / "real/lib")]
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to("real")
    assert software.link_chain(str(tmp_path / "a")) == [f"{tmp_path}/{name}" for name in ("a", "b", "real")]
    (tmp_path / "round").symlink_to("round")
    assert len(software.link_chain(str(tmp_path / "round"))) == 40


def test_a_folder_in_another_is_mounted_with_it() -> None:
    assert software.outermost(["/usr/lib", "/usr", "/usr-old", "/opt/a/b", "/opt/a", "/tmp"]) == (
        "/opt/a",
        "/usr",
        "/usr-old",
    )


def test_a_user_s_program_is_mounted_with_the_python_it_runs_on(tmp_path: Path) -> None:
    venv.create(tmp_path / "theirs", symlinks=True, with_pip=False)
    script = tmp_path / "theirs/bin/torchrun"
    script.write_text(f"#!{tmp_path}/theirs/bin/python\n")
    script.chmod(0o755)
    for command_line in ("python train.py", "torchrun train.py", f"{script} train.py"):
        environment = {"PATH": f"{tmp_path}/theirs/bin:/usr/bin"}
        found = software.program_folders(command_line, "/home", environment)
        assert software.within(str(tmp_path / "theirs/lib"), found), command_line
        assert software.within(os.path.realpath(tmp_path / "theirs/bin/python"), (*found, "/usr")), command_line


def test_a_shim_is_mounted_with_what_it_calls(tmp_path: Path) -> None:
    (tmp_path / "pyenv/shims").mkdir(parents=True)
    (tmp_path / "pyenv/shims/prog").write_text("#!/bin/sh\nexec ../libexec/pyenv exec prog\n")
    (tmp_path / "pyenv/shims/prog").chmod(0o755)
    assert software.program_folders("prog -x", "/home", {"PATH": f"{tmp_path}/pyenv/shims"}) == (f"{tmp_path}/pyenv",)


def test_files_that_a_user_s_command_names_are_mounted(tmp_path: Path) -> None:
    for name in ("own/a.py", "lib/b.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    found = software.program_folders(
        f"sh ../lib/b.py {tmp_path}/own/a.py --out {tmp_path} /no/file", f"{tmp_path}/own", {"PATH": "/usr/bin:/bin"}
    )
    assert {f"{tmp_path}/lib", f"{tmp_path}/own"} <= set(found)
    assert str(tmp_path) not in found
    with tempfile.NamedTemporaryFile(dir="/tmp") as alone:
        assert alone.name in software.program_folders(f"sh {alone.name}", "/home", {"PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize("command_line", ["", "'unbalanced", "no-such-program x"])
def test_of_a_command_that_cannot_be_run_nothing_is_mounted(command_line: str) -> None:
    assert software.program_folders(command_line, "/home", {"PATH": "/usr/bin"}) == ()


def test_a_python_that_is_none_is_a_sentence() -> None:
    with pytest.raises(PlaceError) as caught:
        software.host_software("/bin/true", dict(os.environ))
    assert "/bin/true" in caught.value.message
    assert caught.value.command is not None


def test_the_bare_image_is_the_same_for_the_same_host_and_has_its_links(tmp_path: Path) -> None:
    root = tree(tmp_path, {"etc/ld.so.cache": "where libraries are"})
    (root / "bin").symlink_to("usr/bin")
    (root / "lib").mkdir()
    archive = bare_image.recipe(root)
    assert bare_image.recipe(root) == archive
    assert b"usr/bin" in archive
    (root / "etc/ld.so.cache").write_text("somewhere else")
    assert bare_image.image_name(bare_image.recipe(root)) != bare_image.image_name(archive)


# GPUs


def host_with(root: Path, gpus_: int = 2, cdi: str = "") -> Path:
    names = [
        *(f"dev/nvidia{number}" for number in range(gpus_)),
        "dev/nvidiactl",
        "dev/nvidia-uvm",
        "dev/nvidia-caps/x",
    ]
    return tree(root, {**dict.fromkeys(names, ""), **({"etc/cdi/nvidia.yaml": cdi} if cdi else {})})


def test_a_workload_on_the_cpu_gets_no_gpu_and_a_probe_what_there_is(tmp_path: Path) -> None:
    root = host_with(tmp_path)
    auto = ContainerOptions()

    def wants(device: str | None, options: ContainerOptions = auto, where: Path = root) -> bool:
        params = {"device": device} if device else {}
        return gpus.wanted(options, Task(do="probe", request=Request(workload="train/resnet50", params=params)), where)

    assert (wants("cpu"), wants("cuda:0"), wants(None), wants("auto")) == (False, True, True, True)
    assert not wants(None, where=tmp_path / "nowhere")
    assert not wants("cuda", ContainerOptions(gpus="none"))
    assert wants("cpu", ContainerOptions(gpus="0"))


def test_podman_is_given_gpus_by_cdi_and_never_by_gpus(tmp_path: Path) -> None:
    root = host_with(tmp_path, cdi="cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    assert gpus.given(PODMAN, ContainerOptions(gpus="all"), {}, root) == (["--device=nvidia.com/gpu=all"], "cdi")
    two = gpus.given(PODMAN, ContainerOptions(gpus="0,1"), {}, root)
    assert two.flags == ["--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=1"]
    assert gpus.given(PODMAN, ContainerOptions(gpus=2), {}, root) == two
    shown = {"CUDA_VISIBLE_DEVICES": "1,0"}
    assert gpus.given(PODMAN, ContainerOptions(gpus=1), shown, root).flags == ["--device=nvidia.com/gpu=1"]
    for asked, around in ((3, shown), (3, {}), (1, {"CUDA_VISIBLE_DEVICES": ""})):
        with pytest.raises(PlaceError, match=f"--gpus {asked}: only"):
            gpus.given(PODMAN, ContainerOptions(gpus=asked), around, root)
    # An image without the driver's libraries cannot do with nodes, whatever there is.
    assert gpus.given(PODMAN, ContainerOptions(image="x", gpus="all"), {}, tmp_path / "nowhere").way == "cdi"


class OneGpu:
    """NVIDIA's library of a machine with one GPU, number 3 to the driver, /dev/nvidia1."""

    class NVMLError(Exception): ...

    UUID = "GPU-0a1b2c3d-0000-0000-0000-000000000000"

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetIndex(self, _handle: str) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetMinorNumber(self, _handle: str) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != self.UUID:
            raise self.NVMLError
        return uuid


def test_a_gpu_by_its_uuid_has_the_name_that_the_specification_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", OneGpu())
    asked, kind = ContainerOptions(gpus=OneGpu.UUID), "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n"
    by_number = host_with(tmp_path / "a", cdi=kind + 'devices: [{name: "3"}]')
    by_uuid = host_with(tmp_path / "b", cdi=kind + f"devices: [{{name: {OneGpu.UUID}}}]")
    assert gpus.given(PODMAN, asked, {}, by_number).flags == ["--device=nvidia.com/gpu=3"]
    assert gpus.given(PODMAN, asked, {}, by_uuid).flags == [f"--device=nvidia.com/gpu={OneGpu.UUID}"]
    assert gpus.given(PODMAN, asked, {"PATH": ""}, host_with(tmp_path / "c")).flags[0] == "--device=/dev/nvidia1"
    unknown = ContainerOptions(gpus="GPU-ffffffff-0000-0000-0000-000000000000")
    assert gpus.given(PODMAN, unknown, {}, by_number).flags == [f"--device=nvidia.com/gpu={unknown.gpus}"]


def test_without_a_specification_the_host_s_software_does_with_the_nodes(tmp_path: Path) -> None:
    root = host_with(tmp_path)
    one = gpus.given(PODMAN, ContainerOptions(gpus="1"), {"PATH": ""}, root)
    assert one == (["--device=/dev/nvidia1", "--device=/dev/nvidiactl", "--device=/dev/nvidia-uvm"], "device nodes")
    assert gpus.given(DOCKER, ContainerOptions(), {"PATH": ""}, root).way == "device nodes"
    with pytest.raises(PlaceError) as caught:
        gpus.given(PODMAN, ContainerOptions(gpus="5"), {"PATH": ""}, root)
    assert "GPU 5" in caught.value.message


def test_docker_with_an_image_is_told_by_gpus(tmp_path: Path) -> None:
    asked = ContainerOptions(image="x", gpus="0,1")
    assert gpus.given(DOCKER, asked, {"PATH": ""}, host_with(tmp_path)).flags == ["--gpus", '"device=0,1"']


def test_gpus_that_were_asked_for_are_counted_inside() -> None:
    facts: Facts = {
        **{subject: {} for subject in SUBJECTS},
        "host": {"boot_id": boot_id()},
        "container": {"engine": "podman", "network": False},
        "gpu": {"count": 1, "device_nodes": ["/dev/nvidia0"]},
    }
    assert checks.not_enforced(ContainerOptions(gpus="all"), True, facts) == []
    (said,) = found = checks.not_enforced(ContainerOptions(gpus="0,1"), True, facts)
    assert kinds_of(found) == ["gpus"]
    assert "2 GPUs" in said
    assert " 1 " in said


# What engines say

SAID = [
    ("Cannot connect to the Docker daemon at unix:///run/docker.sock. Is the docker daemon running?", "DOCKER_HOST", "systemctl"),
    ("permission denied while trying to connect to the Docker daemon socket at unix:///run/docker.sock", "user", "usermod"),
    ("Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all", "cdiVersion", "nvidia-ctk cdi"),
    ('Error response from daemon: could not select device driver "cdi" with capabilities: [].', "/etc/cdi", "nvidia-ctk cdi"),
    ('Error response from daemon: could not select device driver "" with capabilities: [[gpu]].', "GPU", "nvidia-ctk runtime"),
    ('failed to stat CDI host device "/dev/nvidia0": no such file or directory', "GPU", "nvidia-smi"),
    ('error mounting "/x" to rootfs at "/usr/x": create mountpoint: read-only file system', "/usr", "rootfs=yes"),
    ("crun: setrlimit RLIMIT_NOFILE: Operation not permitted: OCI permission denied", "nofile", "ulimit=nofile"),
    ("runc create failed: error setting rlimit type 8: operation not permitted", "memlock", "ulimit=memlock"),
    ("crun: cgroups in hybrid mode not supported, drop all controllers from cgroupv2", "crun", "runc"),
    ("crun: the requested cgroup controller `cpu` is not available: OCI runtime error", "controller", "Delegate=cpu"),
    ("Error: localhost/x:1: image not known", "image", "podman pull localhost/x:1"),
    ("Error: No such image: localhost/x:1", "image", "podman pull localhost/x:1"),
    ("exec /bin/sh: exec format error", "architecture", "podman pull --platform linux/"),
    ("standard_init_linux.go:228: exec user process caused: exec format error", "architecture", "--platform"),
    ('runc create failed: exec: "sh": executable file not found in $PATH', "sh", "--python"),
    ("crun: executable file `sh` not found in $PATH: No such file or directory", "sh", "--python"),
    ('runc create failed: exec: "/opt/x": stat /opt/x: no such file or directory', "/opt/x", "--python"),
    ("crun: executable file `/opt/x` not found: No such file or directory", "/opt/x", "--python"),
    ('runc create failed: exec: "/etc": is a directory: permission denied', "/etc", "--python"),
    ("python3: error while loading shared libraries: libz.so.1: cannot open shared object file", "libz.so.1", "--python"),
    ("Error: inspecting object: sha256:dead: invalid format: no 64-byte hexadecimal value", "image", "podman images"),
    ('Error: workdir "/opt/x" does not exist on container 35a9', "/opt/x", "--cwd ."),
    ("Error: unable to find user alice: no matching entries in passwd file", "alice", "--user 1000"),
    ("Error: netavark: No such file or directory (os error 2)", "network", "network=none"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "named", "hint"), SAID)
def test_what_engines_were_seen_to_say_is_told_with_its_cause(said: str, named: str, hint: str) -> None:
    error = trouble.refused("podman", said, ["podman", "run", "a b"], "localhost/x:1")
    assert named in error.message
    assert hint in str(error.hint)
    assert shlex.split(str(error.command)) == ["podman", "run", "a b"]


def test_what_nobody_has_seen_before_is_told_in_the_engine_s_words() -> None:
    words = "the moon is full."
    said = f"docker: Error response from daemon: {words}\nSee 'docker run --help'."
    error = trouble.refused("docker", said, ["docker"])
    assert error.message.startswith("docker ")
    assert error.message.endswith(f": {words}")
    assert len(trouble.refused("docker", "x" * 10_000, ["docker"]).message) < 600
    assert trouble.refused("docker", "", ["docker"]).message.startswith("docker ")


def test_the_codes_that_engines_keep_have_a_meaning() -> None:
    # Another code is a program's own, and is named.
    assert "42" in trouble.exit_meaning(42)
    assert len({trouble.exit_meaning(code) for code in (125, 126, 127, 42)}) == 4
    assert [code for code in (125, 126, 127) if str(code) in trouble.exit_meaning(code)] == []


# What podman 4.3.1 printed, and ended with 127, 20 s after kill -9 of its conmon.
CONMON_KILLED = """\
time="2026-11-16T11:27:37Z" level=error msg="Waiting for container 8a87: getting exit code of container 8a87 from DB: no such \
exit code (container in state running)"
time="2026-11-16T11:27:37Z" level=error msg="Removing container 8a87: cannot remove container 8a87 as it is running - running \
or paused containers cannot be removed without force: container state improper"
"""


def test_a_killed_monitor_of_podman_is_no_program_that_was_not_found() -> None:
    failure = trouble.lost("podman", CONMON_KILLED)
    assert failure.kind == "killed"
    assert "conmon" in failure.message
    before_it_spoke = trouble.refused("podman", CONMON_KILLED, ["podman", "run"])
    assert "conmon" in before_it_spoke.message
