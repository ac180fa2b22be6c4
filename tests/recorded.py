"""Experiments that were recorded on one H200 (scripts/record_experiment.py), put into an empty ledger again."""

import json
import lzma
from pathlib import Path

from stackmark.ledger.rows import Experiment, RunEnd, RunStart
from stackmark.ledger.store import Ledger

DATA = Path(__file__).parent / "data"


def load(book: Ledger, name: str) -> str:
    """The id of the experiment, which is now in the ledger with all its runs and streams."""
    whole = json.loads(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()))
    experiment = Experiment.model_validate(whole["experiment"])
    book.start_experiment(experiment)
    for one in whole["runs"]:
        row = one["run"]
        if experiment.kind == "run" and row["block"] is not None:
            # As an operator list was stored before it had columns of its own, and as JSON still has it.
            row = {**row, "pass_number": row["block"], "piece": row["attempt"], "block": None, "attempt": 0}
        book.start(RunStart.model_validate({key: row[key] for key in RunStart.model_fields if key in row}))
        book.finish(row["id"], RunEnd.model_validate({key: row[key] for key in RunEnd.model_fields}), one["lines"])
    return experiment.id
