"""Slurm without Slurm: its options, the srun command, the lines of nodes, words for reasons and ends."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from refusing import refused
from stackmark.errors import PlaceError
from stackmark.places.bundle import worker_bundle
from stackmark.places.place import Facts
from stackmark.places.registry import find_place
from stackmark.places.slurm import commands, why
from stackmark.places.slurm.boot import PIECE_BYTES, PROGRAM, Lines, NodeLine, head_of, node_command
from stackmark.places.slurm.commands import ControllerAway, Job, Slurm, environment_of_srun
from stackmark.places.slurm.options import SlurmOptions
from stackmark.places.slurm.place import SlurmPlace, not_enforced
from stackmark.places.slurm.run import Plan, by_hand, srun_command
from stackmark.spec import Request, Spec, Task


def options(**given: object) -> SlurmOptions:
    return SlurmOptions.model_validate(given)


def spec(ranks: int = 1, device: str = "cpu") -> Spec:
    return Spec(workload="op/all-reduce", params={"device": device}, ranks=ranks)


# Options


@pytest.mark.parametrize(
    "given",
    [
        {"partition": "-p"}, {"partition": "gpu;rm"}, {"nodelist": "n1 n2"}, {"gres": "gpu:1 --uid=0"}, {"account": ""},
        {"constraint": "$(id)"}, {"cpus": "1.5"}, {"cpus": "0"}, {"memory": "much"}, {"memory": "1k"}, {"gpus": "all"},
        {"gpus": "0,1"}, {"ranks_per_node": "0"}, {"ranks_per_node": "two"}, {"wait": "0"}, {"wait": "soon"},
        {"python": "python -c"}, {"gpus": "1", "gres": "gpu:2"}, {"env": "1A=b"}, {"env": "STACKMARK_RUN=x"},
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_names_itself(given: Mapping[str, str]) -> None:
    with refused(next(iter(given))):
        find_place("slurm", given)


def test_quantities_are_translated_for_slurm() -> None:
    read = options(memory="16g", wait="2h", cpus="8", gpus="none", ranks_per_node="4")
    assert (read.memory_mib, read.wait_s, read.cpu_count, read.gpu_count, read.ranks_each) == (16384, 7200, 8, 0, 4)


# The command


ONE = Plan(1, None, 0)


def command(plan: Plan = ONE, limit_s: float | None = None, **given: object) -> list[str]:
    return srun_command(options(**given), plan, "r-1", limit_s)


def test_srun_is_told_every_option_that_was_typed() -> None:
    typed = command(
        Plan(2, 4, 4), 60.0, partition="gpu", account="a", qos="q", constraint="h200", reservation="r", nodelist="n[1-2]",
        exclusive=True, cpus="8", memory="1g", gres="nvme:1",
    )  # fmt: skip
    assert {
        "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--partition=gpu", "--account=a", "--qos=q", "--constraint=h200",
        "--reservation=r", "--nodelist=n[1-2]", "--exclusive", "--cpus-per-task=8", "--mem=1024M", "--gres=nvme:1,gpu:4",
        "--job-name=stackmark-r-1", "--time=4",
    } <= {*typed}  # fmt: skip


@pytest.mark.parametrize("limit_s", [None, float("inf")])
def test_without_a_limit_of_the_users_slurm_gets_none(limit_s: float | None) -> None:
    assert not [word for word in command(limit_s=limit_s) if word.startswith("--time")]


def test_the_command_to_try_by_hand_has_what_was_asked_for_and_nothing_of_ours() -> None:
    assert by_hand(command(partition="gpu")) == [
        "srun", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--partition=gpu", "hostname"
    ]  # fmt: skip


def test_variables_of_a_job_that_we_are_in_do_not_reach_srun() -> None:
    around = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "9", "SLURM_CONF": "/c", "SLURM_PARTITION": "p", "PATH": "/bin"}
    assert environment_of_srun({**around, "STACKMARK_LEDGER": "postgresql://user:secret@host/db"}) == {
        "SLURM_CONF": "/c", "SLURM_PARTITION": "p", "PATH": "/bin"
    }  # fmt: skip


def test_a_machine_without_slurm_is_told_what_is_missing(tmp_path: Path) -> None:
    with refused("srun", "scancel", error=PlaceError):
        Slurm({"PATH": str(tmp_path)})


# Nodes and ranks


def plan(ranks: int, device: str = "cpu", do: str = "run", **given: object) -> Plan:
    place = SlurmPlace(options(**given))
    if do == "probe":
        request = Request(workload="op/all-reduce", params={"device": device}, ranks=ranks)
        return place.plan(Task(do="probe", request=request))
    return place.plan(Task(do="run", spec=spec(ranks, device)))


def test_all_ranks_are_on_one_node_unless_it_is_said() -> None:
    assert plan(8, "cuda:0") == Plan(1, 8, 8)
    assert plan(8, "cuda:0", ranks_per_node="4") == Plan(2, 4, 4)
    assert plan(1) == Plan(1, None, 0)


def test_a_probe_of_many_ranks_takes_one_node() -> None:
    assert plan(8, "cuda:0", "probe", ranks_per_node="4") == Plan(1, None, 4)


def test_ranks_that_do_not_divide_are_refused() -> None:
    with refused("3 ranks", "ranks_per_node", "1, 3"):
        plan(3, ranks_per_node="2")


def test_gpus_follow_from_gres_where_that_is_typed() -> None:
    assert plan(2, "cuda:0", gres="gpu:h200:2").gpus == 0
    assert plan(2, "cuda:0", gpus="1").gpus == 1


# Lines of nodes


def gathered(*texts: str) -> tuple[list[NodeLine], list[str]]:
    lines: list[NodeLine] = []
    others: list[str] = []
    reader = Lines(lines.append, others.append)
    for text in texts:
        reader.line(text)
    return lines, others


def test_pieces_of_two_nodes_that_came_mixed_are_whole_lines() -> None:
    lines, others = gathered("@0o+ab", "@1o+12", "srun: error: one", "@0e mine", "@1o 34", "@0o cd", '@1c {"code": 3}')
    assert lines == [
        NodeLine(0, err="mine"), NodeLine(1, out="1234"), NodeLine(0, out="abcd"), NodeLine(1, told={"code": 3})
    ]  # fmt: skip
    assert others == ["srun: error: one"]


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    lines, _ = gathered(*["@0o+" + "x" * 900] * 200)
    assert 1 <= len(lines) <= 5


def test_what_a_node_says_of_itself_is_not_believed_unless_it_is_an_object() -> None:
    assert gathered("@0c [1]", "@0c {")[0] == [NodeLine(0, told={})] * 2


def on_a_node(
    task: Task | bytes, *, scratch: bool = False, argv: list[str] | None = None
) -> tuple[list[NodeLine], str]:
    """Run the program of a node here, as srun does."""
    content = worker_bundle().content
    line = task if isinstance(task, bytes) else task.model_dump_json().encode() + b"\n"
    head = head_of(content, {"STACKMARK_RUN": f"r-parts-{os.getpid()}"}, scratch=scratch)
    done = subprocess.run(
        argv or [sys.executable, "-I", "-c", PROGRAM], input=head + content + line, capture_output=True, timeout=60
    )
    assert all(len(piece) < 1024 for piece in done.stdout.splitlines())
    return gathered(*done.stdout.decode().splitlines())[0], done.stderr.decode()


def test_the_program_of_a_node_runs_the_worker_from_memory_and_says_its_code() -> None:
    lines, err = on_a_node(Task(do="facts", lifeline=False), argv=[*node_command(None)])
    events = [json.loads(line.out) for line in lines if line.out]
    assert err == ""
    assert {"hello", "facts"} == {event["event"] for event in events}
    facts = {event["subject"]: event["facts"] for event in events if event["event"] == "facts"}
    assert facts["stackmark"]["bundle_sha256"] == worker_bundle().sha256
    assert lines[-1].told == {"code": 0}


def test_a_long_line_of_a_worker_comes_back_whole() -> None:
    task = b'{"do":"' + "é".encode() * PIECE_BYTES * 2 + b'"}\n'
    lines, _ = on_a_node(task)
    assert all(json.loads(line.out) for line in lines if line.out)
    assert lines[-1].told == {"code": 10}


def test_an_unusable_python_on_a_node_says_so() -> None:
    script = node_command(None)[2].replace("sys.version_info < (3, 10)", "sys.version_info < (9, 0)")
    assert "-I -c" in script
    program = PROGRAM.replace("sys.version_info < (3, 10)", "sys.version_info < (9, 0)")
    lines, _ = on_a_node(b"", argv=["sh", "-c", script, "stackmark", program])
    assert [set(line.told or {}) for line in lines] == [{"old", "python"}]


# Answers


def test_answers_of_slurm_that_are_not_of_its_form_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm.__new__(Slurm)
    said = "12|RUNNING|None|n[1-2]|gpu\nx|RUNNING|None|n1|gpu\n13|\x1b[31m|None|n1|gpu\n14|PENDING|a|$(id)|gpu\n15\n"
    monkeypatch.setattr(slurm, "ask", lambda *_argv: said)
    assert slurm.jobs("any") == [Job(12, "RUNNING", "None", "n[1-2]", "gpu"), Job(14, "PENDING", "a", "", "gpu")]


def test_a_partition_of_several_kinds_of_nodes_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm.__new__(Slurm)
    monkeypatch.setattr(slurm, "ask", lambda *_argv: "gpu*|up|2|gpu:8\ngpu*|up|1|(null)\nold|inact|4|(null)\n")
    (gpu, old) = slurm.partitions()
    assert (gpu.name, gpu.nodes, gpu.gres, gpu.is_default, old.is_up) == ("gpu", 3, ("gpu:8",), True, False)


@pytest.mark.parametrize("word", ["Priority", "Resources", "PartitionDown", "ReqNodeNotAvail, UnavailableNodes:n2"])
def test_a_known_reason_is_explained_next_to_slurms_word(word: str) -> None:
    said = why.say_reason(word)
    assert word in said
    assert len(said) > len(word) + 10


def test_an_unknown_reason_is_said_as_it_is() -> None:
    assert why.say_reason("SomethingNew") == "SomethingNew"


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("CANCELLED", "deleted"), ("NODE_FAIL", "node_lost"), ("OUT_OF_MEMORY", "out_of_host_memory"), ("TIMEOUT", "deadline"),
        ("PREEMPTED", "preempted"),
    ],
)  # fmt: skip
def test_an_end_by_slurm_has_a_kind(state: str, kind: str) -> None:
    failure = why.failure_of_job(Job(7, state, "None", "n1", "gpu"))
    assert failure is not None
    assert failure.kind == kind


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "RUNNING", "COMPLETING"])
def test_an_end_that_is_the_workers_own_is_not_the_places(state: str) -> None:
    assert why.failure_of_job(Job(7, state, "None", "n1", "gpu")) is None


@pytest.mark.parametrize(
    ("cause", "kind"),
    [("", "deleted"), (" DUE TO TIME LIMIT", "deadline"), (" DUE TO NODE FAILURE, SEE SLURMCTLD LOG", "node_lost")],
)
def test_what_slurmstepd_says_is_known_before_the_jobs_state(cause: str, kind: str) -> None:
    said = f"slurmstepd: error: *** STEP 70.0 ON n2 CANCELLED AT 2026-11-18T22:06:40{cause} ***"
    failure = why.failure_of_job(Job(70, "COMPLETING", "None", "n2", "gpu"), said)
    assert failure is not None
    assert failure.kind == kind


@pytest.mark.parametrize(
    "said",
    [
        "squeue: error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Transport endpoint is not connected",
    ],
)
def test_a_controller_that_is_away_is_an_error_of_its_own(said: str) -> None:
    assert isinstance(commands.refused(said, ["squeue"]), ControllerAway)


@pytest.mark.parametrize("order", [1, -1])
def test_what_a_node_said_counts_before_sruns_word_that_it_ended(order: int) -> None:
    lines = [
        "slurmstepd: error: execve(): /no/python: No such file",
        "srun: error: n1: task 0: Exited with exit code 2",
    ]
    assert "/no/python" in commands.refused("\n".join(lines[::order]), ["srun"]).message
    assert "exit code 2" in commands.refused(lines[1], ["srun"]).message


def test_a_refusal_has_the_command_to_try_by_hand() -> None:
    error = why.not_started("srun: error: Unable to allocate resources: Invalid qos specification", ["srun", "--qos=x"])
    assert (error.kind, error.command) == ("refused", shlex.join(["srun", "--qos=x"]))


# What was done


def facts(**more: dict[str, object]) -> Facts:
    return {"container": {"slurm_job_id": "7"}, "process": {"cpus_usable": 2}, "cgroup": {}, **more}  # type: ignore[dict-item]


def test_limits_that_slurm_does_not_enforce_only_reserve() -> None:
    assert not [*not_enforced(options(cpus="1", memory="1g"), (False, False), facts())]


def test_limits_that_slurm_should_enforce_are_verified() -> None:
    assert len([*not_enforced(options(memory="1g"), (True, True), facts())]) == 1
    assert not [*not_enforced(options(memory="1g"), (True, True), facts(cgroup={"memory_limit_mib": 1024.0}))]


def test_fewer_cpus_than_were_asked_for_are_a_difference() -> None:
    assert len([*not_enforced(options(cpus="4"), (False, False), facts())]) == 1


def test_a_worker_outside_of_a_job_is_a_difference() -> None:
    assert len([*not_enforced(options(), (False, False), facts(container={}))]) == 1
