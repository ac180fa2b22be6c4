"""What the doctor prints: diagnostics by nodes, advice once, and nothing that a terminal would take for a command."""

import io
from xml.etree import ElementTree

from rich.console import Console
from rich.text import Text

from asking import ESC
from naming import missing
from stackmark.cluster.doctor.results import DIAGNOSTICS, Finding, Report, Result, judged, skipped, warning
from stackmark.show.doctor import junit_cases, print_doctor, sentence
from stackmark.show.junit import render_junit

NO_DRIVER = Finding("no-driver", "failed", "no driver", ("on the node:", "$ sudo apt-get install -y nvidia-open"))


def of_node(name: str, bad: bool = False, evidence: str = "seen") -> list[Result]:
    made = [judged(diagnostic, name, evidence, "kubectl get nodes") for diagnostic in DIAGNOSTICS[2:]]
    if bad:
        made[2] = judged("driver", name, "modules: none", "nvidia-smi", [NO_DRIVER])
        made[3] = skipped("runtime", name, "the driver's diagnostic failed")
    return made


def report(*results: Result, nodes: tuple[str, ...]) -> Report:
    ours = (
        judged("api", None, "Kubernetes v1.34.4", "kubectl version"),
        judged("permissions", None, "13 of 13", "kubectl auth can-i --list"),
    )
    return Report("test", "https://10.0.0.1", "v1.34.4", "default", nodes, (*ours, *results))


def many(count: int = 40, bad: tuple[int, ...] = (7, 30)) -> Report:
    nodes = tuple(f"gpu-{number}" for number in range(count))
    return report(*(one for i, name in enumerate(nodes) for one in of_node(name, i in bad)), nodes=nodes)


def printed(shown: Report, width: int | None = None) -> str:
    out = io.StringIO()
    terminal = width is not None
    print_doctor(
        shown,
        Console(
            file=out,
            width=width or 80,
            force_terminal=terminal,
            color_system="standard" if terminal else None,
            legacy_windows=False,
        ),
    )
    return out.getvalue()


def test_nodes_that_fared_alike_share_a_column() -> None:
    head, *rows = printed(many()).split("\n\n")[1].splitlines()
    assert head.split() == ["diagnostic", "cluster", "gpu-0", "+37", "gpu-7", "+1"]
    driver = next(row for row in rows if row.startswith("driver"))
    assert driver.split() == ["driver", "ok", "FAILED"]
    assert len(rows) == len(DIAGNOSTICS)


def test_advice_that_holds_for_several_nodes_is_given_once_with_their_names() -> None:
    text = printed(many())
    assert text.count("nvidia-open") == 1
    assert [line.split() for line in text.splitlines() if line.startswith("failed")] == [
        ["failed", "driver,", "gpu-7,", "gpu-30:", "no", "driver"]
    ]
    assert any(line.endswith("nvidia-smi") for line in text.splitlines())


def test_the_verdict_is_the_first_line_and_again_the_last_where_a_screen_does_not_hold_it() -> None:
    first, *_, last = printed(many()).splitlines()
    assert first == last == sentence(many())
    short = printed(report(*of_node("gpu-0"), nodes=("gpu-0",))).splitlines()
    assert short.count(short[0]) == 1
    assert missing(last, "test", "driver", "gpu-7", "gpu-30") == []
    assert missing(sentence(many(2, (0, 1))), "driver", "all 2") == []
    assert missing(sentence(many(3, ())), "driver") == ["driver"]


def test_warnings_are_counted_once_and_what_is_not_known_is_said() -> None:
    odd = [judged("nodes", name, "Ready", "", [warning("taint", "our pods do not tolerate it")]) for name in ("a", "b")]
    open_one = Result("pci", "unknown", "nobody looked", "lspci", "a")
    said = sentence(report(*odd, open_one, nodes=("a", "b")))
    assert (missing(said, "1 warning", "pci"), missing(said, "nodes")) == ([], ["nodes"])


def test_one_node_needs_no_table_of_nodes() -> None:
    text = printed(report(*of_node("gpu-0"), nodes=("gpu-0",)))
    assert text.splitlines()[2].split()[:3] == ["diagnostic", "where", "result"]
    assert "+" not in text.splitlines()[2]


def test_on_a_narrow_screen_columns_are_left_out_and_counted() -> None:
    nodes = tuple(f"ip-10-0-{number}-17.eu-central-1.compute.internal" for number in range(9))
    shown = report(
        *(one for i, name in enumerate(nodes) for one in of_node(name, bad=bool(i % 2), evidence="x")), nodes=nodes
    )
    text = printed(shown, width=40)
    header, left_out = text.splitlines()[2], next(line for line in text.splitlines() if "--json" in line)
    assert "compute.internal" not in header
    assert left_out


def test_foreign_text_cannot_move_the_cursor() -> None:
    hostile = judged("pod", "a", f"{ESC}[2Jgone", "", [warning("x", f"{ESC}]0;title\x07")])
    text = printed(report(hostile, nodes=("a",)))
    assert ESC not in text
    assert "\\x1b[2Jgone" in text


def test_junit_has_a_case_for_each_diagnostic_and_node() -> None:
    shown = many(2, (1,))
    suite = ElementTree.fromstring(render_junit("doctor", junit_cases(shown))).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (str(2 + 2 * 8), "1", "1")
    (failed,) = [case for case in suite if case.find("failure") is not None]
    assert failed.get("name") == "gpu-1: driver"
    assert "nvidia-open" in str(failed.findtext("system-out"))


def test_on_a_screen_sentences_wrap_between_words_and_commands_stay_whole() -> None:
    long = Finding("no-driver", "failed", "the driver is absent " * 8, ("do this " * 20, f"$ {'sudo ' * 30}reboot"))
    shown = printed(report(judged("driver", "gpu-0", "seen", "nvidia-smi", [long]), nodes=("gpu-0",)), 80)
    lines = Text.from_ansi(shown).plain.splitlines()
    command = next(line for line in lines if "$ sudo" in line)
    assert command.endswith("reboot")
    assert all(len(line) <= 80 for line in lines if line != command)
