"""Prompts: of random words with a length in tokens, or real ones from a file; and the files of arrivals.

Lengths and arrivals follow from the seed, the run's number in its experiment and the request's number, so the arms of a block
have the same ones, whatever the number of processes. The words are new in each run: a server that keeps the beginnings of
prompts (prefix cache) would answer those of an earlier run, or of the other arm, without computing them.
"""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stackmark.workloads.serve.endpoint import LONGEST_S, LONGEST_TOKENS, EndpointParams, burst_of, read_lengths
from stackmark.workloads.workload import WorkloadFailure

# One token each in the usual vocabularies; how many tokens a word really has is measured (Scale).
_WORDS = (
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but what "
    "all were when we there can an your which their said if do will each about how up out them then she many some "
    "so these would other into has more her two like him see time could no make than first been its who now "
    "people my made over did down only way find use may water long little very after words called just where most "
    "know"
)
WORDS = tuple(_WORDS.split())
MOST_FILE_BYTES = 256 * 2**20
MOST_ARRIVALS = 1_000_000


@dataclass(frozen=True)
class Scale:
    """How many tokens this server makes of a prompt: some for its template, and some for each word."""

    template: float = 0.0
    per_word: float = 1.0

    def words(self, tokens: int) -> int:
        return max(1, round((tokens - self.template) / self.per_word))


@dataclass(frozen=True)
class Prompt:
    """What one request asks: a text or the messages of a chat, with its length in tokens (0: not known), and the answer's."""

    prompt: object
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Prompts:
    """All prompts of a run, by the number of the request. `real` are those of a file, in turn.

    `salt` makes the words of this run different from those of any other, `repetition` is the run's number in its experiment.
    """

    params: EndpointParams
    scale: Scale = Scale()
    real: Sequence[Prompt] = ()
    salt: str = ""
    repetition: int = 0

    def number(self, index: int) -> Prompt:
        """Return what the request with this number asks; a warm-up's are negative."""
        if self.real:
            return self.real[index % len(self.real)]
        source = random.Random(f"{self.params.seed}:{self.repetition}:{index}")
        tokens = read_lengths(self.params.prompt).draw(source)
        output = read_lengths(self.params.generate).draw(source)
        words = random.Random(f"{self.salt}:{index}")
        return Prompt(self.text(self.scale.words(tokens), words), tokens, output)

    def text(self, words: int, source: random.Random) -> str:
        common = round(self.params.prefix_share * words)
        same = random.Random(self.params.seed).choices(WORDS, k=common) if common else []
        return " ".join([*same, *source.choices(WORDS, k=words - common)])


def _bad(message: str, hint: str) -> WorkloadFailure:
    return WorkloadFailure("bad_data", message, hint)


def _lines(name: str, option: str) -> list[tuple[int, str]]:
    """Read the lines of a file that are not empty, with their numbers."""
    path = Path(name)
    try:
        if path.stat().st_size > MOST_FILE_BYTES:
            raise _bad(f"{option} {name} is larger than {MOST_FILE_BYTES >> 20} MiB", "give a part of it")
        text = path.read_text("utf-8")
    except OSError as error:
        hint = "give its whole path; in a container or a pod, mount it: --mount FILE:FILE"
        raise _bad(f"{option} {name} cannot be read: {error.strerror}", hint) from error
    except UnicodeDecodeError as error:
        raise _bad(f"{option} {name} is not UTF-8", "write it as UTF-8") from error
    return [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def read_prompts(params: EndpointParams) -> tuple[Prompt, ...]:
    """Read a file of real prompts: JSON lines with `prompt` or `messages`, and `generate` where the answer's length is known."""
    name, found = params.prompts, []
    source = random.Random(params.seed)
    for number, line in _lines(name, "--prompts"):
        try:
            one = json.loads(line)
        except (ValueError, RecursionError):
            one = None
        prompt = (one.get("messages") or one.get("prompt")) if isinstance(one, dict) else None
        if not isinstance(one, dict) or not _is_prompt(prompt, params.protocol):
            wanted = "prompt, a text" if params.protocol == "completions" else "prompt, a text, or messages"
            raise _bad(f"--prompts {name}, line {number}: not a JSON object with {wanted}", "see: docs/endpoints.md")
        output = one.get("generate")
        if output is None:
            output = read_lengths(params.generate).draw(source)
        if not isinstance(output, int) or isinstance(output, bool) or not 1 <= output <= LONGEST_TOKENS:
            raise _bad(f"--prompts {name}, line {number}: generate is not a number of tokens", "give 1 or more")
        found.append(Prompt(prompt, 0, output))
    if not found:
        raise _bad(f"--prompts {name} holds no prompt", "give a file with a JSON object per line")
    return tuple(found)


def _is_prompt(prompt: Any, protocol: str) -> bool:
    if isinstance(prompt, str):
        return bool(prompt)
    messages = isinstance(prompt, list) and protocol == "chat"
    return messages and all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in prompt)


# --- arrivals -------------------------------------------------------------------------------------------------------------


def arrivals_of(params: EndpointParams, rate: float, repetition: int = 0) -> list[float]:
    """Return the moments of an open loop, in seconds after its start. They depend on nothing but the parameters."""
    source = random.Random(f"arrivals:{params.seed}:{repetition}:{rate}")
    burst = burst_of(params.arrivals)
    each = burst or 1
    found: list[float] = []
    at, number = 0.0, 0
    while len(found) < (params.requests or MOST_ARRIVALS):
        # Of a constant rate the first is due at once; of random moments, and of bursts, after the first wait.
        if params.arrivals == "poisson" or burst:
            at += source.expovariate(rate / each)
        else:
            at = number / rate
        if params.seconds and at >= params.seconds:
            break
        found += [at] * each
        number += 1
    return found[: params.requests or MOST_ARRIVALS]


def read_arrivals(params: EndpointParams) -> list[float]:
    """Read a file with a moment in seconds per line: a number, or a JSON object with `at`. The first one begins at 0."""
    name, found = params.arrivals, []
    for number, line in _lines(name, "--arrivals"):
        if number == 1 and not line.startswith("{") and not line[0].isdigit():
            raise _bad(
                f"--arrivals is poisson, constant, burst, burst:N or a file, but {name} begins with {line[:40]!r}",
                "give a moment in seconds per line",
            )
        try:
            one = json.loads(line)
            at = float(one["at"] if isinstance(one, dict) else one)
        except (ValueError, TypeError, KeyError, RecursionError):
            at = math.nan
        if not 0 <= at <= 1e12:
            raise _bad(f"--arrivals {name}, line {number}: not a moment in seconds", "give a number per line")
        found.append(at)
    found.sort()
    found = [at - found[0] for at in found if at - found[0] <= LONGEST_S]
    if params.seconds:
        found = [at for at in found if at < params.seconds]
    if not found or len(found) > MOST_ARRIVALS:
        raise _bad(f"--arrivals {name} has {len(found):,} moments", f"give between 1 and {MOST_ARRIVALS:,}")
    return found[: params.requests or None]
