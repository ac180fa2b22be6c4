"""Figures in their own terms: what is stored for a time is its reciprocal, and what people and programs read is the time."""

import csv
import io
import math
from pathlib import Path

import pytest

from ledger_runs import DONE, complete
from stackmark.figures import (
    FigureUnit,
    figure_fields,
    figure_unit,
    name_of_figures,
    rate_of,
    rate_unit_of,
    terms_of,
    unit_kind,
)
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
    assert found == {"value": 0.2, "low": None, "high": None, "name": None, "unit": "s", "higher_is_better": False}


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


@pytest.mark.parametrize(
    ("unit", "kind", "terms"),
    [
        ("images/s", "rate", "speed"),
        ("tokens per second", "rate", "speed"),
        ("tokens/s/gpu", "rate", "speed"),
        ("TFLOP/s", "rate", "speed"),
        ("fps", "rate", "speed"),
        ("s", "time", "speed"),
        ("min", "time", "speed"),
        ("ms/step", "time", "speed"),
        ("throughput", "", "speed"),
        ("p99_latency", "", "speed"),
        # What a program does not say is taken for a rate.
        ("units", "", "speed"),
        ("", "", "speed"),
        ("%", "amount", "quality"),
        ("accuracy", "", "quality"),
        ("loss", "", "quality"),
        ("BLEU", "", "quality"),
        ("J", "amount", "quality"),
        ("J/image", "amount", "quality"),
        ("images/J", "amount", "quality"),
        ("tokens/s/W", "amount", "quality"),
        ("USD", "amount", "quality"),
        ("USD/hour", "amount", "quality"),
        ("errors/s", "amount", "quality"),
        ("MiB", "amount", "quality"),
    ],
)
def test_rates_and_times_are_about_speed_and_all_else_about_quality(unit: str, kind: str, terms: str) -> None:
    assert (unit_kind(unit), terms_of(unit)) == (kind, terms)
    assert figure_unit(f"1/{unit}").terms == terms


def test_a_shift_is_that_of_the_figure_itself() -> None:
    rate, time = FigureUnit("images/s"), FigureUnit("s", higher_is_better=False)
    assert rate.say_shift(0.4, (0.39, 0.41)) == ("−60.0 %", "−61.0 to −59.0 %")
    assert time.say_shift(0.8, (0.78, 0.82)) == ("+25.0 %", "+22.0 to +28.2 %")
    assert time.say_shift(0.25) == ("4 times", "")
    assert rate.say_shift(1.0) == ("0.0 %", "")
    # Three decimals where two would show no width.
    assert rate.say_shift(1.0002, (1.0001, 1.0003)) == ("+0.020 %", "+0.010 to +0.030 %")
