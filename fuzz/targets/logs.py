"""Logs of other programs, tables and saved logs of workers, by the command that imports them: one target for each format."""

from collections.abc import Callable
from pathlib import Path

from fuzz.harness import Target, Try, answer
from stackmark.ledger.importers import FORMATS

# A ledger that grows makes each import slower: it begins anew after so many.
_RENEWED = 500
Options = Callable[[int], tuple[str, ...]]


def _importing(name: str, options: Options) -> Target:
    """`options` are those of the import with a number, so that one input after another is tried in different ways."""

    def prepare(folder: Path) -> Try:
        log, ledger = folder / "a.log", folder / "ledger.sqlite3"
        count = 0

        def attempt(data: bytes) -> None:
            nonlocal count
            count += 1
            if count % _RENEWED == 0:
                ledger.unlink(missing_ok=True)
            log.write_bytes(data)
            answer("import", str(log), "--again", "--ledger", str(ledger), *options(count))
            if name == "log-mlperf-training" and count % 5 == 0:
                answer("mlperf", "score", str(folder))
            if count % 20 == 0 and ledger.exists():
                answer("show", "last", "--ledger", str(ledger))
                answer("results", "--ledger", str(ledger))
            if count % 100 == 0 and ledger.exists():
                answer("export", "--format", "csv", "--ledger", str(ledger))

        return attempt

    return Target(name, prepare)


def _of_log(form: str) -> Options:
    def options(count: int) -> tuple[str, ...]:
        # By its format and by itself: the second is how a format is found. With a name for all results, and as they are named.
        found = ("--format", form) if count % 2 else ()
        return (*found, "--workload", "train/x") if count % 3 else found

    return options


def _of_table(count: int) -> tuple[str, ...]:
    ways: tuple[tuple[str, ...], ...] = (
        (),
        ("--workload", "train/x", "--unit", "img/s"),
        ("--map", "rate=images_per_sec,workload=model,param.a=gpu"),
        ("--arm-column", "place"),
        ("--unit", "ms", "--map", "time=value"),
    )
    return ("--table", *ways[count % len(ways)])


TARGETS = (*(_importing(f"log-{form}", _of_log(form)) for form in FORMATS), _importing("table", _of_table))
