"""Names and versions of the JSON objects that commands print, in one table.

Every object that a command prints with `--json`, or that `to_dict()` returns, begins with `"schema": "stackmark.NAME/VERSION"`,
so that a program that finds one in a file knows what it is. docs/json.md lists the fields of each and says what may change: added
fields keep the number; a field that is removed, or means something else, raises it.

Objects of other formats have no schema of ours: `manifest --json` prints what `kubectl apply` reads.
"""

from collections.abc import Mapping
from typing import Any

PREFIX = "stackmark."
VERSIONS = {
    # What measures.
    "run": 1,
    "measurement": 1,
    "list": 1,
    "verdict": 3,
    "suite": 1,
    "suite-plan": 1,
    "suites": 1,
    "verdict-table": 1,
    "scaling-table": 1,
    "ceilings": 1,
    "device-ceilings": 1,
    "baseline": 1,
    "check": 2,
    "canary-turn": 1,
    "error": 1,
    # What is stored.
    "experiments": 1,
    "experiment": 1,
    "progress": 1,
    "results": 1,
    "stored-run": 1,
    "export-row": 1,
    "sample-row": 1,
    "baselines": 1,
    "baseline-trend": 1,
    "trend": 1,
    "roofline": 1,
    "recovered": 1,
    # What others measured.
    "import": 1,
    "import-verdicts": 1,
    "import-ledgers": 1,
    "mlperf-scores": 1,
    "mlperf-logs": 1,
    "mlperf-check": 1,
    "mlperf-local": 1,
    "published-chart": 1,
    "published-rows": 1,
    "published-scaling": 1,
    "published-added": 1,
    "published-sources": 1,
    # This program, its worker and the machine.
    "workloads": 1,
    "facts": 1,
    "config": 1,
    "bundle": 1,
    "image": 1,
    # Clusters.
    "cluster-doctor": 2,
    "cluster-check": 1,
    "cluster-clean": 1,
    "cluster-sweep": 1,
    "cluster-fault": 1,
    "cluster-fault-plan": 1,
}


def schema_name(name: str) -> str:
    """Return the name with its version: `stackmark.verdict/3`."""
    return f"{PREFIX}{name}/{VERSIONS[name]}"


def with_schema(name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with its schema as its first field."""
    return {"schema": schema_name(name), **data}
