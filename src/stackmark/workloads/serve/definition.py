"""The family `serve/`: networks that answer queries, in the four scenarios of MLPerf Inference. No framework.

MLPerf's own load generator (LoadGen) sends the queries and judges the run; it runs in the worker, next to the network. Each
scenario has a figure of its own, the one that MLPerf compares:

- single-stream: one query at a time; its 90th percentile of latency
- multi-stream: queries of eight samples, one at a time; its 99th percentile
- server: queries at random moments (Poisson) at a rate; its 99th percentile (of GNMT its 97th), or with `find_rate` the highest
  rate at which that percentile stays within the bound
- offline: all samples at once; samples per second
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast, get_args

from stackmark.events import Figure
from stackmark.model import Field
from stackmark.spec import AnyParams, Scalar
from stackmark.workloads.definition import Definition, Family, MetricType
from stackmark.workloads.serve.rules import judged_percent

AUTO = {"auto": True}
FOLLOWS = {"auto": True, "follows": True}
SERVING = {"group": "Serving (serve/)"}
# Of a list of scenarios, only the server takes it.
OF_SERVER = {"only": {"scenario": "server"}}
LATER = {"later": True}
Scenario = Literal["single-stream", "multi-stream", "server", "offline"]
# What a query of multi-stream holds, by MLPerf's rules.
MULTI_STREAM_SAMPLES = 8
QUICK_SECONDS = 10.0
LONGEST_S = 86_400.0
# Names of the histograms that a run sends: of its queries; of offline, whose samples come all at once, when batches were done.
LATENCY, SINCE_START = "latency", "since_start"


class ServeParams(AnyParams):
    scenario: Scenario = Field(
        default="single-stream",
        description="MLPerf's scenario: single-stream, multi-stream, server (Poisson arrivals), offline; or all of them",
        json_schema_extra={**SERVING, "takes_all": True},
    )
    seconds: float = Field(
        gt=0,
        le=LONGEST_S,
        description="send queries for at least this long; auto: 10, with --mlperf as long as its rules ask",
        json_schema_extra={**AUTO, "quantity": "seconds"},
    )
    mlperf: bool = Field(
        default=False,
        description="duration, queries and samples as MLPerf's rules have them for the model; else the result is called quick",
        json_schema_extra=SERVING,
    )
    rate: float = Field(
        ge=0,
        le=1e9,
        description="scenario server: queries per second; auto: half of what the network can do, by a short trial",
        json_schema_extra={**AUTO, **SERVING, **OF_SERVER},
    )
    latency_bound: float = Field(
        ge=0,
        le=LONGEST_S,
        description="scenario server: 99 % of the queries must be answered within this time; auto: MLPerf's bound",
        json_schema_extra={**AUTO, **SERVING, **OF_SERVER, "quantity": "seconds"},
    )
    find_rate: bool = Field(
        default=False,
        description="scenario server: search the highest rate that holds --latency-bound, instead of one --rate",
        json_schema_extra={**SERVING, **OF_SERVER},
    )
    batch: int = Field(
        ge=1, le=65_536, description="most samples that the network computes in one call", json_schema_extra=AUTO
    )
    batch_wait: float = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="scenario server: wait this long for a batch to fill; 0: a batch is what came in during the one before",
        json_schema_extra={**SERVING, **OF_SERVER, **LATER, "quantity": "seconds"},
    )
    tune: Literal["off", "fast", "max"] = Field(
        default="off",
        description="off: the network as it is; fast: a CUDA graph for each of a few batch sizes; max: also torch.compile",
        json_schema_extra={**AUTO, **LATER},
    )
    cuda_graph: bool = Field(
        default=False,
        description="record the network for each of a few batch sizes and replay it",
        json_schema_extra={**FOLLOWS, **LATER},
    )
    compile: bool = Field(
        default=False,
        description="torch.compile the network for each batch size",
        json_schema_extra={**FOLLOWS, **LATER},
    )
    library: int = Field(
        ge=1,
        le=1_000_000,
        description="different samples, in the device's memory before the clock starts",
        json_schema_extra={**AUTO, **SERVING},
    )
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = Field(
        description="arithmetic of the network", json_schema_extra=AUTO
    )
    weights: str = Field(
        default="",
        description="file with the weights (a state dict of PyTorch, or safetensors); empty: random weights, as fast as others",
        json_schema_extra={"group": "Files"},
    )
    weights_sha256: str = Field(
        default="",
        pattern=r"^([0-9a-f]{64})?$",
        description="SHA-256 of the file with the weights: runs with other weights do not compare",
        json_schema_extra={**AUTO, **SERVING, **LATER, "plain": True},
    )
    accuracy: bool = Field(
        default=False,
        description="also judge the answers: of --data, or against the network's own in fp64",
        json_schema_extra={**SERVING, **LATER},
    )
    data: str = Field(
        default="",
        description="folder with real samples and what is right for them: an ImageNet tree, COCO, text; empty: random ones",
        json_schema_extra={"group": "Files", **LATER},
    )
    data_sha256: str = Field(
        default="",
        pattern=r"^([0-9a-f]{64})?$",
        description="SHA-256 of what --data names: runs with other data do not compare",
        json_schema_extra={**AUTO, **SERVING, **LATER, "plain": True},
    )
    prompt: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="tokens of a prompt, for networks that generate text; 0: the network's usual number",
        json_schema_extra={**AUTO, **SERVING, **LATER},
    )
    generate: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="tokens to generate for a prompt; 0: the network's usual number",
        json_schema_extra={**AUTO, **SERVING, **LATER},
    )
    seed: int = Field(default=1, ge=0, lt=2**31, description="random seed of weights, samples and arrivals")
    threads: int = Field(
        ge=0, le=4096, description="intra-op threads; 0: the framework's choice", json_schema_extra=FOLLOWS
    )

    def _validate(self) -> None:
        if self.precision in ("tf32", "fp16") and self.device == "cpu":
            raise ValueError(f"{self.precision} needs a GPU; on a CPU use fp32 or bf16")
        if self.cuda_graph and self.device == "cpu":
            raise ValueError("cuda_graph needs a GPU")
        if self.scenario != "server":
            for name, value in (
                ("--batch-wait", self.batch_wait),
                ("--rate", self.rate),
                ("--latency-bound", self.latency_bound),
                ("--find-rate", self.find_rate),
            ):
                if value:
                    raise ValueError(f"{name} is for --scenario server, not {self.scenario}")
        elif not self.latency_bound:
            raise ValueError("--scenario server needs a --latency-bound above 0")
        elif not self.rate and not self.find_rate:
            raise ValueError("--scenario server needs a --rate above 0, or --find-rate")
        elif self.rate and self.find_rate:
            raise ValueError("--find-rate searches the rate: leave out --rate")


# What a network does with a sample: names the image, finds the things in it, finds an answer in a text, translates, goes on.
Kind = Literal["classifier", "detector", "question", "translator", "decoder"]


@dataclass(frozen=True)
class ServedNetwork:
    """One network that is served. `source` is its name where it is built; empty: answers without computing anything."""

    name: str
    title: str
    source: str
    sample: str
    kind: Kind
    # The bound of the 99th percentile in the scenario server, and whose it is.
    bound_s: float
    bound_of: str = "MLPerf's bound for ResNet-50"
    # Of a decoder: tokens of a prompt, and to generate.
    prompt: int = 0
    generate: int = 0
    # The share of the reference's quality that MLPerf's closed division asks for.
    least_share: float = 0.99


# Of networks that generate text: the time to the first token, and the time of each token after it.
TOKEN_TIMES = ("ttft", "tpot")
# What is measured of the answers, in percent; the first is judged. A BLEU is from 0 to 100 too.
QUALITIES: dict[Kind, tuple[str, ...]] = {
    "classifier": ("top1",),
    "detector": ("mAP",),
    "question": ("F1", "exact_match"),
    "translator": ("BLEU",),
    "decoder": ("token_match",),
}


# Bounds: MLPerf Inference v0.5, mlperf.conf at 37c605b (GNMT: of the 97th percentile); BERT's of v0.7 and later, mlperf.conf at
# 0edaaf5; GPT-J's of v3.1 and later, for whole answers of up to 128 tokens.
_MOBILENET, _GPTJ = "MLPerf's bound for MobileNet", "MLPerf's bound for GPT-J"
SERVED = {
    one.name: one
    for one in (
        ServedNetwork(
            "resnet50", "ResNet-50 v1.5 (MLPerf Inference: ResNet50-v1.5)", "resnet50_v1.5", "image", "classifier", 0.015
        ),
        ServedNetwork(
            "mobilenet", "MobileNet v1 1.0 224 (MLPerf Inference v0.5)", "mobilenet_v1", "image", "classifier", 0.010, _MOBILENET,
            least_share=0.98,
        ),
        ServedNetwork("vit-b16", "ViT-B/16", "vit-b16", "image", "classifier", 0.015),
        ServedNetwork(
            "resnet20", "ResNet-20 for 32×32 images: answers at once on any machine", "resnet20", "image", "classifier", 0.015
        ),
        ServedNetwork(
            "ssd-resnet34", "SSD-ResNet34 at 1200×1200, 81 classes (MLPerf Inference)", "ssd-resnet34", "image", "detector",
            0.100, "MLPerf's bound for SSD-ResNet34",
        ),
        ServedNetwork(
            "ssd-mobilenet", "SSD-MobileNet v1 at 300×300, 91 classes (MLPerf Inference)", "ssd-mobilenet", "image", "detector",
            0.010, "MLPerf's bound for SSD-MobileNet",
        ),
        ServedNetwork(
            "ssd-tiny", "SSD for 96×96 images, 4 classes: answers at once on any machine", "ssd-tiny", "image", "detector", 0.100
        ),
        ServedNetwork(
            "bert", "BERT-large that answers questions, 384 tokens (MLPerf Inference)", "bert", "sequence", "question", 0.130,
            "MLPerf's bound for BERT",
        ),
        ServedNetwork(
            "bert-tiny", "BERT of 2 layers, 64 tokens: answers at once on any machine", "bert-tiny", "sequence", "question",
            0.130, "MLPerf's bound for BERT",
        ),
        ServedNetwork(
            "gnmt", "GNMT v2 with a beam of 5 (MLPerf Inference v0.5)", "gnmt", "sentence", "translator", 0.250,
            "MLPerf's bound for GNMT",
        ),
        ServedNetwork(
            "gnmt-tiny", "GNMT of width 64 with a beam of 5: answers at once on any machine", "gnmt-tiny", "sentence",
            "translator", 0.250, "MLPerf's bound for GNMT",
        ),
        ServedNetwork(
            "gpt2", "GPT-2 124M, greedy, with a cache of keys and values", "gpt2", "sequence", "decoder", 20.0, _GPTJ, 128, 32
        ),
        ServedNetwork(
            "gpt2-tiny", "GPT-2 of 2 layers: answers at once on any machine", "gpt2-tiny", "sequence", "decoder", 20.0, _GPTJ,
            16, 8,
        ),
        ServedNetwork(
            "llama3-1b", "Llama 3.2 1B's architecture, greedy, with a cache of keys and values", "llama3-1b", "sequence",
            "decoder", 20.0, _GPTJ, 512, 128,
        ),
        ServedNetwork(
            "empty", "Answers without a network: what the path around it costs", "", "sample", "classifier", 0.015
        ),
    )
}  # fmt: skip


def figure_of(scenario: Scenario, find_rate: bool, sample: str, network: str = "") -> MetricType:
    """Return the figure that MLPerf compares in a scenario."""
    if scenario == "offline":
        return MetricType("throughput", f"{sample}s/s")
    if find_rate:
        return MetricType("rate within the bound", "queries/s")
    return MetricType(f"p{judged_percent(network, scenario)} latency", "ms", higher_is_better=False)


def figure(served: ServedNetwork, scenario: Scenario, find_rate: bool, value: float) -> Figure:
    kind = figure_of(scenario, find_rate, served.sample, served.name)
    return Figure(name=kind.name, value=value, unit=kind.unit, higher_is_better=kind.higher_is_better)


def _metric_by(one: ServedNetwork, params: Mapping[str, Scalar]) -> MetricType | None:
    scenario = params.get("scenario")
    if scenario not in get_args(Scenario):
        return None
    return figure_of(cast(Scenario, scenario), bool(params.get("find_rate")), one.sample, one.name)


def _definition(one: ServedNetwork) -> Definition:
    return Definition(
        f"serve/{one.name}",
        one.title,
        one.sample,
        timed="whole",
        metric_by=partial(_metric_by, one),
        compared=(
            *(MetricType(f"p{percent}_latency", "s", False) for percent in (50, 90, 99)),
            *(
                MetricType(f"p{percent}_{name}", "s", False)
                for name in TOKEN_TIMES
                for percent in (50, 99)
                if one.generate
            ),
            *(MetricType(quality, "%") for quality in QUALITIES[one.kind] if one.source),
        ),
    )


FAMILY = Family(
    "serve",
    ServeParams,
    "stackmark.workloads.serve.impl.serve",
    tuple(map(_definition, SERVED.values())),
    shown=("device", "scenario", "rate", "latency_bound", "batch", "precision", "tune", "seconds"),
)
