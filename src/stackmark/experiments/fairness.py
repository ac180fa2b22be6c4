"""Describe what was kept equal between arms and what was not, how it was measured, and the scope of the verdict.

A verdict without its scope is an opinion. Everything here is read from what was stored; what cannot be known is said to be
unknown rather than left out.
"""

from collections.abc import Collection, Sequence

from stackmark.experiments.design import SHUFFLED, Arm, Design, imbalance, sequences_of, unasked_differences
from stackmark.experiments.progress import series_numbers
from stackmark.ledger.rows import RunRow
from stackmark.remarks import Remark
from stackmark.spec import AUTO
from stackmark.units import counted, say_seconds, say_span
from stackmark.verdict.examined import ExaminedArm, ExaminedRun
from stackmark.verdict.explain import setup_finding, steadiness_finding
from stackmark.verdict.steady import PAUSE_SHARE, PAUSE_TIMES

Sentences = tuple[str, ...]
# How many names of a list are read; the rest is counted.
SHOWN = 3
# Stands for an arm's hash of kernel names where its runs do not agree on one.
KERNELS_VARY = "varies from run to run"


def scope(rows: Sequence[RunRow]) -> str:
    """Describe the scope: this GPU, this boot, these hours. A log says neither where nor when it was written."""
    good = [row for row in rows if row.status == "done" and row.role == "measured"] or list(rows)
    if not all(row.boot_id for row in good):
        about = dict.fromkeys(text for row in good for text in (row.chip, row.framework) if text)
        said = f" ({', '.join(about)})" if about else ""
        return f"these runs{said}; logs do not say when and on which machine they were made"
    chips = dict.fromkeys(
        f"{row.chip or 'an unknown chip'}{f' {row.chip_uuid}' if row.chip_uuid else ''}" for row in good
    )
    boots = len({row.boot_id for row in good})
    first = min(row.started_unix_s for row in good)
    last = max(row.ended_unix_s or row.started_unix_s for row in good)
    stacks = dict.fromkeys(row.framework for row in good if row.framework)
    where = f"{boots} boots" if boots > 1 else "one boot"
    return "; ".join(
        filter(None, (f"on {_some(chips)}", f"{where} of one machine" if _one_machine(good) else "several machines",
                      say_span(first, last), _some(stacks)))
    ) + ". Other chips, drivers and hours were not tried."  # fmt: skip


def scope_of_sides(labels: tuple[str, str], sides: tuple[Sequence[RunRow], Sequence[RunRow]]) -> str:
    """Describe the scope of a question about chips or machines: those that were measured, and no others of their kind."""
    said = {label: _say_side(rows) for label, rows in zip(labels, sides, strict=True) if rows}
    about = "; ".join(side if side.startswith(label) else f"{label}: {side}" for label, side in said.items())
    rows = [*sides[0], *sides[1]]
    if not all(row.boot_id for row in rows):
        return f"these logs ({about}); logs do not say when and on which machine they were made"
    machines = {row.ran_on for row in rows}
    which = "two chips of this machine" if len(machines) == 1 else "these two machines"
    which = which if len(machines) < 3 else f"these {len(machines)} machines"
    return f"{which} ({about}). Other machines with these chips, and other hours, were not tried."


def _say_side(rows: Sequence[RunRow]) -> str:
    """Say the chip of a side, its machine and when: as far as its runs say so."""
    parts = [_some(dict.fromkeys(row.chip or "an unknown chip" for row in rows))]
    if machines := dict.fromkeys(row.ran_on[:8] for row in rows if row.boot_id and row.ran_on):
        parts.append(f"machine {_some(machines)}")
    parts += [_some(stacks)] if (stacks := dict.fromkeys(row.framework for row in rows if row.framework)) else []
    if all(row.boot_id for row in rows):
        last = max(row.ended_unix_s or row.started_unix_s for row in rows)
        parts.append(say_span(min(row.started_unix_s for row in rows), last))
    return ", ".join(parts)


def held(
    design: Design | None,
    arms: Sequence[ExaminedArm],
    runs: Sequence[ExaminedRun],
    rows: Sequence[RunRow],
) -> tuple[Sentences, Sentences]:
    """Return what was kept equal between the arms, and what could not be."""
    if design is None or len(arms) < 2 or not any(run.counted for run in runs):
        return (), ()
    yes: list[str] = []
    no: list[str] = []
    _work(design, yes, no)
    _chip(design, rows, yes, no)
    _kernels(arms, yes, no)
    _clock(design, arms, no)
    _time(design, rows, {run.block for run in runs if run.counted and run.block is not None}, yes, no)
    _heat(runs, arms, yes, no)
    return tuple(yes), tuple(no)


