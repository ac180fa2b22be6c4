"""Translate a tf_cnn_benchmarks command line: flags in, a request and the printer's options out.

Everything that the original decides before it builds its graph is decided here, with its formulas: the model's default
batch, steps from epochs, warm-up from the autotune threshold, the data set from the path. So the request leaves nothing to
the probe that changes the number. Old command lines run where they can: what the original forbade only because of
TensorFlow (NCHW on a CPU) is allowed, and one worker of a parameter-server cluster of one measures alone.

Tuning is "off" with cuDNN's autotuning on, because TensorFlow autotunes by default; `--xla` is torch.compile, its nearest
kin. fp32 is fp32: no TF32.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from stackmark.errors import SpecError, nearest_names
from stackmark.experiments.tf_cnn_flags import Flags, consistent, notices, one_node, parse, refuse
from stackmark.spec import Request, Scalar
from stackmark.workloads.registry import check_request
from stackmark.workloads.train.classic import DATA_SETS, MODES, DataSet, TableOptions, header_lines
from stackmark.workloads.train.zoo import MODELS, Model

DEFAULT_STEPS = 100
DEFAULT_WARMUP_STEPS = 10
DEFAULT_LOSS_SCALE = 128.0
RESNET_BASE_BATCH = 256
DECAY = ("num_epochs_per_decay", "learning_rate_decay_factor")
# More pieces than any training of this kind had; each is twenty bytes of a spec of 100 KiB.
MOST_PIECES = 1000


# Of the original's other data sets and models: what to run instead.
NO_DATA_SET = {
    "coco": "object detection is not supported; measure a network of its backbone's family with --model=resnet50",
    "librispeech": "speech is not supported; the nearest sequence model is `stackmark run train/bert-large`",
}
NO_MODEL = {
    "ssd300": "measure a network of its backbone's family with --model=resnet50",
    "ncf": "it is one step of small matrix products; `stackmark run train/bert-large` is a workload of large ones",
    "deepspeech2": "the nearest sequence model is `stackmark run train/bert-large`",
    "nasnetlarge": "--model=nasnet is NASNet-A mobile",
}


@dataclass(frozen=True)
class ClassicOptions(TableOptions):
    """What the table and the benchmark log need besides the events."""

    model: str
    dataset: str
    benchmark_log_dir: str
    benchmark_test_id: str
    run_parameters: tuple[tuple[str, Scalar], ...]


@dataclass(frozen=True)
class ClassicPlan:
    request: Request
    options: ClassicOptions
    notices: list[str]
    # Whether it runs on the CPU where no GPU is visible, as the original does by soft placement.
    falls_back: bool


def plan(argv: Sequence[str], *, on_cpu: bool = False, own_files: bool = False) -> ClassicPlan:
    """Plan a run from a command line without the program's name. Raise SpecError for what is not supported.

    `on_cpu` plans the same run where no GPU is visible. `own_files` is for a place that does not have this machine's folders:
    paths are paths in that place, and nothing can be looked up in them from here.
    """
    flags = parse(argv)
    refuse(flags)
    one_node(flags)
    falls_back = _device(flags) == "cuda:0"
    if on_cpu:
        flags = _on_cpu(flags)
    consistent(flags)
    if own_files:
        _check_paths(flags)
    data = data_set(flags, own_files=own_files)
    model = find_model(flags.text("model"), data)
    mode = "eval" if flags.on("eval") else "forward" if flags.on("forward_only") else "train"
    batch = flags.integer("batch_size") or model.classic_batch
    used_batch = (flags.integer("eval_batch_size") or batch) if mode == "eval" else batch
    ranks = flags.integer("num_gpus") or 1
    steps = length(flags, data, mode, used_batch * ranks)
    params = _params(flags, model, data, mode, used_batch, steps, ranks)
    if ranks > 1:
        params |= _strategy(flags, mode, str(params["device"]))
    request = Request(workload=f"train/{model.name}", params=params, ranks=ranks)
    check_request(request)
    printed_steps = length(flags, data, mode, batch * ranks, evaluated=False)
    header = _header(flags, model, data, mode, batch, printed_steps)
    options = ClassicOptions(
        model=model.classic_printed,
        dataset=dict(header)["Dataset"],
        mode=MODES[mode],
        batch=used_batch * ranks,
        header=header,
        display_every=flags.integer("display_every") or 1,
        display_perf_ewma=flags.number("display_perf_ewma"),
        loss_name=flags.text("loss_type_to_report"),
        accuracy=mode == "forward" or flags.on("print_training_accuracy"),
        trace_file=flags.text("trace_file"),
        benchmark_log_dir=flags.text("benchmark_log_dir"),
        benchmark_test_id=flags.text("benchmark_test_id"),
        run_parameters=_run_parameters(
            flags, dict(header), batch, ranks, printed_steps * batch * ranks / data.images(mode)
        ),
    )
    return ClassicPlan(request, options, notices(flags) + _remarks(flags, data), falls_back)


def _on_cpu(flags: Flags) -> Flags:
    """Return the flags of the same run on the CPU. fp16 training is refused: it would measure something else there."""
    if flags.on("use_fp16") and not flags.on("forward_only") and not flags.on("eval"):
        raise SpecError(
            "--use_fp16 trains in fp16, which needs a GPU, so the run does not fall back to the CPU",
            hint="leave out --use_fp16, or run it where a GPU is visible",
        )
    return replace(flags, values={**flags.values, "device": "cpu"})


def _check_paths(flags: Flags) -> None:
    """Refuse relative paths for a place with files of its own: nobody knows what they would be relative to."""
    for name in ("data_dir", "train_dir", "trace_file"):
        path = flags.text(name)
        if path and not path.startswith("/"):
            raise SpecError(
                f"--{name}={path}: the path must be absolute, because it is one of the place's own files",
                hint="give the path as it is there, and mount it: --mount SRC:DST",
            )


def data_set(flags: Flags, *, own_files: bool = False) -> DataSet:
    """Find the data set by --data_name; else by the path, as the original does; else by the folder's content; else ImageNet."""
    folder, name = flags.text("data_dir"), flags.text("data_name")
    if folder and not own_files:
        _check_folder(Path(folder).expanduser())
    if not name and not folder:
        name = "imagenet"
    if not name:
        name = next((known for known in (*DATA_SETS, *NO_DATA_SET) if known in folder), "")
    if not name and not own_files and any(Path(folder).expanduser().glob("**/data_batch_1*")):
        name = "cifar10"
    if not name:
        raise SpecError(
            f"the data set in {folder} cannot be guessed from its path",
            hint="set --data_name=imagenet or --data_name=cifar10",
        )
    if name in NO_DATA_SET:
        raise SpecError(f"--data_name={name}: {NO_DATA_SET[name]}")
    if name not in DATA_SETS:
        close = nearest_names(name, list(DATA_SETS))
        raise SpecError(f"--data_name: unknown data set {name!r}; allowed: {', '.join(DATA_SETS)}{close}")
    return DATA_SETS[name]


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise SpecError(f"--data_dir: {folder} is not a folder", hint="without --data_dir the data are synthetic")


