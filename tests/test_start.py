"""What is not imported: `stackmark --help` answers at once, no verb's help needs the framework, no plain run its compiler."""

import subprocess
import sys
from pathlib import Path

import pytest

import worker_process
from asking import environment
from stackmark.cli.main import our_verbs

HEAVY = ("torch", "numpy", "pydantic", "rich", "sqlalchemy", "scipy", "pyarrow", "psycopg")


def imported(tmp_path: Path, code: str) -> set[str]:
    """The heavy packages that a fresh Python has after this code."""
    asked = f"import sys\n{code}\nprint(*sorted(set(sys.modules) & set({HEAVY!r})), sep='\\n', file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", asked], env=environment(tmp_path / "l"), capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


def test_the_test_can_see_an_import(tmp_path: Path) -> None:
    assert imported(tmp_path, "import numpy") == {"numpy"}


def test_import_stackmark_imports_nothing_heavy(tmp_path: Path) -> None:
    assert imported(tmp_path, "import stackmark") == set()


@pytest.mark.parametrize("argument", ["--help", "-h", "--version"])
def test_help_imports_nothing_heavy(argument: str, tmp_path: Path) -> None:
    assert imported(tmp_path, f"from stackmark.__main__ import main\nmain([{argument!r}])") == set()


def test_no_verbs_help_imports_the_framework(tmp_path: Path) -> None:
    code = f"from stackmark.__main__ import main\nfor verb in {list(our_verbs())!r}: main([verb, '--help'])"
    assert imported(tmp_path, code).isdisjoint({"torch", "scipy", "pyarrow", "psycopg"})


@pytest.mark.parametrize("verb", ["run", "compare", "resume", "noise"])
def test_the_help_of_what_measures_needs_neither_the_ledger_nor_numpy(verb: str, tmp_path: Path) -> None:
    assert imported(tmp_path, f"from stackmark.__main__ import main\nmain(['{verb}', '--help'])") == {"pydantic"}


def test_listing_workloads_needs_only_their_table(tmp_path: Path) -> None:
    code = "from stackmark.__main__ import main\nmain(['workloads', '--json'])"
    assert imported(tmp_path, code) == {"pydantic"}


@pytest.mark.parametrize(("tune", "optimizer"), [("off", "adamw"), ("fast", "momentum")])
def test_training_that_is_not_compiled_does_not_import_the_compiler(tune: str, optimizer: str) -> None:
    spec = worker_process.train("lenet", tune=tune, fused=tune == "fast", optimizer=optimizer)
    done = worker_process.run_worker(spec, worker_process.environment(PYTHONPROFILEIMPORTTIME="1"))
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.last["event"] == "result"
    assert "torch.optim" in modules
    assert modules.isdisjoint({"torch._dynamo", "torch._inductor", "sympy"})
