"""The workload `serve/endpoint`: looks at the server, sends the load from processes of the client, and sums up."""

import asyncio
import math
import os
import random
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from stackmark.events import Figure
from stackmark.model import JsonValue, ValidationError
from stackmark.spec import AnyParams, Request, explain
from stackmark.units import counted, say_seconds
from stackmark.workloads.serve.endpoint import (
    Address,
    EndpointParams,
    figure_of,
    is_file,
    is_open,
    read_address,
    read_lengths,
    slo_of,
)
from stackmark.workloads.serve.impl.client.counted import compared_with, differences, read_counters
from stackmark.workloads.serve.impl.client.crew import run_load
from stackmark.workloads.serve.impl.client.energy import Meter, Refused, no_energy, open_meter
from stackmark.workloads.serve.impl.client.http import Reader, RequestFailure, Server
from stackmark.workloads.serve.impl.client.load import Part, Record, Sender, headers_of, kserve_base
from stackmark.workloads.serve.impl.client.outcome import Outcome, say_times, sum_up
from stackmark.workloads.serve.impl.client.prompts import (
    Prompt,
    Prompts,
    Scale,
    arrivals_of,
    read_arrivals,
    read_prompts,
)
from stackmark.workloads.serve.impl.client.protocols import EXTRAS, Body, TensorInput, read_inputs, said_error
from stackmark.workloads.serve.impl.search import Search, Words
from stackmark.workloads.workload import Metric, Rig, TimedFigure, TimedWhole, WorkloadFailure

SECONDS = 20.0
OPEN_WARMUP = 4
# What one process of the client carries without being busy itself; further ones only as there are CPUs.
CLIENTS_EACH, RATE_EACH = 64, 200.0
# Words of the two prompts that show how many tokens a server makes of a text: the longer one begins with the shorter one.
SHORT, LEAST_MORE, MOST_MORE = 16, 16, 256
# What is asked of a server in its own time, before the load.
ASK_S = 30.0
HIGHEST_FIRST_RATE = 1e5
# Tests of one rate while the client falls behind.
TRIES = 3


def probe(request: Request, rig: Rig) -> tuple[EndpointParams, dict[str, str]]:
    """Choose what nobody typed: by tables, and the model by asking the server."""
    values, reasons = dict(request.typed()), dict[str, str]()

    def take(key: str, value: str | float, reason: str) -> None:
        if key not in values:
            values[key], reasons[key] = value, reason

    if str(values.get("device")) == "cuda":
        values["device"] = "cuda:0"
    take("device", "cpu", "the client; name the server's GPU where it is this machine's")
    open_loop = bool(values.get("rate") or values.get("find_rate") or is_file(str(values.get("arrivals", "poisson"))))
    take("concurrency", 0 if open_loop else 1, "an open loop" if open_loop else "one client")
    clients = int(float(str(values["concurrency"])))
    take(
        "seconds",
        0.0 if values.get("requests") or is_file(str(values.get("arrivals", "poisson"))) else SECONDS,
        "the usual",
    )
    take("warmup_requests", clients or OPEN_WARMUP, "one for each client" if clients else "the usual of an open loop")
    needed = max(math.ceil(clients / CLIENTS_EACH), math.ceil(float(str(values.get("rate", 0.0))) / RATE_EACH), 1)
    take("processes", min(needed, os.cpu_count() or 1), "the table")
    try:
        if "model" not in values:
            address = EndpointParams.model_validate({**values, "model": ""})
            with rig.part("models"):
                take("model", asyncio.run(_only_model(address)), "the only one that the server lists")
        params = EndpointParams.model_validate(values)
    except ValidationError as error:
        raise WorkloadFailure("bad_parameter", explain(error), "see: stackmark run --help") from error
    return params, reasons


