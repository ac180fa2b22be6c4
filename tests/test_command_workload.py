"""A user's own program: its figure, its failures, and that nothing of it is left, with real programs of every bad habit."""

import errno
import json
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from asking import ask
from stackmark.cli.options import parameter_options
from stackmark.errors import SpecError
from stackmark.events import EVENT_LIMIT_BYTES
from stackmark.machine.orphans import MARK_VARIABLE
from stackmark.model import ValidationError
from stackmark.spec import Request, Scalar, Spec, Task
from stackmark.workloads.command.definition import (
    CommandParams,
    guess_metric,
    guess_name,
    guessed_params,
    metric_name,
    split_command,
)
from stackmark.workloads.command.output import FIRST_LINES, LAST_LINES, LINE_CHARACTERS, SEARCH_LIMIT_S, Lines
from stackmark.workloads.registry import check_request
from worker_process import Finished, environment, finish, give, gone, read_pids, run_worker, start, work

PATTERN = "rate ([0-9.]+)"


def own(cmd: str, **params: Scalar) -> Spec:
    return Spec(
        workload="command/own", params=CommandParams.model_validate({"cmd": cmd, **params}).model_dump(mode="json")
    )


def python(code: str) -> str:
    """A command that runs this code, quoted as a person would have to."""
    return shlex.join([sys.executable, "-c", code])


def ran(cmd: str, **params: Scalar) -> Finished:
    return run_worker(own(cmd, **params), environment())


def figure(cmd: str, **params: Scalar) -> dict[str, Any]:
    done = ran(cmd, **params)
    assert (done.code, done.last["event"]) == (0, "result"), done.last
    found: dict[str, Any] = done.last["figure"]
    return found


def failed(cmd: str, kind: str, **params: Scalar) -> str:
    done = ran(cmd, **params)
    assert (done.last["event"], done.last.get("kind")) == ("failed", kind), done.last
    return str(done.last["message"])


def logged(done: Finished) -> list[str]:
    return [event["line"] for event in done.events if event["event"] == "log"]


def printing(*lines: str) -> str:
    return python(f"print({chr(10).join(lines)!r})")


# The figure


@pytest.mark.parametrize(
    ("params", "value"),
    [
        ({}, 9.0),
        ({"metric_take": "median"}, 3.0),
        ({"metric_take": "mean"}, 4.0),
        ({"metric_take": "mean", "metric_skip": 2}, 6.0),
        ({"metric_take": "median", "metric_skip": 3}, 9.0),
    ],
)
def test_the_figure_is_taken_from_the_matches_after_the_first_ones(params: dict[str, Scalar], value: float) -> None:
    cmd = printing("rate 1", "rate 3 images", "rate 3.0", "rate 9e0")
    assert figure(cmd, metric="rate ([0-9.e]+)", **params)["value"] == value


def test_a_program_without_a_pattern_is_judged_by_its_wall_time() -> None:
    done = ran("sleep 0.3")
    found = done.last["figure"]
    assert (found["name"], found["unit"], found["higher_is_better"]) == ("wall time", "s", False)
    assert found["value"] == done.last["wall_s"] >= 0.3
    (steps,) = [event for event in done.events if event["event"] == "steps"]
    assert steps["step_s"] == [pytest.approx(done.last["wall_s"], abs=1e-8)]


def test_what_a_program_used_stands_beside_its_figure() -> None:
    done = ran(python("x = bytearray(150_000_000); sum(range(3_000_000))"))
    metrics = {event["name"]: event["value"] for event in done.events if event["event"] == "metric"}
    assert done.last["event"] == "result", done.last
    assert done.last["memory_peak_mib"] > 140
    assert metrics["cpu_s"] == pytest.approx(metrics["command_user_s"] + metrics["command_system_s"])
    assert metrics["cpu_s"] > 0
    assert metrics["command_wall_s"] == done.last["wall_s"]


def test_a_figure_that_is_better_when_lower_says_so() -> None:
    found = figure(printing("rate 7"), metric=PATTERN, metric_lower=True, metric_unit="ms")
    assert (found["value"], found["unit"], found["higher_is_better"]) == (7.0, "ms", False)


