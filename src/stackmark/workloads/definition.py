"""The definition of a workload, without a framework: everything that help, documents, verdicts and reports need.

A definition says what is measured; its implementation (workloads/*/impl, or a module of another package) does it, and is
imported by a worker alone. Other people's packages announce theirs by the entry point group `stackmark.workloads`: its object
is a `Family`, or an `Operator`, which joins `op/`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Literal, cast

from stackmark.extensions import Extensions, extensions
from stackmark.figures import rate_unit_of
from stackmark.ranks import MOST_RANKS
from stackmark.spec import AnyParams, Params, Scalar
from stackmark.workloads.op.problem import Operator
from stackmark.workloads.workload import Workload

GROUP = "stackmark.workloads"


@dataclass(frozen=True)
class MetricType:
    """The figure of a run: its name, its unit, and which direction is better."""

    name: str
    unit: str
    higher_is_better: bool = True


@dataclass(frozen=True)
class Ranks:
    """The number of processes that may make one run together."""

    least: int = 1
    most: int = 1


ONE_RANK, SEVERAL_RANKS = Ranks(), Ranks(2, MOST_RANKS)


@dataclass(frozen=True)
class SampleBytes:
    """Bytes moved for one sample: at least, and as the framework calls its operators one by one."""

    least: float
    called: float


@dataclass(frozen=True)
class Definition:
    """One workload. Counts are of one forward pass of one sample; 0: not counted."""

    name: str
    title: str
    # What is counted, in the singular: image, sequence, call, run.
    sample: str
    sequence_tokens: int = 0
    params: int = 0
    forward_macs: int = 0
    training_flops: int = 0
    # How it is timed: step by step, whole from its start to its end, row by row of a list of problems, or until it reaches a
    # quality.
    timed: Literal["steps", "whole", "rows", "quality"] = "steps"
    # None: the figure depends on the problem or on the user's program, and each result says what it is.
    metric: MetricType | None = None
    # Of one whose figure depends on its parameters: which it is; None: they do not say it either.
    metric_by: Callable[[Mapping[str, Scalar]], MetricType | None] = lambda _params: None
    # Of a workload that is trained to a quality: what each evaluation measures, in the order of its parameter `target`.
    qualities: tuple[MetricType, ...] = ()
    # Metrics of a run that a comparison judges next to the figure, by the same blocks: percentiles of latency.
    compared: tuple[MetricType, ...] = ()
    ranks: Ranks = ONE_RANK
    # The parameter that says how many samples a step has; empty: a result may count what it likes.
    samples_per_step: str = ""
    # Bytes of a sample by the parameters of a spec, for results that do not have them; None: not known.
    sample_bytes: Callable[[Mapping[str, Scalar]], SampleBytes | None] = lambda _params: None
    # Set for a list of problems of one operator.
    operator: Operator | None = None
    # Why this workload cannot run with what was typed, where its family's parameters alone cannot tell; empty: it can.
    refuses: Callable[[Mapping[str, Scalar]], str] = lambda _typed: ""
    # Names under which others publish the same network: `infer/NAME` is its forward pass.
    published_as: tuple[str, ...] = ()

    @property
    def samples(self) -> str:
        return f"{self.sample}s"

    @property
    def unit(self) -> str:
        """Return what a rate is counted in, as the ledger has it, where a result does not say it."""
        if self.metric is None:
            return f"{self.samples}/s"
        return rate_unit_of(self.metric.unit, higher_is_better=self.metric.higher_is_better)

    @property
    def verb(self) -> str:
        """Name the command that measures it, where `run` does not."""
        return self.operator.verb if self.operator else ""


@dataclass(frozen=True)
class Family:
    """Workloads with the same parameters and one implementation, whose module is a `Workload`.

    `name` is the part of their names before the slash. Where several families have one name, each but the first holds one
    workload: `serve/endpoint` has other parameters than the networks of `serve/`.
    """

    name: str
    params: type[AnyParams]
    module: str
    definitions: tuple[Definition, ...]
    # Whether it runs a program of the user's, who decides its folder and the unit of its figure.
    own_program: bool = False
    # The parameters that a result shows; all of them are in the spec. Empty: those that are not of every workload.
    shown: tuple[str, ...] = ()
    # What a comparison takes where nothing was typed: choices that differ from process to process would be noise in it.
    compared_with: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def settings(self) -> tuple[str, ...]:
        own = (name for name in self.params.model_fields if name not in Params.model_fields)
        return self.shown or ("device", *own)

    def load(self) -> Workload:
        """Import the implementation, and with it the framework: only a worker does this."""
        return cast(Workload, import_module(self.module))


def operator_definition(family: str, operator: Operator) -> Definition:
    """Return the workload that goes through the problems of an operator."""
    return Definition(
        f"{family}/{operator.name}",
        operator.title,
        "call",
        timed="rows",
        ranks=SEVERAL_RANKS if operator.exchange else ONE_RANK,
        operator=operator,
        refuses=_refuses_zeros,
    )


def _refuses_zeros(typed: Mapping[str, Scalar]) -> str:
    """Refuse a size of 0 that was typed: 0 is what a specification has where a list is meant."""
    zeros = [f"--{name}" for name in ("m", "n", "k") if name in typed and typed[name] == 0]
    return f"{' and '.join(zeros)} must be at least 1, got 0" if zeros else ""


def outside() -> Extensions[Family | Operator]:
    """Load what other packages announce."""
    return extensions(GROUP, Family, Operator)
