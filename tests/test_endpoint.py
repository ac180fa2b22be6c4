"""A load on running servers: times compared with the server's own, tokens by its own count, failures by kind."""

import json
import math
import random
import statistics
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from endpoint_server import KnownServer, known_server
from stackmark.events import Failed, Log, Metric, Result, Stream, histograms
from stackmark.experiments.verify import impossible_result
from stackmark.spec import Scalar, Spec
from stackmark.verdict.load_curve import LoadPoint, load_curve
from stackmark.workloads.serve.endpoint import EndpointParams, Slo, read_address, read_lengths, read_slo
from stackmark.workloads.serve.impl.client.counted import read_counters
from stackmark.workloads.serve.impl.client.http import RequestFailure
from stackmark.workloads.serve.impl.client.load import Record, take
from stackmark.workloads.serve.impl.client.prompts import Prompts, Scale, arrivals_of
from stackmark.workloads.serve.impl.client.protocols import TextStream
from worker_process import environment, run_worker

GIVEN: dict[str, Scalar] = {
    "device": "cpu", "url": "http://127.0.0.1:1/v1", "model": "known", "concurrency": 1, "seconds": 0.0, "requests": 20,
    "warmup_requests": 1, "processes": 1, "prompt": "24", "generate": "4", "request_timeout": 20.0,
}  # fmt: skip
OPEN: dict[str, Scalar] = {"concurrency": 0, "rate": 100.0}


def params_of(**more: Scalar) -> EndpointParams:
    return EndpointParams.model_validate({**GIVEN, **more})


def loaded(
    server: KnownServer | str, *, key: str = "", variables: Mapping[str, str] | None = None, **more: Scalar
) -> Stream:
    """Run a worker against a server, and return its events."""
    url = server if isinstance(server, str) else server.url
    params = params_of(url=url, **more)
    spec = Spec(workload="serve/endpoint", params=params.model_dump(mode="json"))
    variables = {**(variables or {}), **({"SERVER_KEY": key} if key else {})}
    stream = Stream()
    for line in run_worker(spec, environment(**variables)).lines:
        stream.feed(line)
    if isinstance(stream.ended(), Result):
        assert impossible_result(stream, spec, None) is None
    return stream


def metrics_of(stream: Stream) -> dict[str, float]:
    return {event.name: event.value for event in stream.events if isinstance(event, Metric)}


def flags_of(stream: Stream) -> set[str]:
    result = stream.ended()
    assert isinstance(result, Result), result
    return {flag.partition(":")[0] for flag in result.flags}


def failure_of(stream: Stream) -> Failed:
    failed = stream.ended()
    assert isinstance(failed, Failed)
    return failed


# Times


def test_times_agree_with_those_of_the_server() -> None:
    with known_server(ttft_s=0.05, itl_s=0.01) as server:
        stream = loaded(server, generate="8", requests=25)
        seen = server.seen[-25:]
    metrics = metrics_of(stream)
    theirs = statistics.median((one.wrote_ns[0] - one.came_ns) * 1e-9 for one in seen)
    per_token = statistics.median((one.wrote_ns[-1] - one.wrote_ns[0]) * 1e-9 / 7 for one in seen)
    # What the client adds to the server's own time is bounded only by how busy the machine is; it never takes any away.
    assert theirs <= metrics["p50_ttft"] < theirs + 1
    assert 0 < metrics["p50_tpot"] < per_token + 1
    assert metrics["p50_latency"] >= 0.05 + 7 * 0.01
    assert set(histograms(stream.events)) >= {"latency", "ttft", "tpot"}


def test_tokens_are_the_servers_and_not_chunks() -> None:
    with known_server(itl_s=0.001, tokens_each=4) as server:
        stream = loaded(server, generate="16")
    metrics = metrics_of(stream)
    assert metrics["output_tokens_total"] == 20 * 16
    assert metrics["chunks_total"] == 20 * 4
    assert "itl-refused" in flags_of(stream)
    assert not any(name.endswith("_itl") for name in metrics)
    assert metrics["server_output_tokens"] == 20 * 16
    assert metrics["server_prompt_tokens"] == metrics["prompt_tokens_total"]


def test_an_answer_that_arrives_as_a_whole_has_no_time_per_token() -> None:
    with known_server(tokens_each=100) as server:
        stream = loaded(server, generate="8")
    assert "tpot-refused" in flags_of(stream)
    assert "p50_tpot" not in metrics_of(stream)


