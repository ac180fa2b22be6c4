"""The shapes stand where the numbers say. Positions are recomputed from the picture's own axis: the numbers at its ticks."""

import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from xml.etree import ElementTree

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import examined_sample as sample
from refusing import refused
from stackmark.show.plot import plot_png, plot_svg
from stackmark.show.report.charts import forest, rates, setup, steps
from stackmark.show.report.charts.shapes import Scale, factor_ticks, ticks
from stackmark.show.report.markup import Markup
from stackmark.verdict.comparison import Interval
from stackmark.verdict.examined import Examined

SVG = "{http://www.w3.org/2000/svg}"
# Coordinates are written to a hundredth of a pixel.
CLOSE = 0.02


def shapes(drawn: Markup | str, class_: str) -> list[ElementTree.Element]:
    """Elements that have all these classes, in the order of the picture."""
    wanted = set(class_.split())
    return [one for one in ElementTree.fromstring(drawn).iter() if wanted <= set(one.get("class", "").split())]


def at(shape: ElementTree.Element, name: str) -> float:
    return float(shape.attrib[name])


def texts(drawn: Markup | str) -> list[str]:
    return ["".join(one.itertext()) for one in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


def per_cent_axis(drawn: Markup) -> dict[float, float]:
    """The ratio at each tick of a forest plot, and its place."""
    found = {}
    for tick in shapes(drawn, "tick"):
        said = "".join(tick.itertext()).replace("−", "-").removesuffix(" %")
        found[1 + float(said) / 100] = at(tick, "x")
    return found


def place_of(ratio: float, axis: dict[float, float]) -> float:
    """Between the outermost ticks, in the logarithm."""
    (low, left), (high, right) = min(axis.items()), max(axis.items())
    return left + (math.log(ratio / low) / math.log(high / low)) * (right - left)


@pytest.mark.parametrize("layout", [forest.WIDE, forest.NARROW], ids=["wide", "narrow"])
def test_the_intervals_stand_where_their_numbers_say(layout: forest.Layout) -> None:
    examined = sample.three_arms()
    drawn = forest.forest(examined, layout)
    axis = per_cent_axis(drawn)
    assert len(axis) >= 3
    for class_, name in (("thick", "interval_90"), ("thin", "interval_95")):
        bars = [bar for bar in shapes(drawn, class_) if bar.get("y1") == bar.get("y2")]
        for bar, comparison in zip(bars, examined.comparisons, strict=True):
            interval = getattr(comparison, name)
            assert at(bar, "x1") == pytest.approx(place_of(interval.low, axis), abs=CLOSE)
            assert at(bar, "x2") == pytest.approx(place_of(interval.high, axis), abs=CLOSE)


def test_the_shaded_margin_reaches_as_far_down_as_up_in_the_logarithm() -> None:
    examined = sample.sample_examined(margin=0.02)
    drawn = forest.forest(examined)
    axis = per_cent_axis(drawn)
    (band,) = shapes(drawn, "margin")
    assert at(band, "x") == pytest.approx(place_of(0.98, axis), abs=CLOSE)
    assert at(band, "x") + at(band, "width") == pytest.approx(place_of(1 / 0.98, axis), abs=2 * CLOSE)
    (one,) = shapes(drawn, "one")
    assert at(one, "x1") - at(band, "x") == pytest.approx(at(band, "width") / 2, abs=2 * CLOSE)


def test_every_block_has_its_own_sign_at_its_own_ratio() -> None:
    examined = sample.sample_examined()
    drawn = forest.forest(examined)
    axis = per_cent_axis(drawn)
    middles = []
    for one in shapes(drawn, "hollow"):  # squares: the path's first and third corner
        corners = [float(x) for x, _ in re.findall(r"(-?[\d.]+) (-?[\d.]+)", one.attrib["d"])]
        middles.append((corners[0] + corners[2]) / 2)
    expected = [place_of(b / a, axis) for a, b in zip(sample.HOST, sample.CONTAINER, strict=True)]
    assert middles == pytest.approx(expected, abs=CLOSE)


def test_an_interval_beyond_the_picture_is_cut_with_an_arrow() -> None:
    base = sample.open_experiment()
    wild = replace(base.comparisons[0], interval_95=Interval(1e-9, 1e9, 0.95))
    drawn = forest.forest(replace(base, comparisons=(wild,)))
    assert len(shapes(drawn, "arrow")) == 2
    bar = next(bar for bar in shapes(drawn, "thin") if bar.get("y1") == bar.get("y2"))
    assert forest.WIDE.left <= at(bar, "x1") < at(bar, "x2") <= forest.WIDE.width - forest.WIDE.right
    assert shapes(forest.forest(sample.sample_examined()), "arrow") == []


def test_a_large_ratio_has_an_axis_of_factors() -> None:
    base = sample.sample_examined()
    fast = replace(
        base.comparisons[0],
        ratio=41.0,
        interval_90=Interval(40, 42, 0.9),
        interval_95=Interval(39, 43, 0.95),
        kind="runs",
    )
    drawn = forest.forest(replace(base, comparisons=(fast,)))
    said = texts(drawn)
    assert "1×" in said
    assert "10×" in said
    assert [one for one in said if one.split()[:2] == ["41", "(41"]]


def test_without_an_interval_the_ratio_stands_alone() -> None:
    base = sample.sample_examined()
    one_block = replace(base.comparisons[0], interval_90=None, interval_95=None)
    drawn = forest.forest(replace(base, comparisons=(one_block,)))
    assert shapes(drawn, "thick") == []
    assert len(shapes(drawn, "point")) == 1
    assert any("no interval" in said for said in texts(drawn))


def test_rates_stand_where_their_numbers_say_in_the_order_in_which_they_ran() -> None:
    examined = sample.sample_examined()
    drawn = rates.rates(examined)
    levels = {}
    for tick in shapes(drawn, "tick"):
        said = "".join(tick.itertext())
        if "," in said:  # 4,740: the others are blocks
            levels[float(said.replace(",", ""))] = at(tick, "y") - 4
    (low, bottom), (high, top) = min(levels.items()), max(levels.items())
    circles = [one for one in shapes(drawn, "sign a0") if one.tag == f"{SVG}circle"]
    expected = [bottom + (rate - low) / (high - low) * (top - bottom) for rate in sample.HOST]
    assert [at(one, "cy") for one in circles] == pytest.approx(expected, abs=0.05)
    assert [at(one, "cx") for one in circles] == sorted(at(one, "cx") for one in circles)
    # AB BA: the host is on the left in the first block, on the right in the second.
    block = (rates.WIDE.width - rates.WIDE.left - rates.WIDE.right) / 6
    within = [(at(one, "cx") - rates.WIDE.left) % block / block for one in circles]
    assert within == pytest.approx([0.25, 0.75] * 3, abs=0.001)


def test_arms_far_apart_are_drawn_against_their_own_means() -> None:
    drawn = rates.rates(sample.slower_examined())
    assert any("own mean" in said for said in texts(drawn))
    assert "+0.5" in texts(drawn)


def test_a_run_that_does_not_count_is_a_cross() -> None:
    assert len(shapes(rates.rates(sample.with_failed_run()), "cross")) == 1
    assert shapes(rates.rates(sample.sample_examined()), "cross") == []


def test_a_noise_far_below_the_margin_does_not_fill_the_picture() -> None:
    examined = sample.sample_examined()
    points, columns = rates.rate_points(examined)
    _, y = rates.rate_scales(examined, points, columns, rates.WIDE)
    assert y.high - y.low >= 2 * examined.margin * 4700


@given(
    st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=700),
    st.integers(1, 150),
)
def test_no_step_is_lost_in_the_columns(step_s: list[float], most: int) -> None:
    columns = steps.columns_of(step_s, most)
    assert len(columns) == min(most, len(step_s))
    firsts = [column.step for column in columns]
    assert firsts == sorted(set(firsts))
    assert firsts[0] == 0
    for column, end in zip(columns, [*firsts[1:], len(step_s)], strict=True):
        mine = step_s[column.step : end]
        assert (column.low_s, column.high_s) == (min(mine), max(mine))
        assert column.middle_s == pytest.approx(median(mine))


