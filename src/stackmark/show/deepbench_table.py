"""DeepBench's own tables: its columns, units and order, for the scripts that read them.

Times are cut to whole microseconds as the original cuts them (all-reduce: milliseconds), so a call below one microsecond is 0.
What the original prints is a mean of N calls in a row, and ours is the median: of a chip that is not disturbed they are the same.
Its words for precisions are `float`, `half` and `int8`; those that it did not know have our names.

A problem that failed is not in the table: it has no word for that but `Not Supported`, which would not be true. Of a training
set a line has all passes of a shape and their sum; a shape of which one is missing is left out, and said, since a 0 in its
place would be a time. sparse_bench printed a table like that of gemm_bench with a column for the sparsity; no output of it is
known to us, so there is none here.
"""

from collections.abc import Callable, Mapping, Sequence

from stackmark.show.list_formats import ListFormat, ListTable
from stackmark.spec import Scalar, Spec
from stackmark.verdict.operators import ListResult, RowResult
from stackmark.workloads.op.lists import FIRST_LAYER_CHANNELS, TRAINING
from stackmark.workloads.op.problem import say_rows

WORDS = {"fp32": "float", "fp16": "half", "int8": "int8"}
PASSES = ("forward", "backward-inputs", "backward-weights")


def deepbench_table(spec: Spec, result: ListResult) -> ListTable:
    """Lay out the whole list, head and rows, and say which rows are in no line."""
    set_name = str(spec.params.get("set"))
    training = _is_training(set_name, result)
    text = "\n".join(TABLES[spec.workload](result.good, training))
    if rows := _left_out(result, training):
        numbers = say_rows(row.index for row in rows)
        because = "because a line has all passes of a shape, and others of theirs gave no time"
        return ListTable(text, (f"not in the table: {numbers}, {because}",))
    return ListTable(text)


def _left_out(result: ListResult, training: bool) -> list[RowResult]:
    """Return the rows with a time that are in no line, because another pass of their shape has none."""
    rows = [row for row in result.good if "pass" in row.shape]
    return [row for shape, passes in _by_shape(rows) if not _whole(shape, passes, training) for row in passes.values()]


def _is_training(set_name: str, result: ListResult) -> bool:
    return set_name == TRAINING or any(row.shape.get("pass") in PASSES[1:] for row in result.good)


def _whole(shape: Mapping[str, Scalar], passes: Mapping[str, RowResult], training: bool) -> bool:
    """A first layer (one or three channels) has no pass by inputs: the original prints 0 there."""
    wanted = set(PASSES if training else PASSES[:1])
    return set(passes) >= (wanted - {PASSES[1]} if shape.get("c") in FIRST_LAYER_CHANNELS else wanted)


def _head(training: bool, rule: int) -> list[str]:
    kind = f"{'Running training benchmark ':>45}" if training else f"{'Running inference benchmark ':>45}"
    return [kind, f"{'Times':>30}", "-" * rule]


def _gemm(rows: Sequence[RowResult], training: bool) -> list[str]:
    lines = [*_head(training, 88), "    m       n      k      a_t     b_t      precision        time (usec) "]
    for row in rows:
        m, n, k = (row.shape[name] for name in ("m", "n", "k"))
        a_t, b_t = (int(bool(row.shape.get(name))) for name in ("a_t", "b_t"))
        lines.append(f"{m:>7}{n:>7}{k:>7}{a_t:>7}{b_t:>7}{_word(row):>13}{_microseconds(row):>20}")
    return lines


def _conv(rows: Sequence[RowResult], training: bool) -> list[str]:
    head = "   w      h      c      n      k      f_w    f_h  pad_w  pad_h    stride_w  stride_h    precision  fwd_time (usec)  "
    if training:
        head += "bwd_inputs_time (usec)  bwd_params_time (usec)  total_time (usec)   fwd_algo "
    lines = [*_head(training, 190), head, "-" * 200]
    names = ("w", "h", "c", "n", "k", "filter_w", "filter_h", "pad_w", "pad_h", "stride_w", "stride_h")
    widths = (5, *[7] * 7, 8, 10, 10)
    for shape, passes in _by_shape(rows):
        if not _whole(shape, passes, training):
            continue
        numbers = "".join(f"{shape[name]:>{width}}" for name, width in zip(names, widths, strict=True))
        line = f"{numbers}{_word(passes[PASSES[0]]):>10}{_microseconds(passes[PASSES[0]]):>15}"
        if training:
            times = [_microseconds(passes[name]) if name in passes else 0 for name in PASSES]
            line += f"{times[1]:>24}{times[2]:>24}{sum(times):>19}{_algorithm(passes[PASSES[0]]):>25}"
        lines.append(line)
    return lines


def _rnn(rows: Sequence[RowResult], training: bool) -> list[str]:
    head = "    type    hidden   N     timesteps      precision      fwd_time (usec)"
    if training:
        head += "   bwd_inputs_time (usec)   bwd_params_time (usec)"
    lines = [*_head(training, 88), head]
    for shape, passes in _by_shape(rows):
        if not _whole(shape, passes, training):
            continue
        line = f"{shape['cell']:>8}{shape['hidden']:>8}{shape['batch']:>8}{shape['timesteps']:>8}"
        line += f"{_word(passes[PASSES[0]]):>14}{_microseconds(passes[PASSES[0]]):>18}"
        if training:
            line += "".join(f"{_microseconds(passes[name]):>18}" for name in PASSES[1:])
        lines.append(line)
    return lines


def _all_reduce(rows: Sequence[RowResult], _training: bool) -> list[str]:
    lines: list[str] = []
    ranks: Scalar = None
    for row in rows:
        if row.shape["ranks"] != ranks:
            ranks = row.shape["ranks"]
            rule = "-" * 75
            lines += [" NCCL AllReduce ", f" Num Ranks: {ranks}", rule]
            lines += ["    # of floats    bytes transferred    Time (msec)   ", rule]
        floats = int(str(row.shape["floats"]))
        lines.append(f"{floats:>15}{4 * floats:>15}{1e3 * (row.seconds or 0):>20.6g}")
    return lines


# By workload: how its table is written, from its good rows and whether they are of training.
TABLES: dict[str, Callable[[Sequence[RowResult], bool], list[str]]] = {
    "op/gemm": _gemm,
    "op/conv": _conv,
    "op/rnn": _rnn,
    "op/all-reduce": _all_reduce,
}


DEEPBENCH = ListFormat("DeepBench", deepbench_table, tuple(TABLES))


def _word(row: RowResult) -> str:
    return WORDS.get(row.precision, row.precision)


def _microseconds(row: RowResult) -> int:
    return int((row.seconds or 0) * 1e6)


def _algorithm(row: RowResult) -> str:
    """The library's own word, where it tells; one word, since the table has columns."""
    return "_".join(row.kernels[0].split())[:40] if row.kernels else "UNKNOWN"


def _by_shape(rows: Sequence[RowResult]) -> list[tuple[Mapping[str, Scalar], dict[str, RowResult]]]:
    """The passes of one shape, which stand next to each other in a list and in one row of the original."""
    found: list[tuple[Mapping[str, Scalar], dict[str, RowResult]]] = []
    for row in rows:
        shape = {name: value for name, value in row.shape.items() if name != "pass"}
        name = str(row.shape["pass"])
        if not found or found[-1][0] != shape or name in found[-1][1]:
            found.append((shape, {}))
        found[-1][1][name] = row
    return found
