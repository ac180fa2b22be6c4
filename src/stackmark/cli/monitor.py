"""`stackmark monitor`: what goes with the exporter, printed."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from stackmark.cli.options import Subverbs, not_empty, seconds_of
from stackmark.errors import SpecError

if TYPE_CHECKING:
    from stackmark.monitor.install import Kind

FILE = click.Path(path_type=Path)


@click.group(
    "monitor",
    cls=Subverbs,
    epilog="""\b
Examples:
  stackmark monitor rules > stackmark.rules.yaml
  stackmark monitor dashboards -o dashboards
  stackmark monitor install --prometheus
  stackmark monitor install --kubernetes --image registry.example/stackmark:1 > monitor.yaml
""",
)
def command() -> None:
    """Print what goes with `stackmark exporter`: alert rules, dashboards, manifests."""


@command.command(
    "rules",
    epilog="""\b
Examples:
  stackmark monitor rules > stackmark.rules.yaml
  stackmark monitor rules --tests > stackmark.rules.test.yaml
""",
)
@click.option(
    "--silent-after",
    metavar="TIME",
    default="3h",
    show_default=True,
    help="Alert when a canary was silent for so long: three times the pause between two checks.",
)
@click.option(
    "--hot",
    type=float,
    metavar="°C",
    default=85.0,
    show_default=True,
    help="Alert when a GPU is hotter for ten minutes.",
)
@click.option("--tests", is_flag=True, help="Print the tests of the rules instead, for promtool test rules.")
def rules(silent_after: str, hot: float, tests: bool) -> int:
    """Print recording and alert rules for Prometheus.

    Slower is what a verdict says, with its interval and margin, and not what is below a threshold.
    """
    from stackmark.monitor.rules import RuleOptions, rules_tests, rules_yaml

    options = RuleOptions(seconds_of("--silent-after", silent_after) or 0.0, hot)
    click.echo(rules_tests() if tests else rules_yaml(options), nl=False)
    return 0


@command.command("dashboards", epilog="\b\nExamples:\n  stackmark monitor dashboards -o dashboards")
@click.option("-o", "--output", type=FILE, required=True, metavar="DIR", help="The folder to write them to.")
def dashboards(output: Path) -> int:
    """Write four Grafana dashboards as JSON: overview, results, use of GPUs, power and temperature."""
    from stackmark.monitor.dashboards import write_dashboards

    for path in write_dashboards(output):
        click.echo(str(path))
    return 0


@command.command(
    "install",
    epilog="""\b
Examples:
  stackmark monitor install --prometheus >> prometheus.yml
  stackmark monitor install --kubernetes --image registry.example/stackmark:1 > monitor.yaml
  stackmark monitor install --openshift --image registry.example/stackmark:1 --namespace gpu-watch
""",
)
@click.option("--prometheus", "kind", flag_value="prometheus", help="The scrape configuration of a plain Prometheus.")
@click.option("--kubernetes", "kind", flag_value="kubernetes", help="A Deployment, a DaemonSet and their Services.")
@click.option(
    "--prometheus-operator",
    "kind",
    flag_value="prometheus-operator",
    help="Those, ServiceMonitors and a PrometheusRule.",
)
@click.option("--openshift", "kind", flag_value="openshift", help="Those, for OpenShift's user-workload monitoring.")
@click.option("--image", metavar="REF", callback=not_empty, help="An image with stackmark[monitor,postgres].")
@click.option(
    "--namespace",
    default="stackmark",
    show_default=True,
    metavar="NAME",
    callback=not_empty,
    help="Where it is installed.",
)
@click.option(
    "--runtime-class",
    default="nvidia",
    show_default=True,
    metavar="NAME",
    help="Shows GPUs to pods; '' where that is the nodes' default.",
)
@click.option("--no-gpu", is_flag=True, help="Leave the DaemonSet out, e.g. where DCGM's exporter runs.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="HOST:PORT",
    callback=not_empty,
    help="With --prometheus: what is scraped; may be repeated.",
)
@click.option(
    "--token-file", metavar="FILE", callback=not_empty, help="With --prometheus: a file with the exporters' token."
)
def install(
    kind: str | None,
    image: str | None,
    namespace: str,
    runtime_class: str,
    no_gpu: bool,
    targets: tuple[str, ...],
    token_file: str | None,
) -> int:
    """Print what makes Prometheus scrape the exporter: on machines, in Kubernetes, with the operator, on OpenShift."""
    from stackmark.monitor.install import PORT, InstallRequest, install_yaml, scrape_config

    if kind is None:
        raise SpecError(
            "it is not said for what", hint="give --prometheus, --kubernetes, --prometheus-operator or --openshift"
        )
    if kind == "prometheus":
        if image:
            raise SpecError("--image has no effect with --prometheus", hint="leave it out")
        click.echo(scrape_config(targets or (f"127.0.0.1:{PORT}",), token_file or ""), nl=False)
        return 0
    if targets or token_file:
        raise SpecError(f"--target and --token-file are for --prometheus, not --{kind}", hint="leave them out")
    if not image:
        raise SpecError(
            f"--{kind} needs --image REF: an image with stackmark[monitor,postgres]",
            hint="docs/monitoring.md shows how to make one",
        )
    click.echo(install_yaml(InstallRequest(cast("Kind", kind), image, namespace, runtime_class, not no_gpu)), nl=False)
    return 0
