"""The family `serve/`: sets a network up, and lets LoadGen send queries to it. See workload.Workload for the contract."""

import math
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace

import torch

from stackmark.histogram import BEYOND, Histogram
from stackmark.model import ValidationError
from stackmark.spec import AnyParams, Request, Scalar, explain
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
from stackmark.workloads.serve.impl.batches import Batches, fixed_sizes
from stackmark.workloads.serve.impl.latencies import disagreement, latencies_ns
from stackmark.workloads.serve.impl.loadgen import Answers, Load, LoadResult, Predict, library, run_accuracy, run_test
from stackmark.workloads.serve.impl.network import Network, nothing
from stackmark.workloads.serve.impl.search import Search, Words
from stackmark.workloads.serve.impl.trials import (
    CPU_BATCH,
    GPU_BATCHES,
    best_batch,
    capacity,
    seconds_of_call,
    stable_rate,
    undisturbed_capacity,
)
from stackmark.workloads.serve.rules import against_rules, judged_percent, rules_of, say_quick, say_rules
from stackmark.workloads.train.impl.choose import can_compile, require_compiler
from stackmark.workloads.workload import Metric, Rig, TimedFigure, TimedWhole, WorkloadFailure

LIBRARY = 64
# LoadGen makes its queries before it starts: twice what it expects, and once more where they ran out.
TRIES, MARGIN = 4, 1.5
# What LoadGen and the path to a network take by themselves: without it, it would make queries for minutes.
PATH_S, PATH_RATE = 2e-6, 300_000.0
# Takes a value for a parameter that nobody typed, with its reason; returns what holds.
Take = Callable[[str, Scalar, str], Scalar]
PERCENTILES = (50.0, 90.0, 95.0, 97.0, 99.0, 99.9)


def probe(request: Request, rig: Rig) -> tuple[ServeParams, dict[str, str]]:
    """Choose what nobody typed. A batch and a rate need a trial of the network, everything else is a table."""
    name = request.workload.partition("/")[2]
    served = SERVED[name]
    values, reasons = dict(request.typed()), dict[str, str]()
    library()

    def take(key: str, value: Scalar, reason: str) -> Scalar:
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
    elif device == "cpu":
        take("batch", CPU_BATCH, "the table for a CPU")
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
    _take_tune(name, scenario, device, take, values)
    try:
        if "rate" not in values or "batch" not in values:
            _try_out(name, take, values, rig)
        params = ServeParams.model_validate(values)
    except ValidationError as error:
        raise WorkloadFailure("bad_parameter", explain(error), "see: stackmark run --help") from error
    return params, reasons


def _take_tune(name: str, scenario: str, device: str, take: Take, values: Mapping[str, Scalar]) -> None:
    """Choose a CUDA graph where the sizes of everything are known, and a compiled network where one size is enough."""
    if device == "cpu" or not fixed_sizes(name):
        why = "a CPU" if device == "cpu" else "its answers have no fixed size"
        tune = take("tune", "off", why)
        if tune != "off" and not fixed_sizes(name):
            raise WorkloadFailure(
                "bad_parameter",
                f"tune {tune} needs answers of a fixed size, which serve/{name} has not",
                "use --tune off",
            )
    elif scenario == "server":
        tune = take(
            "tune", "fast", "a graph for each batch size; max compiles the network for each, which takes minutes"
        )
    else:
        tune = take("tune", "max" if can_compile() else "fast", "one batch size, recorded as a CUDA graph")
    take("cuda_graph", tune != "off" and device != "cpu", f"tune {tune}")
    if take("compile", tune == "max", f"tune {tune}"):
        require_compiler(device)


def _try_out(name: str, take: Take, values: Mapping[str, Scalar], rig: Rig) -> None:
    """Choose the batch and the rate by a short trial of the network alone."""
    typed = values.get("batch")
    largest = typed if isinstance(typed, int) else max(GPU_BATCHES)
    # The plain network: to compile every size that is tried would take longer than it gains.
    plain = {"cuda_graph": False, "compile": False, "tune": "off"}
    params = ServeParams.model_validate({**values, "batch": largest, "rate": values.get("rate", 1.0), **plain})
    with rig.part("trial", "of the network alone"):
        predict: Predict = Network(name, params) if SERVED[name].source else nothing
        if typed is None:
            take("batch", *best_batch(predict, GPU_BATCHES, params.library, params.latency_bound))
        if "rate" not in values:
            batch = values["batch"]
            assert isinstance(batch, int)
            most = undisturbed_capacity(predict, batch, params.library)
            take("rate", stable_rate(most / 2), f"at most half of what the network does alone: {most:.3g} samples/s")


def _predict(name: str, params: ServeParams, network: Network) -> Predict:
    """Return what answers: on a GPU, or compiled, in batches of few sizes."""
    if not fixed_sizes(name) or (params.device == "cpu" and not params.compile):
        return network
    made = network.made
    return Batches(params, made.compute, made.samples, one_size=params.scenario != "server")


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
        torch.backends.cudnn.benchmark = params.tune != "off"
    predict: Predict = nothing
    judge, tokens = None, None
    if served.source:
        with rig.part("model"):
            network, judge = prepare(name, params)
            tokens = network.stream if network.streams else None
        with rig.part("compile" if params.compile else "buckets"):
            predict = _predict(name, params, network)
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


# --- trials ---------------------------------------------------------------------------------------------------------------


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
            wait_s=params.batch_wait,
            percent=judged_percent(name, params.scenario),
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
        rig.flag(f"quick: {say_quick(served.name, params.scenario, params.seconds)}")
    more: list[Metric] = []
    if params.find_rate:
        last: dict[float, Tested] = {}

        def one_rate(rate: float) -> LoadResult:
            last[rate] = test(rate)
            return last[rate].result

        beyond = 100 - judged_percent(served.name, params.scenario)
        over = f"more than {beyond:g} % of the answers take over {params.latency_bound:g} s"
        found = Search(one_rate, log, _round(expected / 2), _say_p99, Words(over, "--latency-bound")).run()
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


def _say_p99(tested: LoadResult) -> str:
    return f"p99 {1e3 * tested.percentile_s(99):.4g} ms"


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
