"""The lines for people in a worker's log: they are readable, follow the events that they are about, and disturb none of them."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from stackmark.events import EVENT_PREFIX, Event, Failed, Hello, Log, Phase, Result, Steps, Stream, is_for_people
from stackmark.kubernetes.log.lines import Record
from stackmark.kubernetes.log.order import InOrder
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.request import pod_request
from stackmark.places.process import worker_environment
from stackmark.spec import LOG_VARIABLE, Task
from stackmark.worker.readable import for_people
from stackmark.worker.stream import Emitter
from stackmark.workloads.train.classic import ClassicTable, TableOptions, read_table_options, table_options
from worker_process import Finished, environment, finish, start, train

SPEC = train("resnet20", batch=4, mode="train", accuracy=False, loss_every=10, trace_file="")
# Lines of libraries and tracebacks, which a person must find in the log of a failed run.
OF_OTHERS = (
    "Traceback (most recent call last):",
    '  File "train.py", line 7, in <module>',
    "             ^^^^^^^^^^^^^^^",
    "Model: resnet50 was loaded",
    "Mode: training",
    "10 images/sec: not a table",
    "[rank 1] [stackmark is not at the beginning]",
    "[stackmark is not a time] hello",
    "---",
)


def worked(log: str | None) -> Finished:
    """A real worker that runs to its end, with this value of the variable."""
    task = Task(do="run", spec=SPEC, lifeline=False)
    variables = {"STACKMARK_SPEC": task.model_dump_json(), **({LOG_VARIABLE: log} if log is not None else {})}
    return finish(start(environment(**variables)))


def parted(lines: list[str]) -> tuple[list[str], list[str]]:
    return [one for one in lines if one.startswith(EVENT_PREFIX)], [
        one for one in lines if not one.startswith(EVENT_PREFIX)
    ]


@pytest.mark.parametrize("log", ["text", "tf-cnn"])
def test_a_worker_prints_lines_for_people_and_every_event_exactly_once(log: str) -> None:
    done = worked(log)
    events, others = parted(done.lines)
    stream = Stream()
    for line in done.lines:
        stream.feed(line)
    assert done.code == 0, done.stderr
    assert isinstance(stream.ended(), Result)
    assert [json.loads(line)["seq"] for line in events] == list(range(len(events)))
    assert others
    assert [line for line in others if not is_for_people(line)] == []
    assert stream.foreign_count == len(others)


def test_the_text_has_a_line_for_each_part_and_the_result() -> None:
    events, others = parted(worked("text").lines)
    phases = [json.loads(line)["phase"] for line in events if json.loads(line).get("state") == "begin"]
    said = [line.partition("] ")[2] for line in others]
    assert [name for name in phases if not any(one.startswith(f"{name}: begins") for one in said)] == []
    result = json.loads(events[-1])
    rate = result["steps"] * result["samples_per_step"] / result["wall_s"]
    (line,) = [one for one in said if one.startswith("result: ")]
    assert float(line.split()[1].replace(",", "")) == pytest.approx(rate, rel=1e-3)


def test_the_table_in_the_log_has_the_rate_of_the_result() -> None:
    events, others = parted(worked("tf-cnn").lines)
    result = json.loads(events[-1])
    (total,) = [line for line in others if line.startswith("total images/sec: ")]
    assert float(total.split()[-1]) == pytest.approx(
        result["steps"] * result["samples_per_step"] / result["wall_s"], abs=0.01
    )
    assert [line.split("\t")[0] for line in others if "\timages/sec: " in line] == ["1"]
    assert "Devices:     ['/cpu:0']" in others


@pytest.mark.parametrize("log", [None, "", "a-format-of-tomorrow", "{not json", '{"format":"other"}', "[]"])
def test_a_worker_that_does_not_know_the_format_prints_events_alone(log: str | None) -> None:
    assert log is None or for_people(log) is None


def test_a_worker_without_the_variable_prints_events_alone() -> None:
    assert parted(worked(None).lines)[1] == []


def test_a_table_with_broken_options_is_made_from_the_spec() -> None:
    lines = for_people('{"format":"tf-cnn","batch":"many"}')
    assert lines is not None
    said = [*lines(Hello(seq=0, t=0.0, time_unix_s=0.0, pid=1, spec=None)), *lines(result())]
    assert [line for line in said if "] result: " in line]


def result(wall_s: float = 2.0) -> Result:
    return Result(seq=9, t=9.0, sample="image", samples_per_step=4, steps=5, wall_s=wall_s, tick_s=1e-9)


def hostile() -> Iterator[Event]:
    forged = '{"event":"result","seq":3,"rank":0,"t":1.0}'
    yield Failed(seq=1, t=1.0, kind="crash", message=f"first\n{forged}\x1b[2J", hint=f"{forged}\r{forged}")
    yield Log(seq=2, t=1.0, line=f"\n{forged}")
    yield Phase(seq=3, t=1.0, phase=forged, state="begin", note="\x00\x07")


@pytest.mark.parametrize("event", [*hostile()], ids=lambda event: event.event)
def test_text_from_elsewhere_stays_on_its_line_and_is_never_taken_for_an_event(event: Event) -> None:
    lines = for_people("text")
    assert lines is not None
    for line in lines(event):
        assert "\n" not in line
        assert EVENT_PREFIX not in line
        assert line.isprintable()
        assert is_for_people(line)


def test_lines_that_cannot_be_made_cost_no_event() -> None:
    def broken(event: Event) -> list[str]:
        raise ValueError("no line for this")

    reading, writing = os.pipe()
    emitter = Emitter(writing)
    emitter.people = broken
    for number in range(3):
        emitter(Log, line=f"event {number}")
    emitter.close()
    os.close(writing)
    with os.fdopen(reading) as file:
        found = [json.loads(line) for line in file]
    assert [event["seq"] for event in found] == [0, 1, 2]


@pytest.mark.parametrize("line", OF_OTHERS)
def test_lines_of_other_programs_are_not_taken_for_ours(line: str) -> None:
    assert not is_for_people(line)


@pytest.mark.parametrize("mode", ["train", "forward", "eval"])
def test_every_line_of_the_table_is_known_for_one(mode: str) -> None:
    options = table_options(train("resnet20", mode=mode, accuracy=True, loss_every=1, trace_file="/t.json"))
    assert options is not None
    table = ClassicTable(options)
    steps = Steps(
        seq=1, t=1.0, phase="measure", first=0, step_s=[0.5, 0.0, 0.25], losses=[(0, 1.0), (1, 2.0), (2, 3.0)]
    )
    lines = [*table.start("2.13.0"), *table.event(steps), *table.event(result())]
    assert len(lines) > 15
    assert [line for line in lines if not is_for_people(line)] == []


def test_the_options_of_a_table_travel_as_json() -> None:
    options = TableOptions("training", 4, (("Model", "x"), ("", "y")), 10, 0.5, "total_loss", True, "")
    assert read_table_options(json.loads(json.dumps(options.to_dict()))) == options


def test_a_run_of_another_network_than_the_classics_has_no_table() -> None:
    assert table_options(train("bert-large")) is None


def test_the_reader_of_a_pods_log_hands_on_events_and_what_others_printed() -> None:
    lines: list[str] = []
    others: list[str] = []
    order = InOrder(lines.append, others.append, lambda _gap, _take: True)
    event = '{"event":"sample","seq":0,"rank":0,"t":1.0,"values":{}}'
    order.begin()
    for number, text in enumerate((event, "[stackmark 0.1 s] measure: begins", "a warning", "total images/sec: 6.14")):
        order.take(Record(f"2026-11-15T12:00:00.{number:09}Z", text))
    order.finish()
    assert (lines, others) == ([event], ["a warning"])


def variable_of(options: dict[str, Any], **more: Any) -> str | None:
    task = Task(do="run", spec=SPEC)
    read = PodOptions.model_validate(options)
    made = pod_request(read, mark="r-1", kind="run", namespace="n", image="i", task=task, **more)
    return made.env.get(LOG_VARIABLE)


def test_a_pods_log_is_text_unless_another_format_is_typed() -> None:
    assert variable_of({}) == "text"
    assert variable_of({"log_format": "events"}) is None
    assert variable_of({"log_format": "tf-cnn"}) == "tf-cnn"
    assert json.loads(variable_of({"log_format": "tf-cnn"}, table={"batch": 4}) or "") == {
        "format": "tf-cnn",
        "batch": 4,
    }
    assert variable_of({}, table={"batch": 4}) == "text"


def test_the_drivers_own_variable_reaches_no_worker() -> None:
    assert LOG_VARIABLE not in worker_environment({LOG_VARIABLE: "text", "PATH": "/bin"})
