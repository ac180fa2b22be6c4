"""Operators and their problems: the types of a definition, and the numbers of a list's rows. No framework.

A problem is one operator with its shape, as a list has it or a person types it. What an operator is stands in one `Operator`:
its sizes, how much work a problem is, its lists, its words. operators.py has ours; definition.py answers questions by name.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from stackmark.errors import SpecError
from stackmark.spec import Scalar

FORWARD, BACKWARD_INPUTS, BACKWARD_WEIGHTS, BACKWARD = "forward", "backward-inputs", "backward-weights", "backward"
# The largest whole number of which neither JSON nor a double loses a digit.
LARGEST = 2**53 - 1
# The name of a set that is the one problem a person typed.
TYPED = "typed"

# What rates are counted in, and how many of it make one.
FLOATS_RATE, INTEGERS_RATE, BYTES_RATE = "TFLOP/s", "TOP/s", "GB/s"
RATE_SCALE = {FLOATS_RATE: 1e12, INTEGERS_RATE: 1e12, BYTES_RATE: 1e9}

Shape = Mapping[str, Scalar]
# A row of a list before it is read: what it was taken from (DeepSpeech, a layer of a transformer), and its sizes.
ListRow = tuple[str, Shape]


@dataclass(frozen=True)
class Axis:
    """One size of a shape: its minimum, and its default (None: it must be given)."""

    least: int = 1
    default: Scalar = None
    # The words it may be, of a name and not a number.
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    op: str
    # In the order of its operator's fields.
    shape: Shape = field(default_factory=dict)
    application: str = ""

    def number(self, name: str) -> int:
        value = self.shape[name]
        assert isinstance(value, int), name
        return value

    def word(self, name: str) -> str:
        return str(self.shape[name])


def rate_unit(operations: float | None, precision: str) -> str:
    """Return the unit of a problem's rate: bytes where no operations are counted, since memory or a link limits it."""
    return BYTES_RATE if not operations else INTEGERS_RATE if precision == "int8" else FLOATS_RATE


def plain_shape(shape: Shape) -> str:
    """Write a shape by its names and values: `w=56 h=56 forward`. A word stands for itself."""
    return " ".join(
        f"{value}" if isinstance(value, str) else f"{name}={_number(value)}" for name, value in shape.items()
    )


def _number(value: Scalar) -> str:
    return f"{value:g}" if isinstance(value, float) else str(int(value)) if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Exchange:
    """What an operator of several ranks moves."""

    # By the number of ranks: the bytes that each rank's link carries, as a share of the array.
    bus_factor: Callable[[int], float]
    # Whether all ranks do the same, so that one that takes longer is a straggler.
    ranks_alike: bool = True


@dataclass(frozen=True)
class Source:
    """How one published source differs from the operator measured here."""

    # By the name of a size: the source's number, and the number of the list that is the same problem.
    spelled: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    # What is to be said next to each of its times.
    caveat: str = ""


@dataclass(frozen=True, eq=False)
class Operator:
    """The definition of an operator. `implementation` is `module:constant`, which only a worker imports."""

    name: str
    title: str
    implementation: str
    # The names of a problem's sizes, in the order of its shape.
    fields: Mapping[str, Axis] = field(default_factory=dict)
    # What `--set` may name; the first is taken where none is named. None: the rows depend on the machine.
    sets: Mapping[str, Callable[[], Iterable[ListRow]] | None] = field(default_factory=dict)
    # Every operand read once and every result written once, by problem and precision.
    least_bytes: Callable[[Problem, str], float] = lambda _problem, _precision: 0.0
    # Operations of one call; None for what memory limits on any chip, where bytes say more.
    operations: Callable[[Problem], float] | None = None
    # Operations that are done for each one that is counted, for a guess of how long a row takes.
    work: float = 1.0
    # Raises SpecError for sizes that do not fit together.
    check: Callable[[Problem], None] = lambda _problem: None
    # A problem in few characters, for a column of a table.
    say: Callable[[Shape], str] = plain_shape
    # Sizes that are said as one in a title: `7680×48000×2560`.
    product: tuple[str, ...] = ()
    # Whether it only moves bytes: then it is measured in fp32 unless another precision is typed.
    moves: bool = False
    # Parameters that give a problem without --shape.
    options: tuple[str, ...] = ()
    # Set for an operator of several ranks.
    exchange: Exchange | None = None
    # The command that measures it, where `run` does not.
    verb: str = ""
    deepbench: Source = field(default_factory=Source)

    @property
    def by_machine(self) -> bool:
        """Tell whether its rows depend on the machine, and not on a list."""
        return None in self.sets.values()


_ROW = re.compile(r"[0-9]{1,9}")


def read_rows(text: str, count: int) -> list[int]:
    """Read `0-9,40` as numbers in rising order; one that the list does not have is an error."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (_ROW.fullmatch(first) and _ROW.fullmatch(last or first)):  # a spec in a ledger may hold anything
            raise SpecError(f"--rows: {part[:40]!r} is neither a row number nor a range", hint="e.g. 0-9,40")
        low, high = int(first), int(last or first)
        if high < low:
            raise SpecError(f"--rows: {part!r} is a descending range", hint=f"write {last}-{first}")
        if high >= count:
            raise SpecError(f"--rows: row {high} does not exist; this list has {count}, from 0 to {count - 1}")
        found.update(range(low, high + 1))
    return sorted(found)


def say_rows(numbers: Iterable[int]) -> str:
    """Write the shortest text that `read_rows` reads as these numbers."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in ranges)
