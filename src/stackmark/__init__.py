"""stackmark: one workload, one worker, every layer of the machine-learning stack.

The names below come from the chapters of `stackmark.api`. A chapter is loaded when the first of its names is used:
`import stackmark`, the worker and `stackmark --help` load nothing of them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    from stackmark.api.baselines import check, delete_baseline, list_baselines, save_baseline, show_baseline
    from stackmark.api.cluster_experiments import plan_fault, sweep
    from stackmark.api.clusters import clean_cluster, doctor, manifest, run_cluster_tests
    from stackmark.api.importing import import_arms, import_ledgers, import_logs, import_table, score_mlperf
    from stackmark.api.ledgers import Ledger, RunFilter, export, list_runs, recover
    from stackmark.api.limits import ceilings, kept_ceilings, roofline
    from stackmark.api.measuring import Progress, compare, noise, run
    from stackmark.api.published import add_published, search_published
    from stackmark.api.published_charts import published_chart
    from stackmark.api.scaling import ScalingTable, scale, scaling_table
    from stackmark.api.stack import bundle, facts, image
    from stackmark.api.stored import (
        Experiment,
        Measurement,
        Run,
        list_experiments,
        load,
        load_run,
    )
    from stackmark.api.suites import Suite, load_suite, resume_suite, suite
    from stackmark.api.verdicts import Verdict, VerdictTable, table_of_groups, verdict_of_groups
    from stackmark.errors import ClusterError, LedgerError, PlaceError, SpecError, StackmarkError, WorkerError

__all__ = [
    "ClusterError",
    "Experiment",
    "Ledger",
    "LedgerError",
    "Measurement",
    "PlaceError",
    "Progress",
    "Run",
    "RunFilter",
    "ScalingTable",
    "SpecError",
    "StackmarkError",
    "Suite",
    "Verdict",
    "VerdictTable",
    "WorkerError",
    "__version__",
    "add_published",
    "bundle",
    "ceilings",
    "check",
    "clean_cluster",
    "compare",
    "delete_baseline",
    "doctor",
    "export",
    "facts",
    "image",
    "import_arms",
    "import_ledgers",
    "import_logs",
    "import_table",
    "kept_ceilings",
    "list_baselines",
    "list_experiments",
    "list_runs",
    "load",
    "load_run",
    "load_suite",
    "manifest",
    "noise",
    "plan_fault",
    "published_chart",
    "recover",
    "resume_suite",
    "roofline",
    "run",
    "run_cluster_tests",
    "save_baseline",
    "scale",
    "scaling_table",
    "score_mlperf",
    "search_published",
    "show_baseline",
    "suite",
    "sweep",
    "table_of_groups",
    "verdict_of_groups",
]
# Where each name is, as the imports above say it to type checkers.
_CHAPTERS = {
    "api.baselines": ("check", "delete_baseline", "list_baselines", "save_baseline", "show_baseline"),
    "api.cluster_experiments": ("plan_fault", "sweep"),
    "api.clusters": ("clean_cluster", "doctor", "manifest", "run_cluster_tests"),
    "api.importing": ("import_arms", "import_ledgers", "import_logs", "import_table", "score_mlperf"),
    "api.ledgers": ("Ledger", "RunFilter", "export", "list_runs", "recover"),
    "api.limits": ("ceilings", "kept_ceilings", "roofline"),
    "api.measuring": ("Progress", "compare", "noise", "run"),
    "api.published": ("add_published", "search_published"),
    "api.published_charts": ("published_chart",),
    "api.scaling": ("ScalingTable", "scale", "scaling_table"),
    "api.stack": ("bundle", "facts", "image"),
    "api.stored": (
        "Experiment",
        "Measurement",
        "Run",
        "list_experiments",
        "load",
        "load_run",
    ),
    "api.suites": ("Suite", "load_suite", "resume_suite", "suite"),
    "api.verdicts": ("Verdict", "VerdictTable", "table_of_groups", "verdict_of_groups"),
    "errors": ("ClusterError", "LedgerError", "PlaceError", "SpecError", "StackmarkError", "WorkerError"),
}


if not TYPE_CHECKING:  # else a type checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from stackmark.version import version

            return version()
        chapter = next((chapter for chapter, names in _CHAPTERS.items() if name in names), None)
        if chapter is None:
            raise AttributeError(f"module 'stackmark' has no attribute {name!r}")
        from importlib import import_module

        found = getattr(import_module(f"stackmark.{chapter}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
