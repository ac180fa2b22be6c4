"""The answer in ten lines: first and last on the screen, with its interval at every width, and nothing that went wrong hidden."""

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

import examined_sample as sample
from naming import missing, numbers
from result_sample import COMMAND, LIMITED, MEASURED, PUBLISHED, RESULT, row
from stackmark.experiments.result import RunResult, flags_of_runs, time_taken
from stackmark.figures import FigureUnit, figure_unit
from stackmark.show.result import print_result, result_json
from stackmark.show.run_summary import WARNINGS_SHOWN, say_limit, say_settings, summary_lines
from stackmark.show.sections import Sections
from stackmark.show.terminal import ONE_SCREEN, answer_last
from stackmark.show.verdict import print_verdict, verdict_json
from stackmark.show.verdict_summary import answers
from stackmark.show.wording import NARROW, WIDE, say_answer, say_changes, say_plainly, width_style
from stackmark.verdict.cautions import (
    INTERFERENCE,
    UNUSABLE_FACTOR,
    RunEvidence,
    caution,
    find_unusable,
    in_order,
)
from stackmark.verdict.ceilings import Ceilings, Rate
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import Examined
from stackmark.verdict.interference import Disturbed, Load, combined, say_interference
from stackmark.verdict.ratio import compare_blocks
from stackmark.verdict.roofline import Work, stand
from stackmark.verdict.throughput import Throughput, throughput_over_runs
from stackmark.verdict.unpaired import compare_runs

WIDTHS = (60, 80, 120)


def screen(width: int = 80, *, colour: bool = False) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=24, color_system="standard" if colour else None,
        legacy_windows=False, highlight=False, emoji=False,
    )  # fmt: skip


def pipe() -> Console:
    return Console(file=io.StringIO(), force_terminal=False)


