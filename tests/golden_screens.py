"""The screens that golden files hold: commands over the experiments and logs of tests/data, and how their output is made stable.

Ids, times and paths are fixed by the inputs: a ledger of recorded experiments, a clock that stands still, a folder of its own.
`steady` masks what is left: ids that are made anew, the version, and the machine that the tests run on.
"""

import json
import lzma
import os
import re
import secrets
import shlex
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from asking import ask
from recorded import DATA, load, replay_of
from rendered_screens import rendered
from stackmark import ids
from stackmark.cli.main import our_verbs, stackmark
from stackmark.ledger.store import Ledger
from stackmark.machine.host import boot_id, machine_id
from stackmark.places.host import HostOptions
from stackmark.places.place import PlaceKind
from stackmark.places.registry import PLACES
from stackmark.show.safe import safe_line
from wrong_commands import by_verb

GOLDEN = Path(__file__).parent / "golden"
# After everything that was recorded.
NOW_UNIX_S = 1_800_000_000.0
# Longer ones are stored compressed; the failure of a test shows them as text.
PLAIN_BYTES = 12_000
# Of a number in JSON: enough to see a change of the method, too few to see another processor or numpy.
DIGITS = 9
# Of a word of a wrong command.
LONGEST_WORD = 60

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
IDS = re.compile(r"\b([rxp])-([0-9a-hjkmnp-tv-z]{26})\b")
# In a checkout the version names the commit (version.py).
_VERSION = r"0\.\d+\.\d+(?:\.dev\d+)?(?:\+g[0-9a-f]+(?:\.dirty)?)?"
MASKS = (
    (re.compile(r'(?<="driver_pid": )\d+'), "PID"),
    (re.compile(r'(?<="machine_id": ")[^"]+'), "MACHINE"),
    (re.compile(r'(?<="boot_id": ")[^"]+'), "BOOT"),
    # Of the program.
    (re.compile(rf"(?<=stackmark[ -]){_VERSION}|(?<=stackmark-worker:){_VERSION}"), "X.Y.Z"),
    (re.compile(rf'(?<=version="){_VERSION}|(?<=version": "){_VERSION}'), "X.Y.Z"),
    # Of the worker in a manifest.
    (re.compile(r"(?<=-[0-9a-f]{8}-)[0-9a-f]{8}\b"), "WORKER00"),
    # Of tf-cnn: the framework here, and the time of day in its log.
    (re.compile(r'(?<="timestamp": ")[^"]+'), "TIMESTAMP"),
    (re.compile(r"(?<=^PyTorch:     )\S+", re.MULTILINE), "X.Y.Z"),
)
# A bar that moves before anything is known: where it stands depends on the moment.
MOVING = re.compile(r"[\u2800-\u28ff][ ━╸╺]*\d:\d\d:\d\d\s*")


@dataclass(frozen=True)
class Screen:
    """A command, the width of its terminal (none: it writes to a pipe), and a file that it writes."""

    name: str
    arguments: tuple[str, ...]
    width: int | None = 100
    ledger: str = "ledger.sqlite3"
    file: str | None = None


