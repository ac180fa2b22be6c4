"""Packs an experiment of a ledger into one file that tests can load: runs with their streams, without names of machines.

Of a suite it packs all rows.

    python scripts/record_experiment.py LEDGER EXPERIMENT FILE.json.xz

`tests/recorded.py` puts such a file into an empty ledger again.
"""

import argparse
import json
import lzma
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stackmark.ledger.rows import Experiment
from stackmark.ledger.store import Ledger

# Ids of a machine, of a boot and of a GPU; a stream's own run ids stay, since they name nobody.
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# Inside a stream's line, which is a JSON string here, quotes are escaped.
HOSTNAME = re.compile(r'(\\?"hostname\\?":\\?")[^"\\]*')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ledger")
    parser.add_argument("experiment")
    parser.add_argument("file", type=Path)
    asked = parser.parse_args()
    with Ledger.open(asked.ledger, create=False) as book:
        experiment = book.experiment(asked.experiment)
        whole = recorded(book, experiment)
        rows = [recorded(book, row) for row in book.experiments_of(experiment.id)]
    runs = [run for one in (whole, *rows) for run in one["runs"]]
    if rows:
        whole["rows"] = rows
    text = HOSTNAME.sub(r"\1host", json.dumps(whole, separators=(",", ":"), sort_keys=True))
    names: dict[str, str] = {}
    text = UUID.sub(lambda found: names.setdefault(found[0], f"00000000-0000-0000-0000-{len(names):012x}"), text)
    asked.file.write_bytes(lzma.compress(text.encode(), preset=9))
    print(f"{asked.file}: {len(runs)} runs, {asked.file.stat().st_size:,} bytes")


def recorded(book: Ledger, experiment: Experiment) -> dict[str, Any]:
    runs = [
        {"run": row.model_dump(mode="json") | {"handle": kept(row.handle)}, "lines": book.stream(row.id)}
        for row in book.runs_of(experiment.id)
    ]
    return {"experiment": experiment.model_dump(mode="json"), "runs": runs}


def kept(handle: Mapping[str, object]) -> dict[str, object]:
    """Of the place's handle what a verdict reads."""
    return {name: value for name, value in handle.items() if name in ("launched_unix_s", "engine", "label")}


if __name__ == "__main__":
    main()
