"""What nobody typed is chosen, with a reason; what was typed stays; what cannot be is a sentence. And the table of names."""

import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from stackmark.errors import SpecError
from stackmark.model import ValidationError
from stackmark.spec import Request, Scalar
from stackmark.workloads import registry
from stackmark.workloads.fit.definition import TASKS
from stackmark.workloads.impl.devices import require_device
from stackmark.workloads.op.operators import OPERATORS
from stackmark.workloads.serve.definition import SERVED
from stackmark.workloads.train.definition import TrainParams
from stackmark.workloads.train.impl import choose as choosing
from stackmark.workloads.train.impl import train
from stackmark.workloads.train.impl.choose import choose
from stackmark.workloads.train.zoo import MODELS, cpu_batch
from stackmark.workloads.workload import TimedSteps, WorkloadFailure
from train_rig import RecordingRig, arithmetic_is_left_as_found, train_params

__all__ = ["arithmetic_is_left_as_found"]

AUTO = {name for name, field in TrainParams.model_fields.items() if field.is_required()}
DOCS = Path(__file__).parent.parent / "docs" / "workloads.md"
PACKAGE = Path(__file__).parent / "outside_package" / "my_package"


def never(params: TrainParams) -> float:
    raise AssertionError("no trial is needed where a batch was typed")


