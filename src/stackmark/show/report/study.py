"""Several experiments in one report: a table of contents with the answer of each, then each experiment whole.

Each is laid out as in a report of its own. In one page its anchors get a prefix of its own and its headings go one level down.
"""

from collections.abc import Sequence

from stackmark.show.answer import answers, arms_in_title, chips_of, title_of, what_of
from stackmark.show.report.heading import NO_HEADING, Heading
from stackmark.show.report.html import experiment, footer, head, nested, page
from stackmark.show.report.markdown import experiment_parts, heading_parts, plain
from stackmark.show.report.markup import Markup, element, text
from stackmark.show.report.tables import Cell, Row, prose, table
from stackmark.show.sections import Sections
from stackmark.show.wording import stopped
from stackmark.units import counted, say_span
from stackmark.verdict.examined import Examined

# What a title says of the parameters; all of them stand below.
PARAMETERS_IN_TITLE, LONGEST_PARAMETER = 3, 60


def study_title(found: Sequence[Examined]) -> str:
    """Return what all experiments have in common: the arms, the workload, the chip; and how many there are."""
    about = counted(len(found), "experiment")
    questions = {arms_in_title(one.arms) if len(one.arms) > 1 else "" for one in found}
    works = {what_of(one) for one in found}
    chips = {tuple(chips_of(one)) for one in found}
    if len(works) == 1:
        about = f"{about} of {works.pop()}"
    if len(chips) == 1 and (named := chips.pop()):
        about = f"{about} on {' and '.join(named)}"
    question = questions.pop() if len(questions) == 1 else ""
    return f"{question}: {about}" if question else about


def titles_of(found: Sequence[Examined]) -> list[str]:
    """Return a title for each. Where several have the same one, as the rows of a suite, the parameters that differ are added."""
    titles = [title_of(one) for one in found]
    return [
        ", ".join(
            [title, *_differing(one, [other for other, same in zip(found, titles, strict=True) if same == title])]
        )
        for title, one in zip(titles, found, strict=True)
    ]


def _differing(one: Examined, alike: Sequence[Examined]) -> list[str]:
    params = [other.arms[0].params if other.arms else {} for other in alike]
    mine = one.arms[0].params if one.arms else {}
    told = [f"{name} {value}" for name, value in mine.items() if any(other.get(name) != value for other in params)]
    return [one[:LONGEST_PARAMETER] for one in told[:PARAMETERS_IN_TITLE]]


def _span(found: Sequence[Examined]) -> str:
    first = min(one.created_unix_s for one in found)
    return say_span(first, max(one.ended_unix_s or one.created_unix_s for one in found))


def _words(sections: Sections) -> str:
    return ", ".join(dict.fromkeys(one.word for one in sections.headlines))


def _answer(sections: Sections) -> str:
    return " ".join(stopped(said) for said in answers(sections))


# --- HTML ---------------------------------------------------------------------------------------------------------------


def render_study_html(
    found: Sequence[Examined], *, generated_unix_s: float, version: str, heading: Heading = NO_HEADING
) -> str:
    """Return one page with all experiments."""
    title = heading.title or study_title(found)
    every = [Sections(one) for one in found]
    names = [f"x{number}" for number in range(1, len(found) + 1)]
    articles = [
        element("article", nested(experiment(one, Heading.made(own)), name), id=name)
        for one, own, name in zip(every, titles_of(found), names, strict=True)
    ]
    return page(
        title,
        element(
            "main",
            head(f"{counted(len(found), 'experiment')} · {_span(found)}", title, heading),
            _contents(every, titles_of(found), names),
            *articles,
            footer(generated_unix_s, version),
        ),
    )


def _contents(every: Sequence[Sections], titles: Sequence[str], names: Sequence[str]) -> Markup:
    rows = []
    for number, (sections, title, name) in enumerate(zip(every, titles, names, strict=True), 1):
        first = sections.headlines[0]
        marks = Cell(element("span", text(f"{first.sign} {_words(sections)}"), class_=f"verdict-word {first.colour}"))
        link = element("a", text(f"{number}. {title}"), href=f"#{name}")
        rows.append(Row([Cell(link), marks, Cell(prose(_answer(sections)))]))
    listed = table([("Experiment", False), ("Verdict", False), ("In words", False)], rows, "contents")
    return element("nav", element("h2", text("Contents")), listed, aria_label="Contents")


# --- Markdown -----------------------------------------------------------------------------------------------------------


def render_study_markdown(found: Sequence[Examined], heading: Heading = NO_HEADING) -> str:
    """Return the same as Markdown. Headings are `Experiment 1`, so that links to them do not depend on titles."""
    every = [Sections(one) for one in found]
    listed = [
        f"{number}. [{plain(title)}](#experiment-{number}): **{_words(one)}** {plain(_answer(one))}"
        for number, (one, title) in enumerate(zip(every, titles_of(found), strict=True), 1)
    ]
    parts = [*heading_parts(heading.title or study_title(found), heading, level=2), "\n".join(listed)]
    for number, (one, title) in enumerate(zip(every, titles_of(found), strict=True), 1):
        parts += [f"### Experiment {number}", f"**{plain(title)}**", *experiment_parts(one)]
    return "\n\n".join(part for part in parts if part) + "\n"
