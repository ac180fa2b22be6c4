"""Choose one window for all runs of an experiment, so that the class of a run does not change what is measured.

Where each run is measured over its own steady steps, two runs of one system are measured over different parts: with a
common heat drift of 3 %, of which change points are found here in one run and there in another, the rates spread by
0.35 % instead of 0.10 %. So all runs start at the same second: the latest end of a warm-up among them.

The start is in seconds after the first step, because heat and clocks go by time and arms may have steps of different
length. It is capped at half of each run. A run whose warm-up ends after half of its time is *late*: it does not move the
window, it is measured over the same one, and it counts as a bad run of its arm. Where most runs are late, the window
starts at half of the run. A run that is too short to tell has no known end of warm-up: its half counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stackmark.verdict.steady import Kind

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TimedRun:
    """The step times of a run, its class, where its warm-up ended, and how many samples a step has."""

    step_s: Floats
    kind: Kind
    settled_step: int
    samples_per_step: int
    # Of its time, what pauses added.
    pause_share: float = 0.0

    @property
    def warm_up_s(self) -> float:
        """When its warm-up ended, in seconds after the first step."""
        return float(self.step_s[: self.settled_step].sum())

    @property
    def own_first_step(self) -> int:
        """The first step that counts where the run is measured by itself."""
        return 0 if self.kind == "no steady state" else self.settled_step

    @property
    def half_s(self) -> float:
        return float(self.step_s.sum()) / 2

    @property
    def late(self) -> bool:
        """Whether its warm-up ended after half of its time."""
        return self.kind != "too short to tell" and self.warm_up_s > self.half_s


@dataclass(frozen=True)
class Window:
    """One window for some runs: start_s is in seconds after the first step; by is the class of the run that decided it.

    late is how many of the runs were still warming up at half of their time.
    """

    start_s: float
    by: Kind
    runs: int
    late: int = 0

    @property
    def sentence(self) -> str:
        if not self.start_s:
            return f"One window for all {self.runs} runs: from the first step on, since none of them has a warm-up."
        where = f"One window for all {self.runs} runs: it starts {self.start_s:.3g} s after the first step"
        if self.by == "too short to tell":
            return f"{where}, at half of a run that is too short to tell warm-up from noise."
        if self.by == "no steady state":
            return f"{where}, at half of a run: {self.late} of them were still warming up then."
        late = f"; {self.late} that warmed up for longer did not move it" if self.late else ""
        return f"{where}, where the last {self.by} among them ended, and at half of a run at the latest{late}."


def common_window(runs: Sequence[TimedRun]) -> Window:
    """The window of the runs of one experiment."""
    late = sum(run.late for run in runs)
    if 2 * late > len(runs):
        # Then the late ones are the rule: a window that a few odd runs decide would hold the warm-up of most.
        return Window(max(run.half_s for run in runs), "no steady state", len(runs), late)
    ends = [(min(run.warm_up_s, run.half_s), run.kind) for run in runs if not run.late]
    start_s, by = max(ends, key=lambda end: end[0], default=(0.0, "flat"))
    return Window(start_s, by, len(runs), late)


def first_step_in(window: Window, run: TimedRun) -> int:
    """The first step of a run that begins within the window, or within the second half of the run."""
    start_s = min(window.start_s, run.half_s)
    begins = np.concatenate(([0.0], np.cumsum(run.step_s)[:-1]))
    # Sums of floats differ in their last digits: a step that begins a millionth early is in.
    inside = np.flatnonzero(begins >= start_s * (1 - 1e-6))
    return int(inside[0]) if inside.size else run.step_s.size - 1


def rate_in(window: Window, run: TimedRun) -> float:
    """R = samples / sum of the step times within the window."""
    used = run.step_s[first_step_in(window, run) :]
    total_s = float(used.sum())
    if total_s <= 0:
        raise ValueError("all step times of the measured part are zero")
    return run.samples_per_step * used.size / total_s