def run(name: str, params: AnyParams, rig: Rig) -> Generator[TimedWhole, None, None]:
    assert isinstance(params, EndpointParams)
    if params.api_key_env and not os.environ.get(params.api_key_env):
        raise WorkloadFailure(
            "bad_parameter",
            f"--api-key-env {params.api_key_env}: the variable is not set where the client runs",
            f"set it: export {params.api_key_env}=…; a container or a pod gets it by name: --env {params.api_key_env}",
        )
    with rig.part("server"):
        found = asyncio.run(_look(params, Found(os.urandom(8).hex(), rig.repetition)))
    for flag in found.flags:
        rig.flag(_masked(params, flag))
    with ExitStack() as held:
        meter = _rested(params, found, rig, held)
        yield TimedWhole(
            run=lambda log: _measured(params, found, lambda line: log(_masked(params, line)), rig, meter),
            device=params.device,
            facts=found.facts,
            subject="serve",
        )


def _rested(params: EndpointParams, found: "Found", rig: Rig, held: ExitStack) -> Meter | None:
    """Return the meter of the GPUs that serve, which has seen them idle; None where energy cannot be given."""
    if params.protocol == "kserve":
        return None
    try:
        meter = open_meter(read_address(params.url), params.server_gpu_ids, held)
        if meter is None:
            return None
        with rig.part("idle power"):
            meter.rest()
    except Refused as refused:
        rig.flag(no_energy(str(refused)))
        return None
    found.facts |= {"energy_gpus": meter.names, "energy_resolution_s": meter.resolution_s}
    return meter


def _masked(params: EndpointParams, text: str) -> str:
    """Replace the key in what a server says: it may repeat what it was sent."""
    key = os.environ.get(params.api_key_env, "") if params.api_key_env else ""
    return text.replace(key, "***") if key else text


# --- the server before the load ---------------------------------------------------------------------------------------------


@dataclass
class Found:
    """What was seen of a server before its load."""

    # Of this run: what makes its words new, and its number in the experiment.
    salt: str
    repetition: int
    scale: Scale = field(default_factory=Scale)
    extras: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[TensorInput, ...] = ()
    facts: dict[str, JsonValue] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)


async def _get(server: Server, path: str, limit: int = 16 * 2**20) -> tuple[int, Body, Reader]:
    body = Body(limit=limit)
    reader = Reader(body.receive)
    await server.request("GET", path, None, ASK_S, reader)
    return reader.status, body, reader


def _server(params: EndpointParams) -> tuple[Server, Address]:
    address = read_address(params.url)
    return Server(address, headers_of(params)), address


def _no_answer(params: EndpointParams, failure: RequestFailure) -> WorkloadFailure:
    hints = {
        "refused": "start the server, or correct --url; in a container 127.0.0.1 is the container itself",
        "http_404": "is --url the address of the API, with its path (http://127.0.0.1:8000/v1), and --model one that it has?",
        "http_401": "name the variable with the server's key: --api-key-env NAME",
        "timeout": "look at the server's log, or give it longer: --request-timeout",
    }
    hint = hints.get(failure.kind, "look at the server's log, and try the same with curl")
    return WorkloadFailure("no_answer", _masked(params, f"{params.url}: {failure.message}"), hint)


