"""`--patch FILE`: read, and merged into a Job."""

from pathlib import Path

from fuzz.harness import Target, Try
from stackmark.kubernetes.manifest.patch import patched_for, read_patch

_JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "a", "namespace": "b", "labels": {}},
    "spec": {
        "backoffLimit": 0,
        "template": {
            "metadata": {"labels": {}},
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "worker", "image": "x", "env": [{"name": "A", "value": "1"}]}],
                "volumes": [{"name": "v", "emptyDir": {}}],
            },
        },
    },
}


def _prepare(folder: Path) -> Try:
    path = folder / "patch.yaml"

    def attempt(data: bytes) -> None:
        path.write_bytes(data)
        patched_for(_JOB, read_patch(str(path)))

    return attempt


TARGET = Target("patch", _prepare)
