"""The task fit/gnmt: its model, its search, its learning rate, and trainings to its target on one rank and two."""

import math
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fit_rig import Course, fit_params, trained
from stackmark.events import Evaluation, Facts, Log, Result, Stream
from stackmark.ranks import Rank
from stackmark.spec import Request, Scalar, Spec, Task
from stackmark.workloads.fit.definition import TASKS, FitParams
from stackmark.workloads.fit.impl import translation
from stackmark.workloads.fit.impl.gnmt import (
    FULL_WORDS,
    LAYERS,
    SIZES,
    Gnmt,
    GnmtLearner,
    Memory,
    Schedule,
    build,
    plan_schedule,
)
from stackmark.workloads.fit.impl.learner import Bench
from stackmark.workloads.fit.impl.text import BEGIN, END, PAD, generate_corpus, source_batch, text_batch
from stackmark.workloads.fit.impl.translation import Search, beam_search, smoothed_loss
from stackmark.workloads.workload import WorkloadFailure
from test_fit_transformer import write_folder
from worker_process import environment, finish, give, start

CPU = torch.device("cpu")
WORDS = 20


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """More are slower with matrices this small, and much slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def learner(**given: Any) -> GnmtLearner:
    return build(Bench(fit_params("gnmt", **given), CPU, 1, Rank(0, 1, 0, 1)))


@pytest.fixture
def net() -> Gnmt:
    """The tiny model with random weights, larger than at the start of a training, so that its choices differ."""
    torch.manual_seed(3)
    net = Gnmt(SIZES["tiny"], WORDS, WORDS).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(5)
    return net


@pytest.fixture
def small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generated data, but fewer and shorter numbers."""
    monkeypatch.setattr(
        translation,
        "generate_corpus",
        lambda digits: generate_corpus(train_pairs=640, test_pairs=20, digits=digits - 1),
    )


# The model


def test_full_has_the_parameters_of_the_reference() -> None:
    with torch.device("meta"):
        net = Gnmt(SIZES["full"], FULL_WORDS, FULL_WORDS)
    width = 1024

    def lstm(inputs: int) -> int:
        return 4 * (width * (inputs + width) + 2 * width)

    encoder = 2 * lstm(width) + lstm(2 * width) + 2 * lstm(width)
    decoder = lstm(width) + 3 * lstm(2 * width)
    attention = 2 * width**2 + 2 * width + 1
    words = 32_320 * width + (32_320 * width + 32_320)
    assert sum(p.numel() for p in net.parameters()) == encoder + decoder + attention + words == 160_671_297


@pytest.mark.slow
def test_full_trains_a_batch() -> None:
    torch.manual_seed(1)
    net = Gnmt(SIZES["full"], FULL_WORDS, FULL_WORDS)
    batch = text_batch([([5, 6, 7], [8, 9]), ([10], [11, 12, 13])])
    logits = net(batch.source, batch.inputs)
    assert logits.shape == (2, 4, FULL_WORDS)
    loss = smoothed_loss(logits, batch.labels, "mean")
    assert loss.item() == pytest.approx(math.log(FULL_WORDS), rel=0.05)
    loss.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        assert bool(parameter.grad.any()), name


def test_the_weights_begin_as_the_reference_says() -> None:
    torch.manual_seed(1)
    net, limit = Gnmt(SIZES["tiny"], WORDS, WORDS), SIZES["tiny"].weights
    assert net.attention.scale.item() == pytest.approx(64**-0.5)
    for name, parameter in net.named_parameters():
        if name == "attention.key.bias" or "bias_hh" in name:
            assert not parameter.any(), name
        elif name != "attention.scale":
            assert 0.8 * limit < parameter.abs().max() <= limit, name