def _work(design: Design, yes: list[str], no: list[str]) -> None:
    others = unasked_differences(design.arms)
    typed = sorted({name for arm in design.arms for name in arm.typed})
    if design.scaling:
        held_batch = "the batch of each rank" if design.scaling == "weak" else "the batch of all ranks together"
        yes.append(Remark(f"the work: one spec with {held_batch} fixed", "work"))
        others = [one for one in others if not (design.scaling == "strong" and one.startswith("batch:"))]
        if others:
            no.append(Remark(f"parameters that follow from the number of ranks: {'; '.join(others)}", "parameters"))
        return
    but = f" except {', '.join(typed)}, which the arms set" if typed else ""
    yes.append(Remark(f"the work: one frozen spec for all arms{but}", "work"))
    if others:
        text = f"parameters that follow from an arm's options: {'; '.join(others)}"
        no.append(Remark(text, "parameters"))


def _chip(design: Design, rows: Sequence[RunRow], yes: list[str], no: list[str]) -> None:
    good = [row for row in rows if row.status == "done"]
    uuids = {row.chip_uuid for row in good}
    if not _one_machine(good):
        no.append(Remark("the machine: runs are from several machines", "machine"))
    if any("device" in arm.typed for arm in design.arms):
        no.append(Remark("the chip: an arm names its device, so the chips are part of the comparison", "chip"))
    elif uuids == {None}:
        names = _some(dict.fromkeys(row.chip or "?" for row in good))
        # A program that was not watched: an arm of an older version, or one that says that it uses no GPU.
        unseen = any("cmd" in arm.spec.params and arm.spec.params.get("device") != AUTO for arm in design.arms)
        on = "; which device your program used was not recorded" if unseen else f", on its CPU ({names})"
        if _one_machine(good):
            yes.append(Remark(f"the machine: the same for all runs{on}", "machine"))
    elif None in uuids:
        no.append(Remark("the chip: some runs did not report their GPU", "chip"))
    elif design.rotation:
        yes.append(Remark(f"the chips: the one rank took each of {len(design.rotation)} GPUs in turn", "chip"))
    elif len(uuids) == 1:
        yes.append(Remark("the chip: the same GPU for all runs, by its UUID", "chip"))
    else:
        no.append(Remark(f"the chip: runs were on {len(uuids)} GPUs; two chips of one model differ", "chip"))


def _clock(design: Design, arms: Sequence[ExaminedArm], no: list[str]) -> None:
    """A program in an image is timed from outside, one with a worker next to it from inside."""
    watched = {arm.facts.get("command", {}).get("watched") for arm in arms}
    if len(watched) > 1 and not any(arm.spec.params.get("metric") for arm in design.arms):
        text = (
            "the clock: a program in an image is timed by its engine's or cluster's time stamps (precise to 0.02 s and 1 s), the "
            "others by a worker; let the program run for minutes, or let it print a figure and use --metric"
        )
        no.append(Remark(text, "clock"))


def _kernels(arms: Sequence[ExaminedArm], yes: list[str], no: list[str]) -> None:
    hashes = [arm.facts.get("kernels", {}).get("hash") for arm in arms]
    vary = [arm.label for arm, one in zip(arms, hashes, strict=True) if one == KERNELS_VARY]
    if all(one is None for one in hashes):
        return  # a program that is not ours, or one that is not looked into
    if None in hashes:
        no.append(Remark("the kernels: not recorded in every arm", "kernels"))
    elif len(vary) == len(arms):
        text = (
            "the kernels: the framework chose again in each process of every arm: this is noise between runs, which the "
            "interval includes, not a bias of an arm"
        )
        no.append(Remark(text, "kernels"))
    elif vary:
        text = f"the kernels: they vary from run to run in {', '.join(vary)} but not in the others; see what differs"
        no.append(Remark(text, "kernels"))
    elif len({str(one) for one in hashes}) == 1:
        text = f"the kernels: the same names in one profiled step of every run (hash {hashes[0]})"
        yes.append(Remark(text, "kernels"))
    else:
        text = "the kernels: each arm always uses the same ones, but the arms' differ; see what differs"
        no.append(Remark(text, "kernels"))


