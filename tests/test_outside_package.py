"""Another package's workloads, found by the entry point: seen in lists and help, and run like ours.

The package is tests/outside_package, which docs/extending.md shows file by file.
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from asking import Answer, ask_process, environment
from worker_process import SOURCE

PACKAGE = Path(__file__).parent / "outside_package"
PAGE = Path(__file__).parent.parent / "docs" / "extending.md"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The value of PYTHONPATH with which the package is there as pip would have it: its files, and who it is."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    folder = tmp_path_factory.mktemp("site")
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in points.items())])
        for group, points in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n\n".join(groups) + "\n")
    return os.pathsep.join(map(str, (folder, PACKAGE, SOURCE)))


def asked(installed: str, tmp_path: Path, *arguments: str) -> Answer:
    answer = ask_process(tmp_path / "ledger.db", *arguments, PYTHONPATH=installed)
    assert answer.code == 0, answer.err
    return answer


def test_they_are_listed_with_ours(installed: str, tmp_path: Path) -> None:
    found = json.loads(asked(installed, tmp_path, "workloads", "--json").out)["workloads"]
    by_name = {one["name"]: one for one in found}
    assert by_name["sort/quick"]["sample"] == "number"
    assert by_name["op/axpy"]["sets"] == {"powers": 3}
    assert {"train/resnet50", "op/gemm"} <= by_name.keys()


def test_their_parameters_are_options_in_a_section_of_their_own(installed: str, tmp_path: Path) -> None:
    text = asked(installed, tmp_path, "run", "--help").out
    section = text.partition("\nSorting:\n")[2]
    assert "--size N" in section
    assert "Numbers to sort." in section


def test_one_that_is_timed_by_steps_is_run(installed: str, tmp_path: Path) -> None:
    answer = asked(
        installed, tmp_path, "run", "sort/quick", "--size", "1000", "--steps", "5", "--warmup-seconds", "0", "--runs", "1",
        "--json",
    )  # fmt: skip
    (result,) = json.loads(answer.out)["results"]
    assert result["spec"]["params"]["size"] == 1000
    assert result["throughput"]["unit"] == "numbers/s"


def test_an_operator_of_theirs_has_rows_rates_and_checks(installed: str, tmp_path: Path) -> None:
    answer = asked(
        installed, tmp_path, "run", "op/axpy", "--device", "cpu", "--precision", "fp32", "--rows", "0", "--row-seconds", "0.02",
        "--runs", "1", "--json",
    )  # fmt: skip
    (result,) = json.loads(answer.out)["results"]
    (row,) = result["rows"]
    assert row["shape"] == {"elements": 65536}
    assert row["least_bytes"] == 3 * 65536 * 4
    assert row["error"] <= row["error_bound"]
    shown = asked(installed, tmp_path, "show", result["experiment"])
    assert "65536 elements" in shown.out


def test_they_are_compared_and_reported(installed: str, tmp_path: Path) -> None:
    answer = asked(
        installed, tmp_path, "compare", "sort/quick", "--steps", "3", "--warmup-seconds", "0", "--arm", "host,size=1000",
        "--arm", "host,size=2000", "--blocks", "2", "--json",
    )  # fmt: skip
    assert json.loads(answer.out)["title"] == "NumPy's quicksort"
    asked(installed, tmp_path, "report", "last", "-o", str(tmp_path / "report.html"))
    assert "sort/quick" in (tmp_path / "report.html").read_text()


def test_they_are_run_from_python(installed: str, tmp_path: Path) -> None:
    code = (
        "import stackmark as sm; "
        "print(sm.run('sort/quick', size=1000, steps=3, warmup_seconds=0, runs=1).to_dict()['spec']['params']['size'])"
    )
    env = environment(tmp_path / "ledger.db", PYTHONPATH=installed)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1000"


@pytest.mark.parametrize(
    "name", ["pyproject.toml", "my_package/__init__.py", "my_package/axpy.py", "my_package/sorting.py"]
)
def test_the_page_shows_the_package_as_it_is(name: str) -> None:
    lines = (PACKAGE / name).read_text().splitlines()
    shown = "\n".join(f"    {line}".rstrip() for line in lines)
    assert f"`{name}`" in PAGE.read_text()
    assert f"\n{shown}\n" in PAGE.read_text()
