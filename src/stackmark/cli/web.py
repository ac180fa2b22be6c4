"""`stackmark web`."""

import click

from stackmark.cli.options import ledger_option, not_empty


@click.command(
    "web",
    epilog="""\b
Examples:
  stackmark web
  stackmark web --port 9000 --ledger results.sqlite3
  stackmark web --allow-actions --token-file web.token
  stackmark web --listen 0.0.0.0 --token-file web.token --tls-cert host.pem --tls-key host.key
""",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", default=8470, help="The port; 0: any. [default: 8470]"
)
@click.option(
    "--listen", metavar="ADDRESS", default="127.0.0.1", callback=not_empty,
    help="The address to listen at; another than this machine's own needs a token. [default: 127.0.0.1]",
)  # fmt: skip
@click.option(
    "--allow-actions", "actions", is_flag=True, help="Let whoever has the token delete experiments and save baselines."
)
@click.option(
    "--token-file", metavar="FILE", callback=not_empty,
    help="A file with a token, without which nothing is shown. Also by the variable STACKMARK_WEB_TOKEN.",
)  # fmt: skip
@click.option(
    "--name", "names", metavar="HOST", multiple=True, callback=not_empty, help="A name that browsers reach it by."
)
@click.option(
    "--tls-cert", "certificate", metavar="FILE", callback=not_empty, help="Serve https: the certificate, PEM."
)
@click.option("--tls-key", "key", metavar="FILE", callback=not_empty, help="Its key, PEM.")
@ledger_option
def command(
    port: int,
    listen: str,
    actions: bool,
    token_file: str | None,
    names: tuple[str, ...],
    certificate: str | None,
    key: str | None,
    ledger: str | None,
) -> int:
    """Show the ledger as web pages: experiments, live runs, machines, trends, published numbers, baselines.

    Nothing is measured or started from the pages, and the ledger is only read unless --allow-actions is given. Ctrl-C ends it.
    """
    from stackmark.cli.saying import notice
    from stackmark.web.guard import is_loopback
    from stackmark.web.server import Serving, read_token, serve

    asked = Serving(port, listen, ledger, actions, read_token(token_file), names, certificate, key)

    def ready(address: str) -> None:
        click.echo(address)
        if not is_loopback(listen) and not certificate:
            notice("without --tls-cert everything, also the token, travels readable through the network")

    serve(asked, ready)
    return 0
