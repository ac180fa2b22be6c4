"""What people type: quantities, moments, arms with options of places and parameters, classic flags, searches.

An input is a line for each text: a word that says how it is read, a tab, the text.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fuzz.harness import Target, Try
from stackmark.cli.options import parameter_fields, parse_when, read_margin
from stackmark.errors import StackmarkError
from stackmark.experiments.arms import read_arm
from stackmark.experiments.importing import read_params
from stackmark.experiments.tf_cnn_flags import parse
from stackmark.experiments.typed import read_value
from stackmark.places.container.options import cpu_numbers
from stackmark.published.search import search, understand
from stackmark.published.table import load
from stackmark.units import parse_seconds, parse_share, parse_size
from stackmark.workloads.op.problem import read_rows


def _parameter(text: str) -> None:
    name, _, value = text.partition("=")
    info = parameter_fields().get(name)
    if info is not None:
        read_value(f"--{name}", info, value)


def _search(text: str) -> None:
    rows = load()
    search(rows, understand(text[:1000], rows))


READERS: dict[str, Callable[[str], object]] = {
    "size": parse_size,
    "seconds": parse_seconds,
    "share": parse_share,
    "margin": read_margin,
    "when": lambda text: parse_when("--since", text),
    "cpus": cpu_numbers,
    "rows": lambda text: read_rows(text, 10**6),
    "param": lambda text: read_params([text]),
    "parameter": _parameter,
    "arm": lambda text: read_arm(text, "train/resnet50"),
    "flags": lambda text: parse(text.split(" ")),
    "search": _search,
}


def _prepare(_folder: Path) -> Try:
    return _try


def _try(data: bytes) -> None:
    for line in data.decode("utf-8", "surrogateescape").split("\n")[:100]:
        kind, _, text = line.partition("\t")
        if kind in READERS:
            with suppress(StackmarkError):
                READERS[kind](text)


TARGET = Target("options", _prepare)
