"""Frozen data that is validated when it is made: what driver and worker exchange, and the parameters of workloads.

A worker runs under the Python of any image, so this file needs the standard library only. A class looks and behaves as the
driver's own pydantic models do (`Field`, `model_fields`, `model_validate`, `model_dump`), so that code which handles both is
written once, and a pydantic model may have one of these as the type of a field. Two differences are on purpose: a number is never
read from a text, and every number must be finite, since NaN is not JSON and never a measurement.

Pydantic itself was used here before. It costs each worker 0.15 s of CPU time to import and must be in every image.
"""

import json
import math
import operator
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform

    JsonValue = dict[str, "JsonValue"] | list["JsonValue"] | str | int | float | bool | None
else:

    class JsonValue:
        """Stands in annotations for any value that JSON can hold."""

    def dataclass_transform(**_: object) -> Callable[[type], type]:
        return lambda cls: cls


# JSON nested more deeply is an attack on whoever walks through it.
DEEPEST = 64
Check = Callable[[Any], Any]
Location = tuple[str | int, ...]
_REQUIRED: Any = object()
_MORE = "_more"
M = TypeVar("M", bound="Model")


@dataclass(eq=False)
class _Wrong(Exception):
    """What is wrong with one value. Containers put their key or index in front of the location."""

    message: str
    value: object
    location: Location = ()
    # A whole sentence of a model's own, which names the value itself.
    own: bool = False


class ValidationError(ValueError):
    """The errors in the data of a model, in the form of pydantic's error."""

    def __init__(self, title: str, findings: list[_Wrong]) -> None:
        self.title = title
        self._findings = findings
        super().__init__("; ".join(f"{'.'.join(map(str, one.location))}: {one.message}" for one in findings))

    def errors(self, **_: bool) -> list[dict[str, Any]]:
        return [
            {"loc": one.location, "msg": one.message, "input": one.value, "type": "value_error" if one.own else ""}
            for one in self._findings
        ]

    def error_count(self) -> int:
        return len(self._findings)


@dataclass(frozen=True)
class Limits:
    """Bounds of a number or a text; used in `Annotated`, or made by `Field`."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    pattern: str | None = None
    min_length: int | None = None
    max_length: int | None = None


def _any(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class FieldInfo:
    """A field of a model, as declared by its class."""

    annotation: Any = None
    default: Any = _REQUIRED
    description: str | None = None
    json_schema_extra: Mapping[str, Any] | None = None
    metadata: tuple[Any, ...] = ()
    check: Check = _any

    def is_required(self) -> bool:
        return self.default is _REQUIRED

    def get_default(self) -> Any:
        return self.default.copy() if isinstance(self.default, dict | list) else self.default

    def validate(self, value: object) -> Any:
        """Return the value as the field holds it; raise ValidationError where it cannot."""
        try:
            return self.check(value)
        except _Wrong as wrong:
            raise ValidationError("value", [wrong]) from None


class FieldLike(Protocol):
    """The common interface of a workload's parameter, a field of ours, and a place's option, a field of pydantic's."""

    @property
    def annotation(self) -> Any: ...
    @property
    def description(self) -> str | None: ...
    @property
    def json_schema_extra(self) -> Any: ...
    @property
    def metadata(self) -> Any: ...
    @property
    def default(self) -> Any: ...

    def is_required(self) -> bool: ...


def Field(  # noqa: N802 - the name that pydantic gave it, and every reader knows
    *,
    default: Any = _REQUIRED,
    description: str | None = None,
    json_schema_extra: Mapping[str, Any] | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    pattern: str | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
) -> Any:
    limits = Limits(ge, gt, le, lt, pattern, min_length, max_length)
    return FieldInfo(
        default=default,
        description=description,
        json_schema_extra=json_schema_extra,
        metadata=() if limits == Limits() else (limits,),
    )


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class _Meta(type):
    """Collects the fields of a class and of those that it inherits from. Their checks are made when the first object is."""

    def __new__(mcs, name: str, bases: tuple[type, ...], space: dict[str, Any], **options: Any) -> Any:
        declared: dict[str, FieldInfo] = {}
        for base in reversed(bases):
            declared.update(getattr(base, "_declared", {}))
        for key, annotation in space.get("__annotations__", {}).items():
            if key.startswith("_") or "ClassVar" in str(annotation):
                continue
            value = space.pop(key, _REQUIRED)
            declared[key] = value if isinstance(value, FieldInfo) else FieldInfo(default=value)
        return super().__new__(mcs, name, bases, {**space, "_declared": declared, "_fields": None}, **options)

    @property
    def model_fields(cls) -> dict[str, FieldInfo]:
        found: dict[str, FieldInfo] | None = cls.__dict__["_fields"]
        if found is None:
            hints = get_type_hints(cls, include_extras=True)
            found = {name: _completed(info, hints[name]) for name, info in cls._declared.items()}  # type: ignore[attr-defined]
            cls._fields = found
        return found


