"""The answer of an experiment in a terminal: the word first, readable without colour, whole in a pipe, within its screen."""

import io
import json
import math
from dataclasses import fields, replace
from statistics import stdev

import pytest
from rich.console import Console
from scipy.stats import chi2
from scipy.stats import t as student

import examined_sample as sample
from examined_sample import (
    aa,
    compared,
    inconclusive,
    one_arm,
    sample_examined,
    slower_examined,
    three_arms,
    with_failed_run,
)
from naming import missing, numbers
from stackmark.experiments.design import check_margin
from stackmark.show.forest import forest
from stackmark.show.verdict import (
    DIFFERENCES_SHOWN,
    FAILURES_SHOWN,
    next_commands,
    print_verdict,
    verdict_json,
    with_blocks,
)
from stackmark.verdict.comparison import Comparison, Interval
from stackmark.verdict.examined import CovariateLine, Examined, FactDifference
from stackmark.verdict.needed import sd_upper
from stackmark.verdict.noise import block_parts, block_seconds, margin_costs, noise_floor
from stackmark.verdict.throughput import throughput_over_runs

ESC = "\x1b"


def screen(width: int = 100, colour: bool = False) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=60, color_system="standard" if colour else None,
        legacy_windows=False, highlight=False, emoji=False,
    )  # fmt: skip


