"""The command line of tf_cnn_benchmarks: what is read, what it means, what is refused."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from stackmark.errors import SpecError
from stackmark.experiments.tf_cnn_flags import Flag, asks_for_help, help_text, parse, table
from stackmark.experiments.tf_cnn_mapping import ClassicPlan, plan
from stackmark.places.registry import place_kinds
from stackmark.spec import Scalar

EXTRA = {"flush_stdout", "ml_perf_compliance_logging"}
FLAGS = [flag for flag in table().values() if flag.name not in EXTRA]
ACTING = [flag.name for flag in FLAGS if flag.here == "acts"]
ACCEPTED = [flag for flag in FLAGS if flag.here == "accepted"]
REFUSED = [flag for flag in FLAGS if flag.here == "refused"]
DOCS = Path(__file__).parent.parent / "docs" / "tf-cnn.md"

DECAY = "--num_epochs=8 --init_learning_rate=1 --learning_rate_decay_factor=0.5 --num_epochs_per_decay=3"
CIFAR_RESNET = "--model=resnet20 --data_name=cifar10"
# A command line in which the flag changes the request or the options; {dir} is a folder with CIFAR-10's file names.
IN_USE = {
    "model": "--model=vgg16",
    "eval": "--train_dir={dir} --eval",
    "forward_only": "--forward_only",
    "print_training_accuracy": "--print_training_accuracy",
    "batch_size": "--batch_size=7",
    "eval_batch_size": "--train_dir={dir} --eval --eval_batch_size=7",
    "num_batches": "--num_batches=7",
    "num_eval_batches": "--train_dir={dir} --eval --num_eval_batches=7",
    "num_epochs": "--num_epochs=0.5",
    "num_eval_epochs": "--train_dir={dir} --eval --num_eval_epochs=0.5",
    "num_warmup_batches": "--num_warmup_batches=3",
    "autotune_threshold": "--autotune_threshold=3",
    "gpu_indices": "--gpu_indices=2",
    "num_gpus": "--num_gpus=2",
    "variable_update": "--num_gpus=2 --variable_update=replicated",
    "local_parameter_device": "--num_gpus=2 --local_parameter_device=cpu",
    "display_every": "--display_every=5",
    "display_perf_ewma": "--display_perf_ewma=0.1",
    "data_dir": "--data_name=cifar10 --data_dir={dir}",
    "data_name": "--data_name=cifar10",
    "distortions": "--data_name=cifar10 --distortions",
    "device": "--device=cpu",
    "data_format": "--data_format=NHWC",
    "num_intra_threads": "--num_intra_threads=4",
    "trace_file": "--trace_file=t.json",
    "optimizer": "--optimizer=adam",
    "init_learning_rate": "--init_learning_rate=0.5",
    "piecewise_learning_rate_schedule": "--piecewise_learning_rate_schedule=0.3;10;0.2",
    "num_epochs_per_decay": f"{DECAY} --num_epochs_per_decay=2",
    "learning_rate_decay_factor": f"{DECAY} --learning_rate_decay_factor=0.1",
    "minimum_learning_rate": f"{DECAY} --minimum_learning_rate=0.4",
    "resnet_base_lr": "--model=resnet50 --resnet_base_lr=0.1",
    "momentum": "--momentum=0.5",
    "rmsprop_decay": "--rmsprop_decay=0.5",
    "rmsprop_momentum": "--rmsprop_momentum=0.5",
    "rmsprop_epsilon": "--rmsprop_epsilon=0.5",
    "adam_beta1": "--adam_beta1=0.5",
    "adam_beta2": "--adam_beta2=0.5",
    "adam_epsilon": "--adam_epsilon=0.5",
    "gradient_clip": "--gradient_clip=2",
    "weight_decay": "--weight_decay=0.1",
    "tf_random_seed": "--tf_random_seed=7",
    "datasets_num_private_threads": "--data_name=cifar10 --data_dir={dir} --datasets_num_private_threads=3",
    "xla": "--xla",
    "xla_compile": "--xla_compile",
    "loss_type_to_report": "--loss_type_to_report=base_loss",
    "use_fp16": "--use_fp16",
    "fp16_loss_scale": "--use_fp16 --fp16_loss_scale=512",
    "fp16_enable_auto_loss_scale": "--use_fp16 --fp16_enable_auto_loss_scale",
    "save_model_steps": "--train_dir={dir} --save_model_steps=5",
    "max_ckpts_to_keep": "--train_dir={dir} --max_ckpts_to_keep=2",
    "train_dir": "--train_dir={dir}",
    "benchmark_log_dir": "--benchmark_log_dir={dir}",
    "benchmark_test_id": "--benchmark_test_id=x",
}


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    (tmp_path / "data_batch_1").write_bytes(b"")
    return tmp_path


def test_no_flag_of_the_classic_is_an_option_of_a_place_in_either_spelling() -> None:
    ours = {name for kind in place_kinds().values() for name in kind.options.model_fields} | {"on"}
    assert ours & set(table()) == set()
    negated = {f"no{flag.name}" for flag in table().values() if flag.kind == "boolean"}
    assert {name.replace("_", "-") for name in ours} & negated == set()


def test_the_paths_of_a_place_with_its_own_files_are_not_looked_up_here() -> None:
    made = plan(["--data_dir=/data/imagenet", "--model=resnet50"], own_files=True)
    assert made.request.params["data"] == "/data/imagenet"
    with pytest.raises(SpecError):
        plan(["--data_dir=/data/imagenet", "--model=resnet50"])


def planned(command: str) -> ClassicPlan:
    return plan(command.split())


def params(command: str) -> Mapping[str, Scalar]:
    return planned(command).request.params


def refusal(command: str) -> str:
    with pytest.raises(SpecError) as caught:
        planned(command)
    return f"{caught.value.message} [{caught.value.hint or ''}]"


def unnamed(command: str, *words: str) -> list[str]:
    """Of these words, those that the refusal of a command line does not name."""
    said = refusal(command)
    return [word for word in words if word not in said]


def other_value(flag: Flag) -> str:
    """A value that is not the flag's default."""
    if flag.kind == "boolean":
        return "false" if flag.default is True else "true"
    if flag.kind == "enum":
        return next(choice for choice in flag.choices if choice not in (flag.default, "ps", "horovod", ""))
    if flag.kind == "integer" and flag.name == "task_index":
        return "0"
    return {"integer": "7", "float": "0.5", "list": "1,2"}.get(flag.kind, "text")


