"""Decide which parts of a stored spec may run here without a question: those that this user typed on this machine.

Whoever may write a ledger may change what `check` and `resume` run. So a spec that names a command, a path, an environment, an
image or rights is run only if the same was typed here before, or is confirmed. The list of what was typed lies outside of every
ledger, in the user's own state folder, as SHA-256 digests: it is asked for by equality and shown to nobody.

Any text counts as such a name unless its parameter says otherwise (`plain`), and any option of a place unless its model does
(`PLAIN`): a parameter that is added later is asked about until somebody decides that it is harmless.
"""

import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_origin

from pydantic import JsonValue, ValidationError

from stackmark.errors import SpecError
from stackmark.experiments.driver import machine_name
from stackmark.experiments.typed import extra_of, pattern_of
from stackmark.model import FieldInfo
from stackmark.places.registry import find_kind, place_kinds
from stackmark.spec import Scalar, Spec
from stackmark.workloads.registry import families, find

# Far more than anybody types; the oldest are forgotten, and asked about again.
MOST_REMEMBERED = 20_000
# What this process was told to run: typed, confirmed, or under --trust-ledger.
_allowed: set[str] = set()


@dataclass(frozen=True)
class Part:
    """The part of a spec and its place that decides which program runs, on which files, with which rights."""

    workload: str
    place: str
    params: Mapping[str, Scalar] = field(default_factory=dict)
    options: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        whole = [machine_name(), self.workload, self.place, dict(self.params), dict(self.options)]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

    def lines(self) -> list[str]:
        """Describe what would be run, for the person who decides about it."""
        values = {**self.params, **self.options}
        return [f"{self.workload} on {self.place}", *(f"  {name}: {_shown(value)}" for name, value in values.items())]


def parts_of(runs: Iterable[tuple[Spec, str, Mapping[str, JsonValue]]]) -> list[Part]:
    """Return what needs trust in these specs, with place and options; each part once."""
    found = [part for spec, place, options in runs if (part := _part(spec, place, options))]
    return list({part.digest: part for part in found}.values())


def unknown(parts: Sequence[Part]) -> list[Part]:
    """Return the parts that this user neither typed nor confirmed on this machine."""
    asked = [part for part in parts if part.digest not in _allowed]
    known = _remembered() if asked else set()
    return [part for part in asked if part.digest not in known]


def allow(parts: Sequence[Part]) -> None:
    """Let this process run these parts, without noting them for later."""
    _allowed.update(part.digest for part in parts)


def require(spec: Spec, place: str, options: Mapping[str, JsonValue]) -> None:
    """Refuse to run what was not typed or confirmed: the ledger may have changed since the question was asked."""
    if new := unknown(parts_of([(spec, place, options)])):
        raise SpecError(
            f"not run, because it was not typed on this machine: {'; '.join(line.strip() for line in new[0].lines())}",
            hint="the ledger was changed while this command ran: look at it, and at who can write to it",
        )


def remember(parts: Sequence[Part]) -> None:
    """Note what was typed or confirmed here. Where that cannot be written, the question is asked again later."""
    noted = [*parts, *_kubeconfigs(parts)]
    known = _remembered() if noted else set()
    new = [one.digest for one in noted if one.digest not in known]
    allow(noted)
    if not new:
        return
    file = _file()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "r+") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            lines = [*stream.read().splitlines(), *new]
            if len(lines) > MOST_REMEMBERED:
                stream.seek(0)
                stream.truncate()
                new = lines[-MOST_REMEMBERED // 2 :]
            stream.writelines(f"{line}\n" for line in new)


def is_known_kubeconfig(path: str) -> bool:
    """Tell whether a kubeconfig was named here: it may hold a command that fetches credentials."""
    return not unknown([_kubeconfig(path)])


def _kubeconfigs(parts: Sequence[Part]) -> list[Part]:
    return [_kubeconfig(str(part.options["kubeconfig"])) for part in parts if "kubeconfig" in part.options]


def _kubeconfig(path: str) -> Part:
    return Part("", "pod", {}, {"kubeconfig": path})


def _part(spec: Spec, place: str, options: Mapping[str, JsonValue]) -> Part | None:
    """None where nothing needs trust, and where nothing can run: a workload, place or option that is not known here."""
    try:
        fields = find(spec.workload)[0].params.model_fields
        read = find_kind(place).options.model_validate(dict(options))
    except (SpecError, ValidationError):
        return None
    params = {
        name: value for name, value in spec.params.items() if name in fields and not _is_plain(fields[name], value)
    }
    given = read.model_dump(mode="json", exclude_defaults=True)
    rights = {name: value for name, value in given.items() if name not in read.PLAIN}
    return Part(spec.workload, place, params, rights) if params or rights else None


def _is_plain(info: FieldInfo, value: Scalar) -> bool:
    plain = extra_of(info).get("plain", False)
    return (
        not isinstance(value, str)
        or plain is True
        or value == info.default
        or (isinstance(plain, list) and value in plain)
        or bool(pattern_of(info))
        or get_origin(info.annotation) is Literal
    )


def is_harmless(name: str, value: Scalar) -> bool | None:
    """Tell whether a parameter or an option of a place is harmless with this value, wherever it exists; None: it is neither.

    The value is as it was typed: the number of a parameter that takes one may be a text.
    """
    fields = [family.params.model_fields[name] for family in families().values() if name in family.params.model_fields]
    kinds = [kind.options for kind in place_kinds().values() if name in kind.options.model_fields]
    if not fields and not kinds:
        return None
    numbers = (int, float, bool)
    return all(info.annotation in numbers or _is_plain(info, value) for info in fields) and all(
        name in options.PLAIN for options in kinds
    )


def _remembered() -> set[str]:
    """The digests in the file. One that somebody else may write is not believed."""
    try:
        descriptor = os.open(_file(), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, RuntimeError):
        return set()
    with os.fdopen(descriptor, errors="replace") as stream:
        seen = os.fstat(stream.fileno())
        if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o022:
            return set()
        return set(stream.read().split())


def _file() -> Path:
    """`$XDG_STATE_HOME/stackmark/trusted`; the XDG specification says to ignore a path that is not absolute."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = Path(os.environ.get("HOME") or Path.home()) / ".local" / "state"
    return state / "stackmark" / "trusted"


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
