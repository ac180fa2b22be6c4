"""Print an operator list as another program prints its own: `--format NAME`.

A `ListFormat` is announced in the group `stackmark.list_formats` (docs/extending.md), by us or by another package.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stackmark.errors import SpecError
from stackmark.extensions import announced, load

if TYPE_CHECKING:  # numpy comes with it, which the help of `run` has no use for
    from stackmark.spec import Spec
    from stackmark.verdict.operators import ListResult

GROUP = "stackmark.list_formats"


@dataclass(frozen=True)
class ListTable:
    """A table as the other program prints it, and sentences about what is not in it, which go to standard error."""

    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ListFormat:
    """A way to print lists: the program whose tables these are, how one is made, and of which workloads it has any."""

    title: str
    table: Callable[["Spec", "ListResult"], ListTable]
    # Empty: of every operator.
    workloads: tuple[str, ...] = ()

    def require(self, workload: str) -> None:
        """Refuse a workload of which the other program has no table."""
        if self.workloads and workload not in self.workloads:
            raise SpecError(
                f"{self.title} has no table of {workload}", hint=f"it has tables of {', '.join(self.workloads)}"
            )


def list_format_names() -> list[str]:
    """Return the names that `--format` takes; nothing is loaded."""
    return list(announced(GROUP))


def find_list_format(name: str) -> ListFormat:
    """Load the format of that name, which is one of `list_format_names`."""
    return load(announced(GROUP)[name], ListFormat)