def chosen(
    workload: str, trial: Callable[[TrainParams], float] = never, **typed: Any
) -> tuple[TrainParams, dict[str, str]]:
    request = Request(workload=f"train/{workload}", params=typed)
    return choose(request, MODELS[workload], trial)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretends that torch sees GPUs of a capability: the rules are about hardware that is not here."""

    def pretend(major: int = 9, minor: int = 0, count: int = 1, compiler: bool = True) -> None:
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, minor))
        monkeypatch.setattr(choosing, "find_spec", lambda name: object() if compiler else None)
        monkeypatch.setattr(choosing, "which", lambda name: f"/usr/bin/{name}")

    return pretend


@pytest.fixture(autouse=True)
def no_gpu_but_a_pretended_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


# --- on a CPU ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", ["resnet50", "vit-b16", "gpt2", "lenet"])
def test_every_parameter_that_may_be_left_out_gets_a_value_and_a_reason(workload: str) -> None:
    params, reasons = chosen(workload, lambda _: 0.01)
    assert set(reasons) == AUTO
    assert all(reasons.values())
    assert params.device == "cpu"
    assert (params.seconds, params.at_least_steps, params.cuda_graph, params.compile) == (30.0, 30, False, False)
    assert params.layout == ("nchw" if workload == "gpt2" else "nhwc")
    assert params.optimizer == ("adamw" if workload in ("gpt2", "vit-b16") else "momentum")
    assert params.classes == MODELS[workload].classes


def test_what_was_typed_stays_and_needs_no_reason() -> None:
    typed: dict[str, Any] = {
        "device": "cpu", "batch": 3, "precision": "bf16", "tune": "max", "optimizer": "rmsprop", "classes": 7,
        "layout": "nchw", "autotune": True, "fused": False, "cuda_graph": False, "compile": False, "threads": 2,
        "data_workers": 5, "learning_rate": 0.5, "seconds": 4.0, "at_least_steps": 1, "warmup_steps": 8,
        "warmup_seconds": 0.5,
    }  # fmt: skip
    params, reasons = chosen("resnet20", **typed)
    assert {name: getattr(params, name) for name in typed} == typed
    assert reasons == {}


def test_auto_is_as_if_nothing_had_been_typed() -> None:
    params, reasons = chosen("resnet20", batch=4, precision="auto", layout=None)
    assert {"precision", "layout"} <= set(reasons)
    assert params.layout == "nhwc"


@pytest.mark.parametrize(
    ("tune", "layout", "fused", "compiled"),
    [("off", "nchw", False, False), ("fast", "nhwc", True, False), ("max", "nhwc", True, True)],
)
def test_tune_is_a_name_for_choices_on_a_cpu(tune: str, layout: str, fused: bool, compiled: bool) -> None:
    params, reasons = chosen("resnet20", batch=4, tune=tune)
    assert (params.layout, params.fused, params.compile) == (layout, fused, compiled)
    assert (params.autotune, params.cuda_graph) == (False, False)
    assert reasons["fused"] == f"tune {tune}"


@pytest.mark.parametrize(("flags", "precision"), [("fpu avx512f amx_bf16", "bf16"), ("fpu avx512_bf16", "fp32")])
def test_a_cpu_computes_in_bf16_where_it_has_matrix_units_for_it(
    flags: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_text

    def read_text(path: Path, *args: Any, **kwargs: Any) -> str:
        return f"flags\t\t: {flags}\n" if path == Path("/proc/cpuinfo") else read(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", read_text)
    params, reasons = chosen("resnet20", batch=4)
    assert params.precision == precision
    assert "AMX" in reasons["precision"]


def test_a_length_that_was_typed_is_not_stretched() -> None:
    for typed in ({"steps": 5}, {"seconds": 2.0}):
        params, _ = chosen("resnet20", batch=4, **typed)
        assert params.at_least_steps == 0


@pytest.mark.parametrize(
    ("name", "batch"),
    [("trivial", 32), ("resnet20", 32), ("mobilenet", 16), ("alexnet", 4), ("resnet50", 2), ("vgg16", 1), ("gpt2", 1)],
)
@pytest.mark.parametrize("typed", [{}, {"seconds": 2.0}])
def test_the_batch_on_a_cpu_is_the_tables_and_nothing_is_timed(name: str, batch: int, typed: dict[str, Any]) -> None:
    def trial(params: TrainParams) -> float:
        raise AssertionError("a trial would choose otherwise on a busy machine")

    assert chosen(name, trial, **typed)[0].batch == batch


def test_no_batch_on_a_cpu_is_larger_than_the_classic_one() -> None:
    for model in MODELS.values():
        assert 1 <= cpu_batch(model) <= model.classic_batch


def test_a_probe_on_a_cpu_runs_no_step() -> None:
    rig = RecordingRig()
    params, reasons = train.probe(Request(workload="train/lenet", params={"threads": 1}), rig)
    assert "trial" not in rig.parts
    assert params.model_dump()["batch"] == 32
    assert reasons["batch"]


def test_the_rate_of_an_imagenet_resnet_goes_with_its_batch() -> None:
    assert chosen("resnet50", batch=64)[0].learning_rate == pytest.approx(0.128 / 4)
    assert chosen("resnet20", batch=64)[0].learning_rate == 0.1
    assert chosen("vgg16", batch=512)[0].learning_rate == 0.005


# --- from a folder -------------------------------------------------------------------------------------------------------


def test_classes_workers_and_batch_go_by_the_folder(tmp_path: Path) -> None:
    for index in range(20):
        folder = tmp_path / f"class{index % 5}"
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(folder / f"{index}.png")
    params, reasons = chosen("resnet20", lambda _: 1e-6, data=str(tmp_path))
    assert (params.classes, params.batch) == (5, 16)
    assert 1 <= params.data_workers <= max(1, len(os.sched_getaffinity(0)) - 1)
    assert " 5 " in reasons["classes"]


def test_a_bad_folder_is_said_before_any_trial(tmp_path: Path) -> None:
    with pytest.raises(WorkloadFailure) as failed:
        chosen("resnet20", data=str(tmp_path / "none"))
    assert str(tmp_path / "none") in failed.value.message


# --- on GPUs that are not here -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "precision", "layout"),
    [
        ((9, 0), "bf16", "nhwc"),
        ((8, 6), "bf16", "nhwc"),
        ((7, 5), "fp16", "nhwc"),
        ((7, 0), "fp16", "nhwc"),
        ((6, 1), "fp32", "nchw"),
    ],
)
def test_a_gpu_gets_the_precision_of_its_matrix_units(
    gpu: Callable[..., None], capability: tuple[int, int], precision: str, layout: str
) -> None:
    gpu(*capability)
    params, reasons = chosen("resnet50", lambda _: 0.1)
    assert (params.device, params.precision, params.layout, params.tune) == ("cuda:0", precision, layout, "max")
    assert (params.autotune, params.fused, params.cuda_graph, params.compile) == (True, True, True, True)
    assert (params.seconds, params.at_least_steps, params.batch) == (10.0, 200, MODELS["resnet50"].gpu_batch)
    assert f"{capability[0]}.{capability[1]}" in reasons["precision"]
    assert set(reasons) == AUTO


@pytest.mark.parametrize(
    ("tune", "expected"),
    # layout, autotune, fused, cuda_graph, compile
    [
        ("off", ("nchw", False, False, False, False)),
        ("fast", ("nhwc", True, True, True, False)),
        ("max", ("nhwc", True, True, True, True)),
    ],
)
def test_tune_is_a_name_for_choices_on_a_gpu(gpu: Callable[..., None], tune: str, expected: tuple[object, ...]) -> None:
    gpu()
    params, _ = chosen("resnet50", batch=64, tune=tune)
    assert (params.layout, params.autotune, params.fused, params.cuda_graph, params.compile) == expected


def test_without_triton_a_gpu_is_tuned_fast(gpu: Callable[..., None]) -> None:
    gpu(compiler=False)
    params, reasons = chosen("resnet50", batch=64)
    assert (params.tune, params.compile, params.cuda_graph) == ("fast", False, True)
    assert "Triton" in reasons["tune"]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "rmsprop", "adam", "adamw"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("mode", ["train", "forward", "eval"])
@pytest.mark.parametrize("schedule", ["", "0.1;5;0.01"])
def test_what_is_chosen_always_fits_together(
    gpu: Callable[..., None], optimizer: str, precision: str, mode: str, schedule: str
) -> None:
    gpu()
    for tune, scale in itertools.product(("off", "fast", "max"), (0.0, 128.0)):
        params, _ = chosen(
            "resnet20", batch=4, optimizer=optimizer, precision=precision, mode=mode, lr_schedule=schedule, tune=tune,
            loss_scale=scale, checkpoint_dir="somewhere",
        )  # fmt: skip
        assert not (params.cuda_graph and schedule)
        assert not (params.fused and optimizer == "rmsprop")


def test_a_batch_that_does_not_fit_into_memory_is_halved_until_one_does(gpu: Callable[..., None]) -> None:
    gpu()
    tried: list[int] = []

    def trial(params: TrainParams) -> float:
        tried.append(params.batch)
        if params.batch > 64:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 0.1

    params, reasons = chosen("resnet50", trial)
    assert tried == [256, 128, 64]
    assert params.batch == 64
    assert " 256 " in reasons["batch"]


def test_a_device_that_holds_not_even_one_sample_is_out_of_memory(gpu: Callable[..., None]) -> None:
    gpu()

    def trial(params: TrainParams) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        chosen("llama3-1b", trial)


def test_cuda_is_its_first_device(gpu: Callable[..., None]) -> None:
    gpu(count=2)
    assert chosen("lenet", batch=4, device="cuda")[0].device == "cuda:0"
    assert chosen("lenet", batch=4, device="cuda:1")[0].device == "cuda:1"
    require_device("cuda")


# --- what cannot be ------------------------------------------------------------------------------------------------------


def test_a_gpu_that_is_not_there_is_a_sentence_that_says_what_is(gpu: Callable[..., None]) -> None:
    gpu(count=2)
    with pytest.raises(WorkloadFailure) as failed:
        chosen("lenet", device="cuda:2")
    assert failed.value.kind == "no_device"
    assert [name for name in ("cuda:2", "cuda:0", "cuda:1") if name not in failed.value.message] == []
    assert "CUDA_VISIBLE_DEVICES" in failed.value.hint


def test_a_torch_without_cuda_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(WorkloadFailure) as failed:
        chosen("lenet", device="cuda:0")
    assert failed.value.kind == "no_device"
    assert torch.__version__ in failed.value.message


def test_a_cuda_without_devices_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    session = train.run("lenet", train_params("lenet", device="cuda:0"), RecordingRig())
    with pytest.raises(WorkloadFailure) as failed:
        next(session)
    assert (failed.value.kind, "cuda:0" in failed.value.message) == ("no_device", True)
    assert "--device cpu" in failed.value.hint


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ({"precision": "fp16"}, "fp16"),
        ({"precision": "tf32"}, "tf32"),
        ({"cuda_graph": True}, "CUDA graph"),
        ({"optimizer": "rmsprop", "fused": True}, "rmsprop"),
        ({"mode": "eval"}, "checkpoint_dir"),
        ({"precision": "fp64"}, "precision"),
        ({"batch": 0}, "batch"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"device": "cuda:x"}, "cuda:x"),
        ({"sharpness": 3}, "sharpness"),
    ],
)
def test_parameters_that_do_not_fit_are_a_sentence(
    monkeypatch: pytest.MonkeyPatch, typed: dict[str, Scalar], named: str
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(WorkloadFailure) as failed:
        chosen("resnet20", never, **{"batch": 4, **typed})
    assert failed.value.kind == "bad_parameter"
    assert named in failed.value.message


def test_several_ranks_without_a_strategy_are_refused_by_the_probe() -> None:
    request = Request(workload="train/resnet20", params={"strategy": "none"}, ranks=2)
    with pytest.raises(WorkloadFailure) as failed:
        choose(request, MODELS["resnet20"], never)
    assert (failed.value.kind, "--strategy ddp" in failed.value.hint) == ("bad_parameter", True)


def test_fp16_may_be_inferred_with_on_a_cpu() -> None:
    assert chosen("resnet20", batch=4, precision="fp16", mode="forward")[0].precision == "fp16"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"lr_schedule": "0.1;5;0.01"}, "learning rate"),
        ({"precision": "fp16", "optimizer": "rmsprop"}, "fused"),
    ],
)
def test_what_a_graph_cannot_replay_is_a_sentence(given: dict[str, Any], named: str) -> None:
    train_params("lenet", device="cuda:0", cuda_graph=False, **given)
    with pytest.raises(ValidationError) as failed:
        train_params("lenet", device="cuda:0", cuda_graph=True, **given)
    assert [named in one["msg"] for one in failed.value.errors()] == [True]


# --- the table -----------------------------------------------------------------------------------------------------------


def test_a_workload_is_found_by_its_name() -> None:
    family, entry = registry.find("train/resnet50")
    assert (family.name, entry.params, entry.sample) == ("train", 25_559_081, "image")
    assert [e.name for e in registry.definitions()] == [
        *(f"train/{name}" for name in MODELS),
        *(f"fit/{name}" for name in TASKS),
        *(f"serve/{name}" for name in SERVED),
        "serve/endpoint",
        *(f"op/{name}" for name in OPERATORS),
        "command/own",
        "serve/start",
        "check/vector-add",
    ]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("train/resnet5", "train/resnet50"), ("trian/vgg16", "train/vgg16"), ("train/gpt", "train/gpt2")],
)
def test_a_name_that_nobody_knows_gets_the_nearest_suggested(name: str, nearest: str) -> None:
    with pytest.raises(SpecError) as failed:
        registry.find(name)
    assert nearest in failed.value.message
    assert "stackmark workloads" in str(failed.value.hint)


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ({"bach": 3}, ("'bach'", "batch")),
        ({"batch": 0}, ("--batch", "1")),
        ({"precision": "half"}, ("--precision", "fp32")),
        ({"checkpoint_every": "often"}, ("--checkpoint-every",)),
        ({"device": "tpu"}, ("--device",)),
    ],
)
def test_a_request_is_refused_for_what_can_be_seen_without_a_device(
    typed: dict[str, Scalar], named: tuple[str, ...]
) -> None:
    with pytest.raises(SpecError) as failed:
        registry.check_request(Request(workload="train/resnet50", params=typed))
    assert [word for word in named if word not in failed.value.message] == []


def test_a_request_with_auto_in_it_is_let_through() -> None:
    registry.check_request(Request(workload="train/resnet50", params={"batch": "auto", "precision": "bf16"}))


TAKEN = """
TAKEN = Family("train", SortParams, "my_package.sorting", (Definition("train/resnet50", "Not ours", "image"),))
"""


@pytest.fixture
def announce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Put another package on the path as pip would, announced as is said."""

    def write(points: str) -> None:
        shutil.copytree(PACKAGE, tmp_path / "my_package")
        with (tmp_path / "my_package" / "__init__.py").open("a") as file:
            file.write(TAKEN)
        info = tmp_path / "my_package-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[stackmark.workloads]\n{points}\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    yield write
    for name in ("my_package", "my_package.sorting"):
        sys.modules.pop(name, None)


