"""While a sweep works: a bar of devices on a screen, a line a device where there is none, notices only beside `--json`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from stackmark.ledger.rows import RunRow
from stackmark.show.console import is_screen, standard_error
from stackmark.show.notices import Voice
from stackmark.show.safe import safe_line
from stackmark.units import say_rate

STAGES = {"devices": "measured", "more": "measured again", "again": "confirming"}


def say_landed(name: str, row: RunRow) -> str:
    if row.rate_per_s is None:
        return f"{name}  failed: {safe_line(row.failure_message or 'no reason is known')}"
    return f"{name}  {say_rate(row.rate_per_s)} {row.rate_unit}  {row.steady or 'by its own figure'}"


class SweepLines(Voice):
    """Plain lines; with `quiet` only what a person must know."""

    def __init__(self, out: TextIO, *, quiet: bool = False) -> None:
        super().__init__(out)
        self._quiet = quiet
        self._what, self._total, self._done = "", 0, 0

    def stage(self, what: str, total: int, done: int) -> None:
        self._what, self._total, self._done = what, total, done

    def in_flight(self, names: Sequence[str], count: int) -> None: ...

    def landed(self, name: str, row: RunRow) -> None:
        self._done += 1
        if not self._quiet:
            self._say(f"{STAGES.get(self._what, self._what)} {self._done}/{self._total}  {say_landed(name, row)}")


class SweepBar:
    """One bar; what has landed scrolls up as a line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[flying]}", markup=False, style="cyan"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", total=None, flying="")

    def __enter__(self) -> "SweepBar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def notice(self, sentence: str) -> None:
        self._console.print(Text(safe_line(sentence), style="yellow"), soft_wrap=True)

    def stage(self, what: str, total: int, done: int) -> None:
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task(STAGES.get(what, what), total=total, completed=done, flying="")

    def in_flight(self, names: Sequence[str], count: int) -> None:
        more = f" and {count - len(names)} more" if count > len(names) else ""
        self._progress.update(self._task, flying=safe_line(", ".join(names) + more))

    def landed(self, name: str, row: RunRow) -> None:
        self._progress.advance(self._task)
        style = "green" if row.status == "done" else "red"
        self._console.print(Text(safe_line(say_landed(name, row)), style=style), soft_wrap=True)


@contextmanager
def looking(quiet: bool) -> Iterator[SweepBar | SweepLines]:
    """Progress goes to standard error, so that standard output holds the result and nothing else."""
    import sys

    console = standard_error()
    if is_screen(console):
        with SweepBar(console) as bar:
            yield bar
    else:
        yield SweepLines(sys.stderr, quiet=quiet)
