"""Read the files of a container's log on its node, which the API server passes through from the kubelet.

The API's own log shows only the newest file. When the kubelet has rotated it (10 MiB by default, looked at every 10 s) while
nobody could read, the older ones are still there for a while: `0.log.20261115-120000`, and before it `.gz`. To read them one
needs `get` on `nodes/proxy`, which is much; who has it loses nothing, who has not is told what is missing.
"""

import re
import time
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import quote, unquote

from stackmark.kubernetes import objects as at
from stackmark.kubernetes.client import ApiError, Cluster, Json, Unreachable
from stackmark.kubernetes.log.lines import NodeLines, Record, unix_second

# While we read, a file may be rotated or compressed under us, or the kubelet be restarted: so long it is tried again.
PATIENCE_S, PAUSE_S = 30.0, 0.5
_LINK = re.compile(r'<a href="([^"/]+)">')


MAY_NOT = (
    "they may be in the node's older log files, which need the right to get nodes/proxy "
    "(kubectl auth can-i get nodes --subresource=proxy)"
)


class NoSuchFile(Exception):
    """A file that was listed no longer exists."""


@dataclass(frozen=True)
class NodeLog:
    cluster: Cluster
    node: str
    namespace: str
    pod: str
    uid: str
    container: str
    restarts: int = 0

    def read(self, since: str | None, take: Callable[[Record], bool]) -> None:
        """Pass on each line since that second once, oldest first, until `take` says that it is enough. Raises ApiError (403:
        one may not) and Unreachable."""
        until = time.monotonic() + PATIENCE_S
        last: Record | None = None
        while True:
            try:
                for record in self._after(last, since):
                    if not take(record):
                        return
                    last = record
            except (NoSuchFile, Unreachable, ApiError) as error:
                if isinstance(error, ApiError) and error.status < 500:
                    raise
                if time.monotonic() > until:
                    raise Unreachable(f"they could not be read within {PATIENCE_S:.0f} s: {error}") from error
                time.sleep(PAUSE_S)
            else:
                return

    def _after(self, last: Record | None, since: str | None) -> Iterator[Record]:
        """The records that follow this one: files move, and their lines keep their order."""
        known = last is None
        for name in self._needed(since):
            for record in self._records(name):
                if known:
                    yield record
                known = known or record == last
        if not known:
            raise ApiError("the file was deleted while it was read", status=410, reason="Gone")

    def _needed(self, since: str | None) -> list[str]:
        """The files that hold lines since then, oldest first."""
        names = self._files()
        if since is None:
            return names
        needed: list[str] = []
        for name in reversed(names):
            needed.insert(0, name)
            with closing(self._records(name)) as records:
                first = next(records, None)
            if first is not None and unix_second(first.second) < unix_second(since):
                break
        return needed

    def _files(self) -> list[str]:
        current = f"{self.restarts}.log"
        listed = {unquote(name) for name in _LINK.findall(self.cluster.text(self._path()))}
        # A name's time sorts as text; `.tmp` is a file that is being compressed, whose source is still there.
        older = sorted(name for name in listed if name.startswith(f"{current}.") and not name.endswith(".tmp"))
        whole = [name for name in older if not (name.endswith(".gz") and name[: -len(".gz")] in listed)]
        return [*whole, *([current] if current in listed else [])]

    def _records(self, name: str) -> Generator[Record, None, None]:
        lines = NodeLines()
        unpack = zlib.decompressobj(wbits=31) if name.endswith(".gz") else None
        try:
            with closing(self.cluster.follow(self._path(name))) as pieces:
                for piece in pieces:
                    yield from lines.feed(unpack.decompress(piece) if unpack else piece)
        except ApiError as error:
            if error.status == 404:
                raise NoSuchFile(f"{name} has moved") from error
            raise
        except zlib.error as error:
            raise Unreachable(f"the log file {name} on {self.node} cannot be unpacked: {error}") from error

    def _path(self, name: str = "") -> str:
        folder = f"{self.namespace}_{self.pod}_{self.uid}/{self.container}/{name}"
        return f"/api/v1/nodes/{quote(self.node)}/proxy/logs/pods/{quote(folder)}"


def read_node_log(
    cluster: Cluster, pod: Json, container: str, since: str | None, take: Callable[[Record], bool]
) -> str:
    """Read as NodeLog.read does; return why it could not be done, empty where it could."""
    node, uid = at.spec(pod).get("nodeName"), at.metadata(pod).get("uid")
    if not node or not uid:
        return "its node is unknown"
    count = int(at.container_status(pod, container).get("restartCount") or 0)
    log = NodeLog(cluster, str(node), at.namespace(pod), at.name(pod), str(uid), container, count)
    try:
        log.read(since, take)
    except ApiError as error:
        return MAY_NOT if error.status in (401, 403) else f"the node's log files cannot be read: {error.message}"
    except Unreachable as error:
        return f"the node's log files cannot be read: {error.message}"
    return ""
