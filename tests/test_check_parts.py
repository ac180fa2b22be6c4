"""What a check is made of: what the nights show, what a stack is, and how it is shown."""

import json
import re
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from stackmark.errors import Exit
from stackmark.events import gathered_facts
from stackmark.experiments.baseline import Trouble
from stackmark.experiments.check import Checked, Rate
from stackmark.experiments.judging import read_stored
from stackmark.show.check import print_check
from stackmark.verdict.examined import FactDifference
from stackmark.verdict.fact_values import StackChange, stack_changes
from stackmark.verdict.series import CUSUM_LIMIT, Nights, compare_series, cusum, judge_nights, part

RECORDED = Path(__file__).parent / "data" / "h200_gpt2.jsonl"
BEFORE = (100.35, 99.65, 100.10)
GOOD = (100.1, 99.9, 100.2, 99.8, 100.0, 100.15, 99.85, 100.05, 99.95, 100.1)


def judged(*nights: float, before: tuple[float, ...] = BEFORE) -> Nights:
    return judge_nights("before", [[log(rate)] for rate in before], [[log(rate)] for rate in nights], 0.01)


def test_a_drop_of_two_percent_is_not_hidden_by_ten_good_nights() -> None:
    tonight = judged(*GOOD, 98.0)
    assert (tonight.tonight.word, tonight.left_out, tonight.lately) == ("SLOWER", 10, None)
    assert tonight.tonight.ratio == pytest.approx(98.0 / np.exp(np.log(BEFORE).mean()))
    # The night after, both together are a second, more certain answer.
    after = judged(*GOOD, 98.0, 98.1)
    assert after.tonight.word == "SLOWER"
    assert after.lately is not None
    assert (after.lately.word, after.lately.count_b, after.left_out) == ("SLOWER", 2, 10)
    assert after.lately.interval_90
    assert after.tonight.interval_90
    assert after.lately.interval_90.high < after.tonight.interval_90.high


def test_good_nights_are_equivalent_alone_and_together() -> None:
    found = judged(*GOOD)
    assert found.lately is not None
    assert (found.tonight.word, found.lately.word, found.lately.count_b) == ("EQUIVALENT", "EQUIVALENT", 10)
    assert (found.left_out, found.alarm.rings) == (0, False)


def test_the_spread_is_pooled_over_the_baseline_and_the_parts() -> None:
    found = part(np.log(BEFORE), np.log((*GOOD, 98.0, 98.1)))
    parts = [np.log(BEFORE), np.log(GOOD), np.log((98.0, 98.1))]
    squares = sum(((one - one.mean()) ** 2).sum() for one in parts)
    assert (found.latest, found.df) == (2, 2 + 9 + 1)
    assert found.sd == pytest.approx((squares / 12) ** 0.5)


def test_nights_are_parted_wrongly_in_five_percent_at_most() -> None:
    """By simulation, where the truth is known: nothing changed, three series before, six nights."""
    draws = np.random.default_rng(20261115).normal(0.0, 0.02, (1500, 9))
    wrong = np.mean([part(one[:3], one[3:]).latest < 6 for one in draws])
    assert wrong <= 0.05 + 3 * (0.05 * 0.95 / 1500) ** 0.5


def test_an_alarm_is_two_slow_nights_in_a_row() -> None:
    assert not judged(*GOOD, 98.0).alarm.two_in_a_row
    assert judged(*GOOD, 98.0, 98.1).alarm.two_in_a_row
    assert not judged(*GOOD, 98.0, 100.0).alarm.two_in_a_row


def test_small_drops_add_up_to_an_alarm() -> None:
    found = judged(*GOOD[:5], 99.6, 99.6, 99.5, 99.6, 99.5, 99.6)
    assert found.tonight.word != "SLOWER"
    assert found.alarm.cusum is not None
    assert found.alarm.cusum >= CUSUM_LIMIT
    assert "200 nights" in found.alarm.sentence


def test_a_machine_that_does_not_change_rings_once_in_two_hundred_nights() -> None:
    rng = np.random.default_rng(5)
    before, nights = rng.standard_normal((500, 3)), rng.standard_normal((500, 110))
    rings = [cusum(before, nights[:, max(0, end - 11) : end]) >= CUSUM_LIMIT for end in range(1, 111)]
    new = sum(int((now & ~then).sum()) for then, now in pairwise([np.zeros(500, dtype=bool), *rings]))
    assert 150 < 500 * 110 / new < 300


def test_with_two_series_before_only_a_large_drop_is_likely() -> None:
    assert judged(*GOOD, 98.0, before=BEFORE[:2]).tonight.word == "INCONCLUSIVE"
    found = judged(80.0, 80.1, before=BEFORE[:1])
    assert (found.tonight.word, found.alarm.two_in_a_row, found.alarm.cusum) == ("LIKELY SLOWER", True, None)
    assert found.lately is not None
    assert found.lately.word == "LIKELY SLOWER"


