"""Suites for tests of what is made from them: of experiments recorded on an H200, and made ones of any size.

The made ones have rates drawn with a fixed seed; their ratios, intervals and words come from the code that judges real
experiments (verdict/ratio.py, verdict/suite.py).
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import examined_sample as sample
from recorded import load
from stackmark.experiments.examine import examine
from stackmark.ledger.store import Ledger
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import Examined
from stackmark.verdict.ratio import compare_blocks
from stackmark.verdict.suite import (
    Mark,
    SuiteAxis,
    SuiteCell,
    SuiteResult,
    SuiteRow,
    against_reference,
    cells_of,
    decide_together,
)
from stackmark.verdict.throughput import throughput_over_runs

T0 = sample.T0
PLACES = ("host", "container", "pod")
SUITE_ID = "x-01m8s00000000000000000000s"
OUT_OF_MEMORY = ("oom", "CUDA out of memory: tried to allocate 20.00 GiB", "use a smaller --batch")


def suite(rows: Sequence[SuiteRow], axes: Sequence[SuiteAxis], **changes: object) -> SuiteResult:
    """A suite that compares places with the host, unless `changes` say otherwise."""
    made = SuiteResult(
        experiment_id=SUITE_ID, name="gpu-server", title="Does a container cost anything on this server?",
        command="stackmark suite run gpu-server", created_unix_s=T0, ended_unix_s=T0 + 5400.0, axes=tuple(axes),
        compared="place", reference="host", arms=("host", "container"), columns=(), margin=0.01, blocks=6, rows=tuple(rows),
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


# --- recorded ----------------------------------------------------------------------------------------------------------------


def recorded(folder: Path, names: Sequence[str]) -> list[Examined]:
    """Experiments of tests/data, examined."""
    with Ledger.open(str(folder / "suite.sqlite3")) as book:
        return [examine(book, load(book, name)) for name in names]


def recorded_suite(folder: Path) -> SuiteResult:
    """Three models' rows of one H200: two that were measured, one whose pod failed, one open, one that waits."""
    plain, images = recorded(folder, ["h200_host_container_pod", "h200_images"])
    failed = sample.with_failed_run()
    measured = [(plain, "stackmark", "resnet50_v1.5"), (images, "vendor", "resnet50_v1.5")]
    pairs = [against_reference(one, 0) for one, _, _ in measured]
    decided = decide_together([pair for found in pairs for pair in found])
    rows = []
    for number, (examined, image, name) in enumerate(measured):
        mine = decided[2 * number : 2 * number + 2]
        cells = cells_of(examined, PLACES, "host", mine)
        rows.append(_row(number, f"train/{name}", {"image": image}, cells, examined.experiment_id, examined))
    host = SuiteCell("host", throughput_over_runs(sample.HOST), "images/s", is_reference=True, chip=sample.H200)
    broken = [replace(_no_number(place, "failed", *OUT_OF_MEMORY)) for place in PLACES[1:]]
    rows.append(_row(2, "train/vgg16", {"image": "stackmark"}, [host, *broken], failed.experiment_id, failed))
    one_run = SuiteCell(
        "container", throughput_over_runs(sample.CONTAINER[:1]), "images/s", marks=("disturbed", "one-run", "open"),
        chip=sample.H200,
    )  # fmt: skip
    begun = [replace(host, marks=("disturbed", "open")), one_run, _no_number("pod", "open")]
    rows.append(_row(3, "train/vgg16", {"image": "vendor"}, begun, "x-01m8s00000000000000000000t", None, "open"))
    waiting = [_no_number(place, "open") for place in PLACES]
    rows.append(_row(4, "train/inception3", {"image": "stackmark"}, waiting, None, None, "waiting"))
    axes = [
        SuiteAxis("workload", ("train/resnet50_v1.5", "train/vgg16", "train/inception3")),
        SuiteAxis("image", ("stackmark", "vendor")),
        SuiteAxis("place", PLACES),
    ]
    return suite(rows, axes, arms=PLACES, ended_unix_s=None, missing=("training to quality cannot be measured yet",))


