"""Quantities as people type them and as they are said."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refusing import refused
from stackmark.errors import SpecError
from stackmark.figures import say_figure
from stackmark.units import (
    counted,
    parse_seconds,
    parse_share,
    parse_size,
    say_count,
    say_multiple,
    say_percent,
    say_percents,
    say_rate,
    say_seconds,
    say_size,
    scale_rate,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0), ("4096", 4096), ("512b", 512), ("64m", 64 * 1024**2), ("64M", 64 * 1024**2), ("64MiB", 64 * 1024**2),
        ("64mib", 64 * 1024**2), ("64MB", 64 * 10**6), ("8Gi", 8 * 1024**3), ("8g", 8 * 1024**3), ("10GB", 10**10),
        ("1.5g", 3 * 1024**3 // 2), (".5k", 512), ("1e3", 1000), ("1e3k", 1024000), ("2t", 2 * 1024**4),
        ("2TB", 2 * 10**12), (" 64 MiB ", 64 * 1024**2),
    ],
)  # fmt: skip
def test_sizes_are_binary_unless_they_say_otherwise(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30), ("1.5s", 1.5), ("250ms", 0.25), ("20us", 20e-6), ("20µs", 20e-6), ("20μs", 20e-6), ("2m", 120), ("2min", 120),
        ("1h", 3600), ("1d", 86400), ("0", 0), ("1e2", 100), (" 5 s ", 5),
    ],
)  # fmt: skip
def test_times_have_units_from_microseconds_to_days(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "share"), [("1%", 0.01), ("0.01", 0.01), ("100%", 1), ("1", 1), ("0", 0), ("0.5 %", 0.005)]
)
def test_a_share_is_a_percentage_or_a_part_of_one(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share, rel=1e-15)


BAD = ["", " ", "m", "MiB", "-1", "-1s", "+1", "1..5", "1.", "1,5", "0x10", "1e", "NaN", "nan", "inf", "1 2", "1s2",
       "5 parsecs", "1_000", "١", "1\0", "1e999", "9" * 400, "1e300d", "1" * 50_000 + "!", "%", "1%%"]  # fmt: skip


def is_understood(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except SpecError:
        return False
    return True


@pytest.mark.parametrize("text", BAD, ids=lambda text: ascii(text)[:20])
@pytest.mark.parametrize("parse", [parse_size, parse_seconds, parse_share], ids=["size", "seconds", "share"])
def test_what_is_no_quantity_is_a_sentence_with_an_example(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert caught.value.hint
    assert any(is_understood(parse, word.strip(",")) for word in caught.value.hint.split())


@pytest.mark.parametrize(("parse", "text"), [(parse_size, "5s"), (parse_seconds, "5g"), (parse_share, "5s")])
def test_the_unit_of_another_quantity_is_named_as_unknown(parse: Callable[[str], object], text: str) -> None:
    with refused(f"'{text[1:]}'"):
        parse(text)


@pytest.mark.parametrize("text", ["101%", "1.01", "50"])
def test_a_share_above_the_whole_is_refused(text: str) -> None:
    with refused("100 %"):
        parse_share(text)


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_a_sentence(text: str) -> None:
    for parse in (parse_size, parse_seconds, parse_share):
        with suppress(SpecError):
            assert parse(text) >= 0


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0.00 ns"), (2.3e-6, "2.30 µs"), (999.4e-6, "999 µs"), (0.0125, "12.5 ms"), (0.99949, "999 ms"),
        (0.9996, "1.00 s"), (9.996e-4, "1.00 ms"), (4.2149, "4.21 s"), (99.96, "100 s"), (119, "119 s"),
        (200, "3 min 20 s"), (3599.4, "59 min 59 s"), (3599.6, "1 h 0 min"), (9000, "2 h 30 min"), (-0.0125, "-12.5 ms"),
    ],
)  # fmt: skip
def test_seconds_are_said_with_three_figures(seconds: float, said: str) -> None:
    assert say_seconds(seconds) == said


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0 B"), (512, "512 B"), (1024, "1.00 KiB"), (64 * 1024**2, "64.0 MiB"), (139 * 1024**3, "139 GiB"),
     (3 * 1024**4, "3.00 TiB")],
)  # fmt: skip
def test_sizes_are_said_in_binary_units(size: float, said: str) -> None:
    assert say_size(size) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0"), (820, "820"), (12_400, "12.4 k"), (25_557_032, "25.6 M"), (999_960, "1.00 M"), (4.089e9, "4.09 G"),
     (1.24e12, "1.24 T")],
)  # fmt: skip
def test_counts_are_said_in_decimal_units(count: float, said: str) -> None:
    assert say_count(count) == said


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (1.0, "1 run"), (1_048_576, "1,048,576 runs")]
)
def test_only_one_thing_is_in_the_singular(number: float, said: str) -> None:
    assert counted(number, "run") == said


@pytest.mark.parametrize(
    ("rate", "said"),
    [(0.5, "0.500"), (4.2134, "4.213"), (9.99999, "10.00"), (42.129, "42.13"), (99.999, "100.0"), (142.58, "142.6"),
     (999.99, "1,000"), (7086.6, "7,087"), (1234567.8, "1,234,568")],
)  # fmt: skip
def test_rates_are_said_with_four_figures(rate: float, said: str) -> None:
    assert say_rate(rate) == said


@pytest.mark.parametrize(
    ("rate", "unit", "said"),
    [
        (0.01122, "TFLOP/s", "11.22 GFLOP/s"),
        (0.0000042, "TFLOP/s", "4.200 MFLOP/s"),
        (648.2, "TFLOP/s", "648.2 TFLOP/s"),
        (1539.0, "TFLOP/s", "1,539 TFLOP/s"),
        (0.5, "TOP/s", "500.0 GOP/s"),
        (4270.0, "GB/s", "4.270 TB/s"),
        (0.0, "TFLOP/s", "0.000 TFLOP/s"),
        (0.01122, "images/s", "0.01122 images/s"),
        (2.5, "", "2.500"),
    ],
)
def test_a_rate_of_ours_has_the_prefix_that_it_can_be_read_in(rate: float, unit: str, said: str) -> None:
    assert say_figure(rate, unit) == said


@given(st.floats(1e-8, 1e6), st.sampled_from(["TFLOP/s", "TOP/s", "GB/s"]))
def test_the_prefix_of_a_rate_is_that_of_its_ceiling(rate: float, unit: str) -> None:
    """Ceilings are said by `say_count`."""
    factor, shown = scale_rate(unit, rate)
    one = {"TFLOP/s": 1e12, "TOP/s": 1e12, "GB/s": 1e9}[unit]
    bare = unit[1:]
    assert f"{say_count(rate * one)}{bare}".split()[-1].removesuffix(bare).strip("0123456789.") == shown.removesuffix(
        bare
    )
    assert factor * rate >= 0.999 or shown == bare


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.005, "0.5 %"),
        (0.01234, "1.2 %"),
        (0.5, "50 %"),
        (0.9949, "99 %"),
        (0.996, "100 %"),
        (1.07, "107 %"),
        (12.34, "1234 %"),
    ],
)
def test_a_share_has_two_figures_and_no_exponent(share: float, said: str) -> None:
    assert say_percent(share, figures=2) == said
    assert say_percent(-share, figures=2) == f"-{said}"


@pytest.mark.parametrize(
    ("factor", "said"),
    [(0.0154, "0.0154"), (2.0, "2"), (145.3, "145"), (999.4, "999"), (999.6, "1,000"), (1240.0, "1,200")],
)
def test_a_number_of_times_has_no_exponent(factor: float, said: str) -> None:
    assert say_multiple(factor) == said


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.959, 0.976, "95.9 to 97.6 %"),
        (0.03, 2032.4, "3.0 to over 1,000 %"),
        (11.0, 566804.0, "over 1,000 %"),
        (0.97, 0.97, "97.0 to 97.0 %"),
    ],
)
def test_an_interval_of_shares_is_said_in_percent(low: float, high: float, said: str) -> None:
    assert say_percents(low, high) == said
