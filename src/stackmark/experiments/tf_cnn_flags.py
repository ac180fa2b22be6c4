"""Parse the flags of tf_cnn_benchmarks as absl does.

The 137 flags stand as data in `data/tf_cnn_flags.csv`, with what each of them does here: it acts, it is accepted
(ignored, and that is said), or it is refused with what to use instead. The line between the last two: a flag is refused
where ignoring it would leave out something that the user asked for (a file, an evaluation) or change what the number
means; it is accepted where it only tells TensorFlow how to do the same work.

absl itself is not a dependency: its flags are global, and the few rules that old command lines rely on are these.
Arguments are read up to the first one that is not a flag. `--flag` and `-flag` are the same, `--flag value` works for
everything but booleans, the last one wins, and `--flagfile=FILE` stands for the lines of the file.
"""

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal, cast

from stackmark.errors import SpecError, nearest_names
from stackmark.ranks import MOST_LOCAL_RANKS

Value = str | int | float | bool | None | tuple[str, ...]
Kind = Literal["string", "boolean", "integer", "float", "enum", "list"]
Here = Literal["acts", "accepted", "refused"]

TRUE = ("true", "t", "1", "yes", "y")
FALSE = ("false", "f", "0", "no", "n")
HELP = ("help", "helpshort", "helpfull", "h", "?")
# A flagfile may name flagfiles; one that names itself would never end.
FLAGFILE_DEPTH = 10
HINT = "list the flags with: stackmark tf-cnn --help"

EXAMPLE = "stackmark tf-cnn --num_gpus=1 --batch_size=64 --model=resnet50 --variable_update=parameter_server"


@dataclass(frozen=True)
class Flag:
    name: str
    kind: Kind
    default: Value
    choices: tuple[str, ...]
    least: float | None
    most: float | None
    help: str
    here: Here
    why: str


@dataclass(frozen=True)
class Flags:
    """The value of every flag, and the names of typed ones, in the order in which they first came."""

    values: Mapping[str, Value]
    typed: tuple[str, ...]

    def given(self, name: str) -> bool:
        """Return whether the flag was typed with another value than its default."""
        return name in self.typed and self.values[name] != table()[name].default

    def text(self, name: str) -> str:
        """Return a string flag; empty if it was not given."""
        value = self.values[name]
        assert value is None or isinstance(value, str)
        return value or ""

    def integer(self, name: str) -> int | None:
        value = self.values[name]
        assert value is None or isinstance(value, int)
        return value

    def number(self, name: str) -> float | None:
        value = self.values[name]
        assert value is None or isinstance(value, int | float)
        return value

    def on(self, name: str) -> bool:
        value = self.values[name]
        assert value is None or isinstance(value, bool)
        return bool(value)


@cache
def table() -> Mapping[str, Flag]:
    """Return all flags by name: the original's 137 and two that old command lines may have."""
    text = (files("stackmark.experiments") / "data" / "tf_cnn_flags.csv").read_text(encoding="utf-8")
    flags = [_flag(row) for row in csv.DictReader(text.splitlines())]
    # `flush_stdout` was removed from the original, but stands in Kubeflow's examples; the other is of its main file.
    flags.append(
        Flag("flush_stdout", "boolean", False, (), None, None, "", "accepted", "every line is written at once")
    )
    why = "there are no MLPerf v0.5 log lines; --benchmark_log_dir writes the numbers as JSON"
    flags.append(Flag("ml_perf_compliance_logging", "boolean", False, (), None, None, "", "refused", why))
    return {flag.name: flag for flag in flags}


def _flag(row: dict[str, str]) -> Flag:
    default = json.loads(row["default"])
    return Flag(
        name=row["flag"],
        kind=cast(Kind, row["type"]),
        default=tuple(default) if isinstance(default, list) else cast(Value, default),
        choices=tuple(json.loads(row["enum"])) if row["enum"] else (),
        least=float(row["least"]) if row["least"] else None,
        most=float(row["most"]) if row["most"] else None,
        help=row["help"],
        here=cast(Here, row["here"]),
        why=row["why"],
    )


def parse(argv: Sequence[str]) -> Flags:
    """Parse a command line without the program's name; raise a sentence for what is wrong with it."""
    values: dict[str, Value] = {name: flag.default for name, flag in table().items()}
    typed: dict[str, None] = {}
    arguments = list(_with_flagfiles(list(argv), 0))
    at = 0
    while at < len(arguments):
        argument = arguments[at]
        if not argument.startswith("-") or argument in ("-", "--"):
            positional = arguments[at + 1 :] if argument == "--" else arguments[at:]
            if positional:
                raise _positional(positional, arguments[at - 1] if at else "")
            break
        flag, text, negated = _split(argument)
        at += 1
        if text is None and flag.kind != "boolean":
            if at >= len(arguments):
                raise SpecError(f"--{flag.name} needs a value", hint=f"write it like --{flag.name}={_sample(flag)}")
            text = arguments[at]
            at += 1
        values[flag.name] = _value(flag, text, negated)
        typed.setdefault(flag.name)
    return Flags(values, tuple(typed))


