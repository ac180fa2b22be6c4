"""What a check is made of: which sittings are now, what a stack is, and how it is shown."""

import json
from io import StringIO
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from stackmark.events import gathered_facts
from stackmark.lab.judging import read_stored
from stackmark.show.check import CheckLine, print_check
from stackmark.verdict.examined import FactDifference
from stackmark.verdict.lately import still_now
from stackmark.verdict.sittings import compare_sittings
from stackmark.verdict.stack import stack_changes

RECORDED = Path(__file__).parent / "data" / "h200_gpt2.jsonl"
BEFORE = (0.0, 0.002, -0.002, 0.001)


def test_the_latest_sittings_count_back_to_where_the_rate_changed() -> None:
    assert still_now(BEFORE, (0.0, 0.001, -0.001), 0.01) == 3
    assert still_now(BEFORE, (0.0, 0.001, -0.1), 0.01) == 1
    assert still_now(BEFORE, (0.0, -0.1, -0.101), 0.01) == 2
    # A night in between that was slow ends the side, though those before it were like tonight's.
    assert still_now(BEFORE, (0.0, -0.1, 0.001), 0.01) == 1
    assert still_now(BEFORE, (0.5,), 0.01) == 1


def test_a_change_within_the_margin_or_within_the_spread_of_sittings_is_none() -> None:
    assert still_now(BEFORE, (0.0, -0.04), 0.05) == 2
    assert still_now((0.0, 0.1, -0.1, 0.05), (0.0, -0.1), 0.01) == 2


def test_with_two_sittings_before_their_spread_is_not_known_and_all_count() -> None:
    assert still_now((0.0, 0.001), (0.0, 0.0, -1.0), 0.01) == 3


def test_a_side_is_cut_wrongly_about_once_in_a_hundred_sittings() -> None:
    """By simulation, where the truth is known: nothing changed, six sittings before, two now."""
    random = np.random.default_rng(20261115)
    draws = random.normal(0.0, 0.02, (4000, 8))
    wrong = sum(1 for one in draws if still_now(one[:6].tolist(), one[6:].tolist(), 1e-6) == 1)
    # 1 %, and three standard errors of 4,000 draws.
    assert wrong / 4000 == pytest.approx(0.01, abs=3 * (0.01 * 0.99 / 4000) ** 0.5)


GPU = {"driver": "570.86", "devices": [{"vbios": "96.00", "ecc": True, "power_limit_w": 700.0}]}


def test_a_stack_is_driver_firmware_kernel_and_versions() -> None:
    before: Any = {"gpu": GPU, "host": {"kernel": "6.1", "load_1m": 3.0}, "software": {"torch": "2.11", "cudnn": 91900}}
    after: Any = {
        "gpu": {"driver": "580.95", "devices": [{"vbios": "97.00", "ecc": True, "power_limit_w": 600.0}]},
        "host": {"kernel": "6.2", "load_1m": 1.0},
        "software": {"torch": "2.13", "cudnn": 92000, "triton": "3.4"},
    }
    assert [str(one) for one in stack_changes(before, after)] == [
        "NVIDIA driver 570.86 → 580.95",
        "GPU firmware 96.00 → 97.00",
        "GPU power limit 700 W → 600 W",
        "kernel 6.1 → 6.2",
        "PyTorch 2.11 → 2.13",
        "cuDNN 9.19.0 → 9.20.0",
        "Triton none → 3.4",
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


def line(label: str, ratio: float, **more: Any) -> CheckLine:
    before = [[log(12_345.6)], [log(12_346.0)], [log(12_344.0)]]
    seen = compare_sittings("before-driver-580", "now", before, [[one[0] + log(ratio)] for one in before], 0.01)
    return CheckLine(label, "images/s", 12_345.6, 12_345.6 * ratio, seen, (3, 3), **more)


def printed(
    lines: list[CheckLine], width: int | None = None, changed: tuple[str, ...] = ("kernel 6.1 → 6.2",)
) -> list[str]:
    out = StringIO()
    screen = {"force_terminal": True, "width": width, "color_system": None} if width else {}
    console = Console(file=out, highlight=False, emoji=False, _environ={"TERM": "xterm"}, **screen)  # type: ignore[arg-type]
    print_check(lines, changed, console, "stackmark check before-driver-580")
    return [text.rstrip() for text in out.getvalue().splitlines()]


def test_on_a_screen_of_100_columns_each_workload_is_one_line() -> None:
    lines = [line("train/resnet50_v1.5", 1.0), line("train/gpt2", 0.95), line("train/vgg16 on container", 1.05)]
    shown = printed(lines, width=100)
    assert all(len(text) <= 100 for text in shown)
    words = {text.split()[0]: text.split()[-1] for text in shown if text.startswith("train/")}
    assert words == {"train/resnet50_v1.5": "EQUIVALENT", "train/gpt2": "SLOWER", "train/vgg16": "FASTER"}
    assert shown[0].split() == ["changed", "kernel", "6.1", "→", "6.2"]


def test_a_narrow_screen_keeps_the_ratio_and_the_verdict() -> None:
    shown = printed([line("train/gpt2", 0.95)], width=60)
    (row,) = (text for text in shown if text.startswith("train/gpt2"))
    assert "0.9500" in row
    assert row.endswith("SLOWER")


def test_what_else_differs_is_shown_only_beside_a_difference_and_three_of_it() -> None:
    differs = [FactDifference("cpu", f"key_{rank}", ("a", "b"), "why", 90 - rank) for rank in range(4)]
    differs.append(FactDifference("packages", "click", ("1", "2"), "not known to matter", 5))
    slower = printed([line("train/gpt2", 0.95, differs=differs)])
    assert [text.split()[1] for text in slower if text.startswith("differs")] == [
        "cpu.key_0:",
        "cpu.key_1:",
        "cpu.key_2:",
    ]
    assert not any(text.startswith("differs") for text in printed([line("train/gpt2", 1.0, differs=differs)]))


def test_a_sentence_about_all_workloads_is_said_once_and_about_one_with_its_name() -> None:
    shown = printed([line("train/a", 1.0, doubts=["common"]), line("train/b", 1.0, doubts=["common", "its own"])])
    notes = [text.removeprefix("note").strip() for text in shown if text.startswith("note")]
    assert notes == ["common", "train/b: its own"]


def test_hostile_text_reaches_no_terminal() -> None:
    bad = CheckLine(
        "train/x\x1b[2J", "u", 1.0, None, None, (1, 0), trouble="\x1b]0;title\x07 a\nb", hint="\x9b", failed=True
    )
    for shown in (printed([bad], 100, ("\x1b[31mred",)), printed([bad], None, ("\x1b[31mred",))):
        text = "\n".join(shown)
        assert "\x1b[2J" not in text
        assert "\x1b]0" not in text
        assert "\x9b" not in text
        assert "\x1b[31mred" not in text
