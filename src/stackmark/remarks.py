"""Sentences that carry their kind.

Reasons, doubts, notes and warnings are shown to people, joined and stored as text. Programs and tests must not depend on the
words, so the place that writes such a sentence also names its kind. A `Remark` is a string, so whoever only shows it needs to
know nothing about kinds.
"""

# Runs that are not of one kind, which a rate over all of them would mix.
MIXED_RUNS = "mixed-runs"


class Remark(str):
    """A sentence with a short, stable name of what it is about, in kebab-case."""

    kind: str

    def __new__(cls, text: str, kind: str = "") -> "Remark":
        made = super().__new__(cls, text)
        made.kind = kind
        return made