def test_the_figure_may_be_printed_to_standard_error() -> None:
    cmd = python("import sys; print('rate 5', file=sys.stderr)")
    assert figure(cmd, metric=PATTERN)["value"] == 5.0


def test_every_state_of_a_progress_bar_is_searched_and_the_last_one_is_kept() -> None:
    bar = python("print('start'); [print(f'\\r{i} % rate {i}', end='') for i in range(1, 6)]")
    done = ran(bar, metric=PATTERN, metric_take="mean")
    assert done.last["figure"]["value"] == 3.0
    last = "5 % rate 5"
    assert logged(done) == ["start", last]


def test_colours_are_taken_out_before_the_search() -> None:
    cmd = python("print('\\x1b[1;32mrate\\x1b[0m 5\\x1b]0;title\\x07 ')")
    assert figure(cmd, metric="^rate ([0-9]+) $")["value"] == 5.0


@pytest.mark.parametrize(
    ("text", "shown"), [("1,234.5", "1,234.5"), ("0", "'0'"), ("-3", "-3"), ("1e999", "1e999"), ("1.2.3", "1.2.3")]
)
def test_what_is_no_number_above_zero_is_no_figure(text: str, shown: str) -> None:
    assert shown in failed(printing(f"rate {text}"), "no_figure", metric="rate ([-0-9.,e]+)")


def test_an_odd_number_that_is_skipped_does_no_harm() -> None:
    assert figure(printing("rate nan", "rate 4"), metric="rate (.+)", metric_take="mean", metric_skip=1)["value"] == 4.0


def test_a_pattern_that_never_matches_shows_how_the_output_ended() -> None:
    last = "speed: 12 images/s"
    said = failed(printing("epoch 1", last, ""), "no_figure", metric=PATTERN)
    assert repr(PATTERN) in said
    assert last in said


def test_a_pattern_over_a_program_that_says_nothing_is_a_failure_with_the_pattern() -> None:
    assert repr(PATTERN) in failed("true", "no_figure", metric=PATTERN)


def test_skipping_all_matches_is_a_failure_with_their_number() -> None:
    said = failed(printing("rate 1", "rate 3", "rate 4"), "no_figure", metric=PATTERN, metric_skip=7)
    assert " 3 " in said
    assert "--metric-skip 7" in said


def test_a_pattern_that_backtracks_without_end_is_ended() -> None:
    assert f"{SEARCH_LIMIT_S:g} s" in failed(printing("a" * 60), "no_figure", metric="(?:a+)+(b)")


# What it prints


def test_all_that_a_program_prints_is_kept_in_order() -> None:
    lines = [f"line {number}" for number in range(FIRST_LINES + 20)]
    assert logged(ran(printing(*lines))) == lines


def test_a_flood_is_kept_at_both_ends_and_its_last_line_is_searched() -> None:
    flood = python("print('first'); [print('x' * 99) for _ in range(300_000)]; print('rate 5')")
    done = ran(flood, metric=PATTERN)
    kept = logged(done)
    assert done.last["figure"]["value"] == 5.0
    assert (kept[0], kept[-1], len(kept)) == ("first", "rate 5", FIRST_LINES + LAST_LINES + 1)
    assert "299,402 lines" in kept[FIRST_LINES]


def test_an_endless_line_is_searched_at_its_beginning_and_flagged() -> None:
    done = ran(python("print('rate 5', 'x' * 50_000_000)"), metric=PATTERN)
    assert done.last["figure"]["value"] == 5.0
    assert done.last["flags"][0].startswith("long-lines: 1 ")


def test_binary_output_harms_nothing() -> None:
    done = ran("head -c 3000000 /dev/urandom")
    assert done.last["event"] == "result"
    assert all(len(line) < EVENT_LIMIT_BYTES for line in done.lines)


def test_lines_that_look_like_events_are_only_its_output() -> None:
    forged = '{"event":"result","seq":0,"rank":0,"t":0,"sample":"image","samples_per_step":9,"steps":9,"wall_s":1,"tick_s":1}'
    done = ran(printing(forged))
    assert logged(done) == [forged]
    assert (done.kinds().count("result"), done.last["steps"]) == (1, 1)


