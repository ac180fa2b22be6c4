"""One test of MLPerf's LoadGen: its settings, its answers, its logs, and what breaks it.

LoadGen calls back on threads of its own. It takes no exception there (the process ends, or crashes later), and it waits for ever
for an answer that does not come, deaf to signals. So a test runs on a thread that nobody joins, callbacks keep their
exceptions, and the worker's own thread waits with a limit: whatever happens ends as a failure with its reason.

What is judged is LoadGen's: latencies are those of its log, counted from the moment at which a query was due. We time the same
queries from inside, one by one (latencies.py): LoadGen's log has only percentiles.
"""

import json
import tempfile
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any

from stackmark.model import JsonValue
from stackmark.workloads.serve.definition import MULTI_STREAM_SAMPLES, Scenario
from stackmark.workloads.workload import WorkloadFailure

# Takes the numbers of samples and returns the answers, one after the other: for each the same number of words of four bytes.
Predict = Callable[[Sequence[int]], Sequence[int]]
# The same of a network that generates: it passes on the first word of each answer as soon as it has it.
Stream = Callable[[Sequence[int], Callable[[Sequence[int]], None]], Sequence[int]]
WORD_BYTES = 4
# Starts a batch, and returns what waits for its answers.
Launch = Callable[[Sequence[int]], Callable[[], Sequence[int]]]
# A network that has not answered anything for this long does not answer any more.
NO_ANSWER_S = 120.0
POLL_S = 0.05
MARK = ":::MLLOG "
SCENARIOS = {
    "single-stream": "SingleStream",
    "multi-stream": "MultiStream",
    "server": "Server",
    "offline": "Offline",
}


def library() -> ModuleType:
    try:
        return import_module("mlperf_loadgen")
    except ImportError as error:
        raise WorkloadFailure(
            "missing_package",
            f"serve/ needs MLPerf's LoadGen, and this Python cannot import it: {error}",
            "install it: pip install 'stackmark[loadgen]'; in an image: pip install mlcommons-loadgen",
        ) from error


@dataclass(frozen=True)
class Load:
    """What LoadGen is asked for. `expected` is what it plans with: seconds of a query, or of offline samples per second."""

    scenario: Scenario
    seconds: float
    queries: int
    library: int
    seed: int
    expected: float
    rate: float = 0.0
    bound_s: float = 0.0
    # In server: how long a batch waits for more samples.
    wait_s: float = 0.0
    # The percentile that LoadGen judges, in percent.
    percent: int = 99
    # Each sample once, and the answers in a log, instead of a load.
    accuracy: bool = False
    # Whether LoadGen hears of the first token of each answer, and counts the others.
    tokens: bool = False


@dataclass(frozen=True)
class LoadResult:
    """What LoadGen says of a test: its verdict, the figures of its log by their keys, and the log itself."""

    valid: bool
    values: Mapping[str, JsonValue]
    problems: tuple[str, ...]
    lines: tuple[str, ...]
    wall_s: float

    def number(self, key: str) -> float:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise WorkloadFailure(
                "no_figure", f"LoadGen's log does not say {key}", "look at its log: stackmark show RUN --log"
            )
        return float(value)

    def percentile_s(self, percent: float) -> float:
        """Return a percentile of latency. A query of multi-stream has several samples and is timed as a whole."""
        name = f"result_{percent:.2f}_percentile"
        query = f"{name}_per_query_latency_ns"
        return 1e-9 * self.number(query if query in self.values else f"{name}_latency_ns")

    @property
    def count(self) -> int:
        return round(self.number("result_query_count"))


@dataclass(frozen=True)
class _Begun:
    """A batch that is being computed: whose it is, when its queries came, and what waits for its answers."""

    ids: Sequence[int]
    came_ns: Sequence[int]
    answers: Callable[[], Sequence[int]]


def _launch_of(predict: Predict) -> Launch:
    """Return what starts a batch; of a network that only answers, what answers it at once."""
    launch: Launch | None = getattr(predict, "launch", None)
    if launch is not None:
        return launch

    def at_once(indices: Sequence[int]) -> Callable[[], Sequence[int]]:
        found = predict(indices)
        return lambda: found

    return at_once


