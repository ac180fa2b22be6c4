"""Connect to a cluster as one user: a context of a kubeconfig, or the account of the pod we are in.

The official client reads the configuration, holds the connections and speaks to terminals (exec); what goes to and fro is
plain JSON. Its generated classes were tried and left: they refuse fields of a newer cluster, take a second for a thousand pods,
and manifests are data here. Paths are those of the API's own documentation, so that `kubectl get --raw PATH` shows the same.

No call waits for ever, and none is tried again here: who calls knows whether it may be.
"""

import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode

from stackmark.errors import ClusterError, SpecError, nearest_names

Json = dict[str, Any]
Query = str | int | bool | None
# A busy API server answers within seconds; one that does not within this is treated as gone.
CONNECT_S, READ_S = 5.0, 30.0
# A followed log is silent while the worker is: after so long without a byte the connection is made again.
FOLLOW_READ_S = 60.0
PAGE = 500
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PATCH = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}


class ApiError(ClusterError):
    """The API server answered, and refused. `status` is HTTP's, `reason` the API's own word: Forbidden, NotFound …"""

    def __init__(self, message: str, *, status: int, reason: str, hint: str | None = None, command: str | None = None):
        super().__init__(message, hint=hint, command=command)
        self.status, self.reason = status, reason


class Unreachable(ClusterError):
    """The API server did not answer, or the connection was lost on the way."""


@dataclass(frozen=True)
class Executed:
    """The end of a command in a container; `code` is None where the connection was lost before."""

    code: int | None
    out: str
    err: str