def _time(design: Design, rows: Sequence[RunRow], blocks: Collection[int], yes: list[str], no: list[str]) -> None:
    alone = [arm.label for arm in design.arms if _own_caches(arm)]
    if alone:
        text = (
            f"the caches: those of {', '.join(alone)} are deleted with the pod, so each run compiles its kernels again"
        )
        no.append(Remark(text, "caches"))
    elif design.primers:
        text = "the caches: one folder for all arms, filled by an unmeasured run of each arm first"
        yes.append(Remark(text, "caches"))
    else:
        text = "the caches: not filled before the first run, so the first runs may have compiled kernels"
        no.append(Remark(text, "caches"))
    pause = f"a pause of {say_seconds(design.pause_s)}" if design.pause_s else "no pause"
    shuffled = "shuffled" if design.ordering == SHUFFLED else "alternating"
    text = f"the order: {shuffled} and balanced, fixed in advance by the seed {design.seed}, {pause} between runs"
    yes.append(Remark(text, "order"))
    uneven = imbalance(design, blocks) if design.ordering == SHUFFLED else 0
    if uneven:
        text = (
            f"the order: in the {counted(len(blocks), 'block')} that count, one arm had a position in the order "
            f"{counted(uneven, 'time')} more often than another; a drift affects the ratio by that much"
        )
        no.append(Remark(text, "order"))
    deleted = max((row.position for row in rows), default=-1) + 1 - len(rows)
    if deleted > 0:
        text = f"the choice of runs: {counted(deleted, 'deleted run')}; the remaining runs were selected"
        no.append(Remark(text, "choice-of-runs"))
    series = len(set(series_numbers([row for row in rows if row.status == "done"])))
    if series > 1:
        text = (
            f"the time: the blocks are in {series} series (separated by a reboot or an hour's pause), each block in one"
        )
        no.append(Remark(text, "time"))


def _own_caches(arm: Arm) -> bool:
    """A pod from an image has no folder of the host, so none that outlives it."""
    options = arm.place_options
    return arm.place == "pod" and options.get("image") is not None and options.get("host_software") != "yes"


def _heat(runs: Sequence[ExaminedRun], arms: Sequence[ExaminedArm], yes: list[str], no: list[str]) -> None:
    counted = [run for run in runs if run.counted]
    restless = [sum(1 for run in counted if run.arm == arm.index and _restless(run)) for arm in arms]
    waits = [arm.params.get("warmup_seconds") for arm in arms]
    if all("row_seconds" in arm.params for arm in arms):
        text = "the heat: each row of the list was called until its times settled, then timed"
        yes.append(Remark(text, "heat"))
    elif None in waits:
        text = "the heat: whether the program warms up before its figure is unknown"
        no.append(Remark(text, "heat"))
    elif not all(waits):
        text = (
            "the heat: a warm-up of a fixed number of steps (--warmup-seconds 0), whether or not rate and clock settled"
        )
        no.append(Remark(text, "heat"))
    elif not any(restless):
        yes.append(Remark("the heat: each run warmed up until its rate and clock settled", "heat"))
    else:
        of = ", ".join(f"{count} of {arm.label}" for arm, count in zip(arms, restless, strict=True) if count)
        text = f"the heat: warm-up reached its time limit before rate and clock settled in {of}"
        no.append(Remark(text, "heat"))
    if any(run.chip_uuid for run in counted):
        no.append(Remark("the clocks: not locked; the verdict lists them as covariates", "clocks"))


def _restless(run: ExaminedRun) -> bool:
    return any(flag.startswith("not-settled") for flag in run.flags)


def method(design: Design | None, *, from_logs: bool = False) -> Sentences:
    said = [
        "Each run is a fresh process and one sample; its steps are not independent and never count as samples.",
        "A run's rate is its samples over the sum of its steady step times; set-up is timed separately.",
    ]
    if from_logs:
        said = ["The runs were read from another program's logs; each is one sample, with the rate in the log."]
    if design is None:
        return tuple(said)
    if design.scaling:
        said += [
            f"Blocks of one run of each rank count, {_order(design)}. Per block d = ln R_N − ln R_1 − ln N; the efficiency is "
            "exp of its mean, with Student's interval over the blocks.",
            "SCALES: the 90 % interval lies above 1 − margin (a one-sided test at 5 %). FALLS SHORT: it lies below, and the 95 % "
            "interval excludes 1.",
        ]
        if len(design.arms) > 2:
            said.append("More than two rank counts: Holm decides within each family; intervals are not adjusted.")
        return tuple(said)
    said += [
        f"Blocks of one run of each arm, {_order(design)}. Per block d = ln R_b − ln R_a; the ratio is exp of its mean, with "
        "Student's interval over the blocks.",
        "EQUIVALENT: the 90 % interval lies inside the margin (two one-sided tests at 5 %). SLOWER, FASTER: it lies outside and "
        "the 95 % interval excludes 1. A difference is named where the 95 % interval excludes 1. "
        f"At most {design.most_repeats} failed blocks are repeated.",
    ]
    if design.rule:
        said.append(
            f"Stopping: by a rule fixed before the first run, {design.rule.kind} spending of {100 * design.rule.alpha:.3g} % "
            f"over looks after {', '.join(map(str, design.rule.looks))} blocks; the intervals are adjusted for the look."
        )
    if len(design.arms) > 2 and not design.rule:
        said.append("More than two arms: Holm decides within each family; intervals are not adjusted.")
    return tuple(said)


