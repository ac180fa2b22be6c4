"""What somebody reads who was sent a report: the title, one plain sentence, what to do, what to beware of."""

import shlex
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

import examined_sample as sample
from naming import missing
from stackmark.figures import FigureUnit
from stackmark.remarks import Remark
from stackmark.show.answer import answers, beware, program_of, title_of, what_to_do
from stackmark.show.report.heading import Heading
from stackmark.show.sections import Sections
from stackmark.show.wording import say_plainly
from stackmark.units import say_minute, say_span, say_zone
from stackmark.verdict.cautions import INTERFERENCE
from stackmark.verdict.comparison import Advice, Needed
from stackmark.verdict.examined import Examined

RATES, TIMES = FigureUnit("images/s"), FigureUnit("s", higher_is_better=False)


def todo(examined: Examined) -> str:
    return what_to_do(Sections(examined))


# The title


def own_program(command: str) -> Examined:
    base = sample.sample_examined(workload="command/own")
    return replace(base, arms=tuple(replace(arm, params={"cmd": command}, chip="AMD EPYC") for arm in base.arms))


@pytest.mark.parametrize(
    ("examined", "title"),
    [
        (sample.sample_examined(), "Host vs container: train/resnet50_v1.5 on NVIDIA H200"),
        (sample.three_arms(), "Host vs container vs pod: train/resnet50_v1.5 on NVIDIA H200"),
        (sample.one_arm(), "train/resnet50_v1.5 on NVIDIA H200"),
        (sample.aa(), "Host against itself: train/resnet50_v1.5 on NVIDIA H200"),
        (own_program("python3 -u code/train.py --epochs 3"), "Host vs container: train.py on AMD EPYC"),
        (sample.nothing_measured(), "Host vs container: train/resnet50_v1.5"),
    ],
)
def test_the_title_is_the_question(examined: Examined, title: str) -> None:
    assert title_of(examined) == title


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("./bench --size 4", "bench"),
        ("python3.11 -m train", "train"),
        ("env OMP_NUM_THREADS=1 python train.py", "train.py"),
        ("sleep 0.2", "sleep"),
        ("python3", "python3"),
        ("sh -c 'a | b'", "a | b"),
        ("'not closed", "'not closed"),
    ],
)
def test_a_users_program_is_called_by_its_file(command: str, program: str) -> None:
    assert program_of(command) == program


def test_trade_marks_and_clocks_are_no_part_of_a_chips_name() -> None:
    base = sample.one_arm()
    arms = (replace(base.arms[0], chip="Intel(R) Xeon(R) CPU @ 2.20GHz"),)
    assert title_of(replace(base, arms=arms)) == "train/resnet50_v1.5 on Intel Xeon"


# The sentence


def test_the_answer_is_the_terminal_s_sentence_with_what_it_comes_from() -> None:
    examined = sample.sample_examined()
    (said,) = answers(Sections(examined))
    plain = say_plainly(examined.comparisons[0], examined.arms[0].figure_unit)
    assert (said.startswith(plain), "6 blocks" in said) == (True, True)


def test_one_arm_is_its_figure_and_no_run_is_no_number() -> None:
    (said,) = answers(Sections(sample.one_arm()))
    assert missing(said, "host", "4,737 images/s", "5 runs") == []
    assert "images" not in answers(Sections(sample.nothing_measured()))[0]


# What to do


def test_equivalent_arms_need_nothing() -> None:
    assert "either" in todo(sample.sample_examined())


def test_slower_names_the_first_cause_and_the_command_to_look_deeper() -> None:
    examined = sample.slower_examined()
    said = todo(examined)
    assert (
        missing(said, "cgroup.cpu.max", "no limit | 1 CPU", f"`stackmark verdict {examined.experiment_id} --why`") == []
    )
    assert "CUDA_CACHE_PATH" not in said


def advised(*kinds: tuple[str, str]) -> Examined:
    base = sample.inconclusive()
    needed = Needed(None, "", advice=tuple(Advice(kind, words) for kind, words in kinds))  # type: ignore[arg-type]
    return replace(base, comparisons=(replace(base.comparisons[0], needed=needed),))


def test_an_open_question_gets_the_cheapest_advice() -> None:
    said = todo(advised(("not-by-blocks", "cannot"), ("longer-runs", "run longer"), ("more-blocks", "make 752 blocks")))
    assert said == "Run longer."


