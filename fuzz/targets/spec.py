"""The line that a worker reads, and the spec in it as the ledger keeps it."""

from contextlib import suppress
from pathlib import Path

from fuzz.harness import Target, Try
from stackmark.ledger.rows import of_spec
from stackmark.model import ValidationError
from stackmark.spec import read_task
from stackmark.workloads.registry import find


def _prepare(_folder: Path) -> Try:
    return _try


def _try(data: bytes) -> None:
    task = read_task(data)
    for asked in (task.request, task.spec):
        if asked is None:
            continue
        family, _ = find(asked.workload)
        with suppress(ValidationError):  # which the worker turns into a sentence
            family.params.model_validate(asked.params)
    if task.spec is not None:
        task.spec.digest.encode()
        of_spec(task.spec)


TARGET = Target("spec", _prepare)
