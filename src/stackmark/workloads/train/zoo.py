"""The table of the networks of the family `train/`: their sizes and defaults.

This file imports nothing but the standard library, because the command line lists the workloads from it and must start
without torch. The counts are therefore written down here, and tests/test_nets.py counts them again from the networks:
a change of a network that changes its arithmetic cannot go unnoticed.

Names are the classic's (tf_cnn_benchmarks) where it has the network; a CIFAR-10 network whose ImageNet namesake exists
gets the suffix `_cifar10`. The classic's defaults are kept next to ours: a batch that filled a K80 leaves a present GPU
idle (`gpu_batch`: a power of two that fits a GPU of 80 GB in bf16 and keeps it busy for a millisecond and more).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dataset = Literal["imagenet", "cifar10", "text"]

CLASSIC = "tf_cnn_benchmarks at 8fb7907, counted from its model files"
TORCHVISION = "torchvision 0.29"
TRANSFORMERS = "transformers 5.22"
KERAS = "Keras 3 NASNetMobile: 5,289,978 trainable at 1000 classes; arXiv:1707.07012: 564 M multiply-adds"
DENSENET = "arXiv:1608.06993, table 2, for parameters; multiply-adds counted here"


@dataclass(frozen=True)
class Model:
    """One network. `params`, `forward_macs` and `training_flops` are of one sample at the default number of classes.

    A multiply-add is one MAC and two floating-point operations; tests/counting.py says which are counted.
    """

    name: str
    title: str
    dataset: Dataset
    sample: Literal["image", "sequence"]
    image_px: int  # 0 for text
    sequence_tokens: int  # 0 for images
    classes: int  # of text: the vocabulary
    classic_batch: int  # per device
    gpu_batch: int
    learning_rate: float  # the classic's; its ImageNet ResNets mean it for 256 images a step and scale it by the batch
    params: int
    forward_macs: int
    training_flops: int
    classic_name: str  # the classic's --model; "" where it has no such network
    classic_printed: str  # what the classic prints after "Model:"
    source: str  # where the reference for params and forward_macs comes from


# Transformers, whose blocks strategy fsdp shards.
WITH_BLOCKS = frozenset({"gpt2", "bert-large", "vit-b16", "llama3-1b"})


# The batch on a CPU, by the floating-point operations of training on one sample: 30 steps of it take half a minute or less on two
# cores. It is a table and no timed trial, so that a busy machine chooses as an idle one does.
CPU_BATCHES: tuple[tuple[float, int], ...] = ((0.5e9, 32), (2e9, 16), (10e9, 4), (40e9, 2))


def cpu_batch(model: Model) -> int:
    """Return the batch for a CPU: a power of two, at most the classic one."""
    usual = next((batch for flops, batch in CPU_BATCHES if model.training_flops <= flops), 1)
    return min(usual, model.classic_batch)


# Parameters, multiply-adds forward, floating-point operations of forward and backward pass.
_COUNTS: dict[str, tuple[int, int, int]] = {
    "trivial": (4_263_877, 4_258_779, 25_243_500),
    "lenet": (2_173_353, 14_034_944, 80_446_464),
    "alexnet": (61_842_345, 838_792_896, 4_892_203_776),
    "overfeat": (145_924_969, 2_801_408_000, 16_589_881_344),
    "vgg11": (132_867_433, 7_609_094_144, 45_481_156_608),
    "vgg16": (138_361_641, 15_470_268_416, 92_648_202_240),
    "vgg19": (143_671_337, 19_632_066_560, 117_618_991_104),
    "googlenet": (6_999_577, 1_582_672_896, 9_260_009_472),
    "inception3": (23_819_401, 5_713_218_144, 34_240_945_536),
    "inception4": (42_649_769, 12_253_976_160, 73_485_493_632),
    "resnet50": (25_559_081, 3_857_975_296, 22_911_823_872),
    "resnet101": (44_551_209, 7_570_196_480, 45_185_150_976),
    "resnet152": (60_194_857, 11_282_417_664, 67_458_478_080),
    "resnet50_v1.5": (25_559_081, 4_089_186_304, 24_299_089_920),
    "resnet101_v1.5": (44_551_209, 7_801_407_488, 46_572_417_024),
    "resnet152_v1.5": (60_194_857, 11_513_628_672, 68_845_744_128),
    "resnet50_v2": (25_536_361, 3_857_975_296, 22_911_823_872),
    "resnet101_v2": (44_511_081, 7_570_196_480, 45_185_150_976),
    "resnet152_v2": (60_139_369, 11_282_417_664, 67_458_478_080),
    "mobilenet": (3_506_153, 300_775_552, 1_782_977_280),
    "nasnet": (5_291_035, 563_639_872, 3_360_548_544),
    "trivial_cifar10": (56_332, 52_224, 307_200),
    "alexnet_cifar10": (1_756_619, 32_778_304, 186_839_424),
    "resnet20": (269_787, 40_551_104, 242_421_888),
    "resnet20_v2": (269_467, 40_551_104, 242_421_888),
    "resnet32": (464_219, 68_862_656, 412_291_200),
    "resnet32_v2": (463_675, 68_862_656, 412_291_200),
    "resnet44": (658_651, 97_174_208, 582_160_512),
    "resnet44_v2": (657_883, 97_174_208, 582_160_512),
    "resnet56": (853_083, 125_485_760, 752_029_824),
    "resnet56_v2": (852_091, 125_485_760, 752_029_824),
    "resnet110": (1_728_027, 252_887_744, 1_516_441_728),
    "resnet110_v2": (1_726_027, 252_887_744, 1_516_441_728),
    "densenet40_k12": (1_020_171, 264_813_376, 1_587_995_520),
    "densenet100_k12": (6_980_811, 1_769_517_616, 10_616_220_960),
    "densenet100_k24": (27_251_403, 6_889_350_064, 41_335_215_648),
    "gpt2": (124_439_808, 145_824_153_600, 874_944_921_600),
    "bert-large": (336_226_108, 40_107_124_736, 240_642_748_416),
    "vit-b16": (86_567_656, 17_563_828_224, 105_151_758_336),
    "llama3-1b": (1_235_814_400, 2_805_687_386_112, 16_834_124_316_672),
}

_SOURCES = {
    "resnet101_v1.5": TORCHVISION,
    "resnet152_v1.5": TORCHVISION,
    "mobilenet": TORCHVISION,
    "vit-b16": TORCHVISION,
    "nasnet": KERAS,
    "densenet40_k12": DENSENET,
    "densenet100_k12": DENSENET,
    "densenet100_k24": DENSENET,
}

_NOT_CLASSIC = ("resnet101_v1.5", "resnet152_v1.5", "vit-b16")


def _imagenet(
    name: str, image_px: int, batches: tuple[int, int], learning_rate: float, title: str, classes: int = 1001
) -> Model:
    """Makes a row; 1001 classes, because the classic counts one for "background"."""
    counts, source = _COUNTS[name], _SOURCES.get(name, CLASSIC)
    flag = "" if name in _NOT_CLASSIC else name
    printed = "lenet5" if name == "lenet" else flag
    return Model(
        name, title, "imagenet", "image", image_px, 0, classes, *batches, learning_rate, *counts, flag, printed, source
    )


def _cifar10(name: str, batches: tuple[int, int], learning_rate: float, title: str) -> Model:
    """Makes a row; 11 classes, as the classic has it."""
    counts, source, flag = _COUNTS[name], _SOURCES.get(name, CLASSIC), name.removesuffix("_cifar10")
    return Model(name, title, "cifar10", "image", 32, 0, 11, *batches, learning_rate, *counts, flag, flag, source)


def _text(name: str, tokens: int, vocabulary: int, batches: tuple[int, int], title: str) -> Model:
    counts = _COUNTS[name]
    return Model(name, title, "text", "sequence", 0, tokens, vocabulary, *batches, 1e-4, *counts, "", "", TRANSFORMERS)


# Name, size of a sample, batch per device (the classic's or a small one, ours), learning rate, title.
_ROWS = (
    _imagenet("trivial", 227, (32, 8192), 0.005, "Trivial, 3×227×227 → 1 → 4096 → classes: a step's overhead"),
    _imagenet("lenet", 28, (32, 8192), 0.005, "LeNet-5 of TensorFlow's MNIST tutorial, on 28×28×3"),
    _imagenet("alexnet", 227, (512, 1024), 0.005, "AlexNet, one tower: no groups, no response normalisation"),
    _imagenet("overfeat", 231, (32, 256), 0.005, "OverFeat, the fast model"),
    _imagenet("vgg11", 224, (64, 128), 0.005, "VGG-11 (model A), no batch normalisation"),
    _imagenet("vgg16", 224, (64, 128), 0.005, "VGG-16 (model D), no batch normalisation"),
    _imagenet("vgg19", 224, (64, 128), 0.005, "VGG-19 (model E), no batch normalisation"),
    _imagenet(
        "googlenet", 224, (32, 512), 0.005, "GoogLeNet (Inception v1): no auxiliary heads, no batch normalisation"
    ),
    _imagenet("inception3", 299, (32, 256), 0.005, "Inception v3 at 299, no auxiliary head"),
    _imagenet("inception4", 299, (32, 128), 0.005, "Inception v4 at 299"),
    _imagenet(
        "resnet50", 224, (64, 256), 0.128, "ResNet-50 v1: stride 2 in the first 1×1 (tf_cnn_benchmarks' resnet50)"
    ),
    _imagenet(
        "resnet101", 224, (32, 256), 0.128, "ResNet-101 v1: stride 2 in the first 1×1 (tf_cnn_benchmarks' resnet101)"
    ),
    _imagenet(
        "resnet152", 224, (32, 128), 0.128, "ResNet-152 v1: stride 2 in the first 1×1 (tf_cnn_benchmarks' resnet152)"
    ),
    _imagenet(
        "resnet50_v1.5",
        224,
        (64, 256),
        0.128,
        "ResNet-50 v1.5: stride 2 in the 3×3 (torchvision's and MLPerf's resnet50)",
    ),
    _imagenet(
        "resnet101_v1.5", 224, (32, 256), 0.128, "ResNet-101 v1.5: stride 2 in the 3×3 (torchvision's resnet101)"
    ),
    _imagenet(
        "resnet152_v1.5", 224, (32, 128), 0.128, "ResNet-152 v1.5: stride 2 in the 3×3 (torchvision's resnet152)"
    ),
    _imagenet("resnet50_v2", 224, (64, 256), 0.128, "ResNet-50 v2: pre-activation, stride 2 in the first 1×1"),
    _imagenet("resnet101_v2", 224, (32, 256), 0.128, "ResNet-101 v2: pre-activation, stride 2 in the first 1×1"),
    _imagenet("resnet152_v2", 224, (32, 128), 0.128, "ResNet-152 v2: pre-activation, stride 2 in the first 1×1"),
    _imagenet("mobilenet", 224, (32, 512), 0.005, "MobileNetV2 1.0 (torchvision's mobilenet_v2)"),
    _imagenet("nasnet", 224, (32, 256), 0.005, "NASNet-A mobile (4 @ 1056), no auxiliary head (Keras' NASNetMobile)"),
    _cifar10("trivial_cifar10", (32, 65536), 0.005, "Trivial, 3×32×32 → 1 → 4096 → classes: a step's overhead"),
    _cifar10(
        "alexnet_cifar10", (128, 4096), 0.1, "AlexNet of TensorFlow's CIFAR-10 tutorial, with response normalisation"
    ),
    _cifar10("resnet20", (128, 2048), 0.1, "ResNet-20 v1 for CIFAR-10, zero-padded shortcuts"),
    _cifar10("resnet20_v2", (128, 2048), 0.1, "ResNet-20 v2 for CIFAR-10: pre-activation, zero-padded shortcuts"),
    _cifar10("resnet32", (128, 2048), 0.1, "ResNet-32 v1 for CIFAR-10, zero-padded shortcuts"),
    _cifar10("resnet32_v2", (128, 2048), 0.1, "ResNet-32 v2 for CIFAR-10: pre-activation, zero-padded shortcuts"),
    _cifar10("resnet44", (128, 2048), 0.1, "ResNet-44 v1 for CIFAR-10, zero-padded shortcuts"),
    _cifar10("resnet44_v2", (128, 2048), 0.1, "ResNet-44 v2 for CIFAR-10: pre-activation, zero-padded shortcuts"),
    _cifar10("resnet56", (128, 2048), 0.1, "ResNet-56 v1 for CIFAR-10, zero-padded shortcuts"),
    _cifar10("resnet56_v2", (128, 2048), 0.1, "ResNet-56 v2 for CIFAR-10: pre-activation, zero-padded shortcuts"),
    _cifar10("resnet110", (128, 1024), 0.1, "ResNet-110 v1 for CIFAR-10, zero-padded shortcuts"),
    _cifar10("resnet110_v2", (128, 1024), 0.1, "ResNet-110 v2 for CIFAR-10: pre-activation, zero-padded shortcuts"),
    _cifar10(
        "densenet40_k12",
        (64, 1024),
        0.1,
        "DenseNet-40, growth 12, as in its paper; the model in tf_cnn_benchmarks is wrong",
    ),
    _cifar10(
        "densenet100_k12",
        (64, 512),
        0.1,
        "DenseNet-100, growth 12, as in its paper; the model in tf_cnn_benchmarks is wrong",
    ),
    _cifar10(
        "densenet100_k24",
        (64, 256),
        0.1,
        "DenseNet-100, growth 24, as in its paper; the model in tf_cnn_benchmarks is wrong",
    ),
    _text("gpt2", 1024, 50257, (8, 32), "GPT-2 124M: 1024 tokens, tied embeddings, no dropout"),
    _text("bert-large", 128, 30522, (32, 128), "BERT-large pre-training: 128 tokens, 20 masked words, next sentence"),
    _imagenet(
        "vit-b16", 224, (64, 256), 1e-4, "ViT-B/16 at 224 with a class token (torchvision's vit_b_16)", classes=1000
    ),
    _text("llama3-1b", 2048, 128256, (1, 4), "Llama 3.2 1B's architecture, random weights, 2048 tokens"),
)

MODELS: dict[str, Model] = {model.name: model for model in _ROWS}
