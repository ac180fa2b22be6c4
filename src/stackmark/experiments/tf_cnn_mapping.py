"""What a tf_cnn_benchmarks command line means here: flags in, a request and the printer's options out.

Everything that the original decides before it builds its graph is decided here, with its formulas: the model's default
batch, steps from epochs, warm-up from the autotune threshold, the data set from the path. So the request leaves nothing to
the probe that changes the number. Old command lines run where they can: what the original forbade only because of
TensorFlow (NCHW on a CPU) is allowed, and one worker of a parameter-server cluster of one measures alone.

Tuning is "off" with cuDNN's autotuning on, because TensorFlow autotunes by default; `--xla` is torch.compile, its nearest
kin. fp32 is fp32: no TF32.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from stackmark.errors import SpecError, nearest_names
from stackmark.experiments.tf_cnn_flags import Flags, consistent, notices, one_device, parse, refuse
from stackmark.spec import Request, Scalar
from stackmark.workloads.registry import check_request
from stackmark.workloads.train.zoo import MODELS, Model

DEFAULT_STEPS = 100
DEFAULT_WARMUP_STEPS = 10
DEFAULT_LOSS_SCALE = 128.0
RESNET_BASE_BATCH = 256
DECAY = ("num_epochs_per_decay", "learning_rate_decay_factor")
# More pieces than any training of this kind had; each is twenty bytes of a spec of 100 KiB.
MOST_PIECES = 1000


@dataclass(frozen=True)
class DataSet:
    """One of the original's data sets. Sizes are the published ones, whatever a folder holds, as in the original."""

    name: str
    training_images: int
    validation_images: int
    classes: int  # the original has one class more than the data set, for "background"


DATA_SETS = {
    "imagenet": DataSet("imagenet", 1_281_167, 50_000, 1001),
    "cifar10": DataSet("cifar10", 50_000, 10_000, 11),
}
# Of the original's other data sets and models: what to run instead.
NO_DATA_SET = {
    "coco": "object detection is not here; measure its backbone's kin with --model=resnet50",
    "librispeech": "speech is not here; of sequence models, `stackmark run train/bert-large` is the nearest",
}
NO_MODEL = {
    "ssd300": "measure a network of its backbone's family with --model=resnet50",
    "ncf": "it is one step of small matrix products; `stackmark run train/bert-large` is a workload of large ones",
    "deepspeech2": "of sequence models, `stackmark run train/bert-large` is the nearest",
    "nasnetlarge": "--model=nasnet is NASNet-A mobile",
}

MODES = {"train": "training", "forward": "forward only", "eval": "evaluation"}


@dataclass(frozen=True)
class ClassicOptions:
    """What the printer and the benchmark log need to know beside the events."""

    model: str
    dataset: str
    mode: str
    batch: int
    header: tuple[tuple[str, str], ...]
    display_every: int
    display_perf_ewma: float | None
    loss_name: str
    accuracy: bool
    trace_file: str
    benchmark_log_dir: str
    benchmark_test_id: str
    run_parameters: tuple[tuple[str, Scalar], ...]


@dataclass(frozen=True)
class ClassicPlan:
    request: Request
    options: ClassicOptions
    notices: list[str]


def plan(argv: Sequence[str]) -> ClassicPlan:
    """The one entry: a command line without the program's name. What cannot be is a SpecError with a sentence."""
    flags = parse(argv)
    refuse(flags)
    one_device(flags)
    consistent(flags)
    data = data_set(flags)
    model = find_model(flags.text("model"), data)
    mode = "eval" if flags.on("eval") else "forward" if flags.on("forward_only") else "train"
    batch = flags.integer("batch_size") or model.classic_batch
    used_batch = (flags.integer("eval_batch_size") or batch) if mode == "eval" else batch
    steps = length(flags, data, mode, used_batch)
    params = _params(flags, model, data, mode, used_batch, steps)
    request = Request(workload=f"train/{model.name}", params=params)
    check_request(request)
    printed_steps = length(flags, data, mode, batch, evaluated=False)
    header = _header(flags, model, data, mode, batch, printed_steps)
    options = ClassicOptions(
        model=model.classic_printed,
        dataset=dict(header)["Dataset"],
        mode=MODES[mode],
        batch=used_batch,
        header=header,
        display_every=flags.integer("display_every") or 1,
        display_perf_ewma=flags.number("display_perf_ewma"),
        loss_name=flags.text("loss_type_to_report"),
        accuracy=mode == "forward" or flags.on("print_training_accuracy"),
        trace_file=flags.text("trace_file"),
        benchmark_log_dir=flags.text("benchmark_log_dir"),
        benchmark_test_id=flags.text("benchmark_test_id"),
        run_parameters=_run_parameters(flags, dict(header), batch, printed_steps * batch / _images(data, mode)),
    )
    return ClassicPlan(request, options, notices(flags) + _remarks(flags, data))


