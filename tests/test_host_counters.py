"""What the machine did beside a run: its own CPU time, its neighbours', and what could not be seen."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from stackmark.machine.host_counters import HostCounters, between, read

BEFORE = HostCounters(time_s=100.0, run_s=5.0, involuntary_switches=10, load_1m=0.5, busy_s=1000.0)
TICKS = os.sysconf("SC_CLK_TCK")


def metrics(before: HostCounters, after: HostCounters) -> dict[str, float]:
    return {metric.name: metric.value for metric in between(before, after)}


def test_differences_become_metrics() -> None:
    after = HostCounters(time_s=110.0, run_s=13.0, involuntary_switches=25, load_1m=2.0, busy_s=1023.0)
    # 23 s of all CPUs in 10 s, 8 of them ours: one and a half CPUs were busy for others.
    assert metrics(BEFORE, after) == {"involuntary_switches": 15, "cpu_s": 8.0, "load_1m": 0.5, "other_cpus": 1.5}


def test_a_machine_that_was_ours_alone_has_no_neighbours() -> None:
    after = HostCounters(time_s=110.0, run_s=15.02, involuntary_switches=10, load_1m=1.0, busy_s=1010.0)
    assert metrics(BEFORE, after)["other_cpus"] == 0.0


def test_what_could_not_be_seen_is_left_out() -> None:
    blind = HostCounters(time_s=110.0, run_s=None, involuntary_switches=11, load_1m=None, busy_s=None)
    assert metrics(blind, blind) == {"involuntary_switches": 0}


def proc(root: Path, *, session: int, ticks: tuple[int, int]) -> Path:
    """A machine with two processes of our session and one of another."""
    (root / "proc").mkdir()
    (root / "proc/loadavg").write_text("1.25 0.50 0.20 2/345 6789\n")
    (root / "proc/stat").write_text(
        f"cpu  {30 * TICKS} {TICKS} {5 * TICKS} 999999 888 {TICKS} {2 * TICKS} 777 0 0\ncpu0 1 2\n"
    )
    for pid, (sid, user) in enumerate([(session, ticks[0]), (session, ticks[1]), (session + 1, 10**6)], 10):
        (root / f"proc/{pid}").mkdir()
        # A name may hold brackets and spaces.
        fields = ["S", "1", str(pid), str(sid), *["0"] * 7, str(user), str(TICKS), *["0"] * 20]
        (root / f"proc/{pid}/stat").write_text(f"{pid} (a ) b) {' '.join(fields)}\n")
    return root


def test_proc_is_read_as_the_kernel_writes_it(tmp_path: Path) -> None:
    gone = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = read(proc(tmp_path, session=os.getsid(0), ticks=(3 * TICKS, 4 * TICKS)))
    assert found.load_1m == 1.25
    assert found.busy_s == 39.0  # without idle, iowait and steal
    assert found.run_s == pytest.approx(3 + 4 + 2 + gone.ru_utime + gone.ru_stime)


def test_a_session_that_cannot_be_seen_has_no_time(tmp_path: Path) -> None:
    assert read(proc(tmp_path, session=10**9, ticks=(0, 0))).run_s is None


def test_damaged_files_are_not_numbers(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/loadavg").write_text("soon\n")
    (tmp_path / "proc/stat").write_text("cpu a b\n")
    found = read(tmp_path)
    assert (found.load_1m, found.busy_s, found.run_s) == (None, None, None)


# In a session of its own: in pytest's, processes of other tests come and go meanwhile.
CHILD_AT_WORK = """
import subprocess, sys
from stackmark.machine.host_counters import between, read
before = read()
code = "import time\\nwhile time.process_time() < 0.3: pass\\nprint(flush=True)\\ninput()"
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(next(one.value for one in between(before, read()) if one.name == "cpu_s"))
child.communicate(b"\\n")
print(next(one.value for one in between(before, read()) if one.name == "cpu_s"))
"""


def test_work_of_a_child_is_counted_while_it_runs_and_after() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD_AT_WORK], capture_output=True, text=True, check=True, start_new_session=True
    )
    running, ended = map(float, done.stdout.split())
    assert running >= 0.25
    assert ended == pytest.approx(running, abs=0.25)