def test_attention_is_that_of_plain_python(net: Gnmt) -> None:
    """softmax of g v/|v| · tanh(W q + U k + b), over what is not padding; then the mean of the encoded source."""
    part = net.attention
    with torch.no_grad():
        part.key.bias.uniform_(-1, 1)
    queries, encoded = torch.randn(2, 3, 64), torch.randn(2, 4, 64)
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    with torch.inference_mode():
        found, weights = part(queries, Memory(encoded, part.key(encoded), mask))
        asked, keys = part.query.weight, part.key.weight
        direction = part.vector / math.sqrt(sum(x * x for x in part.vector.tolist()))
        for row, length in enumerate((4, 2)):
            for place in range(3):
                scores = []
                for of in range(length):
                    mixed = [
                        math.tanh(x) for x in (asked @ queries[row, place] + keys @ encoded[row, of] + part.key.bias).tolist()
                    ]  # fmt: skip
                    scores.append(
                        part.scale.item() * sum(a * b for a, b in zip(direction.tolist(), mixed, strict=True))
                    )
                total = sum(map(math.exp, scores))
                expected = [math.exp(score) / total for score in scores] + [0.0] * (4 - length)
                torch.testing.assert_close(weights[row, place], torch.tensor(expected), atol=1e-5, rtol=1e-4)
                mean = sum((w * one for w, one in zip(expected, encoded[row], strict=True)), torch.zeros(64))
                torch.testing.assert_close(found[row, place], mean, atol=1e-5, rtol=1e-4)


def test_the_first_layer_reads_both_ways_as_a_bidirectional_lstm_over_packed_sentences(net: Gnmt) -> None:
    """An LSTM of two directions, which is told the lengths, then the layers above it, with residuals from the third on."""
    encoder, x, lengths = net.encoder, torch.randn(3, 5, 64), [5, 2, 4]
    both = nn.LSTM(64, 64, batch_first=True, bidirectional=True)
    for name, of in (("", encoder.forwards), ("_reverse", encoder.backwards)):
        for parameter, value in of.named_parameters():
            getattr(both, f"{parameter}{name}").data.copy_(value)

    def run(layer: nn.Module, x: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(layer(packed)[0], batch_first=True)[0]

    with torch.inference_mode():
        expected = run(encoder.layers[0], run(both, x))
        for layer in encoder.layers[1:]:
            expected = expected + run(layer, expected)
        mask = torch.arange(5)[None] < torch.tensor(lengths)[:, None]
        found = encoder(x, mask)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(found[row, :length], expected[row, :length])


def test_no_place_sees_a_later_one_or_padding(net: Gnmt) -> None:
    source, inputs = torch.tensor([[5, 6, 7, END]]), torch.tensor([[BEGIN, 8, 9, 10]])
    changed = inputs.clone()
    changed[0, 3] = 11
    with torch.inference_mode():
        plain, later = net(source, inputs), net(source, changed)
        wider = net(torch.tensor([[5, 6, 7, END, PAD, PAD]]), inputs)
    torch.testing.assert_close(plain[:, :3], later[:, :3])
    assert not torch.allclose(plain[:, 3], later[:, 3])
    torch.testing.assert_close(plain, wider)


def test_decoding_token_by_token_gives_the_logits_of_the_whole_sentence(net: Gnmt) -> None:
    """The layers are computed for all tokens at once in training; the search goes on from their states."""
    source, inputs = torch.tensor([[5, 6, END], [7, END, PAD]]), torch.tensor([[BEGIN, 8, 9, 10], [BEGIN, 9, 9, 4]])
    with torch.inference_mode():
        whole, _, weights = net.decode(inputs, net.encode(source), [None] * LAYERS)
        decoding = net.begin(source, 1)
        for place in range(4):
            logits = decoding.next_logits(inputs[:, place : place + 1], place)
            torch.testing.assert_close(logits, whole[:, place], atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(decoding.attention, weights[:, place], atol=1e-5, rtol=1e-4)


def test_in_bf16_the_lstm_layers_stay_in_fp32() -> None:
    """Autocast would run them in fp16 on a GPU, whose gradients vanish without a scaled loss."""
    net = learner().net
    seen: list[torch.dtype] = []
    for module in net.modules():
        if isinstance(module, nn.LSTM):
            module.register_forward_hook(lambda _module, _given, out: seen.append(out[0].dtype))
    batch = text_batch([([5, 6, 7], [8, 9]), ([10], [11, 12, 13])])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = net(batch.source, batch.inputs)
    assert seen == [torch.float32] * 9
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), net(batch.source, batch.inputs), atol=0.01, rtol=0.05)


