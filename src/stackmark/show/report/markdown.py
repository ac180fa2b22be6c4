"""The report as Markdown, for a pull request or a ticket: the verdict, the arms, what differs, the command.

GitHub's tables are the common ground. Text from outside is written so that it stays text: no table is broken by a bar, no
markup by a star, and nobody is notified by an @ (a character without width follows it; a backslash does not help there).
"""

import re
from collections.abc import Sequence

from stackmark.figures import figure_unit
from stackmark.show.answer import answers, beware, is_interference, say_with_counts, title_of, what_to_do
from stackmark.show.report.heading import NO_HEADING, Heading
from stackmark.show.report.operators import published_notes, table_of
from stackmark.show.report.telemetry import DRAWN_OF_GPU, DRAWN_OF_HOST, sampled_rows, waits
from stackmark.show.safe import safe_line
from stackmark.show.scaling import point_lines, scaling_lines
from stackmark.show.sections import Headline, Sections
from stackmark.show.serving import compared_lines
from stackmark.show.wording import letter, say_change, say_counts, say_interval, say_ratio, sentence, stopped
from stackmark.units import counted, say_seconds
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import Examined
from stackmark.verdict.needed import percent

# Rows of differences in a comment that people read; the page has all of them.
MOST_DIFFERENCES = 10
MOST_PROBLEMS = 40

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
    return unlinked(written)


def unlinked(written: str) -> str:
    """Return text in which nothing notifies anybody or becomes a link."""
    return _LINKS.sub(_NO_WIDTH, _NOTIFIES.sub(rf"\g<0>{_NO_WIDTH}", written))


