"""What every command prints over stored data, against its golden file. `make golden` writes them anew."""

import difflib

import pytest

import golden_screens

# The first test prints all screens: a minute, many where other programs need the cores.
pytestmark = pytest.mark.timeout(1800)
# Of a difference that is shown; the rest of a large one says nothing more.
LINES = 60


STORED = sorted(name for name in golden_screens.names() if not name.startswith("measured"))
MEASURED = sorted(golden_screens.names() - {*STORED})


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return golden_screens.shown(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return golden_screens.measured(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("name", STORED)
def test_a_screen_is_as_its_golden_file(shown: dict[str, str], name: str) -> None:
    hold_against_golden(name, shown.get(name, ""))


@pytest.mark.parametrize("name", MEASURED)
def test_the_json_of_a_measurement_has_the_keys_of_its_golden_file(measured: dict[str, str], name: str) -> None:
    hold_against_golden(name, measured.get(name, ""))


def hold_against_golden(name: str, found: str) -> None:
    wanted = golden_screens.stored(name) or ""
    if wanted != found:
        lines = difflib.unified_diff(wanted.splitlines(), found.splitlines(), "golden", "today", lineterm="", n=2)
        shown = [*lines]
        more = f"\n… and {len(shown) - LINES} lines more" if len(shown) > LINES else ""
        pytest.fail("\n".join([*shown[:LINES]]) + more + "\nif this is meant: make golden", pytrace=False)


def test_every_screen_has_a_golden_file(shown: dict[str, str]) -> None:
    assert set(shown) == {*STORED}


def test_every_measurement_has_a_golden_file(measured: dict[str, str]) -> None:
    assert set(measured) == {*MEASURED}


def test_the_golden_files_stay_small() -> None:
    assert sum(path.stat().st_size for path in golden_screens.GOLDEN.iterdir()) < 1_600_000
