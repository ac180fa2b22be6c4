"""The workload `command/own`, a user's own program: what is run, and where its figure is found in what it prints.

The command is kept as it was typed, and split into words by the worker, as a shell would split them; no shell reads it
unless the person writes one (`sh -c '…'`). So nothing is expanded twice, and the same words run in every place. What a
shell would have done and is not done (a pipe, a variable before the program) is refused here, with what to write instead:
handed on as words, `|` and `>` would be taken by most programs without a complaint.
"""

import re
import shlex
import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from stackmark.model import Field
from stackmark.spec import AUTO, AnyParams, Request
from stackmark.workloads.definition import Definition, Family

# What `--cmd` asks for without a name.
OWN_COMMAND = "command/own"
COMMAND = {"group": "Your own program, instead of a workload"}
# Words that mean something to a shell and nothing to a program.
SHELL_WORDS = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<", "<<", "2>", "2>>", "2>&1", "&>"})
# A value that only the worker may know, and only when it starts the program: it is in no spec and in no stored command.
_ENV_REFERENCE = re.compile(r"\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)


def split_command(text: str) -> list[str]:
    """The words of a command; raises ValueError where it has none, or where a shell was meant."""
    if "\0" in text:
        raise ValueError("a command cannot hold a NUL")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"the command cannot be split into words: {error}") from error
    if not words or not words[0]:
        raise ValueError("the command is empty")
    if _ASSIGNMENT.match(words[0]):
        raise ValueError(f"no shell reads the command, so {words[0]!r} would be the program: write env {words[0]} …")
    # As it stands, and as it was typed: `\;` and `';'` are meant for the program.
    meant = [word for word in words if word in SHELL_WORDS and word in text.split()]
    if meant:
        raise ValueError(
            f"no shell reads the command, so {meant[0]!r} would be handed to the program: write sh -c '…' for a shell"
        )
    return words


def variables_in(words: Sequence[str]) -> list[str]:
    """Return the names of the variables that a command refers to as `{env:NAME}`."""
    return list(dict.fromkeys(name for word in words for name in _ENV_REFERENCE.findall(word)))


def with_values(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Put the values of variables for `{env:NAME}`; raises KeyError with the name of one that is not set."""
    return [_ENV_REFERENCE.sub(lambda match: environment[match[1]], word) for word in words]


def compile_metric(text: str) -> re.Pattern[str]:
    """A pattern with the one group that holds the number; raises ValueError."""
    try:
        with warnings.catch_warnings():
            # Of sets whose meaning may change one day; they mean today what they say.
            warnings.simplefilter("ignore")
            pattern = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"the pattern cannot be read: {error}") from error
    if pattern.groups != 1:
        raise ValueError(
            f"the pattern has {pattern.groups} groups and needs one, around the number, like: images/sec: ([0-9.]+)"
            + ("; write (?:…) for the others" if pattern.groups else "")
        )
    return pattern


def _checked_command(text: str) -> str:
    if text:
        split_command(text)
    return text


def _checked_metric(text: str) -> str:
    if text:
        compile_metric(text)
    return text


class CommandParams(AnyParams):
    device: str = Field(
        default=AUTO,
        pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$",
        description="auto, cpu or cuda:N: whose counters are read; auto: of the GPUs that it is seen on; cpu: it gets no GPU "
        "in a container or pod; the program is not told",
        json_schema_extra=COMMAND,
    )
    cmd: Annotated[str, _checked_command] = Field(
        default="",
        max_length=32_000,
        description="the program and its arguments, quoted as for a shell, though none reads them; {env:NAME} is replaced "
        "when it starts, and stored as it is; without it an image runs its own entry point",
        json_schema_extra=COMMAND,
    )
    cwd: str = Field(
        default="",
        description="run it in this folder; by default where you are, and . is the place's own",
        json_schema_extra=COMMAND,
    )
    metric: Annotated[str, _checked_metric] = Field(
        default="",
        max_length=1000,
        description="a regular expression with one group around the figure, tried on each line it prints; "
        "without one the figure is its wall time",
        json_schema_extra={**COMMAND, "plain": True},
    )
    metric_take: Literal["last", "median", "mean"] = Field(
        default="last", description="which of its matches is the figure", json_schema_extra=COMMAND
    )
    metric_skip: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="leave out so many matches at the beginning",
        json_schema_extra=COMMAND,
    )
    metric_unit: str = Field(
        default="",
        max_length=40,
        description="what the figure is counted in; by default the word before the group in the pattern",
        json_schema_extra={**COMMAND, "plain": True},
    )
    metric_lower: bool = Field(
        default=False, description="the figure is better when it is lower", json_schema_extra=COMMAND
    )

    def _validate(self) -> None:
        if not self.metric:
            for name in ("metric_take", "metric_skip", "metric_unit", "metric_lower"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} says something about a metric, and there is none; give a --metric")


def complete(request: Request) -> tuple[CommandParams, dict[str, str]]:
    """Fill in what a request leaves open, and say why; raise ValidationError where it cannot be."""
    values, choices = dict(request.typed()), {}
    if values.get("metric") and not values.get("metric_unit"):
        values["metric_unit"] = guess_unit(str(values["metric"]))
        choices["metric_unit"] = "from the words before the group in the pattern"
    return CommandParams.model_validate(values), choices


def guess_unit(metric: str) -> str:
    """`images/sec` of `images/sec: ([0-9.]+)`: the last word before the group, where that is plain text."""
    # What `\s`, `\b` and the like stand for is no part of a word.
    before = re.sub(r"\\[A-Za-z][*+?]?", " ", metric.partition("(")[0])
    word = re.search(r"([A-Za-z][A-Za-z0-9_/%.-]*)[\s:=\"'\\]*$", before)
    return word[1].rstrip(".") if word else "units"


FAMILY = Family(
    "command",
    CommandParams,
    "stackmark.workloads.command.impl.command",
    (
        Definition(
            OWN_COMMAND,
            "Your own program (--cmd), run whole: the figure that it prints, or its time",
            "run",
            timed="whole",
        ),
    ),
    own_program=True,
    shown=("device", "cmd", "cwd", "metric"),
)