class Answers:
    """The system under test, as LoadGen sees it: computes samples and answers them.

    In `server` a thread takes what has come in since its last call, at most `batch` samples, so that batches grow with the load;
    with `wait_s` it also waits so long for a batch to fill. In the other scenarios the calling thread computes, since nothing
    else is to be done meanwhile. A network that computes by itself, on a GPU, gets the next batch before the answers of the one
    before are taken.
    """

    def __init__(
        self,
        loadgen: ModuleType,
        predict: Predict,
        batch: int,
        *,
        scenario: Scenario,
        wait_s: float = 0.0,
        stream: Stream | None = None,
    ) -> None:
        self._loadgen, self._predict, self._batch, self._stream = loadgen, predict, batch, stream
        self._launch = _launch_of(predict)
        self._ahead = 1 if getattr(predict, "asynchronous", False) and stream is None else 0
        self._by_batch, self._wait_s = scenario == "offline", wait_s
        self.issued = self.answered = 0
        self.answered_at_s = time.monotonic()
        # Of each query, in the order in which they came: when, and when it had its answer. Of offline, of each batch.
        self.came_ns, self.done_ns = array("q"), array("q")
        self.broken: BaseException | None = None
        self._begun: deque[_Begun] = deque()
        self._queue: SimpleQueue[tuple[int, int, int] | None] | None = SimpleQueue() if scenario == "server" else None
        if self._queue is not None:
            threading.Thread(target=self._serve, name="serve", daemon=True).start()

    def issue(self, samples: Sequence[Any]) -> None:
        """LoadGen's callback. What it raised would end the process."""
        came_ns = time.perf_counter_ns()
        self.issued += len(samples)
        if self._queue is not None:
            for one in samples:
                self._queue.put((one.id, one.index, came_ns))
            return
        with self.keeping():
            for first in range(0, len(samples), self._batch):
                part = samples[first : first + self._batch]
                ended = self._by_batch or first + self._batch >= len(samples)
                self._begin([one.id for one in part], [one.index for one in part], [came_ns] if ended else [])
                self._finish_but(self._ahead)
            self._finish_but(0)

    @property
    def seconds(self) -> float:
        """Return the time from the first query to the last answer."""
        return 1e-9 * (max(self.done_ns) - min(self.came_ns)) if self.done_ns else 0.0

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep what is raised for the thread that waits: the one that it is raised in is LoadGen's, or nobody's."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - raised again in `_run`
            self.broken = self.broken or error

    def _serve(self) -> None:
        with self.keeping():
            while (batch := self._next()) is not None:
                if batch:
                    ids, indices, came_ns = zip(*batch, strict=True)
                    self._begin(ids, indices, came_ns)
                self._finish_but(self._ahead if batch else 0)

    def _next(self) -> list[tuple[int, int, int]] | None:
        """Take the next batch; an empty one where answers are to be taken and nothing has come, None at the end."""
        assert self._queue is not None
        try:
            first = self._queue.get(block=not self._begun)
        except Empty:
            return []
        if first is None:
            return None
        batch = [first]
        until_s = 1e-9 * first[2] + self._wait_s
        while len(batch) < self._batch:
            left_s = until_s - time.perf_counter() if self._wait_s else 0.0
            try:
                more = self._queue.get(timeout=left_s) if left_s > 0 else self._queue.get_nowait()
            except Empty:
                break
            if more is None:
                return None
            batch.append(more)
        return batch

    def _begin(self, ids: Sequence[int], indices: Sequence[int], came_ns: Sequence[int]) -> None:
        stream = self._stream
        if stream is None:
            self._begun.append(_Begun(ids, came_ns, self._launch(indices)))
        else:
            said = stream(indices, lambda tokens: self._first(ids, tokens))
            self._begun.append(_Begun(ids, came_ns, lambda: said))

    def _finish_but(self, ahead: int) -> None:
        """Answer the batches that were begun, except `ahead` of the last ones."""
        while len(self._begun) > ahead:
            self._answer(self._begun.popleft())

    def _answer(self, begun: "_Begun") -> None:
        response, ids = self._loadgen.QuerySampleResponse, begun.ids
        said = array("i", begun.answers())
        words, left = divmod(len(said), len(ids))
        if left or not words:
            raise WorkloadFailure("wrong_result", f"the network gave {len(said)} words for {len(ids)} samples")
        address, _ = said.buffer_info()  # LoadGen reads it before `QuerySamplesComplete` returns
        size = WORD_BYTES * words
        more = () if self._stream is None else (words,)
        # Counted and timed first: with the last answer the test is over, for other threads too.
        self.answered += len(ids)
        self.answered_at_s = time.monotonic()
        self.came_ns.extend(begun.came_ns)
        self.done_ns.extend([time.perf_counter_ns()] * len(begun.came_ns))
        self._loadgen.QuerySamplesComplete(
            [response(one, address + size * place, size, *more) for place, one in enumerate(ids)]
        )

    def _first(self, ids: Sequence[int], tokens: Sequence[int]) -> None:
        """Tell LoadGen the first token of each answer of a call."""
        said = array("i", tokens)
        address, _ = said.buffer_info()
        response = self._loadgen.QuerySampleResponse
        self._loadgen.FirstTokenComplete(
            [response(one, address + WORD_BYTES * place, WORD_BYTES) for place, one in enumerate(ids)]
        )

    def close(self) -> None:
        if self._queue is not None:
            self._queue.put(None)


