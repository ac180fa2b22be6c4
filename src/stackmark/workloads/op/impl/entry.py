"""The worker's entry point: pins threads before the framework is loaded; then the family is op.py."""

from stackmark.workloads.op.impl import pinning

pinning.settle()

from stackmark.workloads.op.impl.op import probe, run  # noqa: E402

__all__ = ["probe", "run"]
