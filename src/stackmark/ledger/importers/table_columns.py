"""Find the column of each field of a table: `--map FIELD=COLUMN` names it, and the names of the columns suggest the others.

A guess is made only where one column fits, and it is told to the person. Two columns that may both be the rate are refused with
the way to choose: a wrong rate is worse than a question.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stackmark.errors import SpecError, nearest_names
from stackmark.published.table import UNIT_SPELLINGS

# What a column may be, and how it is said. `param.NAME` is any parameter of the workload.
FIELDS = {
    "workload": "the workload", "rate": "the rate", "time": "the time", "unit": "the unit", "chip": "the chip",
    "ranks": "the ranks", "precision": "the precision", "batch": "the batch of a device", "place": "the place",
    "framework": "the framework", "date": "the date", "arm": "the arm", "label": "the label", "task": "the task",
}  # fmt: skip
PARAM = "param."
NOT_TAKEN = "-"
# Other names that people give such columns. `device`, `name` and `type` are not among them: they mean too many things.
_NAMES = {
    "workload": ("workload", "model", "network", "benchmark", "model_name"),
    "unit": ("unit", "units", "figure_unit"),
    "chip": ("chip", "gpu", "accelerator", "gpu_name", "gpu_model", "card"),
    "ranks": ("ranks", "gpus", "num_gpus", "n_gpus", "ngpus", "gpu_count", "count", "devices", "num_devices", "world_size"),
    "precision": ("precision", "dtype", "data_type"),
    "batch": ("batch", "batch_size", "bs", "batch_per_gpu", "batch_size_per_device"),
    "place": ("place", "environment", "where"),
    "framework": ("framework", "software"),
    "date": ("date", "day", "timestamp"),
    "label": ("label",),
    "task": ("task", "mode"),
}  # fmt: skip
_RATES = ("figure_value", "rate", "throughput", "speed", "value")
_TIMES = ("time", "latency", "duration", "elapsed", "seconds", "minutes", "step_time", "time_to_train")
# A column next to the figure: how it varied, or what others measured.
_NEXT_TO_FIGURE = re.compile(
    r"(?:^|_)(?:std|stddev|stdev|sd|sem|cv|var|jitter|error|err|max|median|p\d+|low|high|ci\d*|ref|reference|published)(?:_|$)"
)
_COUNTED = {
    "image": "images", "img": "images", "frame": "frames", "sample": "samples", "example": "examples", "sequence": "sequences",
    "seq": "sequences", "token": "tokens", "tok": "tokens", "query": "queries", "queries": "queries", "request": "requests",
    "step": "steps", "iteration": "iterations", "item": "items",
}  # fmt: skip
_RATE_NAME = re.compile(rf"(?:^|_)({'|'.join(_COUNTED)})s?_(?:per_)?(?:s|sec|secs|second|seconds)(?:_|$)")
_RATE_WORDS = {"qps": "queries/s", "fps": "images/s", "tflops": "TFLOP/s", "tflop_s": "TFLOP/s", "gflops": "GFLOP/s",
               "gb_s": "GB/s"}  # fmt: skip
_TIME_WORDS = {
    "ms": "ms", "msec": "ms", "milliseconds": "ms", "us": "us", "usec": "us", "microseconds": "us", "ns": "ns", "s": "s",
    "sec": "s", "secs": "s", "second": "s", "seconds": "s", "min": "min", "mins": "min", "minutes": "min", "h": "h",
    "hours": "h",
}  # fmt: skip
MOST_COLUMNS = 1000


@dataclass(frozen=True)
class TableOptions:
    """What a person says about a table: the column of a field, and the unit where no column has it."""

    columns: Mapping[str, str] = field(default_factory=dict)
    unit: str | None = None
    arm_column: str | None = None


@dataclass(frozen=True)
class Columns:
    """The index of each field's column, the unit that the figure's own header names, and what to tell the person."""

    index: Mapping[str, int]
    params: Mapping[str, int]
    unit: str | None
    taken: tuple[str, ...]

    @property
    def figure(self) -> str:
        return "time" if "time" in self.index else "rate"


def read_map(texts: Sequence[str]) -> dict[str, str]:
    """`rate=images_per_sec,workload=model`. A column's name may hold a comma: it is cut only before another FIELD=."""
    columns: dict[str, str] = {}
    for text in texts:
        for part in re.split(r",(?=[a-z]+(?:\.[a-z0-9_]+)?=)", text):
            name, equals, column = part.partition("=")
            if not equals or not column:
                raise SpecError(
                    f"--map: {part!r} is not FIELD=COLUMN",
                    hint="write it like --map rate=images_per_sec,workload=model",
                )
            if name not in FIELDS and not re.fullmatch(r"param\.[a-z][a-z0-9_]{0,39}", name):
                raise SpecError(
                    f"--map: there is no field {name!r}{nearest_names(name, list(FIELDS))}",
                    hint=f"fields: {', '.join(FIELDS)}, and param.NAME for any other parameter",
                )
            if name in columns:
                raise SpecError(f"--map names {name} twice: {columns[name]!r} and {column!r}")
            columns[name] = column
    if "rate" in columns and "time" in columns:
        raise SpecError("--map names both a rate and a time", hint="a run has one figure: choose one of them")
    return columns


