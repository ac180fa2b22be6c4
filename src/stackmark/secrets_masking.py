"""Keep the values of typed secrets out of everything that is stored or shown.

A secret is a variable whose name says so (`HF_TOKEN`, `AWS_SECRET_ACCESS_KEY`). Where a person types its value
(`--env HF_TOKEN=abc`, `--arm container,env=HF_TOKEN=abc`), the value is put aside in this process's memory the moment it is
read, and every option, label and command line holds `HF_TOKEN=***` from then on. So whatever is stored or printed later
cannot leak it: there is nothing to forget to mask. A masked value is looked up again when a worker is started, first among
the values that were put aside, then in the environment, which is where a later command (`resume`, `check`) finds it.
"""

import re
import shlex
from collections.abc import Mapping, Sequence

from stackmark.errors import SpecError

MASK = "***"
# Ends of words in names of variables that hold secrets. Plural `TOKENS` is left out: MAX_TOKENS is a number of tokens.
SECRET_WORDS = (
    "TOKEN", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "PASSCODE", "KEY", "KEYS", "CREDENTIAL",
    "CREDENTIALS", "AUTH", "AUTHORIZATION", "COOKIE", "BEARER", "JWT",
)  # fmt: skip
# Secrets only as whole words: COMPASS and BYPASS hold none.
WHOLE_WORDS = ("PASS", "PAT", "SAS")
ENV_OPTION = "--env"
ARM_OPTIONS = ("--arm", "--on")
_ENV_KEY = "env"
_WORD = re.compile(r"[A-Z]*[a-z]+|[A-Z]+|\d+")
_USER_OF_URL = re.compile(r"://[^/?#\s]*@")
# What this command was given. One value per name: a comparison of two values of one secret cannot be resumed.
_put_aside: dict[str, str] = {}


def forget() -> None:
    """Drop the values that were put aside: a new command begins."""
    _put_aside.clear()


def looks_secret(name: str) -> bool:
    """Tell whether the value of a variable of this name is a secret."""
    words = [word.upper().rstrip("0123456789") for word in re.split(r"[^A-Za-z0-9]+", name)]
    words += [word.upper() for word in _WORD.findall(name)]
    return any(word.endswith(SECRET_WORDS) or word in WHOLE_WORDS for word in words)


def masked_url(text: str) -> str:
    """Replace the user and the password in each URL of a text."""
    return _USER_OF_URL.sub(f"://{MASK}@", text)


def masked_variable(text: str) -> str:
    """Return `NAME=***` for a secret `NAME=value`; any other text comes back unchanged."""
    name, equals, value = text.partition("=")
    return f"{name}={MASK}" if equals and value and looks_secret(name) else text


def put_aside(text: str) -> str:
    """Remember the value of a secret `NAME=value` for this process, and return the text without it."""
    masked = masked_variable(text)
    if masked != text:
        name, _, value = text.partition("=")
        if _put_aside.setdefault(name, value) != value:
            raise SpecError(
                f"env: {name} has two values, but only its name is stored",
                hint="give the two secrets two names",
            )
    return masked


def is_by_name(text: str) -> bool:
    """Tell whether the value of a variable is to be looked up: `NAME`, or a secret whose value was masked."""
    name, equals, value = text.partition("=")
    return not equals or (value == MASK and looks_secret(name))


def value_of(name: str, environment: Mapping[str, str]) -> str:
    """Return the value of a variable that is given by name: as it was typed in this command, else from the environment."""
    value = _put_aside.get(name, environment.get(name))
    if value is None:
        raise SpecError(
            f"env: {name} is given only by name, but this environment has no variable {name}",
            hint=f"set it: export {name}=…",
        )
    return value


def masked_arm(text: str) -> str:
    """Return an arm as it was typed (`container,env=TOKEN=abc,shm=1g`) with the values of secrets masked."""
    text = masked_url(text)
    pieces: list[str] = []
    hidden = False
    for piece in text.split(","):
        if hidden and "=" not in piece:
            continue  # it goes on with the value before it
        key, equals, value = piece.partition("=")
        is_env = bool(equals) and key.strip() == _ENV_KEY
        masked = masked_variable(value.strip()) if is_env else value
        hidden = is_env and masked.endswith(f"={MASK}")
        pieces.append(f"{key}={masked}" if hidden else piece)
    return ",".join(pieces)


def masked_words(argv: Sequence[str]) -> list[str]:
    """Return the words of a stackmark command line with the values of secrets masked."""
    words: list[str] = []
    before = ""
    for word in argv:
        option, equals, value = word.partition("=")
        if before == ENV_OPTION:
            masked = masked_variable(word)
        elif before in ARM_OPTIONS:
            masked = masked_arm(word)
        elif equals and option == ENV_OPTION:
            masked = f"{option}={masked_variable(value)}"
        elif equals and option in ARM_OPTIONS:
            masked = f"{option}={masked_arm(value)}"
        else:
            masked = word
        words.append(masked)
        before = "" if before in (ENV_OPTION, *ARM_OPTIONS) else word
    return words


def masked_command(argv: Sequence[str]) -> str:
    """Return a stackmark command line, quoted for a shell, with the values of secrets masked."""
    return shlex.join(masked_words(argv))