# Recorded experiments: ids are those of tests/data.
EXPERIMENTS = {
    "ceilings": "x-01m7g9mpq5hn6m4me90xk6pv9r",
    "cpu_limit": "x-01m7fhtdswbsp7jn0fyt3xywev",
    "gemm_bf16": "x-01m7g9q6000mrcv6jsj4sjvtm2",
    "gemm_fp32": "x-01m7g9td3s9ymgk6ppck5swm8a",
    "gemm_tf32": "x-01m7g9rpd984jgvqrzxhbtd9qz",
    "host_container": "x-01m7fa3ecghx2qyvqdmn749k0t",
    "host_container_pod": "x-01m7fmjw7vw8jme914dkdw3g6y",
    "noise": "x-01m7faz909hmwgqaq9v3f4syxh",
    "until_decided": "x-01m7fbkj93yrsnx5qrwem40pd5",
}
COMPARISONS = ("cpu_limit", "host_container", "host_container_pod", "noise", "until_decided")
LISTS = ("ceilings", "gemm_bf16")
# As gemm_bf16, in other precisions: one screen shows what differs.
SIMILAR = ("gemm_fp32", "gemm_tf32")
RESNET50 = ("--workload", "train/resnet50")
# Logs with what they do not say themselves.
LOGS: dict[str, tuple[str, ...]] = {
    "tf_cnn": ("logs/tf_cnn/t4_host_1gpu.log", "--place", "host", "--chip", "Tesla T4", "--param", "precision=fp32"),
    "tf_cnn_bare": ("logs/tf_cnn/v100_report_gpu.log", *RESNET50, "--note", "from slides"),
    "nvcnn": ("logs/nvcnn/p4x4_kubernetes.log", *RESNET50, "--place", "pod", "--ranks", "4", "--label", "P4"),
    "app": ("logs/inference/reference_app.log", "--workload", "serve/resnet50"),
    "deepbench_gemm": ("logs/deepbench/gemm_train_float.log",),
    "deepbench_conv": ("logs/deepbench/conv_train_float.log",),
    "deepbench_rnn": ("logs/deepbench/rnn_train_float.log",),
    "deepbench_all_reduce": ("logs/deepbench/all_reduce_nccl_8.log",),
    "mlperf": ("logs/mlperf_v0.6/ssd/result_0.txt",),
    "loadgen": ("logs/loadgen/server_summary.txt", "--workload", "serve/resnet50"),
    "loadgen_invalid": ("logs/loadgen/multi_stream_invalid_summary.txt", "--workload", "serve/resnet50"),
    "without_workload": ("logs/loadgen/offline_summary.txt",),
    "no_log": ("logs/README.md",),
}
T4 = "logs/tf_cnn/t4_"
ARMS = tuple(
    word
    for place in ("host", "container")
    for file in (f"{place}_1gpu", f"{place}_1gpu_run2")
    for word in ("--arm", f"{place}={T4}{file}.log")
)
# Of one GPU and of two: two verdicts.
TABLE = ("--table", "logs/tables/t4_host_container.csv", "--arm-column", "where")
CHIP_TABLES = {
    "p100_v100_kubernetes": ("--map", "workload=model,chip=gpu,ranks=gpus,rate=images_per_sec"),
    "lambda_resnet50": (),
}
CHIPS = ("--runs", "chip=H100 SXM5", "--against", "chip=A100 SXM4")
ONE_CHIP = ("--runs", "chip=V100,ranks=1", "--against", "chip=P100,ranks=1")
POD = ("--image", "registry.example/worker:1")
# Experiments of a cluster, in a ledger of their own.
OF_CLUSTERS = {"sweep": "x-01m3250v000000000000000007", "fault": "x-01m328epm00000000000000007"}
# The only screen of a measurement: a recorded run is played where the host would be.
TF_CNN = Screen(
    "tf-cnn.pipe",
    (
        "tf-cnn", "--model=lenet", "--device=cpu", "--num_batches=60", "--num_warmup_batches=5", "--batch_size=8",
        "--display_every=10", "--benchmark_log_dir=log",
    ),
    None,
    "tf_cnn_run.sqlite3",
    "log/metric.log",
)  # fmt: skip


def screens() -> list[Screen]:
    """All of them, in the order in which they are asked: later ones may show what earlier ones stored."""
    return [
        *_of_experiments(), *_of_runs(), *_of_tables(), *_that_write(), *_of_clusters(), *_of_cluster_experiments(),
        TF_CNN,
    ]  # fmt: skip


def _both(name: str, *arguments: str, narrow: bool = True, ledger: str = "ledger.sqlite3") -> Iterator[Screen]:
    """The text on a wide and on a narrow terminal, and the JSON."""
    yield Screen(f"{name}.100", arguments, ledger=ledger)
    if narrow:
        yield Screen(f"{name}.80", arguments, 80, ledger)
    yield Screen(f"{name}.json", (*arguments, "--json"), None, ledger)


# An answer must be whole at each of these; its interval is never what is left out.
WIDTHS = (60, 80, 120)


