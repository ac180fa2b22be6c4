"""The task fit/transformer: its data, its metric, its model, and a training to its target by a real worker."""

import random
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stackmark.events import Evaluation, Result, Stream  # noqa: E402
from stackmark.ranks import Rank  # noqa: E402
from stackmark.spec import Scalar, Spec, Task  # noqa: E402
from stackmark.workloads.fit.definition import TASKS, FitParams  # noqa: E402
from stackmark.workloads.fit.impl import text, transformer  # noqa: E402
from stackmark.workloads.fit.impl.bleu import LATER_PLANES, Tokenizer, corpus_bleu, tokens_13a, tokens_intl  # noqa: E402
from stackmark.workloads.fit.impl.learner import Bench, in_order_of_ranks, share_of_rank  # noqa: E402
from stackmark.workloads.fit.impl.translation import Search, beam_search  # noqa: E402
from stackmark.workloads.workload import WorkloadFailure  # noqa: E402
from worker_process import environment, finish, give, start  # noqa: E402

WORDS = (
    "the", "cat", "sat", "on", "a", "mat,", "and", "3.5", "dogs", "(or", "4,000?)", "did", "not;", "it's", "well-known:",
    '"no"', "--", "50%", "&amp;", "more!", "«ja»", "5,5¾", "3€+", "…(", "٣٫٥", "l’été",
)  # fmt: skip


def params(**more: Scalar) -> FitParams:
    usual: dict[str, Scalar] = {
        "device": "cpu", "precision": "fp32", "threads": 1, "fused": False, "data_sha256": "0" * 64,
        **TASKS["transformer"].presets["tiny"],
    }  # fmt: skip
    return FitParams.model_validate({**usual, **more})


def bench(**more: Scalar) -> Bench:
    return Bench(params(**more), torch.device("cpu"), 1, Rank(0, 1, 0, 1))


def model() -> transformer.Transformer:
    """The tiny model, with random weights."""
    net = transformer.build(bench()).net
    assert isinstance(net, transformer.Transformer)
    net.eval()
    return net


# --- the metric ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokenizer", "name"), [(tokens_13a, "13a"), (tokens_intl, "intl")])
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9, 1.0])
def test_bleu_is_that_of_sacrebleu(kept: float, lowercase: bool, tokenizer: Tokenizer, name: str) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    draw = random.Random(f"{kept} {lowercase}")
    references = [" ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for _ in range(50)]
    hypotheses = [_spoilt(reference, kept, draw) for reference in references]
    expected = sacrebleu.corpus_bleu(hypotheses, [references], lowercase=lowercase, tokenize=name).score
    found = corpus_bleu(hypotheses, references, lowercase=lowercase, tokenizer=tokenizer)
    assert found == pytest.approx(expected, abs=1e-9)


def _spoilt(sentence: str, kept: float, draw: random.Random) -> str:
    return " ".join(word if draw.random() < kept else draw.choice(WORDS).upper() for word in sentence.split())


def test_no_character_that_cuts_text_is_left_out() -> None:
    assert not [c for c in range(LATER_PLANES, sys.maxunicode + 1) if unicodedata.category(chr(c))[0] in "NPS"]


@pytest.mark.parametrize("hypothesis", ["", "zebra", "the"])
def test_bleu_of_next_to_nothing_is_that_of_sacrebleu(hypothesis: str) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    expected = sacrebleu.corpus_bleu([hypothesis], [["the cat sat on the mat"]]).score
    assert corpus_bleu([hypothesis], ["the cat sat on the mat"]) == pytest.approx(expected, abs=1e-9)


# --- generated data -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (15, "fifteen"),
        (40, "forty"),
        (101, "one hundred one"),
        (40_917, "forty thousand nine hundred seventeen"),
        (999_999, "nine hundred ninety nine thousand nine hundred ninety nine"),
    ],
)
def test_numbers_are_said_in_words(number: int, words: str) -> None:
    assert " ".join(text.number_words(number)) == words


def test_no_test_number_is_trained() -> None:
    train = {text.generated_number(1, index, test=False) for index in range(3000)}
    test = {text.generated_number(1, index, test=True) for index in range(300)}
    assert not train & test


def test_generated_data_are_a_function_of_seed_and_index() -> None:
    some = text.generate_corpus(7, 50, 10)
    more = text.generate_corpus(7, 60, 12)
    assert (more.train[:50], more.test[:10]) == (some.train, some.test)
    assert text.generate_corpus(8, 50, 10).sha256 != some.sha256
    assert text.generate_corpus(7, 50, 10).sha256 == some.sha256
    shorter = text.generate_corpus(7, 50, 10, digits=4)
    assert {len(source) for source, _ in shorter.train} == {1, 2, 3, 4}


