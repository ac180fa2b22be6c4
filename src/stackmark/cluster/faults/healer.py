"""A separate process that stops a part, waits, and starts it again, whatever happens to the program that started it.

It is started in a session of its own and owns the fault from its first moment: there is none in which the part is stopped and
nobody knows to start it. Its standard input is its lifeline: when that ends, because the driver was killed or says so, it heals
at once; and at the latest when its time is over. It imports nothing of ours, since it must work where half of a machine does not.

    python healer.py SECONDS STOP-COMMAND… -- START-COMMAND…
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

# A part that does not start at first is tried again: a port may not be free yet, a socket be left.
TRIES, PAUSE_S = 5, 2.0
COMMAND_S = 180.0


def tell(**fields: object) -> None:
    with suppress(OSError):  # nobody listens any more, and that is not a reason to stop
        os.write(1, json.dumps(fields).encode() + b"\n")


def run(argv: list[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=COMMAND_S
        )
        return done.returncode, done.stderr.decode(errors="replace").strip()[-500:]
    except (OSError, subprocess.SubprocessError) as error:
        return 127, str(error)


def wait(seconds: float) -> None:
    """Wait until the time is over, or the lifeline ends."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        readable, _, _ = select.select([0], [], [], left)
        if readable and not os.read(0, 1024):
            return


def main(argv: list[str]) -> int:
    seconds, rest = float(argv[0]), argv[1:]
    cut = rest.index("--")
    stop, start = rest[:cut], rest[cut + 1 :]
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.close(0))
    tell(what="stopping", at=time.time())
    code, said = run(stop)
    tell(what="stopped", at=time.time(), code=code, said=said)
    with suppress(OSError, ValueError):
        if code == 0:
            wait(seconds)
    # Also where the stop failed: half of it may have been done.
    tell(what="over", at=time.time())
    for attempt in range(TRIES):
        healed, said = run(start)
        tell(what="started", at=time.time(), code=healed, said=said, attempt=attempt)
        if healed == 0 or code != 0:
            break
        time.sleep(PAUSE_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
