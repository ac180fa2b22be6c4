"""Tell what a sentence names without holding it to its wording."""

import re


def missing(text: str, *tokens: object) -> list[str]:
    """Return the tokens (options, names, numbers, commands) that do not stand in the text as words of their own."""
    return [str(token) for token in tokens if not re.search(rf"(?<![\w.]){re.escape(str(token))}(?!\w|\.\d)", text)]


def numbers(text: str) -> list[float]:
    """Return the numbers that stand in the text as words of their own, the smallest first: a sentence may change their order."""
    return sorted(float(one.replace(",", "")) for one in re.findall(r"(?<![\w./-])\d[\d,]*(?:\.\d+)?(?![\w/])", text))
