"""Figures in their own terms: what is stored for a time is its reciprocal, and what people and programs read is the time."""

import csv
import io
import math
from pathlib import Path

import pytest

from ledger_runs import DONE, complete
from stackmark.figures import FigureUnit, figure_fields, figure_unit, name_of_figures, rate_of, rate_unit_of
from stackmark.ledger.export import export_to_stream
from stackmark.ledger.rows import RunFilter
from stackmark.ledger.store import Ledger
from stackmark.show.result import figure_json
from stackmark.verdict.throughput import throughput_over_runs


@pytest.mark.parametrize(
    ("value", "unit", "higher"), [(0.2, "s", False), (22.5, "min", False), (7087.0, "images/s", True)]
)
def test_a_figure_is_read_back_as_it_was_measured(value: float, unit: str, higher: bool) -> None:
    stored, stored_unit = rate_of(value, higher_is_better=higher), rate_unit_of(unit, higher_is_better=higher)
    assert figure_unit(stored_unit) == FigureUnit(unit, higher)
    assert figure_unit(stored_unit).value(stored) == pytest.approx(value, rel=1e-15)


def test_the_interval_of_a_time_is_the_one_that_the_times_themselves_give() -> None:
    """Student's interval of the mean of ln x, by hand: t(2) = 4.302653."""
    times = [0.202, 0.204, 0.208]
    logs = [math.log(one) for one in times]
    mean = sum(logs) / 3
    reach = 4.302652729749464 * math.sqrt(sum((one - mean) ** 2 for one in logs) / 2 / 3)
    found = figure_json(throughput_over_runs([1 / one for one in times]), "1/s")
    assert found is not None
    assert (found["unit"], found["higher_is_better"]) == ("s", False)
    wanted = [math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)]
    assert [found["value"], found["low"], found["high"]] == pytest.approx(wanted, rel=1e-9)


def test_one_run_has_a_figure_and_no_interval() -> None:
    found = figure_json(throughput_over_runs([5.0]), "1/s")
    assert found == {"value": 0.2, "low": None, "high": None, "unit": "s", "higher_is_better": False}


def test_a_run_without_a_rate_has_no_figure() -> None:
    assert set(figure_fields(None, None).values()) == {None}


def test_a_column_of_rates_and_times_is_not_headed_rate() -> None:
    assert (name_of_figures(["images/s", None]), name_of_figures(["images/s", "1/s"])) == ("rate", "figure")


def test_rows_and_exports_have_the_figure_next_to_the_rate(tmp_path: Path) -> None:
    file = tmp_path / "ledger.sqlite3"
    with Ledger.open(str(file)) as ledger:
        run_id = complete(ledger, DONE.model_copy(update={"rate_per_s": 5.0, "rate_unit": "1/s"}))
    wanted = {"rate_per_s": 5.0, "rate_unit": "1/s", "figure_value": 0.2, "figure_unit": "s", "higher_is_better": False}
    out = io.BytesIO()
    with Ledger.open(str(file)) as ledger:
        row = ledger.run(run_id).model_dump(mode="json")
        export_to_stream(ledger, RunFilter(), "csv", out)
    assert {name: row[name] for name in wanted} == wanted
    [exported] = csv.DictReader(io.StringIO(out.getvalue().decode()))
    assert {name: exported[name] for name in wanted} == {name: str(value) for name, value in wanted.items()}


@pytest.mark.parametrize(("a", "b"), [(0.2, 0.206), (0.206, 0.2), (1.0, 3.0)])
def test_a_time_that_is_longer_is_said_to_be_by_its_own_factor(a: float, b: float) -> None:
    """The ratio is of rates: 1/b over 1/a."""
    said = FigureUnit("s", higher_is_better=False).say_change(a / b)
    assert f"{100 * abs(b / a - 1):.2g} %" in said or f"{b / a:.3g} times" in said
    assert FigureUnit("images/s").say_change(a / b) == ""
