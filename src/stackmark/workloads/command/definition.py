"""The workload `command/own`, a user's own program: what to run, and how to find its figure in its output.

The command is kept as it was typed, and split into words by the worker, as a shell would split them; no shell reads it
unless the person writes one (`sh -c '…'`). So nothing is expanded twice, and the same words run in every place. What a
shell would have done and is not done (a pipe, a variable before the program) is refused here, with what to write instead:
handed on as words, `|` and `>` would be taken by most programs without a complaint.
"""

import re
import shlex
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Literal

from stackmark.figures import TIME_UNITS, UNKNOWN_UNIT, is_cost, unit_kind, unit_words
from stackmark.model import Field
from stackmark.spec import AUTO, AnyParams, Request, Scalar
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
    """Split a command into words; raise ValueError where it is empty, or where a shell was meant."""
    if "\0" in text:
        raise ValueError("the command must not contain a NUL character")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"the command cannot be split into words: {error}") from error
    if not words or not words[0]:
        raise ValueError("the command is empty")
    if _ASSIGNMENT.match(words[0]):
        raise ValueError(
            f"the command is run without a shell, so {words[0]!r} would be the program: write env {words[0]} …"
        )
    # As it stands, and as it was typed: `\;` and `';'` are meant for the program.
    meant = [word for word in words if word in SHELL_WORDS and word in text.split()]
    if meant:
        raise ValueError(
            f"the command is run without a shell, so {meant[0]!r} would be passed to the program: write sh -c '…'"
        )
    return words


def variables_in(words: Sequence[str]) -> list[str]:
    """Return the names of the variables that a command refers to as `{env:NAME}`."""
    return list(dict.fromkeys(name for word in words for name in _ENV_REFERENCE.findall(word)))


