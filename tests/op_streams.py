"""Streams of workers that went through a list, made by hand: rows with known times, cut off or whole, for any operator."""

from collections.abc import Iterable, Sequence
from typing import Any

from stackmark.events import Event, Facts, Failed, Figure, Hello, OpRow, Phase, Probe, Result, Row, Steps, write_event
from stackmark.medians import median_of
from stackmark.model import JsonValue
from stackmark.spec import Scalar, Spec
from stackmark.workloads.op.definition import least_bytes, operations, problems
from stackmark.workloads.op.problem import read_rows

CHIP = "NVIDIA H200"


def op_spec(op: str = "gemm", rows: str = "0-4", set_name: str = "training", **more: Scalar) -> Spec:
    params: dict[str, Scalar] = {
        "device": "cuda:0", "seed": 1, "precision": "fp32", "set": set_name, "rows": rows, "m": 0, "n": 0, "k": 0,
        "a_t": False, "b_t": False, "shape": "", "budget": 0.0, "row_seconds": 0.5, "threads": 0,
    }  # fmt: skip
    return Spec(workload=f"op/{op}", params={**params, **more})


def op_row(spec: Spec, index: int, seconds: float = 1e-3, samples: int = 21, **more: Any) -> OpRow:
    """A row whose samples lie within ±1 % around their median."""
    op, params = spec.workload.removeprefix("op/"), spec.params
    problem = problems(op, str(params["set"]))[index]
    precision = str(params["precision"])
    row = OpRow(
        index=index,
        op=op,
        shape=dict(problem.shape),
        precision=precision,
        accumulate="fp32",
        operations=operations(problem),
        least_bytes=least_bytes(problem, precision),
        call_s=[seconds * (1 + 0.02 * (i / max(samples - 1, 1) - 0.5)) for i in range(samples)],
        first_call_s=0.01,
        launched="graph",
        copies=4,
        error=1e-6,
        error_bound=1e-5,
        checked="all elements",
        kernel="sm90_xmma_gemm",
    )
    return row.model_copy(update=more)


NO_ROOM = "its operands take 5 TiB, and 139 GiB are free"


def failed_row(spec: Spec, index: int, message: str = NO_ROOM) -> OpRow:
    return op_row(spec, index).model_copy(
        update={
            "call_s": [], "first_call_s": None, "error": None, "failure_kind": "out_of_device_memory",
            "failure_message": message, "failure_hint": "take a smaller problem",
        }
    )  # fmt: skip


def rows_for(spec: Spec, seconds: float = 1e-3, failed: Iterable[int] = ()) -> list[OpRow]:
    """All rows of a spec; each takes a little longer than the one before."""
    bad = set(failed)
    numbers = read_rows(str(spec.params["rows"]), 10**6)
    return [failed_row(spec, i) if i in bad else op_row(spec, i, seconds * (1 + i / 10)) for i in numbers]


def _numbered(parts: Sequence[Event]) -> list[str]:
    hello = Hello(seq=0, t=0, time_unix_s=1.0, pid=1)
    return [
        write_event(part.model_copy(update={"seq": seq, "t": float(seq)})) for seq, part in enumerate((hello, *parts))
    ]


def _facts() -> list[Event]:
    gpu: dict[str, JsonValue] = {"under_test": "GPU-1", "devices": [{"uuid": "GPU-1", "name": CHIP}]}
    return [
        Facts(seq=0, t=0, subject="gpu", facts=gpu),
        Facts(seq=0, t=0, subject="software", facts={"torch": {"version": "2.11.0"}}),
        Facts(seq=0, t=0, subject="op", facts={"cache_bytes": 2**26}),
    ]


def _begun(rows: Sequence[OpRow], of: int) -> list[Event]:
    return [
        *_facts(),
        Phase(seq=0, t=0, phase="measure", state="begin", expected_steps=of),
        *(Row(seq=0, t=0, row=row, done=number, of=of) for number, row in enumerate(rows, 1)),
    ]


def list_stream(rows: Sequence[OpRow], **more: Any) -> list[str]:
    """A whole run of these rows."""
    good = [row for row in rows if not row.failure_kind]
    seconds = sum(median_of(row.call_s).value for row in good)
    by_bytes = any(not row.operations for row in good)
    amount = sum((row.least_bytes if by_bytes else row.operations) or 0 for row in good)
    scale, unit = (1e9, "GB/s") if by_bytes else (1e12, "TFLOP/s")
    failed = len(rows) - len(good)
    return _numbered(
        [
            *_begun(rows, len(rows)),
            Steps(seq=0, t=0, phase="measure", first=0, step_s=[1.0]),
            Result(
                seq=0, t=0, sample="run", samples_per_step=1, steps=1, wall_s=1.0, tick_s=1e-9, rows=len(rows),
                figure=Figure(name="over the list", value=amount / seconds / scale, unit=unit), rows_failed=failed,
                flags=[f"rows-failed: {failed} of {len(rows)} rows gave no number"] if failed else [], **more,
            ),
        ]
    )  # fmt: skip


def cut_stream(rows: Sequence[OpRow], of: int, failed: Failed | None = None) -> list[str]:
    """A run that ended after these rows: without a word, or with one."""
    return _numbered([*_begun(rows, of), *([failed] if failed else [])])


def probe_stream(spec: Spec, **choices: str) -> list[str]:
    return _numbered([Probe(seq=0, t=0, spec=spec, choices=choices)])