# What is read


def test_all_137_flags_of_the_original_are_known() -> None:
    assert len(FLAGS) == 137
    assert {flag.here for flag in FLAGS} == {"acts", "accepted", "refused"}


def test_the_defaults_are_the_originals() -> None:
    flags = parse([]).values
    assert (flags["model"], flags["num_batches"], flags["display_every"], flags["data_format"]) == (
        "trivial",
        None,
        10,
        "NCHW",
    )
    assert (flags["weight_decay"], flags["rmsprop_epsilon"], flags["tf_random_seed"]) == (4e-5, 1.0, 1234)
    assert (flags["variable_update"], flags["optimizer"], flags["trt_max_workspace_size_bytes"]) == (
        "parameter_server",
        "sgd",
        4 << 30,
    )


@pytest.mark.parametrize(
    "command", ["--batch_size=32", "--batch_size 32", "-batch_size=32", "-batch_size 32", "--batch_size=0x20"]
)
def test_a_value_may_be_written_as_absl_reads_it(command: str) -> None:
    assert parse(command.split()).values["batch_size"] == 32


@pytest.mark.parametrize(
    ("word", "value"),
    [("--use_fp16", True), ("--nouse_fp16", False), ("-use_fp16", True), ("--use_fp16=True", True)]
    + [(f"--use_fp16={word}", True) for word in ("true", "t", "1", "yes")]
    + [(f"--use_fp16={word}", False) for word in ("false", "F", "0", "no")],
)
def test_a_boolean_may_be_written_as_absl_reads_it(word: str, value: bool) -> None:
    assert parse([word]).values["use_fp16"] is value


def test_the_last_one_wins() -> None:
    flags = parse(["--batch_size=1", "--use_fp16", "--batch_size=2", "--nouse_fp16"])
    assert (flags.values["batch_size"], flags.values["use_fp16"]) == (2, False)
    assert flags.typed == ("batch_size", "use_fp16")


def test_a_list_is_parted_by_commas() -> None:
    assert parse(["--eval_during_training_at_specified_steps=1, 2,3"]).values[
        "eval_during_training_at_specified_steps"
    ] == ("1", "2", "3")