class Model(metaclass=_Meta):
    """Base of the classes. `class X(Model, extra="allow")` keeps unknown keys; other classes refuse them."""

    _extra: ClassVar[str] = "forbid"
    _declared: ClassVar[dict[str, FieldInfo]]
    _fields: ClassVar[dict[str, FieldInfo] | None]

    def __init_subclass__(cls, extra: Literal["forbid", "allow"] | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if extra is not None:
            cls._extra = extra

    if not TYPE_CHECKING:  # type checkers see the fields as keyword arguments

        def __init__(self, **data):
            self.__dict__.update(_validated(type(self), data))
            try:
                self._validate()
            except ValueError as error:
                raise ValidationError(type(self).__name__, [_Wrong(str(error), None, own=True)]) from error

    def _validate(self) -> None:
        """Raise ValueError where fields do not fit together."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"

    @classmethod
    def model_validate(cls, data: object) -> "Self":
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise ValidationError(cls.__name__, [_Wrong("must be an object", data)])
        return cls(**{str(key): value for key, value in data.items()})

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> "Self":
        try:
            data = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ValidationError(cls.__name__, [_Wrong(f"is not JSON: {error}", None)]) from error
        return cls.model_validate(data)

    def model_dump(self, *, mode: str = "python", exclude_defaults: bool = False) -> dict[str, Any]:
        """Return the fields as a dictionary, models inside as well; with `json`, tuples as lists."""
        fields = type(self).model_fields
        values = {name: value for name, value in self.__dict__.items() if name != _MORE} | self.model_extra
        return {
            name: _dumped(value, mode, exclude_defaults)
            for name, value in values.items()
            if not (exclude_defaults and name in fields and fields[name].default == value)
        }

    @property
    def model_extra(self) -> dict[str, Any]:
        """Return the keys that the class does not know, where it keeps them."""
        found: dict[str, Any] = self.__dict__.get(_MORE, {})
        return found

    def model_dump_json(self, *, exclude_defaults: bool = False) -> str:
        dumped = self.model_dump(mode="json", exclude_defaults=exclude_defaults)
        return json.dumps(dumped, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> "Self":
        """Return a copy with other values, which are not validated."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **(update or {}))
        return copy

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> Any:
        """Tell pydantic, in the driver, how a field of this type is validated and written."""
        from pydantic_core import core_schema

        def read(data: object) -> Model:
            try:
                return cls.model_validate(data)
            except ValidationError as error:
                raise ValueError(str(error)) from error

        return core_schema.no_info_plain_validator_function(
            read,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda one, info: one.model_dump(mode=info.mode), info_arg=True
            ),
        )


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _validated(cls: type[Model], data: dict[str, Any]) -> dict[str, Any]:
    fields = cls.model_fields
    values: dict[str, Any] = {}
    wrong: list[_Wrong] = []
    for name, info in fields.items():
        if name not in data:
            if info.is_required():
                wrong.append(_Wrong("is missing", None, (name,)))
            else:
                values[name] = info.get_default()
            continue
        try:
            values[name] = info.check(data[name])
        except _Wrong as one:
            one.location = (name, *one.location)
            wrong.append(one)
    more: dict[str, Any] = {}
    for name in (name for name in data if name not in fields):
        if cls._extra == "forbid":
            wrong.append(_Wrong("is not a known field", data[name], (name,)))
            continue
        try:
            more[name] = _json(data[name])
        except _Wrong as one:
            one.location = (name, *one.location)
            wrong.append(one)
    if wrong:
        raise ValidationError(cls.__name__, wrong)
    # In a dictionary of their own: a key `model_dump` from outside must not hide the method.
    return {**values, _MORE: more} if more else values


