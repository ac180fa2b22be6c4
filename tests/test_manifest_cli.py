"""`stackmark manifest`: prints what would be applied, without a cluster, a GPU, an image or the Kubernetes package."""

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from asking import Answer, ask, environment
from clusters import TestCluster
from stackmark.errors import Exit
from stackmark.places.bundle import worker_bundle
from stackmark.spec import read_task

Json = dict[str, Any]


def printed(*words: str) -> list[Json]:
    """What is printed beside the ConfigMap with the worker."""
    answer = ask("manifest", *words, "--without-worker")
    assert answer.code == 0, answer.err
    return list(yaml.safe_load_all(answer.out))


def worker(found: Json) -> Json:
    spec = found["spec"]
    while "template" in spec or "jobTemplate" in spec:
        spec = (spec.get("jobTemplate") or spec.get("template"))["spec"]
    container: Json = spec["containers"][0]
    return container


def refused(*words: str) -> str:
    answer = ask("manifest", *words)
    assert (answer.code, answer.out) == (Exit.WRONG_USE, ""), answer
    assert answer.err.startswith("stackmark: ")
    assert "Traceback" not in answer.err
    return answer.err


@pytest.mark.parametrize("kind", ["job", "pod", "cronjob"])
def test_each_kind_is_printed_as_yaml_and_as_json_alike(kind: str) -> None:
    words = ["train/resnet50", "--gpus", "1", "--kind", kind, "--cpus", "2", "--memory", "8Gi"]
    (found,) = printed(*words)
    assert found == json.loads(ask("manifest", *words, "--without-worker", "--json").out)
    assert found["kind"].lower() == kind
    assert kubernetes_validate.validate(found, "1.28", strict=True)
    assert worker(found)["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_the_worker_gets_what_was_typed_and_nothing_else() -> None:
    (found,) = printed("train/resnet50", "--batch", "32", "--seconds", "1min", "--precision", "bf16")
    (text,) = [one["value"] for one in worker(found)["env"] if one["name"] == "STACKMARK_SPEC"]
    task = read_task(text)
    assert task.request is not None
    assert (task.do, task.spec, task.lifeline) == ("run", None, False)
    assert task.request.params == {"batch": 32, "seconds": 60.0, "precision": "bf16"}


def test_the_ranks_of_a_group_share_a_pod_and_have_a_gpu_each() -> None:
    (found,) = printed("op/all-reduce", "--ranks", "4", "--gpus", "4")
    (unsaid,) = printed("op/all-reduce", "--ranks", "4")
    (text,) = [one["value"] for one in worker(found)["env"] if one["name"] == "STACKMARK_SPEC"]
    task = read_task(text)
    assert task.request is not None
    assert task.request.ranks == 4
    assert worker(found)["resources"] == worker(unsaid)["resources"]
    assert worker(unsaid)["resources"]["limits"]["nvidia.com/gpu"] == "4"
    (on_cpus,) = printed("op/all-reduce", "--ranks", "2", "--device", "cpu")
    assert "resources" not in worker(on_cpus)


def test_a_command_of_ones_own_runs_in_the_pods_folder_and_keeps_its_dollars() -> None:
    (found,) = printed("--cmd", "echo $(HOME) $$", "--metric", "x ([0-9.]+)", "--gpus", "none")
    (text,) = [one["value"] for one in worker(found)["env"] if one["name"] == "STACKMARK_SPEC"]
    request = read_task(text.replace("$$", "$")).request
    assert request is not None
    assert (request.params["cmd"], request.params["cwd"]) == ("echo $(HOME) $$", ".")


def test_the_same_words_print_the_same_manifest_and_others_another_name() -> None:
    words = ["train/resnet50_v1.5", "--batch", "8"]
    assert ask("manifest", *words).out == ask("manifest", *words).out
    names = {printed(*words, *more)[0]["metadata"]["name"] for more in ([], ["--cpus", "2"], ["--kind", "cronjob"])}
    assert len(names) == 3
    assert all(len(name) <= 52 for name in names)


def test_a_canary_keeps_its_runs_until_they_are_collected() -> None:
    (found,) = printed("train/trivial", "--kind", "cronjob", "--schedule", "*/30 * * * *", "--history", "7")
    spec = found["spec"]
    assert (spec["schedule"], spec["successfulJobsHistoryLimit"], spec["failedJobsHistoryLimit"]) == (
        "*/30 * * * *",
        7,
        7,
    )
    assert "ttlSecondsAfterFinished" not in spec["jobTemplate"]["spec"]
    assert found["metadata"]["labels"]["stackmark.io/kind"] == "canary"
    assert "stackmark.io/driver" not in found["metadata"]["labels"]


def test_a_canary_that_would_choose_its_batch_anew_each_time_is_told_so() -> None:
    words = ["manifest", "train/trivial", "--kind", "cronjob"]
    assert "(device, batch" in ask(*words).out
    assert "(device, batch" not in ask(*words, "--batch", "2").out
    assert "(device" not in ask("manifest", "train/trivial").out


def test_openshift_gets_no_uid_and_a_word_about_it() -> None:
    answer = ask("manifest", "train/resnet50", "--openshift")
    assert "runAsUser" not in answer.out
    assert "restricted-v2" in answer.out
    assert "runAsUser: 1001" in ask("manifest", "train/resnet50").out


def test_a_claim_for_devices_comes_first() -> None:
    claim, job = printed("train/resnet50", "--gpus", "2", "--dra", "gpu.nvidia.com")
    assert (claim["kind"], job["kind"]) == ("ResourceClaimTemplate", "Job")
    listed = json.loads(ask("manifest", "train/resnet50", "--gpus", "2", "--dra", "gpu.nvidia.com", "--json").out)
    assert listed["items"][1:] == [claim, job]


@pytest.mark.parametrize("kind", ["job", "pod", "cronjob"])
def test_the_worker_is_printed_before_what_mounts_it_and_yaml_has_no_endless_line(kind: str) -> None:
    words = ["manifest", "train/trivial", "--kind", kind, "--device", "cpu"]
    text = ask(*words).out
    config_map, found = yaml.safe_load_all(text)
    assert json.loads(ask(*words, "--json").out)["items"] == [config_map, found]
    (content,) = config_map["binaryData"].values()
    assert base64.b64decode(content) == worker_bundle().content
    assert config_map["metadata"]["name"] in json.dumps(found)
    assert config_map["metadata"]["labels"] == found["metadata"]["labels"]
    assert "ownerReferences" not in config_map["metadata"]
    assert "suspend" not in json.dumps(found)
    assert kubernetes_validate.validate(config_map, "1.28", strict=True)
    assert max(map(len, text.splitlines())) < 200


def test_what_restricted_forbids_stands_above_the_manifest() -> None:
    out = ask("manifest", "train/resnet50", "--host-network", "--cap", "IPC_LOCK", "--cpus", "1.5").out
    above = out.partition("apiVersion")[0]
    for words in ("hostNetwork", "IPC_LOCK", "1.5"):
        assert words in above


def test_a_patch_is_merged(tmp_path: Path) -> None:
    (tmp_path / "patch.yaml").write_text("spec: {template: {spec: {schedulerName: volcano}}}\n")
    (found,) = printed("train/resnet50", "--patch", str(tmp_path / "patch.yaml"))
    assert found["spec"]["template"]["spec"]["schedulerName"] == "volcano"


def test_neither_the_kubernetes_package_nor_yaml_is_needed(tmp_path: Path) -> None:
    block = "import sys; sys.modules.update(kubernetes=None, yaml=None, torch=None)\n"
    call = "from stackmark.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", block + call, "manifest", "train/resnet50", "--gpus", "1"],
        env=environment(tmp_path / "ledger"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    worker, _, job = done.stdout.partition("---\n")
    assert (yaml.safe_load(worker)["kind"], yaml.safe_load(job)["kind"]) == ("ConfigMap", "Job")


def test_a_yaml_patch_without_yaml_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "patch.yaml").write_text("spec: {}\n")
    block = "import sys; sys.modules.update(yaml=None)\n"
    call = "from stackmark.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", block + call, "manifest", "train/vgg16", "--patch", str(tmp_path / "patch.yaml")],
        env=environment(tmp_path / "ledger"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == Exit.WRONG_USE
    assert "'stackmark[k8s]'" in done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), ["stackmark workloads", "--cmd"]),
        (("train/resnet5",), ["'train/resnet5'", "train/resnet50"]),
        (("train/resnet50", "--batch", "8,16"), ["2"]),
        (("train/resnet50", "--batch", "-1"), ["--batch", "-1"]),
        (("train/resnet50", "--gpus", "all"), ["gpus", "all"]),
        (("train/resnet50", "--schedule", "@daily"), ["--schedule", "--kind cronjob"]),
        (("train/resnet50", "--history", "3"), ["--history", "--kind cronjob"]),
        (("train/resnet50", "--kind", "cronjob", "--schedule", "weekdays"), ["'weekdays'", "1"]),
        (("train/resnet50", "--kind", "cronjob", "--schedule", ""), ["--schedule"]),
        (("train/resnet50", "--patch", "/nowhere"), ["/nowhere"]),
        (("op/gemm", "--ranks", "2"), ["op/gemm", "--ranks"]),
        (("op/all-reduce",), ["op/all-reduce", "--ranks 2"]),
        (("op/all-reduce", "--ranks", "2,4"), ["2"]),
        (("op/gemm", "--set", "trainings"), ["op/gemm", "'trainings'", "inference_server"]),
        (("train/resnet50", "--namespace", "A"), ["namespace", "'A'"]),
        (("train/resnet50", "--engine", "podman"), ["'--engine'"]),
    ],
)
def test_what_cannot_be_printed_is_refused_in_a_sentence(words: tuple[str, ...], named: list[str]) -> None:
    message = refused(*words)
    assert all(word in message for word in named), message


