"""Explain why two arms differ: list the facts and measurements in which they differ, those known to matter first.

Three sources, one list. What was typed: a parameter, or an option of a place. What the worker saw of its stack: every leaf of
the facts that is not the same in all arms, less the noise (known_causes.py). Covariates of the rate: throttling,
clock, heat, stolen time (covariates.py).

The order: what was typed *and* shows an effect (100); typed parameters (97) and options that could have one (96); what shows
an effect in the slower arm without being asked for (up to 95); what is known to matter, by its weight; what is not known to.
An effect is something that was counted or clocked during the measured part, never a mere difference. It is still no proof:
what else differs with it would look the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from stackmark.spec import Scalar
from stackmark.units import counted, say_seconds
from stackmark.verdict.cause_judges import DifferingFact, Judged
from stackmark.verdict.covariates import BY_NAME, KnownCovariate, Series, apart, middle, say, series_of_arms
from stackmark.verdict.examined import ExaminedArm, ExaminedRun, FactDifference, Facts
from stackmark.verdict.fact_values import differing, say_value
from stackmark.verdict.known_causes import OTHER_PACKAGES, UNKNOWN_WEIGHT, cause_of, follows, is_noise

TYPED_WITH_EFFECT, TYPED_PARAMETER, TYPED_OPTION, FOLLOWING_PARAMETER = 100, 97, 96, 90
# Asked for, but what is known speaks against it; asked for, and seen nowhere.
TYPED_UNLIKELY, TYPED_UNSEEN = 60, 70
# Covariates that slow a run where they are worse in the slower arm: weight, and whether that is an effect by itself.
MEASURED_WEIGHTS = {
    "cgroup_throttled_times": (95, True),
    "limited_thermal_share": (93, True),
    "limited_board_limit_share": (90, True),
    "limited_sync_boost_share": (90, True),
    "cpu_thermal_throttles": (88, True),
    "steal_s": (88, True),
    "clock_sm_mhz": (87, True),
    "clock_sm_end_mhz": (86, True),
    "clock_sm_start_mhz": (60, False),
    "limited_power_cap_share": (70, True),
    "limited_reliability_share": (40, False),
    "temperature_start_c": (55, False),
    "temperature_c": (50, False),
    "temperature_end_c": (45, False),
    "other_cpus": (75, False),
    "load_1m": (30, False),
    "involuntary_switches": (55, False),
    "pcie_replays": (50, False),
    "ecc_corrected_volatile": (30, False),
}
# The same thing twice: the second is left out where the first is there.
SAME = {
    "clock_sm_start_mhz": "clock_sm_end_mhz",
    "temperature_end_c": "temperature_start_c",
}
# Options whose values say what they set, and what a limit is called there.
NAMED_IN_VALUE = {"env", "ulimit"}
ULIMITS = {"locked_memory_mib": "memlock", "open_files": "nofile", "processes": "nproc", "stack_mib": "stack"}
# A limit that differs says itself how it was met (cause_judges.py).
SAID_BY = {
    "cgroup_throttled_times": ("cgroup", "cpu_limit_cpus"),
    "limited_power_cap_share": ("gpu", "devices.0.power_limit_w"),
}
# Where the better value is in the slower arm, it explains nothing; it may still be worth knowing.
NO_EXPLANATION_WEIGHT = 18
# Of an arm's runs: a third more of them in a class than another arm has.
UNEQUAL_SHARE = 1 / 3
# A difference in set-up that somebody waits for: this long, and this much of it.
SETUP_LEAST_S, SETUP_LEAST_SHARE = 0.5, 0.1
PARTS_SHOWN = 3
# Packages that are not known to matter are named up to this many; more are one line, below everything that has a name.
PACKAGES_NAMED = 3
OTHERS_WEIGHT = 3

# Subject, path and the value in each arm.
Difference = tuple[str, str, tuple[JsonValue, ...]]


@dataclass(frozen=True)
class Arm:
    """One arm. `asked` are the options typed for its place, `typed` the names of the
    parameters that were typed for the arm; None where that is not known."""

    label: str
    facts: Facts
    params: Mapping[str, Scalar] = field(default_factory=dict)
    asked: Mapping[str, JsonValue] = field(default_factory=dict)
    typed: frozenset[str] | None = None
    rate_per_s: float | None = None


# Options that say where an arm runs and for how long, and not how: on which chip and machine it was, the facts show.
WHERE = frozenset({"node", "gpus", "context", "kubeconfig", "namespace", "wait", "deadline"})


def explain(arms: Sequence[ExaminedArm], runs: Sequence[ExaminedRun]) -> tuple[FactDifference, ...]:
    """List what differs between the arms of an experiment, most telling first."""
    looked_at = [
        Arm(
            arm.label,
            arm.facts,
            arm.params,
            arm.place_options,
            frozenset(arm.typed),
            arm.throughput.rate_per_s if arm.throughput else None,
        )
        for arm in arms
    ]
    return explain_facts(looked_at, series_of_arms(len(arms), runs))


def explain_facts(
    arms: Sequence[Arm], measured: Mapping[str, Sequence[Series]] | None = None
) -> tuple[FactDifference, ...]:
    """List what differs between any sides that have facts: a baseline and today, two machines."""
    if len(arms) < 2:
        return ()
    measured = measured or {}
    asked = _differing_keys([arm.asked for arm in arms])
    facts, shown = _from_facts(arms, measured, asked)
    params = _from_params(arms)
    found = [
        *params,
        *facts,
        *(_unseen(key, values) for key, values in asked.items() if key not in shown and key not in WHERE),
        *_from_measurements(arms, measured, {(one.subject, one.key) for one in facts}),
    ]
    found = [_less_if_it_follows(one, {param.key for param in params}) for one in found]
    return tuple(sorted(found, key=lambda one: (-one.weight, not one.shows_effect)))


def _differing_keys(tables: Sequence[Mapping[str, object]]) -> dict[str, tuple[object, ...]]:
    keys = dict.fromkeys(key for table in tables for key in table)
    found = {key: tuple(table.get(key) for table in tables) for key in keys}
    return {key: values for key, values in found.items() if any(value != values[0] for value in values[1:])}


def _from_params(arms: Sequence[Arm]) -> list[FactDifference]:
    typed = {name for arm in arms for name in arm.typed or ()}
    unknown = any(arm.typed is None for arm in arms)
    found = []
    for key, values in _differing_keys([arm.params for arm in arms]).items():
        if key in typed or unknown:
            why, weight = "requested: the arms run different specs", TYPED_PARAMETER
        else:
            why, weight = (
                f"follows from the arms' options ({', '.join(sorted(typed)) or 'nothing'})",
                FOLLOWING_PARAMETER,
            )
        found.append(FactDifference("parameter", key, _said(values), why, weight))
    return found


def _unseen(key: str, values: tuple[object, ...]) -> FactDifference:
    why = "requested; no fact read inside the arm shows it"
    return FactDifference("option", key, _said(values), why, TYPED_UNSEEN)


def _said(values: tuple[object, ...]) -> tuple[str, ...]:
    said = []
    for value in values:
        plain = list(value) if isinstance(value, tuple) else value
        assert plain is None or isinstance(plain, str | int | float | bool | list | dict)
        said.append(say_value("", plain, "not given"))
    return tuple(said)


def _from_facts(
    arms: Sequence[Arm], measured: Mapping[str, Sequence[Series]], asked: Mapping[str, tuple[object, ...]]
) -> tuple[list[FactDifference], set[str]]:
    """The facts that differ, and the typed options that show in one of them."""
    facts = [arm.facts for arm in arms]
    labels, params = [arm.label for arm in arms], [arm.params for arm in arms]
    told = [(s, k, v) for s, k, v in differing(facts) if not is_noise(s, k)]
    names = {f"{subject}.{key}" for subject, key, _ in told}
    told, folded = _without_other_packages(
        [one for one in told if one[0] != "packages" or not follows(*one[:2], names)]
    )
    found: list[tuple[int, FactDifference]] = []
    shown: set[str] = set()
    for subject, key, values in told:
        cause = cause_of(subject, key)
        typed = {option for option in cause.options if option in asked and _is_about(option, key, asked[option])}
        shown |= typed
        if follows(subject, key, names):
            continue
        judged = cause.judge(DifferingFact(key, values, labels, facts, params, measured)) if cause.judge else None
        judged = judged or Judged(cause.weight, cause.why)
        if cause.none_says == "unknown" and None in values:
            # One arm could not see it, which is not a difference in the thing itself.
            judged = replace(judged, weight=judged.weight // 2, why=f"{judged.why}; unknown in some arms")
        weight = _typed_weight(judged) if typed else judged.weight
        said = tuple(say_value(key, value, cause.none_says) for value in values)
        found.append((judged.weight, FactDifference(subject, key, said, judged.why, weight, judged.shows_effect)))
    # Of two that were typed, the one that matters more by itself comes first.
    return [*(one for _, one in sorted(found, key=lambda pair: -pair[0])), *folded], shown


def _without_other_packages(told: Sequence[Difference]) -> tuple[list[Difference], list[FactDifference]]:
    """Fold packages that are not known to matter into one line: two images differ in hundreds of them."""
    rest = [one for one in told if one[0] == "packages" and cause_of(one[0], one[1]).pattern == OTHER_PACKAGES]
    if len(rest) <= PACKAGES_NAMED:
        return list(told), []
    both = [one for one in rest if None not in one[2]]
    some = len(rest) - len(both)
    parts = [f"{counted(len(both), 'other package')} in different versions"] if both else []
    parts += [f"{counted(some, 'package')} missing in some arms"] if some else []
    values = []
    for arm in range(len(rest[0][2])):
        here = [f"{key} {version}" for _, key, of in both if (version := of[arm])]
        more = len(here) - PACKAGES_NAMED
        values.append(", ".join(here[:PACKAGES_NAMED]) + (f" and {more} more" if more > 0 else "") or "none")
    line = FactDifference(
        "packages", "others", tuple(values), f"{', '.join(parts)}; not known to matter", OTHERS_WEIGHT
    )
    return [one for one in told if one not in rest], [line]


def _is_about(option: str, key: str, values: tuple[object, ...]) -> bool:
    """`env` and `ulimit` name in their values what they set."""
    if option not in NAMED_IN_VALUE:
        return True
    return any(ULIMITS.get(key, key.rpartition(".")[2]) in str(value) for value in values)


def _typed_weight(judged: Judged) -> int:
    if judged.shows_effect:
        return TYPED_WITH_EFFECT
    if judged.itself:
        return judged.weight
    return TYPED_UNLIKELY if judged.unlikely else TYPED_OPTION


def _from_measurements(
    arms: Sequence[Arm], measured: Mapping[str, Sequence[Series]], said: set[tuple[str, str]]
) -> list[FactDifference]:
    found: dict[str, FactDifference] = {}
    for name, (weight, effect) in MEASURED_WEIGHTS.items():
        if name not in measured or SAID_BY.get(name) in said:
            continue
        one = _measured(BY_NAME[name], measured[name], arms, weight, effect)
        if one is not None:
            found[name] = one
    return [one for name, one in found.items() if SAME.get(name) not in found]


def _measured(
    known: KnownCovariate, series: Sequence[Series], arms: Sequence[Arm], weight: int, effect: bool
) -> FactDifference | None:
    ends = apart(known, series)
    if ends is None:
        return None
    bad, good = (arms[arm] for arm in (ends if known.worse == "lower" else ends[::-1]))
    middles = [middle(one) for one in series]
    said = tuple("unknown" if value is None else say(known, value) for value in middles)
    more = {"times": "more often", "share": "for longer"}.get(known.unit, known.worse)
    word = f"{known.words}: {more} in {bad.label}"
    if bad.rate_per_s is None or good.rate_per_s is None:
        return FactDifference("measured", known.name, said, word, weight)
    if bad.rate_per_s >= good.rate_per_s:
        why = f"{word}, although it was not the slower one"
        return FactDifference("measured", known.name, said, why, NO_EXPLANATION_WEIGHT)
    return FactDifference("measured", known.name, said, f"{word}, the slower one", weight, effect)


def _less_if_it_follows(one: FactDifference, typed: set[str]) -> FactDifference:
    """Other arithmetic takes other kernels and other power: where parameters were typed, these are its consequences."""
    consequence = one.subject in ("kernels", "measured") or (one.key == "torch_threads" and "threads" in typed)
    if not typed or not consequence or one.weight <= UNKNOWN_WEIGHT:
        return one
    follows_from = ", ".join(sorted(typed))
    return replace(one, weight=one.weight // 2, why=f"{one.why}; may be caused by {follows_from}")


def steadiness_finding(arms: Sequence[ExaminedArm]) -> str | None:
    """Report unequal counts of classes: then the arms were not measured in the same state."""
    counts = [dict(arm.steadiness) for arm in arms]
    if len(counts) < 2 or not all(counts) or all(one == counts[0] for one in counts[1:]):
        return None
    # One run of six in another class happens by chance.
    kinds = dict.fromkeys(kind for one in counts for kind in one)
    shares = {kind: [one.get(kind, 0) / sum(one.values()) for one in counts] for kind in kinds}
    gaps = {kind: max(of) - min(of) for kind, of in shares.items()}
    if max(gaps.values()) < UNEQUAL_SHARE:
        return None
    said = "; ".join(
        f"{arm.label} {', '.join(f'{count} × {kind}' for kind, count in one.items())}"
        for arm, one in zip(arms, counts, strict=True)
    )
    return f"the arms' runs differ in steadiness: {said}"


def setup_finding(arms: Sequence[ExaminedArm]) -> str | None:
    """Return where set-up takes longer, and in which parts; None where no arm differs."""
    timed = [(sum(seconds for _, seconds in arm.setup), arm) for arm in arms if arm.setup]
    if len(timed) < 2:
        return None
    (least_s, quick), (most_s, slow) = min(timed, key=lambda one: one[0]), max(timed, key=lambda one: one[0])
    if most_s - least_s < max(SETUP_LEAST_S, SETUP_LEAST_SHARE * most_s):
        return None
    other = dict(quick.setup)
    gaps = [(seconds - other.pop(name, 0.0), name) for name, seconds in slow.setup]
    gaps += [(-seconds, name) for name, seconds in other.items()]
    told = [one for one in sorted(gaps, key=lambda one: -abs(one[0])) if abs(one[0]) >= 0.05 * (most_s - least_s)]
    parts = ", ".join(f"{name} {'+' if gap > 0 else '−'}{say_seconds(abs(gap))}" for gap, name in told[:PARTS_SHOWN])
    than = f" than {quick.label}'s" if len(arms) > 2 else ""
    return f"{slow.label}'s set-up takes {say_seconds(most_s - least_s)} longer{than}: {parts}"
