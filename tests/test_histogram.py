"""The histogram of latencies: what it keeps of times, against the times themselves."""

import os
import random
from pathlib import Path

import pytest

from stackmark.events import EVENT_LIMIT_BYTES, Stream, histograms
from stackmark.histogram import HIGHEST_CELL, KEPT, LONGEST_NS, Histogram, bounds_of, cell_of
from stackmark.worker.stream import Emitter


def log_normal(count: int, seed: int = 1) -> list[int]:
    draw = random.Random(seed)
    return [round(1e6 * draw.lognormvariate(0, 1)) for _ in range(count)]


def exact(values: list[int], percent: float) -> int:
    """Return the smallest value that this share of the values does not exceed."""
    return sorted(values)[max(1, -(-len(values) * round(1000 * percent) // 100_000)) - 1]


def test_cells_follow_each_other_without_a_gap_or_an_overlap() -> None:
    expected = 0
    for cell in range(HIGHEST_CELL + 1):
        low, high = bounds_of(cell)
        assert low == expected
        assert cell_of(low) == cell_of(high) == cell
        expected = high + 1


@pytest.mark.parametrize("percent", [1, 50, 90, 99, 99.9])
def test_a_percentile_is_within_a_two_thousandth_of_the_exact_one(percent: float) -> None:
    values = log_normal(50_000)
    found = Histogram().record_all(values).percentile_ns(percent)
    assert found == pytest.approx(exact(values, percent), rel=1 / 2048)


def test_a_percentile_in_the_kept_tail_is_exact() -> None:
    values = log_normal(50_000)
    assert Histogram().record_all(values).percentile_ns(99) == exact(values, 99)


def test_a_percentile_with_fewer_than_ten_times_beyond_it_is_refused() -> None:
    assert Histogram().record_all(log_normal(999)).percentile_ns(99) is None
    assert Histogram().record_all(log_normal(1000)).percentile_ns(99) is not None


def test_histograms_of_processes_add_up_to_that_of_all_times() -> None:
    values = log_normal(5_000)
    both = Histogram().record_all(values[:2_000])
    both.add(Histogram().record_all(values[2_000:]))
    whole = Histogram().record_all(values)
    assert (both.counts, both.total, both.first_ns, both.slowest_ns) == (
        whole.counts, whole.total, whole.first_ns, whole.slowest_ns,
    )  # fmt: skip


def test_the_first_and_the_slowest_times_are_kept_one_by_one() -> None:
    values = log_normal(5_000)
    made = Histogram().record_all(values)
    assert made.first_ns == values[:KEPT]
    assert made.slowest_ns == sorted(values, reverse=True)[:KEPT]


def test_the_mean_is_that_of_the_times() -> None:
    values = log_normal(20_000)
    assert Histogram().record_all(values).mean_ns == pytest.approx(sum(values) / len(values), rel=1e-3)
    assert Histogram().mean_ns is None


def test_the_curve_rises_and_ends_where_ten_times_lie_beyond() -> None:
    curve = Histogram().record_all(log_normal(10_000)).curve()
    assert curve[0][0] == 0
    assert curve[-1][0] == pytest.approx(99.9)
    assert [time for _, time in curve] == sorted(time for _, time in curve)


def test_a_time_past_the_longest_is_counted_as_the_longest() -> None:
    made = Histogram().record_all([LONGEST_NS * 10, -5])
    assert made.slowest_ns == [LONGEST_NS, 0]


def test_it_travels_in_events_that_are_short_enough(tmp_path: Path) -> None:
    path = tmp_path / "events"
    sent = Histogram("ttft").record_all([LONGEST_NS - one for one in log_normal(3_000)] + log_normal(100_000))
    with path.open("wb") as file:
        emitter = Emitter(os.dup(file.fileno()))
        emitter.histogram(sent)
        emitter.close()
    lines = path.read_text().splitlines()
    assert max(map(len, lines)) < EVENT_LIMIT_BYTES
    stream = Stream()
    for line in lines:
        stream.feed(line)
    received = histograms(stream.events)["ttft"]
    assert (received.counts, received.total, received.first_ns, received.slowest_ns) == (
        sent.counts, sent.total, sent.first_ns, sent.slowest_ns,
    )  # fmt: skip


@pytest.mark.parametrize("counts", [[(HIGHEST_CELL + 1, 1)], [(-1, 1)], [(3, 0)], [(3, -7)]])
def test_a_part_that_cannot_be_is_refused(counts: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="cell"):
        Histogram().add_piece(counts)


def test_single_times_of_a_hostile_worker_are_bounded() -> None:
    made = Histogram()
    for _ in range(5):
        made.add_piece([], first_ns=range(900), slowest_ns=range(900))
    assert len(made.first_ns) == len(made.slowest_ns) == KEPT