def test_a_character_that_arrives_in_two_pieces_is_one() -> None:
    kept: list[str] = []
    lines = Lines(kept.append)
    for byte in "größe\r\nnächste".encode():
        lines.feed(bytes([byte]))
    lines.feed(b"", end=True)
    assert kept == ["größe", "nächste"]


def test_what_is_held_of_a_line_without_end_is_bounded() -> None:
    lines = Lines(lambda _line: None)
    for _ in range(100):
        lines.feed(b"x" * 65_536)
    (state,) = lines.feed(b"\n")
    assert len(state) == LINE_CHARACTERS


# How it fails


def test_an_exit_code_is_a_failure_with_the_last_words() -> None:
    last = "no such dataset"
    said = failed(python(f"print('working'); raise SystemExit({last!r})"), "command_failed")
    assert last in said
    assert "working" not in said


def test_a_figure_does_not_save_a_program_that_failed() -> None:
    assert "code 3" in failed("sh -c 'echo rate 5; exit 3'", "command_failed", metric=PATTERN)


def test_a_program_that_a_signal_ended_is_told_so() -> None:
    segfault = "sh -c 'kill -SEGV $$'"
    assert "SIGSEGV" in failed(segfault, "command_failed")


@pytest.mark.parametrize(
    ("cmd", "params", "named"),
    [
        ("no-such-program-anywhere", {}, "'no-such-program-anywhere'"),
        ("true", {"cwd": "/no/such/folder"}, "'/no/such/folder'"),
        ("/etc/passwd", {}, os.strerror(errno.EACCES)),
    ],
)
def test_a_program_that_cannot_be_started_is_a_sentence(cmd: str, params: dict[str, Scalar], named: str) -> None:
    assert named in failed(cmd, "command_failed", **params)


def test_a_program_that_asks_a_person_gets_no_answer() -> None:
    assert "EOFError" in failed(python("input('name? ')"), "command_failed")


def test_a_program_that_needs_a_terminal_fails_by_itself() -> None:
    cmd = "sh -c 'echo hello > /dev/tty'"
    assert "/dev/tty" in failed(cmd, "command_failed")


def test_a_program_that_closes_its_output_is_waited_for() -> None:
    done = ran("sh -c 'exec >&- 2>&-; sleep 0.3'")
    assert done.last["wall_s"] >= 0.3


def test_the_gpu_whose_counters_are_wanted_must_be_there() -> None:
    assert "cuda:99" in failed("true", "no_device", device="cuda:99")


# How it is started


def test_no_shell_reads_the_command() -> None:
    printed = logged(ran("echo $HOME '*' a\\ b ~"))
    assert [line.split(" ") for line in printed] == [["$HOME", "*", "a", "b", "~"]]


def test_a_shell_that_is_written_out_is_run() -> None:
    cmd = "sh -c 'echo one; echo two | tr a-z A-Z'"
    assert logged(ran(cmd)) == ["one", "TWO"]


def test_it_runs_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "say.sh").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "say.sh").chmod(0o755)
    done = ran("./say.sh", cwd=str(tmp_path))
    assert logged(done) == [str(tmp_path)]
    facts = next(event["facts"] for event in done.events if event.get("subject") == "command")
    assert facts["program"] == str(tmp_path / "say.sh")


def test_the_path_by_which_the_worker_was_found_is_not_handed_on(tmp_path: Path) -> None:
    own_path = os.pathsep.join((str(tmp_path), str(Path(__file__).parent)))
    assert logged(run_worker(own("printenv PYTHONPATH"), environment(tmp_path))) == [own_path]


