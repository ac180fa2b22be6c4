"""`stackmark exporter`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stackmark.cli.options import ledger_option, not_empty, seconds_of
from stackmark.cli.saying import notice
from stackmark.errors import Exit, PlaceError, SpecError

if TYPE_CHECKING:
    from ssl import SSLContext

    from stackmark.monitor.exporter import Exporter
    from stackmark.monitor.gpus import GpuWatch

PORT = 9469
FILE = click.Path(path_type=Path)


@click.command(
    "exporter",
    epilog="""\b
Examples:
  stackmark exporter
  stackmark exporter --once
  stackmark exporter --listen 0.0.0.0 --token-file /etc/stackmark/token
  stackmark exporter --textfile /var/lib/node_exporter/textfile_collector/stackmark.prom
  stackmark exporter --push http://127.0.0.1:9091 --once
""",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    metavar="N",
    help="Port to serve /metrics on.",
)
@click.option(
    "--listen",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    callback=not_empty,
    help="Address to listen on; one that other machines reach needs a token or TLS.",
)
@click.option("--token-file", type=FILE, metavar="FILE", help="Ask for the bearer token in FILE.")
@click.option("--tls-cert", type=FILE, metavar="FILE", help="Speak TLS with this certificate (PEM).")
@click.option("--tls-key", type=FILE, metavar="FILE", help="The certificate's key (PEM).")
@click.option(
    "--textfile",
    type=FILE,
    metavar="FILE",
    help="Instead of serving, write FILE.prom for node-exporter's textfile collector.",
)
@click.option("--push", metavar="URL", callback=not_empty, help="Instead of serving, push to this Pushgateway.")
@click.option("--once", is_flag=True, help="Do it once: print the metrics, or write or push them, and end.")
@click.option("--every", default="15s", metavar="TIME", show_default=True, help="How often to write or push.")
@click.option(
    "--gpu/--no-gpu",
    "gpu",
    default=None,
    help="Read GPUs here. [default: unless DCGM's exporter answers on this machine]",
)
@click.option(
    "--dcgm-port",
    type=click.IntRange(1, 65535),
    default=9400,
    show_default=True,
    metavar="N",
    help="Where DCGM's exporter is looked for.",
)
@click.option(
    "--expect-gpus",
    type=click.IntRange(0, 1024),
    metavar="N",
    help="How many GPUs this machine should have. [default: those on its bus]",
)
@click.option(
    "--since",
    default="35d",
    metavar="TIME",
    show_default=True,
    help="Leave older results out: their machines may be gone.",
)
@click.option("--no-ledger", is_flag=True, help="Show GPUs alone: on nodes whose results are in a ledger elsewhere.")
@ledger_option
def command(
    port: int,
    listen: str,
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    textfile: Path | None,
    push: str | None,
    once: bool,
    every: str,
    gpu: bool | None,
    dcgm_port: int,
    expect_gpus: int | None,
    since: str,
    no_ledger: bool,
    ledger: str | None,
) -> int:
    """Show Prometheus the newest results of the ledger, its checks, and this machine's GPUs.

    It only reads the ledger, and stays up where that is locked or missing. `stackmark monitor` prints the alert rules, dashboards
    and manifests that go with it.
    """
    every_s = seconds_of("--every", every) or 15.0
    _check(textfile, push, token_file, tls_cert, tls_key)
    _need_package()
    from stackmark.api.latest import HORIZON_S
    from stackmark.monitor.exporter import Exporter
    from stackmark.monitor.server import check_exposure, read_token, tls_context

    horizon_s = seconds_of("--since", since) or HORIZON_S
    patient = bool(once or textfile or push)
    token = read_token(token_file) if token_file else None
    tls = tls_context(tls_cert, tls_key) if tls_cert and tls_key else None
    if not patient:
        check_exposure(listen, token=token is not None, tls=tls is not None)
    gpus, source = _gpus(gpu, dcgm_port, expect_gpus)
    if no_ledger and ledger:
        raise SpecError("--ledger and --no-ledger cannot be combined", hint="leave one of them out")
    with Exporter(
        None if no_ledger else ledger or "", gpus=gpus, source=source, horizon_s=horizon_s, patient=patient
    ) as exporter:
        if textfile or push:
            _repeat(exporter, textfile, push, None if once else every_s)
        elif once:
            click.echo(exporter.text(), nl=False)
        else:
            _serve(exporter, listen, port, token, tls)
    return Exit.DONE


def _check(
    textfile: Path | None, push: str | None, token_file: Path | None, tls_cert: Path | None, tls_key: Path | None
) -> None:
    if textfile and push:
        raise SpecError("--textfile and --push cannot be combined", hint="run one exporter for each")
    if textfile and textfile.suffix != ".prom":
        raise SpecError(
            f"--textfile must end in .prom, not {textfile.name!r}: node-exporter reads no other file",
            hint="e.g. --textfile /var/lib/node_exporter/textfile_collector/stackmark.prom",
        )
    if push and not push.startswith(("http://", "https://")):
        raise SpecError(
            f"--push takes an http:// or https:// URL, not {push!r}", hint="e.g. --push http://127.0.0.1:9091"
        )
    if (tls_cert is None) != (tls_key is None):
        raise SpecError("--tls-cert and --tls-key go together", hint="name both files")
    if (textfile or push) and (token_file or tls_cert):
        raise SpecError("a token and TLS are for serving", hint="leave them out with --textfile and --push")


def _need_package() -> None:
    from importlib.util import find_spec

    if find_spec("prometheus_client") is None:
        raise SpecError(
            "the exporter needs the package prometheus-client, which is not installed",
            hint="pip install 'stackmark[monitor]'",
        )


def _gpus(gpu: bool | None, dcgm_port: int, expect_gpus: int | None) -> "tuple[GpuWatch | None, str]":
    """Decide who reads the GPUs, and say so where it is DCGM."""
    from stackmark.monitor.gpus import GpuWatch, dcgm_answers

    if gpu is None and dcgm_answers(dcgm_port):
        notice(f"DCGM's exporter answers on port {dcgm_port}: GPUs are left to it (--gpu reads them here too)")
        return None, "dcgm"
    return (None, "none") if gpu is False else (GpuWatch(expect_gpus), "nvml")


def _repeat(exporter: "Exporter", textfile: Path | None, push: str | None, every_s: float | None) -> None:
    """Write or push once, or for ever: then a gateway that is away for a while is said once, and tried again."""
    trouble = ""
    while True:
        began = time.monotonic()
        try:
            if textfile:
                exporter.write(textfile)
            if push:
                exporter.push(push)
            trouble = ""
        except PlaceError as error:
            if every_s is None:
                raise
            if error.message != trouble:
                notice(error.message)
            trouble = error.message
        if every_s is None:
            return
        time.sleep(max(0.0, every_s - (time.monotonic() - began)))


def _serve(exporter: "Exporter", listen: str, port: int, token: bytes | None, tls: "SSLContext | None") -> None:
    from stackmark.monitor.server import METRICS, MetricsServer

    with MetricsServer(exporter, listen, port, token=token, tls=tls) as server:
        host = f"[{listen}]" if ":" in listen else listen
        # The port is known only now where 0 was given.
        notice(f"metrics on {'https' if tls else 'http'}://{host}:{server.server_port}{METRICS}")
        server.serve_forever()
