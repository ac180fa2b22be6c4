"""Collect the facts of the stack, as the worker sees it.

Small collectors, one subject each, in one static table; any of them may fail alone, and then its subject says so in a
sentence while the others stand. This is the only place where a collector's exceptions are caught, and they are named:
what reading files, running a program, and asking modules of another version than ours can raise.

A subject travels as one event line, so it is cut into pieces under a limit; pieces of one subject are put together
again by key. Each key carries its unit (`memory_mib`, `clock_mhz`).
"""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from stackmark.machine import (
    amd,
    cgroup,
    container,
    cpu,
    environment,
    gpu,
    host,
    limits,
    memory,
    pci,
    software,
)
from stackmark.machine.reading import Facts, Json, Reading

__all__ = ["COLLECTORS", "SUBJECT_LIMIT_BYTES", "Collector", "Facts", "Json", "Reading", "Subject", "collect"]

# An event is at most 8 KiB; one of them is left for the event's own keys and the problems.
SUBJECT_LIMIT_BYTES = 7 * 1024
# A sentence is for a person, and an exception's text may be of any length.
PROBLEM_CHARACTERS = 300

TROUBLE = (
    OSError,  # a file, a device, a driver library
    subprocess.SubprocessError,
    ValueError,  # a file of another shape
    LookupError,
    AttributeError,  # a module of another version
    TypeError,
    ImportError,
    RuntimeError,  # torch's own
)

Collector = Callable[[], Reading]


class Subject(NamedTuple):
    """One subject's facts, or a piece of them, and what could not be found out about it."""

    subject: str
    facts: Facts
    problems: tuple[str, ...] = ()


# In the order in which a person reads them: the machine, what of it this process may use, the devices, the software.
COLLECTORS: Mapping[str, Collector] = {
    "host": host.read,
    "cpu": cpu.read,
    "numa": memory.read_numa,
    "memory": memory.read,
    "cgroup": cgroup.read,
    "container": container.read,
    "limits": limits.read,
    "process": limits.read_process,
    "gpu": gpu.read,
    "gpu_amd": amd.read,
    "pci": pci.read,
    "software": software.read,
    "packages": software.read_packages,
    "environment": environment.read,
    "stackmark": software.read_stackmark,
}


def collect(
    device: str | None = None, uuid: str | None = None, collectors: Mapping[str, Collector] = COLLECTORS
) -> Iterator[Subject]:
    """Yield all subjects, one after another, as they are read.

    `device` is the one under test as torch names it (`cuda:0`, `cpu`); `uuid` is its UUID as torch gives it, with or
    without `GPU-`, which is the only name that torch and the driver's library share.
    """
    for subject, collector in collectors.items():
        read = partial(gpu.read, device, uuid) if collector is gpu.read else collector
        try:
            facts, problems = read()
        except TROUBLE as error:
            said = f"the facts about {subject} could not be read: {type(error).__name__}: {error}"
            yield Subject(subject, {}, (said[:PROBLEM_CHARACTERS],))
            continue
        yield from _pieces(subject, facts, tuple(problem[:PROBLEM_CHARACTERS] for problem in problems))


def _pieces(subject: str, facts: Facts, problems: tuple[str, ...]) -> Iterator[Subject]:
    """The subject, cut by key where it is longer than an event may be. The problems go with the first piece."""
    room = SUBJECT_LIMIT_BYTES - sum(_size(problem) for problem in problems)
    piece: Facts = {}
    used = 0
    for key, value in facts.items():
        size = _size({key: value})
        if size > SUBJECT_LIMIT_BYTES:
            size, value = _size({key: None}), None
            problems = (*problems, f"{key} of {subject} is longer than an event may be and was left out")
        if piece and used + size > room:
            yield Subject(subject, piece, problems)
            piece, used, problems, room = {}, 0, (), SUBJECT_LIMIT_BYTES
        piece[key] = value
        used += size
    yield Subject(subject, piece, problems)


def _size(value: Json) -> int:
    return len(json.dumps(value, ensure_ascii=True))
