"""The answer of an experiment in plain language: its title, one sentence, what to do next, and what to beware of.

The statistics stand elsewhere (verdict/sentence.py); this is what somebody reads who was sent a report and asks "so what?". It
follows from the Examined alone, so that the page, the Markdown and a study of several experiments say the same.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from stackmark.experiments.progress import CUT_OFF
from stackmark.figures import TIME_UNITS, FigureUnit
from stackmark.remarks import MIXED_RUNS
from stackmark.show.sections import MOST_HEADLINES, Sections
from stackmark.show.wording import bad_runs, say_arm_rate, say_counts, say_plainly, sentence, stopped
from stackmark.units import counted
from stackmark.verdict.cautions import INTERFERENCE, Caution, caution, in_order
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import Examined, ExaminedArm
from stackmark.verdict.needed import FREE_MACHINE, percent
from stackmark.verdict.noise import noise_floor
from stackmark.workloads.command.definition import OWN_COMMAND, split_command

# What the machine can do at most: it is a yardstick, and is compared with nothing.
CEILINGS = "op/ceilings"
# Interpreters, whose first argument that is a file is the program that a person means.
_INTERPRETERS = re.compile(r"(?:python|bash|sh|node|perl|ruby|Rscript|julia|torchrun|env|time|nice|numactl)[\d.]*")
# What makers print around the name of a chip.
_TRADE_MARKS = re.compile(r"\((?:R|TM|C)\)|\b(?:CPU|Processor)\b(?=\s*(?:@|$))|\s@\s.*$", re.IGNORECASE)


# --- the title ----------------------------------------------------------------------------------------------------------


def title_of(examined: Examined) -> str:
    """Return the question as a title: `Host vs container: train/resnet50 on NVIDIA H200`."""
    about = what_of(examined)
    if chips := chips_of(examined):
        about = f"{about} on {' and '.join(chips)}"
    if examined.kind == "noise":
        return f"{_capital(examined.arms[0].label)} against itself: {about}"
    if examined.scaling:
        return f"Scaling to {examined.scaling.points[-1].label}: {about}"
    if len(examined.arms) < 2:
        return about
    return f"{arms_in_title(examined.arms)}: {about}"


def arms_in_title(arms: Sequence[ExaminedArm]) -> str:
    """`Host vs container`; of many arms their number."""
    names = [arm.label for arm in arms]
    return _capital(" vs ".join(names)) if len(names) <= 4 else f"{len(names)} arms"


def what_of(examined: Examined) -> str:
    """Return what was measured: the workload's name, or the name of a user's own program."""
    if not examined.arms:
        return examined.workload
    if examined.operators and examined.workload != CEILINGS:
        known = (examined.arms[0].params.get(name) for name in ("set", "precision"))
        return " ".join([examined.workload, *(str(value) for value in known if value)])
    if examined.workload != OWN_COMMAND:
        return examined.workload
    programs = dict.fromkeys(program_of(str(arm.params.get("cmd", ""))) for arm in examined.arms)
    return " and ".join(filter(None, programs)) or examined.workload


def program_of(command: str) -> str:
    """Return the program that a person means by a command: `train.py` of `python -u code/train.py --epochs 3`."""
    try:
        words = split_command(command)
    except ValueError:
        return command.strip()
    for word in words:
        name = PurePath(word).name
        is_option = word.startswith("-") or "=" in word.partition("/")[0]
        if not is_option and not _INTERPRETERS.fullmatch(name):
            return name or word
    return PurePath(words[0]).name


def chips_of(examined: Examined) -> list[str]:
    """Return the names of the chips that the arms ran on, each once."""
    known = (" ".join(_TRADE_MARKS.sub(" ", arm.chip).split()) for arm in examined.arms if arm.chip)
    return list(dict.fromkeys(known))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# --- the sentence -------------------------------------------------------------------------------------------------------


def answers(sections: Sections) -> list[str]:
    """Return the answer in plain language: a sentence for each comparison, or one for an arm alone."""
    examined = sections.examined
    if examined.scaling and sections.is_summed_up:
        return [f"{counted(len(examined.comparisons), 'rank count')} against one rank: {sections.words}"]
    if sections.is_summed_up:
        return [f"{counted(len(examined.comparisons), 'pair')} of {len(examined.arms)} arms: {sections.words}"]
    if examined.comparisons:
        return [say_with_counts(one, _unit(examined)) for one in examined.comparisons]
    measured = [arm for arm in examined.arms if arm.throughput]
    if not measured:
        missed = any(arm.missed_target for arm in examined.arms)
        return ["The target was not reached, or too seldom to state a time" if missed else "No run gave a number"]
    if examined.scaling and examined.scaling.refused:
        return [*examined.scaling.refused]
    if any(getattr(one, "kind", "") == MIXED_RUNS for one in examined.warnings):
        done = sum(run.counted for run in examined.runs)
        return [
            f"{measured[0].label}: {counted(done, 'run')} of different settings, each with a figure of its own below"
        ]
    said = [_say_arm(arm) for arm in measured]
    if len(examined.arms) > 1:
        said.append(f"there is no verdict: {why_no_verdict(sections)}")
    return said


def say_with_counts(comparison: Comparison, unit: FigureUnit) -> str:
    """`container runs as fast as host: +0.03 %, within ±1 % (6 blocks)`."""
    # Without an interval the sentence names them itself.
    counts = f" ({say_counts(comparison)})" if comparison.interval_90 else ""
    return f"{say_plainly(comparison, unit)}{counts}"


def _unit(examined: Examined) -> FigureUnit:
    return next((arm.figure_unit for arm in examined.arms if arm.throughput), FigureUnit(""))


def _say_arm(arm: ExaminedArm) -> str:
    assert arm.throughput
    verb = "takes" if arm.figure_unit.name.lower() in TIME_UNITS else "reaches"
    runs = counted(arm.throughput.runs, "run")
    rate = say_arm_rate(arm)
    return f"{arm.label} {verb} {rate}" + (f" ({runs})" if arm.throughput.runs > 1 else "")


def why_no_verdict(sections: Sections) -> str:
    """Say why arms were measured and none is compared. Imported logs have no blocks: their reason is among the warnings."""
    told = [one for one in sections.examined.warnings if getattr(one, "kind", "") == "not-comparable"]
    return told[0] if told else sections.why_no_verdict


# --- what to do ---------------------------------------------------------------------------------------------------------


def what_to_do(sections: Sections) -> str:
    """Say what follows from the verdict, with the command where there is one, between backticks."""
    examined = sections.examined
    id_ = examined.experiment_id
    if examined.state == "open" and id_:
        return f"Finish it: `stackmark resume {id_}`."
    if not any(arm.throughput for arm in examined.arms):
        failed = bad_runs(examined)
        if not failed and any(arm.missed_target for arm in examined.arms):
            return "Train it longer, with other settings, or to a lower target."
        return f"See why it failed: `stackmark show {failed[-1].run_id} --log`." if failed else "Measure it again."
    if examined.comparisons:
        return " ".join(dict.fromkeys(_after_verdict(sections)))
    if examined.instead:
        return f"Compare them row by row: `{examined.instead[0]}`."
    if len(examined.arms) > 1:
        return "Measure it again, until blocks of both arms are whole." if examined.kind != "import" else (
            "Import logs that can be compared: of one workload, with the same parameters, on the same number of devices."
        )  # fmt: skip
    return _compare_with(sections)


def _after_verdict(sections: Sections) -> Iterator[str]:
    """A line for each word that there is, the worst first."""
    examined = sections.examined
    pairs = examined.comparisons
    slower, faster = [c for c in pairs if c.is_slower], [c for c in pairs if c.is_faster]
    undecided = [c for c in pairs if c.word == "INCONCLUSIVE"]
    disturbed = met_other_programs(sections)
    if examined.kind == "noise":
        yield _after_noise(examined)
        return
    if examined.scaling:
        yield from _after_scaling(examined)
    elif slower or faster:
        yield _look_at_cause(sections, (slower or faster)[0])
    for c in undecided[:MOST_HEADLINES]:
        which = f"{c.b} against {c.a}: " if len(pairs) > 1 else ""
        yield sentence(f"{which}{FREE_MACHINE.words if disturbed else first_advice(c)}")
    if not slower and not faster and not undecided and not examined.scaling:
        yield "Nothing: use either of them." if len(pairs) == 1 else "Nothing: use any of them."


def _after_scaling(examined: Examined) -> Iterator[str]:
    """Name the largest part of what the largest group that falls short loses."""
    assert examined.scaling
    short = [c.b for c in examined.comparisons if c.is_slower]
    point = next((one for one in reversed(examined.scaling.points) if one.label in short), None)
    if point is None:
        if all(c.word == "SCALES" for c in examined.comparisons):
            yield "Nothing: the ranks are used well."
        return
    if point.losses is None:
        yield f"Find out where {point.label} lose their time: this workload does not report what its exchange takes."
        return
    lost = {
        "the exchange: use larger batches, a faster link, or fewer bytes": point.losses.communication,
        "waiting for the slowest rank: look for the device that is slow": point.losses.stragglers,
        "slower compute of each rank: look at power, clocks, host cores and the batch of a rank": point.losses.other,
    }
    cause, share = max(lost.items(), key=lambda one: one[1])
    yield f"Of {point.label}, {100 * share:.0f} % of the time is lost to {cause}."


def _after_noise(examined: Examined) -> str:
    """Name the margin that this machine can decide; where its noise is too large, say what makes it smaller."""
    floor = noise_floor(examined)
    if floor is None or floor.sd_blocks_planned is None:
        return "Measure four blocks or more: then it is known which margin this machine can decide."
    if floor.smallest_margin is None:
        return "Free the machine of other programs, or measure longer runs: as it is, it can decide no margin."
    return (
        f"Compare with a margin of {percent(floor.smallest_margin)} or more: this machine cannot decide a smaller one."
    )


def _look_at_cause(sections: Sections, comparison: Comparison) -> str:
    deeper = (
        f"Look deeper: `stackmark verdict {sections.examined.experiment_id} --why`."
        if sections.examined.experiment_id
        else ""
    )
    if not sections.differences:
        none = (
            "Nothing in the recorded facts differs between the arms: look at step times, set-up and conditions below."
        )
        return f"{none} {deeper}".rstrip()
    first = sections.differences[0].fact
    values = " | ".join(first.values)
    if comparison.is_faster:
        lead = f"Use {comparison.b} if nothing else speaks against it; the first thing that may explain it"
    else:
        lead = "Look at the first cause listed"
    return f"{lead}: {first.subject}.{first.key} ({values}): {stopped(first.why)} {deeper}".rstrip()


def first_advice(comparison: Comparison) -> str:
    """Return the cheapest thing that may decide an open question."""
    if comparison.needed is None:
        return "measure more blocks"
    ways = [one for one in comparison.needed.advice if one.kind != "not-by-blocks"]
    return ways[0].words if ways else comparison.needed.sentence


def _compare_with(sections: Sections) -> str:
    """Say how one arm is compared with another place, or with another import."""
    examined = sections.examined
    if examined.kind == "import":
        id_ = examined.experiment_id
        return f"To compare it, import other logs too, and then: `stackmark verdict OTHER --against {id_}`."
    if examined.workload == CEILINGS:
        return "Nothing: other results of this machine are compared with these limits."
    place = examined.arms[0].place
    other = "host" if place != "host" else "container"
    free = "Free the machine of other programs, and measure again. " if met_other_programs(sections) else ""
    words = shlex.join([*_asked(examined), "--arm", place, "--arm", other])
    return f"{free}To compare it with another place: `{words}`."


# Options of `run` that `compare` does not take; those with a value, and those without.
_RUN_ONLY, _RUN_FLAGS = ("--on", "--runs", "--format", "--published"), ("--choose-again",)
_WORKLOAD = re.compile(r"[a-z]+/[\w.-]+")


def _asked(examined: Examined) -> list[str]:
    """Return the words of a `compare` that measures what this `run` measured, without its arms."""
    try:
        words = shlex.split(examined.command)
    except ValueError:
        words = []
    several = any(_WORKLOAD.fullmatch(word) and word != examined.workload for word in words)
    if words[:2] != ["stackmark", "run"] or several:
        own = str(examined.arms[0].params.get("cmd", ""))
        return ["stackmark", "compare", *(["--cmd", own] if examined.workload == OWN_COMMAND else [examined.workload])]
    kept, skip = ["stackmark", "compare"], False
    for word in words[2:]:
        name, equals, _ = word.partition("=")
        if skip or word in _RUN_FLAGS:
            skip = False
        elif name in _RUN_ONLY:
            skip = not equals
        else:
            kept.append(word)
    return kept


# --- what to beware of --------------------------------------------------------------------------------------------------


def is_interference(said: str) -> bool:
    return getattr(said, "kind", "") == INTERFERENCE


def beware(sections: Sections) -> list[Caution]:
    """Return every warning once: other programs first, then by severity, as on the terminal; and how many runs failed."""
    failed = [caution("failed-runs", said) for said in _failures(sections.examined)]
    return list(in_order([*_disturbed(sections.examined), *failed, *sections.cautions]))


def _disturbed(examined: Examined) -> Iterator[Caution]:
    """What the verdict says about blocks that other programs disturbed."""
    found = [said for c in examined.comparisons for said in (*c.caveats, *filter(is_interference, c.notes))]
    yield from (caution(INTERFERENCE, str(said)) for said in dict.fromkeys(found))


def met_other_programs(sections: Sections) -> bool:
    return any(one.kind == INTERFERENCE for one in beware(sections))


def _failures(examined: Examined) -> Iterator[str]:
    # Whoever ended a run by hand knows it, and the state says how many are missing.
    failed = [run for run in bad_runs(examined) if run.failure_kind not in CUT_OFF]
    if failed and any(arm.throughput for arm in examined.arms):
        yield f"{counted(len(failed), 'run')} failed and {'is' if len(failed) == 1 else 'are'} not in any number"
