"""Write the version into what is built: the file stackmark/VERSION of a wheel or an sdist.

An editable installation gets none. It runs from the checkout, where git knows the version at any moment.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TARGETS = {"wheel": "stackmark/VERSION", "sdist": "src/stackmark/VERSION"}


class VersionFile(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        handle, self._name = tempfile.mkstemp()
        with os.fdopen(handle, "w", encoding="ascii") as out:
            out.write(f"{self.metadata.version}\n")
        # As any other file of ours: a temporary file is readable for its owner alone.
        Path(self._name).chmod(0o644)
        build_data["force_include"][self._name] = TARGETS[self.target_name]

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            Path(self._name).unlink(missing_ok=True)