def with_values(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Put the values of variables for `{env:NAME}`; raises KeyError with the name of one that is not set."""
    return [_ENV_REFERENCE.sub(lambda match: environment[match[1]], word) for word in words]


def compile_metric(text: str) -> re.Pattern[str]:
    """Compile a pattern with one group around the number; raise ValueError."""
    try:
        with warnings.catch_warnings():
            # Of sets whose meaning may change one day; they mean today what they say.
            warnings.simplefilter("ignore")
            pattern = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"invalid pattern: {error}") from error
    if pattern.groups != 1:
        raise ValueError(
            f"the pattern has {pattern.groups} groups and needs one, around the number; example: images/sec: ([0-9.]+)"
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
        description="auto, cpu or cuda:N: the device whose counters are read; auto: the GPUs that the program uses; cpu: no GPU "
        "in a container or pod; the program does not see this option",
        json_schema_extra=COMMAND,
    )
    cmd: Annotated[str, _checked_command] = Field(
        default="",
        max_length=32_000,
        description="the program and its arguments, quoted as for a shell, but run without one; {env:NAME} is replaced "
        "when it starts and stored as written; without --cmd an image runs its entry point",
        json_schema_extra=COMMAND,
    )
    cwd: str = Field(
        default="",
        description="run it in this folder; default: the current folder; . is the place's own",
        json_schema_extra=COMMAND,
    )
    metric: Annotated[str, _checked_metric] = Field(
        default="",
        max_length=1000,
        description="a regular expression with one group around the figure, applied to each line of output; "
        "without it the figure is the wall time",
        json_schema_extra={**COMMAND, "plain": True},
    )
    metric_name: str = Field(
        default="",
        max_length=80,
        description="what the figure is called; by default guessed from the pattern: the text before the group",
        json_schema_extra={**COMMAND, "plain": True, "later": True},
    )
    metric_take: Literal["last", "median", "mean"] = Field(
        default="last", description="which match is the figure", json_schema_extra=COMMAND
    )
    metric_skip: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="number of matches to ignore at the beginning",
        json_schema_extra=COMMAND,
    )
    metric_unit: str = Field(
        default="",
        max_length=40,
        description="unit of the figure; by default guessed from the pattern: the unit after the group, or the "
        "word before it",
        json_schema_extra={**COMMAND, "plain": True, "option": "unit"},
    )
    metric_lower: bool = Field(
        default=False,
        description="a lower figure is better; by default guessed: true for times, latency, loss and errors",
        json_schema_extra={**COMMAND, "option": "lower-is-better", "default": ""},
    )
    mlperf_log: str = Field(
        default="",
        max_length=4000,
        description="the MLPerf log that the program writes, a file or a folder: its time from run_start to run_stop is the "
        "figure, in minutes",
        json_schema_extra={**COMMAND, "later": True},
    )

    def _validate(self) -> None:
        if self.mlperf_log and self.metric:
            raise ValueError("metric and mlperf_log both say what the figure is; give one of the two")
        if not self.metric:
            for name in ("metric_name", "metric_take", "metric_skip", "metric_unit", "metric_lower"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} needs a --metric")


def telling_params(params: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Leave out what is not set, and what says something about a metric where there is none."""
    idle = "metric" in params and not params["metric"]
    return {
        name: value
        for name, value in params.items()
        if value not in ("", None) and not (idle and name.startswith("metric_"))
    }


def complete(request: Request) -> tuple[CommandParams, dict[str, str]]:
    """Fill in what a request leaves open, and say why; raise ValidationError where it cannot be."""
    values = dict(request.typed())
    guessed = guessed_params(values)
    return CommandParams.model_validate({**values, **guessed}), dict.fromkeys(guessed, GUESSED)


# --- what a figure is counted in and which way is better, by the text around the number ---------------------------------

GUESSED = "guessed from the pattern"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOWER = _words(
    "latency latencies lat time times runtime walltime duration elapsed loss losses error errors err perplexity ppl delay "
    "rtt ttft tpot itl wer cer mse rmse mae jitter lag overhead wait memory rss energy stall stalls miss misses failures "
    "failed retries retransmits dropped timeouts cost costs"
)
# Words that say which of several numbers it is. Before a number, `min` is the least and not a minute.
_WHICH = _words("avg average mean median min max total sum final last best rate is was of the at in stddev")
_PERCENTILE = re.compile(r"p\d+(\.\d+)?")
_WORD = r"[A-Za-zµμ%][\w/%.^@µμ-]*"
# `ms`, `images/sec`, `/s`, `tokens per second`, `ms per token`.
_UNIT = rf"(?:{_WORD} )?per {_WORD}|/ ?{_WORD}|{_WORD}"
_UNIT_AFTER = re.compile(rf"[\s\[(]*({_UNIT})")
_UNIT_BEFORE = re.compile(rf"({_UNIT})[\s:=\"'\[\]()<>|~-]*$")
# What a pattern is made of; `group` is the one around the number.
_TOKEN = re.compile(
    r"\\(?P<escaped>.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|\(\?[A-Za-z-]+\)|(?P<group>\((?!\?)|\(\?P<\w+>)"
    r"|(?P<open>\(\?(?:[:=!>]|<[=!]|[A-Za-z-]+:))|(?P<close>\))|(?P<repeat>[*+?]|\{\d*,?\d*\})|(?P<other>.)",
    re.DOTALL,
)


def guessed_params(typed: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the unit and the direction of a metric, as far as they were not typed."""
    if not typed.get("metric"):
        return {}
    unit, lower = guess_metric(str(typed["metric"]), str(typed.get("metric_unit") or ""))
    guessed: dict[str, Scalar] = {"metric_unit": unit, "metric_lower": lower}
    return {name: value for name, value in guessed.items() if typed.get(name) in (None, "")}


WALL_TIME = "wall time"


def metric_name(params: Mapping[str, Scalar]) -> str:
    """Return what the figure of a user's own program is called; nothing for other workloads."""
    if "metric" not in params:
        return ""
    return str(params.get("metric_name") or "") or guess_name(str(params["metric"])) if params["metric"] else WALL_TIME


def guess_name(metric: str) -> str:
    """Guess the name of the number in a pattern: `latency` of `p50: …, latency ([0-9.]+) ms`, `images/sec` of `images/sec: …`.

    It is the text before the group, back to a comma, a bracket or what a pattern leaves open, without the unit.
    """
    before, _ = _text_around(metric)
    clause = re.split(r"[,;|\]}\t]| {2,}", before.rstrip(" :=\"'[({<~-"))[-1]
    unit, _ = guess_metric(metric)
    words = re.findall(_WORD, clause)
    bare = [word for word in words if word != unit or not unit_kind(unit)]
    if any(not _says_which(word) for word in bare):
        words = bare
    name = " ".join(word.removesuffix(f"_{unit}") for word in words)[:80] or unit
    return "" if name == UNKNOWN_UNIT else name


def say_guess(params: Mapping[str, Scalar], guessed: Collection[str]) -> str:
    """Say what was guessed of a metric and how to change it; nothing where nothing was guessed."""
    which = "lower is better" if params.get("metric_lower") else "higher is better"
    named = bool(params.get("metric_name"))
    parts = {
        "metric_name": ("" if named else metric_name(params), "--metric-name"),
        "metric_unit": (f"unit {params.get('metric_unit')}", "--unit"),
        "metric_lower": (which, "--lower-is-better" if not params.get("metric_lower") else "--no-lower-is-better"),
    }
    made = [part for name, part in parts.items() if name in guessed]
    if not made:
        return ""
    name = parts["metric_name"]
    if name[0] and name[0] != params.get("metric_unit"):
        made = [(f"name {name[0]}", name[1]), *made]
    *first, last = (option for _, option in made)
    options = f"{', '.join(first)} and {last}" if first else last
    said = ", ".join(said for said, _ in made)
    return f"{said}: {GUESSED}; {options} change{'s' if len(made) == 1 else ''} it"


def guess_metric(metric: str, unit: str = "") -> tuple[str, bool]:
    """Guess the unit of the number in a pattern, and whether lower is better; a `unit` that was typed is kept.

    A unit after the group (`([0-9.]+) ms`) wins over the word before it (`images/sec: ([0-9.]+)`). Times, and words such as
    latency and loss, are better when they are lower; rates and everything else when they are higher. A percentile of nothing
    that is named (`p99: ([0-9.]+)`) is a latency's.
    """
    before, after = _text_around(metric)
    words = [word for word in re.findall(_WORD, before) if not _says_which(word)]
    unit = unit or _unit_after(after, known_only=bool(words)) or _unit_before(before, words) or UNKNOWN_UNIT
    kind = unit_kind(unit)
    if kind in ("time", "rate"):
        return unit, kind == "time"
    name = next((word for word in reversed(words) if not unit_kind(word)), "")
    if not name and any(map(_is_percentile, re.findall(_WORD, before))):
        return unit, True
    return unit, is_cost(unit) or bool(_LOWER & {*unit_words(name), *unit_words(unit)})


def _unit_after(after: str, *, known_only: bool) -> str:
    found = _UNIT_AFTER.match(after)
    word = found[1].rstrip(".-") if found else ""
    return word if unit_kind(word) or not known_only else ""


def _unit_before(before: str, words: Sequence[str]) -> str:
    """`images/sec` of `images/sec: `, `ms` of `latency_ms=`, `usec` of `lat (usec): avg=`."""
    found = _UNIT_BEFORE.search(before)
    if not found:
        return ""
    word = found[1].rstrip(".")
    if _says_which(word) and words:
        word = words[-1]
    last = word.rpartition("_")[2]
    return last if last != word and last != "min" and last.lower() in TIME_UNITS and not unit_kind(word) else word


def _says_which(word: str) -> bool:
    return word.lower() in _WHICH or _is_percentile(word)


def _is_percentile(word: str) -> bool:
    return _PERCENTILE.fullmatch(word.lower()) is not None


def _text_around(metric: str) -> tuple[str, str]:
    """Return the plain text of a pattern before and after its group; what stands for other letters becomes a space."""
    sides: tuple[list[str], list[str]] = ([], [])
    side, depth, group = 0, 0, 0
    for token in _TOKEN.finditer(metric):
        depth += bool(token["group"] or token["open"])
        if token["group"]:
            group = depth
        elif token["close"]:
            side, group = (1, 0) if group == depth else (side, group)
            depth -= 1
        elif group:
            continue
        elif token["escaped"]:
            sides[side].append(" " if token["escaped"].isalnum() else token["escaped"])
        elif token["set"] or token["other"]:
            sides[side].append(" " if token["set"] or token["other"] in ".^$|" else token["other"])
    return "".join(sides[0]), "".join(sides[1])


FAMILY = Family(
    "command",
    CommandParams,
    "stackmark.workloads.command.impl.command",
    (
        Definition(
            OWN_COMMAND,
            "Your own program (--cmd): the figure that it prints, or its run time",
            "run",
            timed="whole",
        ),
    ),
    own_program=True,
    shown=("device", "cmd", "cwd", "metric"),
)
