"""Print a doctor's report: the answer, diagnostics by nodes at a glance, what was seen on each, what is wrong and what to do.

Nodes that fared alike share a column and a line: of a hundred nodes the three that differ are what one wants to see. Advice
that holds for several nodes is given once, with their names.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from stackmark.cluster.doctor.results import Finding, Report, Result
from stackmark.show.junit import Case
from stackmark.show.junit import Outcome as JunitOutcome
from stackmark.show.safe import cut_middle, safe_line
from stackmark.show.terminal import GAP, NAME_WIDTH, Column, answer_last, is_screen, print_named, print_table

STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim", "unknown": "magenta"}
MARKS = {"ok": "ok", "warning": "warning", "failed": "FAILED", "skipped": "-", "unknown": "?"}
# A column's heading: node names of clouds are long, and differ at the end.
NODE_AT_MOST = 24
NAMES_SHOWN = 3
CLUSTER = "cluster"


def print_doctor(report: Report, console: Console) -> None:
    """Print the answer first, and again at the end where a screen does not hold everything."""

    def answer() -> None:
        _line(console, sentence(report), STYLES[report.status])

    def answer_again() -> None:
        _line(console, "")
        answer()

    with answer_last(console, answer_again):
        answer()
        _line(console, "")
        if len(report.nodes) > 1:
            _print_matrix(report, console)
            _line(console, "")
        _print_seen(report, console)
        for finding in _findings(report):
            _line(console, "")
            _print_finding(console, *finding)


def sentence(report: Report) -> str:
    """The verdict, in a line."""
    failed = [result for result in report.results if result.status == "failed"]
    warned = len({(result.diagnostic, finding.what) for result in report.results for finding in result.findings
                  if finding.status == "warning"})  # fmt: skip
    warnings = f"; {_counted(warned, 'warning')}" if warned else ""
    if not failed:
        open_ones = list(dict.fromkeys(result.diagnostic for result in report.results if result.status == "unknown"))
        untold = f"; not known: {', '.join(open_ones)}" if open_ones else ""
        return f"{report.context}: nothing failed{warnings}{untold}"
    diagnostics: dict[str, list[str]] = {}
    for result in failed:
        diagnostics.setdefault(result.diagnostic, []).append(result.node or "")
    said = [
        f"{diagnostic} ({_names(report, nodes)})" if nodes[0] else diagnostic
        for diagnostic, nodes in diagnostics.items()
    ]
    return f"{report.context}: not fit: {', '.join(said)} failed{warnings}"


def junit_cases(report: Report) -> list[Case]:
    outcomes: dict[str, JunitOutcome] = {"failed": "failure", "skipped": "skipped", "unknown": "skipped"}
    return [
        Case(
            name=f"{result.node or CLUSTER}: {result.diagnostic}",
            seconds=result.seconds,
            outcome=outcomes.get(result.status, "passed"),
            kind=next((finding.kind for finding in result.findings if finding.status == result.status), result.status),
            message="; ".join(finding.what for finding in result.findings) or result.evidence,
            output=[
                f"{result.status}: {result.evidence}",
                *(f"{finding.status}: {line}" for finding in result.findings for line in (finding.what, *finding.do)),
                f"by hand: {result.command}",
            ],
        )
        for result in report.results
    ]


def _print_matrix(report: Report, console: Console) -> None:
    """Diagnostics down, nodes across; alike ones together, as many as there is room for."""
    diagnostics = list(dict.fromkeys(result.diagnostic for result in report.results))
    status = {(result.node, result.diagnostic): result.status for result in report.results}
    groups: dict[tuple[str, ...], list[str]] = {}
    for node in report.nodes:
        groups.setdefault(tuple(status.get((node, diagnostic), "") for diagnostic in diagnostics), []).append(node)
    columns = [Column("diagnostic"), Column(CLUSTER)]
    columns += [Column(_heading(nodes), drop=max(0, len(groups) - n)) for n, nodes in enumerate(groups.values())]
    rows = []
    for at, diagnostic in enumerate(diagnostics):
        rows.append([diagnostic, _mark(status.get((None, diagnostic))), *(_mark(statuses[at]) for statuses in groups)])
    if is_screen(console):
        _print_coloured(console, columns, rows)
    else:
        print_table(console, columns, rows)


def _print_coloured(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """As the usual table, with a colour for each word; columns past the screen's width are counted."""
    colours = {MARKS[status]: style for status, style in STYLES.items()}
    widths = [max(len(row[at]) for row in [[column.name for column in columns], *rows]) for at in range(len(columns))]
    shown, used = 0, 0
    while shown < len(columns) and used + widths[shown] <= console.width:
        used += widths[shown] + 2
        shown += 1
    for number, row in enumerate([[column.name for column in columns], *rows]):
        line = Text()
        for at in range(shown):
            style = "bold" if number == 0 or at == 0 else colours.get(row[at], "")
            line.append(f"{safe_line(row[at]):<{widths[at] + 2}}", style)
        console.print(line, soft_wrap=True)
    if shown < len(columns):
        console.print(Text(f"{len(columns) - shown} columns do not fit; --json has all", style="dim"))


