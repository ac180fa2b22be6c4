"""What people see: the bar while it runs, the table at its end, lists that fit their screen."""

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from pydantic import JsonValue
from rich.console import Console

from ledger_runs import SPEC
from naming import missing, numbers
from result_sample import COMMAND, EVENTS, MEASURED, PUBLISHED, RESULT, events_of_a_run, row
from stackmark.events import Event, Failed, Metric, Phase, Probe, Result
from stackmark.experiments.estimate import Estimate
from stackmark.experiments.result import RunResult
from stackmark.show.facts import say_cudnn, say_stack
from stackmark.show.live import LiveBar, PlainLines, TimeLeft, say_left
from stackmark.show.result import print_result, result_lines, say_flag, say_throughput
from stackmark.show.runs import COLUMNS, short_length
from stackmark.show.safe import safe, safe_line
from stackmark.show.terminal import Column, print_table
from stackmark.spec import Request
from stackmark.verdict.throughput import Throughput, throughput_over_runs

ESC = "\x1b"


def screen(width: int = 80) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=50, color_system=None, legacy_windows=False
    )


def pipe() -> Console:
    return Console(file=io.StringIO(), force_terminal=False)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def lines_of(shown: str) -> list[list[str]]:
    """The words of each line, without what moves the cursor and the wheel that turns."""
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[\u2800-\u28ff]", "", line).split() for line in shown.splitlines()]


def measured(**changes: Any) -> RunResult:
    return replace(RESULT, measured=replace(MEASURED, **changes))


def rows(result: RunResult) -> dict[str, str]:
    return dict(result_lines(result))


# The end


def test_the_table_at_the_end_has_every_part() -> None:
    shown = rows(RESULT)
    for name, tokens in {
        "rate": ("7,000 images/s", "± 0.14 %", "95 %", "6,990", "7,010", "5"),
        "step": ("p50 73.1 ms", "p90 73.5 ms", "p99 80.1 ms"),
        "steadiness": ("4 × flat", "1 × warm-up"),
        "settings": ("batch 512", "precision bf16", "tune max"),
        "chosen": ("batch 512", MEASURED.choices["batch"], "precision bf16", MEASURED.choices["precision"]),
        "set-up": ("66.0 s", "import 4.20 s", "model 800 ms", "compile 61.0 s"),
        "data": ("1.2 %",),
        "memory": ("20.0 GiB",),
        "arithmetic": ("170 TFLOP/s", "24.3 GFLOP"),
        "energy": ("0.0912 J",),
        "published": PUBLISHED.differs,
    }.items():
        assert missing(shown[name], *tokens) == [], name


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_details_fit_their_screen_and_lose_nothing(width: int) -> None:
    console = screen(width)
    print_result(RESULT, console, details=True)
    details, _, _ = text(console).partition("repeat ")
    assert all(len(line) <= width for line in details.splitlines())
    flowed = " ".join(details.split())
    assert "within" not in flowed
    for words in ("± 0.14 %", "p99 80.1 ms", *PUBLISHED.differs, "24.3 GFLOP"):
        assert words in flowed or words.replace(" ", "") in flowed.replace(" ", "")


@pytest.mark.parametrize("details", [True, False])
def test_the_command_to_repeat_it_can_be_copied_from_a_screen(details: bool) -> None:
    console = screen(60)
    print_result(RESULT, console, details=details)
    assert re.search(rf"^repeat +{re.escape(COMMAND)}$", text(console), re.MULTILINE)


def test_where_there_is_no_screen_every_line_is_whole() -> None:
    console = pipe()
    print_result(RESULT, console, details=True)
    lines = text(console).splitlines()
    assert lines[0].split() == ["workload", "train/resnet50"]
    assert f"repeat      {COMMAND}" in lines
    at = next(number for number, line in enumerate(lines) if line.startswith("chosen"))
    assert [lines[at].endswith(MEASURED.choices["batch"]), lines[at + 1].endswith(MEASURED.choices["precision"])] == [
        True
    ] * 2
    assert lines[at + 1].startswith(" " * len("chosen"))
    assert not any(line != line.rstrip() for line in lines)


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console = Console(file=io.StringIO(), force_terminal=True)
    print_result(RESULT, console)
    assert "│" not in text(console)
    assert ESC not in text(console)