GPU = {"driver": "570.86", "devices": [{"vbios": "96.00", "ecc": True, "power_limit_w": 700.0}]}


def test_a_stack_is_driver_firmware_kernel_and_versions() -> None:
    before: Any = {"gpu": GPU, "host": {"kernel": "6.1", "load_1m": 3.0}, "software": {"torch": "2.11", "cudnn": 91900}}
    after: Any = {
        "gpu": {"driver": "580.95", "devices": [{"vbios": "97.00", "ecc": True, "power_limit_w": 600.0}]},
        "host": {"kernel": "6.2", "load_1m": 1.0},
        "software": {"torch": "2.13", "cudnn": 92000, "triton": "3.4"},
    }
    assert [(one.what.split()[-1], one.before, one.after) for one in stack_changes(before, after)] == [
        ("driver", "570.86", "580.95"),
        ("firmware", "96.00", "97.00"),
        ("limit", "700 W", "600 W"),
        ("kernel", "6.1", "6.2"),
        ("PyTorch", "2.11", "2.13"),
        ("cuDNN", "9.19.0", "9.20.0"),
        ("Triton", "none", "3.4"),
    ]
    assert stack_changes(before, before) == ()


def test_a_recorded_run_of_an_h200_has_a_stack() -> None:
    events = read_stored(RECORDED.read_text().splitlines()).stream.events
    facts = gathered_facts(events)
    upgraded = json.loads(json.dumps(facts))
    upgraded["gpu"]["driver"] = "999.99"
    upgraded["gpu"]["devices"][0]["vbios"] = "FF.00"
    upgraded["host"]["kernel"] = "9.9"
    upgraded["software"]["torch"] = "9.9"
    upgraded["software"]["nccl"] = "9.9"
    named = [change.what for change in stack_changes(facts, upgraded)]
    assert named == ["NVIDIA driver", "GPU firmware", "kernel", "PyTorch", "NCCL"]
    assert all(change.before not in ("none", "unknown") for change in stack_changes(facts, upgraded))


def test_what_one_side_could_not_see_did_not_change() -> None:
    seen: Any = {"gpu": GPU, "host": {"kernel": "6.1"}}
    assert stack_changes(seen, {"gpu": {"driver": None, "devices": []}, "host": {"kernel": "6.1"}}) == ()
    assert stack_changes(seen, {}) == ()
    broken: Any = {"gpu": {"driver": "570.86", "devices": "none"}, "host": {"kernel": "6.1"}}
    assert stack_changes(seen, broken) == ()


def test_the_image_of_the_hosts_own_software_is_made_anew_and_says_nothing() -> None:
    def container(software: str, digest: str) -> Any:
        return {"container": {"software": software, "image_digest": digest}}

    assert stack_changes(container("host", "sha256:1"), container("host", "sha256:2")) == ()
    assert len(stack_changes(container("image", "sha256:1"), container("image", "sha256:2"))) == 1


def checked(label: str, before: float, now: float | None, **more: Any) -> Checked:
    rates = {"before": Rate(before, 3, 9), "now": Rate(now, 1, 3) if now else None}
    change = (StackChange("kernel", "6.1", "6.2"),)
    return Checked(label, label, "host", "images/s", 1.0, **{**rates, "stack_changed": change, **more})


def line(label: str, ratio: float, **more: Any) -> Checked:
    before = [[log(12_345.6)], [log(12_346.0)], [log(12_344.0)]]
    seen = compare_series("before-driver-580", "now", before, [[one[0] + log(ratio)] for one in before], 0.01)
    return checked(label, 12_345.6, 12_345.6 * ratio, comparison=seen, **more)


def printed(lines: list[Checked], width: int | None = None) -> list[str]:
    out = StringIO()
    screen = {"force_terminal": True, "width": width, "color_system": None} if width else {}
    console = Console(file=out, highlight=False, emoji=False, _environ={"TERM": "xterm"}, **screen)  # type: ignore[arg-type]
    print_check(lines, console, "stackmark check before-driver-580")
    return [text.rstrip() for text in out.getvalue().splitlines()]


def test_on_a_screen_of_100_columns_each_workload_is_one_line() -> None:
    lines = [line("train/resnet50_v1.5", 1.0), line("train/gpt2", 0.95), line("train/vgg16 on container", 1.05)]
    shown = printed(lines, width=100)
    assert all(len(text) <= 100 for text in shown)
    words = {text.split()[0]: text.split()[-1] for text in shown if text.startswith("train/")}
    assert words == {"train/resnet50_v1.5": "EQUIVALENT", "train/gpt2": "SLOWER", "train/vgg16": "FASTER"}
    assert ["changed", "kernel", "6.1", "→", "6.2"] in [text.split() for text in shown]