def _of_experiments() -> Iterator[Screen]:
    for name in SIMILAR:
        yield Screen(f"show-{name}.100", ("show", EXPERIMENTS[name]))
    for name in LISTS:
        yield from _both(f"verdict-{name}", "verdict", EXPERIMENTS[name])
        yield from _both(f"show-{name}", "show", EXPERIMENTS[name])
    for name in COMPARISONS:
        id_ = EXPERIMENTS[name]
        for width in WIDTHS:
            yield Screen(f"verdict-{name}.{width}", ("verdict", id_), width)
        yield Screen(f"verdict-{name}.json", ("verdict", id_, "--json"), None)
        yield Screen(f"verdict-{name}-why.100", ("verdict", id_, "--why"))
        yield Screen(f"verdict-{name}-why.80", ("verdict", id_, "--why"), 80)
        yield Screen(f"show-{name}.80", ("show", id_), 80)
        yield Screen(f"show-{name}-details.pipe", ("show", id_, "--details"), None)
        yield Screen(f"show-{name}.json", ("show", id_, "--json"), None)
    for name in (*COMPARISONS, *LISTS):
        id_ = EXPERIMENTS[name]
        yield Screen(f"report-{name}.html", ("report", id_, "-o", "report.html"), None, file="report.html")
        yield Screen(f"report-{name}.md", ("report", id_, "--format", "markdown"), None)
    for name in COMPARISONS:
        id_ = EXPERIMENTS[name]
        yield Screen(f"verdict-{name}.pipe", ("verdict", id_), None)
        yield Screen(f"verdict-{name}-margin.80", ("verdict", id_, "--margin", "0.05%"), 80)
        yield Screen(f"plot-{name}.svg", ("plot", id_, "-o", "plot.svg"), None, file="plot.svg")
    published = ("plot", EXPERIMENTS["host_container_pod"], "--kind", "published", "-o", "plot.svg")
    yield Screen("plot-published.svg", published, None, file="plot.svg")
    for name in ("host_container", "gemm_bf16"):
        yield Screen(f"resume-{name}.pipe", ("resume", EXPERIMENTS[name]), None)
        yield Screen(f"resume-{name}.80", ("resume", EXPERIMENTS[name]), 80)
        yield Screen(f"resume-{name}.json", ("resume", EXPERIMENTS[name], "--json"), None)
    for word in ("slower", "inconclusive", "different"):
        yield Screen(f"verdict-fail-on-{word}.80", ("verdict", EXPERIMENTS["cpu_limit"], "--fail-on", word), 80)
    bf16, fp32 = EXPERIMENTS["gemm_bf16"], EXPERIMENTS["gemm_fp32"]
    yield from _both("verdict-against-refused", "verdict", bf16, "--against", fp32, narrow=False)
    yield from _both("verdict-against-anyway", "verdict", bf16, "--against", fp32, "--anyway")
    for name in LISTS:
        yield from _both(f"roofline-{name}", "roofline", EXPERIMENTS[name])
    yield from _both("roofline-noise", "roofline", EXPERIMENTS["noise"])
    yield Screen("roofline.svg", ("roofline", bf16, fp32, "-o", "roofline.svg"), file="roofline.svg")
    yield Screen("show-deepbench.pipe", ("show", bf16, "--format", "deepbench"), None)


# One run of each kind: an arm on the host, in a container, in a pod, and of an operator list.
RUNS = {"host": "host_container", "container": "host_container", "pod": "host_container_pod", "list": "gemm_bf16"}


def _of_runs() -> Iterator[Screen]:
    for name in RUNS:
        yield from _both(f"show-run-{name}", "show", f"RUN:{name}")
    yield Screen("show-run-spec.pipe", ("show", "RUN:pod", "--spec"), None)
    yield Screen("show-run-events.pipe", ("show", "RUN:pod", "--events"), None)
    yield Screen("show-run-log.pipe", ("show", "RUN:pod", "--log"), None)
    yield from _both("verdict-runs", "verdict", "RUN:container", "--against", "RUN:host")
    yield from _both("experiments", "experiments")
    yield Screen("experiments.60", ("experiments",), 60)
    yield Screen("experiments.120", ("experiments", "--workload", "train/*", "--limit", "4"), 120)
    yield from _both("watch", "watch", EXPERIMENTS["noise"], narrow=False)
    yield from _both("results", "results")
    yield Screen("results.60", ("results", "--limit", "6"), 60)
    yield Screen("results.pipe", ("results",), None)
    yield from _both("results-pods", "results", "--place", "pod", "--limit", "3")
    yield from _both("results-none", "results", "--workload", "train/none", narrow=False)
    yield from _both("results-since", "results", "--since", "2026-11-14", "--until", "2026-11-15T12:00", "--limit", "5")
    for kind in ("csv", "json", "jsonl"):
        yield Screen(f"export.{kind}", ("export", "--format", kind), None)


