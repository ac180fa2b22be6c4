"""The kinds of experiments: the one table where a command looks up what a stored experiment is.

Each kind has a file of its own. Those that `stackmark resume` goes on with (run, compare, noise, scale, operator list, sweep)
offer the same under the same names: `start` probes and stores the plan, `carry_out` makes the missing runs, and `parts_in` names
what of the plan must be trusted before that. What a stored experiment shows is computed by `examine…` or `read_…`, without
running anything.

| kind | its file |
|---|---|
| run | run.py; collecting.py for pods that no process waited for |
| operator list | operator_list.py |
| compare, noise | compare.py; design.py has the order of the runs, progress.py the next one, examine.py the verdict |
| scale | scale.py; carried out as a comparison, and scaling.py has what it shows |
| import | importing.py |
| check | check.py; baseline.py has what it is compared with |
| sweep | sweep/ |
| fault | faulting.py; fault_finding.py has what it shows |
| suite | suite/: its rows are experiments of their own, of the kinds run, operator list and compare |
"""

from dataclasses import dataclass

from stackmark.errors import SpecError
from stackmark.experiments.list_specs import is_list
from stackmark.ledger.rows import Experiment
from stackmark.ledger.store import Ledger


@dataclass(frozen=True)
class ExperimentKind:
    """A kind of experiment: its names, and the questions it answers."""

    name: str
    title: str
    made_by: str
    # The command that fits, where another was tried; `{id}` stands for the experiment.
    see: str
    # Its runs belong to arms: `verdict`, `report`, `plot` and `roofline` take it.
    has_arms: bool = True
    # The runs come in blocks, in an order that was fixed before the first of them.
    has_blocks: bool = False
    # All arms are one and the same.
    is_one_side: bool = False
    # The runs were read from logs of another program: they cannot be made again.
    from_logs: bool = False


RUN = ExperimentKind("run", "an experiment of one arm", "stackmark run", "see it: stackmark show {id}")
# Stored as a run: its workload tells it apart.
OPERATOR_LIST = ExperimentKind(
    "operator list", "an operator list of one arm", "stackmark run", "see its table: stackmark show {id}"
)
COMPARE = ExperimentKind(
    "compare", "a comparison", "stackmark compare", "see its verdict: stackmark verdict {id}", has_blocks=True
)
NOISE = ExperimentKind(
    "noise",
    "a comparison of one arm with itself",
    "stackmark noise",
    "see its verdict: stackmark verdict {id}",
    has_blocks=True,
    is_one_side=True,
)
SCALE = ExperimentKind(
    "scale",
    "a measurement of scaling",
    "stackmark scale",
    "see its verdict: stackmark verdict {id}",
    has_blocks=True,
)
IMPORT = ExperimentKind(
    "import", "an import of logs", "stackmark import", "see its runs: stackmark show {id}", from_logs=True
)
CHECK = ExperimentKind("check", "a check against a baseline", "stackmark check", "see its verdict: stackmark show {id}")
SWEEP = ExperimentKind(
    "sweep",
    "a sweep of a cluster",
    "stackmark cluster sweep",
    "see it or continue it: stackmark cluster sweep --resume {id}",
    has_arms=False,
)
FAULT = ExperimentKind(
    "fault", "a fault in a cluster", "stackmark cluster fault", "see it: stackmark show {id}", has_arms=False
)
SUITE = ExperimentKind("suite", "a suite", "stackmark suite run", "see its table: stackmark show {id}", has_arms=False)
KINDS = {kind.name: kind for kind in (RUN, OPERATOR_LIST, COMPARE, NOISE, SCALE, IMPORT, CHECK, SWEEP, FAULT, SUITE)}


def kind_of(experiment: Experiment) -> ExperimentKind:
    """Return the kind as it is stored: an operator list is a run here."""
    return KINDS[experiment.kind]


def kind_in(ledger: Ledger, experiment: Experiment) -> ExperimentKind:
    """Return the kind as a person sees it. Rows of an imported log are runs of their own, not a list."""
    kind = kind_of(experiment)
    rows = ledger.runs_of(experiment.id) if kind is RUN else []
    return OPERATOR_LIST if rows and is_list(rows[0].workload) else kind


def require(experiment: Experiment, wanted: ExperimentKind) -> None:
    """Refuse an experiment of another kind."""
    if kind_of(experiment) is not wanted:
        raise _other_kind(experiment, wanted.title)


def require_arms(experiment: Experiment) -> None:
    """Refuse an experiment whose runs are not those of arms: nothing can be compared in it."""
    if not kind_of(experiment).has_arms:
        raise _other_kind(experiment, "an experiment with arms")


def refuse_suite(experiment: Experiment) -> None:
    """Refuse a suite where runs are needed: its rows have them."""
    if kind_of(experiment) is SUITE:
        raise SpecError(
            f"{experiment.id} is a suite, which has no runs of its own",
            hint=f"name one of its rows, x-…: stackmark suite show {experiment.id} --json",
        )


def require_blocks(experiment: Experiment) -> None:
    """Refuse an experiment that has no order of runs to go on with."""
    if not kind_of(experiment).has_blocks:
        raise _other_kind(experiment, "a comparison in blocks")


def _other_kind(experiment: Experiment, wanted: str) -> SpecError:
    kind = kind_of(experiment)
    return SpecError(
        f"{experiment.id} is {kind.title}, made by `{kind.made_by}`, not {wanted}",
        hint=kind.see.format(id=experiment.id),
    )
