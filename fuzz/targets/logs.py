"""Logs of other programs, by the command that imports them: one target for each format."""

from pathlib import Path

from fuzz.harness import Target, Try, answer
from stackmark.ledger.importers import FORMATS

# A ledger that grows makes each import slower: it begins anew after so many.
_RENEWED = 500


def _preparing(form: str) -> Target:
    def prepare(folder: Path) -> Try:
        log, ledger = folder / "a.log", folder / "ledger.sqlite3"
        count = 0

        def attempt(data: bytes) -> None:
            nonlocal count
            count += 1
            if count % _RENEWED == 0:
                ledger.unlink(missing_ok=True)
            log.write_bytes(data)
            # By its format and by itself: the second is how a format is found.
            found = ("--format", form) if count % 2 else ()
            answer("import", str(log), "--workload", "train/x", "--again", "--ledger", str(ledger), *found)
            if form == "mlperf-training" and count % 5 == 0:
                answer("mlperf", "score", str(folder))
            if count % 20 == 0 and ledger.exists():
                answer("show", "last", "--ledger", str(ledger))
                answer("results", "--ledger", str(ledger))

        return attempt

    return Target(f"log-{form}", prepare)


TARGETS = tuple(_preparing(form) for form in FORMATS)