def _of_tables() -> Iterator[Screen]:
    yield from _both("workloads", "workloads")
    yield from _both("suite-list", "suite", "list")
    yield Screen("suite-list.60", ("suite", "list"), 60)
    yield Screen("suite-show-poc.80", ("suite", "show", "study-poc-matrix"), 80)
    for name, pattern in (("train", "train/resnet*"), ("op", "op/*"), ("none", "no/*")):
        yield from _both(f"workloads-{name}", "workloads", pattern)
    yield from _both("published-sources", "published", "sources")
    yield Screen("published-template.pipe", ("published", "template"), None)
    for name, words in (
        ("resnet50", ("resnet50 V100", "--limit", "5")),
        ("llama2", ("8x H200 llama2", "--unit", "min", "--limit", "5")),
        ("gemm", ("op/gemm", "--m", "7680", "--n", "48000", "--k", "2560")),
        ("conv", ("op/conv", "V100", "--shape", "w=14,h=14,c=512,n=16")),
        ("none", ("resnt50",)),
    ):
        yield from _both(f"published-{name}", "published", "search", *words)
    for name in ("resnet", "ssd", "minigo"):
        yield from _both(f"mlperf-{name}", "mlperf", "score", f"logs/mlperf_v0.6/{name}")
    yield from _both("mlperf-all", "mlperf", "score", "logs/mlperf_v0.6", "--against", "0.6-17")
    yield from _both("mlperf-details", "mlperf", "score", "logs/mlperf_v0.6/ssd", "--details")
    chart = ("mlperf", "score", "logs/mlperf_v0.6", "--chart", "minutes.svg")
    yield Screen("mlperf-chart.svg", chart, None, file="minutes.svg")
    yield from _both("config-none", "config", narrow=False)
    for shell in ("bash", "zsh", "fish"):
        yield Screen(f"completion-{shell}.pipe", ("completion", shell), None)
    yield from _both("ceilings-none", "ceilings", "--show", narrow=False)
    for name, options in (
        ("debian", ()),
        ("ubi9", ("--base", "ubi9")),
        ("cuda", ("--base", "cuda")),
        ("ngc", ("--base", "ngc")),
    ):
        yield Screen(f"image-{name}.pipe", ("image", *options), None)


