"""Follow a pod's log to its end, whatever happens on the way.

The API server may go away for minutes, the kubelet may be restarted, the connection may be lost, the log may be rotated: each
time the log is asked for again from a little before where we were, and what was seen is dropped (logorder.py). An answer that
ends proves nothing: a kubelet ends it when the container ends, but also when it is restarted or the log is rotated. So the pod's
status is asked, and once it says that the container has ended, the rest is read without following.
"""

import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal
from urllib.parse import quote

from stackmark.errors import ClusterError, PlaceError
from stackmark.events import EVENT_PREFIX
from stackmark.kubernetes import names
from stackmark.kubernetes.client import FOLLOW_READ_S, READ_S, ApiError, Cluster, Json, Query, Unreachable
from stackmark.kubernetes.log.lines import ApiLines, Record, event_number
from stackmark.kubernetes.log.node_files import read_node_log
from stackmark.kubernetes.log.order import Gap, InOrder
from stackmark.kubernetes.refusals import explained
from stackmark.kubernetes.status import has_begun, phase_of

# Between attempts: at once after a blip, and not more than one question every three seconds to a server in trouble.
BACKOFF_S, BACKOFF_MOST_S, BACKOFF_TIMES = 0.2, 3.0, 1.7
# A connection that held so long was a good one, even if nothing came.
LASTING_S = 5.0
# A server that has just started knows no rights for a moment: what was allowed before is believed to be forbidden after this.
FORBIDDEN_S = 15.0
# How often `stop` is asked.
POLL_S = 0.25
# The container has ended and the API server answers, but the kubelet does not give the rest: a kubelet that is restarted is
# back by then, a node that is gone is not.
REST_S = 180.0
# The container's log is not on the node: asked again so often, since a kubelet that has just started knows little.
LOST_TRIES = 5
# The container has ended, and the log ends within an event, or within another line: asked again so often. On a busy node the
# status was seen before the runtime had written the last lines. A program may also end without a newline.
CUT_TRIES, UNFINISHED_TRIES = 5, 4
# What a kubelet writes into a log that it cannot read, or not follow. Other text without a stamp is the rest of a line whose
# beginning is older than what was asked for.
_KUBELET_SAYS = re.compile(r"(unable to|failed to|failed with|error |rpc error|log file )", re.IGNORECASE)
LOOKING, READING = "reading the pod {}", "reading the log of {}"

How = Literal["ended", "gone", "stopped"]
Stop = Callable[[], bool]


@dataclass(frozen=True)
class LogEnd:
    """The end of reading. `complete`: the container has ended, and none of its events is missing."""

    how: How
    complete: bool
    # A sentence where it is not complete, or where lines other than events may be missing.
    why: str = ""
    reconnects: int = 0
    longest_outage_s: float = 0.0
    # Lines that came from the node's own files, since the log had been rotated.
    mended: int = 0


