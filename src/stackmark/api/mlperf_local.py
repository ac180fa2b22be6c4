"""MLPerf Inference's reference application on this machine: its arguments and its line, with runs of `serve/`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stackmark.api.ledgers import LedgerLike, opened
from stackmark.api.measuring import RunPlan, carry_out_run, check_run, plan_run
from stackmark.api.options import command_of, read_request
from stackmark.api.stored import Measurement
from stackmark.errors import SpecError
from stackmark.experiments.recorder import Watcher
from stackmark.experiments.result import RunResult, flags_of_runs
from stackmark.schemas import with_schema
from stackmark.show.reference_app import NAMES, lines_of_log, name_of, reference_line
from stackmark.spec import Scalar
from stackmark.workloads.serve.definition import SERVED

DEVICES = {"cpu": "cpu", "gpu": "cuda:0"}
# Other people's logs are read up to here.
MOST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class LocalRun:
    """One scenario: what was measured, and its line; the line is empty where the run failed."""

    scenario: str
    measurement: Measurement
    line: str

    @property
    def result(self) -> RunResult:
        assert isinstance(self.measurement.result, RunResult)
        return self.measurement.result

    @property
    def flags(self) -> list[str]:
        """Return what a reader must know: that the run is quick, or that LoadGen calls it invalid."""
        return [said for _, said in flags_of_runs(self.result.good)]


def read_scenarios(text: str) -> list[str]:
    """Read names of scenarios with commas, the application's or ours, or `all`."""
    spelled = {name.lower(): ours for name, ours in NAMES.items()} | {ours: ours for ours in NAMES.values()}
    if text.strip().lower() == "all":
        return [*NAMES.values()]
    found: list[str] = []
    for part in text.split(","):
        scenario = spelled.get(part.strip().lower())
        if scenario is None:
            raise SpecError(
                f"--scenario: unknown scenario {part.strip()[:40]!r}", hint=f"known are {', '.join(NAMES)}, and all"
            )
        if scenario not in found:
            found.append(scenario)
    return found


def plan_local(model: str, device: str, scenarios: Sequence[str], typed: Mapping[str, Scalar | None]) -> list[RunPlan]:
    """Plan one run of each scenario. `typed` are parameters of `serve/`; the server alone takes a rate and a bound."""
    if model not in SERVED:
        raise SpecError(f"no model {model[:40]!r} is served", hint=f"known are {', '.join(SERVED)}")
    if device not in DEVICES:
        raise SpecError(
            f"the device is cpu or gpu, got {device[:40]!r}", hint="write: stackmark mlperf local resnet50 cpu"
        )
    plans = []
    for scenario in scenarios:
        left_out = () if scenario == "server" else ("rate", "latency_bound")
        params = {name: value for name, value in typed.items() if value is not None and name not in left_out}
        params = {"scenario": scenario, "device": DEVICES[device], **params}
        request, _ = read_request(f"serve/{model}", 1, params)
        check_run(request)
        plans.append(plan_run(request, runs=1, command=command_of(["run"], request.workload, {**params, "runs": 1})))
    return plans


def run_local(plan: RunPlan, ledger: LedgerLike, watcher: Watcher) -> LocalRun:
    """Make the run, which is stored like any other."""
    scenario = str(plan.request.params["scenario"])
    with opened(ledger, create=True) as book:
        found = carry_out_run(plan, book, watcher)
    found = replace(found, ledger=ledger)
    assert isinstance(found.result, RunResult)
    served = found.result.served
    return LocalRun(scenario, found, reference_line(scenario, served) if served else "")


def read_reference_log(path: Path, scenarios: Sequence[str]) -> list[str]:
    """Return the lines of these scenarios in a log of the reference application."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise SpecError(f"--reference-log: {path} cannot be read: {error.strerror}") from error
    found = lines_of_log(text.splitlines(), scenarios)
    if not found:
        names = ", ".join(map(name_of, scenarios))
        raise SpecError(
            f"--reference-log: {path} has no line of {names}",
            hint="it is a log of the reference application: TestScenario.SingleStream qps=…",
        )
    return found


def local_json(runs: Sequence[LocalRun], reference_lines: Sequence[str]) -> dict[str, Any]:
    """Return what `stackmark mlperf local --json` prints."""
    found = [{"scenario": one.scenario, "line": one.line or None, **one.measurement.to_dict()} for one in runs]
    return with_schema("mlperf-local", {"results": found, "reference_lines": list(reference_lines)})
