"""Values that are read when somebody asks, by one thread, with a limit for how long the asker waits.

A driver that hangs, a ledger that is locked and a server that does not answer must not keep a scrape waiting, and a hundred
scrapes at once must not read a hundred times. So a reading is shared by all who ask within `age_s`, and who waited `wait_s` gets
the last value, with its age. Nothing is read while nobody asks: a machine that measures is left alone.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Reading(Generic[T]):
    """The last value that could be read, and how the last attempt ended. `overdue`: it has not ended yet."""

    value: T | None
    # Unix seconds of the last success; 0 before the first.
    read_unix_s: float
    took_s: float
    error: Exception | None
    errors: int
    overdue: bool

    @property
    def is_good(self) -> bool:
        return self.value is not None and self.error is None and not self.overdue


class Fresh(Generic[T]):
    """A value that is read again when it is older than `age_s`. `errors` are those that `read` is expected to raise."""

    def __init__(
        self, name: str, read: Callable[[], T], errors: tuple[type[Exception], ...], age_s: float, wait_s: float
    ) -> None:
        self._name = name
        self._read = read
        self._expected = errors
        self._age_s = age_s
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._busy = False
        self._ended_s = float("-inf")
        self._value: T | None = None
        self._read_unix_s = 0.0
        self._took_s = 0.0
        self._error: Exception | None = None
        self._errors = 0

    def get(self) -> Reading[T]:
        with self._changed:
            if not self._busy and time.monotonic() - self._ended_s >= self._age_s:
                self._busy = True
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._changed.wait_for(lambda: not self._busy, self._wait_s)
            return Reading(self._value, self._read_unix_s, self._took_s, self._error, self._errors, self._busy)

    def _work(self) -> None:
        began = time.monotonic()
        value, error = None, None
        try:
            value = self._read()
        except self._expected as found:
            error = found
        except BaseException as defect:
            # A defect of ours: who waits must not wait for ever, and the traceback is printed by the thread.
            error = RuntimeError(f"{type(defect).__name__}: {defect}")
            raise
        finally:
            with self._changed:
                self._busy, self._ended_s = False, time.monotonic()
                self._took_s, self._error = self._ended_s - began, error
                if error is None:
                    self._value, self._read_unix_s = value, time.time()
                else:
                    self._errors += 1
                self._changed.notify_all()