def _row(
    number: int, workload: str, values: Mapping[str, str], cells: Sequence[SuiteCell], id_: str | None,
    examined: Examined | None, state: str = "done",
) -> SuiteRow:  # fmt: skip
    return SuiteRow(number, workload, values, tuple(cells), state, id_, examined)  # type: ignore[arg-type]


def _no_number(place: str, mark: Mark, kind: str = "", message: str = "", hint: str = "") -> SuiteCell:
    return SuiteCell(place, marks=(mark,), failure_kind=kind, failure=message, hint=hint, is_reference=place == "host")


# --- made --------------------------------------------------------------------------------------------------------------------


def rates(middle: float, spread: float, blocks: int, dice: random.Random) -> list[float]:
    return [middle * math.exp(dice.gauss(0, spread)) for _ in range(blocks)]


def made(
    workloads: Sequence[str],
    arms: Mapping[str, float],
    *,
    precisions: Sequence[str] = ("bf16",),
    level: Mapping[str, float] | None = None,
    change: Mapping[tuple[str, str], float] | None = None,
    units: Mapping[str, str] | None = None,
    spread: float = 0.0005,
    blocks: int = 6,
    seed: int = 1,
    pages: bool = False,
    **changes: object,
) -> SuiteResult:
    """A whole suite: `arms` with their usual ratio to the first, `change` for single cells, by row name's workload and arm."""
    dice = random.Random(seed)
    reference = next(iter(arms))
    rows: list[SuiteRow] = []
    pairs: list[Comparison] = []
    for workload in workloads:
        for precision in precisions:
            middle = (level or {}).get(workload, 4800.0) * (0.4 if precision == "fp32" else 1.0)
            drawn = {
                arm: rates(middle * (change or {}).get((workload, arm), ratio), spread, blocks, dice)
                for arm, ratio in arms.items()
            }
            logs = {arm: [math.log(rate) for rate in found] for arm, found in drawn.items()}
            found = [compare_blocks(reference, arm, logs[reference], logs[arm], 0.01) for arm in list(arms)[1:]]
            pairs += found
            unit = (units or {}).get(workload, "images/s")
            cells = [
                SuiteCell(arm, throughput_over_runs(drawn[arm]), unit, is_reference=arm == reference, chip=sample.H200)
                for arm in arms
            ]
            number = len(rows)
            examined = page_of(workload, drawn, number) if pages else None
            rows.append(_row(number, workload, {"precision": precision}, cells, f"x-01m8s{number:021d}", examined))
    decided = iter(decide_together(pairs))
    judged = [
        replace(row, cells=tuple(cell if cell.is_reference else replace(cell, comparison=next(decided)) for cell in row.cells))
        for row in rows
    ]  # fmt: skip
    axes = [
        SuiteAxis("workload", tuple(workloads)),
        SuiteAxis("precision", tuple(precisions)),
        SuiteAxis(str(changes.get("compared", "place")), tuple(arms)),
    ]
    return suite(judged, axes, arms=tuple(arms), reference=reference, blocks=blocks, **changes)


def page_of(workload: str, drawn: Mapping[str, Sequence[float]], number: int) -> Examined:
    """An experiment of these rates, with step times: as large as a real one."""
    base = sample.sample_examined()
    arms = [sample.arm(index, "host", found, label) for index, (label, found) in enumerate(drawn.items())]
    runs = [
        sample.run(arm, block, rate, "host", block * len(drawn) + arm)
        for arm, found in enumerate(drawn.values())
        for block, rate in enumerate(found)
    ]
    first, *others = drawn
    pairs = [sample.compared(first, drawn[first], other, drawn[other], 0.01) for other in others]
    return replace(
        base, experiment_id=f"x-01m8s{number:021d}", workload=workload, arms=tuple(arms), runs=tuple(runs),
        comparisons=tuple(pairs),
    )  # fmt: skip


def two() -> SuiteResult:
    """The smallest: one workload, two arms."""
    return made(["train/resnet50"], {"host": 1.0, "container": 0.9995})