def test_a_negative_number_may_follow_its_flag() -> None:
    assert parse(["--trt_max_workspace_size_bytes", "-1"]).values["trt_max_workspace_size_bytes"] == -1


def test_a_flagfile_stands_for_its_lines_and_may_name_another(tmp_path: Path) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.write_text("--model=vgg16\n")
    outer.write_text(f"# a comment\n\n// another\n--batch_size=8\n--flagfile={inner}\n")
    flags = parse(["--batch_size=4", f"--flagfile={outer}", "--num_batches=3"])
    assert (flags.values["batch_size"], flags.values["model"], flags.values["num_batches"]) == (8, "vgg16", 3)


def test_a_flagfile_that_is_missing_or_names_itself_is_a_sentence(tmp_path: Path) -> None:
    assert unnamed(f"--flagfile={tmp_path}/none", f"{tmp_path}/none") == []
    (tmp_path / "loop").write_text(f"--flagfile={tmp_path}/loop\n")
    assert unnamed(f"--flagfile={tmp_path}/loop", f"{tmp_path}/loop") == []


def test_positional_arguments_are_refused_as_in_the_original() -> None:
    # The original's own words.
    positional = "Received unknown positional arguments: "
    said = refusal("--distortions False --model=vgg16")
    assert said.startswith(positional + "['False', '--model=vgg16']")
    assert "--distortions=False" in said
    assert "--nodistortions" in said
    assert positional + "['resnet50']" in refusal("-- resnet50")


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("--batchsize=3", ("--batchsize", "batch_size")),
        ("--batch_size=many", ("--batch_size", "'many'")),
        ("--batch_size=1.5", ("--batch_size", "'1.5'")),
        ("--batch_size=-1", ("--batch_size", "-1", "0")),
        ("--batch_size", ("--batch_size",)),
        ("--momentum=nan", ("--momentum", "'nan'")),
        ("--display_perf_ewma=2", ("--display_perf_ewma", "2", "1")),
        ("--gradient_repacking=-1", ("--gradient_repacking", "-1", "0")),
        ("--display_every=0", ("--display_every", "0", "1")),
        ("--optimizer=momentun", ("--optimizer", "'momentun'", "momentum, sgd, rmsprop, adam")),
        ("--device=tpu", ("--device", "'tpu'", "cpu, gpu, CPU, GPU")),
        ("--use_fp16=maybe", ("--use_fp16", "'maybe'", "true", "false")),
        ("--nouse_fp16=true", ("--nouse_fp16",)),
        ("--flagfile", ("--flagfile",)),
        ("--tf_random_seed=4294967296", ("--tf_random_seed", "4294967296")),
        ("--momentum=1", ("--momentum", "1")),
    ],
)
def test_bad_input_is_a_sentence(command: str, named: tuple[str, ...]) -> None:
    assert unnamed(command, *named) == []


def test_help_shows_an_example_and_every_flag_that_acts() -> None:
    assert asks_for_help(["--help"])
    assert asks_for_help(["--model=vgg16", "-help"])
    assert not asks_for_help(["--model=help"])
    text = help_text()
    assert "stackmark tf-cnn --" in text
    assert [name for name in ACTING if f"  --{name} " not in text] == []


# What it means


def test_there_is_a_use_for_every_flag_that_acts() -> None:
    assert set(IN_USE) == set(ACTING)


@pytest.mark.parametrize("name", sorted(IN_USE))
def test_a_flag_that_acts_changes_the_request_or_the_options(name: str, cifar: Path) -> None:
    words = IN_USE[name].format(dir=cifar).split()
    last = max(at for at, word in enumerate(words) if word.split("=")[0] == f"--{name}")
    without, with_it = plan(words[:last] + words[last + 1 :]), plan(words)
    assert (without.request, without.options) != (with_it.request, with_it.options)
    assert not [line for line in with_it.notices if line.startswith(f"--{name} ") and table()[name].why in line]


@pytest.mark.parametrize("flag", ACCEPTED, ids=lambda flag: str(flag.name))
def test_an_accepted_flag_changes_nothing_that_is_measured_and_says_so_in_one_line(flag: Flag) -> None:
    made = plan([f"--{flag.name}={other_value(flag)}"])
    assert made.request == plan([]).request
    (notice,) = made.notices
    assert notice.startswith(f"--{flag.name} ")
    assert flag.why in notice