def test_the_steady_part_begins_where_the_verdict_says() -> None:
    run = next(run for run in sample.sample_examined().runs if run.first_step)
    drawn = steps.steps(run, steps.step_scale([run]), "B, block 1")
    (bar,) = shapes(drawn, "counts")
    share = run.first_step / len(run.step_s)
    assert at(bar, "x") == pytest.approx(steps.LEFT + share * (steps.RIGHT - steps.LEFT), abs=CLOSE)
    assert at(bar, "x") + at(bar, "width") == pytest.approx(steps.RIGHT, abs=CLOSE)
    (begin,) = shapes(drawn, "from")
    assert at(begin, "x1") == at(bar, "x")


def test_a_step_beyond_the_scale_is_marked_at_its_edge() -> None:
    run = sample.sample_examined().runs[0]
    stalled = replace(run, step_s=(*run.step_s[:100], 3.0, *run.step_s[101:]))
    scale = steps.step_scale([stalled])
    assert scale.high < 0.1
    assert len(shapes(steps.steps(stalled, scale, "A"), "above")) == 1
    assert shapes(steps.steps(run, scale, "A"), "above") == []


def test_parts_of_the_set_up_are_as_wide_as_they_are_long() -> None:
    arms = sample.sample_examined().arms
    drawn = setup.setup(arms)
    first_steps = shapes(drawn, "part p5")
    seconds = [dict(arm.setup)["first step"] for arm in arms]
    widths = [at(one, "width") + 1 for one in first_steps]  # the gap is part of it
    assert widths[1] / widths[0] == pytest.approx(seconds[1] / seconds[0], rel=0.01)
    ends = [at(one, "x") + at(one, "width") + 1 for one in first_steps]
    assert ends[1] == pytest.approx(setup.WIDE.width - setup.WIDE.right, abs=CLOSE)


