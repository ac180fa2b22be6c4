"""Results of load generators for LLM servers: real files of five programs against one server, and files that lie.

tests/data/logs/README.md says how each was made. The expected numbers are read from the files by hand, not by our code.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asking import ask
from stackmark.errors import SpecError
from stackmark.ledger.importers import FORMATS, format_of, results_of
from stackmark.ledger.importers.documents import LARGEST_YAML
from stackmark.ledger.importers.found import Found
from stackmark.ledger.importers.reading import opened

SERVING = Path(__file__).parent / "data" / "logs" / "serving"


def found_in(path: Path, kind: str | None = None) -> list[Found]:
    with opened(str(path)) as log:
        return results_of(log, FORMATS[kind] if kind else format_of(log))


def only(name: str) -> Found:
    (found,) = found_in(SERVING / name)
    return found


def written(folder: Path, content: object) -> Path:
    path = folder / "result.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def changed(name: str, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write a copy of a result with something in it changed."""
    content = json.loads((SERVING / name).read_text())
    change(content)
    return written(folder, content)


def metrics(found: Found) -> dict[str, float]:
    return {one.name: one.value for one in found.said}


# Real files


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("vllm_concurrency.json", "vllm-bench"), ("vllm_concurrency.log", "vllm-bench-log"), ("vllm_rate.json", "vllm-bench"),
        ("guidellm_concurrency.json", "guidellm"), ("aiperf_concurrency.json", "aiperf"),
        ("aiperf_concurrency.csv", "aiperf-csv"), ("inference_perf_concurrency.json", "inference-perf"),
        ("llm_d_partial.yaml", "llm-d"), ("llm_d_0.1.yaml", "llm-d"), ("llm_d_0.2.yaml", "llm-d"),
    ],
)  # fmt: skip
def test_the_format_is_found_and_every_result_is_a_load_point(name: str, kind: str) -> None:
    with opened(str(SERVING / name)) as log:
        assert format_of(log).name == kind
    found = only(name)
    assert (found.workload, found.failure) == ("serve/endpoint", None)
    assert all(one.unit for one in found.said)


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("vllm_concurrency.json", 237.63751312470015), ("vllm_concurrency.log", 237.64),
        ("guidellm_concurrency.json", 172.79493620644), ("aiperf_concurrency.json", 203.79722879665653),
        ("aiperf_concurrency.csv", 203.80), ("inference_perf_concurrency.json", 206.851),
    ],
)  # fmt: skip
def test_a_closed_loop_is_judged_by_its_output_tokens(name: str, figure: float) -> None:
    found = only(name).figure
    assert found is not None
    assert (found.name, found.unit, found.higher_is_better) == ("output throughput", "tokens/s", True)
    assert found.value == pytest.approx(figure, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "ms"),
    [("guidellm_rate.json", 1258.798), ("aiperf_rate.json", 430.81), ("inference_perf_rate.json", 3448.8),
     ("vllm_rate.json", 138.078)],
)  # fmt: skip
def test_an_open_loop_is_judged_by_its_median_latency(name: str, ms: float) -> None:
    found = only(name)
    assert found.figure is not None
    assert (found.figure.name, found.figure.unit, found.figure.higher_is_better) == ("p50 latency", "ms", False)
    assert found.figure.value == pytest.approx(ms, rel=1e-3)
    assert found.params["rate"] == 2.0


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("vllm_concurrency.json", {"concurrency": 2, "requests": 40, "prompt": "64", "protocol": "completions"}),
        ("guidellm_concurrency.json",
         {"concurrency": 2, "requests": 40, "prompt": "64", "generate": "32", "protocol": "completions"}),
        ("guidellm_rate.json", {"rate": 2.0, "arrivals": "poisson", "prompt": "64", "generate": "32", "protocol": "completions"}),
        ("aiperf_rate.json",
         {"rate": 2.0, "arrivals": "poisson", "requests": 40, "prompt": "64", "generate": "32", "protocol": "completions"}),
    ],
)  # fmt: skip
def test_the_load_that_was_asked_for_becomes_parameters(name: str, params: dict[str, object]) -> None:
    assert only(name).params == {"model": "random-27m.gguf", **params}


def test_latencies_have_one_name_and_unit_whatever_the_tool() -> None:
    vllm, guide = (metrics(only(f"{tool}_concurrency.json")) for tool in ("vllm", "guidellm"))
    aiperf, perf = (metrics(only(f"{tool}_concurrency.json")) for tool in ("aiperf", "inference_perf"))
    assert vllm["p50_ttft"] == pytest.approx(0.12129, rel=1e-3)
    for said in (vllm, guide, aiperf, perf):
        assert 0.01 < said["p50_ttft"] < 1
        assert 0.001 < said["p50_tpot"] < 0.1
        assert said["p50_ttft"] < said["p50_latency"] < said["p99_latency"] < 10