def test_few_runs_say_what_they_are_worth() -> None:
    shown = rows(measured(throughput=throughput_over_runs([10.0, 10.1, 10.2])))
    assert missing(shown["note"], "3", "1 %") == []
    assert "note" not in rows(RESULT)


def test_an_experiment_without_a_number_shows_none() -> None:
    why = {"failure_kind": "oom", "failure_message": "out of memory", "failure_hint": "take a smaller --batch"}
    shown = rows(measured(throughput=None, runs=(row(id="r-1", status="failed", rate_per_s=None, **why),)))
    assert shown["failed"].splitlines() == [f"r-1: {why['failure_message']}", why["failure_hint"]]
    assert not {"rate", "arithmetic", "published", "note"} & set(shown)


def test_nothing_published_is_said() -> None:
    assert "Lambda" in rows(RESULT)["published"]
    assert "Lambda" not in rows(replace(RESULT, published=()))["published"]


def test_a_hostile_text_is_shown_and_not_obeyed() -> None:
    hostile = f"{ESC}[2J{ESC}]0;title\x07 [bold]not markup[/bold] :skull:"
    for console in (screen(), pipe()):
        hurt = measured(runs=(row(chip=hostile, flags=[hostile]),))
        print_result(replace(hurt, command=hostile), console, details=True)
        assert f"{ESC}[2J" not in text(console)
        assert "\x07" not in text(console)
        assert r"\x1b[2J" in text(console)
        assert "[bold]not markup[/bold] :skull:" in " ".join(text(console).replace("│", " ").split())


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (99.5, 100.5, "100.0 x/s  ± 0.5 %"),
        (90.9, 110.0, "± 10 %"),
        (83.4, 119.9, "± 20 %"),
        (50.0, 200.0, " 2 "),
        (100.0, 100.0, "± 0 %"),
    ],
)
def test_an_interval_reads_as_what_it_is(low: float, high: float, said: str) -> None:
    assert said in say_throughput(Throughput(100.0, low, high, 5, 0.01), "x/s")


def test_a_flag_loses_the_key_that_is_for_programs() -> None:
    assert say_flag("clocks-disagree: 1s") == "1s"
    assert say_flag("by 9 %: x") == "by 9 %: x"
    assert say_flag("throttled") == "throttled"


@pytest.mark.parametrize(("number", "said"), [(91900, "9.19.0"), (90100, "9.1.0"), (8902, "8.9.2"), (7605, "7.6.5")])
def test_cudnns_number_is_said_as_its_version(number: int, said: str) -> None:
    assert say_cudnn(number) == said


def test_the_stack_is_said_from_the_framework_down() -> None:
    facts: dict[str, dict[str, JsonValue]] = {
        "software": {"cuda": "13.0", "cudnn": 91900, "python": "3.12.3"},
        "gpu": {"driver": "580.159.04"},
        "host": {"kernel": "6.18.1", "distribution": "Ubuntu 24.04", "virtualisation": "none"},
        "container": {"engine": None},
    }
    assert say_stack(facts, "PyTorch 2.11.0").split(", ") == [
        "PyTorch 2.11.0", "CUDA 13.0", "cuDNN 9.19.0", "driver 580.159.04", "Python 3.12.3", "Ubuntu 24.04", "Linux 6.18.1",
    ]  # fmt: skip
    assert say_stack({}, None) == ""


# Text from outside


@pytest.mark.parametrize("char", ["\x00", "\x07", "\x08", ESC, "\x7f", "\x9b", "\u200b", "\u202e", "\ue000", "\udcff"])
def test_no_character_that_acts_passes(char: str) -> None:
    assert char not in safe(f"a{char}b")
    assert "\\" in safe(char)


def test_ordinary_text_passes() -> None:
    ordinary = "für 10 µs ± 雷 \t\n"
    assert safe(ordinary) == ordinary
    assert safe_line("one\ntwo") == "one two"


# Lists


