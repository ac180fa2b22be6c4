"""The reference data that the shipped tables are made from: they lie beside a checkout of ours, and in nobody else's."""

import os
from pathlib import Path

import pytest


def reference_data() -> Path:
    """Their folder; where they are not, the test is left out with one line."""
    named = os.environ.get("STACKMARK_REFERENCE")
    folder = Path(named) if named else Path(__file__).resolve().parent.parent.parent / "shared" / "reference"
    if not (folder / "tf_published.csv").is_file():
        pytest.skip("the reference data are not here; STACKMARK_REFERENCE names their folder")
    return folder
