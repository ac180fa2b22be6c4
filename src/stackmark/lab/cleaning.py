"""What a killed driver left: rows that say `running` and processes that nobody waits for."""

from stackmark.lab.driver import boot_name, machine_name, may_live
from stackmark.ledger.store import Ledger
from stackmark.strays import end_marked


def clean_up(ledger: Ledger) -> list[str]:
    """Ends what abandoned runs of this machine left behind, and says it in a sentence each."""
    if ledger.read_only:
        return []
    said = []
    lost = ledger.abandoned(machine_id=machine_name(), alive=may_live)
    for row in lost:
        same_boot = row.boot_id == boot_name()
        ended = end_marked(row.id) if same_boot else 0
        reason = "its driver was killed" if same_boot else "the machine was restarted"
        if ledger.mark_lost(row.id, f"{reason} while it ran", hint="run it again"):
            left = f"; {ended} processes it left were ended" if ended else ""
            said.append(f"the run {row.id} ({row.workload}) was lost: {reason} while it ran{left}")
    return said