TABLE = (Column("name"), Column("first to go", drop=1), Column("then", drop=2, right=True), Column("prose"))
CELLS = [["a" * 10, "b" * 10, "1", "a sentence that may well be folded into several lines"], ["ä", "b", "22", ""]]


def test_a_wide_screen_has_every_column() -> None:
    console = screen(100)
    print_table(console, TABLE, CELLS)
    assert text(console).splitlines()[0].split() == ["name", "first", "to", "go", "then", "prose"]
    assert len(text(console).splitlines()) == 1 + len(CELLS)


def test_a_narrow_screen_leaves_columns_out_and_says_which() -> None:
    console = screen(36)
    print_table(console, TABLE, CELLS)
    lines = text(console).splitlines()
    assert lines[0].split() == ["name", "then", "prose"]
    assert all(len(line) <= 36 for line in lines)
    assert TABLE[1].name in " ".join(text(console).split())


def test_on_a_narrow_screen_the_last_column_folds_before_lines_are_cut_by_the_terminal() -> None:
    console = screen(45)
    print_table(console, (Column("run"), Column("state")), [["r" * 33, "failed: terminated: by a signal"]])
    assert all(len(line) <= 45 for line in text(console).splitlines())
    assert "terminated" in text(console)


def test_a_screen_too_narrow_for_anything_wraps_its_lines() -> None:
    console = screen(20)
    print_table(console, TABLE, CELLS)
    assert text(console).splitlines()[1] == f"{'a' * 10}  {CELLS[0][3]}"


def test_without_a_screen_a_row_is_a_line() -> None:
    console = pipe()
    print_table(console, TABLE, CELLS)
    head, *_ = text(console).splitlines()
    assert head.split() == ["name", "first", "to", "go", "then", "prose"]
    assert text(console).splitlines()[1:] == [
        f"{'a' * 10}  {'b' * 10}      1  {CELLS[0][3]}",
        f"ä{' ' * 11}b{' ' * 14}22",
    ]


def test_control_characters_in_a_cell_are_shown() -> None:
    for console in (screen(), pipe()):
        print_table(console, (Column("x"), Column("y")), [[f"{ESC}[31m", "two\nlines"]])
        assert r"\x1b[31m" in text(console)
        assert "two lines" in text(console)


def test_ids_are_as_short_as_they_can_be() -> None:
    assert short_length(["r-01m7f0pez5fsz8m2ew96aq60wk"]) == 12
    assert short_length(["r-01m7f0pez5aaaa", "r-01m7f0pez5aabb", "r-02"]) == 15


def test_the_columns_of_results_are_the_cells_of_results(capsys: pytest.CaptureFixture[str]) -> None:
    from stackmark.show.runs import print_runs

    failed = row(
        id="r-2", status="failed", rate_per_s=None, steady=None, failure_kind="oom", failure_message="no\nroom"
    )
    print_runs([row(batch=64, precision="bf16", tune="max", chip="NVIDIA H200", ranks=2), failed])
    head, first, second = capsys.readouterr().out.splitlines()
    # The zone of the times stands once, in their column's head.
    assert re.sub(r" \(\S+\)", "", head).split() == [column.name for column in COLUMNS]
    assert first.split()[4:] == [
        "train/resnet50",
        "host",
        "NVIDIA",
        "H200",
        "2",
        "64",
        "bf16",
        "max",
        "7,087",
        "images/s",
        "flat",
    ]
    assert second.split()[-4:] == ["failed:", "oom:", "no", "room"]


# While it runs


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_nothing_is_known_of_the_end_before_the_first_measured_part() -> None:
    clock = Clock()
    left = TimeLeft(clock)
    left.run_begins(1, 3)
    assert left.seconds() is None
    clock.now += 20  # a compiler
    left.run_needs(10)
    assert left.seconds() == pytest.approx(10 + 2 * 30)
    clock.now += 4
    assert left.seconds() == pytest.approx(6 + 2 * 30)


