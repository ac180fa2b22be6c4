"""An answer of the API server that may be silent for long, read by a thread so that who waits for it can do something else.

The connection's own time limit cannot serve for that: once it has struck, the connection is lost.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping

from stackmark.errors import ClusterError
from stackmark.kubernetes.client import Cluster, Query, Unreachable

# Pieces of at most 64 KiB that may wait to be worked on; then the thread waits, and with it the server.
PIECES = 16


class Pipe:
    """The pieces of one answer, in order. Close it."""

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
        """The next piece; empty at the end, None where none came so far. Raises what the reading raised."""
        try:
            piece = self._pieces.get(timeout=wait_s)
        except queue.Empty:
            return None
        if isinstance(piece, ClusterError):
            raise piece
        return piece

    @property
    def fell_silent(self) -> bool:
        """Whether the answer was given up because nothing came for as long as one waits: nobody need have been lost."""
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