def find_model(name: str, data: DataSet) -> Model:
    models = {model.classic_name: model for model in MODELS.values() if model.classic_name}
    fitting = {
        model.classic_name: model for model in MODELS.values() if model.classic_name and model.dataset == data.name
    }
    if name in fitting:
        return fitting[name]
    if name in NO_MODEL:
        raise SpecError(f"--model={name} is not supported: {NO_MODEL[name]}")
    if name.startswith("official_resnet"):
        ours = name.removeprefix("official_")
        instead = ours if ours in fitting else "resnet50_v1.5"
        raise SpecError(f"--model={name} came from another repository and is not supported; use --model={instead}")
    if name in models:
        other = "--data_name=cifar10" if models[name].dataset == "cifar10" else "--data_name=imagenet"
        raise SpecError(f"--model={name} is not a model for {data.name}", hint=f"add {other}, or use another model")
    if name in MODELS:
        raise SpecError(f"tf_cnn_benchmarks had no model {name}", hint=f"measure it with: stackmark run train/{name}")
    close = nearest_names(name, list(fitting))
    raise SpecError(f"--model: unknown model {name!r} for {data.name}{close}", hint="list them: stackmark workloads")


def length(flags: Flags, data: DataSet, mode: str, batch: int, evaluated: bool = True) -> int:
    """Return the measured steps. `evaluated` uses the --num_eval_… flags where given, as --eval itself does."""
    batches, epochs = flags.integer("num_batches"), flags.number("num_epochs")
    if mode == "eval" and evaluated and (flags.values["num_eval_batches"] or flags.values["num_eval_epochs"]):
        batches, epochs = flags.integer("num_eval_batches"), flags.number("num_eval_epochs")
    if epochs:
        return max(1, int(epochs * data.images(mode) + batch - 1) // batch)
    return batches or DEFAULT_STEPS


def _params(
    flags: Flags, model: Model, data: DataSet, mode: str, batch: int, steps: int, ranks: int
) -> dict[str, Scalar]:
    folder = flags.text("data_dir")
    rate, schedule = learning_rate(flags, model, batch * ranks, steps * batch * ranks / data.training_images)
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


def _strategy(flags: Flags, mode: str, device: str) -> dict[str, Scalar]:
    """Translate how variables are managed. Both kinds of servers keep a copy on each device here (docs/tf-cnn.md)."""
    update = flags.text("variable_update")
    if mode != "train" or update == "independent":
        return {"strategy": "independent"}
    if update in ("parameter_server", "distributed_replicated"):
        on_gpu = flags.text("local_parameter_device").lower() == "gpu" and device != "cpu"
        return {"strategy": "parameter-server", "server_device": "gpu" if on_gpu else "cpu"}
    return {"strategy": "ddp"}


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
    """Return the rate at the first step, and `LR0;E1;LR1;…`, or an empty text where it stays constant.

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
    """Parse `0.3;10;0.2;25;0.1` as (0, 0.3), (10, 0.2), (25, 0.1): from which epoch on, and the rate."""
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
        raise SpecError("--piecewise_learning_rate_schedule: a learning rate must be a number of at least 0", hint=hint)
    if any(later <= earlier for earlier, later in pairwise(epochs)):
        raise SpecError("--piecewise_learning_rate_schedule: the epochs must increase", hint=hint)
    return list(zip(epochs, rates, strict=True))


def decaying(first: float, every: float, factor: float, least: float, epochs: float) -> str:
    """Compute the original's exponential decay in steps, over the epochs that will be run."""
    pieces = min(math.ceil(epochs / every), MOST_PIECES)
    parts = [f"{first:.9g}"]
    for piece in range(1, pieces):
        parts += [f"{every * piece:.9g}", f"{max(first * factor**piece, least):.9g}"]
    return ";".join(parts) if len(parts) > 1 else ""


def _header(
    flags: Flags, model: Model, data: DataSet, mode: str, batch: int, steps: int
) -> tuple[tuple[str, str], ...]:
    """Return the header, with the lines that only these flags decide."""
    update, job = flags.text("variable_update"), flags.text("job_name")
    single_session = update == "distributed_all_reduce"
    first, ranks = int(_device(flags).partition(":")[2] or 0), flags.integer("num_gpus") or 1
    names = [f"{flags.text('device')}:{first + number}" for number in range(ranks)]
    before = "job:worker/replica:0/task0/" if single_session else "/job:worker/replica:0/task:0/" if job else "/"
    lines = [
        *header_lines(
            model,
            dataset=data.name if flags.text("data_dir") else f"{data.name} (synthetic)",
            mode=MODES[mode],
            batch=batch,
            steps=steps,
            epochs=steps * batch * ranks / data.images(mode),
            devices=[f"{before}{name}" for name in names],
            data_format=flags.text("data_format"),
            optimizer=flags.text("optimizer"),
            single_session=single_session,
        ),
        ("Variables", update),
    ]
    if update in ("replicated", "distributed_all_reduce", "collective_all_reduce"):
        lines.append(("AllReduce", flags.text("all_reduce_spec") or "None"))
    if job:
        lines.append(("Sync", str(flags.on("cross_replica_sync"))))
    return tuple(lines)


def _run_parameters(
    flags: Flags, said: dict[str, str], batch: int, ranks: int, epochs: float
) -> tuple[tuple[str, Scalar], ...]:
    """What benchmark_run.log lists, under the original's names."""
    return (
        ("batch_size", batch * ranks),
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
    if flags.integer("num_gpus") == 1:
        if "variable_update" in flags.typed:
            remarks.append("--variable_update: on one device all its values mean the same; it is printed in the header")
        if "local_parameter_device" in flags.typed:
            remarks.append("--local_parameter_device: the variables are on the one device that computes")
    if "," in flags.text("gpu_indices") and (flags.integer("num_gpus") or 1) == 1:
        remarks.append(f"--gpu_indices: one GPU is measured, {_device(flags)}")
    if flags.given("distortions") and data.name == "imagenet" and flags.text("data_dir"):
        remarks.append("--distortions: images are cropped and flipped at random; their colours are not distorted")
    if flags.given("fp16_loss_scale") and flags.on("fp16_enable_auto_loss_scale"):
        remarks.append("--fp16_loss_scale: the automatic loss scale begins with PyTorch's own value")
    return remarks
