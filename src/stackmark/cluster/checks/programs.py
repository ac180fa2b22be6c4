"""The programs in the pods of the tests: a few lines for `sh`, which the smallest image has and a worker's image too.

Python was the other choice: it is in a worker's image only, and a check of the cluster should not need one. Besides the shell's
own words the programs use `sleep` and `ls`; what else an image has (`nslookup`, `nc`, `python3`) is asked once, and a case
that needs it is left out where it is not there. What goes from pod to pod are numbers and our own names, so nothing is quoted.
"""

LINES = 1000
LONG_LINE = 20_000
# Tools that cases about the network can use, of which any will do.
TOOLS = ("python3", "nslookup", "getent", "nc")
READY = "stackmark-shell"
# Which pod a program runs in, as the pod itself was told.
NAME_VARIABLE = "STACKMARK_CHECK_POD"
OUT, ERR, CODE = "to-standard-output", "to-standard-error", 7
# As process 1 a shell has no default handler for SIGTERM: without the trap it would be killed only after the grace period.
_IDLE = "while :; do sleep 60 & wait $!; done"

Argv = tuple[str, ...]


def shell(text: str) -> Argv:
    return ("sh", "-c", text)


def trial() -> Argv:
    """Return a program that prints which tools the image has."""
    return shell(
        f"echo {READY}; for one in {' '.join(TOOLS)}; do command -v $one >/dev/null && echo has $one; done; true"
    )


def numbered_then_idle() -> Argv:
    """Return a program that prints numbered lines and an end mark, then waits for SIGTERM."""
    count = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); done; echo end"
    return shell(f"trap 'exit 0' TERM; {count}; {_IDLE}")


def numbered(lines: int = LINES) -> list[str]:
    """Return the expected log of `numbered_then_idle`."""
    return [*(f"line {number}" for number in range(lines)), "end"]


def long_line() -> Argv:
    return shell(f"printf '%0{LONG_LINE}d\\n' 7; echo end")


def idle() -> Argv:
    return shell(f"trap 'exit 0' TERM; {_IDLE}")


def stubborn() -> Argv:
    """Return a program that only SIGKILL ends."""
    return shell("trap '' TERM; echo stubborn; while :; do sleep 1; done")


def ends_with(code: int) -> Argv:
    return shell(f"echo {OUT}; echo {ERR} >&2; exit {code}")


def answers(code: int) -> Argv:
    """Return a program for exec: its name, a line on each stream, and an exit code."""
    return shell(f"echo {OUT} ${NAME_VARIABLE}; echo {ERR} >&2; exit {code}")


def identity() -> Argv:
    """Return a program for exec that prints the container's UID, and whether it has a token for the API."""
    token = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - a path
    return shell(
        "while read key value rest; do [ $key = Uid: ] && echo uid $value; done </proc/self/status; "
        f"[ -e {token} ] && echo token; true"
    )


def devices() -> Argv:
    """Return a program for exec that prints the devices a container sees. It uses `nvidia-smi` if the driver brought it."""
    return shell(
        'for name in NVIDIA_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES; do eval "value=\\${$name-}"; '
        '[ -n "$value" ] && echo env $name "$value"; done; '
        "for node in /dev/* /dev/dri/*; do echo node $node; done; "
        "command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null; true"
    )


def looks_up() -> Argv:
    """Return a program for exec that resolves the API server's service by its full name, with a tool of the image.

    The whole name, since not every `nslookup` tries the domains that a resolver would; which domain it is, the pod was told.
    """
    return shell(
        "while read key first second rest; do [ $key = search ] && domain=$second; done </etc/resolv.conf; "
        "name=kubernetes.default.${domain:-svc}; "
        "if command -v getent >/dev/null; then getent hosts $name; "
        "elif command -v nslookup >/dev/null; then nslookup $name; "
        "else python3 -c 'import socket, sys; print(socket.gethostbyname(sys.argv[1]), sys.argv[1])' $name; fi"
    )


def serves(port: int) -> Argv:
    """Return a program that answers each connection with its own name."""
    python = (
        "import os,socket\n"
        f's=socket.create_server(("", {port}))\n'
        f'while True:\n c,_=s.accept(); c.sendall((os.environ["{NAME_VARIABLE}"]+"\\n").encode()); c.close()'
    )
    return shell(
        "trap 'exit 0' TERM; "
        f"if command -v python3 >/dev/null; then python3 -c '{python}' & wait $!; "
        f"else while :; do echo ${NAME_VARIABLE} | nc -l -p {port} & wait $!; done; fi"
    )


def calls(host: str, port: int) -> Argv:
    """Return a program for exec that prints what `serves` answers there."""
    python = f'import socket; s=socket.create_connection(("{host}", {port}), 3); print(s.makefile().readline().strip())'
    return shell(
        f"if command -v python3 >/dev/null; then python3 -c '{python}'; else nc -w 3 {host} {port} </dev/null; fi"
    )


def asks_the_api() -> Argv:
    """Return a program for exec that prints the HTTP status of a call to the API server without a token."""
    python = (
        "import os,ssl,urllib.request as u,urllib.error as e\n"
        'h=os.environ["KUBERNETES_SERVICE_HOST"]; h=h if h.count(":")<2 else "[%s]"%h\n'
        'a="https://%s:%s/api/v1/namespaces/kube-system/secrets"%(h,os.environ["KUBERNETES_SERVICE_PORT"])\n'
        "c=ssl._create_unverified_context()\n"
        'try: print("status",u.build_opener(u.ProxyHandler({}),u.HTTPSHandler(context=c)).open(a,timeout=10).status)\n'
        'except e.HTTPError as r: print("status",r.code)'
    )
    return shell(f"python3 -c '{python}'")