def _that_write() -> Iterator[Screen]:
    """Into ledgers of their own, so that the others stay as they are."""
    for name, words in LOGS.items():
        yield Screen(f"import-{name}.100", ("import", *words), ledger=f"{name}.sqlite3")
        yield Screen(f"import-{name}.json", ("import", *words, "--json"), None, "imported.sqlite3")
        if name not in ("without_workload", "no_log"):
            yield from _both(f"import-{name}-show", "show", "last", narrow=False, ledger=f"{name}.sqlite3")
    yield Screen("import-again.100", ("import", *LOGS["tf_cnn"]), ledger="tf_cnn.sqlite3")
    yield from _both("import-results", "results", ledger="imported.sqlite3")
    yield Screen("import-arms.100", ("import", *ARMS), ledger="arms.sqlite3")
    yield Screen("import-arms.json", ("import", *ARMS, "--json"), None, "arms_json.sqlite3")
    yield from _both("import-arms-verdict", "verdict", "last", ledger="arms.sqlite3")
    yield Screen("import-arms.md", ("report", "last", "--format", "markdown"), None, "arms.sqlite3")
    yield Screen("import-table.100", ("import", *TABLE), ledger="table.sqlite3")
    yield Screen("import-table.json", ("import", *TABLE, "--json"), None, "table_json.sqlite3")
    yield from _both("import-table-verdict", "verdict", "last", ledger="table.sqlite3")
    yield Screen("import-table.md", ("report", "last", "--format", "markdown"), None, "table.sqlite3")
    yield from _both("scale-stored", "scale", "--stored", "chip=Tesla T4", narrow=False, ledger="table.sqlite3")
    yield Screen("scale-stored.60", ("scale", "--stored", "chip=Tesla T4"), 60, "table.sqlite3")
    yield from _both("scale-published", "scale", "--published", "resnet50 T4", narrow=False)
    for name, options in CHIP_TABLES.items():
        yield Screen(
            f"import-{name}.100", ("import", "--table", f"logs/tables/{name}.csv", *options), ledger="chips.sqlite3"
        )
    yield from _both("verdict-mixed", "verdict", "last", ledger="chips.sqlite3")
    yield from _both("verdict-chips", "verdict", *CHIPS, "--by", "precision", ledger="chips.sqlite3")
    yield Screen("verdict-chips-why.100", ("verdict", *CHIPS, "--by", "precision", "--why"), ledger="chips.sqlite3")
    yield from _both("verdict-chip", "verdict", *ONE_CHIP, ledger="chips.sqlite3")
    yield Screen("verdict-chip-why.100", ("verdict", *ONE_CHIP, "--why"), ledger="chips.sqlite3")
    yield Screen("import-ledger.100", ("import", "chips.sqlite3"), ledger="copied.sqlite3")
    yield Screen("import-ledger.json", ("import", "chips.sqlite3", "--json"), None, "copied.sqlite3")
    yield from _both("baseline-none", "baseline", "list", narrow=False, ledger="own.sqlite3")
    for name in ("bf16", "tf32"):
        id_ = EXPERIMENTS[f"gemm_{name}"]
        yield Screen(f"baseline-save-{name}.100", ("baseline", "save", "before", "--from", id_), ledger="own.sqlite3")
    yield from _both("baseline-list", "baseline", "list", ledger="own.sqlite3")
    yield from _both("baseline-show", "baseline", "show", "before", ledger="own.sqlite3")
    plot = ("baseline", "plot", "before", "-o", "trend.svg")
    yield Screen("baseline-plot.svg", plot, None, "own.sqlite3", "trend.svg")
    yield Screen("baseline-delete.100", ("baseline", "delete", "before"), ledger="own.sqlite3")
    yield from _both("ceilings-show", "ceilings", "--show", ledger="own.sqlite3")
    yield Screen("delete-unasked.100", ("delete", "RUN:pod"), ledger="own.sqlite3")
    yield Screen("delete.100", ("delete", "RUN:pod", "--yes"), ledger="own.sqlite3")
    yield from _both("verdict-run-deleted", "verdict", EXPERIMENTS["host_container_pod"], ledger="own.sqlite3")
    yield from _both("recover-none", "recover", narrow=False, ledger="own.sqlite3")
    yield Screen("published-add.100", ("published", "add", "template.csv"), ledger="own.sqlite3")
    yield Screen("published-add.json", ("published", "add", "template.csv", "--json"), None, "own.sqlite3")
    yield Screen(
        "published-remove.100", ("published", "remove", "--file", "template.csv", "--yes"), ledger="own.sqlite3"
    )


def _of_clusters() -> Iterator[Screen]:
    for name, words in (
        ("job", ("train/resnet50", "--gpus", "1", "--cpus", "8", "--memory", "32g", *POD)),
        ("openshift", ("train/resnet50", "--gpus", "1", "--openshift", *POD)),
        ("cronjob", ("train/trivial", "--device", "cpu", "--batch", "2", "--kind", "cronjob", *POD)),
        ("pod", ("train/trivial", "--device", "cpu", "--kind", "pod", "--queue", "team", "--node", "gpu-7", *POD)),
        ("dra", ("train/resnet50", "--gpus", "2", "--dra", "gpu.nvidia.com", "--cap", "IPC_LOCK", *POD)),
        ("command", ("--cmd", "python train.py", "--metric", "images/sec: ([0-9.]+)", "--gpus", "1", *POD)),
    ):
        # The worker is hundreds of kilobytes that change with each of its lines.
        words = (*words, "--without-worker")
        yield Screen(f"manifest-{name}.yaml", ("manifest", *words), None)
        yield Screen(f"manifest-{name}.json", ("manifest", *words, "--json"), None)
    for name in ("doctor", "check", "clean"):
        yield Screen(f"cluster-{name}-without.pipe", ("cluster", name, "--kubeconfig", "none.yaml"), None)


