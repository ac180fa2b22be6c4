"""The family `serve/`: sets a network up, and lets LoadGen send queries to it. See workload.Workload for the contract."""

import math
import statistics
import time
from collections.abc import Callable, Generator, Sequence

import torch

from stackmark.model import ValidationError
from stackmark.spec import AnyParams, Request, explain
from stackmark.units import say_seconds
from stackmark.workloads.impl.devices import first_device, require_device, usual_precision
from stackmark.workloads.serve.definition import (
    JUDGED,
    MLPERF_QUERIES,
    MLPERF_SECONDS,
    MULTI_STREAM_SAMPLES,
    QUICK_SECONDS,
    SERVED,
    ServedNetwork,
    ServeParams,
    figure,
)
from stackmark.workloads.serve.impl.loadgen import Load, LoadResult, Predict, library, run_test
from stackmark.workloads.serve.impl.network import Network, nothing
from stackmark.workloads.serve.impl.search import Search, Words
from stackmark.workloads.workload import Metric, Rig, TimedFigure, TimedWhole, WorkloadFailure

# Samples of a call on a CPU: a table and no trial, so that a busy machine chooses as an idle one does.
CPU_BATCH, GPU_BATCH = 8, 256
LIBRARY, MLPERF_LIBRARY = 64, 1024
# A percentile needs ten queries beyond it, so p90 a hundred of them and p99 a thousand; MLPerf's rules want fewer.
BEYOND = 10
# For the unmeasured trial that tells LoadGen what to plan with.
TRIAL_S, TRIAL_CALLS = 1.0, 200
WARM_CALLS = 3
# LoadGen makes its queries before it starts: twice what it expects, and once more where they ran out.
TRIES, MARGIN = 4, 1.5
# What LoadGen and the path to a network take by themselves: without it, it would make queries for minutes.
PATH_S, PATH_RATE = 2e-6, 300_000.0
PERCENTILES = (50.0, 90.0, 95.0, 97.0, 99.0, 99.9)
# Ours and LoadGen's median latency may differ by this much before a result says so.
CLOCKS_SHARE, CLOCKS_S = 0.1, 20e-6


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
    mlperf, scenario = bool(values.get("mlperf")), values.get("scenario", "single-stream")
    if mlperf:
        take("seconds", MLPERF_SECONDS, "MLPerf's rules")
    else:
        take("seconds", QUICK_SECONDS, "a quick run")
    one_call = {"single-stream": 1, "multi-stream": MULTI_STREAM_SAMPLES}
    if scenario in one_call:
        take("batch", one_call[str(scenario)], f"a query of {scenario}")
    else:
        take("batch", CPU_BATCH if device == "cpu" else GPU_BATCH, f"the table for a {device.partition(':')[0]}")
    take("library", MLPERF_LIBRARY if mlperf else LIBRARY, "MLPerf's rules" if mlperf else "a quick run")
    take("threads", 0, "the framework's choice")
    server, search = scenario == "server", bool(values.get("find_rate"))
    if server:
        take("latency_bound", served.bound_s, "MLPerf's bound for ResNet-50")
    else:
        values.setdefault("latency_bound", 0.0)
    if not server or search:
        values.setdefault("rate", 0.0)
    try:
        if "rate" not in values:
            params = ServeParams.model_validate({**values, "rate": 1.0})
            with rig.part("trial", "of the network alone"):
                most = capacity(_network(name, params), params)
            take("rate", _round(most / 2), f"half of what the network does alone: {most:.3g} samples/s")
        params = ServeParams.model_validate(values)
    except ValidationError as error:
        raise WorkloadFailure("bad_parameter", explain(error), "see: stackmark run --help") from error
    return params, reasons


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
        predict = _network(name, params)
    with rig.part("warm-up"):
        expected = _expected(predict, params)

    def test(rate: float = 0.0) -> tuple[LoadResult, Sequence[int]]:
        return _tested(lambda load: run_test(loadgen, load, predict, params.batch), params, expected, rate)

    yield TimedWhole(
        run=lambda log: _measured(served, params, expected, test, log, rig),
        device=params.device,
        facts={
            "loadgen": str(getattr(loadgen, "__version__", "")) or _version(),
            "weights": params.weights or "random",
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
    if params.scenario in JUDGED and params.scenario != "server":
        return seconds_of_call(predict, params.batch, params.library) + PATH_S
    return min(capacity(predict, params), PATH_RATE)


# --- tests ----------------------------------------------------------------------------------------------------------------


def queries_of(params: ServeParams) -> int:
    """Return how many queries a test has at the least."""
    if params.scenario == "offline":
        return 1
    exceeding = math.ceil(BEYOND / (1 - JUDGED[params.scenario] / 100) - 1e-6)
    return max(exceeding, MLPERF_QUERIES[params.scenario])


def _tested(
    run_load: Callable[[Load], tuple[LoadResult, Sequence[int]]], params: ServeParams, expected: float, rate: float
) -> tuple[LoadResult, Sequence[int]]:
    """Run a test again where LoadGen had planned too few queries for its time: the speed is only known afterwards."""
    offline = params.scenario == "offline"
    least = MLPERF_QUERIES["offline"] / params.seconds if offline and params.mlperf else 0.0
    for left in reversed(range(TRIES)):
        load = Load(
            params.scenario,
            params.seconds,
            queries_of(params),
            params.library,
            params.seed,
            max(expected, least) * MARGIN if offline else expected / MARGIN,
            rate,
            params.latency_bound,
        )
        tested, own = run_load(load)
        if tested.valid or tested.values.get("result_min_duration_met") is not False or not left:
            break
        expected = (
            tested.number("result_samples_per_second") if offline else 1e-9 * tested.number("result_mean_latency_ns")
        )
    return tested, own


def _measured(
    served: ServedNetwork,
    params: ServeParams,
    expected: float,
    test: Callable[..., tuple[LoadResult, Sequence[int]]],
    log: Callable[[str], None],
    rig: Rig,
) -> TimedFigure:
    began = time.perf_counter()
    if not params.mlperf:
        rig.flag(
            f"quick: {say_seconds(params.seconds)} of queries; MLPerf's rules ask for {say_seconds(MLPERF_SECONDS)}"
        )
    more: list[Metric] = []
    own: Sequence[int] = ()
    if params.find_rate:
        words = Words(f"more than 1 % of the answers take over {params.latency_bound:g} s", "--latency-bound")
        found = Search(lambda rate: test(rate)[0], log, _round(expected / 2), _say_p99, words).run()
        tested, value = found.last, found.holds
        more = [
            Metric("rate_fails", found.fails, "queries/s", True),
            Metric("tests", float(found.tests), "tests", False),
        ]
    else:
        tested, own = test(params.rate)
        value = _value(params, tested)
    for line in tested.lines:
        log(line)
    if not tested.valid:
        rig.flag(
            f"loadgen-invalid: by LoadGen's rules the run is invalid: {'; '.join(tested.problems) or 'no reason given'}"
        )
    if said := _clocks_disagree(params, tested, own):
        rig.flag(said)
    return TimedFigure(
        figure(params.scenario, params.find_rate, served.sample, value),
        wall_s=time.perf_counter() - began,
        metrics=(*_metrics(params, tested), *more),
    )


def _say_p99(tested: LoadResult) -> str:
    return f"p99 {1e3 * tested.percentile_s(99):.4g} ms"


def _value(params: ServeParams, tested: LoadResult) -> float:
    if params.scenario == "offline":
        return tested.number("result_samples_per_second")
    return 1e3 * tested.percentile_s(JUDGED[params.scenario])


def _metrics(params: ServeParams, tested: LoadResult) -> list[Metric]:
    found = [Metric("valid", float(tested.valid), "", True), Metric("queries", float(tested.count), "queries", True)]
    if params.scenario == "offline":
        return found
    found += [
        Metric(f"p{percent:g}_latency", tested.percentile_s(percent), "s", False)
        for percent in PERCENTILES
        if tested.count * (100 - percent) / 100 >= BEYOND
    ]
    found.append(Metric("mean_latency", 1e-9 * tested.number("result_mean_latency_ns"), "s", False))
    estimate = {"single-stream": "early_stopping_latency_ss", "multi-stream": "early_stopping_latency_ms"}
    if (key := estimate.get(params.scenario)) and key in tested.values:
        found.append(Metric("early_stopping_latency", 1e-9 * tested.number(key), "s", False))
    if params.scenario == "server":
        over = tested.values.get("result_overlatency_query_count", 0)
        found.append(Metric("over_bound", float(over) if isinstance(over, int) else 0.0, "queries", False))
        found.append(Metric("completed_rate", tested.number("result_completed_samples_per_sec"), "queries/s", True))
    return found


def _clocks_disagree(params: ServeParams, tested: LoadResult, own_ns: Sequence[int]) -> str:
    """Compare LoadGen's median with ours. LoadGen counts from when a query was due, so in `server` its may be longer."""
    if params.scenario == "offline" or len(own_ns) < BEYOND:
        return ""
    ours_s, theirs_s = 1e-9 * statistics.median(own_ns), tested.percentile_s(50)
    allowed_s = CLOCKS_SHARE * max(ours_s, theirs_s) + CLOCKS_S
    if ours_s - theirs_s <= allowed_s and (params.scenario == "server" or theirs_s - ours_s <= allowed_s):
        return ""
    theirs, ours = say_seconds(theirs_s), say_seconds(ours_s)
    return f"clocks-disagree: the median latency is {theirs} by LoadGen's log and {ours} by our own clock"
