"""Import foreign logs: one small file per format, from lines to results. This file finds the format of a log.

`FORMATS` is the table of ours; other packages add theirs by the entry point group `stackmark.importers`, whose objects are a
`Format` (docs/extending.md). A format has a mark, a pattern for lines that no other program prints, and an importer, of which
there is one for each source that a log holds (a file may be the output of several pods).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from stackmark.errors import SpecError, nearest_names
from stackmark.extensions import extensions
from stackmark.ledger.importers import (
    aiperf,
    deepbench,
    guidellm,
    inference_perf,
    llm_d,
    loadgen,
    mlperf_training,
    nvcnn,
    own_worker,
    reference_app,
    tf_cnn,
    vllm_bench,
)
from stackmark.ledger.importers.found import Found, Importer
from stackmark.ledger.importers.reading import LARGEST_BYTES, Log

GROUP = "stackmark.importers"
# A file with more results than this is not a log of a benchmark, and one with more sources than pods in a job no log at all.
MOST_RESULTS = 10_000
MOST_SOURCES = 1_000
# Characters of one file that are kept with its results.
MOST_KEPT = 64 * 1024**2


@dataclass(frozen=True)
class Format:
    """A kind of log: its name for `--format`, the program that prints it, and its reader."""

    name: str
    title: str
    # Found in a line of every such log, and in no line of another program.
    mark: re.Pattern[str]
    importer: Callable[[], Importer] | None = None
    # Whether each source in a log is a run of its own. The ranks of one MLPerf run share its log.
    by_source: bool = True
    # Whether its mark decides where a log has marks of others too: what our own worker passes on is part of its output.
    decides: bool = False
    largest_bytes: int = LARGEST_BYTES
    # Reads the whole file, instead of an importer of lines: JSON, YAML.
    reads: Callable[[Log], list[Found]] | None = None
    # A workload of its kind, for the hint where a log does not name its own.
    example: str = "train/resnet50"


FORMATS = {
    kind.name: kind
    for kind in (
        Format(tf_cnn.FORMAT, tf_cnn.TITLE, tf_cnn.MARK, tf_cnn.TfCnnImporter),
        Format(nvcnn.FORMAT, nvcnn.TITLE, nvcnn.MARK, nvcnn.NvcnnImporter),
        Format(deepbench.FORMAT, deepbench.TITLE, deepbench.MARK, deepbench.DeepBenchImporter),
        Format(mlperf_training.FORMAT, mlperf_training.TITLE, mlperf_training.MARK, mlperf_training.MlperfTrainingImporter,
               by_source=False),
        Format(loadgen.FORMAT, loadgen.TITLE, loadgen.MARK, loadgen.LoadGenImporter, example="serve/resnet50"),
        Format(reference_app.FORMAT, reference_app.TITLE, reference_app.MARK, reference_app.ReferenceAppImporter,
               example="serve/resnet50"),
        Format(vllm_bench.FORMAT, vllm_bench.TITLE, vllm_bench.MARK, reads=vllm_bench.read),
        Format(vllm_bench.LOG_FORMAT, vllm_bench.LOG_TITLE, vllm_bench.LOG_MARK, vllm_bench.VllmTableImporter),
        Format(guidellm.FORMAT, guidellm.TITLE, guidellm.MARK, reads=guidellm.read),
        Format(aiperf.FORMAT, aiperf.TITLE, aiperf.MARK, reads=aiperf.read),
        Format(aiperf.CSV_FORMAT, aiperf.CSV_TITLE, aiperf.CSV_MARK, reads=aiperf.read_table),
        Format(inference_perf.FORMAT, inference_perf.TITLE, inference_perf.MARK, reads=inference_perf.read),
        Format(llm_d.FORMAT, llm_d.TITLE, llm_d.MARK, reads=llm_d.read),
        Format(own_worker.FORMAT, own_worker.TITLE, own_worker.MARK, own_worker.OwnWorkerImporter, decides=True,
               largest_bytes=own_worker.LARGEST_BYTES),
    )
}  # fmt: skip


def formats() -> dict[str, Format]:
    """Return our formats and those of other packages by their names."""
    table = dict(FORMATS)
    for kind in extensions(GROUP, Format).found.values():
        table.setdefault(kind.name, kind)
    return table


def format_of(log: Log) -> Format:
    """Find the format of a log by its marks. A file with the marks of two is refused."""
    known = formats()
    any_mark = re.compile("|".join(f"(?:{kind.mark.pattern})" for kind in FORMATS.values()))  # most lines have none
    others = [kind for name, kind in known.items() if name not in FORMATS]
    seen: dict[str, int] = {}
    for line in log.lines():
        ours = FORMATS.values() if any_mark.search(line.text) else ()
        for kind in (*ours, *others):
            if kind.name not in seen and kind.mark.search(line.text):
                seen[kind.name] = line.number
    if not seen:
        raise SpecError(f"the format of {log.name} is unknown", hint=_say_formats(known))
    if deciding := next((name for name in seen if known[name].decides), None):
        return known[deciding]
    if len(seen) > 1:
        places = ", ".join(f"{name} (line {number})" for name, number in seen.items())
        raise SpecError(f"{log.name} contains several formats: {places}", hint="choose one with --format")
    return known[next(iter(seen))]


def _say_formats(known: dict[str, Format]) -> str:
    """List the formats, and those of other packages that could not be loaded: the log may be one of these."""
    broken = [f"not available: {error.message}" for error in extensions(GROUP, Format).broken.values()]
    table = "  a table (CSV): add --table"
    return "\n".join(["known formats:", *(f"  {kind.name}: {kind.title}" for kind in known.values()), table, *broken])


def find_format(name: str) -> Format:
    """Return the format that `--format` names."""
    known = formats()
    if name not in known:
        extensions(GROUP, Format).require(name)
        raise SpecError(
            f"--format: unknown format {name!r}{nearest_names(name, list(known))}",
            hint=f"formats: {', '.join(known)}",
        )
    return known[name]


class _Results:
    """What was found so far. Past `MOST_KEPT` characters of the log, further results come without its lines."""

    def __init__(self) -> None:
        self.found: list[Found] = []
        self._characters = 0

    def take(self, found: list[Found]) -> None:
        for one in found:
            self._characters += sum(len(line.raw) for line in one.lines)
            self.found.append(one if self._characters <= MOST_KEPT else replace(one, lines=one.lines[:1]))


def results_of(log: Log, kind: Format) -> list[Found]:
    """Return all results in a log, in the order found."""
    if log.size_bytes > kind.largest_bytes:
        raise SpecError(
            f"{log.name} is larger than {kind.largest_bytes >> 20} MiB, the limit for {kind.title}",
            hint="import it in parts",
        )
    kept = _Results()
    if kind.reads:
        kept.take(kind.reads(log))
        _refuse_many(kept.found, log)
    else:
        _read_lines(log, kind, kept)
    found = kept.found
    if not found:
        raise SpecError(
            f"{log.name} contains no output of {kind.title}",
            hint="is the log complete? without --format the format is detected",
        )
    return found


def _read_lines(log: Log, kind: Format, kept: _Results) -> None:
    assert kind.importer is not None
    importers: dict[str, Importer] = {}
    for line in log.lines():
        source = line.source if kind.by_source else ""
        importer = importers.get(source)
        if importer is None:
            if len(importers) == MOST_SOURCES:
                raise SpecError(f"{log.name} contains the output of more than {MOST_SOURCES} sources")
            importer = importers[source] = kind.importer()
        kept.take(importer.feed(line))
        _refuse_many(kept.found, log)
    for importer in importers.values():
        kept.take(importer.end())


def _refuse_many(found: list[Found], log: Log) -> None:
    if len(found) > MOST_RESULTS:
        raise SpecError(f"{log.name} contains more than {MOST_RESULTS} results", hint="import it in parts")
