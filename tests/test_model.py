"""Models on the standard library: what they take and refuse, against pydantic where both should say the same."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackmark.model import DEEPEST, Field, JsonValue, Limits, Model, ValidationError

SOURCE = Path(__file__).parents[1] / "src"


def not_odd(number: int) -> int:
    if number % 2:
        raise ValueError("an even number is needed")
    return number


class Inner(Model):
    share: float = Field(ge=0, le=1)


class Outer(Model):
    name: str = Field(
        default="x", pattern="^[a-z]+$", max_length=5, description="a name", json_schema_extra={"auto": True}
    )
    count: int = Field(default=0, ge=0, lt=10)
    even: Annotated[int, not_odd] = 0
    kind: Literal["a", "b"] = "a"
    value: str | int | float | bool | None = None
    inner: Inner | None = None
    many: list[Annotated[float, Limits(ge=0)]] = []
    pair: tuple[int, float] = (0, 0.0)
    table: dict[str, int] = {}
    anything: dict[str, JsonValue] = {}


class Open(Model, extra="allow"):
    one: int

    def _validate(self) -> None:
        if self.one == 13:
            raise ValueError("13 is refused")


def located(wrong: pytest.ExceptionInfo[ValidationError]) -> list[tuple[Any, ...]]:
    return [finding["loc"] for finding in wrong.value.errors()]


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ({"name": "A"}, ("name",)),
        ({"name": "abcdef"}, ("name",)),
        ({"name": 1}, ("name",)),
        ({"count": -1}, ("count",)),
        ({"count": 10}, ("count",)),
        ({"count": 1.5}, ("count",)),
        ({"count": "1"}, ("count",)),
        ({"count": True}, ("count",)),
        ({"even": 3}, ("even",)),
        ({"kind": "c"}, ("kind",)),
        ({"value": [1]}, ("value",)),
        ({"value": math.nan}, ("value",)),
        ({"inner": {"share": 2}}, ("inner", "share")),
        ({"inner": {}}, ("inner", "share")),
        ({"many": [1, -1]}, ("many", 1)),
        ({"many": 3}, ("many",)),
        ({"pair": [1]}, ("pair",)),
        ({"table": {"a": "b"}}, ("table", "a")),
        ({"anything": {"a": [math.inf]}}, ("anything", "a")),
        ({"other": 1}, ("other",)),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(data: dict[str, Any], where: tuple[Any, ...]) -> None:
    with pytest.raises(ValidationError) as wrong:
        Outer.model_validate(data)
    assert located(wrong) == [where]


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ValidationError) as wrong:
        Outer.model_validate({"name": 1, "count": -1, "other": None})
    assert located(wrong) == [("name",), ("count",), ("other",)]
    assert wrong.value.error_count() == 3


def test_a_value_keeps_its_kind() -> None:
    for value in (True, 1, 1.0, "1", None):
        kept = Outer(value=value).value
        assert (kept, type(kept)) == (value, type(value))
    assert isinstance(Outer(many=[1]).many[0], float)
    assert Outer(count=3.0).count == 3  # type: ignore[arg-type]
    assert isinstance(Outer(count=3.0).count, int)  # type: ignore[arg-type]


def test_numbers_of_a_framework_are_numbers() -> None:
    import torch  # here, for the sake of the quick tests

    made = Outer(count=np.int64(3), many=[np.float32(0.5), torch.tensor(2.0)])  # type: ignore[list-item,arg-type]
    assert (made.count, made.many) == (3, [0.5, 2.0])
    assert {type(made.count), *map(type, made.many)} == {int, float}
    with pytest.raises(ValidationError):
        Outer(many=[torch.tensor(math.nan)])  # type: ignore[list-item]


def test_it_comes_back_from_its_json() -> None:
    made = Outer(name="abc", inner=Inner(share=0.5), many=[1.0], pair=(1, 2.0), anything={"a": [1, {"b": None}]})
    assert Outer.model_validate_json(made.model_dump_json()) == made
    assert json.loads(made.model_dump_json())["pair"] == [1, 2.0]
    assert made.model_dump()["pair"] == (1, 2.0)
    assert made.model_dump(exclude_defaults=True).keys() == {"name", "inner", "many", "pair", "anything"}


def test_it_is_frozen_and_copied_with_other_values() -> None:
    made = Outer()
    with pytest.raises(AttributeError):
        made.count = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del made.count
    assert (made.model_copy(update={"count": 1}).count, made.count) == (1, 0)
    assert Inner(share=0) == Inner(share=0.0) != Inner(share=1)
    assert hash(Inner(share=0)) == hash(Inner(share=0.0))


def test_a_default_is_not_shared() -> None:
    Outer().many.append(1.0)
    assert Outer().many == []


def test_unknown_keys_are_kept_apart_from_ours() -> None:
    made = Open.model_validate({"one": 1, "model_dump": 2, "two": [3]})
    assert made.model_extra == {"model_dump": 2, "two": [3]}
    assert made.model_dump() == {"one": 1, "model_dump": 2, "two": [3]}
    assert Open.model_validate({"one": 1, "two": [3]}) != Open(one=1)


def test_fields_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ValidationError) as wrong:
        Open(one=13)
    assert located(wrong) == [()]


def test_json_that_is_nested_without_end_is_refused() -> None:
    deep: Any = 1
    for _ in range(DEEPEST + 1):
        deep = [deep]
    with pytest.raises(ValidationError):
        Open.model_validate({"one": 1, "deep": deep})
    with pytest.raises(ValidationError):
        Open.model_validate_json('{"one":1,"deep":' + "[" * 100_000 + "]" * 100_000 + "}")


@pytest.mark.parametrize("text", ["", "1", "[]", "{", '{"one":NaN}', '{"one":1e999}', "null", b"\xff"])
def test_what_is_not_an_object_of_ours_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValidationError):
        Open.model_validate_json(text)


def test_a_field_tells_what_it_is() -> None:
    name, share = Outer.model_fields["name"], Inner.model_fields["share"]
    assert (name.annotation, name.default, name.description) == (str, "x", "a name")
    assert name.json_schema_extra == {"auto": True}
    assert (name.is_required(), share.is_required()) == (False, True)
    assert share.validate(1) == 1.0
    with pytest.raises(ValidationError):
        share.validate(2)


def test_a_model_of_pydantic_holds_one() -> None:
    class Holder(pydantic.BaseModel):
        inner: Inner

    held = Holder.model_validate({"inner": {"share": 0.5}})
    assert held.inner == Inner(share=0.5)
    assert held.model_dump(mode="json") == {"inner": {"share": 0.5}}
    with pytest.raises(pydantic.ValidationError) as wrong:
        Holder.model_validate({"inner": {"share": 2}})
    assert wrong.value.errors()[0]["loc"] == ("inner",)


NUMBERS = st.none() | st.integers(-20, 20) | st.floats(-20, 20) | st.lists(st.integers(-2, 2), max_size=2)
TEXTS = st.none() | st.text("abcA1", max_size=7) | st.integers(0, 2)


class Oracle(pydantic.BaseModel):
    """The same fields as pydantic checks them."""

    model_config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)
    name: str = pydantic.Field(default="x", pattern="^[a-z]+$", max_length=5)
    count: int = pydantic.Field(default=0, ge=0, lt=10)
    kind: Literal["a", "b"] = "a"
    many: list[Annotated[float, pydantic.Field(ge=0)]] = []
    pair: tuple[int, float] = (0, 0.0)


@given(
    st.fixed_dictionaries(
        {}, optional={"name": TEXTS, "count": NUMBERS, "kind": TEXTS, "many": NUMBERS, "pair": NUMBERS, "other": TEXTS}
    )
)
def test_it_takes_and_refuses_what_pydantic_does(data: dict[str, Any]) -> None:
    def taken(model: Any) -> dict[str, Any] | set[Any]:
        try:
            found: dict[str, Any] = model.model_validate(data).model_dump()
            return {name: found[name] for name in Oracle.model_fields}
        except ValueError as error:
            return {finding["loc"][0] for finding in error.errors()}  # type: ignore[attr-defined]

    assert taken(Outer) == taken(Oracle)


def test_the_worker_needs_the_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules); import stackmark.worker.__main__, stackmark.worker.run;"
        "import stackmark.workloads.registry as r; r.families();"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(SOURCE)!r}); {code}"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["stackmark"]
