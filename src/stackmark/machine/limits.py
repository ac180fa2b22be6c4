"""Read what the kernel allows this process: its limits, its privileges, its share of the CPUs.

A container changes these silently (64 MiB of /dev/shm, eight million open files, a seccomp filter on every system
call), and each has made a benchmark slower or broken. The limits are read from /proc/self/limits rather than with
getrlimit, so that another machine's process can be read too.
"""

import os
import re
from pathlib import Path

from stackmark.machine import cgroup
from stackmark.machine.reading import ROOT, Facts, Reading, cpu_list, mib, need, number, table, text

LIMIT = re.compile(r"^(Max [a-z ]*?[a-z])\s{2,}(\S+)\s+(\S+)", re.MULTILINE)
# Key, name in /proc/self/limits, and whether it is a number of bytes.
LIMITS = (
    ("open_files", "Max open files", False),
    ("processes", "Max processes", False),
    ("locked_memory_mib", "Max locked memory", True),
    ("stack_mib", "Max stack size", True),
)
# By the names that shells and engines use.
ULIMITS = {
    "core": "Max core file size", "cpu": "Max cpu time", "data": "Max data size", "fsize": "Max file size",
    "locks": "Max file locks", "memlock": "Max locked memory", "msgqueue": "Max msgqueue size", "nice": "Max nice priority",
    "nofile": "Max open files", "nproc": "Max processes", "rss": "Max resident set", "rtprio": "Max realtime priority",
    "rttime": "Max realtime timeout", "sigpending": "Max pending signals", "stack": "Max stack size",
}  # fmt: skip
SECCOMP = {"0": "off", "1": "strict", "2": "filter"}
# By bit number, from linux/capability.h.
CAPABILITY_NAMES = """
chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable net_bind_service
net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct sys_admin
sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write audit_control setfcap mac_override
mac_admin syslog wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore
"""
CAPABILITIES = tuple(CAPABILITY_NAMES.split())
POLICIES = {os.SCHED_OTHER: "other", os.SCHED_FIFO: "fifo", os.SCHED_RR: "rr", os.SCHED_BATCH: "batch"}


def read(root: Path = ROOT, process: str = cgroup.SELF) -> Reading:
    """Read the limits of this process, or of another one of this machine by its number."""
    own = root / "proc" / process
    pairs = {name: (soft, hard) for name, soft, hard in LIMIT.findall(need(own / "limits"))}
    limits = {name: soft for name, (soft, _) in pairs.items()}
    status = table(text(own / "status"))
    facts: Facts = {}
    for key, name, octets in LIMITS:
        facts[key] = _limit(limits.get(name), octets)
    shm, problems = _shm(root if process == cgroup.SELF else own / "root")
    facts.update(shm)
    facts.update(
        {
            "seccomp": SECCOMP.get(status.get("Seccomp", "")),
            "no_new_privileges": status["NoNewPrivs"] == "1" if "NoNewPrivs" in status else None,
            "capabilities": capabilities(status.get("CapEff"), number(root / "proc/sys/kernel/cap_last_cap")),
            "security_label": text(own / "attr/current"),
            # All of them as `soft:hard`, in the kernel's units.
            "ulimits": {name: ":".join(pairs[said]) for name, said in ULIMITS.items() if said in pairs},
        }
    )
    return Reading(facts, problems)


def read_process(root: Path = ROOT, process: str = cgroup.SELF) -> Reading:
    """Read this very process, or another one, and the CPUs it can really use: those it may run on, or its quota if less."""
    pid = 0 if process == cgroup.SELF else int(process)
    cpus = os.sched_getaffinity(pid)
    try:
        quota = cgroup.cpu_limit_cpus(root, process)
    except (OSError, ValueError):
        quota = None  # the subject `cgroup` says why
    own = root / "proc" / process
    status = table(text(own / "status"))
    pids = status.get("NSpid", "").split()
    policy = os.sched_getscheduler(pid)
    facts: Facts = {
        "cpus": cpu_list(cpus),
        "cpus_allowed": len(cpus),
        "cpus_usable": min(len(cpus), quota) if quota is not None else len(cpus),
        "memory_nodes": status.get("Mems_allowed_list"),
        "nice": os.getpriority(os.PRIO_PROCESS, pid),
        "scheduler": POLICIES.get(policy, str(policy)),
        "uid": _effective(status.get("Uid")),
        "gid": _effective(status.get("Gid")),
        # A process sees its own namespace as the outermost, so several numbers are proof and one is none.
        "pid_namespaces_seen": len(pids) or None,
        "init_process": text(root / "proc/1/comm") if pid == 0 else None,
        "oom_score_adjustment": number(own / "oom_score_adj"),
    }
    return Reading(facts)


def _effective(ids: str | None) -> int | None:
    """Return the second of the four numbers in a line of /proc/PID/status: real, effective, saved, file system."""
    words = (ids or "").split()
    return int(words[1]) if len(words) > 1 else None


def capabilities(mask: str | None, last: int | None) -> str | None:
    """Return the effective capabilities in words: `none`, `all`, `all but sys_admin`, or their names."""
    if mask is None:
        return None
    bits = int(mask, 16)
    known = range(len(CAPABILITIES) if last is None else last + 1)
    names = [CAPABILITIES[bit] if bit < len(CAPABILITIES) else str(bit) for bit in known]
    held = [name for bit, name in enumerate(names) if bits >> bit & 1]
    missing = [name for name in names if name not in held]
    if not held:
        return "none"
    if not missing:
        return "all"
    return " ".join(held) if len(held) < len(missing) else f"all but {' '.join(missing)}"


def _limit(value: str | None, octets: bool) -> str | int | float | None:
    if value is None or not value.isdecimal():
        return value  # "unlimited"
    return mib(int(value)) if octets else int(value)


def _shm(root: Path) -> tuple[Facts, tuple[str, ...]]:
    try:
        room = os.statvfs(root / "dev/shm")
    except OSError as error:
        said = f"there is no readable /dev/shm ({error.strerror}): data loaders of several processes need it"
        return {"shm_mib": None, "shm_free_mib": None}, (said,)
    return {"shm_mib": mib(room.f_blocks * room.f_frsize), "shm_free_mib": mib(room.f_bavail * room.f_frsize)}, ()