def _positional(positional: list[str], before: str) -> SpecError:
    """The original refuses them too: `--distortions False` would silently mean True."""
    name = before.lstrip("-").split("=")[0]
    if "=" not in before and name in table() and table()[name].kind == "boolean":
        hint = f"write --{name}={positional[0]}, or --no{name}"
    else:
        hint = "write each flag as --flag=value"
    return SpecError(f"Received unknown positional arguments: {positional}", hint=hint)


def _with_flagfiles(arguments: list[str], depth: int) -> Iterator[str]:
    """The arguments, with the lines of each flagfile in its place."""
    waiting = iter(arguments)
    for argument in waiting:
        name, equals, path = argument.lstrip("-").partition("=")
        if name != "flagfile" or not argument.startswith("-"):
            yield argument
            continue
        path = path if equals else next(waiting, "")
        if not path:
            raise SpecError("--flagfile needs the name of a file", hint="write it like --flagfile=resnet50.flags")
        if depth >= FLAGFILE_DEPTH:
            raise SpecError(f"--flagfile={path}: flagfiles are nested more than {FLAGFILE_DEPTH} deep")
        yield from _with_flagfiles(_lines(path), depth + 1)


def _lines(path: str) -> list[str]:
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"--flagfile={path} cannot be read: {error}") from error
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith(("#", "//"))]


def _split(argument: str) -> tuple[Flag, str | None, bool]:
    """The flag an argument names, the text after its `=` if there is one, and whether it was `--noflag`."""
    name, equals, text = argument[2 if argument.startswith("--") else 1 :].partition("=")
    flag = table().get(name)
    if flag is not None:
        return flag, text if equals else None, False
    negated = table().get(name.removeprefix("no"))
    if name.startswith("no") and negated is not None and negated.kind == "boolean":
        if equals:
            raise SpecError(f"--{name} takes no value", hint=f"write --{name}, or --{negated.name}={text}")
        return negated, None, True
    raise SpecError(f"unknown flag --{name}{nearest_names(name, list(table()))}", hint=HINT)


def _value(flag: Flag, text: str | None, negated: bool) -> Value:
    if text is None:
        return not negated
    match flag.kind:
        case "boolean":
            if text.lower() not in TRUE + FALSE:
                raise SpecError(f"--{flag.name}: {text!r} is neither true nor false", hint=f"--{flag.name}=true")
            return text.lower() in TRUE
        case "integer" | "float":
            return _number(flag, text)
        case "enum":
            if text not in flag.choices:
                choices = ", ".join(choice or "''" for choice in flag.choices)
                close = nearest_names(text, list(flag.choices))
                raise SpecError(f"--{flag.name}: {text!r} is not one of {choices}{close}")
            return text
        case "list":
            return tuple(part.strip() for part in text.split(",") if part.strip())
        case _:
            return text


def _number(flag: Flag, text: str) -> int | float:
    kind = "a whole number" if flag.kind == "integer" else "a number"
    try:
        if flag.kind == "integer":
            base = {"0x": 16, "0o": 8}.get(text[:2].lower(), 10)
            number: int | float = int(text, base)
        else:
            number = float(text)
    except ValueError as error:
        raise SpecError(f"--{flag.name}: {text!r} is not {kind}", hint=f"--{flag.name}={_sample(flag)}") from error
    if not math.isfinite(number):
        raise SpecError(f"--{flag.name}: {text!r} is not {kind}")
    if flag.least is not None and number < flag.least:
        raise SpecError(f"--{flag.name}: must be at least {flag.least:g}, got {text}")
    if flag.most is not None and number > flag.most:
        raise SpecError(f"--{flag.name}: must be at most {flag.most:g}, got {text}")
    return number


def _sample(flag: Flag) -> str:
    """A value that the flag would take, for hints."""
    if flag.default not in (None, "", ()):
        return str(flag.default)
    return {"integer": str(int(flag.least or 1)), "float": "0.1", "enum": flag.choices[0] if flag.choices else ""}.get(
        flag.kind, "VALUE"
    )


def refuse(flags: Flags) -> None:
    """Refuse what is not supported. A refused flag with its default value asks for nothing."""
    for name in flags.typed:
        flag = table()[name]
        if flag.here == "refused" and flags.given(name):
            raise SpecError(f"--{name} is not supported here: {flag.why}", hint="docs/tf-cnn.md lists every flag")