@pytest.mark.parametrize(
    ("cmd", "named"),
    [
        ("''", "empty"),
        ("echo 'a", "quotation"),
        ("python train.py | tee log", "'|'"),
        ("a && b", "sh -c"),
        ("python x.py > out.txt", "'>'"),
        ("FOO=1 python x.py", "env FOO=1"),
        ("a\0b", "NUL"),
    ],
)
def test_a_command_that_means_a_shell_is_refused(cmd: str, named: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_request(Request(workload="command/own", params={"cmd": cmd}))
    assert named in caught.value.message


def test_a_shells_words_that_are_quoted_are_the_programs_own() -> None:
    typed = r"find . -exec echo {} \; -name '>'"
    assert split_command(typed) == ["find", ".", "-exec", "echo", "{}", ";", "-name", ">"]


@pytest.mark.parametrize(
    ("metric", "named"),
    [("rate [0-9]+", "0 groups"), ("(a)(b)", "2 groups"), ("a(b", "position 1"), ("x" * 1001, "1000")],
)
def test_a_pattern_is_refused_before_anything_runs(metric: str, named: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_request(Request(workload="command/own", params={"cmd": "true", "metric": metric}))
    assert "metric" in caught.value.message
    assert named in caught.value.message


def test_settings_of_a_metric_without_one_are_refused() -> None:
    with pytest.raises(ValidationError) as caught:
        CommandParams(cmd="true", metric_skip=3)
    assert "metric_skip" in str(caught.value)
    assert "--metric" in str(caught.value)


# What the line is from, the pattern that a person would write for it, and a line as the program prints it.
METRICS = [
    ("tf_cnn_benchmarks", "total images/sec: ([0-9.]+)", "total images/sec: 2837.40", "images/sec", False),
    ("pytorch/examples imagenet", r"Time +([0-9.]+)", "Epoch: [0][10/5005]\tTime  0.312 ( 0.581)", "Time", True),
    ("pytorch/examples imagenet", r"Loss ([0-9.e+-]+)", "Loss 6.9078e+00 (6.9512e+00)", "Loss", True),
    ("pytorch/examples imagenet", r"Acc@1 +([0-9.]+)", " *   Acc@1 75.880 Acc@5 92.862", "Acc@1", False),
    ("tqdm", r"([0-9.]+)it/s", "100%|####| 391/391 [00:21<00:00, 18.19it/s]", "it/s", False),
    ("tqdm", r"([0-9.]+)s/it", "12/100 [00:31<03:47,  2.59s/it]", "s/it", True),
    ("Keras", r"([0-9.]+)ms/step", "1875/1875 - 4s 2ms/step - loss: 0.2912", "ms/step", True),
    ("Hugging Face Trainer", r"'train_samples_per_second': ([0-9.]+)", "{'train_samples_per_second': 87.1}",
     "train_samples_per_second", False),
    ("Hugging Face Trainer", r"'train_runtime': ([0-9.]+)", "{'train_runtime': 512.3}", "train_runtime", True),
    ("llama.cpp", r"([0-9.]+) tokens per second", "eval time = 900.1 ms / 63 runs (14.29 ms per token, 69.99 tokens per second)",
     "tokens per second", False),
    ("llama.cpp", r"\( *([0-9.]+) ms per token", "eval time = 900.1 ms / 63 runs ( 14.29 ms per token, 69.99 tokens per second)",
     "ms per token", True),
    ("llama.cpp", r"Final estimate: PPL = ([0-9.]+)", "Final estimate: PPL = 5.9066 +/- 0.03358", "PPL", True),
    ("vLLM", r"Mean TTFT \(ms\): +([0-9.]+)", "Mean TTFT (ms):                          22.40", "ms", True),
    ("vLLM", r"Request throughput \(req/s\): +([0-9.]+)", "Request throughput (req/s):              9.71", "req/s", False),
    ("fio", r"BW=([0-9.]+)MiB/s", "  read: IOPS=132k, BW=515MiB/s (540MB/s)(30.2GiB/60001msec)", "MiB/s", False),
    ("fio", r"lat \(usec\): .*avg= *([0-9.]+)", "     lat (usec): min=52, max=9023, avg=241.70, stdev=80.1", "usec", True),
    ("iperf3", r"([0-9.]+) Gbits/sec .*receiver", "[  5]   0.00-10.00  sec  27.3 GBytes  23.4 Gbits/sec    receiver",
     "Gbits/sec", False),
    ("nccl-tests", r"# Avg bus bandwidth +: ([0-9.]+)", "# Avg bus bandwidth    : 239.115", "bandwidth", False),
    ("sysbench", r"events per second: +([0-9.]+)", "    events per second:  2218.34", "events per second", False),
    ("sysbench", r"transactions: .*\(([0-9.]+) per sec", "    transactions:   52100  (868.24 per sec.)", "per sec", False),
    ("wrk", r"Requests/sec: +([0-9.]+)", "Requests/sec: 748868.53", "Requests/sec", False),
    ("wrk", r"Latency +([0-9.]+)us", "    Latency   635.91us    0.89ms  12.92ms   93.69%", "us", True),
    ("hyperfine", r"Time \(mean ± σ\): +([0-9.]+) s", "  Time (mean ± σ):      1.203 s ±  0.012 s", "s", True),
    ("bash", r"real\s+\d+m([0-9.]+)s", "real\t0m12.345s", "s", True),
    ("ping", r"time=([0-9.]+) ms", "64 bytes from 10.0.0.1: icmp_seq=1 ttl=64 time=0.041 ms", "ms", True),
    ("LoadGen", r"99.00 percentile latency \(ns\) +: ([0-9]+)", "99.00 percentile latency (ns)   : 30330522", "ns", True),
    ("STREAM", r"Triad: +([0-9.]+)", "Triad:          18023.1     0.013401     0.013316     0.013500", "Triad", False),
    ("an own script", r"latency_ms=([0-9.]+)", "step=10 latency_ms=3.51", "ms", True),
    ("an own script", r"latency_min=([0-9.]+)", "latency_min=3.51", "latency_min", True),
    ("an own script", r"latency p99: ([0-9.]+)", "latency p99: 3.51", "latency", True),
    ("an own script", r"error rate: ([0-9.]+)%", "error rate: 3.5%", "%", True),
    ("an own script", r"accuracy: ([0-9.]+)%", "accuracy: 93.5%", "%", False),
    ("an own script", r"(?i)\bfps=(?P<rate>\d+)", "FPS=61", "fps", False),
    ("an own script", r"(?:loss|cost) = ([0-9.]+), step", "loss = 0.31, step 5", "cost", True),
    ("an own script", r"([0-9]+) errors/s", "12 errors/s", "errors/s", True),
    ("an own script", r"([0-9.]+) widgets", "12 widgets", "widgets", False),
    ("an own script", r"^([0-9.]+)$", "12.5", "units", False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "line", "unit", "lower"), [row[1:] for row in METRICS], ids=[row[0] for row in METRICS]
)
def test_unit_and_direction_are_guessed_from_the_text_around_the_number(
    metric: str, line: str, unit: str, lower: bool
) -> None:
    """The table holds lines of real programs: a pattern that does not match its line is no example."""
    assert re.search(metric, line)
    assert guess_metric(metric) == (unit, lower)


def test_a_unit_that_was_typed_decides_the_direction() -> None:
    assert guess_metric("result: ([0-9.]+)", "ms") == ("ms", True)
    assert guess_metric("time: ([0-9.]+)", "images/s") == ("images/s", False)


def test_a_percentile_of_nothing_named_is_a_latency() -> None:
    assert guess_metric("p99: ([0-9.]+)") == ("p99", True)
    assert guess_metric("throughput p50: ([0-9.]+)")[1] is False
    assert guess_metric("p50 ([0-9.]+) images/s") == ("images/s", False)


def test_what_was_typed_is_not_guessed() -> None:
    typed: dict[str, Scalar] = {"metric": "latency ([0-9.]+) ms", "metric_lower": False}
    assert guessed_params(typed) == {"metric_unit": "ms"}
    assert guessed_params({**typed, "metric_unit": "x"}) == {}


def test_a_probe_completes_what_was_typed_without_running_it(tmp_path: Path) -> None:
    request = Request(workload="command/own", params={"cmd": "touch ran", "metric": "images/sec: ([0-9.]+)"})
    done = work(Task(do="probe", request=request), environment(), cwd=tmp_path)
    probe = next(event for event in done.events if event["event"] == "probe")
    params = probe["spec"]["params"]
    # Its folder is the driver's to say, not a worker's.
    assert (params["cwd"], params["metric_unit"], params["device"]) == ("", "images/sec", "auto")
    assert list(tmp_path.iterdir()) == []


# How it ends

# Deaf to everything polite; a child in its group, one that left it, and one that left the session.
STUBBORN = """
import os, signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
pids = [os.getpid(), subprocess.Popen(["sleep", "300"]).pid]
pids.append(subprocess.Popen(["sleep", "300"], process_group=0).pid)
if os.fork() == 0:
    os.setsid()
    pid = os.fork()
    if pid:
        open(sys.argv[1] + ".part", "w").write(" ".join(map(str, [*pids, pid])))
        os.rename(sys.argv[1] + ".part", sys.argv[1])
        os._exit(0)
    time.sleep(300)
    os._exit(0)
print("still here", flush=True)
time.sleep(300 if len(sys.argv) == 2 else float(sys.argv[2]))
"""


def stubborn(pids: Path, *more: str) -> str:
    return shlex.join([sys.executable, "-c", STUBBORN, str(pids), *more])


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupted")])
def test_a_signal_to_the_worker_ends_a_program_that_ignores_it(number: int, kind: str, tmp_path: Path) -> None:
    process = start(environment())
    give(process, Task(do="run", spec=own(stubborn(tmp_path / "pids"))))
    pids = read_pids(tmp_path / "pids", 4)
    process.send_signal(number)
    done = finish(process)
    assert (done.last["event"], done.last["kind"]) == ("failed", kind)
    assert logged(done) == ["still here"]
    assert gone(pids)


@pytest.mark.parametrize("marked", [True, False])
def test_the_end_of_the_lifeline_ends_the_program_too(marked: bool, tmp_path: Path) -> None:
    process = start(environment(**({MARK_VARIABLE: f"r-{os.getpid()}-lifeline"} if marked else {})))
    give(process, Task(do="run", spec=own(stubborn(tmp_path / "pids"))))
    pids = read_pids(tmp_path / "pids", 4)
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    finish(process)
    assert gone([*pids, process.pid])


def test_what_a_program_leaves_behind_is_ended_and_flagged(tmp_path: Path) -> None:
    done = ran(stubborn(tmp_path / "pids", "0.5"))
    assert done.last["event"] == "result"
    kind, _, said = done.last["flags"][0].partition(": ")
    assert (kind, " 3 " in said) == ("left-behind", True)
    assert gone(read_pids(tmp_path / "pids", 4))


def test_a_pattern_that_gives_up_ends_the_program(tmp_path: Path) -> None:
    code = (
        f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); print('a' * 60, flush=True); "
    )
    failed(python(code + "time.sleep(300)"), "no_figure", metric="(?:a+)+(b)")
    assert gone([int((tmp_path / "pid").read_text())])


# By the command line


def test_the_command_line_measures_a_program_and_keeps_what_it_said(tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.sqlite3")
    cmd = shlex.join([sys.executable, "-c", "print('images/sec: 12.5')"])
    done = ask("run", "--cmd", cmd, "--metric", "images/sec: ([0-9.]+)", "--runs", "2", "--ledger", ledger, "--json")
    (result,) = json.loads(done.out)["results"]
    assert result["throughput"]["rate_per_s"] == pytest.approx(12.5)
    assert result["throughput"]["unit"] == "images/sec"
    assert result["spec"]["params"]["cwd"] == os.getcwd()
    (first, second) = result["runs"]
    assert (first["steady"], first["flags"], first["framework"]) == (None, [], None)
    assert ask("show", second["id"], "--log", "--ledger", ledger).out == "images/sec: 12.5\n"


def test_wall_time_is_shown_as_a_time(tmp_path: Path) -> None:
    done = ask("run", "--cmd", "sleep 0.1", "--runs", "1", "--ledger", str(tmp_path / "l.sqlite3"))
    (figure,) = (line for line in done.out.splitlines() if line.startswith("figure"))
    assert re.search(r"\d s\b", figure)
    assert not any(line.startswith("warning") for line in done.out.splitlines())


def test_a_time_limit_ends_a_program_with_all_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    ledger = str(tmp_path / "l.sqlite3")
    done = ask("run", "--cmd", stubborn(pids), "--runs", "1", "--time-limit", "3s", "--ledger", ledger, "--json")
    assert done.code == 3
    (result,) = json.loads(done.out)["results"]
    assert [run["failure_kind"] for run in result["runs"]] == ["timeout"]
    assert gone(read_pids(pids, 4))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", "--cmd", "true", "--seconds", "3"], ("command/own", "'seconds'")),
        (["run", "train/lenet", "--cmd", "true"], ("workload", "--cmd")),
        (["run"], ("--cmd", "stackmark workloads")),
    ],
)
def test_what_does_not_go_together_on_the_command_line_is_said(arguments: list[str], named: tuple[str, ...]) -> None:
    done = ask(*arguments)
    assert done.code == 2
    assert [word for word in named if word not in done.err] == []