def data_set(flags: Flags) -> DataSet:
    """By --data_name; else by the path, as the original guesses; else by what lies in the folder; else ImageNet."""
    folder, name = flags.text("data_dir"), flags.text("data_name")
    if folder:
        _check_folder(Path(folder).expanduser())
    if not name and not folder:
        name = "imagenet"
    if not name:
        name = next((known for known in (*DATA_SETS, *NO_DATA_SET) if known in folder), "")
    if not name and any(Path(folder).expanduser().glob("**/data_batch_1*")):
        name = "cifar10"
    if not name:
        raise SpecError(
            f"which data set is in {folder} cannot be told from its path",
            hint="say it: --data_name=imagenet, or --data_name=cifar10",
        )
    if name in NO_DATA_SET:
        raise SpecError(f"--data_name={name}: {NO_DATA_SET[name]}")
    if name not in DATA_SETS:
        close = nearest_names(name, list(DATA_SETS))
        raise SpecError(f"--data_name: there is no data set {name!r}; there are {', '.join(DATA_SETS)}{close}")
    return DATA_SETS[name]


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise SpecError(f"--data_dir: there is no folder {folder}", hint="without --data_dir the data are synthetic")
    if any(folder.glob("*-of-*")) or any(folder.glob("*.tfrecord*")):
        raise SpecError(
            f"--data_dir: {folder} holds TFRecord files, which are not read here",
            hint="unpack them to an ImageFolder tree (train/CLASS/*.jpg), or give CIFAR-10's own files",
        )


def find_model(name: str, data: DataSet) -> Model:
    models = {model.classic_name: model for model in MODELS.values() if model.classic_name}
    fitting = {
        model.classic_name: model for model in MODELS.values() if model.classic_name and model.dataset == data.name
    }
    if name in fitting:
        return fitting[name]
    if name in NO_MODEL:
        raise SpecError(f"--model={name} is not here: {NO_MODEL[name]}")
    if name.startswith("official_resnet"):
        ours = name.removeprefix("official_")
        instead = ours if ours in fitting else "resnet50_v1.5"
        raise SpecError(f"--model={name} came from another repository and is not here; use --model={instead}")
    if name in models:
        other = "--data_name=cifar10" if models[name].dataset == "cifar10" else "--data_name=imagenet"
        raise SpecError(f"--model={name} is not a model for {data.name}", hint=f"add {other}, or take another model")
    if name in MODELS:
        raise SpecError(f"tf_cnn_benchmarks had no model {name}", hint=f"measure it with: stackmark run train/{name}")
    close = nearest_names(name, list(fitting))
    raise SpecError(
        f"--model: there is no model {name!r} for {data.name}{close}", hint="list them: stackmark workloads"
    )


