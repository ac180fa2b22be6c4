"""What a canary says: a line for each turn, JSON, and the systemd unit that keeps it running."""

import re
from collections.abc import Sequence
from typing import Any

from stackmark.experiments.canary import CanaryTurn, State
from stackmark.schemas import with_schema
from stackmark.show.check import check_json, summary
from stackmark.show.safe import safe_line
from stackmark.units import say_moment

WORDS: dict[State, str] = {
    "slower": "SLOWER",
    "failed": "FAILED",
    "inconclusive": "INCONCLUSIVE",
    "busy": "NOT MEASURED",
    "overlap": "NOT MEASURED",
    "passed": "passed",
}


def say_turn(turn: CanaryTurn) -> str:
    """Return the line of a turn: `2026-11-19 23:50:02  SLOWER  SLOWER: train/lenet −12 %  x-01k9…`."""
    moment = say_moment(turn.began_unix_s, "%Y-%m-%d %H:%M:%S")
    experiments = " ".join(one.experiment_id for one in turn.checked if one.experiment_id)
    said = "; ".join(filter(None, [turn.why, summary(turn.checked) if turn.checked and turn.state != "failed" else ""]))
    return safe_line("  ".join(filter(None, [moment, WORDS[turn.state], said, experiments])))


def canary_json(name: str, margin: float, turn: CanaryTurn) -> dict[str, Any]:
    return with_schema(
        "canary-turn",
        {
            "state": turn.state,
            "began_unix_s": turn.began_unix_s,
            "seconds": turn.seconds,
            "why": turn.why,
            "exit_code": int(turn.exit_code),
            "baseline": name,
            "check": check_json(name, margin, turn.checked) if turn.checked else None,
        },
    )


def systemd_unit(name: str, argv: Sequence[str], folder: str) -> str:
    """Return a service that runs the canary for ever, as `systemctl --user` or the system's manager takes it."""
    return f"""\
# stackmark-canary.service: checks the baseline {safe_line(name)} for ever.
# For one user:   save it in ~/.config/systemd/user/, then: systemctl --user enable --now stackmark-canary
# For a machine:  save it in /etc/systemd/system/ with a line User=NAME below [Service], whose ledger it is
[Unit]
Description=stackmark canary: {_plain(name)}
After=network.target

[Service]
Type=exec
ExecStart={" ".join(map(_quoted, argv))}
WorkingDirectory={_escaped(folder)}
# It ends at once on SIGTERM, with this code.
SuccessExitStatus=143
# 2: no such baseline, or wrong use. To start it again would not help.
RestartPreventExitStatus=2
Restart=on-failure
RestartSec=60
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""


def _plain(text: str) -> str:
    return re.sub(r"[^\w .:/+-]", "_", text)


def _escaped(text: str) -> str:
    return safe_line(text).replace("%", "%%")


def _quoted(word: str) -> str:
    """Return a word as systemd reads it: `%` and `$` mean themselves, and so do spaces and quotes within double quotes."""
    text = safe_line(word).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return text if re.fullmatch(r"[\w@%+=:,./$-]+", text) else f'"{text}"'
