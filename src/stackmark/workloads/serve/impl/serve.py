"""The family `serve/`: sets a network up, and lets LoadGen send queries to it. See workload.Workload for the contract."""

import math
import statistics
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

import torch

from stackmark.histogram import BEYOND, Histogram
from stackmark.model import ValidationError
from stackmark.spec import AnyParams, Request, explain
from stackmark.units import say_seconds
from stackmark.workloads.impl.devices import first_device, require_device, usual_precision
from stackmark.workloads.serve.definition import (
    LATENCY,
    MULTI_STREAM_SAMPLES,
    QUICK_SECONDS,
    SERVED,
    SINCE_START,
    ServedNetwork,
    ServeParams,
    figure,
)
from stackmark.workloads.serve.impl.accuracy import (
    choose_samples,
    judged,
    prepare,
    read_accuracy_log,
    token_metrics,
)
from stackmark.workloads.serve.impl.latencies import disagreement, latencies_ns
from stackmark.workloads.serve.impl.loadgen import Answers, Load, LoadResult, Predict, library, run_accuracy, run_test
from stackmark.workloads.serve.impl.network import Network, nothing
from stackmark.workloads.serve.impl.search import Search
from stackmark.workloads.serve.rules import against_rules, judged_percent, rules_of, say_rules
from stackmark.workloads.workload import Metric, Rig, TimedFigure, TimedWhole, WorkloadFailure

# Samples of a call on a CPU: a table and no trial, so that a busy machine chooses as an idle one does.
CPU_BATCH, GPU_BATCH = 8, 256
LIBRARY = 64
# For the unmeasured trial that tells LoadGen what to plan with.
TRIAL_S, TRIAL_CALLS = 1.0, 200
WARM_CALLS = 3
# LoadGen makes its queries before it starts: twice what it expects, and once more where they ran out.
TRIES, MARGIN = 4, 1.5
# What LoadGen and the path to a network take by themselves: without it, it would make queries for minutes.
PATH_S, PATH_RATE = 2e-6, 300_000.0
# As many queries a second reach a network one by one without trouble.
SERVER_PATH_RATE = 5000.0
PERCENTILES = (50.0, 90.0, 95.0, 97.0, 99.0, 99.9)


def probe(request: Request, rig: Rig) -> tuple[ServeParams, dict[str, str]]:
    """Choose what nobody typed. A rate needs a trial of the network, everything else is a table."""
    name = request.workload.partition("/")[2]
    served = SERVED[name]
    values, reasons = dict(request.typed()), dict[str, str]()
    library()

    def take(key: str, value: str | int | float, reason: str) -> object:
        if key not in values:
            values[key], reasons[key] = value, reason
        return values[key]

    if values.get("device") == "cuda":
        values["device"] = "cuda:0"
    device = str(take("device", *first_device()))
    require_device(device)
    take("precision", *usual_precision(device))
    mlperf, scenario = bool(values.get("mlperf")), str(values.get("scenario", "single-stream"))
    rules = rules_of(name)
    if mlperf:
        take("seconds", rules.seconds_of(scenario), f"the rules of {say_rules(name)}")
    else:
        take("seconds", QUICK_SECONDS, "a quick run")
    one_call = {"single-stream": 1, "multi-stream": MULTI_STREAM_SAMPLES}
    if scenario in one_call:
        take("batch", one_call[scenario], f"a query of {scenario}")
    else:
        take("batch", CPU_BATCH if device == "cpu" else GPU_BATCH, f"the table for a {device.partition(':')[0]}")
    choose_samples(name, values, reasons)
    if mlperf:
        take("library", rules.library, f"the rules of {say_rules(name)}")
    else:
        take("library", LIBRARY, "a quick run")
    take("threads", 0, "the framework's choice")
    server, search = scenario == "server", bool(values.get("find_rate"))
    if server:
        take("latency_bound", served.bound_s, served.bound_of)
    else:
        values.setdefault("latency_bound", 0.0)
    if not server or search:
        values.setdefault("rate", 0.0)
    try:
        if "rate" not in values:
            params = ServeParams.model_validate({**values, "rate": 1.0})
            with rig.part("trial", "of the network alone"):
                most = capacity(_network(name, params), params)
            take("rate", _stable(most / 2), f"at most half of what the network does alone: {most:.3g} samples/s")
        params = ServeParams.model_validate(values)
    except ValidationError as error:
        raise WorkloadFailure("bad_parameter", explain(error), "see: stackmark run --help") from error
    return params, reasons


def _stable(rate: float) -> float:
    """Return the next lower rate of 1, 2, 5, 10 …: trials on a busy and on an idle machine mostly choose the same one."""
    rate = min(rate, SERVER_PATH_RATE)
    power = 10.0 ** math.floor(math.log10(rate))
    return max(step * power for step in (1, 2, 5) if step * power <= rate * (1 + 1e-9))


