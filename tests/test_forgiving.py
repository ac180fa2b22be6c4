"""What people type first is accepted where it means one thing, said on standard error, and stored by its canonical name."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from asking import ask
from experiment_asking import ledger_of_a_command
from refusing import refused
from stackmark.api.options import read_request
from stackmark.cli.compare import command as compare
from stackmark.cli.forgiving import accept
from stackmark.cli.main import main, stackmark
from stackmark.cli.options import read_margin
from stackmark.cli.run import command as run
from stackmark.errors import Exit, SpecError
from stackmark.experiments.arms import read_arm
from stackmark.experiments.typed import canonical_place, canonical_share, canonical_workload
from stackmark.ledger.store import Ledger
from stackmark.units import parse_seconds, parse_size

FIGURE = ("--cmd", "echo rate: 10", "--metric", "rate: ([0-9.]+)")


@pytest.fixture
def ledger_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from ledger_of_a_command(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--on docker", "--on container,engine=docker"),
        ("--on=Podman,shm=1g", "--on=container,engine=podman,shm=1g"),
        ("--on k8s", "--on pod"),
        ("--on kubernetes,gpus=1", "--on pod,gpus=1"),
        ("--on local", "--on host"),
        ("--on BareMetal", "--on host"),
        ("--on HOST", "--on host"),
        ("resnet50", "train/resnet50"),
        ("Train/ResNet50,gemm", "train/resnet50,op/gemm"),
        ("--precision BF16", "--precision bf16"),
        ("--precision=bfloat16,half,Float32,FP32", "--precision=bf16,fp16,fp32,fp32"),
        ("--precision double", "--precision fp64"),
        ("--device gpu", "--device cuda"),
        ("--device GPU:1", "--device cuda:1"),
        ("--device cuda0", "--device cuda:0"),
        ("--device CPU", "--device cpu"),
        ("--layout NHWC --optimizer Adam", "--layout nhwc --optimizer adam"),
        ("--engine Docker --pull always", "--engine docker --pull Always"),
    ],
)  # fmt: skip
def test_a_slip_becomes_its_canonical_form_and_is_said(typed: str, meant: str) -> None:
    made, notes = accept(run, typed.split())
    assert made == meant.split()
    assert len(notes) == sum(before != after for before, after in zip(typed.split(), meant.split(), strict=True))


@pytest.mark.parametrize(
    "typed",
    [
        "train/resnet50 --on host --precision bf16 --device cuda:0",
        "--on container,engine=docker --runs 3 --json",
        "--data docker --cwd gpu --metric half",
        "--on dokcer --precision fp9 --device tpu train/resnet-50",
        "-- resnet50",
        "--on",
    ],
)
def test_everything_else_stays_as_it_was_typed(typed: str) -> None:
    assert accept(run, typed.split()) == (typed.split(), [])


def test_arms_are_read_with_their_parameters_and_nothing_secret_is_said() -> None:
    arm = "docker,env=HF_TOKEN=abc,precision=BF16,device=gpu"
    made, notes = accept(compare, ["--arm", arm])
    assert made == ["--arm", "container,engine=docker,env=HF_TOKEN=abc,precision=bf16,device=cuda"]
    assert len(notes) == 1
    assert "abc" not in notes[0]


@pytest.mark.parametrize(("typed", "meant"), [("10%", "10%"), ("5", "5%"), ("0.02", "2%"), ("much", "much")])
def test_a_margin_is_repeated_with_its_sign(typed: str, meant: str) -> None:
    made, notes = accept(compare, ["--margin", typed])
    assert made == ["--margin", meant]
    assert bool(notes) == (typed != meant)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("compare --cmd true --arm host --arm host --runs 3", "--blocks"),
        ("noise --cmd true --runs 3", "--blocks"),
        ("run --cmd true --blocks 3", "--runs"),
        ("run train/trivial --dtype bf16", "--precision"),
        ("run --cmd true --report r.html", "stackmark report last"),
        ("report", "stackmark report last -o"),
        ("delete", "stackmark delete r-"),
    ],
)
def test_a_wrong_option_or_a_missing_word_names_what_was_meant(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed.split()) == Exit.WRONG_USE
    assert meant in capsys.readouterr().err


def test_an_environment_variable_as_a_key_of_an_arm_says_how_it_is_written() -> None:
    with pytest.raises(SpecError) as refused_arm:
        read_arm("host,OMP_NUM_THREADS=1", "command/own")
    assert "env=OMP_NUM_THREADS=VALUE" in (refused_arm.value.hint or "")


def test_the_value_of_an_option_is_not_taken_for_the_workload() -> None:
    made, _ = accept(compare, ["--arm", "host", "--report", "gemm", "--until-decided", "gemm"])
    assert made == ["--arm", "host", "--report", "gemm", "--until-decided", "op/gemm"]


def test_a_place_of_another_package_keeps_its_name() -> None:
    assert canonical_place("docker,x=1", ["host", "docker"]) == "docker,x=1"


def test_a_name_that_two_families_have_means_the_first_one() -> None:
    assert canonical_workload("resnet50", ["train/resnet50", "serve/resnet50"]) == "train/resnet50"


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("5", 0.05),
        ("5%", 0.05),
        ("0.05", 0.05),
        ("1", 0.01),
        ("1%", 0.01),
        ("0.5%", 0.005),
        ("2.5", 0.025),
        (".02", 0.02),
    ],
)
def test_a_margin_is_a_share_below_one_and_percent_from_one_on(text: str, share: float) -> None:
    assert read_margin(text) == pytest.approx(share)
    assert canonical_share(canonical_share(text)) == canonical_share(text)


@pytest.mark.parametrize("text", ["0", "-1", "60", "0.6", "101", "1e9", "x", "nan"])
def test_a_margin_that_cannot_be_is_refused(text: str) -> None:
    with refused():
        read_margin(text)


def test_a_number_without_its_sign_is_said_with_what_it_was_read_as(capsys: pytest.CaptureFixture[str]) -> None:
    read_margin("5")
    assert "5%" in capsys.readouterr().err
    read_margin("0.05")
    assert "5%" in (said := capsys.readouterr().err)
    assert "0.05%" in said
    read_margin("5%")
    assert capsys.readouterr().err == ""


def test_from_python_the_same_names_are_taken() -> None:
    request, options = read_request("ResNet50", 1, {"precision": "float16", "device": "GPU", "engine": "Docker"})
    assert (request.workload, request.params) == ("train/resnet50", {"precision": "fp16", "device": "cuda"})
    arm = read_arm("podman,precision=Half", "train/resnet50", options)
    assert (arm.place, arm.label) == ("container", "container,engine=podman,precision=fp16")
    assert (arm.place_options, arm.typed) == ({"engine": "podman"}, {"precision": "fp16"})


def test_an_engine_that_is_named_twice_is_refused() -> None:
    with refused("docker"):
        read_arm("docker,engine=podman", "train/resnet50")


def test_times_and_sizes_take_the_usual_words() -> None:
    assert [parse_seconds(text) for text in ("10s", "10sec", "10 seconds", "2minutes", "1hour")] == [
        10,
        10,
        10,
        120,
        3600,
    ]
    assert [parse_size(text) for text in ("16GB", "16 GB", "16g", "16GiB")] == [16 * 10**9, 16 * 10**9, 2**34, 2**34]


def test_the_canonical_form_is_stored_and_repeated(ledger_file: Path) -> None:
    answer = ask(
        "compare",
        *FIGURE,
        "--arm",
        "local",
        "--arm",
        "HOST,gpus=none",
        "--margin",
        "5",
        "--blocks",
        "2",
        "--no-primers",
    )
    assert answer.code == Exit.DONE
    with Ledger.open(str(ledger_file)) as book:
        stored = book.experiment("last")
    assert "--arm host --arm host,gpus=none --margin 5%" in stored.command
    assert stored.design is not None
    assert [arm["label"] for arm in stored.design["arms"]] == ["host", "host,gpus=none"]  # type: ignore[index,call-overload,union-attr]
    assert stored.design["margin"] == pytest.approx(0.05)


def test_what_is_meant_is_listed_where_a_name_is_not_known() -> None:
    assert "train/resnet50" in ask("run", "train/resnet-50").err
    assert "train/resnet50" in ask("run", "resnet-50").err


def test_every_command_with_a_place_takes_its_other_names() -> None:
    ctx = click.Context(stackmark)
    for verb in ("run", "compare", "noise", "ceilings", "facts"):
        command = stackmark.get_command(ctx, verb)
        assert command is not None
        option = "--arm" if verb == "compare" else "--on"
        assert accept(command, [option, "k8s"])[0] == [option, "pod"]