def test_a_percentile_needs_ten_answers_beyond_it() -> None:
    with known_server() as server:
        metrics = metrics_of(loaded(server, requests=30))
    assert "p50_latency" in metrics
    assert "p90_latency" not in metrics


def test_latency_counts_from_the_moment_at_which_a_request_was_due() -> None:
    with known_server(ttft_s=0.05, most_at_once=1) as server:
        # 20 requests at once: the last one waits for the 19 before it.
        stream = loaded(server, concurrency=0, rate=1000.0, arrivals="burst:20", generate="1")
    assert metrics_of(stream)["p50_latency"] > 10 * 0.05
    slowest = histograms(stream.events)["latency"].slowest_ns[0] * 1e-9
    assert slowest > 20 * 0.05


def test_an_open_loop_sends_what_its_rate_says_however_slow_the_answers_are() -> None:
    with known_server(ttft_s=0.4) as server:
        stream = loaded(server, concurrency=0, rate=40.0, arrivals="constant", seconds=1.0, requests=0, generate="1")
        assert len(server.seen) == 40 + 3
    metrics = metrics_of(stream)
    assert (metrics["asked"], metrics["sent"], metrics["answered"]) == (40, 40, 40)


# Arrivals and prompts


def test_poisson_arrivals_have_their_rate_and_no_memory() -> None:
    moments = arrivals_of(params_of(**{**OPEN, "seconds": 100.0, "requests": 0}), 30.0)
    gaps = [b - a for a, b in zip([0.0, *moments], moments, strict=False)]
    assert abs(len(moments) - 3000) < 5 * math.sqrt(3000)
    # Of an exponential distribution the deviation is the mean, and gaps do not follow from the ones before.
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(1, abs=0.1)
    assert abs(statistics.correlation(gaps[:-1], gaps[1:])) < 0.1
    assert 0 < moments[0] < moments[-1] < 100


@pytest.mark.parametrize(("arrivals", "together"), [("constant", 1), ("burst", 8), ("burst:20", 20)])
def test_arrivals_keep_the_rate(arrivals: str, together: int) -> None:
    moments = arrivals_of(params_of(**{**OPEN, "seconds": 200.0, "requests": 0, "arrivals": arrivals}), 20.0)
    assert len(moments) / 200 == pytest.approx(20, rel=0.25)
    assert {moments.count(one) for one in moments[:-together]} == {together}


def test_no_two_prompts_begin_alike_unless_a_common_part_was_asked_for() -> None:
    texts = [Prompts(params_of(prompt="200"), salt="run").number(index).prompt for index in range(200)]
    assert len({str(text)[:30] for text in texts}) == 200
    other = Prompts(params_of(prompt="200"), salt="another run").number(0)
    assert other.prompt != texts[0]
    shared = [Prompts(params_of(prefix_share=0.5), salt="run").number(index).prompt for index in range(20)]
    common = [str(text).split()[:12] for text in shared]
    assert common == [common[0]] * 20
    assert len({str(text).split()[12] for text in shared}) > 1


