"""The contracts: what goes into a worker comes in whole, what comes out is read as it was written, and nothing hostile
in a line becomes a traceback."""

import json
import math
import re
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field as PydanticField

import golden_screens
from refusing import refused
from stackmark import events
from stackmark.errors import SpecError, StreamError
from stackmark.events import Event, Stream, gathered_facts, measured_steps, read_event, write_event
from stackmark.frozen import Frozen
from stackmark.model import JsonValue, ValidationError
from stackmark.spec import AUTO, SPEC_LIMIT_BYTES, Request, Scalar, Spec, Task, explain, read_task

H200 = Path(__file__).parent / "data" / "h200_gpt2.jsonl"
SPEC = Spec(workload="train/resnet50", params={"batch": 64, "seconds": 10.0, "fused": True, "data": "device"})

numbers = st.floats(allow_nan=False, allow_infinity=False)
quantities = st.floats(-events.LARGEST, events.LARGEST)
counts = st.integers(0, events.MOST_COUNTED)
seconds = st.floats(0, events.LONGEST_S)
times = st.floats(min_value=0, max_value=1e9)
texts = st.text(max_size=30)
scalars: st.SearchStrategy[Scalar] = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | numbers | texts
json_values: st.SearchStrategy[JsonValue] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
names = st.from_regex(r"[a-z][a-z0-9-]{0,8}/[a-z0-9][a-z0-9._-]{0,12}", fullmatch=True)
params = st.dictionaries(texts, scalars, max_size=5)
specs = st.builds(Spec, workload=names, params=params, ranks=st.integers(1, 10**6))
requests = st.builds(Request, workload=names, params=params, ranks=st.integers(1, 10**6))
points = st.lists(st.tuples(st.integers(0, 10**7), numbers), max_size=3)

words = st.dictionaries(texts, texts, max_size=3)
lists = st.lists(texts, max_size=3)
FIELDS: dict[type[Event], dict[str, st.SearchStrategy[Any]]] = {
    events.Hello: {"time_unix_s": st.floats(0, 1e11), "pid": counts, "ranks": st.integers(1, 10**6), "versions": words},
    events.Probe: {"spec": specs, "choices": words},
    events.Facts: {"subject": texts, "facts": st.dictionaries(texts, json_values, max_size=3), "problems": lists},
    events.Phase: {
        "phase": texts,
        "state": st.sampled_from(["begin", "end"]),
        "seconds": st.none() | seconds,
        "expected_s": st.none() | quantities,
        "expected_steps": st.none() | counts,
        "note": texts,
    },
    events.Steps: {
        "phase": st.sampled_from(["warm-up", "measure"]),
        "first": counts,
        "step_s": st.lists(seconds, max_size=5),
        "losses": points,
        "top_1": points,
        "top_5": points,
    },
    events.Sampled: {
        "hz": quantities,
        "interval_s": quantities,
        "samples_all": counts,
        "cpu_s": seconds,
        "elapsed_s": seconds,
        "gpus": st.dictionaries(texts, st.dictionaries(texts, json_values, max_size=2), max_size=2),
        "problems": lists,
    },
    events.Sample: {"values": st.dictionaries(texts, quantities, max_size=3), "at_s": st.none() | seconds},
    events.Row: {
        "row": st.builds(
            events.OpRow,
            index=st.integers(0, 10**6),
            op=texts,
            shape=st.dictionaries(texts, st.integers() | st.booleans() | texts, max_size=5),
            precision=texts,
            call_s=st.lists(seconds, max_size=20),
            error=numbers | st.none(),
            notes=st.lists(texts, max_size=3),
        ),
        "done": st.integers(1, 10**6),
        "of": st.integers(1, 10**6),
    },
    events.Metric: {"name": texts, "value": quantities, "unit": texts, "higher_is_better": st.booleans()},
    events.Latencies: {
        "name": texts,
        "counts": st.lists(st.tuples(counts, st.integers(1, events.MOST_COUNTED)), max_size=4),
        "first_ns": st.lists(counts, max_size=4),
        "slowest_ns": st.lists(counts, max_size=4),
    },
    events.Evaluation: {
        "number": st.integers(1, events.MOST_EVALUATIONS),
        "epoch": st.floats(0, events.LARGEST),
        "samples": counts,
        "clock_s": seconds,
        "quality": st.dictionaries(texts, quantities, max_size=2),
        "target": st.dictionaries(texts, quantities, max_size=2),
        "reached": st.booleans(),
    },
    events.Log: {"line": texts},
    events.Result: {
        "sample": texts,
        "samples_per_step": st.integers(1, events.MOST_COUNTED),
        "steps": st.integers(1, events.MOST_COUNTED),
        "wall_s": st.floats(1e-9, 1e9),
        "tick_s": st.floats(1e-9, 1),
        "memory_peak_mib": st.none() | quantities,
        "invalid": lists,
        "flags": lists,
    },
    events.Failed: {"kind": texts, "message": texts, "hint": texts},
}
COMMON = {"seq": counts, "rank": st.integers(0, 10**6), "t": times}