def test_the_run_before_tells_how_long_this_one_takes() -> None:
    clock = Clock()
    left = TimeLeft(clock)
    left.run_begins(1, 2)
    clock.now += 25
    left.run_ended()
    left.run_begins(2, 2)
    clock.now += 5
    assert left.seconds() == pytest.approx(20)
    clock.now += 50
    assert left.seconds() == 0
    left.forget()
    assert left.seconds() is None


def test_time_left_is_said_in_whole_seconds() -> None:
    said = {0.2: ("0 s",), 41.7: ("42 s",), 110: ("2 min", "0 s"), 605: ("10 min", "5 s")}
    assert {seconds: missing(say_left(seconds), *tokens) for seconds, tokens in said.items()} == {
        seconds: [] for seconds in said
    }


def bar_after(*seen: Event, width: int = 100, expected_s: float | None = None) -> str:
    """What a screen shows of the bar after these events and ten seconds: its last line."""
    console, clock = screen(width), Clock()
    bar = LiveBar(console, unit_of=lambda _: "images", clock=clock)
    bar.probing(Request(workload="train/resnet50"))
    bar.probed(Probe(seq=0, t=0, spec=SPEC))
    if expected_s is not None:
        bar.expects(Estimate(2 * expected_s, 2, {"": expected_s}, measured_before=True))
    bar.run_begins("r-1", 1, 2, SPEC)
    clock.now += 10
    for event in seen:
        bar.event(event)
    console.print(bar._progress.get_renderable())
    return text(console).splitlines()[-1]


def test_the_bar_shows_phase_rate_share_and_time_left() -> None:
    line = bar_after(*events_of_a_run())
    assert lines_of(line)[0][:3] == ["run", "1/2", "measure"]
    assert "28 %" in line  # of the whole: 10 of 17.5 s of the first of two runs
    assert "640.0 images/s" in line  # 64 in 0.1 s
    assert "25 s left" in line  # the rest of this run, and another one


def test_before_the_first_run_the_bar_knows_how_long_all_of_them_took_before() -> None:
    line = bar_after(*events_of_a_run()[:1], expected_s=40)
    assert lines_of(line)[0][:3] == ["run", "1/2", "compile"]
    assert missing(line, "12 %", "70 s") == []
    assert "%" not in bar_after(*events_of_a_run()[:1])


@pytest.mark.parametrize(
    ("estimate", "tokens"),
    [
        (Estimate(41.0, 3, {"": 13.7}, measured_before=False), ("40 s", "3 runs")),
        (Estimate(190.0, 5, {"": 38.0}, measured_before=True), ("3 min", "5 runs", "before")),
        (Estimate(7800.0, 40, {"": 195.0}, measured_before=True, at_most=True), ("most", "2 h 10 min", "40 runs")),
    ],
)
def test_an_estimate_is_said_before_the_first_run(estimate: Estimate, tokens: tuple[str, ...]) -> None:
    out = io.StringIO()
    PlainLines(out).expects(estimate)
    assert missing(out.getvalue(), *tokens) == []
    console = screen()
    LiveBar(console, unit_of=lambda _: "images").expects(estimate)
    assert missing(text(console), *tokens) == []


def test_a_compiler_has_neither_share_nor_time_left() -> None:
    line = bar_after(*events_of_a_run()[:1])
    assert lines_of(line)[0][:3] == ["run", "1/2", "compile"]
    assert "%" not in line
    assert not re.search(r"\d s\b", line)


def test_a_phase_without_an_end_does_not_keep_the_rate_of_the_one_before() -> None:
    line = bar_after(
        *events_of_a_run(), Result(seq=7, t=20, sample="image", samples_per_step=64, steps=100, wall_s=10, tick_s=1e-9)
    )
    assert "ending" in line
    assert "images/s" not in line


@pytest.mark.parametrize("width", [40, 60, 70, 80])
def test_the_bar_stays_on_one_line(width: int) -> None:
    line = bar_after(*events_of_a_run(), width=width)
    assert len(line) <= width
    assert lines_of(line)[0][:3] == ["run", "1/2", "measure"]
    assert re.search(r"\d s\b", line)