def test_what_guidellm_calls_tpot_holds_the_first_token_and_is_not_ours() -> None:
    said = metrics(only("guidellm_concurrency.json"))
    assert said["p50_tpot"] < said["p50_latency_per_token"]
    content = json.loads((SERVING / "guidellm_concurrency.json").read_text())["benchmarks"][0]["metrics"]
    assert said["p50_tpot"] == pytest.approx(content["inter_token_latency_ms"]["successful"]["median"] / 1000)


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("guidellm_rate.json", "other-rate: 2 requests/s were asked for, 2.95 were answered"),
        ("aiperf_concurrency.json", "counted 1546 output tokens, the server 1152"),
        ("inference_perf_rate.json", "clumped: the median time between tokens is 0 ms"),
        ("vllm_concurrency.json", "errors: 2 of 40 requests failed; the first: aiohttp.client_exceptions.ServerDisconnected"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_flagged(name: str, flag: str) -> None:
    assert any(flag in one for one in only(name).flags), only(name).flags


def test_errors_are_counted_by_kind_and_are_not_latencies() -> None:
    said = metrics(only("vllm_concurrency.json"))
    assert (said["answered"], said["failed"]) == (38, 2)
    assert metrics(only("inference_perf_concurrency.json"))["failed"] == 1


def test_the_printed_table_says_what_the_file_says() -> None:
    file, table = (metrics(only(f"vllm_concurrency.{ending}")) for ending in ("json", "log"))
    assert set(table) <= set(file)
    assert all(table[name] == pytest.approx(file[name], rel=0.01) for name in table)
    assert only("vllm_concurrency.log").params["model"] == "random-27m.gguf"


def test_llm_ds_scenario_names_the_model_and_the_load() -> None:
    found = only("llm_d_0.2.yaml")
    assert found.params == {"model": "m", "rate": 4.0, "prompt": "512", "generate": "128"}
    assert dict(found.facts)["load_generator"] == "inference-perf"
    assert metrics(found)["p50_ttft"] == pytest.approx(0.0213)  # it is given in ms there


def test_several_results_of_a_file_are_several_runs(tmp_path: Path) -> None:
    line = (SERVING / "vllm_rate.json").read_text().strip()
    assert len(found_in(written(tmp_path, f"{line}\n{line}\n"))) == 2

    def twice(content: dict[str, Any]) -> None:
        content["benchmarks"] *= 3

    assert len(found_in(changed("guidellm_rate.json", tmp_path, twice))) == 3


def test_a_run_of_another_tool_is_a_run_like_any_other(tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.sqlite3")
    files = [str(SERVING / f"{tool}_concurrency.json") for tool in ("vllm", "guidellm", "aiperf", "inference_perf")]
    assert ask("import", *files, "--ledger", ledger).code == 0
    rows = json.loads(ask("results", "--ledger", ledger, "--json").out)["runs"]
    assert {row["workload"] for row in rows} == {"serve/endpoint"}
    assert "ttft: mean" in ask("show", rows[0]["id"], "--ledger", ledger).out
    assert ask("show", rows[0]["id"], "--ledger", ledger).code == 0


def test_two_results_of_one_tool_are_compared(tmp_path: Path) -> None:
    def slower(content: dict[str, Any]) -> None:
        content["output_throughput"] *= 0.5

    files = []
    for number, change in enumerate((dict[str, Any].copy, slower) * 3):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = changed("vllm_concurrency.json", folder, change)
        path.write_text(path.read_text().replace('"date": "', f'"date": "{number}'))
        files.append(str(path))
    arms = [word for i, file in enumerate(files) for word in ("--arm", f"{'ab'[i % 2]}={file}")]
    answer = ask("import", *arms, "--ledger", str(tmp_path / "l.sqlite3"))
    assert "SLOWER" in answer.out, answer.err


# Files that lie


def test_a_load_point_without_an_answer_is_a_failed_run(tmp_path: Path) -> None:
    def fail(content: dict[str, Any]) -> None:
        content.update(completed=0, failed=40, request_throughput=0.0, output_throughput=0.0, median_ttft_ms=0.0)
        content["errors"] = ["Traceback …\nConnectionRefusedError: [Errno 111] refused"] * 40

    (found,) = found_in(changed("vllm_concurrency.json", tmp_path, fail))
    assert (found.figure, found.said) == (None, ())
    assert found.failure is not None
    assert found.failure.kind == "no_answer"
    assert "all 40 requests failed; the first error: ConnectionRefusedError" in found.failure.message
    answer = ask("import", str(tmp_path / "result.json"), "--ledger", str(tmp_path / "l.sqlite3"), "--json")
    assert answer.code == 3


@pytest.mark.parametrize(
    ("value", "kind"),
    [("NaN", "not_finite"), ("Infinity", "not_finite"), ("-3", "bad_number"), ("1e300", "bad_number"), ("1e-300", "bad_number"),
     ('"12 ms"', "bad_number"), ("9" * 3000, "bad_number")],
)  # fmt: skip
def test_an_impossible_number_is_a_failed_run_that_names_its_place(value: str, kind: str, tmp_path: Path) -> None:
    text = (SERVING / "vllm_rate.json").read_text()
    begin = text.index('"p99_ttft_ms": ') + len('"p99_ttft_ms": ')
    path = written(tmp_path, f"{text[:begin]}{value}{text[text.index(',', begin) :]}")
    (found,) = found_in(path)
    assert found.failure is not None
    assert (found.failure.kind, found.figure) == (kind, None)
    assert "p99_ttft_ms: the time to the first token (p99)" in found.failure.message


@pytest.mark.parametrize("value", [None, True, [], {}, "text", [[1]], {"a": {}}, 0])
@pytest.mark.parametrize("name", ["vllm_concurrency", "guidellm_rate", "aiperf_rate", "inference_perf_concurrency"])
def test_a_value_of_a_wrong_type_never_crashes(name: str, value: object, tmp_path: Path) -> None:
    """Each value of the file in turn, down to the fourth level."""
    content = json.loads((SERVING / f"{name}.json").read_text())
    kind = format_name(SERVING / f"{name}.json")

    def walk(inner: object, depth: int) -> None:
        places: list[Any] = list(inner) if isinstance(inner, dict) else []
        for place in places or range(min(len(inner), 2) if isinstance(inner, list) else 0):
            before = inner[place]  # type: ignore[index]
            inner[place] = value  # type: ignore[index]
            refused_or_found(written(tmp_path, content), kind)
            inner[place] = before  # type: ignore[index]
            if depth < 4:
                walk(before, depth + 1)

    walk(content, 1)


def format_name(path: Path) -> str:
    with opened(str(path)) as log:
        return format_of(log).name


def refused_or_found(path: Path, kind: str) -> None:
    try:
        found = found_in(path, kind)
    except SpecError:
        return
    assert all(one.figure is None or one.figure.value > 0 for one in found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"burstiness": 1, "x": ', "is not JSON"),
        ('{"burstiness": ' + "[" * 100 + "]" * 100 + "}", "nested more than 64 deep"),
        ('{"burstiness": ' + "[" * 100_000, "is not JSON: it is nested too deeply"),
        ("request_performance:\n a: &a [x]\n b: *a\n", "aliases are not supported"),
        ("request_performance:\n a: [\n", "is not YAML"),
        ("request_performance:\n a: !!python/object/apply:os.system [ls]\n", "is not YAML"),
        ("results:\n request_performance:\n" + "x" * LARGEST_YAML, "larger than 1 MiB"),
    ],
)
def test_a_document_that_is_none_is_refused_with_a_sentence(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        found_in(written(tmp_path, text))
    assert said in caught.value.message


def test_nine_lines_that_mean_a_billion_values_are_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    path = written(tmp_path, "\n".join([*lines, "request_performance:", ""]))
    answer = ask("import", str(path), "--ledger", str(tmp_path / "l.sqlite3"))
    assert (answer.code, "has an alias in line 2" in answer.err) == (2, True)


def test_a_file_past_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, '{"burstiness": 1}' + " " * 10_000)
    with path.open("r+b") as file:
        file.truncate(65 * 1024**2)  # of nothing, which takes no space on the disk
    with pytest.raises(SpecError) as caught:
        found_in(path, "vllm-bench")
    assert "larger than 64 MiB" in caught.value.message


def test_control_characters_of_a_file_do_not_reach_the_screen(tmp_path: Path) -> None:
    path = changed("vllm_rate.json", tmp_path, lambda one: one.update(model_id="a\x1b[31mred\x00b", label="x\ud800y"))
    ledger = str(tmp_path / "l.sqlite3")
    assert ask("import", str(path), "--ledger", ledger).code == 0
    assert "\x1b" not in ask("show", "last", "--ledger", ledger, "--details").out


def test_an_integer_that_python_does_not_print_is_a_failed_run(tmp_path: Path) -> None:
    text = (SERVING / "llm_d_0.2.yaml").read_text().replace("total: 20", "total: 0x" + "f" * 5000)
    (found,) = found_in(written(tmp_path, text))
    assert found.failure is not None
    assert found.failure.kind == "bad_number"


def test_one_file_under_two_names_is_imported_once(tmp_path: Path) -> None:
    shutil.copy(SERVING / "vllm_rate.json", tmp_path / "again.json")
    files = [str(SERVING / "vllm_rate.json"), str(tmp_path / "again.json")]
    assert ask("import", *files, "--ledger", str(tmp_path / "l.sqlite3")).code == 7
