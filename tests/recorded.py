"""Experiments in tests/data (scripts/record_experiment.py), put into an empty ledger again.

`h200_*` were recorded on H200s, `cpu_tf_cnn` on two cores. `made_sweep` and `made_fault` were written by hand, of the facts of
a recorded pod: ten devices of which two are slow and were confirmed, and a kubelet that is away while 200 steps are trained.
"""

import json
import lzma
from pathlib import Path
from typing import Any

from stackmark.events import Probe, write_event
from stackmark.ledger.rows import Experiment, RunEnd, RunStart
from stackmark.ledger.store import Ledger
from stackmark.places.replay import ReplayPlace
from stackmark.spec import Spec

DATA = Path(__file__).parent / "data"


def read(name: str) -> dict[str, Any]:
    """What the file of an experiment holds."""
    whole: dict[str, Any] = json.loads(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()))
    return whole


def replay_of(name: str) -> ReplayPlace:
    """A place that calls itself the host and plays the first run of an experiment: its probe, then its stream."""
    recorded = read(name)["runs"][0]
    hello, spec = json.loads(recorded["lines"][0]), recorded["run"]["spec"]
    probe = write_event(Probe(seq=1, t=hello["t"], spec=Spec.model_validate(spec), choices={}))
    place = ReplayPlace([recorded["lines"][0], probe], recorded["lines"])
    place.name = "host"
    return place


def load(book: Ledger, name: str) -> str:
    """The id of the experiment, which is now in the ledger with all its runs and streams; of a suite, with its rows."""
    whole = read(name)
    for row in whole.get("rows", []):
        _put(book, row)
    return _put(book, whole)


def _put(book: Ledger, whole: dict[str, Any]) -> str:
    experiment = Experiment.model_validate(whole["experiment"])
    book.start_experiment(experiment)
    for one in whole["runs"]:
        row = _with_own_columns(one["run"], experiment.kind)
        book.start(RunStart.model_validate({key: row[key] for key in RunStart.model_fields if key in row}))
        book.finish(row["id"], RunEnd.model_validate({key: row[key] for key in RunEnd.model_fields}), one["lines"])
    return experiment.id


def _with_own_columns(row: dict[str, Any], kind: str) -> dict[str, Any]:
    """As migration 4 does it: JSON has operator lists and sweeps as they were stored before they had columns of their own."""
    block, attempt = row["block"], row["attempt"]
    if kind == "run" and block is not None:
        return {**row, "pass_number": block, "piece": attempt, "block": None, "attempt": 0}
    if kind == "sweep":
        own = {"pass_number": attempt} if block is None else {"suspect": attempt - 1}
        return {**row, **own, "slot": row["arm"], "arm": 0, "attempt": 0}
    return row