def _of_cluster_experiments() -> Iterator[Screen]:
    ledger = "cluster.sqlite3"
    for name, id_ in OF_CLUSTERS.items():
        yield from _both(f"show-{name}", "show", id_, ledger=ledger)
        for verb, *more in (("verdict",), ("report",), ("plot", "-o", "plot.svg"), ("roofline",)):
            yield Screen(
                f"{verb}-{name}.pipe", (verb, id_, *more), None, ledger, "plot.svg" if verb == "plot" else None
            )
    yield from _both("resume-sweep", "resume", OF_CLUSTERS["sweep"], ledger=ledger)
    again = ("cluster", "sweep", "--resume", OF_CLUSTERS["sweep"])
    yield Screen("sweep.svg", (*again, "-o", "sweep.svg"), None, ledger, "sweep.svg")
    yield Screen("sweep-fail-on-slow.pipe", (*again, "--fail-on-slow"), None, ledger)
    yield Screen("resume-fault.pipe", ("resume", OF_CLUSTERS["fault"]), None, ledger)
    yield from _both("experiments-cluster", "experiments", ledger=ledger)
    yield from _both("results-cluster", "results", "--limit", "5", ledger=ledger)
    yield Screen("export-cluster.csv", ("export", "--format", "csv"), None, ledger)


def _errors() -> Iterator[tuple[str, str]]:
    """What wrong commands are answered with: their exit codes and sentences, a file for each verb."""
    os.environ |= {"STACKMARK_LEDGER": "ledger.sqlite3", "TTY_COMPATIBLE": "0"}
    for verb, commands in by_verb(tuple(our_verbs())):
        yield f"errors-{verb}", steady("\n".join(map(_error, commands))).replace(os.getcwd(), "FOLDER")


def _error(command: tuple[str, ...]) -> str:
    answer = ask(*command)
    typed = safe_line(shlex.join(word if len(word) <= LONGEST_WORD else f"{word[:LONGEST_WORD]}…" for word in command))
    return f"$ stackmark {typed}\nexit code {answer.code}\n{answer.out}{answer.err}"


def shown(folder: Path) -> dict[str, str]:
    """Every screen by its name, the answers to wrong commands, and the help of every command, as they look today."""
    with _stage(folder) as known:
        made = {screen.name: _shot(screen, known) for screen in screens()}
        made |= dict(_errors()) | {name: steady(text) for name, text in rendered()}
        return made | {f"help{name}": text for name, text in _helps()}


def measured(folder: Path) -> dict[str, str]:
    """The keys of what commands print that measure."""
    with _quiet(folder):
        return {f"measured-{name}.keys": _keys_of(name, *words) for name, words in MEASURED}


# What measures: a program that prints its figure, quick and the same everywhere. Only the keys of the JSON are kept.
OWN = ("--cmd", "echo rate: 12.5", "--metric", "rate: ([0-9.]+)")
MEASURED = (
    ("run", ("run", *OWN, "--runs", "2")),
    ("run-show", ("show", "last")),
    ("compare", ("compare", *OWN, "--arm", "host", "--arm", "host,gpus=none", "--blocks", "2", "--no-primers")),
    ("noise", ("noise", *OWN, "--blocks", "2")),
    ("baseline-save", ("baseline", "save", "before", *OWN, "--runs", "2")),
    ("check", ("check", "before")),
    ("failed", ("run", "--cmd", "false", "--runs", "1")),
    ("results", ("results",)),
    ("facts", ("facts",)),
    ("bundle", ("bundle", "-o", "worker.zip")),
    ("image", ("image",)),
)
KEYS_DEEP = 3
OF_THE_MACHINE = ("facts", "covariates", "covariates[]", "differences[]", "changed[]", "warnings[]")


