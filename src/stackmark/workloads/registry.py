"""The registry of workloads: our families, and those of other packages. Imports no framework.

The command line reads names, parameters and help texts from here. A built-in family stands in `families`; other packages
announce theirs by the entry point group `stackmark.workloads` (definition.py).
"""

from collections.abc import Collection, Iterator

from stackmark.errors import SEE_HELP, SpecError, nearest_names
from stackmark.model import FieldInfo, ValidationError
from stackmark.spec import Request, Spec, explain
from stackmark.workloads.check import definition as check
from stackmark.workloads.command import definition as command
from stackmark.workloads.definition import Definition, Family, outside
from stackmark.workloads.fit import definition as fit
from stackmark.workloads.op import definition as op
from stackmark.workloads.serve import definition as serve
from stackmark.workloads.serve import endpoint
from stackmark.workloads.serve import start as serve_start
from stackmark.workloads.train import definition as train


def families() -> dict[str, Family]:
    """Return ours, and those of other packages, by what a user types before their parameters: `train`, or `serve/endpoint`.

    The first family of a name has the name itself. Each further one with the name is known by its only workload. A name of
    ours cannot be taken by another package.
    """
    ours = (
        train.FAMILY,
        fit.FAMILY,
        serve.FAMILY,
        endpoint.FAMILY,
        op.family(),
        command.FAMILY,
        serve_start.FAMILY,  # after it: `--cmd` is first of all the option of a user's own program
        check.FAMILY,
    )
    names = {one.name for one in ours}
    others = (one for one in outside().found.values() if isinstance(one, Family) and one.name not in names)
    table: dict[str, Family] = {}
    for one in (*ours, *others):
        if one.name not in table:
            table[one.name] = one
        elif len(one.definitions) == 1:
            table.setdefault(one.definitions[0].name, one)
    return table


def definitions() -> Iterator[Definition]:
    for family in families().values():
        yield from family.definitions


def _look_up(workload: str) -> tuple[Family, Definition] | None:
    name = workload.partition("/")[0]
    return next(
        (
            (family, one)
            for family in families().values()
            if family.name == name
            for one in family.definitions
            if one.name == workload
        ),
        None,
    )


def find(workload: str) -> tuple[Family, Definition]:
    """Return the family and definition of a name; an unknown name is an error with the nearest ones."""
    if found := _look_up(workload):
        return found
    for name in workload.split("/"):  # an entry point is named for its family, or for its operator
        outside().require(name)
    names = [one.name for one in definitions()]
    raise SpecError(
        f"unknown workload {workload!r}{nearest_names(workload, names)}", hint="list them with: stackmark workloads"
    )


def known(workload: str) -> Definition | None:
    """Return the definition of a name; None where its package is not installed any more, or the name is of a foreign log."""
    found = _look_up(workload)
    return found[1] if found else None


def is_own_program(workload: str) -> bool:
    """Tell whether a workload runs a program of the user's."""
    found = _look_up(workload)
    family = found[0] if found else families().get(workload.partition("/")[0])
    return family is not None and family.own_program


def check_typed(request: Request, in_arms: Collection[str] = ()) -> None:
    """Refuse what a person typed, where that is possible without seeing the device.

    `in_arms` are the parameters that each arm of a comparison types for itself.
    """
    check_request(request, in_arms)
    if why := find(request.workload)[1].refuses(request.typed()):
        raise SpecError(f"{request.workload}: {why}", hint=SEE_HELP)


def check_request(request: Request, in_arms: Collection[str] = ()) -> None:
    """Refuse names, types and ranges of parameters, also of a request that has the values of a specification."""
    family, _ = find(request.workload)
    fields = family.params.model_fields
    for name, field in fields.items():
        if field.is_required() and name not in {*request.typed(), *in_arms} and not _may_be_auto(field):
            raise SpecError(
                f"{request.workload} needs --{name.replace('_', '-')}: {field.description}",
                hint=SEE_HELP,
            )
    for name, value in request.typed().items():
        if name not in fields:
            raise SpecError(
                f"{request.workload} has no parameter {name!r}{nearest_names(name, list(fields))}",
                hint="list them with: stackmark run --help",
            )
        try:
            fields[name].validate(value)
        except ValidationError as error:
            option = f"--{name.replace('_', '-')}"
            raise SpecError(f"{option}: {explain(error)}", hint=SEE_HELP) from error


def check_ranks(request: Request) -> None:
    """Refuse ranks for what one process does, and one rank for an exchange of several."""
    allowed = find(request.workload)[1].ranks
    if request.ranks > 1 and allowed.most == 1:
        raise SpecError(
            f"{request.workload} runs as one rank and takes no --ranks", hint=f"only {with_ranks()} take it"
        )
    if request.ranks > allowed.most:
        raise SpecError(
            f"{request.workload} takes at most {allowed.most} ranks, got {request.ranks}",
            hint=f"use --ranks {allowed.most} or fewer",
        )
    if request.ranks < allowed.least:
        raise SpecError(f"{request.workload} needs several ranks", hint="set their number: --ranks 2")
    device = request.typed().get("device", "cpu")
    if request.ranks > 1 and device not in ("cpu", "cuda", "cuda:0"):
        raise SpecError(
            f"--device {device}: ranks use the GPUs from cuda:0 on, one each",
            hint="select GPUs with --gpu-ids or CUDA_VISIBLE_DEVICES",
        )


def with_ranks(*, or_one: bool = False) -> str:
    """Name the workloads that take several ranks (or also one); a family whose workloads all do by its name."""
    found: dict[str, list[Definition]] = {}
    for one in definitions():
        found.setdefault(one.name.partition("/")[0], []).append(one)
    names = []
    for family, its in found.items():
        several = [one.name for one in its if one.ranks.most > 1 and (one.ranks.least == 1 or not or_one)]
        names += [f"{family}/*"] if len(several) == len(its) else several
    return ", ".join(names)


def check_spec(spec: Spec) -> None:
    """Refuse a stored spec that its workload does not know: another name, a field too many, a value out of bounds."""
    family, _ = find(spec.workload)
    try:
        family.params.model_validate(spec.params)
    except ValidationError as error:
        raise SpecError(
            f"this stackmark cannot run the stored spec of {spec.workload}: {explain(error)}",
            hint="it was changed, or made by another version: measure again",
        ) from error


def _may_be_auto(field: FieldInfo) -> bool:
    return bool((field.json_schema_extra or {}).get("auto"))
