"""End a worker: by a signal, the end of its lifeline, or the death of its parent.

A signal becomes an exception in the main thread, so that the worker can say goodbye. But the main thread may stand in C
code for a minute (a compiler, a device that waits), where no Python handler runs; so a second thread hears of the signal
through the wake-up descriptor and, after a grace, ends the process itself. The lifeline is standard input: when it ends,
the driver is dead (kill -9 cannot be caught), nobody reads our events, and all that belongs to the run goes with us:
the process group, and by the run's mark what has left the group.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType
from typing import NoReturn

from stackmark.machine.orphans import MARK_VARIABLE, end_marked

GRACE_S = 5.0
# Of one rank of a group: whoever started the group waits for all of them, and has no more than GRACE_S itself.
RANK_GRACE_S = 2.5
NUDGE_S = 0.3
_PR_SET_PDEATHSIG = 1
_KINDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Ended(BaseException):
    """Raised in the main thread by a signal. Not an Exception: only the two borders may catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.kind = _KINDS[signal.Signals(number)]


def watch_signals(last_words: Callable[[str], object], grace_s: float = GRACE_S) -> None:
    """Turn SIGINT and SIGTERM into Ended, and ends the process after a grace if the main thread cannot."""

    def handler(number: int, _frame: FrameType | None) -> None:
        # Once is enough: a second one would be raised in the middle of the goodbye. (Not SIG_IGN: one that has arrived
        # already and waits for its handler would then be told as an error.)
        for known in _KINDS:
            signal.signal(known, _deaf)
        raise Ended(number)

    for number in _KINDS:
        signal.signal(number, handler)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals, after_in_child=_forget_signals)

    main = threading.get_ident()

    def watch() -> None:
        while True:
            number = os.read(reader, 1)[0]
            if number in {int(n) for n in _KINDS}:
                # A signal that came just before the main thread began to wait did not wake it.
                time.sleep(NUDGE_S)
                signal.pthread_kill(main, number)
                time.sleep(grace_s - NUDGE_S)
                kind = _KINDS[signal.Signals(number)]
                last_words(kind)
                os._exit(128 + number)

    threading.Thread(target=watch, name="signals", daemon=True).start()


def _deaf(_number: int, _frame: FrameType | None) -> None: ...


def _hold_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _KINDS)


def _let_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _KINDS)


def _forget_signals() -> None:
    """In a child that was forked: its signals are its own. It shares our wake-up pipe, and by it would end us."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    _let_signals()


def watch_lifeline(last_words: Callable[[str], object]) -> None:
    """End the process and all of its run when standard input ends."""
    descriptor = os.dup(0)
    os.set_inheritable(descriptor, False)
    # Whoever reads standard input in this process, or in a child of it, must not eat the lifeline.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)

    def watch() -> None:
        while _read(descriptor):
            pass
        last_words("lost_driver")
        end_the_run()
        os._exit(21)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""  # a terminal that was hung up


def end_the_run() -> None:
    """End what belongs to this run, and this process with it where it leads its group."""
    if mark := os.environ.get(MARK_VARIABLE):
        end_marked(mark)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)


def die_with_parent(parent_pid: int, last_words: Callable[[str], object]) -> None:
    """Die with the parent. Linux only, in addition to the lifeline, whose other end a child of the driver may have inherited.

    The kernel sends the signal when the thread that started us ends, and the rest of the driver may live a little longer, or
    much: so it is only a reason to look whether the parent is another one now. SIGTERM was tried, and could not be told
    from that of a driver that is well and will clean up after us.
    """
    if not sys.platform.startswith("linux"):
        return
    asked: SimpleQueue[None] = SimpleQueue()  # whose `put` is made for signal handlers

    def look() -> None:
        while True:
            asked.get()
            deadline = time.monotonic() + GRACE_S
            while os.getppid() == parent_pid and time.monotonic() < deadline:
                time.sleep(0.05)
            if os.getppid() != parent_pid:
                last_words("lost_driver")
                end_the_run()
                os._exit(21)

    threading.Thread(target=look, name="parent", daemon=True).start()
    signal.signal(signal.SIGHUP, lambda _number, _frame: asked.put(None))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP, 0, 0, 0)
    if os.getppid() != parent_pid:  # it went before we asked
        asked.put(None)


def leave(code: int, parent_pid: int) -> NoReturn:
    """Leave the process. While the driver lives, it handles the rest of the run; an orphan does that itself."""
    if os.getppid() != parent_pid:
        end_the_run()
    with suppress(OSError):  # it is no longer read
        sys.stderr.flush()
    # Libraries' exit handlers (process pools, CUDA contexts) may hang or print; all that matters is out already.
    os._exit(code)