def _keys_of(name: str, *words: str) -> str:
    """The keys of a command's JSON: those of objects within objects, and in lists, but not those that the machine decides."""
    os.environ["STACKMARK_LEDGER"] = "measured.sqlite3"
    answer = ask(*words, "--json")
    keys = sorted({*_keys(json.loads(answer.out), KEYS_DEEP if name != "facts" else 1)}) if answer.out else []
    return steady("\n".join([f"$ stackmark {' '.join(words)} --json", f"exit code {answer.code}", *keys]))


def _keys(value: object, depth: int, before: str = "") -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from _keys(one, depth, f"{before}[]")
    elif isinstance(value, dict) and depth and not before.endswith(OF_THE_MACHINE):
        for key, one in value.items():
            yield f"{before}.{key} {one}" if key == "schema" else f"{before}.{key}"
            yield from _keys(one, depth - 1, f"{before}.{key}")


@contextmanager
def _quiet(folder: Path) -> Iterator[None]:
    """In the folder, with nothing of this environment that a command would read or that would colour its output."""
    before, environment = os.getcwd(), dict(os.environ)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FORCE_COLOR", "KUBECONFIG", "PIP_CERT", "SSL_CERT_FILE", "TTY_COMPATIBLE", "STACKMARK_LEDGER"):
            patch.delenv(name, raising=False)
        for name in ("STATE", "DATA", "CACHE", "CONFIG"):
            patch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
        patch.setattr("stackmark.experiments.surroundings.look", lambda _seconds: None)
        values = {"NO_COLOR": "1", "TERM": "xterm", "TZ": "UTC", "LC_ALL": "C.UTF-8", "COLUMNS": "100"}
        for name, value in values.items():
            patch.setenv(name, value)
        os.chdir(folder)
        time.tzset()
        try:
            yield
        finally:
            os.chdir(before)
    # Screens set variables of their own, which no patch remembers.
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()


@contextmanager
def _stage(folder: Path) -> Iterator[dict[str, str]]:
    """Fills the folder with ledgers and logs, and stops the clock. Gives the names of runs that screens ask for."""
    shutil.copytree(DATA / "logs", folder / "logs")
    with Ledger.open(str(folder / "ledger.sqlite3")) as book:
        for name, id_ in EXPERIMENTS.items():
            assert load(book, f"h200_{name}") == id_
        runs = {name: _run_of(book, name, EXPERIMENTS[experiment]) for name, experiment in RUNS.items()}
        known = {f"RUN:{name}": run for name, run in runs.items()}
    with Ledger.open(str(folder / "cluster.sqlite3")) as book:
        for name, id_ in OF_CLUSTERS.items():
            assert load(book, f"made_{name}") == id_
    with _quiet(folder), pytest.MonkeyPatch.context() as patch:
        Path("template.csv").write_text(ask("published", "template").out, encoding="utf-8")
        _as_if_measured_here()
        # Nothing is measured here: what asks for the host gets a recorded run.
        patch.setitem(PLACES, "host", PlaceKind("host", HostOptions, lambda _options, _cache: replay_of("cpu_tf_cnn")))
        patch.setattr(time, "time", lambda: NOW_UNIX_S)
        patch.setattr(time, "time_ns", lambda: int(NOW_UNIX_S * 1e9))
        patch.setattr(secrets, "randbits", lambda _bits: 0)
        patch.setattr(ids, "_last", 0)  # and back: ids of later tests are not to be after those of this clock
        yield known


def _as_if_measured_here() -> None:
    """Copies the ledger, with the ceilings moved to this machine: `ceilings --show` shows those of the machine it is asked on."""
    shutil.copy("ledger.sqlite3", "own.sqlite3")
    machine = machine_id() or f"boot {boot_id()}"
    with closing(sqlite3.connect("own.sqlite3")) as own, own:
        own.execute("UPDATE runs SET machine_id = ? WHERE experiment_id = ?", (machine, EXPERIMENTS["ceilings"]))


def _run_of(book: Ledger, name: str, experiment: str) -> str:
    """The first measured run in a place of this name; of a list, its first run."""
    rows = [row for row in book.runs_of(experiment) if row.role == "measured"]
    return next(row.id for row in rows if name == "list" or row.place == name)


