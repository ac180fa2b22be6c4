"""Another package's workloads, place, importer and command, found by their entry points: seen in help, and used like ours.

The package is tests/outside_package, which docs/extending.md shows file by file. Next to it, `broken` has one of each that is
not what it should be: each is a sentence where it is asked for, and disturbs nothing else.
"""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from asking import Answer, environment
from stackmark.extensions import BUILT_IN, Announcement, announced, load
from worker_process import SOURCE

PACKAGE = Path(__file__).parent / "outside_package"
PAGE = Path(__file__).parent.parent / "docs" / "extending.md"


def announce(folder: Path, project: dict[str, Any]) -> None:
    """Write what pip writes of a package: who it is, and its entry points."""
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in points.items())])
        for group, points in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n\n".join(groups) + "\n")


def python_path(*folders: Path) -> str:
    return os.pathsep.join(map(str, (*folders, SOURCE)))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The value of PYTHONPATH with which the package is there as pip would have it."""
    folder = tmp_path_factory.mktemp("site")
    announce(folder, tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"])
    return python_path(folder, PACKAGE)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


BROKEN = {
    "stackmark.workloads": {"missing": "not_there:FAMILY", "number": "broken:NUMBER"},
    "stackmark.places": {"host": "broken:NUMBER", "nowhere": "broken:missing", "liar": "broken:LIAR"},
    "stackmark.importers": {"tf-cnn": "broken:NUMBER", "typed": "broken:NUMBER", "raises": "raising:FORMAT"},
    "stackmark.commands": {
        "run": "broken:NUMBER",
        "mlperf": "broken:NUMBER",
        "typed": "broken:NUMBER",
        "raises": "raising:command",
    },
    "stackmark.list_formats": {"deepbench": "broken:NUMBER", "raises": "raising:FORMAT"},
    "stackmark.cluster_means": {"helper": "broken:NUMBER", "raises": "raising:MEANS"},
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH with a package whose entry points are of the wrong type, missing, or raise; some take names of ours."""
    folder = tmp_path_factory.mktemp("broken")
    announce(folder, {"name": "broken", "version": "1.0", "entry-points": BROKEN})
    (folder / "broken.py").write_text(
        "from stackmark.places.host import HostOptions, HostPlace\n"
        "from stackmark.places.place import PlaceKind\n"
        "NUMBER = 3\n"
        "LIAR = PlaceKind('liar', HostOptions, lambda options, cache: HostPlace(cache=cache))\n"
    )
    (folder / "raising.py").write_text("1 / 0\n")
    return python_path(folder)


# Asks the command line several times in one process: most of a command's time is the start of Python.
MANY = """
import json, sys
from asking import ask
print(json.dumps([vars(ask(*arguments)) for arguments in json.loads(sys.argv[1])]))
"""


