"""Judge single causes by the values, the parameters and the measurements around a fact that differs.

A table can say that a CPU limit matters. Only the number of times that the kernel stopped the process says that it did, and
only the number of data workers says whether a small /dev/shm is used at all. Each judge looks at one kind of fact; what it
cannot tell it leaves to the table's own words, with None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from stackmark.machine.reading import told_cpus
from stackmark.spec import Scalar
from stackmark.units import MIB, counted, say_seconds, say_size
from stackmark.verdict.covariates import Series, middle
from stackmark.verdict.examined import Facts
from stackmark.verdict.fact_values import say_value

SHM = "/dev/shm"  # noqa: S108 (a name to be read, not a file to be opened)
# A quota that stopped the group for less than this was met by chance, not by the work.
THROTTLED_AT_LEAST_S = 0.005
# torch's DataLoader keeps two batches ready for each worker (prefetch_factor).
BATCHES_A_WORKER = 2
# Programs that close every descriptor they might have inherited take seconds with as many as this.
TOO_MANY_FILES = 1_000_000
# Several processes of loaders, each with a few descriptors a batch, have met this limit and died.
FEW_FILES = 4096

# A worker whose commit could not be read is, for all that is known, the same one.
COMMIT_UNSEEN = 8


@dataclass(frozen=True)
class DifferingFact:
    """A fact that differs, by arm, and what else is known about the arms."""

    key: str
    values: tuple[JsonValue, ...]
    labels: Sequence[str]
    facts: Sequence[Facts]
    params: Sequence[Mapping[str, Scalar]]
    measured: Mapping[str, Sequence[Series]]

    def fact(self, arm: int, subject: str, key: str) -> JsonValue:
        return self.facts[arm].get(subject, {}).get(key)

    def param(self, arm: int, name: str) -> Scalar | None:
        return self.params[arm].get(name) if arm < len(self.params) else None

    def typical(self, arm: int, covariate: str) -> float | None:
        series = self.measured.get(covariate)
        return middle(series[arm]) if series is not None and arm < len(series) else None

    def numbers(self) -> list[tuple[float, int]]:
        """Return the values that are numbers, each with its arm, the smallest first."""
        return sorted((float(v), i) for i, v in enumerate(self.values) if isinstance(v, int | float))


@dataclass(frozen=True)
class Judged:
    """A judge's answer. `unlikely`: the evidence speaks against it, even where the difference was requested. `itself`: it was
    requested under its own name, and other lines say what that changed."""

    weight: int
    why: str
    shows_effect: bool = False
    unlikely: bool = False
    itself: bool = False


def cpu_limit(seen: DifferingFact) -> Judged | None:
    if not seen.numbers():
        return None
    limit, arm = seen.numbers()[0]
    head = f"cgroup cpu.max {100 * limit:.0f} %"
    times, seconds = seen.typical(arm, "cgroup_throttled_times"), seen.typical(arm, "cgroup_throttled_s")
    if times is not None and times > 0 and (seconds is None or seconds >= THROTTLED_AT_LEAST_S):
        lost = f", for {say_seconds(seconds)}" if seconds is not None else ""
        return Judged(95, f"{head}: throttled {times:,.0f} times{lost}, during the measured part", shows_effect=True)
    if times is not None:
        often = "hardly ever" if times else "never"
        return Judged(25, f"{head}: {often} throttled during the measured part", unlikely=True)
    threads, workers = seen.fact(arm, "software", "torch_threads"), seen.param(arm, "data_workers")
    compute, load = (value if isinstance(value, int) else 0 for value in (threads, workers))
    if compute + load > limit:
        who = f"{counted(compute, 'thread')} and {counted(load, 'data worker')}" if load else counted(compute, "thread")
        return Judged(80, f"{head} for {who}, which compete for it")
    return None


def cpu_set(seen: DifferingFact) -> Judged | None:
    """Judge fewer CPUs, or CPUs that are far from the GPU."""
    sets = [told_cpus(value) for value in seen.values]
    for arm, cpus in enumerate(sets):
        near = told_cpus(_device(seen.facts[arm]).get("near_cpus"))
        if cpus and near and not cpus & near:
            where = f"none of the CPUs of {seen.labels[arm]} is near the GPU"
            return Judged(85, f"{where}: every copy and every kernel launch crosses NUMA nodes")
    counts = [len(cpus) for cpus in sets if cpus]
    if counts and min(counts) < max(counts):
        return Judged(80, f"{counted(min(counts), 'CPU')} instead of {max(counts)}")
    return None


def shm(seen: DifferingFact) -> Judged | None:
    if not seen.numbers():
        return None
    least, arm = seen.numbers()[0]
    head = f"{SHM} {say_size(least * MIB)}"
    workers = seen.param(arm, "data_workers")
    if workers is None or isinstance(workers, bool) or not isinstance(workers, int):
        return None
    if workers == 0 and not _several_ranks(seen, arm):
        return Judged(12, f"{head}: data workers and NCCL use it, this workload uses neither", unlikely=True)
    if workers == 0:
        return Judged(55, f"{head}: NCCL passes data between ranks through it")
    batches = BATCHES_A_WORKER * workers
    room = say_size(least * MIB / batches)
    return Judged(75, f"{head}: {room} for each of the {batches} batches that {workers} data workers prefetch into it")


def threads(seen: DifferingFact) -> Judged | None:
    numbers = seen.numbers()
    if len(numbers) < 2:
        return None
    (least, arm), (most, _) = numbers[0], numbers[-1]
    return Judged(75, f"{seen.labels[arm]} computes with {counted(least, 'thread')} instead of {most:.0f}")


def root_file_system(seen: DifferingFact) -> Judged | None:
    if "overlay" not in seen.values:
        return None
    head = "reading many small files through an overlay is slower (by a third in our measurements)"
    data = {seen.param(arm, "data") for arm in range(len(seen.facts))}
    if data <= {"device", "host"}:
        return Judged(15, f"{head}; only start-up reads files, the measured part does not", unlikely=True)
    if None in data:
        return None
    return Judged(45, f"{head}: is the data folder on the overlay, or mounted?")


def memory_limit(seen: DifferingFact) -> Judged | None:
    """Judge a memory limit: the page cache counts against it."""
    if {seen.param(arm, "data") for arm in range(len(seen.facts))} <= {"device", "host"}:
        return Judged(12, "the page cache counts against it, but the measured part reads no files", unlikely=True)
    return None


def power_limit(seen: DifferingFact) -> Judged | None:
    if len(seen.numbers()) < 2:
        return None
    limit, arm = seen.numbers()[0]
    share = seen.typical(arm, "limited_power_cap_share")
    if share is None:
        return None
    if share < 0.01:
        return Judged(30, f"the power limit of {limit:g} W was not reached", unlikely=True)
    return Judged(92, f"the power limit of {limit:g} W lowered the clock {100 * share:.0f} % of the time", True)


def image(seen: DifferingFact) -> Judged | None:
    """Judge an image: against none it is the layer itself; of two images the contents are compared."""
    if None not in seen.values:
        inside = ("software", "packages")
        if all(facts.get(subject) == seen.facts[0].get(subject) for facts in seen.facts for subject in inside):
            return None
        return Judged(4, "the image itself; differences inside it are listed separately", itself=True)
    own = any(seen.fact(arm, "container", "software") == "host" for arm in range(len(seen.facts)))
    what = (
        "an empty image with the host's own software"
        if own
        else "an image; differences in its software are listed separately"
    )
    return Judged(9, what)


def kernels(seen: DifferingFact) -> Judged | None:
    """Judge which kernels ran, which is seen and not guessed; the names of the heaviest say where to look."""
    heaviest = [seen.fact(arm, "kernels", "heaviest") for arm in range(len(seen.facts))]
    named = [[str(name) for name in names] for names in heaviest if isinstance(names, list)]
    only = ""
    if len(named) > 1:
        mine = next((name for name in named[-1] if name not in named[0]), None)
        theirs = next((name for name in named[0] if name not in named[-1]), None)
        only = "; ".join(
            f"only in {label}: {say_value('', name)[:60]}"
            for label, name in ((seen.labels[0], theirs), (seen.labels[-1], mine))
            if name
        )
    tail = f" ({only})" if only else ""
    if any(seen.param(arm, "autotune") is True for arm in range(len(seen.facts))):
        return Judged(50, f"different kernels chosen{tail}; cuDNN's autotuning chooses again in every process")
    return Judged(85, f"different kernels chosen{tail}: the arms ran different programs on the GPU")


def open_files(seen: DifferingFact) -> Judged | None:
    numbers = seen.numbers()
    if numbers and numbers[-1][0] >= TOO_MANY_FILES:
        many = f"{numbers[-1][0]:,.0f} open files allowed"
        return Judged(25, f"{many}: programs that close every inherited file descriptor start slowly")
    if numbers and numbers[0][0] < FEW_FILES:
        return Judged(25, f"{numbers[0][0]:,.0f} open files allowed: many data workers need more")
    return None


def alone(seen: DifferingFact) -> Judged | None:
    """Judge what only serves communication between processes."""
    if any(_several_ranks(seen, arm) for arm in range(len(seen.facts))):
        return None
    return Judged(12, "only matters between processes; here one process ran alone", unlikely=True)


def nccl(seen: DifferingFact) -> Judged | None:
    """Judge the version of NCCL, which one process alone hardly ever uses."""
    return Judged(30, "different NCCL; here one process ran alone", unlikely=True) if alone(seen) else None


def not_in_the_loop(seen: DifferingFact) -> Judged | None:
    """Judge the network: one process that trains from its own data does not need it."""
    if any(_several_ranks(seen, arm) for arm in range(len(seen.facts))):
        return Judged(60, "ranks communicate through the network")
    return Judged(5, "network access; the measured part does not use the network", unlikely=True)


def boot(seen: DifferingFact) -> Judged | None:
    machines = {seen.fact(arm, "host", "machine_id") for arm in range(len(seen.facts))}
    if len(machines) > 1 and None not in machines:
        return Judged(90, "different machine: this compares machines, not layers")
    return None


def commit(seen: DifferingFact) -> Judged | None:
    """A worker outside a checkout (the bundle, a worktree in a container) does not see its commit: versions are compared."""
    if len({value for value in seen.values if value is not None}) > 1:
        return None
    return Judged(COMMIT_UNSEEN, "whether the workers are of one commit is not known")


def _several_ranks(seen: DifferingFact, arm: int) -> bool:
    world = seen.fact(arm, "environment", "WORLD_SIZE")
    return isinstance(world, str) and world.isdecimal() and len(world) < 9 and int(world) > 1


def _device(facts: Facts) -> dict[str, JsonValue]:
    devices = facts.get("gpu", {}).get("devices")
    first = devices[0] if isinstance(devices, list) and devices else None
    return first if isinstance(first, dict) else {}