def run_test(
    loadgen: ModuleType, load: Load, predict: Predict, batch: int, stream: Stream | None = None
) -> tuple[LoadResult, Answers]:
    """Run one test; return what LoadGen says of it, and what we saw of it."""
    answers = Answers(
        loadgen,
        predict,
        batch,
        scenario=load.scenario,
        wait_s=load.wait_s,
        stream=stream if load.tokens else None,
    )
    with tempfile.TemporaryDirectory(prefix="stackmark-loadgen-") as folder:
        began = time.perf_counter()
        try:
            _run(loadgen, load, answers, folder)
        finally:
            answers.close()
        wall_s = time.perf_counter() - began
        summary, detail = (_lines(Path(folder, f"mlperf_log_{name}.txt")) for name in ("summary", "detail"))
    if answers.answered != answers.issued:
        raise WorkloadFailure("wrong_result", f"{answers.answered} answers were given to {answers.issued} samples")
    return read_logs(summary, detail, wall_s), answers


def run_accuracy(loadgen: ModuleType, load: Load, predict: Predict, batch: int) -> str:
    """Have each sample of the library answered once; return LoadGen's log of the answers."""
    answers = Answers(loadgen, predict, batch, scenario=load.scenario)
    with tempfile.TemporaryDirectory(prefix="stackmark-loadgen-") as folder:
        try:
            _run(loadgen, load, answers, folder)
        finally:
            answers.close()
        return "\n".join(_lines(Path(folder, "mlperf_log_accuracy.json")))


def _run(loadgen: ModuleType, load: Load, answers: Answers, folder: str) -> None:
    settings, log = _settings(loadgen, load), loadgen.LogSettings()
    log.log_output.outdir = folder
    log.log_output.copy_summary_to_stdout = False
    log.enable_trace = False  # 650 bytes for each query
    system = loadgen.ConstructSUT(answers.issue, lambda: None)
    samples = loadgen.ConstructQSL(load.library, load.library, lambda _: None, lambda _: None)
    done = threading.Event()

    def test() -> None:
        with answers.keeping():
            loadgen.StartTestWithLogSettings(system, samples, settings, log)
        done.set()

    answers.answered_at_s = time.monotonic()
    threading.Thread(target=test, name="loadgen", daemon=True).start()
    while not done.wait(POLL_S) and answers.broken is None:
        if answers.answered < answers.issued and time.monotonic() - answers.answered_at_s > NO_ANSWER_S:
            left = answers.issued - answers.answered
            raise WorkloadFailure(
                "no_answer",
                f"{left} samples got no answer within {NO_ANSWER_S:.0f} s; LoadGen would wait for ever",
                "use a smaller --batch, or look at the run's log: stackmark show RUN --log",
            )
    if answers.broken is not None:
        # LoadGen still waits: its objects are left as they are, and the worker leaves without their destructors.
        raise answers.broken
    loadgen.DestroyQSL(samples)
    loadgen.DestroySUT(system)


def _settings(loadgen: ModuleType, load: Load) -> Any:
    made = loadgen.TestSettings()
    made.scenario = getattr(loadgen.TestScenario, SCENARIOS[load.scenario])
    made.mode = loadgen.TestMode.AccuracyOnly if load.accuracy else loadgen.TestMode.PerformanceOnly
    made.use_token_latencies = load.tokens
    made.min_duration_ms = round(1000 * load.seconds)
    made.qsl_rng_seed = made.sample_index_rng_seed = made.schedule_rng_seed = load.seed
    if load.scenario == "offline":
        made.offline_expected_qps = load.expected
        made.min_query_count = 1
    else:
        made.min_query_count = load.queries
    if load.scenario == "single-stream":
        made.single_stream_expected_latency_ns = max(1, round(1e9 * load.expected))
        made.single_stream_target_latency_percentile = load.percent / 100
    elif load.scenario == "multi-stream":
        made.multi_stream_samples_per_query = MULTI_STREAM_SAMPLES
        made.multi_stream_expected_latency_ns = max(1, round(1e9 * load.expected))
        made.multi_stream_target_latency_percentile = load.percent / 100
    elif load.scenario == "server":
        made.server_target_qps = load.rate
        made.server_target_latency_ns = round(1e9 * load.bound_s)
        made.server_target_latency_percentile = load.percent / 100
    return made


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise WorkloadFailure(
            "no_figure",
            f"LoadGen wrote no {path.name}: {error.strerror}",
            "is the folder for temporary files writable?",
        ) from error


def read_logs(summary: Sequence[str], detail: Sequence[str], wall_s: float) -> LoadResult:
    values: dict[str, JsonValue] = {}
    problems: list[str] = []
    for line in detail:
        _, mark, text = line.partition(MARK)
        if not mark:
            continue
        try:
            entry = json.loads(text)
            key, value, is_error = entry["key"], entry["value"], entry["metadata"].get("is_error")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise WorkloadFailure(
                "no_figure",
                f"LoadGen's log has a line that cannot be read: {text[:80]!r}",
                "is the disk of the folder for temporary files full?",
            ) from error
        values[key] = value
        if is_error:
            problems.append(f"{key}: {value}")
    for key in ("result_invalid_reason", "early_stopping_result"):
        reason = " ".join(str(values.get(key, "")).split())
        if reason and values.get("result_validity") != "VALID":
            problems.append(reason)
    return LoadResult(values.get("result_validity") == "VALID", values, tuple(problems), (*summary, *detail), wall_s)