@pytest.mark.parametrize("flag", REFUSED, ids=lambda flag: str(flag.name))
def test_a_refused_flag_is_a_sentence_that_names_what_to_do(flag: Flag) -> None:
    assert unnamed(f"--{flag.name}={other_value(flag)}", f"--{flag.name}", flag.why) == []


def test_a_refused_flag_with_its_default_asks_for_nothing() -> None:
    assert plan(["--nofp16_vars", "--use_chrome_trace_format=true", "--eval_interval_secs=0"]).notices == []


def test_mlperf_logging_is_refused_and_flush_stdout_is_accepted() -> None:
    assert unnamed("--ml_perf_compliance_logging", "--ml_perf_compliance_logging") == []
    assert len(planned("--flush_stdout=true").notices) == 1


def test_the_defaults_are_ten_and_a_hundred_plain_fp32_steps_of_trivial_on_the_first_gpu() -> None:
    made = plan([])
    assert made.request.workload == "train/trivial"
    wanted = {"device": "cuda:0", "steps": 100, "warmup_steps": 10, "warmup_seconds": 0.0, "at_least_steps": 0}
    wanted |= {"batch": 32, "precision": "fp32", "tune": "off", "autotune": True, "compile": False, "layout": "nchw"}
    wanted |= {"optimizer": "sgd", "learning_rate": 0.005, "data": "device", "classes": 1001, "seed": 1234}
    assert wanted.items() <= made.request.params.items()
    assert made.notices == []


def test_kubeflows_command_line_runs() -> None:
    made = planned(
        "--batch_size=32 --model=resnet50 --variable_update=parameter_server --flush_stdout=true --num_gpus=1 "
        "--local_parameter_device=cpu --device=cpu --data_format=NHWC --job_name=worker --ps_hosts=ps-0:2222 "
        "--worker_hosts=worker-0:2222 --task_index=0"
    )
    assert made.request.workload == "train/resnet50"
    assert {"device": "cpu", "batch": 32, "layout": "nhwc", "autotune": False}.items() <= made.request.params.items()
    assert len(made.notices) == 7


def test_a_cpu_may_have_either_data_format() -> None:
    assert params("--device=cpu")["layout"] == "nchw"
    assert params("--device=CPU --data_format=NHWC")["layout"] == "nhwc"


def test_fp16_has_the_originals_loss_scale() -> None:
    assert params("--use_fp16")["precision"] == "fp16"
    assert params("--use_fp16")["loss_scale"] == 128.0
    assert params("--use_fp16 --fp16_enable_auto_loss_scale")["loss_scale"] == 0.0


def test_steps_come_from_epochs_by_the_originals_rounding() -> None:
    # int(epochs * images + batch - 1) // batch, of 1,281,167 and of 50,000 images
    assert params("--model=resnet50 --num_epochs=1")["steps"] == 20019
    assert params(f"{CIFAR_RESNET} --num_epochs=2")["steps"] == 782
    assert dict(planned("--model=resnet50 --num_epochs=1").options.header)["Num epochs"] == "1.00"


def test_warm_up_grows_with_the_autotune_threshold() -> None:
    assert params("--autotune_threshold=1")["warmup_steps"] == 10
    assert params("--autotune_threshold=4")["warmup_steps"] == 80
    assert params("--autotune_threshold=4 --num_warmup_batches=0")["warmup_steps"] == 0


def test_evaluation_goes_by_its_own_batch_and_the_validation_set(tmp_path: Path) -> None:
    command = (
        f"--model=resnet50 --eval --train_dir={tmp_path} --eval_batch_size=100 --num_eval_epochs=1 --num_batches=7"
    )
    made = planned(command)
    wanted = {"mode": "eval", "steps": 500, "batch": 100, "warmup_steps": 0, "checkpoint_dir": str(tmp_path)}
    assert wanted.items() <= made.request.params.items()
    # The original's header shows the training batch and length.
    assert dict(made.options.header)["Num batches"] == "7"


def test_imagenet_resnets_scale_their_learning_rate_by_the_batch() -> None:
    resnet = "--model=resnet50 --batch_size=128"
    assert params(resnet)["learning_rate"] == pytest.approx(0.064)
    assert params(f"{resnet} --resnet_base_lr=0.05")["learning_rate"] == pytest.approx(0.025)
    assert params("--model=resnet56 --data_name=cifar10")["learning_rate"] == 0.1