def log(seq: int, line: str = "x", rank: int = 0) -> str:
    return write_event(events.Log(seq=seq, rank=rank, t=0.5, line=line))


# What goes in


@given(specs)
def test_a_spec_comes_back_from_json_as_it_was(spec: Spec) -> None:
    again = Spec.model_validate_json(spec.canonical())
    assert again == spec
    assert again.digest == spec.digest
    assert [type(v) for v in again.params.values()] == [type(spec.params[k]) for k in again.params]


@given(requests)
def test_a_request_comes_back_from_json_as_it_was(request: Request) -> None:
    assert Request.model_validate_json(request.model_dump_json()) == request


@given(specs, requests, st.integers(0, 1000), st.booleans(), st.sampled_from(["run", "probe", "facts"]))
def test_a_task_comes_back_from_its_line_as_it_was(
    spec: Spec, request: Request, rank: int, lifeline: bool, do: Any
) -> None:
    task = Task(do=do, spec=spec, request=request, rank=rank, lifeline=lifeline)
    line = task.model_dump_json()
    assert "\n" not in line
    assert read_task(line) == task
    assert read_task(line.encode() + b"\n") == task


def test_the_hash_of_a_spec_never_changes_its_meaning() -> None:
    """Pinned: another value here would make every stored run a stranger to the next one."""
    canonical = (
        '{"params":{"batch":64,"data":"device","fused":true,"seconds":10.0},"ranks":1,"schema_version":1,'
        '"workload":"train/resnet50"}'
    )
    assert SPEC.canonical() == canonical
    assert SPEC.digest == "05770e2a0fbc49737055d85e601299a1b44d210303e44a59e9908ce5e23b79c0"


@given(st.permutations(sorted(SPEC.params)))
def test_the_hash_does_not_depend_on_the_order_of_the_parameters(order: list[str]) -> None:
    assert Spec(workload=SPEC.workload, params={name: SPEC.params[name] for name in order}).digest == SPEC.digest


@pytest.mark.parametrize(
    "change", [{"batch": 65}, {"batch": "64"}, {"seconds": 10.5}, {"fused": False}, {"data": "host"}, {"more": None}]
)
def test_the_hash_changes_with_any_parameter(change: dict[str, Scalar]) -> None:
    assert SPEC.model_copy(update={"params": {**SPEC.params, **change}}).digest != SPEC.digest


def test_the_hash_changes_with_the_workload_and_the_ranks() -> None:
    others = [SPEC.model_copy(update=change) for change in ({"workload": "train/vgg16"}, {"ranks": 2})]
    assert len({SPEC.digest, *(other.digest for other in others)}) == 3


def test_the_hash_knows_nothing_of_the_place() -> None:
    """What a task adds to a spec (rank, lifeline) belongs to the place, and a spec has no room for it."""
    assert set(Spec.model_fields) == {"schema_version", "workload", "params", "ranks"}
    in_a_pod = Task(do="run", spec=SPEC, rank=3, lifeline=False).spec
    assert in_a_pod is not None
    assert in_a_pod.digest == SPEC.digest


def test_what_is_auto_or_empty_was_not_typed() -> None:
    request = Request(workload="train/vgg16", params={"batch": AUTO, "seed": None, "steps": 0, "data": "host"})
    assert request.typed() == {"steps": 0, "data": "host"}