def test_a_plan_has_each_pair_once_and_ranks_share_it() -> None:
    pairs = text.generate_corpus(1, 500, 1).train
    plan = text.plan_batches(pairs, 128, 1, 0)
    assert sorted(index for batch in plan for index in batch) == list(range(500))
    assert all(text.text_batch([pairs[i] for i in batch]).inputs.numel() <= 128 for batch in plan)
    shares = [list(text.batches_of_rank(plan, number, 3)) for number in range(3)]
    assert {len(share) for share in shares} == {len(plan) // 3}
    assert text.plan_batches(pairs, 128, 1, 1) != plan


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_bucketed_plan_has_each_pair_once_and_ranks_step_in_one_bucket(ranks: int) -> None:
    pairs = text.generate_corpus(1, 500, 1).train
    buckets = text.length_buckets(pairs, 20)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(500))
    plan = text.plan_bucketed(buckets, 32, ranks, 1, 0)
    planned = [index for batch in plan for index in batch]
    assert len(set(planned)) == len(planned) >= 500 - len(buckets) * (ranks - 1)
    assert max(map(len, plan)) == 32
    bucket_of = {index: number for number, bucket in enumerate(buckets) for index in bucket}
    shares = [list(text.batches_of_rank(plan, number, ranks)) for number in range(ranks)]
    for step in zip(*shares, strict=True):
        assert len({len(batch) for batch in step}) == 1
        assert len({bucket_of[index] for batch in step for index in batch}) == 1
    assert text.plan_bucketed(buckets, 32, ranks, 1, 1) != plan


def test_a_bucket_has_pairs_of_about_one_length() -> None:
    pairs: list[text.Pair] = [([5] * one, [5] * other) for one, other in ((1, 1), (1, 4), (7, 2), (19, 1), (3, 40))]
    assert text.length_buckets(pairs, 20) == [[0], [1, 2], [], [], [3, 4]]


def test_what_ranks_evaluate_comes_back_in_order() -> None:
    ranks = [Rank(number, 3, number, 3) for number in range(3)]
    said = [number for rank in ranks for number in share_of_rank(10, rank)]
    assert in_order_of_ranks(said, ranks[0]) == list(range(10))


# --- a folder -----------------------------------------------------------------------------------------------------------


def write_folder(folder: Path, **files: Sequence[str]) -> Path:
    folder.mkdir(exist_ok=True)
    usual: dict[str, Sequence[str]] = {
        "train.src": ["the lower field", "a new field", "the newest low wall", "a lower wall"],
        "train.tgt": ["das untere feld", "ein neues feld", "die neueste niedrige wand", "eine untere wand"],
        "test.src": ["the new wall"],
        "test.tgt": ["die neue wand"],
    }
    for name, lines in {**usual, **files}.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def test_text_is_cut_into_pieces_that_join_to_the_text(tmp_path: Path) -> None:
    corpus = text.read_corpus(write_folder(tmp_path / "data"), 64)
    assert len(corpus.train) == 4
    assert [corpus.source.joined(source) for source, _ in corpus.train] == [
        "the lower field", "a new field", "the newest low wall", "a lower wall",
    ]  # fmt: skip
    assert corpus.references == ("die neue wand",)
    # `the` stands there twice, so it is one piece; `the` and `wall` are of the vocabulary of the test sentence too.
    assert corpus.source.pieces.index("the") in corpus.test[0]


def test_merges_are_the_most_frequent_neighbours() -> None:
    merges = text.learn_merges(["low low low lower lower newest newest newest newest newest newest"], 3)
    # Eight times; then the first by the alphabet of those that stand there six times.
    assert list(merges) == [("w@@", "e@@"), ("e@@", "we@@"), ("ewe@@", "s@@")]
    assert text.cutter(text.learn_merges(["aa aa aa"], 5))("aa a") == ["aa", "a"]


def test_data_of_wmt_has_its_own_names_and_vocabulary(tmp_path: Path) -> None:
    folder = tmp_path / "wmt"
    folder.mkdir()
    files = {
        "train.tok.clean.bpe.32000.en": "the low@@ er field\n", "train.tok.clean.bpe.32000.de": "das unter@@ e feld\n",
        "newstest2014.tok.bpe.32000.en": "the field\n", "newstest2014.de": "das Feld\n",
        "vocab.bpe.32000": "the\nlow@@\ner\nfield\ndas\nunter@@\ne\nfeld\n",
    }  # fmt: skip
    for name, lines in files.items():
        (folder / name).write_text(lines)
    corpus = text.read_corpus(folder, 64)
    assert len(corpus.target) == 4 + 8
    assert corpus.target.joined(corpus.train[0][1]) == "das untere feld"


def test_text_of_wmt_comes_back_without_the_escapes_of_moses() -> None:
    pieces = (*text.SPECIAL, "d@@", "&apos;", "&@@", "quot;", "&amp;amp;")
    numbers = range(len(text.SPECIAL), len(pieces))
    assert text.Vocabulary(pieces, escaped=True).joined(numbers) == "d' \" &amp;"
    assert text.Vocabulary(pieces).joined(numbers) == "d&apos; &quot; &amp;amp;"