def test_a_decay_becomes_a_schedule_by_epoch() -> None:
    made = params(IN_USE["minimum_learning_rate"])
    assert (made["learning_rate"], made["lr_schedule"]) == (1.0, "1;3;0.5;6;0.4")
    assert params(DECAY.partition(" ")[2])["lr_schedule"] == ""


def test_a_piecewise_schedule_is_passed_on_with_its_first_rate() -> None:
    made = params("--piecewise_learning_rate_schedule=0.3;10;0.2;25;0.1")
    assert (made["learning_rate"], made["lr_schedule"]) == (0.3, "0.3;10;0.2;25;0.1")


@pytest.mark.parametrize(
    ("command", "workload", "batch"),
    [
        ("--model=alexnet", "train/alexnet", 512),
        ("--model=alexnet --data_name=cifar10", "train/alexnet_cifar10", 128),
        ("--data_name=cifar10", "train/trivial_cifar10", 32),
        ("--model=densenet40_k12 --data_name=cifar10", "train/densenet40_k12", 64),
        ("--model=resnet50_v1.5", "train/resnet50_v1.5", 64),
        ("--model=inception3", "train/inception3", 32),
        ("--model=mobilenet", "train/mobilenet", 32),
    ],
)
def test_a_model_is_named_as_in_the_original_and_has_its_batch(command: str, workload: str, batch: int) -> None:
    made = planned(command)
    assert (made.request.workload, made.request.params["batch"]) == (workload, batch)


def test_lenet_is_printed_as_in_the_original() -> None:
    assert planned("--model=lenet").options.model == "lenet5"


def test_the_header_says_which_resnet_it_is() -> None:
    assert "ResNet-50 v1:" in planned("--model=resnet50").options.header[1][1]
    assert "ResNet-50 v1.5:" in planned("--model=resnet50_v1.5").options.header[1][1]
    assert "".join(value for _, value in planned("--model=resnet50").options.header).isascii()


def test_the_data_set_is_guessed_from_the_path_and_then_from_the_files(tmp_path: Path) -> None:
    for name in ("my-imagenet", "cifar10-data", "things"):
        (tmp_path / name).mkdir()
    assert params(f"--data_dir={tmp_path}/my-imagenet")["classes"] == 1001
    assert params(f"--data_dir={tmp_path}/cifar10-data")["classes"] == 11
    assert "--data_name=imagenet" in refusal(f"--data_dir={tmp_path}/things")
    (tmp_path / "things" / "data_batch_1.bin").write_bytes(b"")
    made = planned(f"--data_dir={tmp_path}/things")
    assert made.request.params["data"] == str(tmp_path / "things")
    assert made.options.dataset == "cifar10"


def test_imagenets_images_are_cropped_and_flipped_with_and_without_distortions(cifar: Path) -> None:
    assert params(f"--data_dir={cifar} --data_name=imagenet --nodistortions")["distortions"] is True
    assert params(f"--data_dir={cifar} --data_name=cifar10")["distortions"] is False
    assert planned(f"--data_dir={cifar} --data_name=imagenet --distortions").notices != []


# Several devices


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ("--variable_update=parameter_server", {"strategy": "parameter-server", "server_device": "gpu"}),
        ("--local_parameter_device=cpu", {"strategy": "parameter-server", "server_device": "cpu"}),
        ("--device=cpu --data_format=NHWC", {"strategy": "parameter-server", "server_device": "cpu"}),
        ("--variable_update=replicated", {"strategy": "ddp"}),
        ("--variable_update=distributed_replicated", {"strategy": "parameter-server"}),
        ("--variable_update=collective_all_reduce", {"strategy": "ddp"}),
        ("--variable_update=independent", {"strategy": "independent"}),
        ("--forward_only", {"strategy": "independent"}),
    ],
)
def test_variables_are_managed_as_asked_on_several_devices(flags: str, wanted: dict[str, Scalar]) -> None:
    made = planned(f"--num_gpus=2 {flags}")
    assert made.request.ranks == 2
    assert wanted.items() <= made.request.params.items()


