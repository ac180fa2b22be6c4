"""What the person who makes a report writes over it: a title, a note, a name. It is stored in the file and nowhere else."""

import unicodedata
from dataclasses import dataclass

# A title is a line that people read, a note is some lines; what is longer belongs in a document of its own.
LONGEST_TITLE, LONGEST_NOTE, LONGEST_AUTHOR = 300, 10_000, 200


@dataclass(frozen=True)
class Heading:
    """Title, note and author of a report; each is empty where nothing was typed. `made` removes what is not text."""

    title: str = ""
    note: str = ""
    author: str = ""

    @classmethod
    def made(cls, title: str | None = None, note: str | None = None, author: str | None = None) -> "Heading":
        """Make a heading of what was typed: without control characters, and with line breaks in the note only."""
        return cls(
            _line(title or "")[:LONGEST_TITLE],
            "\n".join(map(_line, (note or "").splitlines())).strip()[:LONGEST_NOTE],
            _line(author or "")[:LONGEST_AUTHOR],
        )

    @property
    def note_lines(self) -> list[str]:
        return self.note.split("\n") if self.note else []


NO_HEADING = Heading()


def _line(text: str) -> str:
    """Remove control characters, among them those that turn the direction of writing; a tab or a line break is a space."""
    spaced = (" " if char.isspace() else char for char in text)
    return "".join(char for char in spaced if unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co")).strip()