def _print_seen(report: Report, console: Console) -> None:
    """A line a diagnostic and what was seen there."""
    seen: dict[tuple[str, str, str], list[str | None]] = {}
    for result in report.results:
        seen.setdefault((result.diagnostic, result.status, result.evidence), []).append(result.node)
    columns = [Column("diagnostic"), Column("where", drop=1), Column("result"), Column("what was seen")]
    diagnostics: list[str] = list(dict.fromkeys(result.diagnostic for result in report.results))
    ordered = sorted(seen.items(), key=lambda item: diagnostics.index(item[0][0]))
    rows = [
        [diagnostic, _names(report, [node for node in nodes if node]) or CLUSTER, status, evidence]
        for (diagnostic, status, evidence), nodes in ordered
    ]
    print_table(console, columns, rows, [STYLES[status] for (_, status, _), _ in ordered])


def _findings(report: Report) -> list[tuple[Finding, str, str, str]]:
    """Each once: with its diagnostic, the nodes that it holds for and the command; failures first."""
    about: dict[tuple[str, str, str], list[Result]] = {}
    first: dict[tuple[str, str, str], Finding] = {}
    for result in report.results:
        for finding in result.findings:
            key = (finding.status, result.diagnostic, finding.what)
            about.setdefault(key, []).append(result)
            first.setdefault(key, finding)
    ordered = sorted(about, key=lambda key: key[0] != "failed")
    return [
        (
            first[key],
            key[1],
            _names(report, [one.node for one in about[key] if one.node]),
            first[key].command or about[key][0].command,
        )
        for key in ordered
    ]


def _print_finding(console: Console, finding: Finding, diagnostic: str, where: str, command: str) -> None:
    about = f"{diagnostic}, {where}: " if where else f"{diagnostic}: "
    _named(console, finding.status, f"{about}{finding.what}", STYLES[finding.status])
    for line in finding.do:
        _named(console, "", line, command=line.startswith("$ "))
    if command:
        _named(console, "by hand", command, "dim", command=True)


def _named(console: Console, name: str, text: str, style: str = "", *, command: bool = False) -> None:
    """On a screen sentences wrap under their beginning; a command is printed whole, without a break: it is copied."""
    padded = f"{name:<{NAME_WIDTH - GAP}}"
    print_named(console, [(padded, text)], {padded: style}, {padded} if command else ())


def _line(console: Console, text: str, style: str = "") -> None:
    if is_screen(console):
        console.print(Text(safe_line(text), style), soft_wrap=True)
    else:
        print(safe_line(text), file=console.file)


def _mark(status: str | None) -> str:
    return MARKS[status] if status else ""


def _heading(nodes: Sequence[str]) -> str:
    name = cut_middle(safe_line(nodes[0]), NODE_AT_MOST)
    return name if len(nodes) == 1 else f"{name} +{len(nodes) - 1}"


def _names(report: Report, nodes: Sequence[str]) -> str:
    if len(nodes) > 1 and len(nodes) == len(report.nodes):
        return f"all {len(nodes)}"
    more = f" and {len(nodes) - NAMES_SHOWN} more" if len(nodes) > NAMES_SHOWN else ""
    return ", ".join(nodes[:NAMES_SHOWN]) + more


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
