"""`python -m stackmark.machine [UUID]`: print all facts of this machine as one JSON object."""

import json
import sys

from stackmark.machine.facts import Facts, collect


def main(uuid: str | None = None) -> None:
    gathered: Facts = {}
    problems: Facts = {}
    for subject, facts, said in collect("cuda:0" if uuid else None, uuid):
        known = gathered.setdefault(subject, {})
        if isinstance(known, dict):
            known.update(facts)
        if said:
            problems[subject] = list(said)
    json.dump({**gathered, "problems": problems}, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:2])