def test_the_arms_of_a_block_have_the_same_lengths() -> None:
    params = params_of(prompt="uniform:10-500", generate="lognormal:64:0.8")
    lengths = [
        [
            (one.prompt_tokens, one.output_tokens)
            for one in map(Prompts(params, salt=salt, repetition=block).number, range(50))
        ]
        for salt, block in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert lengths[0] == lengths[1] != lengths[2]


def test_lengths_follow_their_distributions() -> None:
    source = random.Random(1)
    uniform = [read_lengths("uniform:100-900").draw(source) for _ in range(4000)]
    assert (min(uniform) >= 100, max(uniform) <= 900) == (True, True)
    assert statistics.mean(uniform) == pytest.approx(500, rel=0.05)
    logs = [math.log(read_lengths("lognormal:512:0.5").draw(source)) for _ in range(4000)]
    assert statistics.mean(logs) == pytest.approx(math.log(512), abs=0.05)
    assert statistics.stdev(logs) == pytest.approx(0.5, rel=0.1)


def test_a_prompt_has_the_tokens_that_were_asked_for_by_the_servers_count() -> None:
    scale = Scale(template=20, per_word=1.5)
    for tokens in (30, 512, 4096):
        words = len(Prompts(params_of(), scale).text(scale.words(tokens), random.Random(1)).split())
        assert 20 + 1.5 * words == pytest.approx(tokens, abs=1)


# Failures


def test_errors_are_counted_by_kind_and_are_no_latencies() -> None:
    with known_server(ttft_s=0.01, fail_after=23) as server:  # three of them before the load
        stream = loaded(server, requests=50)
    metrics = metrics_of(stream)
    assert (metrics["answered"], metrics["failed"], metrics["failed_http_503"]) == (20, 30, 30)
    assert metrics["failed_share"] == pytest.approx(0.6)
    assert histograms(stream.events)["latency"].total == 20
    assert "requests-failed" in flags_of(stream)


@pytest.mark.parametrize(
    ("trick", "kind"),
    [
        ("silent", "timeout"), ("drip", "garbage"), ("garbage", "garbage"), ("huge-line", "garbage"), ("cut", "truncated"),
        ("not-json", "garbage"), ("error-in-stream", "stream_error"), ("hostile", "http_500"),
    ],
)  # fmt: skip
def test_what_a_server_breaks_is_named_and_what_was_measured_is_kept(trick: str, kind: str) -> None:
    with known_server(trick=trick, trick_after=23) as server:
        stream = loaded(server, requests=22, request_timeout=0.5)
    metrics = metrics_of(stream)
    assert metrics["answered"] == 20
    assert metrics["failed"] == metrics[f"failed_{kind}"] == 2
    result = stream.ended()
    assert isinstance(result, Result)
    assert all(flag.isprintable() and len(flag) < 600 for flag in result.flags)
    assert all(event.line.isprintable() for event in stream.events if isinstance(event, Log))


@pytest.mark.parametrize("trick", ["silent", "garbage", "hostile", "reset", "cut"])
def test_a_server_that_never_answers_well_fails_the_run_with_a_sentence(trick: str) -> None:
    with known_server(trick=trick) as server:
        failed = failure_of(loaded(server, request_timeout=0.5))
    assert failed.kind == "no_answer"
    assert server.url in failed.message
    assert failed.message.isprintable()


def test_a_server_that_is_not_there_fails_the_run_with_a_sentence() -> None:
    failed = failure_of(loaded("http://127.0.0.1:1/v1"))
    assert failed.kind == "no_answer"
    assert "refused" in failed.message


def test_a_certificate_is_verified(tmp_path: Path) -> None:
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=test",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    with known_server(tls=(cert, key)) as server:
        failed = failure_of(loaded(server))
        trusted = loaded(server, variables={"SSL_CERT_FILE": cert})
    assert failed.kind == "no_answer"
    assert "TLS" in failed.message
    assert metrics_of(trusted)["answered"] == 20


def test_a_server_that_dies_ends_the_run_and_what_was_measured_is_kept() -> None:
    with known_server(die_after=43) as server:
        stream = loaded(server, requests=0, seconds=60.0)
    failed, metrics = failure_of(stream), metrics_of(stream)
    assert failed.kind == "no_answer"
    assert "40 requests had been answered" in failed.message
    assert metrics["answered"] == 40
    assert metrics["p50_latency"] > 0
    assert metrics["requests_per_s"] > 1  # of the time in which there was a server, not of the 60 s that were asked for


@pytest.mark.parametrize("count", [10**9, -4, "many", True, 0])
def test_an_impossible_count_of_tokens_is_a_failure(count: Any) -> None:
    with known_server(usage=lambda prompt, output: {"prompt_tokens": prompt, "completion_tokens": count}) as server:
        failed = failure_of(loaded(server, requests=3))
    assert failed.kind == "no_answer"
    assert "wrong usage" in failed.message


def test_without_a_count_there_is_no_throughput_and_the_times_are_kept() -> None:
    with known_server(usage=lambda prompt, output: None) as server:
        stream = loaded(server)
        opened = loaded(server, concurrency=0, rate=100.0)
    assert failure_of(stream).kind == "no_figure"
    assert metrics_of(stream)["p50_ttft"] > 0
    result = opened.ended()
    assert isinstance(result, Result)
    assert result.figure is not None
    assert result.figure.name == "p50 latency"


def test_a_connection_that_the_server_closed_is_opened_again() -> None:
    with known_server(closes=True) as server:
        metrics = metrics_of(loaded(server, requests=10))
    assert (metrics["answered"], metrics["failed"]) == (10, 0)
    with known_server() as server:
        loaded(server, requests=10)
        assert server.connections < 5


def test_a_server_that_refuses_further_settings_is_asked_without_them() -> None:
    with known_server(refuses_extras=True) as server:
        stream = loaded(server, requests=3)
    assert "no-ignore-eos" in flags_of(stream)


# Keys


def test_a_key_goes_to_the_server_and_nowhere_else() -> None:
    with known_server() as server:
        stream = loaded(server, key="sk-very-secret", api_key_env="SERVER_KEY", requests=2)
        assert all(one.headers["authorization"] == "Bearer sk-very-secret" for one in server.seen)
    with known_server(trick="echo-key") as server:
        echoed = loaded(server, key="sk-very-secret", api_key_env="SERVER_KEY")
    assert failure_of(echoed).kind == "no_answer"
    for one in (stream, echoed):
        assert "sk-very-secret" not in "".join(event.model_dump_json() for event in one.events)


def test_a_key_that_is_not_set_is_named() -> None:
    failed = failure_of(loaded("http://127.0.0.1:1/v1", api_key_env="SERVER_KEY"))
    assert (failed.kind, "SERVER_KEY" in failed.message) == ("bad_parameter", True)


def test_an_answer_without_content_shows_the_tokens_of_its_prompt() -> None:
    record, answer = Record(index=-1, due_ns=0), TextStream()
    chunk = {
        "choices": [{"text": "", "finish_reason": "length"}],
        "usage": {"prompt_tokens": 31, "completion_tokens": 2},
    }
    answer.receive(memoryview(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()), 1)
    with pytest.raises(RequestFailure, match="no content"):
        take(record, answer)
    assert record.prompt == 31


# What is typed


@pytest.mark.parametrize(
    "more",
    [
        {"url": "127.0.0.1:8000"}, {"url": "http://user:secret@host/v1"}, {"url": "ftp://host/v1"}, {"url": "http://h/v1?key=1"},
        {"url": "http://h:99999/v1"}, {"concurrency": 0}, {"rate": 2.0}, {"slo": "ttft"}, {"slo": "ttft=-1s"},
        {"slo": "share=90%"}, {"slo": "ttft=1s,ttft=2s"}, {"slo": "itl=1s"}, {"prompt": "uniform:900-100"}, {"prompt": "0"},
        {"generate": "lognormal:100:9"}, {"find_rate": True, "concurrency": 0}, {"api_key_env": "sk-12"},
        {"api_key_env": "PLAIN"}, {"protocol": "kserve", "slo": "ttft=1s"}, {"requests": 0},
        {"slo": "ttft=200"}, {"slo": "tpot=0.05"}, {"arrivals": "burst:4"}, {"arrivals": "constant"},
        {"concurrency": 0, "rate": 2.0, "arrivals": "burst:0"}, {"concurrency": 0, "find_rate": True, "slo": "ttft=1s"},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(more: dict[str, Scalar]) -> None:
    with pytest.raises(ValueError):
        params_of(**more)


def test_an_slo_is_read() -> None:
    assert read_slo("ttft=200ms, tpot=50ms,share=99%") == Slo({"ttft": 0.2, "tpot": 0.05}, 0.99)
    assert read_address("https://[::1]/v1/").shown_host == "[::1]"
    assert read_address("https://host:8443/v1/").path == "/v1"


def test_goodput_counts_the_answers_within_the_slo() -> None:
    with known_server(ttft_s=0.3) as server:
        stream = loaded(server, concurrency=0, rate=200.0, slo="ttft=100ms", requests=10)
        kept = loaded(server, concurrency=0, rate=200.0, slo="ttft=60s", requests=10)
    assert failure_of(stream).kind == "no_figure"
    assert metrics_of(stream)["slo_share"] == 0
    assert metrics_of(kept)["slo_share"] == 1
    result = kept.ended()
    assert isinstance(result, Result)
    assert result.figure is not None
    assert (result.figure.name, result.figure.unit) == ("goodput", "requests/s")


def test_the_search_finds_where_a_server_with_few_slots_gives_in() -> None:
    # Two slots of 20 ms each: 100 requests/s at the most.
    with known_server(ttft_s=0.02, most_at_once=2) as server:
        stream = loaded(
            server, concurrency=0, find_rate=True, slo="latency=200ms,share=80%", generate="1", seconds=0.3, requests=0
        )
    metrics, result = metrics_of(stream), stream.ended()
    assert isinstance(result, Result)
    assert result.figure is not None
    assert result.figure.value == metrics["rate_holds"] < metrics["rate_fails"]
    # At twice its limit the last of the 50 requests of a test wait for 250 ms.
    assert metrics["rate_holds"] <= 200
    said = [event.line for event in stream.events if isinstance(event, Log)]
    for key, word in (("rate_holds", "holds"), ("rate_fails", "fails")):
        assert sum(line.startswith(f"{metrics[key]:g} requests/s {word}") for line in said) >= 3


def point(load: float, rate: float, latency_s: float) -> LoadPoint:
    return LoadPoint(load, rate, None, 0.0, {"p50_latency": latency_s})


def test_the_knee_is_the_load_with_the_most_answers_for_its_latency() -> None:
    curve = load_curve("rate", [point(16, 40, 4.0), point(1, 10, 1.0), point(4, 38, 1.1)])
    assert curve is not None
    assert [one.load for one in curve.points] == [1, 4, 16]
    assert curve.knee is curve.best is curve.points[1]


def test_a_knee_is_not_named_where_the_loads_do_not_show_it() -> None:
    curve = load_curve("rate", [point(1, 10, 1.0), point(2, 20, 1.0), point(4, 40, 1.0)])
    assert curve is not None
    assert curve.knee is None
    assert load_curve("rate", [point(1, 10, 1.0), point(2, 20, 1.0), point(3, 0, 1.0)]) is None


def test_several_processes_send_each_request_once() -> None:
    with known_server(ttft_s=0.01) as server:
        stream = loaded(server, concurrency=0, rate=200.0, requests=41, processes=3, generate="1")
        prompts = [one.prompt for one in server.seen[-41:]]
    metrics = metrics_of(stream)
    assert (metrics["asked"], metrics["answered"], metrics["client_processes"]) == (41, 41, 3)
    assert len(set(prompts)) == 41


def test_a_difference_from_the_servers_own_counters_is_said() -> None:
    with known_server(
        usage=lambda prompt, output: {"prompt_tokens": prompt, "completion_tokens": output - 1}
    ) as server:
        stream = loaded(server)
    metrics = metrics_of(stream)
    assert metrics["server_output_tokens"] - metrics["output_tokens_total"] == 20
    assert "counters-differ" in flags_of(stream)


def test_counters_are_read_from_whatever_a_server_prints() -> None:
    text = 'vllm:prompt_tokens_total{a="}"} 3\nvllm:prompt_tokens_total{a="b"} 4 17\nvllm:generation_tokens_total nan\n{}\n\n'
    assert read_counters(text + "llamacpp:tokens_predicted_total\n") == {"vllm:prompt_tokens_total": 7}


def test_a_classic_model_is_asked_by_kserve() -> None:
    with known_server(ttft_s=0.001) as server:
        stream = loaded(f"http://127.0.0.1:{server.port}", protocol="kserve")
        assert server.seen[0].body["inputs"][0]["shape"] == [1, 3]
    result = stream.ended()
    assert isinstance(result, Result)
    assert result.figure is not None
    assert (result.figure.name, result.figure.unit) == ("throughput", "requests/s")
    assert not any("ttft" in name or "token" in name for name in metrics_of(stream))


def test_prompts_and_arrivals_come_from_files(tmp_path: Path) -> None:
    prompts, arrivals = tmp_path / "prompts.jsonl", tmp_path / "arrivals"
    prompts.write_text('{"prompt": "one"}\n{"messages": [{"role": "user", "content": "two"}], "generate": 7}\n')
    arrivals.write_text("100.0\n100.2\n" + json.dumps({"at": 100.1}) + "\n")
    with known_server() as server:
        stream = loaded(
            server,
            concurrency=0,
            requests=0,
            prompts=str(prompts),
            arrivals=str(arrivals),
            slo="latency=60s",
            generate="3",
        )
        assert sorted((one.prompt, one.body["max_tokens"]) for one in server.seen[-3:]) == [
            ("one", 3),
            ("one", 3),
            ("two", 7),
        ]
    assert metrics_of(stream)["asked"] == 3


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"prompt": 3}', '{"prompt": ""}', '{"prompt": "x", "generate": 0}', "[" * 9999]
)
def test_a_broken_line_of_prompts_is_named(tmp_path: Path, line: str) -> None:
    from stackmark.workloads.serve.impl.client.prompts import read_prompts

    file = tmp_path / "prompts.jsonl"
    file.write_text(f'{{"prompt": "fine"}}\n{line}\n')
    with pytest.raises(Exception, match="line 2"):
        read_prompts(params_of(prompts=str(file)))