def test_the_help_has_the_options_of_a_pod_in_one_section() -> None:
    text = ask("manifest", "--help").out
    headings = [line.split()[-1] for line in text.splitlines() if line.startswith("Options of ")]
    assert headings == ["pod:"]


def test_where_places_differ_the_help_says_what_each_means() -> None:
    answer: Answer = ask("run", "--help")
    text = " ".join(answer.out.split())
    assert "Pod:" in text.partition("--gpus ")[2].partition(" --")[0]
    assert text.count("--memory TEXT") == 1


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["job", "pod", "cronjob"])
def test_the_api_server_takes_the_text_as_it_is_printed(kind: str, restricted_cluster: TestCluster) -> None:
    words = ["train/resnet50", "--gpus", "1", "--kind", kind, "--namespace", restricted_cluster.namespace]
    printed_all = list(yaml.safe_load_all(ask("manifest", *words).out))
    assert [one["kind"].lower() for one in printed_all] == ["configmap", kind]
    for found in printed_all:
        api = "/api/v1" if found["apiVersion"] == "v1" else "/apis/batch/v1"
        path = f"{api}/namespaces/{restricted_cluster.namespace}/{found['kind'].lower()}s"
        made = restricted_cluster.cluster.create(path, found, dryRun="All", fieldValidation="Strict")
        assert made["metadata"]["name"] == found["metadata"]["name"]
        assert made.get("binaryData") == found.get("binaryData")
