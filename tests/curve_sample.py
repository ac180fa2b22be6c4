"""The package tests/curve_package as pip would have it: workloads that are trained to a quality in no time, by formula."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from stackmark.cli.main import FILES, VERBS
from worker_process import SOURCE

PACKAGE = Path(__file__).parent / "curve_package"
GNMT, MASKS = "curve/gnmt", "curve/maskrcnn"


@contextmanager
def announced_curves(folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """Put the package on the path of this process and of its workers.

    A command builds its options when it is imported, so commands are imported again here, and once more afterwards.
    """
    before = _forget_commands()
    try:
        with pytest.MonkeyPatch.context() as patch:
            _announce(folder, patch)
            yield patch
    finally:
        _forget_commands()
        sys.modules.update(before)


def _forget_commands() -> dict[str, ModuleType]:
    names = [f"stackmark.cli.{FILES.get(verb, verb.replace('-', '_'))}" for verb in VERBS]
    return {name: sys.modules.pop(name) for name in names if name in sys.modules}


def _announce(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = folder / "curves-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: curves\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stackmark.workloads]\ncurve = curves:FAMILY\n")
    monkeypatch.syspath_prepend(str(PACKAGE))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(PACKAGE), str(SOURCE)]))
