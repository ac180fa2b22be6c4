"""The targets, by name."""

from fuzz.harness import Target
from fuzz.targets import ledger, logs, options, patch, published, spec, stream

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        stream.TARGET,
        *logs.TARGETS,
        spec.TARGET,
        options.TARGET,
        published.TARGET,
        ledger.TARGET,
        patch.TARGET,
    )
}
