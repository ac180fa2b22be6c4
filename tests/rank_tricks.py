"""A family of workloads whose ranks misbehave, one at a time: for tests of a group, as worker_process.py is of one worker.

It needs no framework, so that a group of it is up in a second. Imported by the tests and, in the worker, as the family's module.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from stackmark.model import Field
from stackmark.spec import Params, Request, Scalar, Spec
from stackmark.workloads.definition import Definition, Family
from stackmark.workloads.workload import Rig, TimedSteps, WorkloadFailure
from worker_process import PIDS_VARIABLE, stuck, trick

# The rank that the trick is of; the others step calmly on.
BAD = 1


class RankParams(Params):
    step_s: float = Field(default=0.001, ge=0, description="how long a step takes")


def ranked(name: str, ranks: int = 2, **params: Scalar) -> Spec:
    given: dict[str, Scalar] = {"device": "cpu", "steps": 5, "seconds": 1.0, "at_least_steps": 0, "warmup_steps": 1}
    complete = RankParams.model_validate({**given, "warmup_seconds": 0.0, **params})
    return Spec(workload=f"ranked/{name}", params=complete.model_dump(mode="json"), ranks=ranks)


def install(folder: Path) -> Path:
    """Announces the family as an installed package would; the folder is to stand in PYTHONPATH."""
    info = folder / "ranked-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ranked\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[stackmark.workloads]\nranked = rank_tricks:FAMILY\n")
    return folder


def probe(request: Request, _rig: Rig) -> tuple[Params, dict[str, str]]:
    with open(os.environ[PIDS_VARIABLE], "a") as file:
        file.write("probed\n")
    return RankParams.model_validate({**ranked("calm").params, **request.typed()}), {"device": "there is no other"}


def run(name: str, params: Params, rig: Rig) -> Iterator[TimedSteps]:
    assert isinstance(params, RankParams)
    number = int(os.environ["RANK"])
    if name == "wordy":
        for _ in range(100):
            with rig.part("part", f"{number}" * 7000):
                pass
        print(f"rank {number} of {os.environ['WORLD_SIZE']}", "é" * 5000, file=sys.stderr)
    trick_of = TRICKS[name] if number == BAD or name in OF_ALL else None
    if name == "lost" and number != BAD:
        raise WorkloadFailure("lost_rank", "another rank is gone: connection reset by peer")
    step = trick_of(params) if trick_of else None

    def calm() -> None:
        time.sleep(params.step_s * (2 if name == "slow" and number == BAD else 1))

    yield TimedSteps(step or calm, "cpu", "step", 1)


def die(_params: RankParams) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), signal.SIGKILL)


def segfault(_params: RankParams) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), signal.SIGSEGV)


def leave(_params: RankParams) -> Callable[[], None]:
    return lambda: os._exit(3)


def say(_params: RankParams) -> Callable[[], None]:
    raise WorkloadFailure("out_of_device_memory", "the device ran out of memory", "take less")


def fail(_params: RankParams) -> Callable[[], None]:
    raise RuntimeError("something nobody foresaw")


def stand(_params: RankParams) -> Callable[[], None]:
    """Nothing in it hears of a signal."""
    return lambda: os.kill(os.getpid(), signal.SIGSTOP)


def in_c(_params: RankParams) -> Callable[[], None]:
    return stuck(trick("stuck"))  # type: ignore[arg-type]


def lost(_params: RankParams) -> Callable[[], None]:
    """Dies a moment after the other said that it is gone."""
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
    return lambda: None


def children(_params: RankParams) -> Callable[[], None] | None:
    """Each rank has a child in the group and one that left its session."""
    pids = [os.getpid(), os.getppid()]
    pids += [subprocess.Popen(["sleep", "300"], start_new_session=new).pid for new in (False, True)]
    with open(os.environ[PIDS_VARIABLE], "a") as file:
        file.write(" ".join(map(str, pids)) + "\n")
    return None


def nothing(_params: RankParams) -> None:
    return None


TRICKS: dict[str, Callable[[RankParams], Callable[[], None] | None]] = {
    "calm": nothing, "slow": nothing, "wordy": nothing, "dies": die, "segfaults": segfault, "leaves": leave, "says": say,
    "raises": fail, "stands": stand, "hangs": in_c, "lost": lost, "children": children,
}  # fmt: skip
OF_ALL = ("children",)
FAMILY = Family(
    "ranked",
    RankParams,
    "rank_tricks",
    tuple(Definition(f"ranked/{name}", name, "step", 0, 1, 1, 1) for name in TRICKS),
)
