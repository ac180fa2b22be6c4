"""The version of the rules that turn measurements into words.

A verdict is computed again from the ledger whenever it is requested, always by today's rules. So a stored experiment may
get another word than it was given when it was made; every answer says by which rules it was judged.
"""

# 1: the first rules. A word is decided by the 90 % interval alone; blocks run AB BA AB BA; a check averages its nights.
# 2: SLOWER and FASTER also need a 95 % interval that excludes 1; blocks run in a shuffled order; a check judges its own
#    series; forecasts use an upper bound of the spread; undated logs are one series; rows of lists are compared by blocks.
RULES = 2


def say_rules(made: int | None) -> str:
    """Say by which rules an experiment is judged here. `made` is the version when it was designed, where one is stored."""
    if made is None or made == RULES:
        return f"Judged by rules {RULES}."
    return (
        f"Judged by rules {RULES}; the experiment was made under rules {made} and keeps their order of runs and stopping rule. "
        "docs/verdicts.md lists what changed."
    )
