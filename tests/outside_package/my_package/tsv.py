"""Operator lists as tab-separated values: `--format tsv`."""

from stackmark.show.list_formats import ListFormat, ListTable
from stackmark.spec import Spec
from stackmark.verdict.operators import ListResult


def table(spec: Spec, result: ListResult) -> ListTable:
    lines = [f"{spec.workload}\t{row.index}\t{row.seconds}" for row in result.good]
    return ListTable("\n".join(["workload\trow\tseconds", *lines]))


TSV = ListFormat("tsv", table)
