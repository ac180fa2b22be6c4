"""Say in plain words why a job waits, why srun was refused, and how a job ended where its worker could not say it."""

import re
import shlex
from collections.abc import Sequence

from stackmark.errors import PlaceError
from stackmark.failures import PlaceFailure
from stackmark.places.slurm.commands import ControllerAway, Job, refused
from stackmark.units import say_seconds

# Slurm's word for the reason of a pending job, and what it means.
_REASONS = {
    "Priority": "other jobs come first",
    "Resources": "the nodes that it needs are in use",
    "None": "Slurm has not looked at it yet",
    "PartitionDown": "its partition takes jobs but starts none",
    "PartitionInactive": "its partition is not active",
    "PartitionNodeLimit": "it asks for more nodes than its partition allows or has",
    "PartitionTimeLimit": "its time limit is above its partition's",
    "PartitionConfig": "no node of its partition is as large as it asks for",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved",
    "NodeDown": "a node that it needs is down",
    "Reservation": "its reservation has not begun",
    "BeginTime": "its begin is in the future",
    "Licenses": "it waits for a licence",
    "BadConstraints": "no node has the features that it asks for",
    "JobHeldUser": "it is held: scontrol release",
    "JobHeldAdmin": "an administrator holds it",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its quality of service is not valid",
    "QOSMaxCpuPerUserLimit": "your jobs have all the CPUs that its quality of service allows a user",
    "QOSMaxJobsPerUserLimit": "you have as many jobs as its quality of service allows a user",
    "QOSMaxGRESPerUser": "your jobs have all the GPUs that its quality of service allows a user",
    "AssocGrpCpuLimit": "its account's jobs have all the CPUs that it may use",
    "AssocGrpGRES": "its account's jobs have all the GPUs that it may use",
    "launch failed requeued held": "it could not be started on its node, and is held",
}
# What srun says when Slurm does not take a job: a sentence, and what to do.
_REFUSALS = (
    (r"[Ii]nvalid partition", "the partition does not exist", "list the partitions: sinfo --summarize"),
    (r"Invalid account or account/partition", "the account, or the two together with the partition, is not valid",
     "list your accounts: sacctmgr show associations user=$USER"),
    (r"Invalid qos", "the quality of service does not exist, or you may not use it", "list them: sacctmgr show qos"),
    (r"[Ii]nvalid feature", "no node has the features of --constraint", "list them: sinfo --format='%N %f'"),
    (r"[Ii]nvalid node name", "a node of --nodelist does not exist", "list the nodes: sinfo --Node"),
    (r"reservation is invalid", "the reservation does not exist, or you may not use it", "scontrol show reservation"),
    (r"[Ii]nvalid generic resource", "no node has the resources of --gres or --gpus", "list them: sinfo --format='%N %G'"),
    (r"Memory specification", "no node has that much memory", "list it, in MiB: sinfo --format='%N %m'"),
    (r"node configuration is not available|More processors|CPU count", "no node has that number of CPUs or GPUs",
     "list them: sinfo --format='%N %c %m %G'"),
    (r"Node count|nodes than permitted", "the partition has fewer nodes, or allows fewer", "sinfo --format='%P %D'"),
    (r"time limit is invalid|Requested time limit", "the time limit is above the partition's", "lower --time-limit"),
    (r"User's group not permitted|Access/permission denied|not permitted to use", "you may not use it",
     "ask who runs the cluster, or choose another --partition or --account"),
)  # fmt: skip


# What slurmstepd says when a job is ended from outside. A job's state may still be COMPLETING then.
_STEP_ENDED = re.compile(r"\*\*\* (?:STEP|JOB) \S+ (?:ON \S+ )?CANCELLED AT \S+(?: DUE TO ([A-Za-z ]+))?")
_CAUSES = {"TIME LIMIT": "TIMEOUT", "PREEMPTION": "PREEMPTED", "NODE FAILURE": "NODE_FAIL"}


def say_reason(reason: str) -> str:
    """Say why a job waits: Slurm's own word, and what it means where that is known."""
    word = reason.strip("()").split(",")[0].strip() or "None"
    known = _REASONS.get(word)
    return f"{known} ({reason})" if known else reason


def say_waiting(job: Job) -> str:
    where = f" in the partition {job.partition}" if job.partition else ""
    if job.state == "CONFIGURING":
        return f"the Slurm job {job.number} has its nodes ({job.nodes}), which are being prepared"
    return f"the Slurm job {job.number} waits{where}: {say_reason(job.reason)}"


def given_up(job: Job | None, waited_s: float, name: str) -> PlaceError:
    """Return the error for a job that waited too long."""
    command = f"squeue --states=all --name={name} --long"
    if job is None:
        message = f"Slurm did not start the job within {say_seconds(waited_s)}: the queue does not show it"
    elif job.state == "PENDING":
        message = (
            f"the Slurm job {job.number} waited for more than {say_seconds(waited_s)} and was cancelled: "
            f"{say_reason(job.reason)}"
        )
        command = f"scontrol show job {job.number}"
    else:
        message = f"the Slurm job {job.number} has its nodes ({job.nodes}), but not all of them answered in time"
        command = f"sinfo --nodes={job.nodes} --long --Node" if job.nodes else command
    return PlaceError(
        message, hint="wait longer (--wait 2h), or ask for what is free", command=command, kind="not_placed"
    )


def not_started(said: str, argv: Sequence[str]) -> PlaceError:
    """Return the error for an srun that ended before a worker began."""
    error = refused(said, argv)
    command = shlex.join(argv)
    if isinstance(error, ControllerAway):
        return error
    for pattern, sentence, hint in _REFUSALS:
        if re.search(pattern, said):
            return PlaceError(f"Slurm does not take the job: {sentence}", hint=hint, command=command, kind="refused")
    return PlaceError(f"no worker was started: {error.message}", command=command)


def failure_of_job(job: Job | None, said: str = "") -> PlaceFailure | None:
    """Return why Slurm ended a job, by its state or by what slurmstepd said; None where Slurm did not end it."""
    state = job.state if job else ""
    if found := _STEP_ENDED.search(said):
        cause = found[1] or ""
        state = next((state for words, state in _CAUSES.items() if words in cause), "CANCELLED")
    if not state or (state == "CANCELLED" and "First task exited" in said):
        return None
    job = job or Job(0, state, "", "", "")
    name = f"the Slurm job {job.number}" if job.number else "the Slurm job"
    reason = "" if job.reason in ("None", "") else f" ({job.reason})"
    failures = {
        "CANCELLED": PlaceFailure("deleted", f"{name} was cancelled from outside", "scancel, or an administrator, ended it"),
        "NODE_FAIL": PlaceFailure(
            "node_lost", f"a node of {name} failed{reason}: Slurm lost it", f"see why: sinfo --nodes={job.nodes} --list-reasons"
        ),
        "BOOT_FAIL": PlaceFailure("node_lost", f"a node of {name} did not boot{reason}", "run it again"),
        "OUT_OF_MEMORY": PlaceFailure(
            "out_of_host_memory", f"the kernel's OOM killer ended a process of {name}: its memory was too low",
            "raise --memory, or use a smaller --batch or fewer --data-workers",
        ),
        "TIMEOUT": PlaceFailure(
            "deadline", f"{name} reached the time limit that Slurm gave it", "choose a partition with a longer one: sinfo"
        ),
        "DEADLINE": PlaceFailure("deadline", f"{name} reached its deadline", ""),
        "PREEMPTED": PlaceFailure("preempted", f"{name} was preempted by another job", "use another --qos or --partition"),
    }  # fmt: skip
    return failures.get(state)
