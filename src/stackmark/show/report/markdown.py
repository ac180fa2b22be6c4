"""The report as Markdown, for a pull request or a ticket: the verdict, the arms, what differs, the command.

GitHub's tables are the common ground. Text from outside is written so that it stays text: no table is broken by a bar, no
markup by a star, and nobody is notified by an @ (a character without width follows it; a backslash does not help there).
"""

import re
from collections.abc import Sequence

from stackmark.show.safe import safe_line
from stackmark.show.sections import Headline, Sections
from stackmark.show.wording import letter, say_change, say_counts, say_interval, say_ratio, sentence
from stackmark.units import counted, say_seconds
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import Examined
from stackmark.verdict.needed import percent

# Rows of differences in a comment that people read; the page has all of them.
MOST_DIFFERENCES = 10

_SPECIAL = re.compile(r"([\\`*_\[\]|~$])")
# A list, a headline or a rule, where a line begins with it.
_AT_LINE_START = re.compile(r"^(\d*)([-+#=.)])")
_NOTIFIES = re.compile(r"@(?=\w)|#(?=\d)|\bGH-(?=\d)")
_LINKS = re.compile(r"(?<=:)(?=//)|(?<=\bwww)(?=\.)")
_NO_WIDTH = "\u200b"


def plain(content: str) -> str:
    """Text from anywhere, so that Markdown shows it as it is, on one line, in a table too."""
    written = safe_line(content).replace("\t", " ").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    written = _SPECIAL.sub(r"\\\1", written.strip())
    written = _AT_LINE_START.sub(r"\1\\\2", written)
    return _LINKS.sub(_NO_WIDTH, _NOTIFIES.sub(rf"\g<0>{_NO_WIDTH}", written))


def fenced(content: str) -> str:
    """A block of code, with a fence longer than any inside it."""
    longest = max((len(found) for found in re.findall("`+", content)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}console\n{safe_line(content)}\n{fence}"


def render_markdown(examined: Examined) -> str:
    sections = Sections(examined)
    parts = [
        f"### {plain(examined.title or examined.workload)}",
        *_verdicts(sections),
        f"**Scope:** {plain(examined.scope)}" if examined.scope else "",
        _items("Bad runs:", sections.bad_run_shares),
        _items("**Beware:**", examined.warnings),
        _arms(sections),
        plain(sections.setup_difference),
        _limits(sections),
        _differences(sections),
        _items("What moved with the ratio:", examined.associations),
        _failures(sections),
        _items("Not held equal:", examined.not_held),
        "To repeat it:",
        fenced(examined.command),
        _last_line(sections),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdicts(sections: Sections) -> list[str]:
    examined = sections.examined
    state = f"**Not finished:** {plain(sentence(examined.state_sentence))}" if examined.state == "open" else ""
    if not examined.comparisons:
        return [state, *(f"**{head.word}** {plain(head.sentence)}" for head in sections.headlines)]
    return [state, *map(_verdict, sections.headlines, examined.comparisons)]


def _verdict(head: Headline, comparison: Comparison) -> str:
    lines = [
        f"**{head.sign} {head.word}** {plain(head.sentence)}",
        f"{plain(comparison.b)} / {plain(comparison.a)} = **{say_ratio(comparison.ratio)}** ({say_change(comparison.ratio)}); "
        f"90 % interval {say_interval(comparison.interval_90)}, 95 % interval {say_interval(comparison.interval_95)}, "
        f"margin ± {percent(comparison.margin)}, {say_counts(comparison)}.",
    ]
    if comparison.needed:
        lines.append(plain(comparison.needed.sentence))
    return "  \n".join([*lines, *map(plain, comparison.notes)])


def _table(head: Sequence[str], numeric: Sequence[bool], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---:" if right else "---" for right in numeric]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def _arms(sections: Sections) -> str:
    rows = []
    for one in sections.arms:
        step = sections.step(one.arm)
        rows.append(
            [
                f"**{letter(one.arm.index)}** {plain(one.arm.label)}",
                f"{_figure(one.figure)} {one.spread}".rstrip() if one.figure else "–",
                str(one.runs),
                f"{say_seconds(step.p50_s)} / {say_seconds(step.p99_s)}" if step else "–",
                one.setup or "–",
                plain(one.steadiness) or "–",
                plain(one.arm.chip or "–"),
            ]
        )
    head = [
        "arm",
        f"{sections.figure_name}, 95 % interval{sections.direction}",
        "runs",
        "step p50 / p99",
        "set-up",
        "steadiness",
        "chip",
    ]
    return _table(head, [False, True, True, True, True, False, False], rows)


def _figure(said: str) -> str:
    """Escape the unit, which a program may have named, and leave the number as it is: nobody copies `3\\.5`."""
    number, _, unit = said.partition(" ")
    return f"{number} {plain(unit)}".rstrip()


def _limits(sections: Sections) -> str:
    said = [f"{letter(arm.index)}: {' '.join(sentences)}" for arm, sentences in sections.limits]
    return _items("Against the limits of the machine:", said)


def _differences(sections: Sections) -> str:
    found, arms = sections.differences, sections.examined.arms
    if len(arms) < 2 or not found:
        return ""
    rows = []
    for row in found[:MOST_DIFFERENCES]:
        one = row.fact
        values = [plain(value) if value is not None else "–" for value in row.values]
        why = f"**effect seen:** {plain(one.why)}" if one.shows_effect else plain(one.why)
        rows.append([f"{plain(one.subject)}: {plain(one.key)}", *values, why])
    head = ["what differs", *(letter(arm.index) for arm in arms), "why it may matter"]
    more = len(found) - MOST_DIFFERENCES
    after = f"\n\n{counted(more, 'more difference')} in the HTML report." if more > 0 else ""
    return _table(head, [False] * len(head), rows) + after


def _failures(sections: Sections) -> str:
    said = []
    for one in sections.failures:
        block = f", block {one.run.block + 1}" if one.run.block is not None else ""
        said.append(f"{letter(one.run.arm)}{block}: {one.kind}: {one.message}")
    return _items("Runs that failed, and are in no number:", said)


def _items(title: str, items: Sequence[str]) -> str:
    return "\n".join([title, "", *(f"- {plain(item)}" for item in items)]) if items else ""


def _last_line(sections: Sections) -> str:
    examined = sections.examined
    order = f" Order {sections.order}, seed {examined.seed}." if examined.order else ""
    return f"<sub>Experiment {plain(examined.experiment_id)}.{order} {plain(sections.rules)}</sub>"