def _round(value: float) -> float:
    """Round to two digits."""
    digits = 1 - math.floor(math.log10(value))
    return round(value, digits)


def run(name: str, params: AnyParams, rig: Rig) -> Generator[TimedWhole, None, None]:
    assert isinstance(params, ServeParams)
    served, device = SERVED[name], torch.device(params.device)
    with rig.part("device"):
        loadgen = library()
        require_device(params.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.zeros(1, device=device)
        torch.set_float32_matmul_precision("highest" if params.precision == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = params.precision != "fp32"
        if params.threads:
            torch.set_num_threads(params.threads)
    with rig.part("model"):
        predict, judge = prepare(name, params) if served.source else (nothing, None)
    tokens = predict.stream if isinstance(predict, Network) and predict.streams else None
    with rig.part("warm-up"):
        expected = _expected(predict, params)

    def test(rate: float = 0.0) -> Tested:
        def load_of(load: Load) -> tuple[LoadResult, Answers]:
            # In `server` LoadGen would judge tokens instead of whole answers, by bounds of their own.
            streamed = tokens is not None and params.scenario != "server"
            return run_test(loadgen, replace(load, tokens=streamed), predict, params.batch, tokens)

        return _tested(load_of, name, params, expected, rate)

    def whole(log: Callable[[str], None]) -> TimedFigure:
        found = _measured(served, params, expected, test, log, rig)
        if judge is None:
            return found
        began = time.perf_counter()
        load = Load(
            params.scenario, params.seconds, 1, params.library, params.seed, expected, params.rate or _round(expected),
            params.latency_bound, accuracy=True,
        )  # fmt: skip
        answers = read_accuracy_log(run_accuracy(loadgen, load, predict, params.batch), params.library)
        metrics, wrong = judged(served, judge, answers)
        if wrong:
            rig.flag(wrong)
        wall_s = found.wall_s + time.perf_counter() - began
        return replace(found, wall_s=wall_s, metrics=(*found.metrics, *metrics))

    yield TimedWhole(
        run=whole,
        device=params.device,
        facts={
            "loadgen": str(getattr(loadgen, "__version__", "")) or _version(),
            "weights": params.weights or "random",
            **({"rules": say_rules(name)} if params.mlperf else {}),
            **({"right_by": judge.truth} if judge else {}),
        },
        subject="serve",
    )


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mlcommons-loadgen")
    except PackageNotFoundError:
        return "unknown"


def _network(name: str, params: ServeParams) -> Predict:
    return Network(name, params) if SERVED[name].source else nothing


# --- trials ---------------------------------------------------------------------------------------------------------------


def seconds_of_call(predict: Predict, samples: int, most: int) -> float:
    """Return the median time of a call, without the first ones."""
    indices = [number % most for number in range(samples)]
    for _ in range(WARM_CALLS):
        predict(indices)
    times: list[float] = []
    end = time.perf_counter() + TRIAL_S
    while len(times) < WARM_CALLS or (len(times) < TRIAL_CALLS and time.perf_counter() < end):
        begin = time.perf_counter()
        predict(indices)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def capacity(predict: Predict, params: ServeParams) -> float:
    """Return the samples per second of full batches, one after the other."""
    return params.batch / seconds_of_call(predict, params.batch, params.library)


def _expected(predict: Predict, params: ServeParams) -> float:
    """Return what LoadGen plans with: of single queries their time, else samples per second."""
    if params.scenario in ("single-stream", "multi-stream"):
        return seconds_of_call(predict, params.batch, params.library) + PATH_S
    return min(capacity(predict, params), PATH_RATE)


# --- tests ----------------------------------------------------------------------------------------------------------------


def queries_of(name: str, params: ServeParams) -> int:
    """Return how many queries a test has at the least: ten beyond the percentile, and with `mlperf` as many as its rules ask."""
    if params.scenario == "offline":
        return 1
    exceeding = math.ceil(BEYOND / (1 - judged_percent(name, params.scenario) / 100) - 1e-6)
    return max(exceeding, rules_of(name).queries[params.scenario]) if params.mlperf else exceeding


@dataclass(frozen=True)
class Tested:
    """One test: what LoadGen says of it, and what we saw."""

    load: Load
    result: LoadResult
    answers: Answers

    def latencies(self) -> Histogram:
        """Return the latencies of all queries by our own clock: after the test, since a million of them take a second."""
        name = SINCE_START if self.load.scenario == "offline" else LATENCY
        return Histogram(name).record_all(latencies_ns(self.load, self.answers.came_ns, self.answers.done_ns))


def _tested(
    run_load: Callable[[Load], tuple[LoadResult, Answers]],
    name: str,
    params: ServeParams,
    expected: float,
    rate: float,
) -> Tested:
    """Run a test again where LoadGen had planned too few queries for its time: the speed is only known afterwards."""
    offline = params.scenario == "offline"
    least = rules_of(name).queries["offline"] / params.seconds if offline and params.mlperf else 0.0
    for left in reversed(range(TRIES)):
        load = Load(
            params.scenario,
            params.seconds,
            queries_of(name, params),
            params.library,
            params.seed,
            max(expected, least) * MARGIN if offline else expected / MARGIN,
            rate,
            params.latency_bound,
            judged_percent(name, params.scenario),
        )
        tested, answers = run_load(load)
        if tested.valid or tested.values.get("result_min_duration_met") is not False or not left:
            break
        expected = (
            tested.number("result_samples_per_second") if offline else 1e-9 * tested.number("result_mean_latency_ns")
        )
    return Tested(load, tested, answers)


def _measured(
    served: ServedNetwork,
    params: ServeParams,
    expected: float,
    test: Callable[..., Tested],
    log: Callable[[str], None],
    rig: Rig,
) -> TimedFigure:
    began = time.perf_counter()
    if not params.mlperf:
        rig.flag(
            f"quick: {say_seconds(params.seconds)} of queries; the rules of {say_rules(served.name)} ask for "
            f"{say_seconds(rules_of(served.name).seconds_of(params.scenario))}"
        )
    more: list[Metric] = []
    if params.find_rate:
        last: dict[float, Tested] = {}

        def one_rate(rate: float) -> LoadResult:
            last[rate] = test(rate)
            return last[rate].result

        found = Search(one_rate, params.latency_bound, log, _round(expected / 2)).run()
        done, value = last[found.holds], found.holds
        more = [
            Metric("rate_fails", found.fails, "queries/s", True),
            Metric("tests", float(found.tests), "tests", False),
        ]
    else:
        done = test(params.rate)
        value = _value(served, params, done.result)
    tested, own = done.result, done.latencies()
    for line in tested.lines:
        log(line)
    if not tested.valid:
        rig.flag(
            f"loadgen-invalid: by LoadGen's rules the run is invalid: {'; '.join(tested.problems) or 'no reason given'}"
        )
    short = _short_of_rules(served.name, params, done) if params.mlperf else []
    if short:
        rig.flag(f"not-by-the-rules: not by the rules of {say_rules(served.name)}: {'; '.join(short)}")
    if said := disagreement(tested, own):
        rig.flag(said)
    return TimedFigure(
        figure(served, params.scenario, params.find_rate, value),
        wall_s=time.perf_counter() - began,
        metrics=(
            *_metrics(params, tested, valid=tested.valid and not short),
            Metric("samples", float(done.answers.answered), "samples", True),
            Metric("test_seconds", done.answers.seconds, "s", False),
            *more,
        ),
        histograms=(own,) if own.total else (),
    )


def _short_of_rules(name: str, params: ServeParams, done: Tested) -> list[str]:
    return against_rules(
        name,
        params.scenario,
        seconds=params.seconds,
        library=params.library,
        bound_s=params.latency_bound,
        queries=done.result.count,
        samples=done.answers.answered,
    )


def _value(served: ServedNetwork, params: ServeParams, tested: LoadResult) -> float:
    if params.scenario == "offline":
        return tested.number("result_samples_per_second")
    return 1e3 * tested.percentile_s(judged_percent(served.name, params.scenario))


def _metrics(params: ServeParams, tested: LoadResult, *, valid: bool) -> list[Metric]:
    found = [Metric("valid", float(valid), "", True), Metric("queries", float(tested.count), "queries", True)]
    if params.scenario == "offline":
        return [*found, *token_metrics(tested.values)]
    found += [
        Metric(f"p{percent:g}_latency", tested.percentile_s(percent), "s", False)
        for percent in PERCENTILES
        if tested.count * (100 - percent) / 100 >= BEYOND
    ]
    found.append(Metric("mean_latency", 1e-9 * tested.number("result_mean_latency_ns"), "s", False))
    tokens = token_metrics(tested.values)
    found += tokens
    estimate = {"single-stream": "early_stopping_latency_ss", "multi-stream": "early_stopping_latency_ms"}
    # Where LoadGen hears of tokens, its estimate is of the first one.
    if (key := estimate.get(params.scenario)) and key in tested.values and not tokens:
        found.append(Metric("early_stopping_latency", 1e-9 * tested.number(key), "s", False))
    if params.scenario == "server":
        over = tested.values.get("result_overlatency_query_count", 0)
        found.append(Metric("over_bound", float(over) if isinstance(over, int) else 0.0, "queries", False))
        found.append(Metric("completed_rate", tested.number("result_completed_samples_per_sec"), "queries/s", True))
    return found
