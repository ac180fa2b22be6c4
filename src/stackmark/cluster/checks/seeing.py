"""What a container sees of its devices, and whether that is what it asked for.

It has up to three witnesses: the driver's own tool (`nvidia-smi -L`), device nodes, and the variable that the device plugin
sets. Which of them speak depends on the plugin and the runtime (CDI sets no variable, MIG's nodes are those of its parent), so
each that speaks must agree, and one must.
"""

import re
from dataclasses import dataclass

from stackmark.cluster.checks import programs
from stackmark.cluster.checks.case import CaseFailed
from stackmark.cluster.checks.work import Work
from stackmark.units import counted

_NODE = re.compile(r"/dev/(?:nvidia\d+|standin-gpu\d+)")
_RENDER_NODE = re.compile(r"/dev/dri/renderD\d+")
_UUID = re.compile(r"(?:GPU|MIG)-[\w.-]+")
_TOLD = re.compile(r"^\s*(GPU|MIG)\b.*\(UUID: ([\w.-]+)\)")


@dataclass(frozen=True)
class Seen:
    """What a container sees, by each witness; empty where it says nothing."""

    told: frozenset[str]
    nodes: frozenset[str]
    variable: frozenset[str]

    @property
    def by_witness(self) -> dict[str, frozenset[str]]:
        pairs = {"nvidia-smi": self.told, "device nodes": self.nodes, "NVIDIA_VISIBLE_DEVICES": self.variable}
        return {name: found for name, found in pairs.items() if found}

    @property
    def names(self) -> frozenset[str]:
        """The devices by the best name that they have."""
        return self.told or self.variable or self.nodes


def seen_in(text: str) -> Seen:
    """From what `programs.devices` printed."""
    told: dict[str, set[str]] = {"GPU": set(), "MIG": set()}
    nodes: set[str] = set()
    render: set[str] = set()
    variable: set[str] = set()
    for line in text.splitlines():
        words = line.split()
        if found := _TOLD.match(line):
            told[found[1]].add(found[2])
        elif words[:1] == ["node"] and len(words) == 2:
            nodes |= {words[1]} if _NODE.fullmatch(words[1]) else set()
            render |= {words[1]} if _RENDER_NODE.fullmatch(words[1]) else set()
        elif words[:2] == ["env", "NVIDIA_VISIBLE_DEVICES"] and len(words) == 3:
            variable |= {one for one in words[2].split(",") if _UUID.fullmatch(one)}
    sliced = bool(told["MIG"]) or any(one.startswith("MIG-") for one in variable)
    # A slice comes with its parent's node; where there are none of NVIDIA's, AMD's and Intel's devices are render nodes.
    return Seen(
        frozenset(told["MIG"] or told["GPU"]),
        frozenset() if sliced else frozenset(nodes or render),
        frozenset(variable),
    )


def wrong_count(seen: Seen, asked: int) -> str:
    """What does not agree with the number that was asked for; nothing where all does."""
    for witness, found in seen.by_witness.items():
        if len(found) != asked:
            return f"{witness} shows {counted(len(found), 'device')} ({', '.join(sorted(found))}), and {asked} were asked for"
    if asked and not seen.by_witness:
        return "no witness shows a device: no device node, no NVIDIA_VISIBLE_DEVICES, no nvidia-smi"
    return ""


def look_inside(work: Work, pod: str, asked: int) -> Seen:
    done = work.execute(pod, programs.devices())
    seen = seen_in(done.out)
    wrong = wrong_count(seen, asked)
    if wrong:
        raise CaseFailed(
            f"in {pod}: {wrong}",
            hint="see the device plugin's deviceListStrategy and the runtime's settings: stackmark cluster doctor",
            command=work.by_hand("exec", pod, "--", "sh", "-c", "'env; ls /dev'"),
        )
    return seen
