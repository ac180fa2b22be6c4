"""Tables and the small parts that sections are made of. A table keeps its meaning where the page is narrow and its rows
become lists: roles are written out, and each cell carries the name of its column."""

from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.show.report.charts.shapes import sign
from stackmark.show.report.markup import NOTHING, Markup, element, join, text
from stackmark.show.wording import letter
from stackmark.verdict.examined import ExaminedArm

# "within a factor of 1.23: 4,733 to 4,742" is as long as it gets.
LONGEST_NUMBER = 42
# `4,802 images/s`: fits a narrow page in one piece.
SHORT_NUMBER = 20


@dataclass(frozen=True)
class Cell:
    content: Markup
    numeric: bool = False


@dataclass(frozen=True)
class Row:
    """Its first cell names it."""

    cells: Sequence[Cell]
    class_: str | None = None


def plain(content: str, small: str = "") -> Cell:
    below = element("small", prose(small)) if small else NOTHING
    return Cell(join([text(content), below]))


def numeric(content: str, small: str = "") -> Cell:
    """A number with its unit, which is not torn apart: neither at a space nor, where it is short, within its unit."""
    said = text(unbroken(content))
    below = element("small", prose(unbroken(small))) if small else NOTHING
    whole = element("span", said, class_="whole") if 0 < len(content) <= SHORT_NUMBER else said
    return Cell(join([whole, below]), numeric=True)


def unbroken(content: str) -> str:
    """Without a place to break the line, unless it is longer than our own numbers are: a unit comes from outside."""
    return content.replace(" ", "\N{NO-BREAK SPACE}") if len(content) <= LONGEST_NUMBER else content


def table(columns: Sequence[tuple[str, bool]], rows: Sequence[Row], class_: str | None = None) -> Markup:
    """Columns are a name and whether they hold numbers."""
    head = [
        element("th", text(name), scope="col", role="columnheader", class_="n" if right else None)
        for name, right in columns
    ]
    return element(
        "table",
        element("thead", element("tr", *head, role="row"), role="rowgroup"),
        element("tbody", *(_row(row, columns) for row in rows), role="rowgroup"),
        role="table",
        class_=class_,
    )


def _row(row: Row, columns: Sequence[tuple[str, bool]]) -> Markup:
    first, *others = row.cells
    names = [name for name, _ in columns[1:]]
    cells = [
        element("td", element("div", cell.content) if cell.content else NOTHING, role="cell", data_label=name,
                class_="n" if cell.numeric else None)
        for name, cell in zip(names, others, strict=True)
    ]  # fmt: skip
    return element(
        "tr", element("th", first.content, scope="row", role="rowheader"), *cells, role="row", class_=row.class_
    )


def badge(arm: ExaminedArm) -> Markup:
    """An arm by its sign, its letter and its name."""
    return badge_of(arm.index, arm.label)


def badge_of(index: int, label: str) -> Markup:
    """As `badge`, of an arm that is only a column of a suite."""
    drawn = element("svg", sign(index, 7, 7, 5), width=14, height=14, viewBox="0 0 14 14", aria_hidden="true")
    return element("span", drawn, element("b", text(letter(index))), text(label), class_="arm")


def section(title: str, *parts: Markup, name: str) -> Markup:
    return element("section", element("h2", text(title)), *parts, id=name)


def prose(content: str) -> Markup:
    """Text in which what stands between two backticks is to be typed."""
    pieces = content.split("`")
    if len(pieces) % 2 == 0:
        return text(content)
    return join(element("code", text(piece)) if index % 2 else text(piece) for index, piece in enumerate(pieces))


def paragraph(content: str, class_: str | None = None) -> Markup:
    return element("p", prose(content), class_=class_) if content else NOTHING


def bullets(items: Sequence[str]) -> Markup:
    return element("ul", *(element("li", prose(item)) for item in items)) if items else NOTHING


def figure(wide: Markup, narrow: Markup, caption: str) -> Markup:
    """The same picture for a wide page and for a narrow one: text in a picture cannot wrap, and must not shrink."""
    return element(
        "figure",
        element("div", wide, class_="wide"),
        element("div", narrow, class_="narrow"),
        element("figcaption", text(caption)),
    )
