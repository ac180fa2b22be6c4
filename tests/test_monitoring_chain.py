"""The whole chain: a slowed program is checked, Prometheus scrapes the exporter, a rule fires, Alertmanager calls a webhook.

Prometheus and Alertmanager are Debian's. The same Prometheus answers every query of every dashboard and every selector of every
rule: one that returns nothing is a defect.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard as GrafanaDashboard

import ledger_runs
import recorded
from asking import ask
from leaving_out import leave_out
from other_days import change, on_another_day
from prometheus_parts import Prometheus, Webhook, driver_of_gpus, fetch, prometheus, selectors, serving, until, url_of
from refusing import refused
from stackmark.errors import Exit
from stackmark.ledger.store import Ledger
from stackmark.monitor import install
from stackmark.monitor.dashboards import dashboards
from stackmark.monitor.exporter import Exporter
from stackmark.monitor.gpus import GpuWatch
from stackmark.monitor.grafana import Dashboard
from stackmark.monitor.install import InstallRequest
from stackmark.monitor.rules import CRITICAL_XIDS, RuleOptions, alerts, rule_groups, rules_tests, rules_yaml
from stackmark.monitor.server import MetricsServer

ROOT = Path(__file__).parents[1]
PARTS = ("prometheus", "promtool", "prometheus-alertmanager")
PROGRAM = """
import pathlib, sys, time
pause_s = float(pathlib.Path(sys.argv[1]).read_text())
began = time.perf_counter()
for _ in range(10):
    time.sleep(pause_s)
print(f"images/sec: {10 / (time.perf_counter() - began):.2f}")
"""


def need(*programs: str) -> None:
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        leave_out(f"{' and '.join(missing)} not installed (apt-get install prometheus prometheus-alertmanager)")


# --- rules and dashboards by themselves


def test_promtool_accepts_the_rules_and_their_tests(tmp_path: Path) -> None:
    need("promtool")
    for name, words in (("stackmark.rules.yaml", ["rules"]), ("stackmark.rules.test.yaml", ["rules", "--tests"])):
        answer = ask("monitor", *words)
        assert answer.code == 0
        (tmp_path / name).write_text(answer.out)
    for verb, name in (("check", "stackmark.rules.yaml"), ("test", "stackmark.rules.test.yaml")):
        done = subprocess.run(["promtool", verb, "rules", name], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_or_watches_one_metric_alone() -> None:
    tested = {one["alertname"] for group in yaml.safe_load(rules_tests())["tests"] for one in group["alert_rule_test"]}
    assert {one.name for one in alerts(RuleOptions())} - tested == {"StackmarkAlarm"}


def test_every_alert_says_what_to_do_on_a_page_that_has_the_heading() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in page.splitlines()
        if line.startswith("#")
    }
    for one in alerts(RuleOptions()):
        assert one.anchor in headings, one.name
        assert one.summary
        assert one.description


def test_options_of_rules_are_validated_and_used() -> None:
    with refused("--silent-after"):
        RuleOptions(silent_after_s=1)
    with refused("--hot"):
        RuleOptions(hot_c=float("nan"))
    assert "> 7200" in rules_yaml(RuleOptions(silent_after_s=7200))
    assert "> 70" in rules_yaml(RuleOptions(hot_c=70))


def test_xids_of_programs_raise_no_alert() -> None:
    assert not {13, 31, 43, 45} & {*CRITICAL_XIDS}


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression of dashboards, with the choices of their variables filled in as at first: all."""
    for one in dashboards():
        for panel in one.panels:
            for query in panel.queries:
                yield f"{one.uid}: {panel.title}", re.sub(r"\$\w+", ".*", query.expression)


def rule_expressions() -> Iterator[tuple[str, str]]:
    groups: Any = rule_groups()["groups"]
    for group in groups:
        for rule in group["rules"]:
            yield rule.get("alert") or rule["record"], rule["expr"]


def test_an_independent_parser_reads_every_expression() -> None:
    for where, expression in (*expressions(), *rule_expressions()):
        assert promql_parser.parse(expression) is not None, where


@pytest.mark.parametrize("one", dashboards(), ids=lambda one: one.uid)
def test_grafanas_own_classes_read_a_dashboard_and_lose_nothing(one: Dashboard) -> None:
    ours = json.loads(json.dumps(one.to_dict()))
    theirs = json.loads(json.dumps(GrafanaDashboard.from_json(ours), cls=JSONEncoder))
    assert missing_in(ours, theirs) == []