def _shot(screen: Screen, known: dict[str, str]) -> str:
    os.environ["STACKMARK_LEDGER"] = screen.ledger
    for name, value in {"COLUMNS": screen.width, "TTY_COMPATIBLE": "1" if screen.width else "0"}.items():
        os.environ[name] = str(value or 100)
    answer = ask(*(known.get(word, word) for word in screen.arguments))
    parts = [f"$ stackmark {' '.join(screen.arguments)}\nexit code {answer.code}"]
    parts += [f"--- standard output\n{_readable(answer.out)}"] if answer.out else []
    parts += [f"--- standard error\n{answer.err}"] if answer.err else []
    if screen.file and Path(screen.file).exists():
        parts.append(f"--- {screen.file}\n{_readable(Path(screen.file).read_text(encoding='utf-8'))}")
        Path(screen.file).unlink()
    return steady("\n".join(part.rstrip("\n") for part in parts) + "\n").replace(os.getcwd(), "FOLDER")


def _helps() -> Iterator[tuple[str, str]]:
    """The whole and the short help of every command, and the list of topics."""
    os.environ["COLUMNS"] = "100"
    yield "-topics", ask("help").out
    for words in ((), *_commands()):
        name = "".join(f"-{word}" for word in words)
        yield name, steady(ask(*words, "--help").out)
        if words != ("tf-cnn",):  # the classic has its own
            yield f"{name}.short", steady(ask(*words, "-h").out)


def _commands() -> Iterator[tuple[str, ...]]:
    """The words of every command, and of those below it."""
    with stackmark.make_context("stackmark", [], resilient_parsing=True) as root:
        for verb in our_verbs():
            yield (verb,)
            command = stackmark.get_command(root, verb)
            if isinstance(command, click.Group):
                yield from ((verb, name) for name in command.list_commands(root))


def _readable(text: str) -> str:
    """JSON, HTML and SVG in lines, so that a difference is a few of them; other text as it is."""
    if text.startswith("<"):
        return text.replace("><", ">\n<")
    for parts in ([text], text.splitlines()):
        if parts and parts[0].startswith(("{", "[")):
            with suppress(ValueError):
                return "\n".join(map(_indented, parts))
    return text


def _indented(text: str) -> str:
    return json.dumps(_rounded(json.loads(text)), indent=1, ensure_ascii=False)


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def steady(text: str) -> str:
    """Masks what differs from one run of the tests to the next. Ids keep their length, so that columns keep theirs."""
    text = ANSI.sub("", text)
    numbers: dict[str, str] = {}
    fresh = _id_at(NOW_UNIX_S)

    def numbered(match: re.Match[str]) -> str:
        if match[2] < fresh:
            return match[0]
        return numbers.setdefault(match[0], f"{match[1]}-{'new' + str(len(numbers) + 1):0>26}")

    text = IDS.sub(numbered, text)
    for pattern, name in MASKS:
        text = pattern.sub(name, text)
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if not MOVING.fullmatch(line)) + "\n"


def _id_at(unix_s: float) -> str:
    """How ids begin that are made at this time: its milliseconds in Crockford's base 32."""
    letters, number = "0123456789abcdefghjkmnpqrstvwxyz", int(unix_s * 1000)
    return "".join(letters[number >> shift & 31] for shift in range(45, -1, -5))


# The files


def stored(name: str) -> str | None:
    """What the golden file of this name holds; None where there is none."""
    if (plain := GOLDEN / f"{name}.txt").exists():
        return plain.read_text(encoding="utf-8")
    if (packed := GOLDEN / f"{name}.txt.xz").exists():
        return lzma.decompress(packed.read_bytes()).decode()
    return None


def write(name: str, text: str) -> None:
    plain, packed = GOLDEN / f"{name}.txt", GOLDEN / f"{name}.txt.xz"
    data = text.encode()
    if len(data) > PLAIN_BYTES:
        plain.unlink(missing_ok=True)
        packed.write_bytes(lzma.compress(data, preset=9))
    else:
        packed.unlink(missing_ok=True)
        plain.write_bytes(data)


def names() -> set[str]:
    """Of the golden files that there are."""
    return {path.name.removesuffix(".xz").removesuffix(".txt") for path in GOLDEN.glob("*.txt*")}
