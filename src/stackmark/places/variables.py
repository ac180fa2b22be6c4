"""Variables that a person sets for a worker: `env=OMP_NUM_THREADS=1` in an arm, or `--env`, in every place.

Whatever is typed is set, also `LD_PRELOAD` or `PATH`: it is the user's own command line. From a ledger no variable is set that
was not typed on this machine, without a question (experiments/trust.py: `env` is not a plain option of any place). Values of
names that look secret are put aside the moment they are read, and only `NAME=***` is stored.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator

from stackmark.errors import SpecError
from stackmark.places.place import Several
from stackmark.secrets_masking import is_by_name, put_aside, value_of
from stackmark.spec import BIND_VARIABLE, TYPED_VARIABLE

# Reserved for what the place says itself: an env or label of the user's must not pretend to be ours.
OUR_VARIABLES = "STACKMARK_"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VARIABLES_HELP = "environment variable: NAME=VALUE, or NAME to copy its value from this environment; may be repeated"


def _without_secrets(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(put_aside(text) for text in texts)


Bind = Literal["none", "numa", "cores"]
BIND_HELP = (
    "bind each process to CPUs: numa (those of one NUMA node, of the one that its GPU is attached to), cores (whole cores of its "
    "own), none"
)
Variables = Annotated[Several, AfterValidator(_without_secrets)]


class WithVariables:
    """Options with variables. Each place declares the field, with help of its own."""

    if TYPE_CHECKING:  # not fields: they would come first in help
        env: tuple[str, ...]
        bind: Bind

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables whose values were typed."""
        return {name: value for name, value in variables_of(self.env).items() if value is not None}

    @property
    def named_variables(self) -> tuple[str, ...]:
        """Return the variables given only by name: their values are looked up when a worker is started."""
        return tuple(name for name, value in variables_of(self.env).items() if value is None)

    @property
    def worker_variables(self) -> dict[str, str]:
        """Return what our worker alone is told: how it binds itself, and which variables were typed, for its facts.

        A value given by name stays unsaid.
        """
        names = {TYPED_VARIABLE: ",".join(self.variables)} if self.variables else {}
        return {**names, **({BIND_VARIABLE: self.bind} if self.bind != "none" else {})}

    def all_variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return all variables with their values; those given by name are looked up."""
        return {**self.variables, **{name: value_of(name, environment) for name in self.named_variables}}


def variables_of(texts: Sequence[str]) -> dict[str, str | None]:
    """Return variables by name, each with its value, or None where only the name is given. The last of several counts."""
    return dict(_variable(text) for text in texts)


def _variable(text: str) -> tuple[str, str | None]:
    name, _, value = text.partition("=")
    if not NAME.fullmatch(name):
        # Without the value: it may be a secret, whatever its name is.
        raise SpecError(
            f"env: {name!r} is not the name of a variable", hint="write it like OMP_NUM_THREADS=4, or HF_TOKEN"
        )
    if name.startswith(OUR_VARIABLES):
        raise SpecError(f"env: {name} is reserved for stackmark", hint="leave it out")
    if "\0" in value or "\n" in value:
        raise SpecError(
            f"env: the value of {name} has a line break", hint="put the value into a file and mount the file"
        )
    return name, None if is_by_name(text) else value
