"""The command `stackmark fastest`: the fastest stored runs of a workload."""

import click


@click.command("fastest")
@click.argument("workload")
@click.option("--limit", type=click.IntRange(1), default=3, show_default=True, help="How many runs to print.")
def command(workload: str, limit: int) -> int:
    """Print the fastest runs of WORKLOAD among the last 1000."""
    import stackmark as sm

    with sm.Ledger.open() as ledger:
        rows = [row for row in ledger.runs(limit=1000) if row.workload == workload and row.rate_per_s]
    if not rows:
        raise sm.SpecError(f"the ledger has no run of {workload}", hint=f"measure it: stackmark run {workload}")
    for row in sorted(rows, key=lambda row: row.rate_per_s or 0.0, reverse=True)[:limit]:
        click.echo(f"{row.id} {row.place} {row.rate_per_s:.6g}")
    return 0