def test_the_workload_is_in_the_list_without_counts() -> None:
    assert "command/own" in ask("workloads", "command/*").out
    (entry,) = json.loads(ask("workloads", "command/*", "--json").out)["workloads"]
    assert entry["forward_macs"] == 0


@pytest.mark.parametrize("names", [("--unit", "--lower-is-better"), ("--metric-unit", "--metric-lower")])
def test_unit_and_direction_have_short_names_and_their_earlier_ones(names: tuple[str, str]) -> None:
    seen: dict[str, Scalar] = {}
    command = click.command()(parameter_options(lambda **typed: seen.update(typed)))
    done = CliRunner().invoke(command, [names[0], "ms", names[1]])
    assert (done.exit_code, seen["metric_unit"], seen["metric_lower"]) == (0, "ms", True)


def test_help_shows_the_short_names_alone() -> None:
    shown = CliRunner().invoke(click.command()(parameter_options(lambda **_: None)), ["--help"]).output
    assert ("--unit" in shown, "--metric-unit" in shown, "--metric-lower" in shown) == (True, False, False)


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("images/sec: ([0-9.]+)", "images/sec"),
        ("total images/sec: ([0-9.]+)", "total images/sec"),
        ("latency ([0-9.]+) ms", "latency"),
        ("latency_ms=([0-9.]+)", "latency"),
        (r"lat \(usec\): avg=([0-9.]+)", "lat avg"),
        (r"step \d+ loss=([0-9.]+)", "loss"),
        (r"epoch [0-9]+, val accuracy ([0-9.]+)", "val accuracy"),
        ("([0-9.]+) img/s", "img/s"),
        ("([0-9.]+)", ""),
    ],
)
def test_the_name_of_a_figure_is_guessed_from_the_text_before_it(metric: str, name: str) -> None:
    assert guess_name(metric) == name
    assert metric_name({"metric": metric}) == name
    assert metric_name({"metric": metric, "metric_name": "mine"}) == "mine"


