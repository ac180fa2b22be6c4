"""Text from outside, made safe for a terminal: a log line may hold escape sequences that move the cursor or retitle it."""

import unicodedata

# Of an arm's label next to its numbers: with an id and a rate that fills a line of a hundred.
LABEL_AT_MOST = 44
# Ten characters of an id are its time to the millisecond: with the letter, enough to tell runs of one machine apart.
SHORT_ID = 12


def safe(text: str) -> str:
    """Control characters are shown as they would be typed in Python; a tab and ordinary letters stay."""
    return "".join(
        char if char in "\t\n" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co") else ascii(char)[1:-1]
        for char in text
    )


def safe_line(text: str) -> str:
    """As `safe`, on one line."""
    return safe(text).replace("\n", " ")


def cut_middle(text: str, room: int) -> str:
    """Not longer than `room`: labels of arms often begin alike, and differ at the end."""
    if len(text) <= room:
        return text
    end = (room - 1) // 2
    return f"{text[: room - 1 - end]}…{text[len(text) - end :]}"


def short_id(id_: str) -> str:
    """The beginning of an id, which commands take for the whole."""
    return id_[:SHORT_ID]
