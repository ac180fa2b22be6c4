"""Read an operator list from a request or a spec: which problems it has, and which of them are timed."""

from stackmark.errors import SpecError
from stackmark.spec import Request, Spec
from stackmark.workloads.op.definition import problems, sets_of, typed_problem
from stackmark.workloads.op.problem import TYPED, Operator, Problem, read_rows
from stackmark.workloads.registry import known

# More rows than any list may have: the pattern of --rows has six digits.
MOST_ROWS = 10**6


def is_list(workload: str) -> bool:
    """Tell whether a workload is gone through row by row."""
    found = known(workload)
    return found is not None and found.timed == "rows"


def _operator(workload: str) -> Operator | None:
    found = known(workload)
    return found.operator if found else None


def rows_of_spec(spec: Spec) -> tuple[int, ...]:
    rows = spec.params.get("rows")
    return tuple(read_rows(rows, MOST_ROWS)) if isinstance(rows, str) and rows else ()


def problem_of(spec: Spec, index: int) -> Problem:
    """Return the problem of a row, without its shape where only the machine knows it."""
    op = spec.workload.partition("/")[2]
    if _operator(spec.workload) is None:
        return Problem(op)
    if typed := typed_problem(op, spec.params):
        return typed
    try:
        return problems(op, str(spec.params.get("set")))[index]
    except (SpecError, IndexError):
        return Problem(op)


def check_list(request: Request) -> None:
    """Refuse what can be refused without a worker: a set, a row or a shape that there is not."""
    operator, params = _operator(request.workload), request.typed()
    if operator is None or not operator.fields:
        return
    op = operator.name
    typed = typed_problem(op, params)
    name = str(params.get("set") or sets_of(op)[0])
    if typed and params.get("set", TYPED) != TYPED:
        raise SpecError("give the sizes of one problem or --set, not both", hint="leave one of them out")
    if not typed and name == TYPED:
        raise SpecError("--set typed needs the sizes of a problem", hint="give --m --n --k, or --shape")
    if operator.by_machine:
        return
    count = 1 if typed else len(problems(op, name))
    if rows := params.get("rows"):
        read_rows(str(rows), count)


def length_of(spec: Spec) -> int | None:
    """Return how many problems its list has; None where only the machine knows."""
    operator = _operator(spec.workload)
    if operator is None or operator.by_machine:
        return None
    if typed_problem(operator.name, spec.params):
        return 1
    try:
        return len(problems(operator.name, str(spec.params.get("set"))))
    except SpecError:
        return None
