"""Import tables of DeepBench: one row per kernel, times in whole microseconds (all-reduce: milliseconds).

Each timed call is a run of its own: the three passes of a convolution were timed one after the other and mean three
things. The figure is what DeepBench's own sheets give besides the time: operations over time for GEMM, convolution and RNN,
by its own counts (2mnk; 2·N·K·P·Q·C·R·S; two a weight of the recurrent matrix and time step). For all-reduce it is bytes
over time: the sheets' own figure is that times the ranks, which is no bandwidth of anything.
"""

import re
from dataclasses import dataclass, replace

from stackmark.events import Figure
from stackmark.ledger.importers.found import BadNumber, Failure, Found, Line, cut_line, number
from stackmark.spec import Scalar

FORMAT = "deepbench"
TITLE = "DeepBench (gemm_bench, conv_bench, rnn_bench, all-reduce)"
MARK = re.compile(
    r"m\s+n\s+k\s+a_t\s+b_t\s+.*time \(usec\)|f_w\s+f_h\s+pad_w\s+pad_h\s+stride_w|type\s+hidden\s+N\s+timesteps"
    r"|# of floats\s+bytes transferred"
)

_N = r"(\d{1,12})\s+"
_ROWS = {
    "gemm": re.compile(rf"(?:^|\s){_N * 3}([01])\s+([01])\s+([a-z]\w*)\s+(\S+|Not Supported)(?:\s+[01])?\s*$", re.A),
    "conv": re.compile(rf"(?:^|\s){_N * 11}([a-z]\w*)\s+(Not Supported|\S+)((?:\s+\S+)*)\s*$", re.A),
    "rnn": re.compile(rf"(?:^|\s)(vanilla|lstm|gru)\s+{_N * 3}(\S.*)$", re.A),
    "all-reduce": re.compile(rf"(?:^|\s){_N * 2}(\S+)(?:\s+(\S+))?\s*$", re.A),
}
_HEADS = {
    "gemm": re.compile(r"m\s+n\s+k\s+a_t\s+b_t\s"),
    "conv": re.compile(r"f_w\s+f_h\s+pad_w\s+pad_h"),
    "rnn": re.compile(r"type\s+hidden\s+N\s+timesteps"),
    "all-reduce": re.compile(r"# of floats\s+bytes transferred"),
}
_RANKS = re.compile(r"Num Ranks:\s*([0-9]{1,6})\s*$")
_SET = re.compile(r"Running (training|inference) benchmark")
# Its own words, and those of ours that it has none for (`stackmark run op/gemm --format deepbench`).
_PRECISIONS = {
    "float": "fp32",
    "half": "fp16",
    "int8": "int8",
    "bf16": "bf16",
    "tf32": "tf32",
    "fp64": "fp64",
    "fp8": "fp8",
}
# Operations a weight and time step of the recurrent matrices: one matrix, four gates, three gates; multiply and add.
_RNN_OPERATIONS = {"vanilla": 2, "lstm": 8, "gru": 6}
# No single device of any year does an exaflop a second, or moves a petabyte in it.
FASTEST = 1e6
_PASSES = ("forward", "backward-inputs", "backward-weights")


@dataclass(frozen=True)
class _Call:
    """One timed call."""

    workload: str
    params: dict[str, Scalar]
    text: str
    what: str
    operations: float | None = None
    bytes_moved: int = 0