def said(examined: Examined, console: Console) -> str:
    """Everything: the short answer is in test_summaries.py."""
    print_verdict(examined, console, details=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def pipe() -> Console:
    return Console(file=io.StringIO(), force_terminal=False)


# The first line


@pytest.mark.parametrize("make", [sample_examined, slower_examined, inconclusive])
def test_the_first_line_has_the_word_on_a_screen_and_in_a_pipe(make: object) -> None:
    assert callable(make)
    examined = make()
    word = examined.comparisons[0].word
    for console in (screen(), pipe()):
        assert word in said(examined, console).splitlines()[0]


def test_each_word_has_a_colour_of_its_own() -> None:
    colours = {
        make().comparisons[0].word: said(make(), screen(colour=True))
        .partition("EQUIVALENT")[0]
        .partition("SLOWER")[0][:8]
        for make in (sample_examined, slower_examined)
    }
    assert colours == {"EQUIVALENT": f"{ESC}[1;32m", "SLOWER": f"{ESC}[1;31m"}


def test_a_sentence_that_has_the_word_is_left_alone() -> None:
    sentence = "container is EQUIVALENT to host within 1 %: ratio 0.9983"
    base = sample_examined()
    shown = replace(base, comparisons=(replace(base.comparisons[0], sentence=sentence),))
    assert said(shown, pipe()).splitlines()[0] == f"verdict     {sentence}"


def test_an_open_experiment_says_so_before_anything_else() -> None:
    first, second, *_ = said(sample.open_experiment(), pipe()).splitlines()
    assert first.split()[0] == "state"
    assert (missing(first, "NOT FINISHED"), numbers(first)) == ([], [2, 6])
    assert second.split()[0] == "verdict"
    assert missing(second, "INCONCLUSIVE") == []


def test_no_number_is_no_verdict() -> None:
    shown = said(sample.nothing_measured(), pipe())
    assert "NO VERDICT" in shown.splitlines()[1]
    assert str(sample.nothing_measured().runs[-1].failure_message) in shown
    assert "ratio" not in shown


def test_one_arm_has_a_rate_and_no_verdict() -> None:
    first = said(one_arm(), pipe()).splitlines()[0].split()
    assert first == ["verdict", "host:", "4,737", "images/s", "±", "0.12", "%"]
    assert "no interval" in said(one_arm(runs=1), pipe())


# The rest


def test_a_pipe_gets_a_line_for_each_thing_with_its_name() -> None:
    lines = said(slower_examined(), pipe()).splitlines()
    host, other = (line for line in lines if line.startswith("arm "))
    assert missing(host, "host", "4,737 images/s", "± 0.09 %", "6 runs", "8.41 s") == []
    assert missing(other, "container,cpus=1") == []
    (pair,) = [line for line in lines if line.startswith("ratio")]
    assert missing(pair, "container,cpus=1 / host", "SLOWER", "1 %", "0.7088", "−29.1 %") == []
    assert missing(pair, "90 %", "0.7078", "0.7098", "95 %", "0.7075", "0.7101") == []
    first = next(line for line in lines if line.startswith("differs"))
    told = slower_examined().differences[0]
    assert missing(first, f"{told.subject}.{told.key}", *told.values, told.why) == []
    assert lines[-1].split() == ["next", "stackmark", "report", slower_examined().experiment_id, "-o", "report.html"]
    assert all(line == line.rstrip() and line[:1] != " " for line in lines)


@pytest.mark.parametrize("width", [60, 70, 80, 100, 140, 200])
def test_a_screen_holds_it_and_loses_nothing(width: int) -> None:
    for examined in (sample_examined(), slower_examined(), three_arms(), with_failed_run(), aa(), inconclusive()):
        shown = said(examined, screen(width))
        body, _, _ = shown.partition("next: ")
        assert max(map(len, body.splitlines())) <= width
        flowed = "".join(shown.split())
        wanted = [examined.scope, *examined.not_held, *examined.warnings, examined.experiment_id]
        for text in wanted:
            assert "".join(text.split()) in flowed


def test_at_most_five_differences_are_shown_and_the_rest_is_counted() -> None:
    many = tuple(FactDifference("host", f"fact{n}", ("a", "b"), "why", 50 - n) for n in range(9))
    low = FactDifference("host", "colour", ("a", "b"), "differs; not known to matter", 5)
    shown = said(sample_examined(differences=(*many, low)), pipe())
    assert shown.count("host.fact") == DIFFERENCES_SHOWN
    more = shown.splitlines()[
        [line.startswith("differs") for line in shown.splitlines()].index(True) + DIFFERENCES_SHOWN
    ]
    assert missing(more, "5", "stackmark verdict", sample_examined().experiment_id, "--json") == []
    nothing = said(sample_examined(differences=(low,)), pipe())
    (line,) = [line for line in nothing.splitlines() if line.startswith("differs")]
    assert missing(line, "1", "--json") == []
    assert "colour" not in line
    assert not any(line.startswith("differs") for line in said(sample_examined(differences=()), pipe()).splitlines())


def beside(shown: str) -> list[str]:
    return [line for line in shown.splitlines() if line.startswith("conditions")]


def test_covariates_are_said_where_they_matter_and_counted_where_they_do_not() -> None:
    told = CovariateLine("clock_sm_end_mhz", "MHz", (1980.0, 1900.0), "4 % higher in host than in container")
    alike = CovariateLine("load_1m", "", (1.0, 1.0))
    (line,) = beside(said(sample_examined(covariates=(told, alike)), pipe()))
    assert told.remark in line
    (line,) = beside(said(sample_examined(covariates=(alike,)), pipe()))
    assert numbers(line) == [1]


def test_failed_runs_are_listed_with_reason_and_hint() -> None:
    shown = said(with_failed_run(), pipe())
    bad = with_failed_run().runs[-1]
    (line,) = [line for line in shown.splitlines() if line.startswith("failed")]
    assert missing(line, bad.run_id, "container", "block 3", bad.failure_kind, bad.failure_hint) == []
    base = with_failed_run()
    nine = tuple(replace(base.runs[-1], run_id=f"r-{n}") for n in range(9))
    many = said(replace(base, runs=(*base.runs[:-1], *nine)), pipe())
    last = [line for line in many.splitlines() if line.startswith("failed")][FAILURES_SHOWN]
    assert missing(last, "4", "stackmark verdict") == []


def test_more_than_two_arms_have_a_table_of_pairs_and_holm_is_named() -> None:
    shown = said(three_arms(), screen())
    assert "pair" in shown
    assert "pod / host" in shown
    (line,) = [line for line in said(three_arms(), pipe()).splitlines() if line.startswith("pairs")]
    assert missing(line, "Holm", "2") == []


def test_many_pairs_are_counted_in_one_sentence() -> None:
    base = three_arms()
    shown = said(replace(base, comparisons=base.comparisons * 3), pipe())
    assert missing(shown.splitlines()[0], "verdict", "6 pairs", "3 arms", "6 EQUIVALENT") == []


def test_what_to_type_next() -> None:
    id_ = sample_examined().experiment_id
    assert next_commands(sample.open_experiment()) == [f"stackmark resume {id_}"]
    again, report = next_commands(inconclusive())
    assert again.split()[-6:] == ["--arm", "host", "--arm", "container", "--blocks", "14"]
    assert again.count("--blocks") == 1
    assert report == f"stackmark report {id_} -o report.html"
    look, anew = next_commands(sample.nothing_measured())
    assert look.split() == ["stackmark", "show", sample.nothing_measured().runs[-1].run_id, "--log"]
    assert anew == sample.nothing_measured().command


def test_a_report_that_is_written_is_not_the_next_thing_to_type() -> None:
    examined = sample.sample_examined()
    assert [command.split()[1] for command in next_commands(examined)] == ["report"]
    assert next_commands(examined, reported=True) == []


def test_what_to_type_next_names_the_ledger_that_was_typed() -> None:
    commands = [*next_commands(sample.open_experiment(), "--ledger l"), *next_commands(inconclusive(), "--ledger l")]
    assert all("--ledger l" in command for command in commands if " compare " not in command)


def test_a_long_label_leaves_its_numbers_on_the_screen() -> None:
    base = three_arms()
    arms = tuple(replace(one, label=f"container,env=A={'x' * 200},cpus={one.index}") for one in base.arms)
    renamed = {old.label: new.label for old, new in zip(base.arms, arms, strict=True)}
    pairs = tuple(replace(c, a=renamed[c.a], b=renamed[c.b]) for c in base.comparisons)
    shown = said(replace(base, arms=arms, comparisons=pairs), screen())
    assert max(map(len, shown.splitlines())) <= 100
    table = shown[shown.index("arm  ") :]
    assert all(f",cpus={one.index}  " in table for one in arms)
    assert "± " in table


def test_fewer_blocks_than_a_design_has_are_no_verdict_and_are_counted() -> None:
    shown = said(sample.open_experiment(comparisons=(), blocks_whole=1), pipe())
    (line,) = [line for line in shown.splitlines() if line.startswith("verdict")]
    assert missing(line, "NO VERDICT", "1 block", "6") == []


def test_more_blocks_take_the_place_of_those_that_were_asked_for() -> None:
    for asked in ("--blocks 6 --arm a", "--blocks=6 --arm a", "--arm a"):
        assert with_blocks(f"stackmark compare x {asked}", 9).split()[3:] == ["--arm", "a", "--blocks", "9"]


def test_hostile_text_is_shown_and_not_obeyed() -> None:
    for console in (screen(70), screen(200), pipe()):
        shown = said(sample.hostile(), console)
        assert ESC not in shown.replace(f"{ESC}[?25h", "")
        assert "\u202e" not in shown
        assert r"\x1b[31m" in "".join(shown.split())


# The drawing


def ratio(value: float, low: float, high: float, margin: float = 0.01) -> Comparison:
    base = sample_examined().comparisons[0]
    return replace(
        base, ratio=value, margin=margin, interval_90=Interval(low, high, 0.9), interval_95=Interval(low, high, 0.95)
    )


def test_the_drawing_has_the_ratio_between_its_ends_and_one_between_the_margins() -> None:
    row, labels = forest([ratio(0.998, 0.996, 1.0005)], 80)
    assert row.split()[:3] == ["container", "/", "host"]
    assert row.index("┊") < row.index("━") < row.index("●") < row.index("│") < row.rindex("┊")
    assert labels.split() == ["0.99", "1", "1.01"]
    assert labels.index(" 1 ") + 1 == row.index("│")


def test_the_drawing_is_symmetric_for_half_and_twice_as_fast() -> None:
    half, double, _ = forest([ratio(0.5, 0.5, 0.5), ratio(2.0, 2.0, 2.0)], 80)
    one = half.index("│")
    assert one - half.index("●") == double.index("●") - one


@pytest.mark.parametrize("width", [30, 60, 100, 200])
@pytest.mark.parametrize(
    ("value", "low", "high"),
    [(1.0, 1.0, 1.0), (5.0, 4.9, 5.1), (0.2, 0.19, 0.21), (1.0, 1e-300, 1e300), (1e-12, 1e-13, 1e-11), (1.0, 0.9, 1.1)],
)
def test_every_ratio_can_be_drawn(value: float, low: float, high: float, width: int) -> None:
    for line in forest([ratio(value, low, high)], width):
        assert len(line) <= width


def test_a_terminal_without_those_signs_gets_plain_ones() -> None:
    drawn = "\n".join(forest([ratio(0.998, 0.996, 1.0005)], 80, ascii_only=True))
    assert drawn.isascii()
    assert "==o==" in drawn


def test_a_comparison_without_an_interval_is_a_point() -> None:
    row, _ = forest([replace(ratio(0.998, 1, 1), interval_90=None, interval_95=None)], 80)
    assert "●" in row
    assert "━" not in row


# For programs


def test_json_is_complete_and_is_json() -> None:
    made = json.loads(json.dumps(verdict_json(sample_examined()), allow_nan=False))
    # The rows of an operator list are in `show --json`, with all their numbers; scaling is in that of `scale` alone, quality in
    # that of training to a target, compared and latencies in that of what answers. The line `repeat` of one arm is in that
    # of its measurement.
    assert {field.name for field in fields(Examined)} - {
        "operators",
        "scaling",
        "quality",
        "compared",
        "latencies",
        "pinned",
    } | {
        "schema",
        "usable",
        "why",
    } == made.keys()
    comparison = made["comparisons"][0]
    assert comparison["word"] == "EQUIVALENT"
    assert comparison["interval_90"].keys() == {"low", "high", "confidence"}
    assert made["runs"][0]["steps"] == 240
    assert "step_s" not in made["runs"][0]
    assert made["arms"][0]["steadiness"] == {"flat": 5, "warm-up": 1}
    assert made["arms"][0]["setup"][0] == {"part": "start", "seconds": 0.31}
    assert made["differences"][0]["weight"] == 60


def test_what_is_no_number_is_null_in_json() -> None:
    base = sample_examined()
    odd = replace(base.comparisons[0], ratio=math.inf, p_difference=math.nan)
    made = verdict_json(replace(base, comparisons=(odd,)))
    comparisons = made["comparisons"]
    assert isinstance(comparisons, list)
    assert isinstance(comparisons[0], dict)
    assert comparisons[0]["ratio"] is None
    assert comparisons[0]["p_difference"] is None


def test_a_hostile_experiment_is_json_too() -> None:
    assert json.loads(json.dumps(verdict_json(sample.hostile())))["workload"] == sample.HOSTILE


# The noise floor


def test_a_noise_floor_from_two_blocks_is_called_hardly_known() -> None:
    two = (compared("host", sample.HOST[:2], "host (2)", sample.CONTAINER[:2], 0.01),)
    floor = noise_floor(aa(comparisons=two))
    assert floor is not None
    assert (floor.sd_blocks_most, floor.smallest_margin, floor.costs) == (None, None, ())
    (line,) = [line for line in said(aa(comparisons=two), pipe()).splitlines() if line.startswith("blocks")]
    assert missing(line, "2 blocks") == []


def test_the_noise_floor_is_the_first_line_and_the_price_of_margins_follows() -> None:
    shown = said(aa(), pipe())
    spread = stdev(math.log(b / a) for a, b in zip(sample.HOST, sample.CONTAINER, strict=True))
    assert missing(shown.splitlines()[0], "noise", "NOISE FLOOR", "train/resnet50_v1.5", f"{100 * spread:.3g} %") == []
    lines = [line for line in shown.splitlines() if line.startswith("margin")]
    assert [missing(line, f"{margin} %") for margin, line in zip((0.5, 1, 2, 5), lines, strict=True)] == [[]] * 4
    assert "min" in lines[0] or " s" in lines[0]


def test_the_smallest_margin_is_the_one_that_these_blocks_decide_in_nine_of_ten() -> None:
    """By SciPy: TOST's power at no difference, where either end may miss with one in twenty."""
    floor = noise_floor(aa())
    assert floor is not None
    # The spread is taken at its upper bound, of 80 %.
    bound = floor.sd_blocks * math.sqrt((floor.blocks - 1) / chi2.ppf(0.2, floor.blocks - 1))
    assert floor.sd_blocks_planned is not None
    assert floor.sd_blocks_planned == pytest.approx(bound, rel=0.01)
    reach = 2 * float(student.ppf(0.95, floor.blocks - 1)) * floor.sd_blocks_planned / math.sqrt(floor.blocks)
    assert floor.smallest_margin == pytest.approx(1 - math.exp(-reach))


def test_blocks_for_a_margin_are_whole_designs_and_fewer_for_wider_ones() -> None:
    floor = noise_floor(aa())
    assert floor is not None
    counts = [cost.blocks for cost in floor.costs]
    assert all(count is not None and count % 2 == 0 for count in counts)
    assert counts == sorted(counts, reverse=True, key=lambda count: count or 0)
    assert floor.block_s is not None
    assert floor.costs[0].seconds == pytest.approx((floor.costs[0].blocks or 0) * floor.block_s)


def test_a_margin_that_cannot_be_had_is_said() -> None:
    base = aa()
    wild = replace(base, comparisons=(replace(base.comparisons[0], sd_log=0.5),))
    floor = noise_floor(wild)
    assert floor is not None
    assert [cost.is_practical for cost in floor.costs[:4]] == [False] * 4
    lines = [line for line in said(wild, pipe()).splitlines() if line.startswith("margin")]
    assert [missing(line, f"{100 * cost.margin:g} %") for cost, line in zip(floor.costs, lines, strict=True)] == [
        []
    ] * len(lines)


@pytest.mark.parametrize("sd", [0.001, 0.05, 0.2, 0.5, 3.0])
def test_a_noise_floor_names_only_margins_that_compare_takes(sd: float) -> None:
    base = aa()
    floor = noise_floor(replace(base, comparisons=(replace(base.comparisons[0], sd_log=sd),)))
    assert floor is not None
    for margin in (*(cost.margin for cost in floor.costs), *filter(None, [floor.smallest_margin])):
        check_margin(float(f"{100 * margin:.3g}") / 100)  # as it is printed
    assert (floor.smallest_margin is None) == (sd > 0.4)


def test_wider_margins_are_priced_where_the_usual_ones_cannot_be_had() -> None:
    priced = [cost.margin for cost in margin_costs(0.2, 60.0)]
    assert priced[:4] == [0.005, 0.01, 0.02, 0.05]
    assert [cost.is_practical for cost in margin_costs(0.2, 60.0)] == [False] * (len(priced) - 1) + [True]
    assert len(margin_costs(0.001, 60.0)) == 4


def test_blocks_that_nobody_runs_are_not_what_to_type_next() -> None:
    (pair,) = inconclusive().comparisons
    assert pair.needed is not None
    for practical in (True, False):
        shown = replace(inconclusive(), comparisons=(replace(pair, needed=replace(pair.needed, practical=practical)),))
        assert any("--blocks" in command for command in next_commands(shown)) == practical


def test_without_two_blocks_there_is_no_noise_floor() -> None:
    assert noise_floor(aa(comparisons=())) is None
    assert "NOISE FLOOR" in said(aa(comparisons=()), pipe()).splitlines()[0]
    assert not numbers(said(aa(comparisons=()), pipe()).splitlines()[0])


@pytest.mark.parametrize(("df", "close"), [(3, 0.04), (5, 0.02), (11, 0.01), (99, 0.01)])
def test_the_bound_of_a_spread_is_that_of_chi_square(df: int, close: float) -> None:
    exact = math.sqrt(df / float(chi2.ppf(0.05, df)))
    assert sd_upper(1.0, df) == pytest.approx(exact, rel=close)
    assert sd_upper(1.0, 2) is None


def test_a_block_is_timed_with_the_pauses_around_it_but_not_with_a_night() -> None:
    runs = sample_examined().runs  # each takes 24 s and begins 31 s after the one before
    assert block_seconds(runs) == pytest.approx(62.0)
    night = tuple(
        replace(one, started_unix_s=one.started_unix_s + 36_000, ended_unix_s=(one.ended_unix_s or 0) + 36_000)
        if (one.block or 0) > 2
        else one
        for one in runs
    )
    assert block_seconds(night) == pytest.approx(62.0)
    assert block_seconds(()) is None


def test_the_parts_of_a_block_add_up_to_it() -> None:
    runs = sample_examined().runs
    parts = dict(block_parts(runs, 62.0))
    assert sum(parts.values()) == pytest.approx(62.0)
    assert parts["set-up"] == pytest.approx(8.41 + 19.1)


def test_an_a_a_that_differs_is_a_warning() -> None:
    base = aa()
    named = replace(base, comparisons=(replace(base.comparisons[0], difference="slower"),))
    assert [bool(floor and floor.differs) for floor in map(noise_floor, (named, base))] == [True, False]
    kinds = [str(verdict_json(each)["warnings"]) for each in (named, base)]
    assert ["equal-arms-differ" in one for one in kinds] == [True, False]


def test_the_spread_of_runs_is_pooled_over_the_arms() -> None:
    floor = noise_floor(aa())
    cvs = [throughput_over_runs(rates).cv for rates in (sample.HOST, sample.CONTAINER)]
    assert floor is not None
    assert floor.sd_runs == pytest.approx(math.sqrt(sum((cv or 0) ** 2 for cv in cvs) / 2))
