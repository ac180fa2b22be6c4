"""Facts for people: a block a subject, a line a fact, what could not be found out at the end; and the stack in a sentence."""

import json
from collections.abc import Mapping, Sequence

from pydantic import JsonValue
from rich.text import Text

from stackmark.show.safe import safe_line
from stackmark.show.terminal import standard_output
from stackmark.spec import Spec
from stackmark.verdict.fact_values import say_cudnn as say_cudnn

Facts = Mapping[str, Mapping[str, JsonValue]]


def say_fact(value: JsonValue) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return " ".join(str(item) for item in value) or "none"
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def say_stack(facts: Facts, framework: str | None) -> str:
    """From the framework down to the kernel: what a number is worth nothing without."""
    software, gpu, host, container = (facts.get(name, {}) for name in ("software", "gpu", "host", "container"))
    cudnn, machine = software.get("cudnn"), host.get("virtualisation")
    parts = [
        framework,
        f"CUDA {software['cuda']}" if software.get("cuda") else None,
        f"ROCm {software['hip']}" if software.get("hip") else None,
        f"cuDNN {say_cudnn(cudnn)}" if isinstance(cudnn, int) and software.get("cuda") else None,
        f"driver {gpu['driver']}" if gpu.get("driver") else None,
        f"Python {software['python']}" if software.get("python") else None,
        str(host["distribution"]) if host.get("distribution") else None,
        f"Linux {host['kernel']}" if host.get("kernel") else None,
        f"in a virtual machine ({machine})" if machine and machine != "none" else None,
        _layer(container),
    ]
    return ", ".join(part for part in parts if part)


def _layer(container: Mapping[str, JsonValue]) -> str | None:
    if container.get("kubernetes"):
        version = container.get("kubernetes_version")
        return f"in a pod (Kubernetes {version})" if version else "in a pod"
    return f"in a container ({container['engine']})" if container.get("engine") else None


def print_facts(facts: Facts, problems: Sequence[str]) -> None:
    console = standard_output()

    def line(text: str, style: str = "") -> None:
        console.print(Text(safe_line(text), style=style), soft_wrap=True)

    for subject, known in facts.items():
        line(subject, "bold cyan")
        for name, value in known.items():
            if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
                line(f"  {name:<30} {say_fact(value)}")
                continue
            for index, item in enumerate(value):
                line(f"  {name} {index}")
                assert isinstance(item, dict)
                for key, inner in item.items():
                    line(f"    {key:<28} {say_fact(inner)}")
    for problem in problems:
        line(f"note: {problem}", "yellow")


def say_chip(chip: str | None, spec: Spec, facts: Facts) -> str:
    """A CPU's name says little without the number of its cores."""
    cpu = facts.get("cpu", {})
    # A user's own program may have used a GPU or none, whatever its spec leaves open.
    on_cpu = spec.params.get("device") == "cpu" or (chip is not None and chip == cpu.get("model"))
    cores = cpu.get("cores") if on_cpu else None
    return f"{chip or 'unknown'}, {cores} core{'' if cores == 1 else 's'}" if cores else chip or "unknown"
