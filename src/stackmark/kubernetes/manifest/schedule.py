"""A schedule of cron, as the CronJob controller reads it (robfig/cron): five fields, so that a slip is a sentence before anything
is applied."""

from stackmark.errors import SpecError

WORDS = frozenset({"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"})
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
# Sunday is 0, and 7 is no day.
RANGES = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 6))
HINT = 'write it like "0 * * * *" (minute, hour, day of month, month, day of week)'


def read_schedule(text: str) -> str:
    words = text.split()
    if len(words) == 1 and words[0] in WORDS:
        return words[0]
    if len(words) != len(RANGES):
        raise SpecError(f"the schedule {text!r} has {len(words)} fields, and cron's has five", hint=HINT)
    for word, (name, low, high) in zip(words, RANGES, strict=True):
        if not all(_is_part(part, name, low, high) for part in word.split(",")):
            raise SpecError(f"the schedule {text!r} has {word!r} where the {name} stands ({low}-{high})", hint=HINT)
    return " ".join(words)


def _is_part(text: str, name: str, low: int, high: int) -> bool:
    """`*`, `5`, `1-5`, `*/15`, `1-30/2`; months and days of the week also by name."""
    span, slash, step = text.partition("/")
    if slash and not (_is_number(step) and int(step) >= 1):
        return False
    if span in ("*", "?"):
        return True
    first, dash, last = (_number(word, name) for word in span.lower().partition("-"))
    if not _is_number(first) or (dash and not _is_number(last)):
        return False
    return low <= int(first) <= int(last or first) <= high


def _number(word: str, name: str) -> str:
    if name == "month" and word in MONTHS:
        return str(MONTHS.index(word) + 1)
    return str(DAYS.index(word)) if name == "day of week" and word in DAYS else word


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= 4
