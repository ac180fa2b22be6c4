"""The first program on a node: it fetches the worker, starts it and carries its lines back. And the reader of those lines.

What was tried with Slurm 22.05, two nodes and `srun`, and decided by it:

- **Lines.** slurmstepd sends output in messages of 1024 bytes, and srun writes them as they come. Lines of 1000 bytes from two
  nodes at once all came whole (4000 of 4000). Of 1100 bytes 650 of 4000 were torn, of 4000 bytes 1483, of 8000 bytes 1451.
  `--label` does not help: it puts its label and a line break into the middle of long lines.
  So this program cuts each line into pieces of at most 900 bytes, which name their node, and `Lines` puts them together.
- **The worker's zip file** comes by standard input, which srun hands to all nodes. It lies in memory (memfd) and is run from
  /proc/PID/fd: no folder is shared or written to, and nothing is left, however the job ends.
- **The lifeline** is the same standard input: srun closes it when the driver dies, and each node reads the end.
- **The port** of a group is bound here, on the first node, until the worker has ended, and never listened at: the worker's rank 0
  may listen at it (SO_REUSEADDR), and another program does not get it.
- **Signals.** srun kills the job on SIGTERM and SIGINT, but hands SIGUSR1 and SIGUSR2 on: they mean SIGTERM and SIGINT here.
  While its job waits, srun takes it back on any of the four. Slurm sends a signal to all processes of a job, so the worker
  ignores these two.
- **What is left.** Where Slurm tracks processes by their parents (proctrack/linuxproc), a stopped rank whose agent was killed
  stayed when its job was over. So at the end each process that carries the run's mark and this node's number is killed.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from stackmark.machine.orphans import MARK_VARIABLE
from stackmark.places.image_python import PYTHONS, search_script
from stackmark.spec import SCRATCH_VARIABLE

# Of one piece of a line, without its mark: a message of slurmstepd has 1024 bytes.
PIECE_BYTES = 900
# How long the head may be, in digits: it holds the variables of the worker's environment.
HEAD_DIGITS = 10
# A worker that was asked to end, and has not after its own grace, is killed.
KILL_AFTER_S = 6.0
# Pieces of a line without an end are not put together past this.
LONGEST_LINE = 64 * 1024
# A piece: the node's number, whether it is output, standard error or a message of this program, and whether the line goes on.
_PIECE = re.compile(r"@(\d{1,5})([oec])([+ ])")
NO_PYTHON_HINT = "give the path of the nodes' Python that has PyTorch: --python PATH"

# Written for any Python 3 from 3.4 on, so that an old one can be told. It knows stackmark by its variables alone.
PROGRAM = f"""\
import json, os, shutil, signal, socket, subprocess, sys, tempfile, threading
node = os.environ.setdefault("SLURM_NODEID", "0")
lock = threading.Lock()
def piece(channel, data, more):
    data = ("@%s%s%s" % (node, channel, "+" if more else " ")).encode() + data + b"\\n"
    with lock:
        while data:
            data = data[os.write(1, data):]
def line(channel, data, more=False):
    while len(data) > {PIECE_BYTES}:
        cut = {PIECE_BYTES}
        while cut > {PIECE_BYTES - 4} and data[cut] & 0xC0 == 0x80:
            cut -= 1
        piece(channel, data[:cut], True)
        data = data[cut:]
    piece(channel, data, more)
def say(**told):
    line("c", json.dumps(told).encode())
def read(count):
    data = b""
    while len(data) < count:
        got = os.read(0, min(count - len(data), 65536))
        if not got:
            sys.exit(0)
        data += got
    return data
child = None
def send(wanted, whole=False):
    try:
        (os.killpg if whole else os.kill)(child.pid, wanted)
    except OSError:
        pass
def on_signal(number, _frame):
    if child is None:
        os._exit(128 + number)
    send({{signal.SIGUSR1: signal.SIGTERM, signal.SIGUSR2: signal.SIGINT}}.get(number, number))
    last = threading.Timer({KILL_AFTER_S}, send, (signal.SIGKILL, True))
    last.daemon = True
    last.start()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, on_signal)