def test_the_loss_is_that_of_a_pair(small_corpus: None) -> None:
    """The reference sums over the tokens of a batch and divides by its pairs; clipping depends on it."""
    one = learner()
    batch, _ = next(one.batches(0))
    with torch.inference_mode():
        found = one.loss(batch)
        logs = one.net(batch.source, batch.inputs).double().log_softmax(2)
    words = logs.shape[2]
    total = 0.0
    for row, labels in zip(logs, batch.labels.tolist(), strict=True):
        for log, label in zip(row, labels, strict=True):
            if label != PAD:
                total -= 0.9 * float(log[label]) + 0.1 / words * float(log.sum())
    assert float(found) == pytest.approx(total / batch.pairs, rel=1e-5)


# The search


def plain_search(net: Gnmt, sentence: list[int], search: Search) -> list[int]:
    """Beam search over lists of tokens: each step decodes each whole hypothesis again, and nothing is padded."""
    source = source_batch([sentence])
    memory = net.encode(source)
    hypotheses: list[tuple[float, list[int]]] = [(0.0, [])]

    def decoded(tokens: list[int]) -> tuple[Tensor, Tensor]:
        logits, _, weights = net.decode(torch.tensor([[BEGIN, *tokens]]), memory, [None] * LAYERS)
        return logits[0].log_softmax(1), weights[0]

    for _ in range(MOST_TOKENS):
        candidates: list[tuple[float, list[int]]] = []
        for log, tokens in hypotheses:
            if tokens and tokens[-1] == END:
                candidates.append((log, tokens))
            else:
                next_logs = decoded(tokens)[0][-1].tolist()
                candidates += [(log + one, [*tokens, word]) for word, one in enumerate(next_logs) if word != PAD]
        hypotheses = sorted(candidates, key=lambda one: -one[0])[: search.beam]

    def score(log: float, tokens: list[int]) -> float:
        # A step for each token: the last one is attended for, not after it.
        attended = decoded(tokens[:-1])[1].sum(0).tolist()
        coverage = sum(math.log(min(1.0, one)) for one in attended)
        return log / math.pow((5 + len(tokens)) / 6, search.alpha) + search.coverage * coverage

    return max(hypotheses, key=lambda one: score(*one))[1]


# Of a translation, where the longest source has 6 tokens with its end.
MOST_TOKENS, EXTRA = 8, 2
SENTENCES = ([5, 6, 7, 8, 9], [10, 11], [12, 13, 14], [6, 6, 6, 6])


@pytest.mark.parametrize("search", [Search(5, 0.6, 0.1), Search(3, 0.0, 4.0), Search(4, 1.0), Search(1, 0.6, 0.1)])
def test_a_beam_finds_what_plain_python_finds(net: Gnmt, search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "EXTRA_LENGTH", EXTRA)
    with torch.inference_mode():
        # So that sentences end at different places.
        net.out.bias[END] += 1.0
        found = beam_search(net, source_batch(SENTENCES), search)
        expected = [plain_search(net, list(sentence), search) for sentence in SENTENCES]
    shortened = [tokens[: tokens.index(END) + 1] if END in tokens else tokens for tokens in found]
    assert shortened == expected
    assert len(set(map(len, expected))) > 1


def test_a_coverage_penalty_changes_what_is_chosen(net: Gnmt) -> None:
    with torch.inference_mode():
        net.out.bias[END] += 1.0
        source = source_batch(SENTENCES)
        assert beam_search(net, source, Search(5, 0.6, 4.0)) != beam_search(net, source, Search(5, 0.6))


# The learning rate


def test_the_decay_is_where_mlperf_has_it_with_its_data() -> None:
    """NVIDIA's DGX-1 in v0.6: 2,048 pairs in a step, five planned epochs."""
    full: dict[str, Any] = {"device": "cpu", "precision": "fp32", "threads": 0, "fused": False, "data_sha256": "0" * 64}
    schedule = plan_schedule(FitParams.model_validate({**TASKS["gnmt"].presets["full"], **full}), 9690)
    assert (schedule.peak, schedule.warmup, schedule.remain, schedule.interval) == (2e-3, 200, 6453, 809)


