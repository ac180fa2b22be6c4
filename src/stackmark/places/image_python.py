"""Find the Python of a user's image that runs the worker's zip file: one shell script, for a container and for a pod.

Images keep torch in different Pythons: Debian's and NVIDIA's `python3`, conda's `/opt/conda/bin/python`, which need not be in
the PATH, or a virtual environment. Only a look inside tells, and a container of its own for the look would cost as much as the
start of a run. So the container's first program is `sh`, which asks each Python and then becomes the best of them. Asking is
finding torch, not importing it, and takes the start of a Python: 10 to 30 ms.

Each Python answers by its exit code alone: what a start-up file of the image prints is dropped, and neither a writable file
system nor any other program of the image is needed. `exec` keeps process 1: signals and standard input reach the worker.
"""

import shlex
from collections.abc import Sequence

from stackmark.places.bundle import TARGET
from stackmark.spec import PYTHONS_VARIABLE

PYTHONS = ("python3", "python", "/opt/conda/bin/python", "/opt/venv/bin/python")
# The exit code of the script where none of these can be started: `no configuration` in sysexits.h, and no code of a worker.
NO_PYTHON_EXIT = 78
NO_PYTHON = f"the image has no usable Python: none of {', '.join(PYTHONS)} can be started"
NO_PYTHON_HINT = "use an image with Python 3.10 or newer, or give the path of its Python: --python PATH"

# Codes that no other program under the name of a Python ends with: it has torch, it is new enough, it is too old.
_TORCH, _NEW, _OLD = 71, 72, 73
# Written for any Python from 2.7 on. The working folder is not looked into: the zip file does not have it on its path either.
_QUESTION = f"""\
import sys
sys.path = [p for p in sys.path if p]
if sys.version_info < (3, 10): sys.exit({_OLD})
from importlib.util import find_spec
found = find_spec("torch")
sys.exit({_TORCH} if found and found.origin else {_NEW})"""


def search_script(pythons: Sequence[str], run: str, none: str) -> str:
    """Return a shell script that becomes the best of these Pythons, with `run` as its arguments; it says `none` without one.

    126 and 127 are the shell's own: a file that cannot be started, and none. A program with any other code is a last resort:
    what it says when it is started (a library is missing) is more than could be said here.
    """
    names = " ".join(map(shlex.quote, pythons))
    return f"""\
new= old= other=
for python in {names}; do
  "$python" -c '{_QUESTION}' </dev/null >/dev/null 2>&1
  case $? in
    {_TORCH}) exec "$python" {run} ;;
    {_NEW}) new=${{new:-$python}} ;;
    {_OLD}) old=${{old:-$python}} ;;
    126|127) ;;
    *) other=${{other:-$python}} ;;
  esac
done
{PYTHONS_VARIABLE}={shlex.quote(" ".join(pythons))}
export {PYTHONS_VARIABLE}
python=${{new:-${{old:-$other}}}}
case $python in ?*) exec "$python" {run} ;; esac
echo {shlex.quote(none)} >&2
exit {NO_PYTHON_EXIT}"""


SCRIPT = search_script(PYTHONS, TARGET, NO_PYTHON)


def image_command(python: str | None = None) -> tuple[str, ...]:
    """Return the command that runs the worker's zip file in an image: by the named Python, or by the best that is found."""
    return (python, TARGET) if python is not None else ("sh", "-c", SCRIPT)