def test_a_finished_run_scrolls_up_as_a_line() -> None:
    console = screen(120)
    with LiveBar(console, unit_of=lambda _: "images") as bar:
        bar.run_begins("r-1", 1, 2, SPEC)
        bar.run_ended(row(), 1, 2)
        bar.event(Failed(seq=0, t=0, kind="crash", message="x"))
        bar.run_ended(row(rate_per_s=None, status="failed", failure_message=f"it {ESC}[2Jburns"), 2, 2)
        bar.notice(f"the run before {ESC}[2J was lost")
    short = row().id[:12]
    first, second = (line for line in lines_of(text(console)) if short in line)
    assert first == ["run", "1/2", short, "7,087", "images/s", "flat"]
    assert second == ["run", "2/2", short, "failed:", "it", r"\x1b[2Jburns"]
    assert f"{ESC}[2J" not in text(console)


def test_the_bar_leaves_standard_output_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveBar(screen(), unit_of=lambda _: "images"):
        print("a result")
    assert capsys.readouterr().out == "a result\n"


@pytest.mark.parametrize("phases", [True, False])
def test_plain_lines_are_one_a_run_and_with_phases_say_each_part_once(phases: bool) -> None:
    out = io.StringIO()
    lines = PlainLines(out, phases=phases)
    lines.probing(Request(workload="train/resnet50"))
    lines.event(Phase(seq=0, t=0, phase="import", state="end", seconds=1.0))  # the probe's own: nobody's business
    lines.probed(Probe(seq=0, t=0, spec=SPEC))
    lines.run_begins("r-1", 1, 2, SPEC)
    for event in events_of_a_run():
        lines.event(event)
    lines.run_ended(row(status="invalid", failure_message="XID 79"), 1, 2)
    lines_said = [line.split() for line in out.getvalue().splitlines()]
    probes = [line for line in lines_said if line[0] == "probe"]
    assert len(probes) == 1 + phases
    assert missing(" ".join(probes[-1]), "cuda:0", "batch 64", "precision bf16", "tune fast") == []
    parts = [["run", "1/2", "compile", "9.00", "s"], ["run", "1/2", "warm-up", "1.00", "s", "(still", "moved)"]]
    assert lines_said[len(probes) :] == [
        *(parts if phases else []),
        ["run", "1/2", row().id[:12], "7,087", "images/s", "flat", "invalid:", "XID", "79"],
    ]


def test_an_evaluation_shows_what_it_found() -> None:
    found = [("top_1_accuracy", 0.7613), ("top_5_accuracy", 0.9287)]
    metrics = [Metric(seq=2, t=0, name=name, value=value, unit="share", higher_is_better=True) for name, value in found]
    assert numbers(rows(measured(events=(*EVENTS, *metrics)))["quality"].replace("%", "")) == [1, 5, 76.13, 92.87]


# While an experiment runs


def bar_of_an_experiment(*seen: Event, width: int = 100, label: str = "container", block: int | None = 2) -> str:
    console = screen(width)
    bar = LiveBar(console, unit_of=lambda _: "images", clock=Clock())
    bar.experiment_begins(["host", label], 6)
    bar.run_begins("r-1", 8, 14, SPEC, label=label, block=block)
    for event in seen:
        bar.event(event)
    console.print(bar._progress.get_renderable())
    return text(console).splitlines()[-1]


def test_the_bar_of_an_experiment_says_block_and_arm() -> None:
    line = bar_of_an_experiment(*events_of_a_run())
    assert missing(line, "block 3", "container", "measure") == []
    assert "50 %" in line  # 7 of 14 runs
    assert missing(bar_of_an_experiment(block=None), "primer", "container", "starting") == []


@pytest.mark.parametrize("width", [60, 70, 80, 120, 200])
@pytest.mark.parametrize("label", ["container", "container,shm=64m,ulimit=memlock=-1,precision=bf16,batch=256"])
def test_the_bar_of_an_experiment_stays_on_one_line(width: int, label: str) -> None:
    line = bar_of_an_experiment(*events_of_a_run(), width=width, label=label)
    assert len(line) <= width
    assert missing(line, "block 3") == []
    assert "· containe" in line
    assert re.search(r"\d s\b", line)


