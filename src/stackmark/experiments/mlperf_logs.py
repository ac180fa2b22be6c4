"""MLPerf's logs of our own runs: written from what is stored, in either spelling, and verified by MLCommons' checker.

A run of `fit/` prints its log as it goes (workloads/fit/impl/mlperf_log.py), and the ledger keeps the lines. The checker is
MLCommons' own program: a second opinion of theirs is worth more than one of ours. It evaluates Python expressions of its rule
files, so only the rules that are installed with it are used, in a process of its own.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from stackmark.errors import SpecError
from stackmark.events import Log
from stackmark.experiments.judging import read_stored
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger

MARK = ":::MLLOG "
# As MLPerf's rounds spell their lines: `:::MLL` is v0.6, `:::MLLOG` every later one.
Style = Literal["mllog", "v0.6"]
# One file; the largest of the DGX-1's is 300 KB.
CHECK_LIMIT_S = 300.0
_NO_RULES = re.compile(r"FileNotFoundError: .*/(open|closed)_(\w+)\.yaml'")
_RULESET = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")
_SAID = re.compile(r"^(?:ERROR|WARNING|CRITICAL)\b[\s:-]*(.*)$")
# Of the checker's findings in a file.
FINDINGS_KEPT = 20


@dataclass(frozen=True)
class WrittenLog:
    file: str
    run_id: str
    lines: int


def write_logs(ledger: Ledger, name: str, folder: Path, style: Style) -> list[WrittenLog]:
    """Write the log of each run of an experiment, or of one run, as `result_0.txt` …; nothing is overwritten."""
    found = [(row, lines) for row in _rows(ledger, name) if (lines := log_lines(ledger, row))]
    if not found:
        raise SpecError(
            f"{name} has no MLPerf log: only runs of fit/ print one",
            hint="measure one: stackmark run fit/transformer",
        )
    files = [folder / f"result_{number}.txt" for number in range(len(found))]
    if there := next((file for file in files if file.exists()), None):
        raise SpecError(f"{there} exists already", hint="name an empty folder: -o DIR")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, (_, lines) in zip(files, found, strict=True):
            spelled = [as_v06(line) for line in lines] if style == "v0.6" else lines
            file.write_text("".join(f"{line}\n" for line in spelled), encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{error.filename or folder} cannot be written: {error.strerror}") from error
    return [WrittenLog(str(file), row.id, len(lines)) for file, (row, lines) in zip(files, found, strict=True)]


def _rows(ledger: Ledger, name: str) -> Iterator[RunRow]:
    """Yield the runs that a name means: those of an experiment in their order, or one run."""
    text = name.strip().lower()
    if text == "last" or text.startswith("x-"):
        experiment = ledger.experiment(ledger.experiment_id(name))
        yield from (row for row in ledger.runs_of(experiment.id) if row.role == "measured")
    else:
        yield ledger.run(name)


def log_lines(ledger: Ledger, row: RunRow) -> list[str]:
    """Return the lines of MLPerf's log that a run printed. A worker says them: a line that is not JSON is left out."""
    events = read_stored(ledger.stream(row.id)).stream.events
    lines = (event.line for event in events if isinstance(event, Log) and event.rank == 0)
    return [line for line in lines if line.startswith(MARK) and _entry(line) is not None]


def _entry(line: str) -> dict[str, object] | None:
    try:
        entry = json.loads(line.removeprefix(MARK))
    except ValueError:
        return None
    good = isinstance(entry, dict) and isinstance(entry.get("time_ms"), int) and isinstance(entry.get("key"), str)
    return entry if good else None


def as_v06(line: str) -> str:
    """Return a line in the spelling of v0.6: the time in seconds, then the key, then value and metadata."""
    entry = _entry(line)
    assert entry is not None
    assert isinstance(entry["time_ms"], int)
    rest = json.dumps({"value": entry.get("value"), "metadata": entry.get("metadata") or {}})
    return f":::MLL {entry['time_ms'] / 1000:.3f} {entry['key']}: {rest}"


# --- MLCommons' checker -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckedLog:
    """What the checker says of one file."""

    file: str
    passed: bool
    findings: tuple[str, ...] = ()


def rulesets() -> list[str]:
    """Return the rules of training that are installed."""
    spec = find_spec("mlperf_logging")
    if spec is None or not spec.submodule_search_locations:
        raise SpecError(
            "MLCommons' checker is not installed here",
            hint="install it: pip install 'stackmark[mlperf]'",
            kind="missing",
        )
    folder = Path(spec.submodule_search_locations[0]) / "compliance_checker"
    names = (path.name.removeprefix("training_") for path in folder.glob("training_*") if path.is_dir())
    return sorted((name for name in names if _RULESET.fullmatch(name)), key=_by_version)


def _by_version(name: str) -> list[int]:
    return [int(part) for part in name.split(".")]


def check_logs(files: Sequence[str], ruleset: str) -> list[CheckedLog]:
    """Run the checker on each file."""
    known = rulesets()
    if ruleset not in known:
        raise SpecError(f"--ruleset must be one of {', '.join(known)}, got {ruleset!r}")
    for file in files:
        if not Path(file).is_file():
            what = "is a folder: name its files" if Path(file).is_dir() else "does not exist"
            raise SpecError(f"{file} {what}", hint="e.g. stackmark mlperf check results/result_*.txt --ruleset 4.1.0")
    return [_check(file, ruleset) for file in files]


def _check(file: str, ruleset: str) -> CheckedLog:
    # The absolute path: a name that begins with a dash is no option then. The checker's own copy of its findings is not wanted.
    argv = [sys.executable, "-P", "-m", "mlperf_logging.compliance_checker", "--usage", "training"]
    argv += ["--ruleset", ruleset, "--log_output", "/dev/null", str(Path(file).resolve())]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=CHECK_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return CheckedLog(file, False, (f"the checker did not end within {CHECK_LIMIT_S:.0f} s",))
    lines = [line.strip() for line in (*done.stdout.splitlines(), *done.stderr.splitlines()) if line.strip()]
    findings = [said[1] for line in lines if (said := _SAID.match(line)) and said[1] and said[1] != "FAILED"]
    passed = done.returncode == 0 and any(line.endswith("SUCCESS") for line in lines)
    if not passed and not findings:
        findings = [_why_it_broke_off(lines, ruleset, done.returncode)]
    return CheckedLog(file, passed, tuple(dict.fromkeys(findings[:FINDINGS_KEPT])))


def _why_it_broke_off(lines: Sequence[str], ruleset: str, code: int) -> str:
    """Say why the checker ended without a finding. It has a file of rules for each benchmark, and a traceback without one."""
    if not lines:
        return f"the checker ended with code {code} and said nothing"
    if missing := _NO_RULES.search(lines[-1]):
        return f"ruleset {ruleset} has no rules for {missing[2]} in the {missing[1]} division"
    return f"the checker broke off: {lines[-1]}"
