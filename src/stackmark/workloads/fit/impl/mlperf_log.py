"""MLPerf's log of a run: `:::MLLOG` lines with the keys and in the order that its rules ask for.

The lines are events of the run (kind `log`); `stackmark mlperf log` writes them into the files of a submission, also in the
spelling of v0.6. They are few: a line for an epoch, an evaluation and each hyperparameter, none for a step. MLPerf's own library
takes up to 0.6 ms for a line, prints it and writes a file; a worker needs none of that.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Literal

from stackmark.model import JsonValue

POINT, START, END = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"
# Which file and line an entry is from is asked for, and ours are all from here.
_PLACE: dict[str, JsonValue] = {"file": "stackmark", "lineno": 0}
Division = Literal["closed", "open"]


class MlperfLog:
    def __init__(self, say: Callable[[str], None], clock_unix_s: Callable[[], float] = time.time) -> None:
        self._say, self._clock_unix_s = say, clock_unix_s

    def event(
        self,
        key: str,
        value: JsonValue = None,
        *,
        kind: str = POINT,
        at_unix_s: float | None = None,
        **metadata: JsonValue,
    ) -> None:
        at = self._clock_unix_s() if at_unix_s is None else at_unix_s
        entry = {
            "namespace": "",
            "time_ms": round(at * 1000),
            "event_type": kind,
            "key": key,
            "value": value,
            "metadata": {**_PLACE, **metadata},
        }
        self._say(f":::MLLOG {json.dumps(entry)}")

    def begin(
        self, benchmark: str, division: Division, platform: str, hyperparameters: Mapping[str, JsonValue]
    ) -> None:
        """Log what the run is. A submission names its organisation itself; this is none until somebody submits it."""
        self.event("submission_benchmark", benchmark)
        self.event("submission_org", "stackmark")
        self.event("submission_division", division)
        self.event("submission_status", "onprem")
        self.event("submission_platform", platform)
        self.event("submission_poc_name", "none")
        self.event("submission_entry", "{}")
        for key, value in hyperparameters.items():
            self.event(key, value)