def fenced(content: str) -> str:
    """A block of code, with a fence longer than any inside it."""
    longest = max((len(found) for found in re.findall("`+", content)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}console\n{safe_line(content)}\n{fence}"


def render_markdown(examined: Examined, heading: Heading = NO_HEADING) -> str:
    sections = Sections(examined)
    parts = [*heading_parts(heading.title or title_of(examined), heading, level=3), *experiment_parts(sections)]
    return "\n\n".join(part for part in parts if part) + "\n"


def heading_parts(title: str, heading: Heading, *, level: int) -> list[str]:
    """Return the title, the author and the note."""
    author = f"By {plain(heading.author)}" if heading.author else ""
    return [f"{'#' * level} {plain(title)}", author, "  \n".join(map(plain, heading.note_lines))]


def experiment_parts(sections: Sections) -> list[str]:
    """Return everything about one experiment, without its title; a part may be empty."""
    examined = sections.examined
    return [
        *_verdicts(sections),
        f"**What to do:** {prose(what_to_do(sections))}",
        items("**Beware:**", [stopped(one.text) for one in beware(sections)]),
        f"**Scope:** {plain(examined.scope)}" if examined.scope else "",
        items("Bad runs:", sections.bad_run_shares),
        _arms(sections),
        items("Scaling:", [f"{name}: {said}" for name, said in [*point_lines(scaling), *scaling_lines(scaling)]])
        if (scaling := examined.scaling)
        else "",
        items("Quality:", [f"{name}: {said}" for name, said in sections.quality]),
        items("Latency by percentile:", [f"{name}: {said}" for name, said in compared_lines(examined)]),
        _problems(sections),
        plain(sections.setup_difference),
        _limits(sections),
        _differences(sections),
        items("What moved with the ratio:", examined.associations),
        _failures(sections),
        _sampled(sections),
        items("Not held equal:", examined.not_held),
        "To repeat it:",
        fenced(examined.repeat),
        _last_line(sections),
    ]


def prose(content: str) -> str:
    """Text in which what stands between two backticks is to be typed."""
    pieces = content.split("`")
    if len(pieces) % 2 == 0:
        return plain(content)
    return "".join(_code(piece) if index % 2 else inline(piece) for index, piece in enumerate(pieces))


def inline(content: str) -> str:
    """Text within a line: its spaces stay, and a number with a full stop does not start a list."""
    return plain(f"·{content}·")[1:-1]


def _code(content: str) -> str:
    """Inline code; it holds no backtick, and nothing in it is markup but `<`, which GitHub shows as it is."""
    return f"`{safe_line(content)}`"


def _verdicts(sections: Sections) -> list[str]:
    examined = sections.examined
    state = f"**Not finished:** {plain(sentence(examined.state_sentence))}" if examined.state == "open" else ""
    told = answers(sections)
    if not examined.comparisons:
        first = sections.headlines[0]
        return [state, f"**{first.sign} {first.word}** {' '.join(plain(stopped(said)) for said in told)}"]
    if sections.is_summed_up:
        told = [say_with_counts(one, figure_unit(examined.arms[0].unit)) for one in examined.comparisons]
    precise = map(sections.sentence, examined.comparisons)
    return [state, *map(_verdict, sections.headlines, examined.comparisons, told, precise)]


def _verdict(head: Headline, comparison: Comparison, answer: str, precise: str) -> str:
    lines = [
        f"**{head.sign} {head.word}** {plain(stopped(answer))}",
        f"{plain(comparison.b)} / {plain(comparison.a)} = **{say_ratio(comparison.ratio)}** ({say_change(comparison.ratio)}); "
        f"90 % interval {say_interval(comparison.interval_90)}, 95 % interval {say_interval(comparison.interval_95)}, "
        f"margin {'' if comparison.terms == 'efficiency' else '± '}{percent(comparison.margin)}, {say_counts(comparison)}.",
        plain(stopped(precise)),
    ]
    if comparison.needed:
        lines.append(f"To decide it: {inline(comparison.needed.sentence)}")
    return "  \n".join([*lines, *(plain(note) for note in comparison.notes if not is_interference(note))])


def table(head: Sequence[str], numeric: Sequence[bool], rows: Sequence[Sequence[str]]) -> str:
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
    return table(head, [False, True, True, True, True, False, False], rows)


def _figure(said: str) -> str:
    """Escape the unit, which a program may have named, and leave the number as it is: nobody copies `3\\.5`."""
    number, _, unit = said.partition(" ")
    return f"{number} {plain(unit)}".rstrip()


def _problems(sections: Sections) -> str:
    """The problems of an operator list; in a comment that people read, the first of them."""
    examined = sections.examined
    if not examined.operators:
        return ""
    head, rows = table_of(examined, examined.operators[:MOST_PROBLEMS])
    cells = [[_two(*cell) for cell in row] for row in rows]
    more = len(examined.operators) - MOST_PROBLEMS
    after = [f"{counted(more, 'more problem')} in the HTML report."] if more > 0 else []
    after += [plain(said) for said in published_notes(examined.operators)]
    made = table([plain(name) for name, _ in head], [numeric for _, numeric in head], cells)
    return "\n\n".join([made, *after])


def _two(said: str, small: str) -> str:
    return f"{inline(said)} ({inline(small)})" if small else inline(said)


def _limits(sections: Sections) -> str:
    said = [f"{letter(arm.index)}: {' '.join(sentences)}" for arm, sentences in sections.limits]
    return items("Against the limits of the machine:", said)


def _differences(sections: Sections) -> str:
    found, arms = sections.differences, sections.examined.arms
    if len(arms) < 2 or not found:
        return ""
    rows = []
    for row in found[:MOST_DIFFERENCES]:
        one = row.fact
        values = [inline(value.strip()) if value is not None else "–" for value in row.values]
        why = f"**effect seen:** {plain(one.why)}" if one.shows_effect else plain(one.why)
        rows.append([f"{plain(one.subject)}: {plain(one.key)}", *values, why])
    head = ["what differs", *(letter(arm.index) for arm in arms), "why it may matter"]
    more = len(found) - MOST_DIFFERENCES
    after = f"\n\n{counted(more, 'more difference')} in the HTML report." if more > 0 else ""
    return table(head, [False] * len(head), rows) + after


def _failures(sections: Sections) -> str:
    said = []
    for one in sections.failures:
        block = f", block {one.run.block + 1}" if one.run.block is not None else ""
        said.append(f"{letter(one.run.arm)}{block}: {one.kind}: {one.message}")
    return items("Runs that failed, and are in no number:", said)


def _sampled(sections: Sections) -> str:
    """What the machine did while it ran: of what the page draws, the numbers."""
    examined = sections.examined
    drawn = {*(f"gpu.{name}" for name in DRAWN_OF_GPU), *DRAWN_OF_HOST}
    rows = [
        [plain(row.words), *("–" if cell is None else f"{inline(cell[0])} ({inline(cell[1])})" for cell in row.cells)]
        for row in sampled_rows(examined)
        if row.name in drawn
    ]
    if not rows:
        return ""
    head = ["while it ran: mean (lowest to highest sample)", *(f"**{letter(arm.index)}**" for arm in examined.arms)]
    made = table(head, [False, *(True for _ in examined.arms)], rows)
    return "\n\n".join(part for part in (items("While it ran:", waits(examined)), made) if part)


def items(title: str, said: Sequence[str]) -> str:
    """A list under its title; nothing where it is empty."""
    return "\n".join([title, "", *(f"- {plain(item)}" for item in said)]) if said else ""


def _last_line(sections: Sections) -> str:
    examined = sections.examined
    order = f" Order {sections.order}, seed {examined.seed}." if examined.order else ""
    return f"<sub>Experiment {plain(examined.experiment_id)}.{order} {plain(sections.rules)}</sub>"
