"""An operator list as a request or a spec names it: which problems it has, and which of them are to be timed."""

from stackmark.errors import SpecError
from stackmark.spec import Request, Spec
from stackmark.workloads.catalog import find
from stackmark.workloads.op.lists import problems, sets_of
from stackmark.workloads.op.params import OpParams
from stackmark.workloads.op.problem import BY_MACHINE, FIELDS, TYPED, Problem, read_rows, typed_problem

# More rows than any list may have: the pattern of --rows has six digits.
MOST_ROWS = 10**6


def is_list(workload: str) -> bool:
    """Whether a workload is gone through row by row."""
    try:
        family, _ = find(workload)
    except SpecError:  # of a package that is not installed any more
        return False
    return issubclass(family.params, OpParams)


def rows_of_spec(spec: Spec) -> tuple[int, ...]:
    rows = spec.params.get("rows")
    return tuple(read_rows(rows, MOST_ROWS)) if isinstance(rows, str) and rows else ()


def problem_of(spec: Spec, index: int) -> Problem:
    """The problem that a row is; without its shape where only the machine knows it."""
    op, params = spec.workload.partition("/")[2], spec.params
    if typed := typed_problem(op, params):
        return typed
    try:
        return problems(op, str(params.get("set")))[index]
    except (SpecError, IndexError):
        return Problem(op)


def check_list(request: Request) -> None:
    """Refuses what can be refused without a worker: a set, a row or a shape that there is not."""
    op, params = request.workload.partition("/")[2], request.typed()
    if not is_list(request.workload) or op not in FIELDS:
        return
    typed = typed_problem(op, params)
    name = str(params.get("set") or sets_of(op)[0])
    if typed and params.get("set", TYPED) != TYPED:
        raise SpecError("both a problem and a --set were given", hint="give one of them")
    if not typed and name == TYPED:
        raise SpecError(
            "--set typed is the one problem that is typed, and none was", hint="give --m --n --k, or --shape"
        )
    if op in BY_MACHINE:
        return
    count = 1 if typed else len(problems(op, name))
    if rows := params.get("rows"):
        read_rows(str(rows), count)


def length_of(spec: Spec) -> int | None:
    """How many problems its list has; None where only the machine knows."""
    op = spec.workload.partition("/")[2]
    if typed_problem(op, spec.params):
        return 1
    try:
        return len(problems(op, str(spec.params.get("set"))))
    except SpecError:
        return None
