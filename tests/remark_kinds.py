"""The kinds of sentences, for tests: what is found is asserted, and not how it is worded."""

from collections.abc import Iterable

from stackmark.remarks import Remark


def kinds_of(sentences: Iterable[str]) -> list[str]:
    """The kind of each; one that has none stands for itself."""
    return [one.kind if isinstance(one, Remark) else one for one in sentences]
