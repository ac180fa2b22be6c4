"""Watch an experiment that another process carries out: through the ledger, so from wherever the ledger can be read."""

import time
from collections.abc import Iterator
from typing import Any

from stackmark.api.ledgers import LedgerLike, opened
from stackmark.errors import LedgerError
from stackmark.experiments.watched import ExperimentProgress as ExperimentProgress
from stackmark.experiments.watched import progress_of as _progress_of
from stackmark.show.watching import progress_json

# As often as a driver tells.
LOOK_EVERY_S = 1.0
# A file that is locked or a server that restarts ends no watch, until it lasts.
PATIENCE_S = 60.0


def progress_of(ledger: LedgerLike = None, experiment: str = "last") -> ExperimentProgress:
    """Return how far an experiment is: an id, any unique beginning of one, or `last`. Nothing is changed or cleaned up."""
    with opened(ledger) as book:
        return _progress_of(book, experiment)


def to_dict(found: ExperimentProgress) -> dict[str, Any]:
    """Return what a line of `stackmark watch --json` has."""
    return progress_json(found)


def follow(
    experiment: str = "last", ledger: LedgerLike = None, *, look_every_s: float = LOOK_EVERY_S
) -> Iterator[ExperimentProgress]:
    """Yield how far an experiment is whenever that changed, until nobody works on it any more."""
    with opened(ledger) as book:
        now = _progress_of(book, experiment)
        yield now
        heard_s = time.monotonic()
        while now.is_at_work:
            time.sleep(look_every_s)
            before = now
            try:
                now = _progress_of(book, before.experiment.id)
                heard_s = time.monotonic()
            except LedgerError:
                if time.monotonic() - heard_s > PATIENCE_S:
                    raise
                continue
            if _news(now) != _news(before):
                yield now


def _news(found: ExperimentProgress) -> tuple[object, ...]:
    """Return what is new where it differs: not the age of the news."""
    return (found.state, found.current, [(row.id, row.status) for row in found.runs])