MAKERS = [sample.sample_examined, sample.three_arms, sample.with_failed_run, sample.one_arm, sample.open_experiment,
          sample.nothing_measured, sample.slower_examined, sample.hostile]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_every_picture_stays_inside_its_frame(make: Callable[[], Examined]) -> None:
    root = ElementTree.fromstring(plot_svg(make()))
    for picture in [one for one in root.iter(f"{SVG}svg") if one is not root]:
        _, _, width, height = map(float, picture.attrib["viewBox"].split())
        for one in picture.iter():
            for name, most in (
                ("x", width),
                ("cx", width),
                ("x1", width),
                ("x2", width),
                ("y", height),
                ("cy", height),
            ):
                if name in one.attrib and one is not picture:
                    assert -0.01 <= at(one, name) <= most + 0.01, (one.tag, one.attrib)


def test_nine_arms_have_nine_different_signs() -> None:
    from stackmark.show.report.charts.shapes import sign

    drawn = {re.sub(r" class=\"[^\"]*\"", "", sign(arm, 50, 50)) for arm in range(9)}
    assert len(drawn) == 9


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(1, 12))
def test_ticks_are_round_and_inside(low: float, span: float, about: int) -> None:
    assume(span > 1e-6 * abs(low))
    high = low + span
    found = ticks(low, high, about)
    assert len(found) <= 2 * about + 2
    assert all(low - span * 1e-6 <= tick <= high + span * 1e-6 for tick in found)


@given(st.floats(1e-9, 1e3), st.floats(1.6, 1e9), st.integers(2, 12))
def test_ticks_of_factors_are_few_and_inside(low: float, factor: float, most: int) -> None:
    found = factor_ticks(low, low * factor, most)
    assert len(found) <= most
    assert all(low * 0.999 <= tick <= low * factor * 1.001 for tick in found)


def test_a_scale_is_its_own_inverse_at_its_ends() -> None:
    scale = Scale(0.5, 2.0, 100, 300, log=True)
    assert (scale(0.5), scale(1.0), scale(2.0)) == pytest.approx((100, 200, 300))


# The picture on its own


def test_the_same_picture_is_drawn_on_a_machine_without_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    import resvg_py

    draw = resvg_py.svg_to_bytes
    with_fonts = plot_png(sample.sample_examined())
    monkeypatch.setattr(resvg_py, "svg_to_bytes", lambda **asked: draw(**asked, skip_system_fonts=True))
    assert plot_png(sample.sample_examined()) == with_fonts
    monkeypatch.setattr(
        resvg_py, "svg_to_bytes", lambda **asked: draw(asked["svg_string"], zoom=2, skip_system_fonts=True)
    )
    assert plot_png(sample.sample_examined()) != with_fonts, "without our font there are no words"


def test_a_png_is_as_large_as_it_says() -> None:
    png = plot_png(sample.three_arms())
    root = ElementTree.fromstring(plot_svg(sample.three_arms()))
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = int.from_bytes(png[16:20]), int.from_bytes(png[20:24])
    assert width == 2 * at(root, "width")
    assert height == pytest.approx(2 * at(root, "height"), abs=1)


def test_without_resvg_png_is_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with refused("resvg-py", "'stackmark[plot]'"):
        plot_png(sample.sample_examined())
    assert "EQUIVALENT" in plot_svg(sample.sample_examined())