def test_arms_that_begin_alike_are_told_apart_on_a_narrow_screen() -> None:
    console = screen(70)
    bar = LiveBar(console, unit_of=lambda _: "images")
    bar.experiment_begins(["container,engine=podman,shm=64m", "container,engine=podman,shm=1g"], 6)
    bar.run_begins("r-1", 7, 14, SPEC, label="container,engine=podman,shm=1g", block=0)
    console.print(bar._progress.get_renderable())
    assert missing(text(console), "block 1", "…shm=1g", "starting") == []


def test_finished_runs_are_listed_with_block_and_arm_and_no_ratio() -> None:
    console = screen(120)
    with LiveBar(console, unit_of=lambda _: "images") as bar:
        bar.experiment_begins(["host", "container"], 6)
        for number, (label, block) in enumerate((("host", None), ("host", 0), ("container", 0)), start=1):
            bar.run_begins("r-1", number, 14, SPEC, label=label, block=block)
            bar.run_ended(row(id=f"r-{number}"), number, 14)
    shown = [line for line in lines_of(text(console)) if "images/s" in line]
    rate = ["7,087", "images/s", "flat"]
    assert shown == [
        ["primer", "host", "r-1", *rate],
        ["block", "1/6", "host", "r-2", *rate],
        ["block", "1/6", "container", "r-3", *rate],
    ]
    assert "ratio" not in text(console)


def test_on_a_narrow_screen_good_runs_have_no_id_and_one_line_each() -> None:
    console = screen(80)
    with LiveBar(console, unit_of=lambda _: "images") as bar:
        bar.experiment_begins(["host", "host,precision=fp16"], 6)
        bar.run_begins("r-1", 1, 14, SPEC, label="host", block=0)
        bar.run_ended(row(), 1, 14)
        bar.run_begins("r-2", 2, 14, SPEC, label="host", block=0)
        bar.run_ended(row(id="r-2", status="failed", rate_per_s=None, failure_message="why"), 2, 14)
    good, bad = (line for line in lines_of(text(console)) if line[:2] == ["block", "1/6"])
    assert good == ["block", "1/6", "host", "7,087", "images/s", "flat"]
    assert bad == ["block", "1/6", "host", "r-2", "failed:", "why"]


def test_plain_lines_of_an_experiment_say_block_and_arm() -> None:
    out = io.StringIO()
    lines = PlainLines(out)
    lines.experiment_begins(["host", f"container{ESC}[2J"], 12)
    lines.run_begins("r-1", 1, 26, SPEC, label="host", block=None)
    lines.run_ended(row(), 1, 26)
    lines.run_begins("r-2", 3, 26, SPEC, label=f"container{ESC}[2J", block=9)
    lines.event(Phase(seq=1, t=9, phase="import", state="end", seconds=9.0))
    lines.run_ended(row(), 3, 26)
    arm, rate = r"container\x1b[2J", [row().id[:12], "7,087", "images/s", "flat"]
    assert [line.split() for line in out.getvalue().splitlines()] == [
        ["primer", "host", *rate],
        ["block", "10/12", arm, *rate],
    ]


def test_one_arm_is_said_as_before() -> None:
    out = io.StringIO()
    lines = PlainLines(out)
    lines.experiment_begins(["host"], 5)
    lines.run_begins("r-1", 1, 5, SPEC, label="host", block=0)
    lines.run_ended(row(), 1, 5)
    assert out.getvalue().split()[:3] == ["run", "1/5", row().id[:12]]


def test_time_left_knows_arms_apart_and_learns_nothing_from_a_primer() -> None:
    clock = Clock()
    left = TimeLeft(clock)
    left.run_begins(1, 6, None)
    clock.now += 4
    left.run_ended()
    assert left.seconds() is None
    for number, (arm, seconds) in enumerate((("host", 10), ("container", 30)), start=3):
        left.run_begins(number, 6, arm)
        clock.now += seconds
        left.run_ended()
    left.run_begins(5, 6, "container")
    assert left.seconds() == pytest.approx(30 + 20)
    clock.now += 5
    left.run_begins(5, 6, "host")
    assert left.seconds() == pytest.approx(10 + 20)