def test_a_program_without_a_metric_is_timed_and_a_workload_has_no_metric_of_its_own() -> None:
    assert metric_name({"metric": ""}) == "wall time"
    assert metric_name({"batch": 4}) == ""


@pytest.mark.parametrize(("metric", "unit", "lower"), [("energy ([0-9.]+) J", "", True), ("images/J: ([0-9.]+)", "", False),
    ("paid ([0-9.]+)", "USD", True), ("score: ([0-9.]+)", "%", False)])  # fmt: skip
def test_what_is_spent_is_better_when_it_is_lower(metric: str, unit: str, lower: bool) -> None:
    assert guess_metric(metric, unit)[1] is lower


def test_a_spec_without_a_typed_name_keeps_the_hash_that_it_had_before_there_were_names() -> None:
    typed = {"device": "cpu", "cmd": "true", "cwd": "/", "metric": "rate: ([0-9.]+)", "metric_unit": "x"}
    spec = Spec(workload="command/own", params=CommandParams.model_validate(typed).model_dump(mode="json"))
    assert spec.canonical() == (
        '{"params":{"cmd":"true","cwd":"/","device":"cpu","metric":"rate: ([0-9.]+)","metric_lower":false,"metric_skip":0,'
        '"metric_take":"last","metric_unit":"x"},"ranks":1,"schema_version":1,"workload":"command/own"}'
    )
    named = CommandParams.model_validate({**typed, "metric_name": "mine"}).model_dump(mode="json")
    assert named["metric_name"] == "mine"
