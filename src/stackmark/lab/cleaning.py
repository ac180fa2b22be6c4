"""What a killed driver left: rows that say `running` and processes that nobody waits for."""

from stackmark import machine
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger
from stackmark.strays import end_marked, start_ticks


def clean_up(ledger: Ledger) -> list[str]:
    """Ends what abandoned runs of this machine left behind, and says it in a sentence each."""
    if ledger.read_only:
        return []
    said = []
    lost = ledger.abandoned(
        machine_id=machine.machine_id() or "unknown", boot_id=machine.boot_id() or "unknown", alive=_driver_lives
    )
    for row in lost:
        same_boot = row.boot_id == (machine.boot_id() or "unknown")
        ended = end_marked(row.id) if same_boot else 0
        reason = "its driver was killed" if same_boot else "the machine was restarted"
        if ledger.mark_lost(row.id, f"{reason} while it ran", hint="run it again"):
            left = f"; {ended} processes it left were ended" if ended else ""
            said.append(f"the run {row.id} ({row.workload}) was lost: {reason} while it ran{left}")
    return said


def _driver_lives(row: RunRow) -> bool:
    ticks = start_ticks(row.driver_pid)
    return ticks is not None and ticks == row.handle.get("driver_start_ticks")