def one_node(flags: Flags) -> None:
    """Refuse several workers; a cluster of one worker is accepted, with any number of devices."""
    gpus = flags.integer("num_gpus") or 0
    if gpus < 1:
        raise SpecError(f"--num_gpus={gpus}: a run needs a device", hint="for a CPU: --num_gpus=1 --device=cpu")
    if gpus > MOST_LOCAL_RANKS:
        raise SpecError(f"--num_gpus={gpus}: at most {MOST_LOCAL_RANKS} devices of a machine are supported")
    if flags.text("variable_update") == "horovod":
        raise SpecError(
            "--variable_update=horovod: each process had one GPU, and mpirun started them",
            hint="use --variable_update=replicated with --num_gpus, without mpirun",
        )
    job = flags.text("job_name")
    if job == "ps":
        raise SpecError(
            "--job_name=ps: a parameter server is not a job of its own here; the worker's first process is the server",
            hint="leave parameter servers out of the job",
        )
    workers = [host for host in flags.text("worker_hosts").split(",") if host.strip()]
    if job == "controller" or len(workers) > 1 or flags.integer("task_index"):
        raise SpecError(
            "a cluster of several workers is not supported; use at most one host in --worker_hosts",
            hint="several nodes: stackmark run train/MODEL --on pod --ranks N --ranks-per-node M",
        )


def consistent(flags: Flags) -> None:
    """Refuse the combinations that the original refuses too."""

    def exclude(one: str, other: str) -> None:
        if flags.values[one] and flags.values[other]:
            raise SpecError(f"--{one} and --{other} cannot be combined", hint=f"leave out --{other}")

    exclude("num_batches", "num_epochs")
    exclude("num_eval_batches", "num_eval_epochs")
    exclude("forward_only", "eval")
    exclude("save_model_secs", "save_model_steps")
    if flags.on("eval") and not flags.text("train_dir"):
        raise SpecError("--eval needs the --train_dir that a training run wrote its checkpoints to")
    trains = not flags.on("forward_only") and not flags.on("eval")
    if (flags.integer("num_gpus") or 1) > 1:
        _of_several(flags)
    if flags.on("use_fp16") and flags.text("device").lower() == "cpu" and trains:
        raise SpecError("--use_fp16 on a CPU: fp16 training needs a GPU", hint="leave out --use_fp16, or --device=cpu")


def _of_several(flags: Flags) -> None:
    if flags.on("eval"):
        raise SpecError("--eval runs on one device", hint="use --num_gpus=1")
    for name in ("xla", "xla_compile"):
        if flags.on(name):
            raise SpecError(f"--{name} runs on one device", hint=f"leave out --{name}, or use --num_gpus=1")
    indices = flags.text("gpu_indices")
    if indices and indices.replace(" ", "") != ",".join(map(str, range(flags.integer("num_gpus") or 1))):
        raise SpecError(
            f"--gpu_indices={indices}: several devices are the GPUs from 0 on, one each",
            hint="select GPUs with CUDA_VISIBLE_DEVICES, and leave out --gpu_indices",
        )


def notices(flags: Flags) -> list[str]:
    """Return a line for each flag that was typed and changes nothing."""
    return [
        f"--{name} has no effect here and was ignored: {table()[name].why}"
        for name in flags.typed
        if table()[name].here == "accepted"
    ]


def asks_for_help(argv: Sequence[str]) -> bool:
    return any(argument.startswith("-") and argument.lstrip("-") in HELP for argument in argv)


def help_text() -> str:
    """Return short help: an example, and the flags that act. The docs list the others."""
    acting = [flag for flag in table().values() if flag.here == "acts"]
    width = max(len(flag.name) for flag in acting) + 2
    rows = [f"  {'--' + flag.name:<{width}}  {flag.why}{_default(flag)}" for flag in acting]
    others = len(table()) - len(acting)
    return "\n".join(
        [
            "Runs a tf_cnn_benchmarks command line on PyTorch, and prints what tf_cnn_benchmarks printed.",
            "",
            "Example:",
            f"  {EXAMPLE}",
            "",
            "Flags that act:",
            *rows,
            "",
            f"{others} further flags are accepted or refused with a sentence: docs/tf-cnn.md lists them all.",
            "",
            "Where it runs:",
            f"  {'--on':<{width}}  host, container or pod (default: host)",
            f"  {'--image':<{width}}  the image of a container or a pod",
            "",
            "The other options of places (--shm, --gpus, --mount, --namespace ...) are those of `stackmark run --help`.",
        ]
    )


def _default(flag: Flag) -> str:
    if flag.default in (None, "", (), False):
        return ""
    return f" (default: {flag.default})"
