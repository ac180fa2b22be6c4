"""Read arms as people type them: `container,shm=64m,ulimit=memlock=-1,batch=32`.

The first word is the place. A key is an option of that place or a parameter of the workload; their names are disjoint, so
nobody has to say which. A piece without `=` goes on with the value before it (`cpuset=0,2`), and a key that takes several
values may be repeated. Only what is typed here may differ between arms.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from stackmark.errors import SEE_HELP, SpecError, nearest_names
from stackmark.experiments.design import MOST_ARMS
from stackmark.experiments.typed import canonical_place, canonical_value, read_value, takes_several
from stackmark.model import FieldInfo, FieldLike, ValidationError
from stackmark.places.place import Place, read_typed_gpus, with_gpu_ids
from stackmark.places.registry import find_kind, find_place, place_kinds
from stackmark.secrets_masking import masked_arm, masked_url, put_aside
from stackmark.spec import Scalar, explain
from stackmark.workloads.registry import find

OptionValue = JsonValue
# How environment variables are usually named; no option is.
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")


@dataclass(frozen=True)
class ArmRequest:
    label: str
    place: str
    place_options: dict[str, OptionValue]
    typed: dict[str, Scalar]


def read_arms(
    texts: Sequence[str], workload: str, shared: Mapping[str, OptionValue] | None = None, *, least: int = 2
) -> list[ArmRequest]:
    """Read the arms. `shared` are place options for all arms whose place has them (`--image`, `--shm`); an arm's own win."""
    if len(texts) < least:
        raise SpecError(
            f"a comparison needs {least} arms, got {len(texts)}" if texts else "--arm is missing",
            hint="give one for each side: --arm host --arm container; or one arm with --published",
        )
    if len(texts) > MOST_ARMS:
        raise SpecError(f"an experiment takes at most {MOST_ARMS} arms, got {len(texts)}")
    arms = [read_arm(text, workload, shared or {}) for text in texts]
    _refuse_unused(shared or {}, arms)
    return _with_distinct_labels(arms)


def read_arm(text: str, workload: str, shared: Mapping[str, OptionValue] | None = None) -> ArmRequest:
    text = canonical_place(text, place_kinds())
    place, *pieces = (piece.strip() for piece in text.split(","))
    text = masked_arm(text)  # what follows shows it, and stores it
    if not place:
        raise SpecError(f"the arm {text!r} names no place", hint="write it like: --arm container,shm=1g")
    if "=" in place:
        raise SpecError(
            f"the arm {text!r} starts with an option; the place comes first", hint="e.g. --arm host,batch=64"
        )
    options = find_kind(place).options
    params = find(workload)[0].params.model_fields
    pieces = [_canonical(piece, {**params, **options.model_fields}) for piece in pieces]
    text = masked_arm(",".join([place, *pieces]))
    given: dict[str, OptionValue] = {
        name: _shared(name, options.model_fields[name], value)
        for name, value in (shared or {}).items()
        if name in options.model_fields
    }
    own: dict[str, list[str]] = {}
    for key, value in _pairs(text, pieces):
        own.setdefault(key, []).append(put_aside(value) if key == "env" else value)
    typed: dict[str, Scalar] = {}
    for key, values in own.items():
        name = key.replace("-", "_")
        if name in options.model_fields:
            given[name] = _option(text, key, options.model_fields[name], values)
        elif name in params:
            typed[name] = _parameter(text, key, params[name], values)
        else:
            known = [*options.model_fields, *params]
            others = [kind.name for kind in place_kinds().values() if name in kind.options.model_fields]
            if others:
                raise SpecError(
                    f"the arm {text!r}: {key!r} is an option of {' and '.join(others)}, not of {place}",
                    hint=f"write it like: --arm {others[0]},{key}={values[0]}",
                )
            keys = (
                f"keys of {place}: {', '.join(options.model_fields) or 'none'}; of the workload: stackmark run --help"
            )
            is_variable = "env" in options.model_fields and _VARIABLE.fullmatch(key)
            raise SpecError(
                f"the arm {text!r}: neither {place} nor {workload} has an option {key!r}{nearest_names(name, known)}",
                hint=f"an environment variable is given as env={key}=VALUE\n{keys}" if is_variable else keys,
            )
    if why := find(workload)[1].refuses(typed):
        raise SpecError(f"the arm {text!r}: {why}", hint=SEE_HELP)
    given = with_gpu_ids(read_typed_gpus(options, given))
    find_place(place, given)  # refuses what the place cannot take
    return ArmRequest(text.strip(), place, given, typed)


