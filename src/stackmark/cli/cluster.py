"""`stackmark cluster`: a verb with verbs of its own, each in a file that is imported when it is called."""

from importlib import import_module

import click

from stackmark.cli.help import prepare
from stackmark.cli.options import Subverbs

SUBVERBS = {
    "doctor": "Diagnose whether the cluster is fit for GPU work, and what to do.",
    "check": "Test its functions: create, logs, exec, delete; GPUs given and returned.",
    "fault": "Stop a part of the cluster while a workload trains: what does it cost?",
    "sweep": "Measure every GPU of every node: which one is slow?",
    "clean": "Remove what was left in the cluster, by label.",
}


class Lazy(Subverbs):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBVERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBVERBS:
            return None
        made: click.Command = import_module(f"stackmark.cli.cluster_{cmd_name}").command
        prepare(made)
        return made

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table: asking each command for its help would import them all."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUBVERBS.items()))


@click.group(
    "cluster",
    cls=Lazy,
    epilog="""\b
Examples:
  stackmark cluster doctor
  stackmark cluster check --junit check.xml
  stackmark cluster sweep train/resnet50 --image registry.example/worker:1
  stackmark cluster fault kubelet --while train/resnet50 --for 60s
  stackmark cluster clean
""",
)
def command() -> None:
    """Is a Kubernetes cluster fit for this work, which device is slow, and what happens when a part of it fails?"""