async def _only_model(params: EndpointParams) -> str:
    if params.protocol == "kserve":
        raise WorkloadFailure("bad_parameter", "serve/endpoint with --protocol kserve needs --model", "name the model")
    server, address = _server(params)
    try:
        status, body, _ = await _get(server, f"{address.path}/models")
        if status != 200:
            raise RequestFailure(f"http_{status}", f"HTTP {status}: {said_error(body.data)}")
        listed = body.read().get("data")
    except RequestFailure as failure:
        raise _no_answer(params, failure) from failure
    finally:
        server.close()
    names = [str(one.get("id")) for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    if len(names) != 1:
        said = ", ".join(name[:60] for name in names[:5]) or "none"
        raise WorkloadFailure(
            "bad_parameter", f"{params.url} lists {counted(len(names), 'model')}: {said}", "give --model"
        )
    return names[0]


async def _look(params: EndpointParams, found: Found) -> Found:
    """Send unmeasured requests: is anything there, what does it make of a text, does it take our further settings?"""
    server, address = _server(params)
    try:
        if params.protocol == "kserve":
            status, body, _ = await _get(server, f"{kserve_base(address.path)}/models/{params.model}")
            if status != 200:
                raise RequestFailure(f"http_{status}", f"HTTP {status}: {said_error(body.data)}")
            found.inputs = read_inputs(body.read())
        else:
            await _calibrate(params, server, found)
        await _warm_up(params, server, found)
    except RequestFailure as failure:
        raise _no_answer(params, failure) from failure
    finally:
        server.close()
    return found


async def _tried(sender: Sender, asked: Prompt) -> Record:
    from stackmark.workloads.serve.impl.client.protocols import text_body

    params = sender.params
    body = text_body(params.protocol, params.model, asked.prompt, asked.output_tokens, sender.extras)
    record = await sender.send(-1, time.monotonic_ns(), (body, asked.prompt_tokens, asked.output_tokens))
    if record.failure not in ("", "empty", "wrong_usage"):
        raise RequestFailure(record.failure, record.message)
    return record


async def _calibrate(params: EndpointParams, server: Server, found: Found) -> None:
    """Measure the tokens of a template and of a word with two prompts."""
    source = random.Random(f"calibration:{found.salt}")
    prompts = Prompts(params.model_copy(update={"prefix_share": 0.0}))
    text = prompts.text(SHORT, source)
    sender = Sender(params, server, prompts, dict(EXTRAS), ())
    try:
        short = await _tried(sender, Prompt(text, 0, 2))
    except RequestFailure as failure:
        if failure.kind not in ("http_400", "http_422"):
            raise
        sender.extras = {}
        found.flags.append(
            "no-ignore-eos: the server refuses to ignore the end of a text, so answers may be shorter than asked"
        )
        short = await _tried(sender, Prompt(text, 0, 2))
    found.extras = sender.extras
    if params.prompts:
        return
    more = min(max(LEAST_MORE, read_lengths(params.prompt).low // 2), MOST_MORE)
    long = await _tried(sender, Prompt(f"{text} {prompts.text(more, source)}", 0, 2))
    if short.prompt >= 0 and long.prompt > short.prompt:
        per_word = (long.prompt - short.prompt) / more
        found.scale = Scale(max(0.0, short.prompt - SHORT * per_word), per_word)
    else:
        found.flags.append(
            "prompt-tokens-unknown: the server does not count a prompt's tokens; a word is taken for a token"
        )
    found.facts["tokens_per_word"] = round(found.scale.per_word, 3)


async def _warm_up(params: EndpointParams, server: Server, found: Found) -> None:
    """Send unmeasured requests, as many at once as the load has clients."""
    real = read_prompts(params) if params.prompts else ()
    prompts = Prompts(params, found.scale, real, found.salt, found.repetition)
    sender = Sender(params, server, prompts, dict(found.extras), found.inputs)
    numbers = iter(range(1, params.warmup_requests + 1))

    async def client() -> None:
        for number in numbers:
            await sender.send(-number, time.monotonic_ns())

    await asyncio.gather(*(client() for _ in range(min(params.concurrency or 1, params.warmup_requests))))


async def _counters(params: EndpointParams) -> dict[str, float]:
    """Read the server's own counters; empty where it has none, or where nothing is counted in tokens."""
    if params.protocol == "kserve":
        return {}
    server, _ = _server(params)
    try:
        status, body, _ = await _get(server, "/metrics")
        return read_counters(bytes(body.data).decode("utf-8", "replace")) if status == 200 else {}
    except RequestFailure:
        return {}
    finally:
        server.close()


# --- the load ---------------------------------------------------------------------------------------------------------------


def _part(params: EndpointParams, found: Found, rate: float, first_index: int) -> Part:
    closed = not is_open(params)
    arrivals = (
        ()
        if closed
        else tuple(read_arrivals(params) if is_file(params.arrivals) else arrivals_of(params, rate, found.repetition))
    )
    return Part(
        params=params.model_dump(mode="json"),
        number=0,
        of=1,
        arrivals=arrivals,
        clients=params.concurrency,
        seconds=params.seconds,
        requests=params.requests if closed else 0,
        first_index=first_index,
        salt=found.salt,
        repetition=found.repetition,
        template=found.scale.template,
        per_word=found.scale.per_word,
        extras=dict(found.extras),
        inputs=tuple((one.name, one.datatype, one.shape) for one in found.inputs),
    )


def _test(params: EndpointParams, found: Found, rate: float, first_index: int = 0) -> Outcome:
    part = _part(params, found, rate, first_index)
    if not part.clients and not part.arrivals:
        raise WorkloadFailure(
            "no_figure",
            f"no request is due within {say_seconds(params.seconds)} at {rate:g} requests/s",
            "give more --seconds",
        )
    load = run_load(part, params.processes)
    return sum_up(load, params, len(part.arrivals) or len(load.records))


def _measured(
    params: EndpointParams, found: Found, log: Callable[[str], None], rig: Rig, meter: Meter | None
) -> TimedFigure:
    began = time.perf_counter()
    more: list[Metric] = []
    value: float | None
    if params.find_rate:
        with meter.reading() if meter else nullcontext():
            outcome, more = _searched(params, found, log)
        value = more[0].value
    else:
        before = asyncio.run(_counters(params))
        with meter.reading() if meter else nullcontext():
            outcome = _test(params, found, params.rate)
        _usable(params, outcome, log)
        more, flags = _compared_with(before, asyncio.run(_counters(params)), outcome)
        for flag in flags:
            rig.flag(flag)
        value = _value(params, outcome)
    if meter and (rate := outcome.number("output_per_s")):
        start_ns, window_ns = outcome.load.start_ns, outcome.load.window_ns
        energy, flags = meter.per_token(start_ns, start_ns + window_ns, rate * window_ns * 1e-9)
        more = [*more, *energy]
        for flag in flags:
            rig.flag(flag)
    for flag in outcome.flags:
        rig.flag(_masked(params, flag))
    if value is None:
        raise WorkloadFailure(
            "no_figure",
            f"the server does not count tokens (usage), and chunks are no tokens: {say_times(outcome)}",
            "a newer server counts them (stream_options.include_usage); an open loop (--rate) is judged by latency",
            outcome.metrics,
        )
    kind = _kind(params)
    return TimedFigure(
        Figure(name=kind.name, value=value, unit=kind.unit, higher_is_better=kind.higher_is_better),
        wall_s=time.perf_counter() - began,
        metrics=(*outcome.metrics, *more),
        histograms=outcome.histograms,
    )


def _kind(params: EndpointParams) -> Any:
    return figure_of(
        protocol=params.protocol, open_loop=is_open(params), slo=bool(params.slo), find_rate=params.find_rate
    )


def _value(params: EndpointParams, outcome: Outcome) -> float | None:
    """Return the figure; None where the server does not say how many tokens it made."""
    kind = _kind(params)
    if kind.name == "p50 latency":
        value = outcome.number("p50_latency")
        if value is None:
            answered = counted(len(outcome.answered), "answer")
            message = f"{answered}: a median needs 20, ten of them beyond it"
            raise WorkloadFailure("no_figure", message, "give more --seconds or --requests", outcome.metrics)
        return 1e3 * value
    names = {"goodput": "goodput", "throughput": "requests_per_s", "output throughput": "output_per_s"}
    value = outcome.number(names[kind.name])
    if value == 0:
        raise WorkloadFailure(
            "no_figure",
            f"the {kind.name} is 0: {say_times(outcome)}",
            "a wider --slo, or less load" if params.slo else "give more --seconds",
            outcome.metrics,
        )
    return value


def _usable(params: EndpointParams, outcome: Outcome, log: Callable[[str], None]) -> None:
    """Raise where the load shows nothing; what was measured until then is kept."""
    load, answered = outcome.load, outcome.answered
    if answered:
        log(f"{counted(len(answered), 'request')} answered: {say_times(outcome)}")
    if load.gone:
        last = max((one.end_ns for one in answered), default=0)
        message = (
            f"the server was gone {say_seconds(last * 1e-9)} after the start" if answered else "the server was gone"
        )
        message += f": {load.gone}; {counted(len(answered), 'request')} had been answered, {say_times(outcome)}"
        raise WorkloadFailure(
            "no_answer",
            _masked(params, message),
            "look at the server's log; what was measured is kept with the run",
            outcome.metrics,
        )
    if not answered:
        raise WorkloadFailure(
            "no_answer",
            _masked(params, f"no request was answered: {outcome.say_failures()}"),
            "look at the server's log, and try the same with curl",
            outcome.metrics,
        )


def _compared_with(
    before: Mapping[str, float], after: Mapping[str, float], outcome: Outcome
) -> tuple[list[Metric], list[str]]:
    """Hold the tokens of the answers against the server's own counters."""
    metrics, flags = [], []
    for what, theirs, ours in compared_with(differences(before, after), outcome.load.records):
        metrics.append(Metric(f"server_{what}_tokens", theirs, "tokens", True))
        if theirs != ours:
            failed = len(outcome.load.records) - len(outcome.answered)
            why = f"; {counted(failed, 'failed request')} may be among them" if failed else "; was it used by others?"
            flags.append(
                f"counters-differ: the server's /metrics count {theirs:,.0f} {what} tokens, its answers {ours:,.0f}{why}"
            )
    return metrics, flags


# --- the search -------------------------------------------------------------------------------------------------------------


def _searched(params: EndpointParams, found: Found, log: Callable[[str], None]) -> tuple[Outcome, list[Metric]]:
    """Search the highest rate that keeps the SLO. Each test has prompts of its own."""
    slo = slo_of(params)
    needed = math.ceil(10 / (1 - slo.share) - 1e-6)
    numbers = iter(range(10**6))

    def test(rate: float) -> Outcome:
        """Test a rate. A test that fails while the client fell behind shows nothing of the server, and is made again."""
        for _ in range(TRIES):
            outcome = once(rate)
            if outcome.valid or outcome.client_kept_up or outcome.fails_by_server:
                return outcome
            log(f"{rate:g} requests/s: the client fell behind, so the test is made again")
        raise WorkloadFailure(
            "no_figure",
            f"at {rate:g} requests/s the client fell behind its schedule in {TRIES} tests: {'; '.join(outcome.flags)}",
            "end other programs, run the client on another machine, or give it more --processes",
            outcome.metrics,
        )

    def once(rate: float) -> Outcome:
        seconds = max(params.seconds, needed / rate)
        processes = max(params.processes, min(math.ceil(rate / RATE_EACH), os.cpu_count() or 1))
        one = params.model_copy(
            update={"seconds": seconds, "requests": 0, "rate": rate, "processes": processes, "find_rate": False}
        )
        part = _part(one, found, rate, next(numbers) * 10**7)
        outcome = sum_up(run_load(part, processes), one, len(part.arrivals))
        if outcome.load.gone:
            _usable(params, outcome, log)
        return outcome

    words = Words(f"more than {1 - slo.share:.3g} of the requests break the SLO", "--slo", "requests/s")
    first = _first_rate(params, found)
    log(f"the search begins at {first:.3g} requests/s, what one client after the other gets")

    def say(outcome: Outcome) -> str:
        return f"{100 * outcome.kept_share:.4g} % within the SLO; {say_times(outcome)}"

    result = Search(test, log, first, say, words).run()
    return result.last, [
        Metric("rate_holds", result.holds, "requests/s", True),
        Metric("rate_fails", result.fails, "requests/s", True),
        Metric("tests", float(result.tests), "tests", False),
    ]


def _first_rate(params: EndpointParams, found: Found) -> float:
    """Return the rate of one client in a closed loop: what the server does without a queue."""
    update = {"find_rate": False, "concurrency": 1, "requests": 8, "seconds": 0.0, "rate": 0.0, "slo": ""}
    one = params.model_copy(update={**update, "arrivals": "poisson"})
    outcome = _test(one, found, 0.0, first_index=9 * 10**12)
    _usable(params, outcome, lambda _line: None)
    return min(float(f"{outcome.number('requests_per_s') or 1.0:.3g}"), HIGHEST_FIRST_RATE)