def asked(path: str, ledger: Path, *commands: Sequence[str], codes: Collection[int] = (0,)) -> list[Answer]:
    """What a process with this PYTHONPATH answers to each command; all end with one of these exit codes."""
    here = os.pathsep.join([path, str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-c", MANY, json.dumps(commands)],
        env=environment(ledger, PYTHONPATH=here),
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [Answer(**one) for one in json.loads(done.stdout)]
    assert [answer.err for answer in answers if answer.code not in codes] == []
    assert [answer.err for answer in answers if "Traceback" in answer.err] == []
    return answers


def test_help_and_lists_show_them(installed: str, ledger: Path) -> None:
    commands = (("--help",), ("run", "--help"), ("import", "--help"), ("fastest", "--help"), ("workloads", "--json"))
    top, run, imports, fastest, workloads = (answer.out for answer in asked(installed, ledger, *commands))
    (line,) = (line for line in top.splitlines() if line.split()[:1] == ["fastest"])
    assert line.split()[1:] == ["From", "my-package."]
    assert "--size N" in run.partition("\nSorting:\n")[2]
    assert "Numbers to sort." in run.partition("\nSorting:\n")[2].splitlines()[0]
    assert "slurm, nice." in " ".join(run.split())
    assert "--level N" in run.partition("place nice:\n")[2]
    assert ", sortbench." in " ".join(imports.split())
    assert "--limit" in fastest
    by_name = {one["name"]: one for one in json.loads(workloads)["workloads"]}
    assert by_name["sort/quick"]["sample"] == "number"
    assert by_name["op/axpy"]["sets"] == {"powers": 3}
    assert {"train/resnet50", "op/gemm"} <= by_name.keys()


def test_an_operator_of_theirs_has_rows_rates_and_checks(installed: str, ledger: Path) -> None:
    run = "run op/axpy --device cpu --precision fp32 --rows 0 --row-seconds 0.02 --runs 1 --json"
    measured, shown, table = asked(
        installed, ledger, run.split(), ("show", "last"), ("show", "last", "--format", "tsv")
    )
    (result,) = json.loads(measured.out)["results"]
    (row,) = result["rows"]
    assert row["shape"] == {"elements": 65536}
    assert row["least_bytes"] == 3 * 65536 * 4
    assert row["error"] <= row["error_bound"]
    assert "65536 elements" in shown.out
    assert table.out.splitlines()[1].split("\t") == ["op/axpy", "0", str(row["seconds"])]


SHORT = "sort/quick --size 1000 --steps 5 --warmup-seconds 0"


def test_a_place_of_theirs_is_an_arm_and_stands_in_the_report(installed: str, ledger: Path) -> None:
    compare = f"compare {SHORT} --arm host --arm nice,level=5 --blocks 2 --no-primers --json"
    answers = asked(
        installed, ledger, compare.split(), ("report", "last", "--format", "markdown"), ("fastest", "sort/quick")
    )
    compared, report, fastest = (answer.out for answer in answers)
    arms = json.loads(compared)["arms"]
    assert [(arm["place"], arm["place_options"]) for arm in arms] == [("host", {}), ("nice", {"level": 5})]
    assert [arm["params"]["size"] for arm in arms] == [1000, 1000]
    assert [arm["unit"] for arm in arms] == ["numbers/s"] * 2
    host, nice = (arm["facts"]["process"]["nice"] for arm in arms)
    assert nice == min(host + 5, 19)
    assert "nice,level=5 / host" in report
    assert {line.split()[1] for line in fastest.splitlines()} == {"host", "nice"}


def test_what_they_do_not_take_is_wrong_use(installed: str, ledger: Path) -> None:
    commands = [
        "run sort/quick --on nice,level=20",
        "run sort/quick --on nice,level=low",
        "fastest --limit none x",
        "fastst",
    ]
    *_, option, name = asked(installed, ledger, *(text.split() for text in commands), codes=[2])
    assert "fastest --help" in option.err
    assert "fastest" in name.err


FROM_PYTHON = """
import json
import stackmark as sm

calm = {"size": 1000, "steps": 5, "warmup_seconds": 0}
verdict = sm.compare("sort/quick", arms=["host", "nice"], level="3", blocks=1, primers=False, **calm)
measured = sm.run("sort/quick", on="nice", level="4", runs=1, **calm)
(row,) = measured.runs()
print(json.dumps({
    "arms": [[arm.label, arm.place] for arm in verdict.examined.arms],
    "run": [[row.place, row.place_options], measured.unit],
}))
"""


def sort_log(folder: Path) -> str:
    (folder / "sort.log").write_text("sorting\nsortbench: 1000000 numbers in 0.05 s\nsortbench: 10 numbers in nan s\n")
    return str(folder / "sort.log")


def test_the_api_has_their_workload_and_their_place(installed: str, ledger: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FROM_PYTHON],
        env=environment(ledger, PYTHONPATH=installed),
        capture_output=True,
        text=True,
        check=True,
    )
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["arms"] == [["host", "host"], ["nice", "nice"]]
    assert seen["run"] == [["nice", {"level": 4}], "numbers/s"]


def test_a_log_of_theirs_is_imported(installed: str, ledger: Path, tmp_path: Path) -> None:
    named = ("import", sort_log(tmp_path), "--format", "sortbench", "--again", "--json")
    commands = (("import", sort_log(tmp_path), "--json"), named, ("fastest", "sort/quick"))
    *imported, fastest = asked(installed, ledger, *commands, codes=[0, 7])
    assert [line.split()[1:] for line in fastest.out.splitlines()] == [["unknown", "2e+07"]] * 2
    for answer in imported:
        assert answer.code == 7
        found = json.loads(answer.out)
        assert [file["format"] for file in found["files"]] == ["sortbench"]
        assert [(run["status"], run["rate_per_s"], run["failure_kind"]) for run in found["runs"]] == [
            ("done", pytest.approx(2e7), None),
            ("failed", None, "not_finite"),
        ]


def test_what_is_broken_is_a_sentence_that_names_its_package(broken: str, ledger: Path, tmp_path: Path) -> None:
    log = sort_log(tmp_path)
    commands = (
        ("raises",),
        ("typed", "--help"),
        ("import", log, "--format", "raises"),
        ("import", log, "--format", "typed"),
        ("import", log),  # of no format that is there: it may be one of theirs
        ("run", "--cmd", "true", "--on", "nowhere"),
        ("run", "missing/thing"),
        ("run", "op/copy", "--format", "raises"),
        ("cluster", "fault", "kubelet", "--while", "train/trivial", "--means", "raises"),
    )
    *answers, liar = asked(broken, ledger, *commands, ("run", "--cmd", "true", "--on", "liar"), codes=[2])
    assert [answer.err for answer in answers if "package broken" not in answer.err] == []
    assert "'host'" in liar.err


def test_what_is_broken_disturbs_nothing_else(broken: str, ledger: Path) -> None:
    log = Path(__file__).parent / "data" / "logs" / "tf_cnn" / "t4_host_1gpu.log"
    run = ("run", "--cmd", "true", "--runs", "1", "--json")
    commands = (("--help",), run, ("import", str(log)), ("workloads",), ("compare", "--help"), ("mlperf", "--help"))
    top, measured, _, workloads, *_ = asked(broken, ledger, *commands)
    listed = top.out.partition("packages:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in listed.splitlines()] == ["typed", "raises"]
    assert json.loads(measured.out)["results"][0]["runs"][0]["place"] == "host"
    assert workloads.err.count("package broken") == len(BROKEN["stackmark.workloads"])


def test_help_reads_metadata_only_where_a_package_adds_a_command(installed: str, ledger: Path) -> None:
    code = (
        "import sys; from stackmark.cli.main import main; main(['--help']); print('importlib.metadata' in sys.modules)"
    )
    seen = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=environment(ledger, PYTHONPATH=path),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]
        for path in (installed, python_path())
    ]
    assert seen == ["True", "False"]


@pytest.mark.parametrize("built_in", BUILT_IN, ids=lambda one: one.name)
def test_what_is_built_in_can_be_loaded_and_keeps_its_name(built_in: Announcement) -> None:
    assert announced(built_in.group)[built_in.name] is built_in
    load(built_in, object)
    # A command's line in the help is read without importing it.
    assert bool(built_in.summary) == (built_in.group == "stackmark.commands")


FILES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*") if path.suffix in (".py", ".toml"))


@pytest.mark.parametrize("name", FILES)
def test_the_page_shows_the_package_as_it_is(name: str) -> None:
    lines = (PACKAGE / name).read_text().splitlines()
    shown = "\n".join(f"    {line}".rstrip() for line in lines)
    assert f"`{name}`" in PAGE.read_text()
    assert f"\n{shown}\n" in PAGE.read_text()