@pytest.mark.parametrize("label", ["train/gpt2", "train/a_network_with_a_very_long_name batch=32 on container"])
def test_a_narrow_screen_keeps_the_change_its_interval_and_the_verdict(label: str) -> None:
    shown = printed([line(label, 0.95)], width=60)
    assert all(len(text) <= 60 for text in shown)
    (row,) = (text for text in shown if text.startswith("train/"))
    assert re.search(r"−5\.\d+ %  −5\.\d+ to −4\.\d+ %  SLOWER$", row)


def test_the_verdict_of_the_whole_check_is_the_first_and_the_last_line() -> None:
    slow = compare_series("before", "now", [[log(100.0), log(100.1)]], [[log(40.0), log(40.1)]], 0.01)
    likely = checked("train/resnet20", 100.0, 40.0, comparison=slow)
    shown = printed([line("train/gpt2", 1.0), likely, line("train/vgg16", 1.05)])
    assert shown[0] == shown[-1]
    assert re.fullmatch(
        r"verdict +1 of 3 workloads LIKELY SLOWER: train/resnet20 −60\.0 %; 1 FASTER: train/vgg16 \+5\.0 %; 1 EQUIVALENT",
        shown[0],
    )
    failed = checked("train/x", 1.0, None, trouble=Trouble("it is gone", "", Exit.PLACE_FAILED))
    assert printed([failed])[-1].split() == ["verdict", "FAILED:", "train/x"]


def test_what_only_the_earlier_checks_together_show_is_in_the_verdict_too() -> None:
    """By this the exit code is 8."""
    slower = judged(*GOOD, 98.0, 98.1).lately
    one = line("train/gpt2", 1.0, lately=Rate(98.05, 2, 6), lately_comparison=slower)
    assert "SLOWER with" in printed([one])[-1]


def test_a_time_that_grows_is_said_by_its_own_change() -> None:
    """The ratio of rates is 0.5: twice the time."""
    slow = compare_series("before", "now", [[log(5.0), log(5.01)]], [[log(2.5), log(2.51)]], 0.01)
    one = replace(checked("command/own", 5.0, 2.5, comparison=slow), unit="1/s")
    shown = printed([one])
    assert "LIKELY SLOWER: command/own +99.8 %" in shown[-1]
    (row,) = (text for text in shown if text.startswith("command/own"))
    assert "0.400 s" in row


def test_what_else_differs_is_shown_only_beside_a_difference_and_three_of_it() -> None:
    differs = [FactDifference("cpu", f"key_{rank}", ("a", "b"), "why", 90 - rank) for rank in range(4)]
    differs.append(FactDifference("packages", "click", ("1", "2"), "not known to matter", 5))
    slower = printed([line("train/gpt2", 0.95, changed=tuple(differs))])
    assert [text.split()[1] for text in slower if text.startswith("differs")] == [
        "cpu.key_0:",
        "cpu.key_1:",
        "cpu.key_2:",
    ]
    assert not any(text.startswith("differs") for text in printed([line("train/gpt2", 1.0, changed=tuple(differs))]))


def test_a_sentence_about_all_workloads_is_said_once_and_about_one_with_its_name() -> None:
    shown = printed([line("train/a", 1.0, doubts=("common",)), line("train/b", 1.0, doubts=("common", "its own"))])
    notes = [text.removeprefix("note").strip() for text in shown if text.startswith("note")]
    assert notes == ["common", "train/b: its own"]


def test_hostile_text_reaches_no_terminal() -> None:
    trouble = Trouble("\x1b]0;title\x07 a\nb", "\x9b", Exit.RUN_FAILED)
    red = (StackChange("\x1b[31mred", "", ""),)
    bad = checked("train/x\x1b[2J", 1.0, None, trouble=trouble)
    seen = line("train/gpt2", 1.0, stack_changed=red)
    for shown in (printed([bad, seen], 100), printed([bad, seen])):
        text = "\n".join(shown)
        assert "\x1b[2J" not in text
        assert "\x1b]0" not in text
        assert "\x9b" not in text
        assert "\x1b[31mred" not in text


def test_earlier_checks_are_a_second_line_and_an_alarm_is_said() -> None:
    found = judged(*GOOD, 98.0, 98.1)
    one = checked(
        "train/gpt2", 100.0, 98.1, comparison=found.tonight, lately=Rate(98.05, 2, 6), lately_comparison=found.lately,
        alarm=found.alarm,
    )  # fmt: skip
    shown = printed([one])
    rows = [text for text in shown if text.endswith("SLOWER")]
    assert rows[0].startswith("train/gpt2")
    assert "98.10 images/s" in rows[0]
    assert re.search(r"\b1 \w+ 3\b", rows[0])
    assert rows[1].startswith("  ")
    assert re.search(r"\b2 \w+ 3\b", rows[1])
    assert any(text.startswith("alarm ") for text in shown)
