"""The glossary explains the words that the pages use, and no others."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
ENTRIES: dict[str, str] = {
    head: text.strip()
    for head, text in re.findall(r"^## (.+)\n\n((?:(?!## ).*\n)+)", GLOSSARY.read_text(), re.MULTILINE)
}
# The names that the design fixes (DESIGN.md, "Names"), and the words that a verdict may have.
NAMES = (
    "arm", "block", "event", "experiment", "facts", "ledger", "place", "probe", "published", "request", "run", "series",
    "spec", "suite", "verdict", "workload", "baseline", "margin",
)  # fmt: skip
WORDS = ("EQUIVALENT", "SLOWER", "FASTER", "INCONCLUSIVE", "LIKELY SLOWER", "LIKELY FASTER", "NOT USABLE")


def other_pages() -> str:
    """What users read besides the glossary and the generated page of commands, on one line."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return " ".join(
        " ".join(page.read_text().split()) for page in pages if page.name not in ("glossary.md", "commands.md")
    )


TEXT = other_pages()


def is_used(term: str) -> bool:
    """Whether a page has the term, in the singular or plural; a term in capitals only in capitals."""
    pattern = rf"(?<![\w/-]){re.escape(term)}(?:s|es)?(?![\w-])"
    return re.search(pattern, TEXT, 0 if term.isupper() else re.IGNORECASE) is not None


def test_every_heading_of_the_glossary_has_an_explanation() -> None:
    heads = re.findall(r"^## (.+)$", GLOSSARY.read_text(), re.MULTILINE)
    assert list(ENTRIES) == heads
    assert len(heads) > 50


@pytest.mark.parametrize("term", ENTRIES)
def test_a_term_of_the_glossary_is_used_on_another_page(term: str) -> None:
    assert is_used(term)


def test_a_word_that_no_page_has_is_not_found() -> None:
    assert not is_used("blockage")
    assert not is_used("CEILING")


@pytest.mark.parametrize("term", [*NAMES, *WORDS])
def test_a_core_term_is_in_the_glossary(term: str) -> None:
    assert term in ENTRIES


def test_the_glossary_is_in_alphabetical_order() -> None:
    keys = [re.sub(r"[^a-z ]", "", term.lower()) for term in ENTRIES]
    assert keys == sorted(keys)


@pytest.mark.parametrize("term", ENTRIES)
def test_an_entry_is_short_and_links_on(term: str) -> None:
    text = " ".join(ENTRIES[term].split())
    # Three sentences at most: who looks a word up wants to go on reading elsewhere.
    assert len(text) < 350
    assert "](" in text or term == "driver"


# Pages that a newcomer may open first, and the words that they would not know.
FIRST_PAGES = (
    "comparing",
    "containers",
    "exit-codes",
    "explaining",
    "extending",
    "host-vs-container",
    "host-vs-pod",
    "images",
    "importing",
)


@pytest.mark.parametrize("page", FIRST_PAGES)
def test_a_page_links_the_words_that_a_newcomer_does_not_know(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    prose = re.sub(r"^```.*?^```|^    .*?$|`[^`]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    used = [term for term in ("arm", "block", "margin") if re.search(rf"\b{term}s?\b", prose)]
    assert [term for term in used if f"(glossary.md#{term})" not in text] == []