def length(flags: Flags, data: DataSet, mode: str, batch: int, evaluated: bool = True) -> int:
    """Measured steps. `evaluated` takes the --num_eval_… flags where they are given, as --eval itself does."""
    batches, epochs = flags.integer("num_batches"), flags.number("num_epochs")
    if mode == "eval" and evaluated and (flags.values["num_eval_batches"] or flags.values["num_eval_epochs"]):
        batches, epochs = flags.integer("num_eval_batches"), flags.number("num_eval_epochs")
    if epochs:
        return max(1, int(epochs * _images(data, mode) + batch - 1) // batch)
    return batches or DEFAULT_STEPS


def _images(data: DataSet, mode: str) -> int:
    return data.validation_images if mode == "eval" else data.training_images


def _params(flags: Flags, model: Model, data: DataSet, mode: str, batch: int, steps: int) -> dict[str, Scalar]:
    folder = flags.text("data_dir")
    rate, schedule = learning_rate(flags, model, batch, steps * batch / data.training_images)
    params: dict[str, Scalar] = {
        "device": _device(flags),
        "seed": flags.integer("tf_random_seed"),
        "steps": steps,
        "at_least_steps": 0,
        "warmup_steps": 0 if mode == "eval" else _warmup_steps(flags),
        "warmup_seconds": 0.0,
        "batch": batch,
        "precision": "fp16" if flags.on("use_fp16") else "fp32",
        "tune": "off",
        "autotune": _device(flags) != "cpu",
        "fused": False,
        "cuda_graph": False,
        "compile": flags.on("xla") or flags.on("xla_compile"),
        "layout": flags.text("data_format").lower(),
        "mode": mode,
        "classes": data.classes,
        "data": str(Path(folder).expanduser().absolute()) if folder else "device",
        # The original crops and flips ImageNet's images at random with and without --distortions.
        "distortions": flags.on("distortions") or data.name == "imagenet",
        "optimizer": flags.text("optimizer"),
        "learning_rate": rate,
        "lr_schedule": schedule,
        "loss_scale": _loss_scale(flags),
        "gradient_clip": flags.number("gradient_clip") or 0.0,
        "loss_every": flags.integer("display_every"),
        "accuracy": mode == "forward" or flags.on("print_training_accuracy"),
        "checkpoint_dir": _absolute(flags.text("train_dir")),
        "checkpoint_every": flags.integer("save_model_steps") or 0,
        "checkpoint_keep": flags.integer("max_ckpts_to_keep"),
        "trace_file": _absolute(flags.text("trace_file")),
    }
    for name in ("momentum", "weight_decay", "rmsprop_decay", "rmsprop_momentum", "rmsprop_epsilon"):
        params[name] = flags.number(name)
    for name in ("adam_beta1", "adam_beta2", "adam_epsilon"):
        params[name] = flags.number(name)
    if flags.values["num_intra_threads"] is not None:
        params["threads"] = flags.integer("num_intra_threads")
    if folder and flags.values["datasets_num_private_threads"]:
        params["data_workers"] = flags.integer("datasets_num_private_threads")
    return params


def _device(flags: Flags) -> str:
    if flags.text("device").lower() == "cpu":
        return "cpu"
    first = flags.text("gpu_indices").split(",")[0].strip()
    if first and not first.isdecimal():
        raise SpecError(f"--gpu_indices: {first!r} is not the number of a GPU", hint="write it like --gpu_indices=0")
    return f"cuda:{int(first or 0)}"


def _warmup_steps(flags: Flags) -> int:
    typed = flags.integer("num_warmup_batches")
    return (
        typed if typed is not None else max(DEFAULT_WARMUP_STEPS, 5 * (flags.integer("autotune_threshold") or 1) ** 2)
    )


def _loss_scale(flags: Flags) -> float:
    if flags.on("fp16_enable_auto_loss_scale"):
        return 0.0
    return flags.number("fp16_loss_scale") or DEFAULT_LOSS_SCALE


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute()) if path else ""


def learning_rate(flags: Flags, model: Model, batch: int, epochs: float) -> tuple[float, str]:
    """The rate at the first step, and `LR0;E1;LR1;…`, or nothing where it stays.

    It changes no speed, but it decides whether a loss stays finite and what --train_dir ends up holding. The original's
    linear warm-up over the first epochs is left out: the schedule has steps, not ramps.
    """
    first, schedule = flags.number("init_learning_rate"), flags.text("piecewise_learning_rate_schedule")
    _rates_fit_together(flags, first, schedule)
    if schedule:
        return piecewise(schedule)[0][1], schedule
    if first is None:
        return _rate_of_model(flags, model, batch), ""
    every, factor = flags.number(DECAY[0]) or 0.0, flags.number(DECAY[1]) or 0.0
    if not every or not factor:
        return first, ""
    return first, decaying(first, every, factor, flags.number("minimum_learning_rate") or 0.0, epochs)


def _rates_fit_together(flags: Flags, first: float | None, schedule: str) -> None:
    others = [name for name in ("init_learning_rate", *DECAY, "minimum_learning_rate") if flags.values[name]]
    if schedule and others:
        raise SpecError(f"--piecewise_learning_rate_schedule is the whole schedule: leave out --{others[0]}")
    decay = [bool(flags.values[name]) for name in DECAY]
    if any(decay) and not (all(decay) and first is not None):
        raise SpecError(f"--{DECAY[0]}, --{DECAY[1]} and --init_learning_rate belong together: give all three")
    if flags.values["minimum_learning_rate"] and not all(decay):
        raise SpecError(f"--minimum_learning_rate needs --init_learning_rate, --{DECAY[0]} and --{DECAY[1]}")


def _rate_of_model(flags: Flags, model: Model, batch: int) -> float:
    """The model's own; ImageNet's ResNets scale theirs by the batch."""
    if model.dataset == "imagenet" and model.name.startswith("resnet"):
        base = flags.number("resnet_base_lr")
        return (model.learning_rate if base is None else base) * batch / RESNET_BASE_BATCH
    return model.learning_rate