def shown(show: Callable[[Console], None], console: Console) -> list[str]:
    show(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def of_run(result: RunResult, console: Console, **how: Any) -> list[str]:
    return shown(lambda to: print_result(result, to, **how), console)


def of_verdict(examined: Examined, console: Console, **how: Any) -> list[str]:
    return shown(lambda to: print_verdict(examined, to, **how), console)


def taken(lines: list[str], width: int) -> int:
    """How many lines of a terminal they take: a command is one line for whoever copies it, and wraps."""
    return sum(max(1, -(-len(line) // width)) for line in lines)


MANY = in_order([
    caution("counter", "the GPU's clocks were held down for a while, of which this sentence tells quite a lot (5 of 5 runs)"),
    caution("few-runs", "few"),
    caution(INTERFERENCE, "other programs kept 1.9 of 2 cores busy"),
    caution("clocks-disagree", "the steps do not add up"),
    caution("not-settled", "it was still moving"),
])  # fmt: skip
PINNED = f"{COMMAND} {' '.join(f'--option-{number} {number}' for number in range(12))}"


# `run`


def test_a_run_ends_with_its_name_place_and_chip_and_then_the_rate() -> None:
    first, second, third, *_ = of_run(RESULT, screen())
    assert missing(first, "train/resnet50", "host", "NVIDIA H200") == []
    assert (
        missing(
            f"{second} {third.strip()}", "7,000 images/s", "± 0.14 %", "95 %", "5 runs", "4 × flat", "took", "40.0 s"
        )
        == []
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_the_interval_of_a_rate_is_there_at_every_width(width: int) -> None:
    lines = of_run(RESULT, screen(width))
    assert missing(" ".join(" ".join(lines).split()), "± 0.14 %") == []
    assert all(len(line) <= width for line in lines if not line.startswith(("repeat", "more")))


def test_with_several_warnings_and_every_choice_pinned_it_has_fourteen_lines_at_most() -> None:
    standing = stand(Work(7000.0, 24.3e9, "bf16", 1e8, 4e8), CEILINGS)
    full = replace(RESULT, cautions=MANY, command=PINNED, limits=replace(RESULT.limits, standing=standing))
    lines = of_run(full, screen(80))
    assert taken(lines, 80) <= 14
    assert taken(of_run(RESULT, screen(80)), 80) <= 10


def test_warnings_are_by_severity_with_interference_first_and_the_others_are_counted() -> None:
    lines = dict_of(replace(RESULT, cautions=MANY))
    assert lines["warning"] == [MANY[0].text, MANY[1].text][:WARNINGS_SHOWN]
    assert [one.kind for one in MANY[:2]] == [INTERFERENCE, "clocks-disagree"]
    assert [one.severity for one in MANY] == ["high", "high", "medium", "medium", "low"]
    assert missing(lines["more"][0], "3 more", "stackmark show", "--details") == []


def dict_of(result: RunResult) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, text in summary_lines(result):
        found.setdefault(name, []).append(text)
    return found


def test_settings_that_were_chosen_for_the_user_have_a_mark() -> None:
    said = say_settings(RESULT)
    assert missing(said.replace("*", " * "), "batch 512 *", "precision bf16 *") == []
    assert "tune max*" not in said
    typed = replace(RESULT, measured=replace(MEASURED, choices={}))
    assert "*" not in say_settings(typed)


def test_failed_runs_and_runs_that_are_missing_are_never_hidden() -> None:
    why = {"status": "failed", "rate_per_s": None, "failure_kind": "oom", "failure_hint": "do"}
    bad = [row(id=f"r-{n:026}", failure_message=f"why {n}", **why) for n in range(5)]
    asked = MEASURED.experiment.model_copy(update={"request": {"runs": 12}})
    hurt = replace(RESULT, measured=replace(MEASURED, experiment=asked, runs=(*MEASURED.runs, *bad)))
    lines = dict_of(hurt)
    assert missing(" ".join(lines["failed"]), "why 0", "why 1", "why 2", "do", "2 more") == []
    assert (numbers(lines["not done"][0])[:2], "stackmark resume x-" in lines["not done"][0]) == ([10, 12], True)


def test_one_published_row_stands_there_and_what_differs_is_in_the_details() -> None:
    lines = dict_of(RESULT)
    assert missing(lines["published"][0], "3,079 images/s", "NVIDIA H200", "fp16") == []
    assert PUBLISHED.differs[0] not in " ".join(lines["published"])
    assert PUBLISHED.differs[0] in " ".join(of_run(RESULT, pipe(), details=True))


def test_a_figure_that_is_a_time_says_that_lower_is_better() -> None:
    times = replace(
        MEASURED, throughput=throughput_over_runs([4.9, 4.95, 5.0]), runs=(row(rate_per_s=4.95, rate_unit="1/s"),)
    )
    lines = dict_of(replace(RESULT, measured=times))
    assert missing(lines["figure"][0], "0.202 s", "lower is better", "± 2.5 %") == []
    assert "rate" not in lines


CEILINGS = Ceilings(
    matrix={"bf16": Rate(790e12, 665e12)}, copy_bytes_per_s=4.3e12, chip="NVIDIA H200", device="cuda:0",
    measured_unix_s=1.7631e9, run_id="r-01k9",
)  # fmt: skip


def test_a_share_above_100_percent_is_an_out_of_date_ceiling_and_not_a_bound() -> None:
    within = say_limit(stand(Work(7000.0, 24.3e9, "bf16", 1e8, 4e8), CEILINGS))
    beyond = say_limit(stand(Work(70000.0, 24.3e9, "bf16", 1e8, 4e8), CEILINGS))
    assert missing(within, "memory-bound", "65 %", "26 %", "bf16") == []
    assert missing(beyond, "out of date", "651 %", "stackmark ceilings") == []
    assert "bound:" not in beyond


def test_a_ledger_that_was_typed_is_in_every_command_to_type_next() -> None:
    lines = dict(summary_lines(RESULT, "--ledger l"))
    assert lines["more"].endswith("--ledger l")


# Colour and use


@pytest.mark.parametrize(
    ("half", "style"),
    [(0.99 * NARROW, "green"), (1.01 * NARROW, "yellow"), (0.99 * WIDE, "yellow"), (1.01 * WIDE, "red")],
)
def test_colour_follows_the_width_of_the_interval(half: float, style: str) -> None:
    assert width_style(Throughput(100.0, 100 / (1 + half), 100 * (1 + half), 5, 0.01)).endswith(style)
    assert width_style(Throughput(100.0, None, None, 1, None)).endswith("red")


@pytest.mark.parametrize(("slowest", "usable"), [(51.0, True), (50.0, False), (10.0, False)])
def test_runs_that_differ_by_a_factor_of_two_are_not_usable(slowest: float, usable: bool) -> None:
    found = find_unusable([RunEvidence(100.0), RunEvidence(slowest), RunEvidence(80.0)])
    assert (found is None) == usable
    if found:
        assert found.factor == pytest.approx(100 / slowest)
        assert found.factor >= UNUSABLE_FACTOR


@pytest.mark.parametrize(
    ("evidence", "met", "cause"),
    [
        ({"metrics": {"limited_thermal_share": 0.4}}, "other programs kept 1 of 2 cores busy", "interference"),
        ({"metrics": {"limited_thermal_share": 0.4}, "steady": "no steady state"}, "", "throttling"),
        ({"metrics": {"cpu_quota_stopped_s": 1.0}}, "", "throttling"),
        ({"metrics": {"limited_power_cap_share": 0.02}, "steady": "no steady state"}, "", "no steady state"),
        ({"steady": "flat"}, "", "unknown"),
    ],
)
def test_the_most_likely_cause_is_the_first_that_is_stored(evidence: dict[str, Any], met: str, cause: str) -> None:
    found = find_unusable([RunEvidence(100.0), RunEvidence(40.0, **evidence)], met)
    assert found is not None
    assert found.cause == cause


def test_a_result_that_is_not_usable_says_so_before_its_rate_and_in_json() -> None:
    apart = find_unusable([RunEvidence(100.0), RunEvidence(40.0)], "other programs")
    bad = replace(RESULT, unusable=apart, cautions=MANY)
    _, second, third, *_ = of_run(bad, screen())
    assert second.startswith("NOT USABLE")
    assert third.startswith("rate")
    made = result_json(bad)
    assert (made["usable"], made["cause"]) == (False, "interference")
    assert missing(made["why"], "2.5") == []
    assert [one["kind"] for one in made["warnings"]] == [one.kind for one in MANY]
    assert made["warnings"][0].keys() == {"kind", "severity", "text"}
    good = result_json(RESULT)
    assert (good["usable"], good["why"], good["took_s"]) == (True, None, pytest.approx(40.0))
    assert result_json(replace(RESULT, measured=replace(MEASURED, throughput=None)))["usable"] is False


def test_an_arm_that_is_not_usable_is_marked_and_in_json() -> None:
    base = sample.sample_examined()
    apart = find_unusable([RunEvidence(100.0), RunEvidence(40.0)])
    hurt = replace(base, arms=(base.arms[0], replace(base.arms[1], unusable=apart)))
    assert any("NOT USABLE" in line for line in of_verdict(hurt, screen()))
    made = verdict_json(hurt)
    assert made["usable"] is False
    assert "container" in str(made["why"])
    assert (verdict_json(base)["usable"], verdict_json(base)["why"]) == (True, None)


def test_flags_are_said_once_with_how_many_runs_had_them() -> None:
    runs = [row(flags=["pauses: 3 pauses", LIMITED]), row(flags=["pauses: 12 pauses"])]
    assert [(kind, numbers(said)) for kind, said in flags_of_runs(runs)] == [("pauses", [2, 2, 3]), ("counter", [1, 2])]


def test_a_pause_of_somebodys_is_not_time_that_it_took() -> None:
    assert time_taken(0.0, [(5.0, 45.0), (50.0, 90.0)]) == 90.0
    assert time_taken(0.0, [(5.0, 45.0), (90_000.0, 90_040.0)]) == 85.0
    assert time_taken(0.0, []) is None


# Interference


def met(busy: float, *, gpu: float = 0.0, seconds: float = 5.0) -> Load:
    return Load(0, 0, 0, busy, gpu, seconds, cores=2)


@pytest.mark.parametrize(
    ("loads", "tokens"),
    [
        ([met(1.9), met(1.8), met(1.9)], ("1.9", "2 cores")),
        ([met(0.0), met(0.1), met(1.7)], ("1 of 3 runs", "1.7")),
        ([met(0.0, gpu=1), met(0.1)], ("GPU", "1 of 2 runs")),
    ],
)
def test_what_runs_met_of_other_programs_is_said(loads: list[Load], tokens: tuple[str, ...]) -> None:
    assert missing(say_interference(loads, 0.0), *tokens) == []


@pytest.mark.parametrize("loads", [[met(0.1), met(0.2)], [met(1.9, seconds=0.2)], [Load(0, 0, 0)], []])
def test_a_little_load_and_what_nobody_could_tell_are_not_said(loads: list[Load]) -> None:
    assert say_interference(loads, 0.0) == ""


def test_a_busy_machine_is_said_where_the_runs_were_too_short_to_tell() -> None:
    short = [met(0.0, seconds=0.2), met(0.1, seconds=0.3)]
    assert missing(say_interference(short, 1.9), "1.9", "2 cores", "before the first run") == []
    assert say_interference(short, 0.1) == ""
    assert say_interference(short) == ""
    assert "before" not in say_interference([met(1.8)], 1.9)


# Verdicts


@pytest.mark.parametrize("make", [sample.sample_examined, sample.slower_examined, sample.inconclusive, sample.aa])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_verdict_is_first_and_last_and_a_screen_of_24_lines_holds_it_all(
    make: Callable[[], Examined], width: int
) -> None:
    examined = make()
    (said,) = answers(Sections(examined))
    lines = of_verdict(examined, screen(width))
    flowed = " ".join(" ".join(lines).split())
    assert (flowed.startswith(said), flowed.endswith(said)) == (True, True)
    assert all(len(line) <= width for line in lines if not line.startswith(("next", "more", " ")))
    if width >= 80:
        assert taken(lines, width) <= 24
    assert of_verdict(examined, pipe())[-1].endswith(said)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_interval_of_an_arm_is_never_the_column_that_goes(width: int) -> None:
    base = sample.three_arms()
    arms = tuple(replace(one, label=f"container,env=A={'x' * 60},cpus={one.index}") for one in base.arms)
    for examined in (base, replace(base, arms=arms)):
        lines = of_verdict(examined, screen(width))
        head = next(number for number, line in enumerate(lines) if line.startswith("arm "))
        assert all("± " in line for line in lines[head + 1 : head + 4])


def compared(*d: float, margin: float = 0.01) -> Comparison:
    return compare_blocks("host", "container", [5.0] * len(d), [5.0 + one for one in d], margin)


EQUIVALENT = compared(0.0002, -0.0001, 0.0004, 0.0003, -0.0002, 0.0005)
SLOWER = compared(-0.031, -0.0305, -0.0315, -0.032, -0.0308, -0.0312)
OPEN = compared(0.04, -0.03, 0.05, -0.04, 0.03, -0.06)
RATE, SECONDS = FigureUnit("images/s"), figure_unit("1/s")


def test_as_fast_as_is_only_for_equivalent_and_carries_the_margin() -> None:
    assert missing(say_plainly(EQUIVALENT, RATE), "as fast as", "+0.02 %", "within ±1 %") == []
    for one in (SLOWER, OPEN):
        assert "as fast as" not in say_plainly(one, RATE)
        assert say_answer(one, RATE).startswith(one.word)


def test_slower_says_by_how_much_with_the_95_percent_interval() -> None:
    said = say_plainly(SLOWER, RATE)
    assert missing(said, "3.07 %", "slower", "95 %") == []
    low, high = sorted(100 * (1 - bound) for bound in (SLOWER.interval_95.low, SLOWER.interval_95.high))  # type: ignore[union-attr]
    assert missing(said, f"{low:.1f}", f"{high:.1f} %") == []


def test_of_a_time_it_says_how_much_longer_it_takes() -> None:
    said = say_plainly(SLOWER, SECONDS)
    assert missing(said, "takes", f"{100 * (1 / SLOWER.ratio - 1):.3g} %", "longer") == []
    fast = replace(SLOWER, word="FASTER", ratio=4.0, interval_95=replace(SLOWER.interval_95, low=3.5, high=4.5))  # type: ignore[type-var]
    assert missing(say_plainly(fast, RATE), "4", "3.5", "4.5") == []


def test_of_a_time_an_open_difference_says_what_plus_means() -> None:
    assert "+ is faster" in say_plainly(OPEN, SECONDS)
    assert "+ is faster" not in say_plainly(OPEN, RATE)


def test_what_is_open_is_called_open_and_the_first_advice_stands_there() -> None:
    assert "open" in say_plainly(OPEN, RATE)
    assert OPEN.needed is not None
    examined = sample.sample_examined(comparisons=(OPEN,))
    (line,) = [line for line in of_verdict(examined, pipe()) if line.startswith("to decide")]
    first = next(one for one in OPEN.needed.advice if one.kind != "not-by-blocks")
    assert first.words in line


def test_both_ends_of_an_interval_are_said_in_one_form() -> None:
    assert say_changes(0.9895, 1.0201).count("%") == 2
    assert say_changes(0.0919, 1.503).count("%") == 0


def test_disturbed_blocks_stand_in_the_sentence_and_first_where_they_leave_it_open() -> None:
    left = say_plainly(combined(EQUIVALENT, EQUIVALENT, Disturbed(6, 2, 0)), RATE)
    assert missing(left, "2 of 6 blocks") == []
    open_ = say_plainly(combined(SLOWER, EQUIVALENT, Disturbed(6, 2, 0)), RATE)
    assert open_.startswith("other programs disturbed 2 of 6 blocks")


def test_one_run_a_side_keeps_the_sentence_that_states_its_assumption() -> None:
    one = compare_runs("host", "container", [5.0], [5.0 + 5.0], 0.01)
    said = say_answer(one, RATE)
    assert one.sentence in said
    assert say_plainly(one, RATE) not in said


def test_summed_up_pairs_have_a_table_with_their_intervals() -> None:
    base = sample.three_arms()
    many = replace(base, comparisons=base.comparisons * 3)
    for width in WIDTHS:
        lines = of_verdict(many, screen(width))
        assert lines[0] == lines[-1]
        at = next(number for number, line in enumerate(lines) if line.startswith("pair"))
        assert all(" to " in line for line in lines[at + 1 : at + 7])


def test_an_answer_comes_again_only_where_a_screen_does_not_hold_the_rest() -> None:
    for count in (ONE_SCREEN, ONE_SCREEN + 1):
        console = pipe()
        with answer_last(console, lambda console=console: print("answer", file=console.file)):  # type: ignore[misc]
            for number in range(count):
                print(number, file=console.file)
        assert isinstance(console.file, io.StringIO)
        assert ("answer" in console.file.getvalue()) == (count > ONE_SCREEN)