@pytest.mark.parametrize(
    "task",
    [
        "", "null", "[]", "{", "train/resnet50", b"\xff\xfe\x00", '{"do":"run"}', '{"do":"probe"}', '{"do":"dance"}',
        '{"do":"facts","more":1}', '{"do":"facts","schema_version":2}', '{"do":"facts","x":"\udc80"}', "[" * 90_000,
        '{"do":"run","spec":{"workload":"train/a","params":{"a":NaN}}}',
        '{"do":"run","spec":{"workload":"train/a","params":{"a":1e999}}}',
        '{"do":"run","spec":{"workload":"train/a","params":{"a":%s}}}' % ("9" * 5000),
        '{"do":"run","spec":{"workload":"train/a","params":{"a":[1]}}}',
        '{"do":"run","spec":{"workload":"../etc/passwd","params":{}}}',
        '{"do":"facts","rank":-1}', " " * (SPEC_LIMIT_BYTES + 1), "ä" * (SPEC_LIMIT_BYTES // 2 + 1),
    ],
)  # fmt: skip
def test_a_task_that_cannot_be_read_is_a_sentence(task: str | bytes) -> None:
    with pytest.raises(SpecError) as caught:
        read_task(task)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 2000


def test_a_sentence_about_wrong_input_shows_its_beginning_only() -> None:
    with pytest.raises(SpecError) as caught:
        read_task('{"do":"%s"}' % ("x" * 50_000))
    assert "do: " in caught.value.message
    assert "xxx…" in caught.value.message
    assert len(caught.value.message) < 400


# What comes out


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_an_event_comes_back_from_its_line_as_it_was(kind: type[Event]) -> None:
    @given(
        st.builds(kind, **COMMON, **FIELDS[kind]),
        st.dictionaries(texts.map(lambda s: f"x_{s}"), json_values, max_size=2),
    )
    def check(event: Event, unknown: dict[str, JsonValue]) -> None:
        event = kind.model_validate({**event.model_dump(), **unknown})
        line = write_event(event)
        assert line.startswith(events.EVENT_PREFIX)
        assert line.isascii()
        assert "\n" not in line
        again = read_event(line, 1)
        assert type(again) is kind
        assert again == event
        assert write_event(again) == line

    check()


def test_every_kind_of_event_is_tried_here() -> None:
    kinds = {kind for kind in Event.__subclasses__() if kind is not events.Unknown}
    assert set(FIELDS) == kinds
    assert {kind.model_fields["event"].default for kind in kinds} == set(events._KINDS)


def test_an_unknown_kind_is_kept_as_it_came() -> None:
    line = '{"event":"weather","seq":0,"rank":0,"t":1.5,"sky":{"clouds":[1,2.5,null]}}'
    stream = Stream()
    event = stream.feed(line)
    assert isinstance(event, events.Unknown)
    assert stream.events == [event]
    assert write_event(event) == line


def test_an_unknown_kind_is_skipped_by_whoever_reads_the_stream() -> None:
    stream = Stream()
    for line in (log(0), '{"event":"weather","seq":1,"t":1}', log(2)):
        stream.feed(line)
    assert measured_steps(stream.events) == []
    assert gathered_facts(stream.events) == {}
    assert stream.ended() is None
    assert len(stream.events) == 3


def test_an_unknown_field_is_kept() -> None:
    line = log(0)[:-1] + ',"colour":"red"}'
    event = read_event(line, 1)
    assert event is not None
    assert event.model_extra == {"colour": "red"}
    assert write_event(event) == line


HOSTILE = {
    "cut off": '{"event":"log","seq":0,"t":0,"line":"x',
    "no kind": '{"event":null}',
    "kind is a list": '{"event":[1],"seq":0,"t":0}',
    "kind given twice": '{"event":"log","event":7,"seq":0,"t":0}',
    "without seq": '{"event":"log","t":0,"line":""}',
    "negative seq": '{"event":"log","seq":-1,"t":0,"line":""}',
    "seq is a text": '{"event":"log","seq":"first","t":0,"line":""}',
    "unknown phase": '{"event":"steps","seq":0,"t":0,"phase":"nap","first":0,"step_s":[]}',
    "step is NaN": '{"event":"steps","seq":0,"t":0,"phase":"measure","first":0,"step_s":[NaN]}',
    "step is infinite": '{"event":"steps","seq":0,"t":0,"phase":"measure","first":0,"step_s":[1e999]}',
    "NaN among facts": '{"event":"facts","seq":0,"t":0,"subject":"a","facts":{"a":[NaN]}}',
    "NaN in an unknown field": '{"event":"log","seq":0,"t":0,"line":"","x":NaN}',
    "infinity in an unknown kind": '{"event":"weather","seq":0,"t":0,"x":-Infinity}',
    "overflow in an unknown kind": '{"event":"weather","seq":0,"t":0,"x":1e999}',
    "nested without end": '{"event":' + "[" * 200_000,
    "nested deeply": '{"event":"weather","seq":0,"t":0,"x":' + "[" * 900 + "]" * 900 + "}",
    "facts nested deeply": '{"event":"facts","seq":0,"t":0,"subject":"a","facts":{"a":' + "[" * 900 + "]" * 900 + "}}",
    "an endless number": '{"event":"log","line":"","t":0,"seq":' + "9" * 100_000 + "}",
    "a huge time": '{"event":"log","line":"","seq":0,"t":' + "9" * 4000 + "}",
    "a megabyte that is no number": '{"event":"log","line":"","t":0,"seq":"' + "x" * 1_000_000 + '"}',
    "ten megabytes": '{"event":"log","line":"' + "x" * 10_000_000,
    "bytes that were no UTF-8": b'{"event":"log","seq":0,"t":0,"line":"\xff'.decode("utf-8", "replace"),
    "a spec with an unknown field": '{"event":"probe","seq":0,"t":0,"spec":{"workload":"a/b","params":{},"new":1}}',
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=list(HOSTILE))
def test_a_broken_event_is_an_error_with_the_number_of_its_line(line: str) -> None:
    stream = Stream()
    stream.feed("somebody's print")
    with pytest.raises(StreamError) as caught:
        stream.feed(line)
    assert (caught.value.line, "line 2" in caught.value.message) == (2, True)
    assert len(caught.value.message) < 3000


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_where_it_arises(value: float) -> None:
    with pytest.raises(ValidationError) as caught:
        events.Metric(seq=0, t=0, name="x", value=value, unit="s", higher_is_better=False)
    assert [error["loc"] for error in caught.value.errors()] == [("value",)]


@pytest.mark.parametrize(
    "line",
    ["", "Epoch 1", "{}", '{"Event":"log"}', ' {"event":"log"}', '{ "event": 1', "\ufeff", "\0", "[1,2]", "\udc80"],
)
def test_a_line_that_does_not_begin_as_an_event_is_foreign(line: str) -> None:
    stream = Stream()
    assert stream.feed(line) is None
    assert (stream.foreign, stream.foreign_count, stream.events) == ([line], 1, [])


def test_foreign_lines_are_counted_all_and_kept_up_to_a_limit() -> None:
    stream = Stream()
    for number in range(events.FOREIGN_LINES_KEPT + 500):
        stream.feed(f"line {number}")
    stream.feed("x" * 10_000_000)
    assert stream.foreign_count == stream.lines == events.FOREIGN_LINES_KEPT + 501
    assert len(stream.foreign) == events.FOREIGN_LINES_KEPT


def test_of_an_endless_foreign_line_the_beginning_is_kept() -> None:
    stream = Stream()
    stream.feed("ab" * 5_000_000)
    assert stream.foreign == ["ab" * (events.FOREIGN_LINE_BYTES // 2)]


def test_a_gap_in_the_numbers_is_an_error_that_names_what_is_missing() -> None:
    stream = Stream()
    stream.feed(log(0))
    with pytest.raises(StreamError) as caught:
        stream.feed(log(4))
    assert caught.value.line == 2
    assert re.findall(r"\d+", caught.value.message) == ["1", "3", "0", "2"]  # events 1 to 3 of rank 0, line 2


def test_a_stream_that_does_not_begin_at_zero_is_an_error() -> None:
    with pytest.raises(StreamError) as caught:
        Stream().feed(log(1))
    assert caught.value.line == 1


def test_a_repeated_event_is_dropped() -> None:
    """As it comes through a pod's log that was followed, lost, and followed again."""
    stream = Stream()
    fed = [stream.feed(log(seq)) for seq in (0, 1, 2, 0, 1, 2, 3)]
    assert [event is None for event in fed] == [False, False, False, True, True, True, False]
    assert [event.seq for event in stream.events] == [0, 1, 2, 3]
    assert stream.foreign_count == 0


def test_every_rank_counts_for_itself() -> None:
    stream = Stream()
    for rank, seq in ((0, 0), (1, 0), (1, 1), (0, 1)):
        stream.feed(log(seq, rank=rank))
    assert [event.seq for event in stream.of(1)] == [0, 1]
    with refused("rank 2", error=StreamError):
        stream.feed(log(1, rank=2))


def test_facts_of_a_subject_are_put_together_from_their_lines() -> None:
    lines = [
        events.Facts(seq=0, t=0, subject="gpu", facts={"a": 1}),
        events.Facts(seq=1, t=0, subject="cpu", facts={"a": 2}),
        events.Facts(seq=2, t=0, subject="gpu", facts={"b": 3}),
        events.Facts(seq=3, t=0, rank=1, subject="gpu", facts={"a": 9}),
    ]
    assert gathered_facts(list(lines)) == {"gpu": {"a": 1, "b": 3}, "cpu": {"a": 2}}


def test_each_failure_has_an_exit_code_of_its_own_that_no_shell_uses() -> None:
    codes = events.FAILURE_EXIT_CODES
    assert len(set(codes.values())) == len(codes)
    assert (codes["interrupted"], codes["terminated"]) == (128 + 2, 128 + 15)
    assert all(10 <= code < 64 for kind, code in codes.items() if kind not in ("interrupted", "terminated"))


# A real one: gpt2, batch 32, recorded on one H200; the names of the machine and most of its packages are taken out


def test_a_stream_recorded_on_a_gpu_is_read_whole() -> None:
    lines = H200.read_text().splitlines()
    stream = Stream()
    for line in lines:
        event = stream.feed(line)
        assert event is not None
        # Written again it has all that it had; what a newer program adds is empty.
        assert json.loads(write_event(event)).items() >= json.loads(line).items()
        assert read_event(write_event(event), 1) == event
        assert len(line) < events.EVENT_LIMIT_BYTES
    result = stream.ended()
    assert isinstance(result, events.Result)
    steps = measured_steps(stream.events)
    assert len(steps) == result.steps == 36
    assert abs(sum(steps) / result.wall_s - 1) < 0.005
    gpu = gathered_facts(stream.events)["gpu"]
    assert json.dumps(gpu["devices"]).count("NVIDIA H200") == 1


# How every sentence of pydantic's begins, or goes on.
PYDANTIC_WORDS = re.compile(r"Input|should|Field required|not permitted|Invalid JSON")
PYDANTIC_SENTENCE = re.compile(r"Input should|Field required|inputs are not permitted|Invalid JSON|errors.pydantic.dev")


class Foreign(Frozen):
    """A model of pydantic's, with one field for each kind of finding."""

    count: int = PydanticField(ge=1, le=9)
    share: float = PydanticField(default=0.5, gt=0, lt=1, allow_inf_nan=False)
    word: Literal["off", "fast"] = "off"
    name: str = PydanticField(default="a", min_length=1, max_length=3, pattern="^[a-z]+$")
    flag: bool = False
    texts: tuple[str, ...] = ()
    table: dict[str, int] = {}


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({}, ["count"]),
        ({"count": "x"}, ["count", "'x'"]),
        ({"count": 1.5}, ["count", "1.5"]),
        ({"count": 0}, ["count", "1", "0"]),
        ({"count": 10}, ["count", "9", "10"]),
        ({"count": 1, "share": 0}, ["share", "0"]),
        ({"count": 1, "share": 1.0}, ["share", "1"]),
        ({"count": 1, "share": "much"}, ["share", "'much'"]),
        ({"count": 1, "share": float("nan")}, ["share", "nan"]),
        ({"count": 1, "word": "max"}, ["word", "off", "fast", "'max'"]),
        ({"count": 1, "name": ""}, ["name", "1", "''"]),
        ({"count": 1, "name": "abcd"}, ["name", "3", "'abcd'"]),
        ({"count": 1, "name": "A"}, ["name", "[a-z]", "'A'"]),
        ({"count": 1, "name": 3}, ["name", "3"]),
        ({"count": 1, "flag": "maybe"}, ["flag", "'maybe'"]),
        ({"count": 1, "texts": 3}, ["texts", "3"]),
        ({"count": 1, "table": "x"}, ["table", "'x'"]),
        ({"count": 1, "other": 2}, ["other", "2"]),
        ("text", ["'text'"]),
    ],
)
def test_findings_of_pydantic_name_field_bound_and_value_in_our_words(data: object, named: list[str]) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        Foreign.model_validate(data)
    said = explain(caught.value)
    assert [word for word in named if word not in said] == []
    assert not PYDANTIC_WORDS.search(said)


def test_text_that_is_no_json_is_said_in_our_words() -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        Foreign.model_validate_json("{")
    assert not PYDANTIC_WORDS.search(explain(caught.value))
    assert "JSON" in explain(caught.value)


def test_no_screen_shows_a_sentence_of_pydantic() -> None:
    shown = [name for name in golden_screens.names() if PYDANTIC_SENTENCE.search(golden_screens.stored(name) or "")]
    assert shown == []
