"""The GPUs that TensorFlow names in a log, for the importers of programs that run on it.

Its runtime prints them to standard error, in a spelling that changed with its versions:

    Found device 0 with properties:                                                       (1.x: the name stands in the next line)
    name: Tesla K80 major: 3 minor: 7 memoryClockRate(GHz): 0.8235
    pciBusID: 0000:26:00.0 name: Tesla V100-SXM2-16GB computeCapability: 7.0              (2.x)
    Creating TensorFlow device (/gpu:0) -> (device: 0, name: TITAN X (Pascal), pci bus id: 0000:02:00.0)
    Created TensorFlow device (…/device:GPU:0 with 14084 MB memory) -> physical GPU (device: 0, name: Tesla T4, pci bus id: …)
    Created device /job:localhost/replica:0/task:0/device:GPU:0 with 13775 MB memory:  -> device: 0, name: Tesla T4, pci bus id: …

The first form lists the GPUs of the machine, the others those that the process was given: they count where there are any.
"""

import re
from collections import Counter
from collections.abc import Sequence

from stackmark.ledger.importers.found import Line

_FOUND = re.compile(r"Found device ([0-9]{1,4}) with properties")
_PROPERTIES = re.compile(
    r"^\s*(?:pciBusID: \S{1,40} )?name: (\S.{0,100}?)\s*(?:$| major: | computeCapability: | ROCm AMD GPU ISA: )"
)
_GIVEN = re.compile(
    r"gpu:([0-9]{1,4})\b.{0,100}?-> .{0,60}?device: [0-9]{1,4}, name: (\S.{0,100}?), pci bus id", re.IGNORECASE
)
# No machine has more GPUs.
_MOST = 1000


class TensorFlowDevices:
    """Takes in the lines of one process."""

    def __init__(self) -> None:
        self._found: dict[int, str] = {}
        self._given: dict[int, str] = {}
        self._awaited: int | None = None

    def feed(self, line: Line) -> None:
        awaited, self._awaited = self._awaited, None
        if match := _FOUND.search(line.text):
            self._awaited = int(match[1])
        elif awaited is not None and (match := _PROPERTIES.search(line.text)):
            _add(self._found, awaited, match[1])
        elif "pci bus id" in line.text and (match := _GIVEN.search(line.text)):
            _add(self._given, int(match[1]), match[2])

    def chip(self, used: Sequence[int] = ()) -> str | None:
        """Return the name of the GPUs with these numbers; of different models each with its count.

        Where nobody says which GPUs were used, all that are named must be of one model.
        """
        named = self._given or self._found
        if not used:
            return next(iter(named.values())) if len(set(named.values())) == 1 else None
        names = [named[number] for number in used if number in named]
        if len(names) < len(used) and len(set(named.values())) != 1:
            return None
        counts = Counter(names or named.values())
        return next(iter(counts)) if len(counts) == 1 else " + ".join(_counted(*pair) for pair in counts.items())


def _add(table: dict[int, str], number: int, name: str) -> None:
    if len(table) < _MOST:
        table.setdefault(number, name.strip())


def _counted(name: str, count: int) -> str:
    return f"{count} × {name}" if count > 1 else name
