"""Text from outside, made safe for a terminal: a log line may hold escape sequences that move the cursor or retitle it."""

import unicodedata


def safe(text: str) -> str:
    """Control characters are shown as they would be typed in Python; a tab and ordinary letters stay."""
    return "".join(
        char if char in "\t\n" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co") else ascii(char)[1:-1]
        for char in text
    )


def safe_line(text: str) -> str:
    """As `safe`, on one line."""
    return safe(text).replace("\n", " ")
