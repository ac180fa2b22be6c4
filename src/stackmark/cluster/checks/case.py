"""What a case is, and how one ends: passed with what was seen, failed with the cause, or left out with the reason.

A case that cannot be tried here (no GPU, not enough of them free, a right that the account lacks) has not failed, and has not
passed either: it stands in the table with its reason, so that nobody reads silence as success.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stackmark.errors import ClusterError

if TYPE_CHECKING:
    from stackmark.cluster.checks.work import Work

Scope = Literal["one", "many"]
Result = Literal["passed", "failed", "left out"]


class CaseFailed(ClusterError):
    """The cluster did not do what it should."""


class LeftOut(ClusterError):
    """The case cannot be tried here."""


@dataclass(frozen=True)
class Case:
    """`do` returns what was seen, in a few words, or raises CaseFailed or LeftOut."""

    area: str
    name: str
    scope: Scope
    do: "Callable[[Work], str]"


@dataclass(frozen=True)
class Checked:
    area: str
    case: str
    scope: Scope
    result: Result
    seconds: float
    # What was seen, or why it failed or was left out.
    evidence: str
    hint: str = ""
    command: str = ""
