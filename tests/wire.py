"""A wire to an API server that can be cut: a forwarder of bytes on this machine, and a kubeconfig that leads to it."""

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from clusters import TestCluster
from stackmark.kubernetes.client import Cluster, connect


class Wire:
    """Forwards connections until it is cut; while it is cut, connections are refused at once."""

    def __init__(self, server: str) -> None:
        address = urlsplit(server)
        self._to = address.hostname or "", address.port or 443
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._whole, self._ended = True, False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._whole = False
        self._hang_up()

    def join(self) -> None:
        self._whole = True

    def close(self) -> None:
        self._ended = True
        self._hang_up()
        # An accept in another thread is not woken by a close.
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _hang_up(self) -> None:
        with self._lock:
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            if not self._whole:
                near.close()
                continue
            threading.Thread(target=self._forward, args=(near,), daemon=True).start()

    def _forward(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(self._to, timeout=10) as far:
            with self._lock:
                self._open |= {near, far}
            try:
                self._pass_on(near, far)
            finally:
                with self._lock:
                    self._open -= {near, far}

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(near, selectors.EVENT_READ, far)
            selector.register(far, selectors.EVENT_READ, near)
            while True:
                for key, _ in selector.select():
                    source: socket.socket = key.fileobj  # type: ignore[assignment]
                    data = source.recv(1 << 14)
                    if not data:
                        return
                    key.data.sendall(data)


@contextmanager
def wired(cluster: TestCluster, folder: Path) -> Iterator[tuple[Wire, Cluster]]:
    """A wire, and the cluster at its other end. The server's certificate is for its own address, not for the wire's."""
    data = yaml.safe_load(Path(cluster.kubeconfig).read_text())
    inner = data["clusters"][0]["cluster"]
    wire = Wire(inner["server"])
    inner["tls-server-name"] = urlsplit(inner["server"]).hostname
    inner["server"] = f"https://127.0.0.1:{wire.port}"
    file = folder / "wired-kubeconfig"
    file.write_text(yaml.safe_dump(data))
    try:
        yield wire, connect(kubeconfig=str(file), namespace=cluster.namespace)
    finally:
        wire.close()