def piecewise(schedule: str) -> list[tuple[int, float]]:
    """`0.3;10;0.2;25;0.1` as (0, 0.3), (10, 0.2), (25, 0.1): from which epoch on, and the rate."""
    hint = "write it like --piecewise_learning_rate_schedule='0.3;10;0.2;25;0.1'"
    parts = schedule.split(";")
    if len(parts) % 2 == 0:
        raise SpecError("--piecewise_learning_rate_schedule must have an odd number of parts", hint=hint)
    try:
        rates = [float(part) for part in parts[::2]]
        epochs = [0, *(int(part) for part in parts[1::2])]
    except ValueError as error:
        raise SpecError(f"--piecewise_learning_rate_schedule: {error}", hint=hint) from error
    if not all(math.isfinite(rate) and rate >= 0 for rate in rates):
        raise SpecError("--piecewise_learning_rate_schedule: a learning rate is a number of at least 0", hint=hint)
    if any(later <= earlier for earlier, later in pairwise(epochs)):
        raise SpecError("--piecewise_learning_rate_schedule: the epochs must rise", hint=hint)
    return list(zip(epochs, rates, strict=True))


def decaying(first: float, every: float, factor: float, least: float, epochs: float) -> str:
    """The original's exponential decay in steps, over the epochs that will be run."""
    pieces = min(math.ceil(epochs / every), MOST_PIECES)
    parts = [f"{first:.9g}"]
    for piece in range(1, pieces):
        parts += [f"{every * piece:.9g}", f"{max(first * factor**piece, least):.9g}"]
    return ";".join(parts) if len(parts) > 1 else ""


def _header(
    flags: Flags, model: Model, data: DataSet, mode: str, batch: int, steps: int
) -> tuple[tuple[str, str], ...]:
    """The original's header as (label, value); a line without a label goes on with the one before.

    The line after `Model:` is ours: the name does not say which ResNet it is. In ASCII, for logs of any locale.
    """
    update, job = flags.text("variable_update"), flags.text("job_name")
    single_session = update == "distributed_all_reduce"
    name = f"{flags.text('device')}:{_device(flags).partition(':')[2] or 0}"
    device = f"job:worker/replica:0/task0/{name}" if single_session else f"/{name}"
    if job and not single_session:
        device = f"/job:worker/replica:0/task:0/{name}"
    lines = [("Model", model.classic_printed)]
    if model.dataset == "imagenet" and model.name.startswith("resnet"):
        lines.append(("", model.title.replace("×", "x")))
    lines += [
        ("Dataset", data.name if flags.text("data_dir") else f"{data.name} (synthetic)"),
        ("Mode", MODES[mode]),
        ("SingleSess", str(single_session)),
        ("Batch size", f"{batch} global"),
        ("", f"{batch} per device"),
        ("Num batches", str(steps)),
        ("Num epochs", f"{steps * batch / _images(data, mode):.2f}"),
        ("Devices", str([device])),
        ("NUMA bind", "False"),
        ("Data format", flags.text("data_format")),
        ("Optimizer", flags.text("optimizer")),
        ("Variables", update),
    ]
    if update in ("replicated", "distributed_all_reduce", "collective_all_reduce"):
        lines.append(("AllReduce", flags.text("all_reduce_spec") or "None"))
    if job:
        lines.append(("Sync", str(flags.on("cross_replica_sync"))))
    return tuple(lines)


def _run_parameters(flags: Flags, said: dict[str, str], batch: int, epochs: float) -> tuple[tuple[str, Scalar], ...]:
    """What benchmark_run.log lists, under the original's names."""
    return (
        ("batch_size", batch),
        ("batch_size_per_device", batch),
        ("data_format", said["Data format"]),
        ("dataset", said["Dataset"]),
        ("devices", said["Devices"]),
        ("mode", said["Mode"]),
        ("model", said["Model"]),
        ("num_batches", int(said["Num batches"])),
        ("num_epochs", epochs),
        ("optimizer", said["Optimizer"]),
        ("single_sess", said["SingleSess"] == "True"),
        ("use_fp16", flags.on("use_fp16")),
        ("variable_update", said["Variables"]),
    )


def _remarks(flags: Flags, data: DataSet) -> list[str]:
    """Lines about flags that act, but not in the way that somebody may expect."""
    remarks = []
    if "," in flags.text("gpu_indices"):
        remarks.append(f"--gpu_indices: one GPU is measured, {_device(flags)}")
    if flags.given("distortions") and data.name == "imagenet" and flags.text("data_dir"):
        remarks.append("--distortions: images are cropped and flipped at random; their colours are not distorted")
    if flags.given("fp16_loss_scale") and flags.on("fp16_enable_auto_loss_scale"):
        remarks.append("--fp16_loss_scale: the automatic loss scale begins with PyTorch's own value")
    return remarks
