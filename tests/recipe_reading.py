"""Reads a Containerfile as far as the tests need: its instructions, and what would be wrong with it anywhere."""

import re
import subprocess

KNOWN = {"ARG", "CMD", "ENV", "FROM", "RUN", "USER", "WORKDIR"}
# Engines define these for every build; nobody declares them.
PREDEFINED = {"PATH"}
USE = re.compile(r"\$\{([A-Z_]+)(?::[+-][^}]*\}?)?\}")
MOUNT = re.compile(r"--mount=\S+ ")


def instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction and the rest of its line, continued lines joined by a newline."""
    found: list[tuple[str, str]] = []
    waiting = ""
    for line in text.splitlines():
        if not waiting and (not line.strip() or line.startswith("#")):
            continue
        assert waiting == "" or not line.lstrip().startswith("#"), f"a comment inside an instruction: {line}"
        waiting += line
        if line.endswith("\\"):
            waiting = waiting[:-1] + "\n"
            continue
        name, _, rest = waiting.partition(" ")
        found.append((name, rest))
        waiting = ""
    assert not waiting, f"the last line goes on: {waiting!r}"
    return found


def faults(text: str) -> list[str]:
    """What a reviewer would send back."""
    read = instructions(text)
    found = [f"unknown instruction {name}" for name, _ in read if name not in KNOWN]
    if ":latest" in text:
        found.append("it names an image by the tag latest")
    if read[-1][0] != "CMD" or not read[-1][1].startswith('["'):
        found.append("it does not end with a command that needs no shell")
    users = [rest for name, rest in read if name == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*", users[-1]):
        found.append("its last user is not a number other than 0")
    return found + _argument_faults(read) + _shell_faults(read)


def _argument_faults(read: list[tuple[str, str]]) -> list[str]:
    """Every ARG is used, every use is declared, and none is asked for before it is there; a FROM forgets those before it."""
    found = []
    before_from = {rest.partition("=")[0] for name, rest in read[: _first_from(read)] if name == "ARG"}
    declared: set[str] = set()
    used: set[str] = set()
    for number, (name, rest) in enumerate(read):
        known = before_from if number <= _first_from(read) else declared | PREDEFINED
        if name == "ARG":
            declared |= {rest.partition("=")[0]} if number > _first_from(read) else set()
            continue
        for use in USE.findall(rest):
            used.add(use)
            if use not in known:
                found.append(f"{name} uses {use}, which is not declared there")
    return found + [f"the argument {name} is never used" for name in (before_from | declared) - used]


def _first_from(read: list[tuple[str, str]]) -> int:
    return next(number for number, (name, _) in enumerate(read) if name == "FROM")


def _shell_faults(read: list[tuple[str, str]]) -> list[str]:
    found = []
    for name, rest in read:
        if name == "RUN":
            script = MOUNT.sub("", rest).replace("\n", " ")
            done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False)
            found += [f"the shell cannot read a step: {done.stderr.strip()}"] if done.returncode else []
            found += [] if script.startswith("set -eu; ") else ["a step goes on after a failure"]
    return found
