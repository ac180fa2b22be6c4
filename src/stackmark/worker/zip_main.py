"""The first code of the worker's zip file, where it is called `__main__.py`.

It is read by whatever Python an image has, so this file keeps to what Python 2.7 and all later versions understand. One that is
too old for the worker says so in the worker's own words, two events, so that the run fails with a reason.
"""

import json
import os
import sys
import time

OLDEST = (3, 10)


def too_old():
    # type: () -> int
    version = "%d.%d.%d" % sys.version_info[:3]
    common = {"rank": 0, "t": 0.0}
    hello = dict(common, event="hello", seq=0, time_unix_s=time.time(), pid=os.getpid(), versions={"python": version})
    failed = dict(
        common,
        event="failed",
        seq=1,
        kind="old_python",
        message="the worker needs Python %d.%d or newer, but %s is %s" % (OLDEST + (sys.executable, version)),
        hint="use an image with a newer Python, or another Python of the image: --python PATH",
    )
    for event in (hello, failed):
        # The event's kind comes first: by it a line is known to be ours.
        rest = json.dumps(dict((key, value) for key, value in event.items() if key != "event"))
        sys.stdout.write('{"event":"%s",%s\n' % (event["event"], rest[1:]))
    sys.stdout.flush()
    return 27


if __name__ == "__main__":
    if sys.version_info < OLDEST:
        sys.exit(too_old())
    from stackmark.worker.__main__ import begin  # not before the version is known

    begin()
