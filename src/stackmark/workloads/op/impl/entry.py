"""Where a worker comes in: threads are pinned before the framework is loaded, and then the family is op.py."""

from stackmark.workloads.op.impl import pinning

pinning.settle()

from stackmark.workloads.op.impl.op import probe, run  # noqa: E402

__all__ = ["probe", "run"]