def place_of(text: str, workload: str, options: Mapping[str, OptionValue]) -> Place:
    """Return the place that `--on` names: `container`, or `container,shm=1g` as an arm is written.

    A parameter of the workload is refused there: it has its own option.
    """
    place, typed = place_and_params(text, workload, options)
    if typed:
        name = next(iter(typed))
        raise SpecError(
            f"{name} in {text!r} is a parameter of the workload, not of the arm",
            hint=f"give it as --{name.replace('_', '-')}",
        )
    return place


def place_and_params(text: str, workload: str, options: Mapping[str, OptionValue]) -> tuple[Place, dict[str, Scalar]]:
    """Return the place of a single arm, and the parameters that it types."""
    (arm,) = read_arms([text], workload, options, least=1)
    return find_place(arm.place, arm.place_options), arm.typed


def _shared(name: str, info: FieldLike, value: OptionValue) -> OptionValue:
    """Return an option that holds for all arms: by its canonical name, and without secrets."""
    if isinstance(value, str):
        return canonical_value(info, value)
    if name != "env" or not isinstance(value, list):
        return value
    return [put_aside(one) if isinstance(one, str) else one for one in value]


def _canonical(piece: str, fields: Mapping[str, FieldLike]) -> str:
    """Return `precision=bf16` for `precision=BF16`: the label of an arm is stored."""
    key, equals, value = piece.partition("=")
    info = fields.get(key.strip().replace("-", "_"))
    return f"{key}={canonical_value(info, value.strip())}" if equals and info else piece


def _pairs(text: str, pieces: Sequence[str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for piece in pieces:
        key, equals, value = piece.partition("=")
        if equals and key:
            found.append((key.strip(), value.strip()))
        elif piece and not equals and found:
            key, before = found.pop()
            found.append((key, f"{before},{piece}"))
        else:
            raise SpecError(
                f"{masked_url(piece)!r} in the arm {masked_arm(text)!r} is not KEY=VALUE",
                hint="write it like: --arm container,shm=1g",
            )
    return found


def _option(arm: str, key: str, info: FieldLike, values: list[str]) -> OptionValue:
    several = takes_several(info)
    if len(values) > 1 and not several:
        raise SpecError(f"the arm {masked_arm(arm)!r} has {key!r} twice")
    return [*values] if several else values[0]


def _parameter(arm: str, key: str, info: FieldInfo, values: list[str]) -> Scalar:
    if len(values) > 1:
        raise SpecError(f"the arm {masked_arm(arm)!r} has {key!r} twice")
    value = read_value(f"{key} in the arm {masked_arm(arm)!r}", info, values[0])
    try:
        info.validate(value)
    except ValidationError as error:
        raise SpecError(f"{key} in the arm {masked_arm(arm)!r}: {explain(error)}", hint=SEE_HELP) from error
    return value


def _refuse_unused(shared: Mapping[str, OptionValue], arms: Sequence[ArmRequest]) -> None:
    known = {name for arm in arms for name in find_kind(arm.place).options.model_fields}
    for name in shared:
        if name not in known:
            option = f"--{name.replace('_', '-')}"
            places = " or ".join(dict.fromkeys(arm.place for arm in arms))
            having = [kind.name for kind in place_kinds().values() if name in kind.options.model_fields]
            verb = "have it:" if len(having) > 1 else "has it:"
            hint = f"{' and '.join(having)} {verb} --on {having[0]}" if having else SEE_HELP
            raise SpecError(f"{option} is not an option of {places}", hint=hint)


def _with_distinct_labels(arms: Sequence[ArmRequest]) -> list[ArmRequest]:
    """Two equal arms are an A/A experiment: the second is called `host (2)`."""
    seen: dict[str, int] = {}
    named = []
    for arm in arms:
        seen[arm.label] = seen.get(arm.label, 0) + 1
        again = f"{arm.label} ({seen[arm.label]})" if seen[arm.label] > 1 else arm.label
        named.append(ArmRequest(again, arm.place, arm.place_options, arm.typed))
    return named