def test_a_busy_machine_is_freed_before_anything_else_is_tried() -> None:
    busy = (Remark("other programs kept 1.8 of 2 cores busy", INTERFERENCE),)
    said = todo(replace(advised(("longer-runs", "run longer")), warnings=busy))
    assert missing(said, "other programs") == []
    assert "run longer" not in said.lower()


def test_an_open_experiment_is_finished_first() -> None:
    examined = sample.open_experiment()
    assert f"`stackmark resume {examined.experiment_id}`" in todo(examined)


def test_a_failure_is_looked_at() -> None:
    examined = sample.nothing_measured()
    assert f"`stackmark show {examined.runs[-1].run_id} --log`" in todo(examined)


@pytest.mark.parametrize(
    ("command", "compared"),
    [
        ("stackmark run train/resnet50_v1.5 --batch 256 --on container --runs 5 --choose-again",
         "stackmark compare train/resnet50_v1.5 --batch 256 --arm container --arm host"),
        ("stackmark run train/resnet50_v1.5 --on=container --seconds=3",
         "stackmark compare train/resnet50_v1.5 --seconds=3 --arm container --arm host"),
        ("stackmark run train/resnet50_v1.5 train/gpt2 --batch 4",
         "stackmark compare train/resnet50_v1.5 --arm container --arm host"),
        ("stackmark run 'broken", "stackmark compare train/resnet50_v1.5 --arm container --arm host"),
    ],
)  # fmt: skip
def test_one_arm_is_told_how_it_is_compared(command: str, compared: str) -> None:
    base = sample.one_arm(command=command)
    examined = replace(base, arms=(replace(base.arms[0], place="container"),))
    assert f"`{compared}`" in todo(examined)


def test_a_program_with_spaces_stays_one_word_of_the_command() -> None:
    cmd = "python train.py --note 'a b'"
    base = sample.one_arm(workload="command/own", command=shlex.join(["stackmark", "run", "--cmd", cmd, "--runs", "3"]))
    _, _, after = todo(base).partition("`")
    assert shlex.split(after.partition("`")[0])[:4] == ["stackmark", "compare", "--cmd", cmd]


# What to beware of


def test_interference_stands_first_and_the_rest_by_severity() -> None:
    base = sample.with_failed_run()
    caveat = "other programs disturbed 2 of 6 blocks"
    comparison = replace(base.comparisons[0], notes=("something else",), caveats=(caveat,))
    warnings = ("a remark", Remark("the design is incomplete", "not-whole"), Remark("other programs ran", INTERFERENCE))
    found = beware(Sections(replace(base, comparisons=(comparison,), warnings=warnings)))
    assert [one.kind for one in found] == [INTERFERENCE, INTERFERENCE, "failed-runs", "not-whole", "note"]
    assert [found[0].text, found[1].text] == [caveat, "other programs ran"]


def test_the_page_warns_of_what_the_terminal_warns_of() -> None:
    sections = Sections(sample.sample_examined(warnings=("a remark", Remark("other programs ran", INTERFERENCE))))
    assert beware(sections) == list(sections.cautions)


# Heading and time


def test_a_heading_keeps_text_and_removes_what_is_not() -> None:
    made = Heading.made("a\x1b[31m\u202eb\nc", "one\x07\r\ntwo\t3\u2028four\n", " Ada\x00 ")
    assert (made.title, made.note_lines, made.author) == ("a[31mb c", ["one", "two 3", "four"], "Ada")
    assert Heading.made(None, "", None) == Heading()


@pytest.fixture
def in_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    yield monkeypatch
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("zone", "minute", "span"),
    [
        ("UTC", "2025-11-15 07:00 UTC", "2025-11-15 07:00 to 07:20 UTC"),
        ("CET-1", "2025-11-15 08:00 CET", "2025-11-15 08:00 to 08:20 CET"),
        ("<+04>-4", "2025-11-15 11:00 UTC+04:00", "2025-11-15 11:00 to 11:20 UTC+04:00"),
        ("XXX+7:10", "2025-11-14 23:50 XXX", "2025-11-14 23:50 to 2025-11-15 00:10 XXX"),
    ],
)
def test_times_are_local_and_name_their_zone(in_zone: pytest.MonkeyPatch, zone: str, minute: str, span: str) -> None:
    in_zone.setenv("TZ", zone)
    time.tzset()
    assert say_minute(sample.T0) == minute
    assert say_span(sample.T0, sample.T0 + 1200) == span
    assert say_span(sample.T0, sample.T0 + 20) == minute


def test_a_number_that_is_no_date_has_no_zone() -> None:
    assert (say_zone(1e20), say_minute(1e20)) == ("", f"{1e20:.6g} s after 1970")