def _order(design: Design) -> str:
    arms = len(design.arms)
    size = sequences_of(arms)
    if design.ordering == SHUFFLED:
        drawn = "half of them AB and half BA" if arms == 2 else "rows of Williams squares"
        return f"in an order drawn at random before the first run: {drawn}, balanced at every look"
    order = "AB BA" if arms == 2 else "a Williams order, in which each arm follows each other equally often"
    return f"{order}, in whole designs of {size} blocks"


def warnings(
    arms: Sequence[ExaminedArm],
    runs: Sequence[ExaminedRun],
    short: str,
    asked: Collection[str] = (),
    *,
    set_up: bool = True,
) -> Sentences:
    """Return what a reader must see with the verdict. `asked` are the parameters typed for all arms.

    Without `set_up` nothing is said of it: a group takes longer to start than one rank, which is no finding.
    """
    said: list[str] = [Remark(f"the design is incomplete: {short}", "not-whole")] if short else []
    found = {
        "batch": _batch(arms, asked),
        "other-programs": _programs(arms),
        "steadiness": steadiness_finding(arms),
        "set-up": setup_finding(arms) if set_up else None,
    }
    said += [Remark(text, kind) for kind, text in found.items() if text]
    counted = [run for run in runs if run.counted]
    brief = sum(1 for run in counted if run.steady == "too short to tell")
    if brief:
        short = f"{brief} of {len(counted)} runs have too few steps to tell warm-up from steady state"
        said.append(Remark(f"{short}: only their second half counts", "too-short-to-tell"))
    return tuple(said)


def window_warnings(arms: Sequence[ExaminedArm]) -> Sentences:
    """Return what the common window shows about an arm: late runs, and pauses that the arms do not share."""
    said: list[str] = [
        Remark(
            f"{arm.late_runs} of {sum(count for _, count in arm.steadiness)} runs of {arm.label} were still warming up at "
            "half of their time: they count as bad runs; a longer --seconds measures beyond the warm-up",
            "late-runs",
        )
        for arm in arms
        if arm.late_runs
    ]
    shares = [arm.pause_share for arm in arms]
    if max(shares) - min(shares) >= PAUSE_SHARE:
        of = ", ".join(f"{100 * arm.pause_share:.2g} % in {arm.label}" for arm in arms)
        said.append(Remark(f"pauses (steps of at least {PAUSE_TIMES} times the usual length) took {of}", "pauses"))
    return tuple(said)


def _batch(arms: Sequence[ExaminedArm], asked: Collection[str]) -> str | None:
    """Arms on two devices do the same work, and whose batch it is decides which of them looks good."""
    if "batch" in asked or any("batch" in arm.typed for arm in arms) or len({_kind_of_device(arm) for arm in arms}) < 2:
        return None
    batch = arms[0].params.get("batch")
    return (
        f"a batch of {batch} was chosen for {arms[0].label} and used for all arms; a GPU is slow with a small batch, and "
        "a different --batch gives a different ratio"
        if batch is not None
        else None
    )


def _kind_of_device(arm: ExaminedArm) -> str:
    return str(arm.params.get("device", "")).partition(":")[0]


def _programs(arms: Sequence[ExaminedArm]) -> str | None:
    """A user's own program is named by its name, and another place may have another under it."""
    found = {arm.label: arm.facts.get("command", {}).get("program") for arm in arms if "cmd" not in arm.typed}
    known = {str(program) for program in found.values() if program}
    if len(known) < 2:
        return None
    said = ", ".join(f"{program} ({label})" for label, program in found.items())
    return f"the arms ran different programs: {said}; use its full path, or an image that contains it"


def _one_machine(rows: Sequence[RunRow]) -> bool:
    return len({row.ran_on for row in rows}) == 1


def _some(names: dict[str, None] | dict[str | None, None]) -> str:
    known = [str(name) for name in names]
    return ", ".join(known[:SHOWN]) + (f" and {len(known) - SHOWN} more" if len(known) > SHOWN else "")