def test_several_devices_are_in_the_header_and_in_the_rate() -> None:
    made = planned("--num_gpus=2 --model=resnet50 --batch_size=64 --num_epochs=0.01")
    header = dict(made.options.header)
    assert (header["Batch size"], header["Devices"]) == ("128 global", "['/gpu:0', '/gpu:1']")
    assert made.options.batch == 128
    # An epoch is of all devices together.
    assert made.request.params["steps"] == -(-12811 // 128)
    assert made.request.params["batch"] == 64


# What is refused


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("--num_gpus=2 --eval --train_dir=x", ("--eval", "--num_gpus=1")),
        ("--num_gpus=2 --xla", ("--xla", "--num_gpus=1")),
        ("--num_gpus=2 --gpu_indices=2,3", ("--gpu_indices=2,3", "CUDA_VISIBLE_DEVICES")),
        ("--num_gpus=257", ("--num_gpus=257", "256")),
        ("--num_gpus=0", ("--num_gpus=1", "--device=cpu")),
        ("--variable_update=horovod", ("--variable_update",)),
        ("--job_name=controller", ("--worker_hosts",)),
        ("--job_name=worker --worker_hosts=a:1,b:1", ("--worker_hosts",)),
        ("--job_name=worker --task_index=1", ("--worker_hosts",)),
        ("--job_name=ps --ps_hosts=a:1", ("--job_name",)),
        ("--num_batches=1 --num_epochs=1", ("--num_batches", "--num_epochs")),
        ("--num_eval_batches=1 --num_eval_epochs=1", ("--num_eval_batches", "--num_eval_epochs")),
        ("--eval --forward_only --train_dir=x", ("--forward_only", "--eval")),
        ("--save_model_secs=1 --save_model_steps=1", ("--save_model_secs", "--save_model_steps")),
        ("--eval", ("--eval", "--train_dir")),
        ("--use_fp16 --device=cpu", ("fp16", "GPU")),
        ("--gpu_indices=first", ("'first'",)),
        ("--model=resnet5", ("'resnet5'", "imagenet", "resnet50")),
        ("--model=resnet20", ("--data_name=cifar10",)),
        ("--model=vgg16 --data_name=cifar10", ("--model=vgg16", "cifar10")),
        ("--model=ssd300", ("--model=resnet50",)),
        ("--model=ncf", ("stackmark run train/",)),
        ("--model=deepspeech2", ("stackmark run train/bert-large",)),
        ("--model=nasnetlarge", ("--model=nasnet",)),
        ("--model=official_resnet101_v2", ("--model=resnet101_v2",)),
        ("--model=official_resnet18", ("--model=resnet50_v1.5",)),
        ("--model=vit-b16", ("stackmark run train/vit-b16",)),
        ("--data_name=coco", ("--model=resnet50",)),
        ("--data_name=flowers", ("'flowers'",)),
        ("--data_dir=/no/such/folder", ("/no/such/folder",)),
        ("--num_epochs_per_decay=2", ("--num_epochs_per_decay", "--learning_rate_decay_factor")),
        ("--minimum_learning_rate=0.1", ("--minimum_learning_rate", "--num_epochs_per_decay")),
        ("--piecewise_learning_rate_schedule=0.3;10", ("--piecewise_learning_rate_schedule", "0.3;10")),
        ("--piecewise_learning_rate_schedule=0.3;x;0.1", ("--piecewise_learning_rate_schedule", "x")),
        ("--piecewise_learning_rate_schedule=0.3;9;0.2;5;0.1", ("--piecewise_learning_rate_schedule", "5")),
        ("--piecewise_learning_rate_schedule=-1;9;0.2", ("--piecewise_learning_rate_schedule", "0")),
        ("--piecewise_learning_rate_schedule=0.3 --init_learning_rate=1", ("--init_learning_rate",)),
    ],
)
def test_what_cannot_be_is_a_sentence_that_names_the_way_out(command: str, named: tuple[str, ...]) -> None:
    assert unnamed(command, *named) == []


def test_a_folder_of_tfrecords_is_taken_with_the_classic_outputs() -> None:
    shards = Path(__file__).parent / "data/tfrecord"
    made = params(f"--data_dir={shards} --data_name=imagenet")
    assert (made["data"], made["classes"]) == (str(shards), 1001)


# The documentation


def test_the_documentation_lists_every_flag_with_what_it_does_here() -> None:
    text = DOCS.read_text(encoding="utf-8")
    rows = [f"| `--{flag.name}` | {flag.here} | {flag.why} |" for flag in table().values()]
    missing = [row for row in rows if row not in text]
    assert not missing, "add to docs/tf-cnn.md:\n" + "\n".join(missing)
    assert text.count("\n| `--") == len(rows)
