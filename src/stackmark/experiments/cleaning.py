"""Clean up after a dead driver: runs saved in files, rows that say `running`, processes without a parent."""

from stackmark.errors import LedgerError, SpecError
from stackmark.experiments.driver import boot_name, machine_name, may_live
from stackmark.experiments.list_specs import is_list
from stackmark.experiments.trust import is_known_kubeconfig
from stackmark.ledger.rescue import recover
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger
from stackmark.machine.orphans import end_marked
from stackmark.places.folders import remove_forgotten
from stackmark.places.registry import find_kind

# Why a run is lost. Killed, or failed with a ledger that could not be written: the row does not tell.
DRIVER_GONE = "stackmark ended without storing it"
RESTARTED = "the machine was restarted while it ran"


def clean_up(ledger: Ledger) -> list[str]:
    """Clean up what abandoned runs of this machine left behind, and report it in one sentence each."""
    remove_forgotten()  # folders of killed probes, which no ledger knows; nothing that anybody needs to hear of
    if ledger.read_only:
        return _jobs_left()
    return [*_recovered(ledger), *_lost_runs(ledger), *_jobs_left()]


def _jobs_left() -> list[str]:
    """Remove Jobs in a cluster that no ledger knows of: a probe's, and those that could not be removed before."""
    from stackmark.kubernetes.orphans import remove_orphans

    return remove_orphans()


def _lost_runs(ledger: Ledger) -> list[str]:
    said: list[str] = []
    lost = ledger.abandoned(machine_id=machine_name(), alive=may_live)
    for row in lost:
        same_boot = row.boot_id == boot_name()
        # The container first: its processes are seen from here too, and would be counted twice.
        removed = _removed(row)
        ended = end_marked(row.id) if same_boot else 0
        reason = DRIVER_GONE if same_boot else RESTARTED
        again = f"continue: stackmark resume {row.experiment_id}" if is_list(row.workload) else "run it again"
        try:
            marked = ledger.mark_lost(row.id, reason, hint=again)
        except LedgerError:
            return said  # whoever only reads is served all the same; whoever writes will be told
        if marked:
            processes = "1 process it left was" if ended == 1 else f"{ended} processes it left were"
            left = f"; {processes} ended" if ended else ""
            left += f"; {' and '.join(removed)} it left was removed" if removed else ""
            said.append(f"the run {row.id} ({row.workload}) was lost: {reason}{left}")
    return said


def _recovered(ledger: Ledger) -> list[str]:
    """Stores runs whose driver could not, before their rows are called lost. What cannot be stored is for `recover` to say."""
    try:
        found = recover(ledger)
    except LedgerError:
        return []  # the same trouble again: the files stay
    return [
        f"the run {one.run_id} is stored now, from {one.path}: the ledger was not writable when the run ended"
        for one in found
        if not one.trouble
    ]


def _removed(row: RunRow) -> list[str]:
    """What its place finds of it. A place of a package that is not installed any more finds nothing."""
    try:
        kind = find_kind(row.place)
    except SpecError:
        return []
    handle = dict(row.handle)
    if handle.get("kubeconfig") and not is_known_kubeconfig(str(handle["kubeconfig"])):
        # It may name a program that is run for credentials, and whoever writes the ledger could name any file.
        del handle["kubeconfig"]
    return kind.remove_left(row.id, handle)