def test_another_package_brings_its_workloads(announce: Callable[[str], None]) -> None:
    announce("sort = my_package:FAMILY")
    family, entry = registry.find("sort/quick")
    request, workload = Request(workload=entry.name, params={"size": 3}), family.load()
    registry.check_request(request)
    params, _ = workload.probe(request, RecordingRig())
    ready = next(workload.run("quick", params, RecordingRig()))
    assert isinstance(ready, TimedSteps)
    ready.step()
    assert (ready.samples_per_step, ready.sample) == (3, "number")
    assert "train/resnet50" in [e.name for e in registry.definitions()]


def test_another_package_cannot_take_the_place_of_ours(announce: Callable[[str], None]) -> None:
    announce("train = my_package:TAKEN")
    family, entry = registry.find("train/resnet50")
    assert family.params is TrainParams
    assert entry.params == 25_559_081


@pytest.mark.parametrize("point", ["no_such_module:FAMILY", "my_package:missing", "my_package:QUICK"])
def test_a_package_whose_workloads_cannot_be_loaded_is_named(announce: Callable[[str], None], point: str) -> None:
    announce(f"sort = {point}")
    assert "train/resnet50" in [one.name for one in registry.definitions()]
    with pytest.raises(SpecError) as failed:
        registry.find("sort/quick")
    assert "my-package" in failed.value.message
    assert "pip uninstall my-package" in str(failed.value.hint)


