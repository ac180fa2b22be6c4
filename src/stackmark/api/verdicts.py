"""Verdicts: what experiments show, and stored runs compared with others, as a whole or row by row."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from stackmark.api.ledgers import LedgerLike, opened
from stackmark.errors import Exit
from stackmark.experiments.design import MARGIN
from stackmark.experiments.group_tables import GroupTable, tabulate_groups
from stackmark.experiments.groups import examine_groups
from stackmark.ledger.several import SeveralLedgers
from stackmark.show.group_table import print_group_table, table_json, table_junit, table_markdown
from stackmark.show.notebook import verdict_html
from stackmark.show.report import Heading, write_report
from stackmark.show.terminal import printed
from stackmark.show.verdict import print_verdict, verdict_json
from stackmark.show.verdict_junit import verdict_junit
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import Examined


@dataclass(frozen=True)
class Verdict:
    """An experiment's verdict, recomputed from the ledger at any margin."""

    examined: Examined

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Return every pair of arms; none where there is one arm, or no block is whole."""
        return self.examined.comparisons

    @property
    def words(self) -> tuple[str, ...]:
        """Return the word of each comparison: EQUIVALENT, SLOWER, FASTER, LIKELY SLOWER, LIKELY FASTER or INCONCLUSIVE.

        Of a figure that is neither a rate nor a time: WORSE, BETTER, LIKELY WORSE and LIKELY BETTER.
        """
        return tuple(one.word for one in self.comparisons)

    def exit_code(self, fail_on: Sequence[str] = ()) -> Exit:
        """Return what `stackmark compare` exits with. `fail_on` names verdicts: slower or worse, inconclusive, different."""
        examined = self.examined
        if not examined.comparisons:
            # One arm alone has no verdict to have, and one that is still open none yet.
            return Exit.RUN_FAILED if len(examined.arms) > 1 and examined.state != "open" else Exit.DONE
        if any(is_named(comparison, fail_on) for comparison in examined.comparisons):
            return Exit.VERDICT_NAMED
        return Exit.RUN_FAILED if examined.state == "short" else Exit.DONE

    def to_dict(self) -> dict[str, JsonValue]:
        """Return what `stackmark verdict --json` prints."""
        return verdict_json(self.examined)

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        title: str | None = None,
        note: str | None = None,
        author: str | None = None,
    ) -> Path:
        """Write the report: HTML, Markdown or PDF, by the name of the file (`.html`, `.md`, `.pdf`).

        `title`, `note` and `author` stand at its top, and are stored nowhere else. PDF needs Chromium.
        """
        return write_report(self.examined, os.fspath(path), heading=Heading.made(title, note, author))

    def junit(self, fail_on: Sequence[str] = (), trouble: str = "") -> str:
        """Return JUnit XML: a case for each pair of arms, which fails where `fail_on` names its verdict (else: slower).

        `trouble` says why an experiment ended early; a pair without a verdict is an error.
        """
        named = fail_on or ("slower",)
        return verdict_junit(self.examined, lambda comparison: is_named(comparison, named), trouble)

    def __str__(self) -> str:
        return printed(lambda console: print_verdict(self.examined, console))

    def _repr_html_(self) -> str:
        return verdict_html(self.examined)


def is_named(comparison: Comparison, fail_on: Sequence[str]) -> bool:
    """Tell whether --fail-on names this verdict. `slower` and `worse` both name SLOWER, WORSE and what is likely either.

    `different` also names a difference that is real and smaller than the margin.
    """
    named = {
        "slower": comparison.is_slower,
        "worse": comparison.is_slower,
        "inconclusive": comparison.word == "INCONCLUSIVE",
        "different": comparison.is_slower or comparison.is_faster or comparison.difference is not None,
    }
    return any(named.get(one, False) for one in fail_on)


def verdict_of_groups(
    runs: Sequence[str],
    against: Sequence[str],
    *,
    margin: float | None = None,
    anyway: bool = False,
    ledger: LedgerLike | Sequence[LedgerLike] = None,
    command: str = "",
) -> Verdict:
    """Hold runs against others. Each side is ids of runs or of experiments with one arm, or conditions: `["chip=V100"]`.

    Several ledgers are searched as if they were one.
    """
    with several(ledger) as sources:
        found = examine_groups(sources, against, runs, margin=margin or MARGIN, anyway=anyway, command=command)
    return Verdict(found)


def table_of_groups(
    runs: Sequence[str],
    against: Sequence[str],
    by: Sequence[str],
    *,
    margin: float | None = None,
    anyway: bool = False,
    ledger: LedgerLike | Sequence[LedgerLike] = None,
    command: str = "",
) -> "VerdictTable":
    """Hold runs against others for each value of `by` that both sides have, e.g. `["precision"]`; Holm decides over the rows."""
    with several(ledger) as sources:
        found = tabulate_groups(sources, against, runs, by, margin=margin or MARGIN, anyway=anyway, command=command)
    return VerdictTable(found)


@dataclass(frozen=True)
class VerdictTable:
    """Two sides compared row by row."""

    table: GroupTable

    @property
    def words(self) -> tuple[str, ...]:
        """Return the word of each row that is compared."""
        return tuple(one.word for one in self.table.comparisons)

    def exit_code(self, fail_on: Sequence[str] = ()) -> Exit:
        """Return 8 where `fail_on` names the verdict of a row, 7 where a row cannot be compared, else 0."""
        if any(is_named(comparison, fail_on) for comparison in self.table.comparisons):
            return Exit.VERDICT_NAMED
        return Exit.PART_FAILED if any(row.reason for row in self.table.rows) else Exit.DONE

    def to_dict(self) -> dict[str, JsonValue]:
        """Return what `stackmark verdict --by KEY --json` prints."""
        return table_json(self.table)

    def markdown(self) -> str:
        """Return the table as Markdown, for a pull request or a page."""
        return table_markdown(self.table)

    def junit(self, fail_on: Sequence[str] = ()) -> str:
        """Return JUnit XML: a case for each row, which fails where `fail_on` names its verdict (else: slower)."""
        named = fail_on or ("slower",)
        return table_junit(self.table, lambda comparison: is_named(comparison, named))

    def __str__(self) -> str:
        return printed(lambda console: print_group_table(self.table, console))


@contextmanager
def several(ledger: LedgerLike | Sequence[LedgerLike]) -> Iterator[SeveralLedgers]:
    """Open one ledger or several, to be read together."""
    listed = ledger if isinstance(ledger, Sequence) and not isinstance(ledger, str) else [ledger]
    with ExitStack() as stack:
        yield SeveralLedgers([stack.enter_context(opened(one)) for one in listed or [None]])
