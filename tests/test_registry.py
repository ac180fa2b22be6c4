"""Families of workloads by their names: several may share the part before the slash."""

from dataclasses import replace

import pytest

from stackmark.cli.completion import make_table
from stackmark.cli.options import parameters_with
from stackmark.errors import SpecError
from stackmark.extensions import Extensions
from stackmark.model import Field
from stackmark.spec import AnyParams, Request, Spec
from stackmark.workloads import registry
from stackmark.workloads.definition import Definition, Family
from stackmark.workloads.op.problem import Operator
from stackmark.workloads.serve.definition import ServeParams


class Reading(AnyParams):
    pages: int = Field(default=1, ge=1, description="pages to read")


class Writing(AnyParams):
    pages: int = Field(default=1, ge=1, description="pages to write")
    ink: str = Field(default="blue", description="its colour")


READ = Family("book", Reading, "book.reading", (Definition("book/read", "Read", "page"),))
WRITE = Family("book", Writing, "book.writing", (Definition("book/write", "Write", "page"),), own_program=True)


@pytest.fixture(autouse=True)
def books(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Family | Operator] = {"read": READ, "write": WRITE}
    monkeypatch.setattr(registry, "outside", lambda: Extensions(found, {}))


def test_each_workload_has_the_parameters_of_its_own_family() -> None:
    registry.check_request(Request(workload="book/write", params={"ink": "red"}))
    with pytest.raises(SpecError, match="ink"):
        registry.check_request(Request(workload="book/read", params={"ink": "red"}))
    with pytest.raises(SpecError, match="ink"):
        registry.check_spec(Spec(workload="book/read", params={"device": "cpu", "pages": 1, "ink": "red"}))
    assert registry.find("book/write")[0].module == "book.writing"


def test_only_one_of_two_families_of_a_name_may_run_a_program_of_the_user() -> None:
    assert registry.is_own_program("book/write")
    assert not registry.is_own_program("book/read")


def test_help_says_what_an_option_means_to_each_family_of_a_name() -> None:
    assert {typed: info.description for typed, info in parameters_with()["pages"].items()} == {
        "book": "pages to read",
        "book/write": "pages to write",
    }


def test_completion_offers_the_parameters_of_the_family_that_a_workload_has() -> None:
    families = make_table()["families"]
    assert "ink" in families["book/write"]
    assert "ink" not in families["book"]


def test_a_package_cannot_add_to_a_name_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = replace(WRITE, name="serve", definitions=(Definition("serve/ink", "Write", "page"),))
    monkeypatch.setattr(registry, "outside", lambda: Extensions({"ink": taken}, {}))
    assert registry.known("serve/ink") is None
    assert registry.find("serve/empty")[0].params is ServeParams