# --- the documentation ---------------------------------------------------------------------------------------------------


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    below = DOCS.read_text().partition(f"\n## {heading}\n")[2]
    lines = itertools.takewhile(
        lambda line: line.startswith("|"),
        itertools.dropwhile(lambda line: not line.startswith("|"), below.splitlines()),
    )
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines][2:]


def test_the_documentation_has_every_workload_with_its_numbers() -> None:
    expected = [
        [
            f"`train/{m.name}`", m.title, f"{m.params:,}", f"{m.forward_macs / 1e9:.4g}",
            f"{float(f'{m.training_flops / 1e9:.4g}'):,.9g}", str(m.gpu_batch), str(cpu_batch(m)),
        ]
        for m in MODELS.values()
    ]  # fmt: skip
    table = "\n".join(f"| {' | '.join(row)} |" for row in expected)
    assert rows_of("The networks") == expected, f"the rows of {DOCS.name} should be:\n{table}"


def test_the_documentation_has_every_parameter_with_its_default() -> None:
    documented = {row[0].strip("`"): row[1] for row in rows_of("The options")}
    expected = {}
    for name, field in TrainParams.model_fields.items():
        option = f"--{name.replace('_', '-')}"
        expected[option] = "chosen" if field.is_required() else f"`{json.dumps(field.default)}`".replace('"', "")
        if field.default == "":
            expected[option] = "none"
    assert documented == expected