def test_the_learning_rate_rises_stays_and_is_halved_four_times() -> None:
    schedule = Schedule(2e-3, 200, 6453, 809)
    rates = {update: schedule.rate(update) for update in (0, 100, 200, 6452, 6453, 7261, 7262, 8880, 20_000)}
    expected = [2e-5, 2e-4, 2e-3, 2e-3, 1e-3, 1e-3, 5e-4, 1.25e-4, 1.25e-4]
    assert list(rates.values()) == pytest.approx(expected)
    assert Schedule(2e-3, 0, 10, 1).rate(0) == 2e-3


# To the target


class Cut(Exception):
    """The run ends here, as if it were killed."""


class CutCourse(list[Any]):
    def append(self, one: Any) -> None:
        super().append(one)
        if len(self) == 2:
            raise Cut


@pytest.mark.slow
@pytest.mark.usefixtures("small_corpus")
def test_a_run_that_was_cut_off_goes_on_to_the_same_qualities(tmp_path: Path) -> None:
    """In the second evaluation, so that it goes on from the first."""

    params = partial(fit_params, "gnmt", target="100", most_epochs=3, warmup_updates=5, batch=8)

    def course(evaluations: list[Any], **given: Scalar) -> Course:
        found = Course(evaluations=evaluations)
        with suppress(Cut, WorkloadFailure):
            trained("gnmt", params(**given), course=found)
        return found

    folder = str(tmp_path)
    whole = course([])
    cut = course(CutCourse(), checkpoint_dir=folder)
    resumed = course([], checkpoint_dir=folder)
    assert len({one.quality["BLEU"] for one in whole.evaluations}) == 3
    assert [one.quality for one in resumed.evaluations] == [one.quality for one in whole.evaluations]
    assert resumed.evaluations[0] == cut.evaluations[0]
    assert float(str(resumed.facts["lost_s"])) > 0


def test_text_in_a_folder_trains_by_the_same_code(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data")
    course = trained("gnmt", fit_params("gnmt", source="real", data=str(folder), target="0"))
    assert course.told is not None
    assert [one.samples for one in course.evaluations] == [4]


def told(do: Task) -> Stream:
    process, stream = start(environment()), Stream()
    give(process, do)
    # A busy machine needs more than the seconds of a test elsewhere.
    finished = finish(process, timeout_s=280)
    for line in finished.lines:
        assert stream.feed(line) is not None, line
    assert isinstance(stream.ended(), Result), finished.stderr
    return stream


def evaluations(stream: Stream) -> Iterator[Evaluation]:
    return (event for event in stream.events if isinstance(event, Evaluation) and event.rank == 0)


@pytest.mark.slow
def test_tiny_reaches_its_target_by_the_worker() -> None:
    """From a request, so through the probe too; six seeds were tried when it was tuned."""
    stream = told(Task(do="run", request=Request(workload="fit/gnmt", params={"device": "cpu"})))
    *before, last = evaluations(stream)
    assert last.quality["BLEU"] >= 95 > max(one.quality["BLEU"] for one in before)
    assert last.epoch <= 10
    (facts,) = (event.facts for event in stream.events if isinstance(event, Facts) and event.subject == "fit")
    assert facts["train_samples"] == before[0].samples == 12_000
    lines = [event.line for event in stream.events if isinstance(event, Log)]
    for key in ("gnmt", "opt_learning_rate_remain_steps", "global_batch_size", "eval_accuracy", "run_stop"):
        assert [line for line in lines if line.startswith(":::MLLOG") and f'"{key}"' in line], key
    assert [line for line in lines if "submission_division" in line and '"open"' in line]


@pytest.mark.slow
def test_two_ranks_with_half_of_the_batch_reach_the_quality_of_one() -> None:
    params = fit_params("gnmt", batch=32).model_dump(mode="json")
    *_, last = evaluations(told(Task(do="run", spec=Spec(workload="fit/gnmt", params=params, ranks=2))))
    assert last.quality["BLEU"] >= 95
    assert last.epoch <= 10
