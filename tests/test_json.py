"""Every JSON object that a command prints has a schema, and docs/json.md lists its fields. Read from the golden files."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import check_sample
import suite_sample
from doctor_sample import node, of, stand_in
from golden_screens import GOLDEN, names, screens, stored
from stackmark.api.cluster_experiments import FaultPlan
from stackmark.api.clusters import CleanedCluster, ClusterTests, Diagnosis
from stackmark.api.importing import MlperfChecks, MlperfLogs
from stackmark.api.mlperf_local import local_json
from stackmark.api.published_charts import PublishedChart
from stackmark.cluster.checks.suite import Suite
from stackmark.errors import SpecError
from stackmark.experiments.canary import CanaryTurn
from stackmark.experiments.suite.forecast import forecast
from stackmark.experiments.suite.plan import find_suite
from stackmark.ledger.export import SAMPLES
from stackmark.schemas import VERSIONS, schema_name, with_schema
from stackmark.show.canary import canary_json
from stackmark.show.result import error_json
from stackmark.show.suite_formats import suite_json
from stackmark.show.suite_plan import plan_json
from stackmark.show.trend import history_json
from stackmark.spec import Request

PAGE = Path(__file__).parents[1] / "docs" / "json.md"
SECTION = re.compile(r"(?ms)^### (stackmark\.\S+)\n(.*?)(?=^##|\Z)")
ROW = re.compile(r"(?m)^\| (`.+?) \| (.*) \|$")
# Kubernetes objects, which kubectl reads.
OTHER_FORMATS = ("manifest-",)
# What a nested object with its own schema stands in.
ENVELOPES = ("results", "ceilings")


def printed() -> dict[str, list[dict[str, object]]]:
    """The objects of each golden file that has any, with those within an envelope."""
    found: dict[str, list[dict[str, object]]] = {}
    for name in sorted(names()):
        text = stored(name) or ""
        if name.endswith((".json", ".jsonl")) and "--- standard output\n" in text:
            found[name] = list(_objects(text))
    return found


def _objects(text: str) -> Iterator[dict[str, object]]:
    rest = text.split("--- standard output\n")[1].split("\n--- ")[0].replace('"driver_pid": PID', '"driver_pid": 0')
    reader = json.JSONDecoder()
    while rest := rest.strip():
        value, end = reader.raw_decode(rest)
        rest = rest[end:]
        yield from value if isinstance(value, list) else [value]


def _all(objects: list[dict[str, object]]) -> Iterator[dict[str, object]]:
    for one in objects:
        yield one
        for name in ENVELOPES:
            within = one.get(name)
            if isinstance(within, list) and str(one.get("schema")).startswith(
                ("stackmark.run/", "stackmark.ceilings/")
            ):
                yield from within


def of_measured() -> Iterator[tuple[str, str | None, set[str]]]:
    """Of the files that hold keys alone: each object's schema and fields, from the lines `.results[].schema stackmark.…`."""
    for name in sorted(names()):
        text = (stored(name) or "") if name.endswith(".keys") else ""
        levels: dict[str, tuple[list[str], set[str]]] = {}
        for line in text.splitlines():
            if match := re.fullmatch(r"((?:\.results\[\])?)\.([a-z0-9_]+)(?: (stackmark\.\S+))?", line):
                schemas, fields = levels.setdefault(match[1], ([], set()))
                fields.add(match[2])
                schemas += [match[3]] if match[3] else []
        for schemas, fields in levels.values():
            # Several schemas under one path (a list in which some failed) cannot be told apart by keys.
            yield name, schemas[0] if len(schemas) == 1 else None, fields


def of_samples() -> list[dict[str, object]]:
    """Objects that only a cluster, a failure or Python makes."""

    class NoPlan(FaultPlan):
        def lines(self) -> list[tuple[str, str]]:
            return [("what", "a sentence")]

    suite = Suite("test", "https://here", "v1", "ns", "image", False, 2, ())
    return [
        Diagnosis(of(node(), stand_in()), 0.0).to_dict(),
        ClusterTests(suite, 0.0).to_dict(),
        CleanedCluster("here", ()).to_dict(),
        NoPlan.__new__(NoPlan).to_dict(),
        suite_json(suite_sample.twelve()),
        suite_json(suite_sample.uncompared()),
        plan_json(find_suite("quick"), forecast(find_suite("quick"), None)),
        error_json(Request(workload="train/trivial"), SpecError("a sentence")),
        PublishedChart((), ("train/trivial",)).to_dict(),
        MlperfLogs(()).to_dict(),
        history_json("train/resnet20", 0.01, [check_sample.trend()]),
        with_schema("sample-row", dict.fromkeys(SAMPLES.columns)),
        canary_json("night", 0.01, CanaryTurn("busy", 0.0, 1.0, (), "a sentence")),
        MlperfChecks("0.6.0", ()).to_dict(),
        local_json((), ()),
    ]


def documented() -> dict[str, dict[str, str]]:
    """By schema, each field with its description."""
    found = {}
    for name, text in SECTION.findall(PAGE.read_text(encoding="utf-8")):
        found[name] = {field: said for cell, said in ROW.findall(text) for field in re.findall(r"`([a-z0-9_]+)`", cell)}
    return found


def test_every_object_that_a_command_prints_names_a_schema_of_the_table() -> None:
    known = {schema_name(name) for name in VERSIONS}
    made = printed()
    assert len(made) > 50
    for name, objects in made.items():
        for one in _all(objects):
            if not name.startswith(OTHER_FORMATS):
                assert one.get("schema") in known, f"{name}: {one.get('schema')!r} is not in stackmark/schemas.py"
                assert next(iter(one)) == "schema", name
    for name, schema, fields in of_measured():
        assert "schema" in fields, f"{name}: an object has no schema"
        assert schema is None or schema in known, name


def test_every_screen_with_json_has_a_golden_file_that_is_read_here() -> None:
    asked = {screen.name for screen in screens() if "--json" in screen.arguments}
    assert {path.name.split(".txt")[0] for path in GOLDEN.glob("*.json.txt*")} >= asked


def test_the_page_has_a_section_for_every_schema_and_no_other() -> None:
    assert documented().keys() == {schema_name(name) for name in VERSIONS}


@pytest.mark.parametrize("schema", sorted(map(schema_name, VERSIONS)))
def test_the_page_lists_the_fields_of_the_schema(schema: str) -> None:
    told = documented()[schema]
    objects = [one for made in printed().values() for one in _all(made)] + of_samples()
    sets = [{*one} for one in objects if one.get("schema") == schema]
    sets += [fields for _, name, fields in of_measured() if name == schema]
    assert sets, f"no golden file and no sample has {schema}"
    shown = set().union(*sets) - {"schema"}
    assert shown <= told.keys(), f"docs/json.md does not name {shown - told.keys()}"
    always = {field for field, said in told.items() if not said.startswith("only")}
    for fields in sets:
        assert always <= fields, f"docs/json.md says that {always - fields} is always there"