def missing_in(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """What stands in ours and not, or otherwise, in theirs, which may have defaults more. null is absent there."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [
            found
            for key, value in ours.items()
            if value is not None
            for found in (missing_in(value, theirs[key], f"{where}.{key}") if key in theirs else [f"{where}.{key}"])
        ]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [
            found
            for n, pair in enumerate(zip(ours, theirs, strict=True))
            for found in missing_in(*pair, f"{where}[{n}]")
        ]
    return [] if ours == theirs else [f"{where}: {ours!r} became {theirs!r}"]


def test_panels_of_a_dashboard_do_not_overlap() -> None:
    for one in dashboards():
        cells: set[tuple[int, int]] = set()
        panels: Any = one.to_dict()["panels"]
        for panel in panels:
            at = panel["gridPos"]
            mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not mine & cells
            assert max(x for x, _ in mine) < 24
            cells |= mine


def test_dashboards_are_written_to_a_folder(tmp_path: Path) -> None:
    answer = ask("monitor", "dashboards", "-o", str(tmp_path / "new"))
    assert answer.code == 0
    written = [Path(line) for line in answer.out.split()]
    assert [path.name for path in written] == [one.file for one in dashboards()]
    assert all(json.loads(path.read_text())["panels"] for path in written)
    assert ask("monitor", "dashboards", "-o", str(written[0])).code == Exit.WRONG_USE


# --- manifests


@pytest.mark.parametrize("kind", ["kubernetes", "prometheus-operator", "openshift"])
def test_manifests_have_the_fields_that_the_api_has(kind: install.Kind) -> None:
    import kubernetes_validate

    for made in install.manifests(InstallRequest(kind, "registry.example/stackmark:1")):
        if made["apiVersion"] in ("v1", "apps/v1"):
            kubernetes_validate.validate(made, "1.34", strict=True)


@pytest.mark.parametrize("kind", ["kubernetes", "prometheus-operator", "openshift"])
def test_pods_are_fit_for_pod_security_restricted(kind: install.Kind) -> None:
    made = install.manifests(InstallRequest(kind, "registry.example/stackmark:1"))
    pods = [one["spec"]["template"]["spec"] for one in made if one["kind"] in ("Deployment", "DaemonSet")]
    assert len(pods) == 2
    for pod in pods:
        security, (container,) = pod["securityContext"], pod["containers"]
        assert security["runAsNonRoot"] is True
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert ("runAsUser" in security) == (kind != "openshift")
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert all("hostPath" not in volume for volume in pod["volumes"])
        assert "--token-file" in container["command"]
        assert not any("nvidia.com/gpu" in str(part) for part in container["resources"].values())


def test_the_operators_objects_select_the_services_and_hold_the_rules() -> None:
    made = install.manifests(InstallRequest("openshift", "registry.example/stackmark:1", namespace="watch"))
    services = [one["metadata"]["labels"] for one in made if one["kind"] == "Service"]
    monitors = [one for one in made if one["kind"] == "ServiceMonitor"]
    assert [one["spec"]["selector"]["matchLabels"] for one in monitors] == services
    (rules,) = [one for one in made if one["kind"] == "PrometheusRule"]
    assert rules["spec"] == rule_groups()
    assert rules["metadata"]["labels"]["openshift.io/prometheus-rule-evaluation-scope"] == "leaf-prometheus"
    assert {one["metadata"]["namespace"] for one in made} == {"watch"}


def test_the_printed_text_is_what_was_made() -> None:
    answer = ask("monitor", "install", "--prometheus-operator", "--image", "registry.example/stackmark:1", "--no-gpu")
    assert answer.code == 0
    made = install.manifests(InstallRequest("prometheus-operator", "registry.example/stackmark:1", gpus=False))
    assert list(yaml.safe_load_all(answer.out)) == made


def test_promtool_accepts_the_scrape_configuration(tmp_path: Path) -> None:
    need("promtool")
    token = tmp_path / "token"
    token.write_text("a-token-that-nobody-guesses")
    answer = ask("monitor", "install", "--prometheus", "--target", "node1:9469", "--token-file", str(token))
    (tmp_path / "prometheus.yml").write_text(answer.out)
    (tmp_path / "stackmark.rules.yaml").write_text(rules_yaml())
    command = ["promtool", "check", "config", "prometheus.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--kubernetes",),
        ("--kubernetes", "--image", "x", "--target", "a:1"),
        ("--prometheus", "--image", "x"),
        ("--openshift", "--image", "x", "--namespace", "A_B"),
    ],
)
def test_what_does_not_go_together_is_refused(words: tuple[str, ...]) -> None:
    assert ask("monitor", "install", *words).code == Exit.WRONG_USE


# --- the chain


@dataclass(frozen=True)
class Chain:
    prometheus: Prometheus
    webhook: Webhook
    server: MetricsServer


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """A ledger with recorded runs, a failed run and a check of a slowed program, GPUs, and who watches them."""
    need(*PARTS)
    folder = tmp_path_factory.mktemp("chain")
    file = folder / "ledger.sqlite3"
    with Ledger.open(str(file)) as book:
        recorded.load(book, "h200_host_container_pod")
        ledger_runs.complete(book, ledger_runs.FAILED)
    _check_a_slowed_program(folder, file)
    with (
        GpuWatch(module=driver_of_gpus(2)) as gpus,
        Exporter(str(file), gpus=gpus, source="nvml", ledger_age_s=0.5, horizon_s=1e12) as exporter,
        serving(MetricsServer(exporter, "127.0.0.1", 0)) as server,
        serving(Webhook()) as webhook,
        prometheus(folder, f"127.0.0.1:{server.server_port}", rules_yaml(), webhook.server_port) as found,
    ):
        # Two scrapes: a rate needs them.
        assert until(
            lambda: [one for one in found.query("stackmark_exporter_scrapes_total") if float(one["value"][1]) >= 3]
        )
        assert until(lambda: found.query("stackmark:checks:count"))
        yield Chain(found, webhook, server)


def _check_a_slowed_program(folder: Path, file: Path) -> None:
    """Three series of a program as a baseline, on three days; then it waits four times as long."""
    program, pause = folder / "train.py", folder / "pause"
    program.write_text(PROGRAM)
    pause.write_text("0.005")
    typed = shlex.join([sys.executable, str(program), str(pause)])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("stackmark.experiments.surroundings.look", lambda _seconds: None)
        first = ask(
            "baseline", "save", "before", "--cmd", typed, "--metric", "images/sec: ([0-9.]+)", "--runs", "2",
            "--ledger", str(file), "--json",
        )  # fmt: skip
        assert first.code == 0, first.err
        saved = [first, *(ask("baseline", "save", "before", "--ledger", str(file), "--json") for _ in range(2))]
        assert [one.code for one in saved] == [0, 0, 0], saved[-1].err
        for days, rate, one in zip((12.0, 11.0, 10.0), (178, 180, 182), saved, strict=True):
            experiment = json.loads(one.out)["saved"][0]["experiment"]
            on_another_day(file, experiment, days)
            # How far its days differ is not what is tried here: a busy machine may spread them.
            change(file, "UPDATE runs SET rate_per_s = ? + position WHERE experiment_id = ?", rate, experiment)
        pause.write_text("0.02")
        checked = ask("check", "before", "--margin", "10%", "--fail-on", "slower", "--ledger", str(file))
        assert checked.code == Exit.VERDICT_NAMED, checked.out + checked.err


def test_a_slowed_program_reaches_the_webhook(chain: Chain) -> None:
    def told() -> list[dict[str, Any]]:
        return [one for one in chain.webhook.alerts if one["labels"]["alertname"] == "StackmarkSlower"]

    alert = (until(told) or [{}])[0]
    assert alert["status"] == "firing"
    assert alert["labels"]["baseline"] == "before"
    assert alert["labels"]["workload"] == "command/own"
    assert alert["labels"]["verdict"] == "SLOWER"
    assert alert["labels"]["severity"] == "critical"
    (ratio,) = chain.prometheus.query('stackmark_baseline_ratio{workload="command/own"}')
    assert 0.0 < float(ratio["value"][1]) < 0.5
    (low,), (high,) = (chain.prometheus.query(f"stackmark_baseline_ratio_{end}") for end in ("low", "high"))
    assert float(low["value"][1]) < float(ratio["value"][1]) < float(high["value"][1])


def test_what_is_well_raises_no_alert(chain: Chain) -> None:
    fired = {
        one["metric"]["alertname"] for one in until(lambda: chain.prometheus.query('ALERTS{alertstate="firing"}')) or []
    }
    assert fired <= {"StackmarkSlower", "StackmarkRunFailed"}


def test_every_query_of_every_dashboard_returns_data(chain: Chain) -> None:
    every = list(expressions())
    assert len(every) > 40

    def empty() -> list[tuple[str, str]]:
        return [one for one in every if not chain.prometheus.query(one[1])]

    # A rate needs a second scrape.
    assert until(lambda: not empty(), patience_s=60), empty()


def test_every_variable_of_a_dashboard_has_values(chain: Chain) -> None:
    for one in dashboards():
        for variable in one.variables:
            assert chain.prometheus.query(f'{variable.metric}{{{variable.label}!=""}}'), variable.query


def test_every_selector_of_every_rule_returns_data(chain: Chain) -> None:
    """An alert's whole expression is empty while all is well; what it looks at is not. DCGM's exporter is not here."""
    every = {(name, one) for name, expression in rule_expressions() for one in selectors(expression)}
    of_ours = [(name, one) for name, one in every if not one.startswith("DCGM_")]
    assert {name for name, _ in of_ours} == {name for name, _ in rule_expressions()}
    assert [(name, one) for name, one in of_ours if not chain.prometheus.query(one)] == []


def test_every_metric_is_on_the_page_and_the_page_names_no_other(chain: Chain) -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    described = re.findall(r"^# HELP (\w+)", fetch(url_of(chain.server)), re.MULTILINE)
    named = {re.sub(r"\{.*", "", one) for one in re.findall(r"`(stackmark_\w+(?:\{[^`]*\})?)`", page)}
    assert named == {*described}


def test_prometheus_reads_both_of_its_formats(chain: Chain) -> None:
    plain = fetch(url_of(chain.server))
    open_metrics = fetch(url_of(chain.server), {"Accept": "application/openmetrics-text; version=1.0.0"})
    assert open_metrics.endswith("# EOF\n")
    assert "stackmark_result_rate{" in plain
    assert "stackmark_result_rate{" in open_metrics