class PodLog:
    """One container's log, read once."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        pod: str,
        *,
        container: str = names.CONTAINER,
        uid: str | None = None,
        plain: bool = False,
    ) -> None:
        """`plain`: the log of a program that is not ours, all of whose lines go to `other`."""
        self._cluster, self._namespace, self._pod, self._container = cluster, namespace, pod, container
        self._path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}"
        self._uid = uid
        self._plain = plain
        self._status: Json = {}
        self._reconnects = 0
        self._longest_outage_s = 0.0
        # Since when the log cannot be had.
        self._lost_at: float | None = None
        # The last that API server or kubelet said of why the log cannot be had.
        self._words = ""
        self._not_mended = ""
        self._cut_tries = 0
        # An answer came to its end; whether too early shows when the log is followed again.
        self._broke_off = False
        # What was allowed, and since when it is not any more.
        self._allowed: set[str] = set()
        self._forbidden_at: dict[str, float] = {}

    def follow(
        self,
        line: Callable[[str], None],
        other: Callable[[str], None],
        *,
        stop: Stop = lambda: False,
        poll_s: float = POLL_S,
        read_s: float = FOLLOW_READ_S,
    ) -> LogEnd:
        """Pass each event line to `line` once, in order of its number, and every other line to `other` once. Returns when the
        container has ended and all was read, when the pod is gone, or when `stop` says so. Raises a PlaceError where the log
        may not be read."""
        order = InOrder(line, other, self._mend, self._plain)
        backoff_s, lost, give_up_at = BACKOFF_S, 0, inf
        while not stop():
            phase, taken, began = self._phase(), order.taken, time.monotonic()
            ended = phase == "ended"
            if phase == "gone":
                return self._end("gone", order, "the pod was deleted before its log was read to the end")
            if ended and not has_begun(self._status, self._container):
                return self._end("ended", order)
            if ended or phase == "running":
                came = self._attempt(order, stop, poll_s, read_s, follow=not ended)
                # A reading that still found lines is repeated: the status may come before the runtime has written the last ones.
                if ended and came == "read" and order.taken == taken:
                    return self._end("ended", order)
                lost += ended and came == "lost"
            give_up_at = min(give_up_at, time.monotonic() + REST_S) if ended else inf
            if lost >= LOST_TRIES or time.monotonic() > give_up_at:
                return self._end("ended", order, f"the end of its log cannot be read: {self._words}")
            fruitful = order.taken > taken or time.monotonic() - began > LASTING_S
            backoff_s = BACKOFF_S if fruitful else min(BACKOFF_MOST_S, backoff_s * BACKOFF_TIMES)
            _pause(backoff_s, stop, poll_s)
        return self._end("stopped", order, "the log was not followed to its end")

    def read(self, line: Callable[[str], None], other: Callable[[str], None]) -> LogEnd:
        """Read what is there now, as `follow` does; raise Unreachable where the API server is away."""
        order = InOrder(line, other, self._mend, self._plain)
        phase = self._phase()
        if phase is None:
            raise Unreachable(
                f"the log of {self._namespace}/{self._pod} cannot be read: the API server does not answer"
            )
        if phase == "gone":
            raise PlaceError(f"the pod {self._namespace}/{self._pod} does not exist")
        how: How = "ended" if phase == "ended" else "stopped"
        if has_begun(self._status, self._container):
            try:
                self._answer(order, lambda: False, POLL_S, READ_S, follow=False)
            except ApiError as error:
                raise explained(error, READING.format(f"{self._namespace}/{self._pod}")) from error
        return self._end(how, order, self._words or ("" if how == "ended" else "its container has not ended"))

    def _phase(self) -> str | None:
        """What the pod's status says; None where nobody can be asked."""
        try:
            pod = self._cluster.get(self._path)
        except Unreachable:
            self._lose()
            return None
        except ApiError as error:
            if error.status == 404:
                return "gone"
            if error.status in (401, 403):
                self._forbidden(error, LOOKING)
            self._lose()
            return None
        self._allow(LOOKING)
        uid = str((pod.get("metadata") or {}).get("uid"))
        self._uid = self._uid or uid
        if uid != self._uid:
            return "gone"  # another of the same name
        self._status = pod
        named = [str(one.get("name")) for one in (pod.get("spec") or {}).get("containers") or ()]
        if self._container not in named:
            raise PlaceError(
                f"the pod {self._namespace}/{self._pod} has no container {self._container!r}",
                hint=f"it has {', '.join(named)}",
            )
        return phase_of(pod, self._container)

    def _attempt(
        self, order: InOrder, stop: Stop, poll_s: float, read_s: float, *, follow: bool
    ) -> Literal["read", "lost", "again"]:
        """One answer: it was read, or the log is not there, or it is worth asking again."""
        try:
            whole = self._answer(order, stop, poll_s, read_s, follow=follow)
        except Unreachable as error:
            self._words = error.message
            return "again"
        except ApiError as error:
            if error.status in (401, 403):
                self._forbidden(error, READING)
            self._words = error.message
            return "lost" if error.status in (400, 404) else "again"
        if not whole:
            return "again"
        return "lost" if self._words else "read"

    def _answer(self, order: InOrder, stop: Stop, poll_s: float, read_s: float, *, follow: bool) -> bool:
        """Reads one answer; whether to its end, and not only until `stop`."""
        self._reconnects += self._broke_off and follow
        self._words, self._broke_off = "", False
        query: dict[str, Query] = {
            "container": self._container,
            "timestamps": True,
            "sinceTime": order.seen.since,
            "follow": follow or None,
        }
        lines, pipe = ApiLines(), Pipe(self._cluster, f"{self._path}/log", query, read_s)
        order.begin()
        try:
            asked_at = time.monotonic()
            while (piece := pipe.next(poll_s)) != b"":
                if pipe.opened:
                    self._find()
                self._take(order, lines.feed(piece or b""))
                if time.monotonic() - asked_at >= poll_s:
                    if stop():
                        return False
                    asked_at = time.monotonic()
            self._find()
        except ClusterError:
            if not pipe.fell_silent:
                self._lose(connected=pipe.opened)
            self._remember(order, lines)
            raise
        finally:
            pipe.close()
        if follow:
            # The end of the container, or a kubelet that went away: the status tells. The last line may be half of one.
            self._broke_off = True
            self._remember(order, lines)
            return True
        tries = CUT_TRIES if _ends_within_event(lines.unfinished) else UNFINISHED_TRIES
        if lines.unfinished and lines.unfinished.stamp and self._cut_tries < tries:
            self._cut_tries += 1
            self._remember(order, lines)
            return False
        self._take(order, lines.finish())
        if not self._words:
            order.read_to_end()
        return True

    def _take(self, order: InOrder, records: Iterable[Record]) -> None:
        for record in records:
            if record.stamp:
                order.take(record)
            elif _KUBELET_SAYS.match(record.text):
                self._words = record.text.strip()[:300]

    def _remember(self, order: InOrder, lines: ApiLines) -> None:
        """A line that was cut off is asked for again, from its beginning."""
        if lines.unfinished and lines.unfinished.stamp:
            order.seen.touch(lines.unfinished)

    def _lose(self, connected: bool = False) -> None:
        self._reconnects += connected
        self._lost_at = self._lost_at or time.monotonic()

    def _forbidden(self, error: ApiError, doing: str) -> None:
        """Raises, unless it was allowed a moment ago."""
        since = self._forbidden_at.setdefault(doing, time.monotonic())
        if doing not in self._allowed or time.monotonic() - since > FORBIDDEN_S:
            raise explained(error, doing.format(f"{self._namespace}/{self._pod}")) from error

    def _allow(self, doing: str) -> None:
        self._allowed.add(doing)
        self._forbidden_at.pop(doing, None)

    def _find(self) -> None:
        self._allow(READING)
        if self._lost_at is not None:
            self._longest_outage_s = max(self._longest_outage_s, time.monotonic() - self._lost_at)
            self._lost_at = None

    def _mend(self, gap: Gap, take: Callable[[Record], bool]) -> bool:
        """Reads what the API's log has lost from the node's own files."""
        self._not_mended = read_node_log(self._cluster, self._status, self._container, gap.since, take)
        return not self._not_mended

    def _end(self, how: How, order: InOrder, why: str = "") -> LogEnd:
        order.finish()
        if self._lost_at is not None:
            self._find()
        said = [why] if why else []
        missing = order.lost_of()
        if missing:
            cause = self._not_mended or "they are not in the node's log files either"
            said.append(f"{missing} are missing from the log: {cause}")
        elif order.torn:
            said.append(f"lines other than events may be missing, because the log was rotated: {self._not_mended}")
        complete = how == "ended" and not missing and not why
        return LogEnd(how, complete, "; ".join(said), self._reconnects, self._longest_outage_s, order.mended)


