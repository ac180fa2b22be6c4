"""Examined experiments as the lab would hand them over, for tests of what is made from them.

The rates are like those that were measured by hand on one H200 (ResNet-50 training, bf16, batch 256; host, podman, pod:
the first five, four for the pod, are those); all the rest is made up. The ratio, its intervals and the word are computed
from the rates by the textbook, so that a report of it can be checked.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

from scipy.stats import t as student

from stackmark.spec import Scalar
from stackmark.verdict.comparison import Comparison, Difference, Interval, Needed, Word
from stackmark.verdict.examined import (
    CovariateLine,
    Examined,
    ExaminedArm,
    ExaminedRun,
    FactDifference,
    PublishedNeighbour,
)
from stackmark.verdict.published_pairs import PublishedPair, StackLine
from stackmark.verdict.throughput import throughput_over_runs

T0 = 1_763_190_000.0
BATCH = 256
H200, UUID = "NVIDIA H200", "GPU-5f1c1b4e-7f0a-2d3c-9a41-0c8e2f6d7b10"
HOST = (4738.58, 4731.13, 4741.80, 4734.45, 4741.02, 4737.66)
CONTAINER = (4731.88, 4724.03, 4728.26, 4740.60, 4722.52, 4729.90)
POD = (4730.55, 4738.56, 4703.43, 4731.50, 4726.01, 4729.12)
PARAMS: dict[str, Scalar] = {"device": "cuda:0", "batch": BATCH, "precision": "bf16", "tune": "fast", "data": "device"}
SETUPS = {
    "host": (
        ("start", 0.31),
        ("import", 4.12),
        ("device", 0.31),
        ("data", 0.02),
        ("model", 0.34),
        ("first step", 3.31),
    ),
    "container": (
        ("start", 0.88),
        ("import", 4.61),
        ("device", 0.33),
        ("data", 0.02),
        ("model", 0.36),
        ("first step", 12.9),
    ),
    "pod": (("start", 3.92), ("import", 5.03), ("device", 0.34), ("data", 0.03), ("model", 0.35), ("first step", 13.4)),
}


def steps(rate_per_s: float, count: int, warm_up: int, seed: int) -> tuple[float, ...]:
    """Step times whose steady part gives the rate exactly; the first `warm_up` are a tenth slower."""
    dice = random.Random(seed)
    raw = [1.1 * dice.gauss(1, 0.004) if index < warm_up else dice.gauss(1, 0.003) for index in range(count)]
    for index in range(warm_up + 37, count, 90):
        raw[index] *= 1.05  # a hiccup, as there are
    scale = BATCH / rate_per_s * (count - warm_up) / sum(raw[warm_up:])
    return tuple(value * scale for value in raw)


def run(
    arm: int, block: int | None, rate_per_s: float, place: str, order: int, count: int = 240, **changes: Any
) -> ExaminedRun:
    warm_up = 24 if order % 5 == 1 and count > 50 else 0
    began = T0 + order * 31.0
    made = ExaminedRun(
        run_id=f"r-01m8{order:022d}", arm=arm, block=block, attempt=0, role="measured", status="done", counted=True,
        started_unix_s=began, ended_unix_s=began + 24.0, rate_per_s=rate_per_s, steady="warm-up" if warm_up else "flat",
        first_step=warm_up, step_s=steps(rate_per_s, count, warm_up, order), start_s=SETUPS[place][0][1],
        setup=SETUPS[place][1:], covariates={"clock_mhz": 1980.0, "temperature_c": 51.0 + order * 0.2},
        flags=(), failure_kind=None, failure_message=None, failure_hint=None, chip=H200, chip_uuid=UUID,
    )  # fmt: skip
    return replace(made, **changes)


def arm(index: int, place: str, rates: Sequence[float], label: str = "", **changes: Any) -> ExaminedArm:
    made = ExaminedArm(
        index=index, label=label or place, place=place, place_options={} if place == "host" else {"cpus": 8, "memory": "32g"},
        typed={}, params=PARAMS, throughput=throughput_over_runs(rates) if rates else None, unit="images/s",
        steadiness=(("flat", len(rates) - 1), ("warm-up", 1)) if len(rates) > 1 else (("flat", len(rates)),),
        setup=SETUPS[place], facts={"gpu": {"driver": "570.86.15"}}, chip=H200,
    )  # fmt: skip
    return replace(made, **changes)


def compared(
    a: str, rates_a: Sequence[float], b: str, rates_b: Sequence[float], margin: float, family: int = 1
) -> Comparison:
    """Blocks of one run of each: METHOD's formulas, with SciPy's t."""
    logs = [math.log(y / x) for x, y in zip(rates_a, rates_b, strict=True)]
    middle, sd, n = mean(logs), stdev(logs), len(logs)
    intervals = [
        Interval(math.exp(middle - reach), math.exp(middle + reach), confidence)
        for confidence in (0.90, 0.95)
        for reach in [float(student.ppf(0.5 + confidence / 2, n - 1)) * sd / math.sqrt(n)]
    ]
    narrow, wide = intervals
    low, high = 1 - margin, 1 / (1 - margin)
    word: Word = "INCONCLUSIVE"
    if low < narrow.low and narrow.high < high:
        word = "EQUIVALENT"
    elif narrow.high < low or narrow.low > high:
        word = "SLOWER" if narrow.high < low else "FASTER"
    difference: Difference | None = "slower" if wide.high < 1 else "faster" if wide.low > 1 else None
    return Comparison(
        a=a, b=b, kind="blocks", count_a=n, count_b=n, ratio=math.exp(middle), interval_90=narrow, interval_95=wide, sd_log=sd,
        margin=margin, word=word, difference=difference, p_equivalence=0.0004, p_difference=0.08,
        needed=Needed(14, "14 blocks in all would decide at this margin") if word == "INCONCLUSIVE" else None,
        sentence=_sentence(a, b, math.exp(middle), word, margin, difference, wide), family=family,
    )  # fmt: skip


def _sentence(a: str, b: str, ratio: float, word: Word, margin: float, difference: str | None, wide: Interval) -> str:
    by = sorted(abs(100 * (edge - 1)) for edge in (wide.low, wide.high))
    named = f", though {difference} by {by[0]:.2g} to {by[1]:.2g} %" if difference else ""
    if word == "EQUIVALENT":
        return f"{b} is equivalent to {a} within {100 * margin:g} %{named}."
    if word == "INCONCLUSIVE":
        return f"Whether {b} differs from {a} by more than {100 * margin:g} % is open; 14 blocks in all would decide."
    return f"{b} is {word.lower()} than {a}: {ratio:.3g} times its rate."


DIFFERENCES = (
    FactDifference("cgroup", "cpu.max", ("no limit", "8 CPUs"), "the container may use 8 of 16 CPUs; throttled 0 times", 60),
    FactDifference("cache", "CUDA_CACHE_PATH", ("warm", "empty at first"),
                   "compiled CUDA kernels are kept under the home folder, and an empty one costs some ten seconds a start", 55),
    FactDifference("memory", "/dev/shm", ("126 GiB", "64 MiB"), "data workers hand batches over in it; here none are used", 40),
    FactDifference("container", "seccomp", ("off", "filter"), "system calls are checked; a training step makes few", 10),
)  # fmt: skip
COVARIATES = (
    CovariateLine("SM clock", "MHz", (1980.0, 1980.0), ""),
    CovariateLine("temperature at the start", "°C", (51.4, 50.1), "the arm whose set-up takes longer starts cooler"),
    CovariateLine("power", "W", (641.0, 640.2)),
    CovariateLine("limited_power_cap_share", "share", (0.995, 0.994)),
    CovariateLine("steal_s", "s", (0.0, None)),
    CovariateLine("cgroup_throttled_times", "times", (0.0, 0.0)),
)
PUBLISHED = (
    PublishedNeighbour(3042.0, "images/s", "ResNet-50 v1.5, NVIDIA H100, mixed, batch 256", "NVIDIA deep learning examples",
                       "2023-05", "host", 4737.4 / 3042, ("H100 instead of H200", "DALI instead of no data")),
)  # fmt: skip


def sample_examined(*, blocks: int = 6, step_count: int = 240, margin: float = 0.01, **changes: Any) -> Examined:
    """Host against container on one H200; any field of Examined may be changed."""
    rates = [(HOST * blocks)[:blocks], (CONTAINER * blocks)[:blocks]]
    order = tuple((0, 1) if block % 2 == 0 else (1, 0) for block in range(blocks))
    runs = tuple(
        run(index, block, rates[index][block], ("host", "container")[index], block * 2 + turn, step_count)
        for block, pair in enumerate(order)
        for turn, index in enumerate(pair)
    )
    made = Examined(
        experiment_id="x-01m8h200c0nta1nerv5h0st0a1", kind="compare", state="done", state_sentence="all 6 blocks are complete",
        created_unix_s=T0 - 60, ended_unix_s=T0 + blocks * 62,
        command="stackmark compare train/resnet50_v1.5 --batch 256 --tune fast --seconds 5 --arm host --arm container --blocks 6",
        workload="train/resnet50_v1.5", title="ResNet-50 v1.5: training, stride 2 in the 3×3", sample="image", seed=20251115,
        margin=margin, blocks_planned=blocks, blocks_whole=blocks, blocks_repeated=0, order=order,
        arms=(arm(0, "host", rates[0]), arm(1, "container", rates[1])), runs=runs,
        comparisons=(compared("host", rates[0], "container", rates[1], margin),) if blocks > 1 else (),
        differences=DIFFERENCES, covariates=COVARIATES, published=PUBLISHED,
        scope="This GPU (NVIDIA H200, GPU-5f1c1b4e), this boot, 2025-11-15 from 07:00 to 07:06.",
        held=("The same GPU in every run.", "One cache folder for all arms, filled by one unmeasured run of each.",
              "The same kernels in every run (hash 4c1f0e).", "A pause of 3 s before each run."),
        not_held=("The clocks could not be locked: permission denied.",),
        method=("Each run is a fresh process; its rate is images divided by the sum of its steady step times.",
                "Blocks of one run of each arm, in the order AB BA AB BA.",
                "The ratio is the mean of the blocks' log ratios; the interval is Student's."),
        warnings=(),
    )  # fmt: skip
    return replace(made, **changes)


def slower_examined(**changes: Any) -> Examined:
    """The container was given one CPU, and the loop waits for its data."""
    slow = tuple(rate * 0.71 for rate in CONTAINER)
    base = sample_examined()
    runs = tuple(
        run(1, made.block, slow[made.block or 0], "container", number) if made.arm else made
        for number, made in enumerate(base.runs)
    )
    why = "one CPU decodes all images: throttled 312 times in a run"
    found = FactDifference("cgroup", "cpu.max", ("no limit", "1 CPU"), why, 95, shows_effect=True)
    made = replace(
        base, arms=(base.arms[0], arm(1, "container", slow, "container,cpus=1")), runs=runs,
        comparisons=(compared("host", HOST, "container,cpus=1", slow, 0.01),), differences=(found, *DIFFERENCES[1:]),
        warnings=("The arms' runs fell into different classes of steadiness.",),
    )  # fmt: skip
    return replace(made, **changes)


def three_arms(**changes: Any) -> Examined:
    rates = (HOST, CONTAINER, POD)
    places = ("host", "container", "pod")
    order = ((0, 1, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0), (0, 2, 1), (1, 0, 2))
    runs = tuple(
        run(index, block, rates[index][block], places[index], block * 3 + turn)
        for block, turns in enumerate(order)
        for turn, index in enumerate(turns)
    )
    found = (FactDifference("cgroup", "cpu.max", ("no limit", "8 CPUs", "8 CPUs"), "the pod has 8 of 16 CPUs", 60),)
    made = replace(
        sample_examined(), order=order, runs=runs, arms=tuple(arm(i, places[i], rates[i]) for i in range(3)),
        comparisons=(compared("host", HOST, "container", CONTAINER, 0.01, 2), compared("host", HOST, "pod", POD, 0.01, 2)),
        differences=found, covariates=(CovariateLine("SM clock", "MHz", (1980.0, 1980.0, 1965.0), "the pod ran cooler"),),
    )  # fmt: skip
    return replace(made, **changes)


def with_failed_run(**changes: Any) -> Examined:
    """The container of block 3 ran out of memory, and the block was repeated."""
    base = sample_examined()
    failed = replace(
        run(1, 2, 1.0, "container", 40), status="failed", counted=False, rate_per_s=None, steady=None, step_s=(),
        setup=SETUPS["container"][1:3], failure_kind="out_of_host_memory",
        failure_message="the kernel ended it: 32.0 GiB of 32.0 GiB were in use",
        failure_hint="give the container more with memory=48g",
    )  # fmt: skip
    primer = replace(run(1, None, 4700.0, "container", 41), role="primer", counted=False)
    said = ("1 of 13 runs failed; its block was repeated.",)
    made = replace(base, runs=(primer, *base.runs, failed), blocks_repeated=1, warnings=said)
    return replace(made, **changes)


def one_arm(runs: int = 5, **changes: Any) -> Examined:
    """`stackmark run`: one arm, nothing to compare it with."""
    rates = (HOST * runs)[:runs]
    made = replace(
        sample_examined(), kind="run", order=(), arms=(arm(0, "host", rates),), comparisons=(), differences=(),
        runs=tuple(run(0, None, rate, "host", index) for index, rate in enumerate(rates)), blocks_planned=None, blocks_whole=0,
        covariates=(CovariateLine("SM clock", "MHz", (1980.0,)),), command="stackmark run train/resnet50_v1.5 --batch 256",
        state_sentence="all requested runs were made",
    )  # fmt: skip
    return replace(made, **changes)


def open_experiment(**changes: Any) -> Examined:
    """Killed in its third block: two are whole, and nobody has looked yet."""
    base = sample_examined()
    slow = 4690.0  # so that two blocks decide nothing
    first = (*base.runs[:2], run(1, 1, slow, "container", 2), base.runs[3])
    rates = (CONTAINER[0], slow)
    made = replace(
        base, state="open", ended_unix_s=None,
        state_sentence="2 of 6 blocks are complete; continue: stackmark resume x-01m8h200c0nta1nerv5h0st0a1",
        runs=(*first, replace(base.runs[4], status="running", counted=False, rate_per_s=None, steady=None, step_s=(),
                                      ended_unix_s=None)),
        blocks_whole=2, arms=(arm(0, "host", HOST[:2]), arm(1, "container", rates)),
        comparisons=(compared("host", HOST[:2], "container", rates, 0.01),),
    )  # fmt: skip
    return replace(made, **changes)


def nothing_measured(**changes: Any) -> Examined:
    """Every run failed: there is no number at all."""
    base = sample_examined()
    runs = tuple(
        replace(made, status="failed", counted=False, rate_per_s=None, steady=None, step_s=(), setup=(), start_s=None,
                failure_kind="place", failure_message="podman: no such image", chip=None)
        for made in base.runs[:2]
    )  # fmt: skip
    arms = tuple(replace(made, throughput=None, steadiness=(), setup=(), facts={}, chip=None) for made in base.arms)
    said = "block 1 failed, and 0 repetitions of a block were allowed"
    made = replace(base, state="short", state_sentence=said, runs=runs, arms=arms,
                   comparisons=(), differences=(), covariates=(), published=(), blocks_whole=0)  # fmt: skip
    return replace(made, **changes)


HOSTILE = (
    "</script></title><script>fetch('http://evil.example/')</script><img src=x onerror=alert(1)> "
    "| `a` \"b\" 'c' \x1b[31m\u202eabc\n#1 @all"
)


def hostile() -> Examined:
    """Every text that comes from outside is an attack."""
    base = with_failed_run()
    arms = tuple(
        replace(made, label=f"{made.label} {HOSTILE}", place=HOSTILE, unit=f"images/s{HOSTILE}", chip=HOSTILE,
                place_options={HOSTILE: HOSTILE}, typed={HOSTILE: HOSTILE}, setup=((HOSTILE, 1.0), ("import", 2.0)),
                steadiness=((HOSTILE, 2),))
        for made in base.arms
    )  # fmt: skip
    runs = tuple(
        replace(made, run_id=made.run_id + HOSTILE, flags=(HOSTILE,), chip=HOSTILE, failure_kind=made.failure_kind and HOSTILE,
                failure_message=made.failure_message and HOSTILE, failure_hint=HOSTILE, steady=made.steady and HOSTILE)
        for made in base.runs
    )  # fmt: skip
    names = [made.label for made in arms]
    comparisons = tuple(
        replace(made, a=names[0], b=names[1], sentence=HOSTILE, notes=(HOSTILE,), needed=Needed(None, HOSTILE))
        for made in base.comparisons
    )
    return replace(
        base, arms=arms, runs=runs, comparisons=comparisons, experiment_id=f"x-{HOSTILE}", command=f"stackmark run ```{HOSTILE}",
        workload=HOSTILE, title=HOSTILE, sample=HOSTILE, state_sentence=HOSTILE, scope=HOSTILE, held=(HOSTILE,),
        not_held=(HOSTILE,), method=(HOSTILE,), warnings=(HOSTILE,),
        differences=(FactDifference(HOSTILE, HOSTILE, (HOSTILE, HOSTILE), HOSTILE, 90, True), *base.differences),
        covariates=(CovariateLine(HOSTILE, HOSTILE, (1.0, 2.0), HOSTILE),),
        published=(PublishedNeighbour(1.0, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1.0, (HOSTILE,)),),
        published_pairs=(
            PublishedPair(HOSTILE, HOSTILE, True, 1.0, None, None, (1.0,), 2.0, -50.0, 0.5, HOSTILE, HOSTILE, HOSTILE, HOSTILE,
                          True, (HOSTILE,), notes=(HOSTILE,), stack=(StackLine(HOSTILE, HOSTILE, HOSTILE, "differs"),)),
        ),
    )  # fmt: skip


def inconclusive() -> Examined:
    noisy = tuple(rate * (1 + 0.02 * (-1) ** number) for number, rate in enumerate(CONTAINER))
    return sample_examined(comparisons=(compared("host", HOST, "container", noisy, 0.01),))


def aa(**changes: object) -> Examined:
    """A/A: the same arm twice."""
    base = sample_examined()
    arms = tuple(replace(one, label=label) for one, label in zip(base.arms, ("host", "host (2)"), strict=True))
    found = (compared("host", HOST, "host (2)", CONTAINER, 0.01),)
    made = replace(base, kind="noise", arms=arms, comparisons=found, differences=())
    return replace(made, **changes)  # type: ignore[arg-type]