class DeepBenchImporter:
    def __init__(self) -> None:
        self._table: str | None = None
        self._head: list[Line] = []
        self._set = ""
        self._ranks = 1
        self._rows = 0

    def feed(self, line: Line) -> list[Found]:
        text = line.text
        for name, head in _HEADS.items():
            if head.search(text):
                ended = self.end()
                self._table, self._rows = name, 0
                self._head = [*self._head[-1:], cut_line(line)]
                return ended
        if match := _SET.search(text) or _RANKS.search(text):
            ended = self.end()
            self._table, self._head = None, [cut_line(line)]
            if match.re is _SET:
                self._set = match[1]
            else:
                self._ranks = max(int(match[1]), 1)
            return ended
        row = _ROWS[self._table].search(text) if self._table else None
        if row is None:
            return []
        self._rows += 1
        return [self._found(call, line) for call in _calls(self._table or "", row, self._set)]

    def end(self) -> list[Found]:
        """Report a table with a header but no rows: the program died in its first kernel."""
        if self._table is None or self._rows:
            return []
        failure = Failure(
            "cut_off", "the table has a header but no rows", "did the program print more to standard error?"
        )
        table, self._table = self._table, None
        return [Found(f"op/{table}", {}, FORMAT, failure=failure, lines=tuple(self._head))]

    def _found(self, call: _Call, line: Line) -> Found:
        ranks = self._ranks if call.workload == "op/all-reduce" else 1
        common = Found(
            workload=call.workload,
            params={**call.params, **({"set": self._set} if self._set else {})},
            program=FORMAT,
            ranks=ranks,
            sample="call",
            operations_per_sample=call.operations or None,
            lines=(*self._head, cut_line(line)),
        )
        if call.text == "Not Supported":
            failure = Failure("not_supported", f"line {line.number}: the library does not support this kernel")
            return _with(common, failure=failure)
        unit_s = 1e-3 if call.workload == "op/all-reduce" else 1e-6
        try:
            seconds = number(call.text, line, call.what) * unit_s
        except BadNumber as error:
            hint = "DeepBench prints whole microseconds: shorter calls have no time" if call.text == "0" else ""
            return _with(common, failure=Failure(error.kind, str(error), hint))
        if call.operations is None:
            value, unit = call.bytes_moved / seconds / 1e9, "GB/s"
        else:
            value, unit = call.operations / seconds / 1e12, "TFLOP/s"
        if not 0 < value < FASTEST:
            said = f"line {line.number}: this shape in this time would be {value:.3g} {unit}"
            return _with(common, failure=Failure("bad_number", said, "is the line complete?"))
        return _with(common, figure=Figure(name=call.what, value=value, unit=unit), wall_s=seconds)


def _with(
    found: Found, figure: Figure | None = None, failure: Failure | None = None, wall_s: float | None = None
) -> Found:
    return replace(found, figure=figure, failure=failure, wall_s=wall_s)


def _calls(table: str, row: re.Match[str], kind: str) -> list[_Call]:
    if table == "gemm":
        return [_gemm(row)]
    if table == "conv":
        return _conv(row, kind)
    if table == "rnn":
        return _rnn(row, kind)
    floats, size = int(row[1]), int(row[2])
    params: dict[str, Scalar] = {"floats": floats, "precision": "fp32"}
    # Of several processes the slowest is when the collective is done; the first column is their mean.
    text, what = (row[4], "the longest time") if row[4] else (row[3], "the time")
    return [_Call("op/all-reduce", params, text, what, bytes_moved=size)]


def _gemm(row: re.Match[str]) -> _Call:
    m, n, k = (int(row[i]) for i in (1, 2, 3))
    params: dict[str, Scalar] = {"m": m, "n": n, "k": k, "a_t": row[4] == "1", "b_t": row[5] == "1"}
    params["precision"] = _PRECISIONS.get(row[6], row[6])
    return _Call("op/gemm", params, row[7], "the time", operations=2.0 * m * n * k)


def _conv(row: re.Match[str], kind: str) -> list[_Call]:
    names = ("w", "h", "c", "n", "k", "filter_w", "filter_h", "pad_w", "pad_h", "stride_w", "stride_h")
    shape = {name: int(row[i + 1]) for i, name in enumerate(names)}
    w, h, c, n, k, s, r, pad_w, pad_h, stride_w, stride_h = shape.values()
    out_w = (w + 2 * pad_w - s) // max(stride_w, 1) + 1
    out_h = (h + 2 * pad_h - r) // max(stride_h, 1) + 1
    operations = 2.0 * n * k * out_w * out_h * c * r * s
    times = [row[13]]
    if row[13] != "Not Supported" and kind != "inference":
        times += row[14].split()[:2]
    common: dict[str, Scalar] = {**shape, "precision": _PRECISIONS.get(row[12], row[12])}
    return [
        _Call("op/conv", {**common, "pass": name}, text, f"the {name} time", operations=operations)
        for name, text in zip(_PASSES, times, strict=False)
    ]


def _rnn(row: re.Match[str], kind: str) -> list[_Call]:
    hidden, batch, steps = (int(row[i]) for i in (2, 3, 4))
    rest = row[5].split()
    common: dict[str, Scalar] = {"cell": row[1], "hidden": hidden, "batch": batch, "timesteps": steps}
    if rest and rest[0] in _PRECISIONS:
        common["precision"] = _PRECISIONS[rest.pop(0)]
    # The first versions timed one backward pass: that by the inputs.
    times = rest[:1] if kind == "inference" else rest[:3]
    operations = float(_RNN_OPERATIONS[row[1]]) * hidden * hidden * batch * steps
    return [
        _Call("op/rnn", {**common, "pass": name}, text, f"the {name} time", operations=operations)
        for name, text in zip(_PASSES, times, strict=False)
    ]
