"""The package tests/curve_package as pip would have it: workloads that are trained to a quality in no time, by formula."""

import os
from pathlib import Path

import pytest

from worker_process import SOURCE

PACKAGE = Path(__file__).parent / "curve_package"
GNMT, MASKS = "curve/gnmt", "curve/maskrcnn"


def announce_curves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the package on the path of this process and of its workers."""
    info = folder / "curves-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: curves\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stackmark.workloads]\ncurve = curves:FAMILY\n")
    monkeypatch.syspath_prepend(str(PACKAGE))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(PACKAGE), str(SOURCE)]))