class Cluster:
    """Calls to one API server. Safe to use from several threads."""

    def __init__(self, api: Any, context: str, namespace: str) -> None:
        self._api = api
        self.context, self.namespace = context, namespace
        self.server = str(api.configuration.host).rstrip("/")

    def get(self, path: str, *, timeout_s: float = READ_S, **query: Query) -> Json:
        return _object(self._ask("GET", path, query, timeout_s=timeout_s))

    def text(self, path: str, *, timeout_s: float = READ_S, **query: Query) -> str:
        return self._ask("GET", path, query, timeout_s=timeout_s).decode("utf-8", "replace")

    def items(self, path: str, *, timeout_s: float = READ_S, **query: Query) -> list[Json]:
        """List all, page by page."""
        found: list[Json] = []
        asked = {"limit": PAGE, **query}
        while True:
            page = _object(self._ask("GET", path, asked, timeout_s=timeout_s))
            found += page.get("items") or []
            asked["continue"] = (page.get("metadata") or {}).get("continue")
            if not asked["continue"]:
                return found

    def create(self, path: str, body: Json, **query: Query) -> Json:
        return _object(self._ask("POST", path, query, body))

    def patch(
        self, path: str, body: Json | list[Json], kind: Literal["merge", "strategic", "json"] = "merge", **query: Query
    ) -> Json:
        return _object(self._ask("PATCH", path, query, body, content_type=_PATCH[kind]))

    def delete(self, path: str, *, grace_s: int | None = None, background: bool = True, **query: Query) -> bool:
        """Delete an object and return whether it existed. What it owns goes with it, soon after (`background`) or before."""
        options: Json = {"propagationPolicy": "Background" if background else "Foreground"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self._ask("DELETE", path, query, options)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def follow(
        self,
        path: str,
        *,
        read_s: float = FOLLOW_READ_S,
        opened: Callable[[Callable[[], None]], None] | None = None,
        **query: Query,
    ) -> Generator[bytes, None, None]:
        """Yield the bytes of an answer as they come (a followed log, a watch) until the server ends it; lost connections and a
        silence of `read_s` raise Unreachable. `opened` is called once the server has answered, with a function that ends the
        reading from another thread."""
        with self._answer("GET", path, query, None, "application/json", read_s) as answer:
            if opened is not None:
                opened(lambda: _hang_up(answer))
            while piece := answer.read1(1 << 16):
                yield piece

    def execute(
        self, namespace: str, pod: str, argv: Sequence[str], *, container: str | None = None, timeout_s: float = READ_S
    ) -> Executed:
        """Run a command in a container, as `kubectl exec` does."""
        from kubernetes.client.exceptions import ApiException
        from kubernetes.stream import ws_client
        from websocket import WebSocketException

        pairs = [("command", word) for word in argv] + [("stdout", "true"), ("stderr", "true")]
        pairs += [("container", container)] if container else []
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/exec"
        url = ws_client.get_websocket_url(f"{self.server}{path}", None)
        try:
            socket = ws_client.WSClient(
                self._api.configuration, f"{url}?{urlencode(pairs)}", self._headers(), capture_all=True
            )
            socket.run_forever(timeout=timeout_s)
            out, err = socket.read_stdout(timeout=0), socket.read_stderr(timeout=0)
            said = "" if socket.is_open() else socket.read_channel(ws_client.ERROR_CHANNEL, timeout=0)
            with suppress(OSError):
                socket.close()
                socket.sock.shutdown()  # close() leaves the connection open where the server ended it first
        except (WebSocketException, ApiException, OSError, ValueError) as error:
            status = getattr(error, "status_code", None) or getattr(error, "status", None)
            if isinstance(status, int) and status >= 400:
                # The handshake's error has the answer's headers in it; its body is what was said.
                body = getattr(error, "resp_body", None)
                refused = _refused("GET", path, status, body if isinstance(body, bytes) else str(body or "").encode())
                raise ApiError(
                    f"exec in {namespace}/{pod} was refused: {refused.message}", status=status, reason=refused.reason
                ) from error
            raise Unreachable(f"exec in {namespace}/{pod} failed: {_words(error)}") from error
        return Executed(_exec_code(said, f"exec in {namespace}/{pod}"), str(out or ""), str(err or ""))

    @cached_property
    def version(self) -> str:
        """Return the server's version, like v1.34.4."""
        return str(self.get("/version").get("gitVersion", "unknown"))

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, Query],
        body: Json | list[Json] | None = None,
        content_type: str = "application/json",
        timeout_s: float = READ_S,
    ) -> bytes:
        with self._answer(method, path, query, body, content_type, timeout_s) as answer:
            data: bytes = answer.read()
            return data

    @contextmanager
    def _answer(
        self, method: str, path: str, query: Mapping[str, Query], body: object, content_type: str, read_s: float
    ) -> Iterator[Any]:
        import urllib3

        asked = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in query.items()
            if value is not None
        }
        url = f"{self.server}{path}" + (f"?{urlencode(asked)}" if asked else "")
        # What is no API object (a log, a kubelet's file) comes as it is.
        headers = {"Accept": "application/json, */*", **self._headers()}
        sent = None
        if body is not None:
            headers["Content-Type"] = content_type
            sent = json.dumps(body).encode()
        try:
            answer = self._api.rest_client.pool_manager.request(
                method, url, body=sent, headers=headers, preload_content=False, redirect=False,
                timeout=urllib3.Timeout(connect=CONNECT_S, read=read_s),
            )  # fmt: skip
            try:
                if answer.status >= 400:
                    raise _refused(method, path, answer.status, answer.read())
                yield answer
            finally:
                # Gives the connection back where the answer was read to its end, and closes it where not.
                answer.close() if answer.isclosed() is False else answer.release_conn()
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(
                f"the API server {self.server} does not answer: {_words(error)}",
                hint=f"check that the cluster of the context {self.context!r} is running and reachable from here",
                command=f"kubectl --context {self.context} get --raw /readyz",
            ) from error

    def _headers(self) -> dict[str, str]:
        token = self._api.configuration.auth_settings().get("BearerToken")
        return {token["key"]: token["value"]} if token and token.get("value") else {}