def twelve() -> SuiteResult:
    """Twelve rows of three places, of which one is slower in the pod, one faster, and one cannot be decided."""
    models = [
        "train/resnet50",
        "train/vgg16",
        "train/inception3",
        "train/alexnet",
        "train/mobilenet_v2",
        "train/bert_base",
    ]
    level = dict(zip(models, (4800.0, 2100.0, 3300.0, 15_200.0, 9_100.0, 870.0), strict=True))
    whole = made(
        models, {"host": 1.0, "container": 0.9998, "pod": 0.9995}, precisions=("bf16", "fp32"), level=level,
        units={"train/bert_base": "sequences/s"},
        change={("train/vgg16", "pod"): 0.969, ("train/alexnet", "container"): 1.034, ("train/inception3", "pod"): 0.9905},
    )  # fmt: skip
    rows = list(whole.rows)
    rows[1] = _marked(rows[1], "disturbed")
    return replace(whole, rows=tuple(rows))


def _marked(row: SuiteRow, mark: Mark) -> SuiteRow:
    return replace(row, cells=tuple(replace(cell, marks=(*cell.marks, mark)) for cell in row.cells))


def forty(*, pages: bool = False) -> SuiteResult:
    """Forty rows of four arms with long names."""
    models = [f"train/a_network_with_a_rather_long_name_number_{number}" for number in range(20)]
    arms = {
        "host": 1.0,
        "container,image=registry.example/vendor/pytorch:26.10": 1.0,
        "pod": 0.998,
        "pod,cpus=0.5": 0.6,
    }
    return made(models, arms, precisions=("bf16", "fp32"), pages=pages, change={(models[3], "pod"): 0.95})


def uncompared() -> SuiteResult:
    """Nothing compared: batch sizes and precisions of one workload, and a program's own time; one failed."""
    dice = random.Random(7)
    rows: list[SuiteRow] = []
    for batch in ("32", "64", "1024"):
        for precision in ("bf16", "fp32"):
            rate = throughput_over_runs(rates(1000.0 * math.log2(float(batch)), 0.004, 4, dice))
            cell = SuiteCell("", rate, "images/s", chip=sample.H200)
            if (batch, precision) == ("1024", "fp32"):
                cell = SuiteCell(
                    "", marks=("failed",), failure_kind="oom", failure=OUT_OF_MEMORY[1], hint=OUT_OF_MEMORY[2]
                )
            values = {"batch": batch, "precision": precision}
            rows.append(_row(len(rows), "train/resnet50", values, [cell], f"x-01m8s{len(rows):021d}", None))
    axes = [
        SuiteAxis("workload", ("train/resnet50",)),
        SuiteAxis("batch", ("32", "64", "1024")),
        SuiteAxis("precision", ("bf16", "fp32")),
    ]
    return suite(rows, axes, compared="", reference="", arms=("",), name="run", title="", blocks=4)


def chips() -> SuiteResult:
    """Ratios of factors, in seconds: a chip against another, each with one run or few."""
    return made(
        ["fit/ssd", "train/resnet50"], {"P100": 1.0, "V100": 2.41}, units={"fit/ssd": "1/s", "train/resnet50": "1/s"},
        level={"fit/ssd": 0.01, "train/resnet50": 0.0005}, spread=0.02, compared="chip", name="chips",
    )  # fmt: skip


def hostile() -> SuiteResult:
    """Names and messages that try to be markup, formulas and control sequences."""
    attack = "=1+1</td><script>alert(1)</script>|`*\x1b[31m\u202e\"'&"
    whole = made([f"train/{attack}", "=cmd|' /C calc'!A0"], {"host": 1.0, attack: 0.95}, title=attack, name=attack)
    rows = list(whole.rows)
    cells = list(rows[1].cells)
    cells[1] = SuiteCell(attack, marks=("failed",), failure_kind="@kind", failure=attack, hint=f"-{attack}")
    rows[1] = replace(rows[1], cells=tuple(cells))
    return replace(whole, rows=tuple(rows), missing=(attack,), stopped=attack)


def comparison_of(result: SuiteResult, row: int, cell: int) -> Comparison:
    found = result.rows[row].cells[cell].comparison
    assert found
    return found