if sys.version_info < (3, 10):
    say(old="%d.%d.%d" % sys.version_info[:3], python=sys.executable)
    sys.exit(1)
port = socket.socket()
port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
port.bind(("", 0))
names = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_PARTITION", "SLURMD_NODENAME")
say(port=port.getsockname()[1], python=sys.executable, **{{name: os.environ.get(name) for name in names}})
head = json.loads(read(int(read({HEAD_DIGITS}))).decode())
descriptor = os.memfd_create("worker.pyz")
content = read(head["size"])
while content:
    content = content[os.write(descriptor, content):]
environ = dict(os.environ, **head["environment"])
scratch = None
if head["scratch"]:
    scratch = environ["{SCRATCH_VARIABLE}"] = tempfile.mkdtemp(prefix="stackmark-%s-" % environ["{MARK_VARIABLE}"])
def carry(channel, stream):
    for data in iter(lambda: stream.readline(65536), b""):
        whole = data.endswith(b"\\n")
        line(channel, data[:-1] if whole else data, not whole)
def deaf():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
def sweep():
    marks = {{("{MARK_VARIABLE}=" + environ["{MARK_VARIABLE}"]).encode(), ("SLURM_NODEID=" + node).encode()}}
    for entry in os.listdir("/proc"):
        try:
            with open("/proc/%s/environ" % entry, "rb") as file:
                if entry.isdigit() and marks <= set(file.read().split(b"\\0")):
                    os.kill(int(entry), signal.SIGKILL)
        except OSError:
            pass
try:
    child = subprocess.Popen(
        [sys.executable, "/proc/%d/fd/%d" % (os.getpid(), descriptor)], env=environ,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=deaf)
    threads = [threading.Thread(target=carry, args=(channel, stream), daemon=True)
               for channel, stream in (("o", child.stdout), ("e", child.stderr))]
    for thread in threads:
        thread.start()
    code = child.wait()
    for thread in threads:
        thread.join(0.5)
finally:
    sweep()
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)
say(code=code)
os._exit(code if code >= 0 else 128 - code)
"""


def node_command(python: str | None) -> tuple[str, ...]:
    """Return the command that srun starts on each node: by the named Python, or by the best that is found there."""
    if python is not None:
        return (python, "-I", "-c", PROGRAM)
    pythons = tuple(dict.fromkeys((sys.executable, *PYTHONS)))
    none = f"the node has no usable Python: none of {', '.join(pythons)} can be started"
    return ("sh", "-c", search_script(pythons, '-I -c "$1"', none), "stackmark", PROGRAM)


def head_of(content: bytes, environment: Mapping[str, str], *, scratch: bool) -> bytes:
    """Return what each node reads first: the worker's environment, and how long the zip file is that follows."""
    head = json.dumps({"size": len(content), "environment": dict(environment), "scratch": scratch}).encode()
    return f"{len(head):0{HEAD_DIGITS}d}".encode() + head


@dataclass(frozen=True)
class NodeLine:
    """A whole line of a node: `out` or `err` of its worker, or `told` by the program above."""

    node: int
    out: str | None = None
    err: str | None = None
    told: Mapping[str, JsonValue] | None = None


class Lines:
    """Puts the pieces of each node's lines together. What is not a piece is Slurm's own, or a node's prolog's."""

    def __init__(self, take: Callable[[NodeLine], None], other: Callable[[str], None]) -> None:
        self._take, self._other = take, other
        self._open: dict[tuple[int, str], str] = {}

    def line(self, text: str) -> None:
        found = _PIECE.match(text)
        if not found:
            self._other(text)
            return
        node, channel = int(found[1]), found[2]
        whole = self._open.pop((node, channel), "") + text[found.end() :]
        if found[3] == "+" and len(whole) < LONGEST_LINE:
            self._open[node, channel] = whole
        elif channel == "o":
            self._take(NodeLine(node, out=whole))
        elif channel == "e":
            self._take(NodeLine(node, err=whole))
        else:
            self._take(NodeLine(node, told=_object(whole)))


def _object(text: str) -> Mapping[str, JsonValue]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