def connect(context: str | None = None, kubeconfig: str | None = None, namespace: str | None = None) -> Cluster:
    """Connect by the given names, else `$KUBECONFIG` or ~/.kube/config, else the account of the pod that we are in."""
    try:
        from kubernetes import client, config
        from yaml import YAMLError
    except ImportError as error:
        raise ClusterError(
            f"the Kubernetes client cannot be imported: {error}", hint="install it: pip install 'stackmark[k8s]'"
        ) from error
    configuration = client.Configuration()
    configuration.retries = False
    configuration.connection_pool_maxsize = 64
    named = kubeconfig or os.environ.get("KUBECONFIG")
    files = [path for path in (named or str(Path.home() / ".kube/config")).split(os.pathsep) if Path(path).is_file()]
    try:
        if not files and not context and not named and (SERVICE_ACCOUNT / "token").is_file():
            config.load_incluster_config(client_configuration=configuration)
            own = (SERVICE_ACCOUNT / "namespace").read_text().strip() or "default"
            return Cluster(client.ApiClient(configuration), "in-cluster", namespace or own)
        if not files:
            raise SpecError(
                f"the kubeconfig {named} does not exist"
                if named
                else "no kubeconfig found: neither ~/.kube/config nor $KUBECONFIG",
                hint="set --kubeconfig FILE or the variable KUBECONFIG",
            )
        joined = os.pathsep.join(files)
        known, current = config.list_kube_config_contexts(config_file=joined)
        chosen = _context(context, known, current, joined)
        config.load_kube_config(
            config_file=joined, context=chosen["name"], client_configuration=configuration, persist_config=False
        )
    except (config.ConfigException, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise SpecError(f"the kubeconfig {named or files} cannot be read: {_words(error)}") from error
    except YAMLError as error:
        raise SpecError(f"the kubeconfig {named or files} is not YAML: {_words(error)}") from error
    inside = (chosen.get("context") or {}).get("namespace")
    return Cluster(client.ApiClient(configuration), str(chosen["name"]), namespace or inside or "default")


def _context(wanted: str | None, known: list[Json], current: Json | None, file: str) -> Json:
    names = [str(one.get("name")) for one in known]
    if wanted is None:
        if not current:
            raise SpecError(
                f"the kubeconfig {file} has no current context", hint=f"choose one with --context: {', '.join(names)}"
            )
        return current
    found = next((one for one in known if one.get("name") == wanted), None)
    if found is None:
        raise SpecError(
            f"the kubeconfig {file} has no context {wanted!r}{nearest_names(wanted, names)}",
            hint=f"contexts: {', '.join(names) or 'none'}",
        )
    return found


def _object(data: bytes) -> Json:
    try:
        made = json.loads(data or b"{}")
    except ValueError as error:
        raise ClusterError(f"the API server's answer is not JSON: {data[:80]!r}") from error
    return made if isinstance(made, dict) else {"value": made}


def _refused(method: str, path: str, status: int, data: bytes) -> ApiError:
    try:
        said = json.loads(data)
        message, reason = str(said.get("message") or ""), str(said.get("reason") or "")
    except (ValueError, AttributeError):
        message, reason = data.decode("utf-8", "replace").strip()[:300], ""
    by_hand = f"kubectl get --raw '{path}'" if method == "GET" else None
    return ApiError(message or f"{method} {path}: HTTP {status}", status=status, reason=reason, command=by_hand)


def _exec_code(said: str, what: str) -> int | None:
    """The exit code in the last word of an exec; None where the connection was lost before it."""
    try:
        status = json.loads(said or "{}")
        if status.get("status") == "Success":
            return 0
        causes = (status.get("details") or {}).get("causes") or ()
        code = next((cause["message"] for cause in causes if cause.get("reason") == "ExitCode"), None)
        if code is not None:
            return int(code)
        message = str(status.get("message") or "")
    except (ValueError, AttributeError, KeyError, TypeError):
        message = said[:300]
    if not message:
        return None
    # The command was not started at all: there is no such program, or the runtime refused.
    raise ApiError(f"{what} failed: {message}", status=500, reason="InternalError")


def _hang_up(answer: Any) -> None:
    with suppress(
        ValueError, RuntimeError, OSError, AttributeError
    ):  # it has ended by itself, or urllib3 is older than 2.3
        answer.shutdown()


def _words(error: BaseException) -> str:
    """An error's own words, without the object's address that urllib3 puts before them."""
    text = " ".join(str(error).split())
    return text.split(">: ", 1)[-1][:300] or type(error).__name__