def find_columns(header: Sequence[str], options: TableOptions, name: str) -> Columns:
    """Find the column of each field; what cannot be found is a sentence with the columns that there are."""
    header = [cell.strip() for cell in header]
    if len(header) > MOST_COLUMNS:
        raise SpecError(f"{name} has {len(header):,} columns; at most {MOST_COLUMNS:,} are read")
    wanted = dict(options.columns)
    if options.arm_column is not None and wanted.setdefault("arm", options.arm_column) != options.arm_column:
        raise SpecError(f"--arm-column {options.arm_column} and --map arm={wanted['arm']} name two columns")
    index = {one: _position(column, header, one, name) for one, column in wanted.items() if column != NOT_TAKEN}
    free = [i for i in range(len(header)) if i not in index.values()]
    if "rate" not in index and "time" not in index:
        index |= _guess_figure(header, free, name)
    for one, names in _NAMES.items():
        if one not in wanted and not (one == "unit" and options.unit) and not (one == "place" and "arm" in index):
            fitting = [i for i in free if i not in index.values() and _key(header[i]) in names]
            if fitting:
                index[one] = min(fitting, key=lambda i: names.index(_key(header[i])))
    figure = header[index["time" if "time" in index else "rate"]]
    unit = options.unit or _unit_in(figure, time="time" in index)
    if "unit" not in index and unit is None:
        raise SpecError(
            f"{name}: the unit of the column {figure!r} is unknown",
            hint="give it with --unit images/s, or name the column that has it: --map unit=COLUMN",
        )
    params = {one.removeprefix(PARAM): i for one, i in index.items() if one.startswith(PARAM)}
    fields = {one: i for one, i in index.items() if not one.startswith(PARAM)}
    return Columns(fields, params, normal_unit(unit) if unit else None, tuple(_say(header, fields, params, unit)))


def _position(column: str, header: Sequence[str], field_name: str, name: str) -> int:
    found = [i for i, cell in enumerate(header) if cell == column.strip()]
    found = found or [i for i, cell in enumerate(header) if cell.casefold() == column.strip().casefold()]
    if len(found) == 1:
        return found[0]
    option = "--arm-column" if field_name == "arm" else f"--map {field_name}"
    what = f"{len(found)} columns named" if found else "no column"
    raise SpecError(f"{option}: {name} has {what} {column!r}{nearest_names(column, list(header))}", hint=_list(header))


def _guess_figure(header: Sequence[str], free: Sequence[int], name: str) -> dict[str, int]:
    """The column that holds the figure: by the unit in its name, or by a name that people give it."""
    free = [i for i in free if not _NEXT_TO_FIGURE.search(_key(header[i]))]
    by_unit = [i for i in free if _unit_in(header[i], time=False)]
    by_name = sorted((i for i in free if _bare(header[i]) in _RATES), key=lambda i: _RATES.index(_bare(header[i])))
    times = [i for i in free if _is_time(header[i])]
    for one, candidates in (("rate", by_unit), ("rate", by_name[:1]), ("time", times)):
        if len(candidates) > 1:
            said = ", ".join(header[i][:80] for i in candidates[:5])
            raise SpecError(f"{name}: several columns may be the {one}: {said}", hint=f"name it: --map {one}=COLUMN")
        if candidates:
            return {one: candidates[0]}
    raise SpecError(
        f"{name}: no column looks like a rate or a time", hint=f"name it: --map rate=COLUMN\n{_list(header)}"
    )


def _list(header: Sequence[str]) -> str:
    more = f" and {len(header) - 30} more" if len(header) > 30 else ""
    return f"columns: {', '.join(cell[:80] or '(without a name)' for cell in header[:30])}{more}"


def _key(text: str) -> str:
    """A header's name in one spelling: `Images/sec` is images_sec, `Batch size` is batch_size."""
    return re.sub(r"[^a-z0-9]+", "_", text[:200].casefold().replace("µ", "u").replace("μ", "u")).strip("_")


def _bare(text: str) -> str:
    """Without a unit in brackets: `Throughput (img/s)` is throughput."""
    return _key(re.sub(r"[(\[][^)\]]{0,40}[)\]]", " ", text[:200]))


def _is_time(text: str) -> bool:
    bare = _bare(text)
    return bare in _TIMES or any(bare == f"{one}_{unit}" for one in _TIMES for unit in _TIME_WORDS)


def _unit_in(text: str, *, time: bool) -> str | None:
    """The unit that a header names."""
    if inside := re.search(r"[(\[]([^)\]]{1,40})[)\]]", text[:200]):
        said = normal_unit(inside[1])
        if _key(said) in _TIME_WORDS or "/" in said:
            return said if time or "/" in said else None
    key = _key(text)
    if time:
        return next((_TIME_WORDS[word] for word in reversed(key.split("_")) if word in _TIME_WORDS), None)
    if match := _RATE_NAME.search(key):
        return f"{_COUNTED[match[1]]}/s"
    return _RATE_WORDS.get(key)


def normal_unit(text: str) -> str:
    """A unit as we write it: `img/sec` is images/s, `seconds` is s."""
    text = text.strip()
    if text in UNIT_SPELLINGS:
        return UNIT_SPELLINGS[text]
    if text.casefold() in UNIT_SPELLINGS:
        return UNIT_SPELLINGS[text.casefold()]
    key = _key(text)
    if key in _TIME_WORDS:
        return _TIME_WORDS[key]
    match = _RATE_NAME.fullmatch(key)
    return f"{_COUNTED[match[1]]}/s" if match else text


def _say(
    header: Sequence[str], fields: Mapping[str, int], params: Mapping[str, int], unit: str | None
) -> Iterator[str]:
    for one, i in fields.items():
        in_unit = f" in {normal_unit(unit)}" if one in ("rate", "time") and unit and "unit" not in fields else ""
        yield f"{header[i][:80]} as {FIELDS[one]}{in_unit}"
    for name, i in params.items():
        yield f"{header[i][:80]} as the parameter {name}"