def test_long_sentences_are_not_trained_and_are_cut_off_in_the_test(tmp_path: Path) -> None:
    lines = {"train.src": ["a", "a a a"], "train.tgt": ["b", "b"], "test.src": ["a a a a"], "test.tgt": ["b"]}
    folder = write_folder(tmp_path / "data", **lines)
    for longest_tested, tested in ((0, 2), (3, 3)):
        corpus = text.read_corpus(folder, 2, longest_tested)
        assert (len(corpus.train), len(corpus.test[0])) == (1, tested)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"train.tgt": ["one line"]}, "4 lines, but train.tgt has 1"),
        ({"train.src": [], "train.tgt": []}, "is empty"),
        ({"test.tgt": ["x" * 30_000]}, "line 1 of"),
    ],
)
def test_a_folder_that_is_wrong_is_a_sentence(tmp_path: Path, files: dict[str, Sequence[str]], said: str) -> None:
    with pytest.raises(WorkloadFailure) as error:
        text.read_corpus(write_folder(tmp_path / "data", **files), 64)
    assert error.value.kind == "bad_data"
    assert said in error.value.message


def test_a_folder_without_text_or_with_bytes_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(WorkloadFailure, match=r"train\.src"):
        text.read_corpus(tmp_path, 64)
    (write_folder(tmp_path / "data") / "test.src").write_bytes(b"\xff\xfe\n")
    with pytest.raises(WorkloadFailure, match="UTF-8"):
        text.read_corpus(tmp_path / "data", 64)


# --- the model ----------------------------------------------------------------------------------------------------------


def test_the_full_model_has_the_parameters_of_the_reference() -> None:
    with torch.device("meta"):
        net = transformer.Transformer(transformer.SIZES["full"], 33_708, 33_708)
    # Embedding, six layers on either side without biases in attention, two last norms.
    width, hidden, norm = 1024, 4096, 2 * 1024
    attention, feed_forward = 4 * width**2, 2 * width * hidden + hidden + width
    layers = 6 * (attention + feed_forward + 2 * norm) + 6 * (2 * attention + feed_forward + 3 * norm)
    assert sum(p.numel() for p in net.parameters()) == 33_708 * width + layers + 2 * norm == 210_804_736


def test_no_position_sees_a_later_one_or_padding() -> None:
    net = model()
    source = torch.tensor([[5, 6, 7, text.END]])
    inputs = torch.tensor([[text.BEGIN, 8, 9, 10]])
    changed = inputs.clone()
    changed[0, 3] = 11
    padded = torch.tensor([[5, 6, 7, text.END, text.PAD, text.PAD]])
    with torch.inference_mode():
        plain, later, wider = net(source, inputs), net(source, changed), net(padded, inputs)
    torch.testing.assert_close(plain[:, :3], later[:, :3])
    assert not torch.allclose(plain[:, 3], later[:, 3])
    torch.testing.assert_close(plain, wider)


def test_decoding_step_by_step_gives_the_logits_of_the_whole_sentence() -> None:
    net = model()
    source, inputs = torch.tensor([[5, 6, text.END]]), torch.tensor([[text.BEGIN, 8, 9, 10]])
    with torch.inference_mode():
        whole = net(source, inputs)
        encoded, mask = net.encode(source)
        caches = net.caches(encoded)
        steps = [net.next_logits(inputs[:, place : place + 1], place, caches, mask) for place in range(4)]
    torch.testing.assert_close(torch.stack(steps, 1), whole)


def test_a_beam_finds_at_least_what_greedy_decoding_finds() -> None:
    """With a beam of one the search is greedy; a wider one never ends with a lower score of its own."""
    net = model()
    source = text.source_batch(text.generate_corpus(3, 1, 6).test)
    greedy, beam = (beam_search(net, source, Search(width, alpha=0.0)) for width in (1, 4))
    for sentence, one, other in zip(source, greedy, beam, strict=True):
        assert _log_probability(net, sentence, other) >= _log_probability(net, sentence, one) - 1e-4


def _log_probability(net: transformer.Transformer, source: Any, tokens: list[int]) -> float:
    kept = tokens[: tokens.index(text.END) + 1] if text.END in tokens else tokens
    with torch.inference_mode():
        logits = net(source[None], torch.tensor([[text.BEGIN, *kept[:-1]]]))[0]
    return float(logits.log_softmax(1)[range(len(kept)), kept].sum())


# --- a run --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_tiny_preset_reaches_its_target() -> None:
    corpus = text.generate_corpus()
    spec = params(data_sha256=corpus.sha256)
    process = start(environment())
    give(process, Task(do="run", spec=Spec(workload="fit/transformer", params=spec.model_dump(mode="json"))))
    finished = finish(process, timeout_s=280)
    stream = Stream()
    for line in finished.lines:
        stream.feed(line)
    evaluations = [event for event in stream.events if isinstance(event, Evaluation)]
    result = stream.ended()
    assert isinstance(result, Result), finished.stderr
    assert [one.reached for one in evaluations] == [False] * (len(evaluations) - 1) + [True]
    assert evaluations[-1].quality["BLEU"] >= 95
    assert len(evaluations) <= 10
    assert evaluations[0].samples == len(corpus.train)
    assert result.figure is not None
    assert result.figure.value * 60 == pytest.approx(evaluations[-1].clock_s, abs=1e-5)