def _dumped(value: Any, mode: str, exclude_defaults: bool) -> Any:
    if isinstance(value, Model):
        return value.model_dump(mode=mode, exclude_defaults=exclude_defaults)
    if isinstance(value, dict):
        return {key: _dumped(one, mode, exclude_defaults) for key, one in value.items()}
    if isinstance(value, list | tuple):
        dumped = [_dumped(one, mode, exclude_defaults) for one in value]
        return tuple(dumped) if isinstance(value, tuple) and mode != "json" else dumped
    return value


# --- from annotations to checks


def _completed(info: FieldInfo, hint: Any) -> FieldInfo:
    """Put what the annotation says and what `Field` says into one check."""
    bare, metadata = _unwrapped(hint)
    metadata = (*info.metadata, *metadata)  # bounds before functions of ours
    return FieldInfo(
        annotation=bare,
        default=info.default,
        description=info.description,
        json_schema_extra=info.json_schema_extra,
        metadata=metadata,
        check=_with_limits(_check_of(bare), metadata),
    )


def _unwrapped(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return (get_args(hint)[0], hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())


def _check_of(hint: Any) -> Check:
    bare, metadata = _unwrapped(hint)
    if metadata:
        return _with_limits(_check_of(bare), metadata)
    if bare in _SIMPLE:
        return _SIMPLE[bare]
    origin, args = get_origin(bare), get_args(bare)
    if origin in (Union, types.UnionType):
        return _union(args)
    if origin is Literal:
        return _choice(args)
    if origin is list:
        return _numbers(args[0]) if _unwrapped(args[0])[0] is float else _list(_check_of(args[0]))
    if origin is tuple:
        return _list(_check_of(args[0]), tuple) if args[-1] is Ellipsis else _tuple([_check_of(one) for one in args])
    if origin in (dict, Mapping):
        return _dict(_check_of(args[1]))
    if isinstance(bare, type) and issubclass(bare, Model):
        return _model(bare)
    raise TypeError(f"a model cannot have a field of the type {hint}")


def _with_limits(check: Check, metadata: tuple[Any, ...]) -> Check:
    for one in metadata:
        if isinstance(one, FieldInfo):
            check = _with_limits(check, one.metadata)
        elif isinstance(one, Limits):
            check = _limited(check, one)
        elif callable(one):
            check = _then(check, one)
    return check


def _then(check: Check, own: Callable[[Any], Any]) -> Check:
    """A function of ours in `Annotated` raises ValueError with its sentence."""

    def checked(value: Any) -> Any:
        found = check(value)
        try:
            return own(found)
        except ValueError as error:
            raise _Wrong(str(error), value, own=True) from error

    return checked


def _limited(check: Check, limits: Limits) -> Check:
    pattern = re.compile(limits.pattern) if limits.pattern else None

    def checked(value: Any) -> Any:
        found = check(value)
        if found is None:
            return None
        if isinstance(found, int | float):
            _within(found, limits)
        else:
            _of_length(found, limits)
            if pattern and not pattern.search(found):
                raise _Wrong(f"must match the pattern {limits.pattern}", value)
        return found

    return checked


def _within(number: float, limits: Limits) -> None:
    if limits.ge is not None and not number >= limits.ge:
        raise _Wrong(f"must be at least {limits.ge:.15g}", number)
    if limits.gt is not None and not number > limits.gt:
        raise _Wrong(f"must be more than {limits.gt:.15g}", number)
    if limits.le is not None and not number <= limits.le:
        raise _Wrong(f"must be at most {limits.le:.15g}", number)
    if limits.lt is not None and not number < limits.lt:
        raise _Wrong(f"must be less than {limits.lt:.15g}", number)


def _of_length(found: Any, limits: Limits) -> None:
    if limits.min_length is not None and len(found) < limits.min_length:
        raise _Wrong(f"must have at least {_count(limits.min_length)}", found)
    if limits.max_length is not None and len(found) > limits.max_length:
        raise _Wrong(f"must have at most {_count(limits.max_length)}", found)


def _count(characters: int) -> str:
    return f"{characters} character{'' if characters == 1 else 's'}"


def _int(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if hasattr(value, "__index__") and not isinstance(value, bool):  # a framework's own integer
        return operator.index(value)
    raise _Wrong("must be a whole number", value)


def _float(value: Any) -> float:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise _Wrong("must be a finite number", value)
    if hasattr(value, "__float__") and not isinstance(value, bool):  # an integer, or a framework's own number
        try:
            return _float(float(value))
        except OverflowError:
            raise _Wrong("must be a finite number", value) from None
    raise _Wrong("must be a number", value)


def _str(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise _Wrong("must be text", value)


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise _Wrong("must be true or false", value)


def _none(value: Any) -> None:
    if value is not None:
        raise _Wrong("must be null", value)


def _json(value: Any, depth: int = 0) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return _float(value)
    if depth >= DEEPEST:
        raise _Wrong(f"must be nested less than {DEEPEST} times", None)
    if isinstance(value, list | tuple):
        return [_json(one, depth + 1) for one in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _json(one, depth + 1) for key, one in value.items()}
    raise _Wrong("must be a JSON value", value)


_SIMPLE: dict[Any, Check] = {
    int: _int,
    float: _float,
    str: _str,
    bool: _bool,
    type(None): _none,
    JsonValue: _json,
    Any: _any,
}


def _union(kinds: tuple[Any, ...]) -> Check:
    """The kind that a value has already comes first: True stays a boolean, and 1 an integer."""
    checks = [(_unwrapped(kind)[0], _check_of(kind)) for kind in kinds]

    def checked(value: Any) -> Any:
        for kind, check in checks:
            if type(value) is kind:
                return check(value)
        wrong: _Wrong | None = None
        for _, check in checks:
            try:
                return check(value)
            except _Wrong as one:
                wrong = wrong or one
        assert wrong is not None
        raise wrong

    return checked


def _choice(allowed: tuple[Any, ...]) -> Check:
    said = [one if isinstance(one, str) and one.isprintable() and one.strip() else repr(one) for one in allowed]
    listed = f"{', '.join(said[:-1])} or {said[-1]}" if len(said) > 1 else said[0]

    def checked(value: Any) -> Any:
        for one in allowed:
            if type(value) is type(one) and value == one:
                return one
        raise _Wrong(f"must be {listed}", value)

    return checked


def _list(check: Check, made: Callable[[list[Any]], Any] = list) -> Check:
    def checked(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _Wrong("must be a list", value)
        found: list[Any] = []
        try:
            for one in value:
                found.append(check(one))  # noqa: PERF401 - its length tells which one was wrong
        except _Wrong as wrong:
            wrong.location = (len(found), *wrong.location)
            raise
        return made(found)

    return checked


def _numbers(hint: Any) -> Check:
    """Check a list of floats as a whole where nothing is wrong with it: events of steps hold hundreds."""
    one_by_one = _list(_check_of(hint))
    limits = [limit for part in _unwrapped(hint)[1] for limit in getattr(part, "metadata", (part,))]
    plain = all(isinstance(limit, Limits) for limit in limits)

    def checked(value: Any) -> Any:
        if not (plain and isinstance(value, list) and set(map(type, value)) == {float} and math.isfinite(sum(value))):
            return one_by_one(value)
        try:
            for limit in limits:
                _within(min(value), limit)
                _within(max(value), limit)
        except _Wrong:
            return one_by_one(value)  # which finds the first that is wrong
        return value.copy()

    return checked


def _tuple(checks: list[Check]) -> Check:
    def checked(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(checks):
            raise _Wrong(f"must be a list of {len(checks)}", value)
        return tuple(check(one) for check, one in zip(checks, value, strict=True))

    return checked


def _dict(check: Check) -> Check:
    def checked(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _Wrong("must be an object", value)
        found = {}
        for key, one in value.items():
            if not isinstance(key, str):
                raise _Wrong("must have texts as keys", key)
            try:
                found[key] = check(one)
            except _Wrong as wrong:
                wrong.location = (key, *wrong.location)
                raise
        return found

    return checked


def _model(cls: type[Model]) -> Check:
    def checked(value: Any) -> Any:
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            raise _Wrong(first["msg"], first["input"], first["loc"], first["type"] == "value_error") from error

    return checked
