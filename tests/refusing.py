"""What a test asserts of a refusal: its class or kind, and the names and values that it gives the reader. Not its wording."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stackmark.errors import SpecError, StackmarkError
from stackmark.workloads.workload import WorkloadFailure


@contextmanager
def refused(*named: str, error: type[StackmarkError] = SpecError) -> Iterator[None]:
    """Expect an error whose message or hint holds each of the names."""
    with pytest.raises(error) as caught:
        yield
    _names(f"{caught.value.message}\n{caught.value.hint or ''}", named)


@contextmanager
def fails_as(kind: str, *named: str) -> Iterator[None]:
    """Expect a workload's failure of this kind whose message or hint holds each of the names."""
    with pytest.raises(WorkloadFailure) as caught:
        yield
    assert caught.value.kind == kind
    _names(f"{caught.value.message}\n{caught.value.hint}", named)


def _names(text: str, named: tuple[str, ...]) -> None:
    assert not [one for one in named if one not in text], text