def _ends_within_event(last: Record | None) -> bool:
    return last is not None and last.text.startswith(EVENT_PREFIX) and event_number(last.text) is None


def _pause(seconds: float, stop: Stop, poll_s: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not stop():
        time.sleep(min(left, poll_s))


# Pieces of at most 64 KiB that may wait to be worked on; then the thread waits, and with it the server.
PIECES = 16


class Pipe:
    """The pieces of one answer of the API server, in order; close it. A thread reads, so that the caller can do something else.

    The connection's own time limit cannot serve for that: once it has struck, the connection is lost.
    """

    def __init__(self, cluster: Cluster, path: str, query: Mapping[str, Query], read_s: float) -> None:
        self._cluster, self._path, self._query, self._read_s = cluster, path, query, read_s
        self._pieces: queue.Queue[bytes | ClusterError] = queue.Queue(PIECES)
        self._closed = threading.Event()
        self._hang_up: Callable[[], None] | None = None
        self._heard = time.monotonic()
        # Whether the server has answered, and not with a refusal.
        self.opened = False
        threading.Thread(target=self._read, name="stackmark-pod-log", daemon=True).start()

    def next(self, wait_s: float) -> bytes | None:
        """Return the next piece; empty at the end, None where none came so far. Raises what the reading raised."""
        try:
            piece = self._pieces.get(timeout=wait_s)
        except queue.Empty:
            return None
        if isinstance(piece, ClusterError):
            raise piece
        return piece

    @property
    def fell_silent(self) -> bool:
        """Return whether reading stopped because nothing came for too long; nothing need have been lost."""
        return self.opened and time.monotonic() - self._heard >= self._read_s

    def close(self) -> None:
        self._closed.set()
        if self._hang_up is not None:
            self._hang_up()

    def _read(self) -> None:
        last: bytes | ClusterError = Unreachable(f"reading {self._path} broke off")
        try:
            for piece in self._cluster.follow(self._path, read_s=self._read_s, opened=self._open, **self._query):
                self._heard = time.monotonic()
                if piece:  # an empty one means the end here
                    self._put(piece)
                if self._closed.is_set():
                    return
            last = b""
        except ClusterError as error:
            last = error
        finally:
            self._put(last)

    def _open(self, hang_up: Callable[[], None]) -> None:
        self._hang_up, self._heard, self.opened = hang_up, time.monotonic(), True
        if self._closed.is_set():
            hang_up()

    def _put(self, piece: bytes | ClusterError) -> None:
        while not self._closed.is_set():
            try:
                self._pieces.put(piece, timeout=0.5)
            except queue.Full:
                continue
            return
