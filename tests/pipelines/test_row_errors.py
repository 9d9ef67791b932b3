"""`errors="return"`: an invalid row fails only its own row. `truncate=True`: long texts are truncated."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.generation import Sample
from keras_transformer.models import (
    BERT,
    GPT,
    MaskedLanguageModel,
    SequenceClassifier,
    SpanClassifier,
    TokenClassifier,
)
from keras_transformer.pipelines import (
    Embedding,
    FillMask,
    QuestionAnswering,
    TextClassification,
    TextGeneration,
    TokenClassification,
)
from keras_transformer.pipelines.texts import first_lengths
from keras_transformer.text import ByteTokenizer, WordPieceTokenizer
from keras_transformer_serving.pipelines.errors import RowErrors
from keras_transformer_serving.pipelines.texts import first_length
from tests.laws.cases import randomise
from tests.laws.pipelines import SIZES, bert

TOKENIZER = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"])
LETTERS = "a b c d e f g h c b a d"  # longer than 10 tokens
LONG = f"[MASK] {LETTERS}"


small = functools.partial(bert, TOKENIZER, max_length=12)
MAKERS = {
    "text": lambda: TextClassification(small(lambda e: SequenceClassifier(e, 3)), TOKENIZER),
    "token": lambda: TokenClassification(small(lambda e: TokenClassifier(e, 3)), TOKENIZER),
    "fill": lambda: FillMask(small(MaskedLanguageModel), TOKENIZER, top=2),
    "embedding": lambda: Embedding(small(), TOKENIZER),
    "span": lambda: QuestionAnswering(small(SpanClassifier), TOKENIZER),
}


@pytest.fixture(scope="module")
def writer():
    tokenizer = ByteTokenizer()
    model = randomise(GPT(tokenizer.vocabulary_size, **SIZES, max_length=32))
    return TextGeneration(model, tokenizer, max_new_tokens=3, max_source_tokens=8)


def error_of(call, *arguments):
    with pytest.raises((TypeError, ValueError)) as caught:
        call(*arguments)
    return caught.value


def assert_same(found, expected):
    """Compare errors by type and message, and other outputs to six digits."""
    if isinstance(expected, Exception):
        assert (type(found), str(found)) == (type(expected), str(expected))
    elif isinstance(expected, float | np.ndarray):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    elif isinstance(expected, list | tuple):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


@pytest.mark.slow
def test_scores_with_returned_errors_are_a_list():
    classifier = MAKERS["text"]()
    expected = classifier.scores(["a", "b"])
    for scores in (classifier.scores, classifier.probabilities):
        first, error, last = scores(["a", None, "b"], errors="return")
        np.testing.assert_allclose([first, last], expected, rtol=1e-5)
        assert isinstance(error, TypeError)


def test_all_hypotheses_of_an_invalid_prompt_are_its_error(writer):
    found = writer.answers(["ab", "", "c"], errors="return")
    assert [each if isinstance(each, Exception) else each[0].text for each in found] == [
        writer("ab"),
        found[1],
        writer("c"),
    ]
    assert_same(found[1], error_of(writer, ["ab", ""]))


@pytest.mark.slow
def test_an_invalid_text_or_prefix_of_a_translator_fails_only_its_own_row(pipeline):
    texts, prefixes = ["uno", "dos", "la casa", None], ["the", None, "a\ud800", "a"]
    found = pipeline(texts, prefixes=prefixes, max_new_tokens=[3, 4, 5, 6], errors="return")
    assert found[0] == pipeline("uno", prefixes="the", max_new_tokens=3)
    assert [type(each) for each in found[1:]] == [TypeError, ValueError, TypeError]
    for row, name in ((1, "prefixes"), (2, "prefixes"), (3, "texts")):
        assert f"{name}[{row}]" in str(found[row])


@pytest.mark.slow
def test_an_invalid_text_or_target_fails_only_its_own_score(pipeline):
    texts, targets = ["uno", "", None, "dos", "la casa"], ["one", "two", "a", 5, "the house"]
    found = pipeline.score(texts, targets, errors="return")
    assert [isinstance(each, Exception) for each in found] == [False, True, True, True, False]
    for row in (0, 4):
        assert found[row].score == pytest.approx(
            pipeline.score([texts[row]], [targets[row]])[0].score, rel=1e-4
        )
    assert_same(found[1], error_of(pipeline.score, ["uno", ""], ["one", "two"]))
    assert all(isinstance(each, Exception) for each in pipeline.score([None], ["a"], errors="return"))


@pytest.mark.slow
def test_samples_do_not_depend_on_invalid_rows(writer):
    sampled = writer.with_settings(Sample(seed=3))
    expected = sampled(["ab"] * 8)
    assert len(set(expected)) > 1
    texts = ["ab", None, "ab", "ab", "", "ab", "ab", "ab"]
    found = sampled(texts, errors="return", batch_size=2)
    assert [expected[row] if texts[row] else each for row, each in enumerate(found)] == found


def test_pairs_are_truncated_as_in_transformers():
    counts = np.arange(16)
    for space in range(1, 14):
        found = first_lengths(tf.constant(counts[:, None]), tf.constant(counts), space).numpy()
        for first, second in np.ndindex(found.shape):
            kept = first_length(first, second, space)
            assert kept == found[first, second]
            # The longer text is truncated until both fit, or are equally long.
            left = min(second, space - kept)
            assert kept + left == min(first + second, space)
            assert kept == first or left <= kept + (space % 2)
            assert left == second or kept <= left + (space % 2)


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", ["text", "token", "fill", "embedding"])
def test_a_text_is_truncated_to_its_first_tokens(name):
    pipeline = MAKERS[name]()
    long = LONG if name == "fill" else LETTERS
    cut = " ".join(long.split()[:10])
    rows = [long, "a [MASK]", f"{long} {LETTERS}", cut]
    expected = pipeline([cut, "a [MASK]", cut, cut])
    assert_same(pipeline(rows, truncate=True), expected)
    assert_same(pipeline(long, truncate=True), expected[0])
    if name == "fill":
        with pytest.raises(
            ValueError, match=r"must contain the mask token '\[MASK\]' in its first 10 tokens"
        ):
            pipeline(f"{LETTERS} [MASK]", truncate=True)
        assert len(pipeline(f"{LONG} [MASK]", truncate=True)) == 1
    else:
        windows = type(pipeline)(pipeline.model, pipeline.tokenizer, long_texts="window")
        assert_same(windows(rows, truncate=True), expected)


@pytest.mark.slow
def test_a_truncated_word_is_classified_by_its_first_tokens():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc", "##b", "##c"]
    tokenizer = WordPieceTokenizer(pieces)
    model = randomise(TokenClassifier(BERT(len(pieces), **SIZES, max_length=6), 3))
    classifier = TokenClassification(model, tokenizer)
    found = classifier(["a a abcb c", "b"], truncate=True)
    assert [(each.word, each.start, each.end) for each in found[0]] == [
        ("a", 0, 1),
        ("a", 2, 3),
        ("abcb", 4, 8),
    ]
    cut = classifier("a a ab")
    assert_same([each[1:3] for each in found[0]], [each[1:3] for each in cut])
    assert_same(found[1], classifier("b"))


@pytest.mark.slow
def test_questions_are_kept_and_contexts_truncated():
    answer = MAKERS["span"]()
    assert_same(answer("a b", LETTERS, truncate=True), answer("a b", " ".join(LETTERS.split()[:7])))
    with pytest.raises(ValueError, match="`context` must have at most 0 tokens each beside its `question`"):
        answer(LETTERS, "a", truncate=True)


@pytest.mark.slow
def test_the_longer_text_of_a_pair_is_truncated_first():
    classifier = MAKERS["text"]()
    words = LETTERS.split()
    for first, second, kept in ((12, 12, (4, 5)), (12, 2, (7, 2)), (3, 12, (3, 6)), (12, 0, (9, 0))):
        pair = [" ".join(words[:count]) for count in (first, second)]
        cut = [" ".join(words[:count]) for count in kept]
        assert_same(classifier.scores(*pair, truncate=True), classifier.scores(*cut))


def test_a_prompt_is_truncated_to_its_last_tokens(writer):
    assert writer(["abcdefghijkl", "ab"], truncate=True) == writer(["efghijkl", "ab"])
    assert writer("abcdefghijkl", truncate=True) == writer("efghijkl")
    assert "".join(writer.stream("abcdefghijkl", truncate=True)) == writer("efghijkl")
    np.testing.assert_array_equal(
        writer.generate(["abcdefghijkl"], truncate=True).ids, writer.generate(["efghijkl"]).ids
    )
    started = TextGeneration(
        writer.model, writer.tokenizer, max_new_tokens=3, max_source_tokens=4, add_start=True
    )
    (ids,) = started.preprocess(tf.constant(["abcdef"]), truncate=True).inputs["source_ids"].numpy().tolist()
    assert ids == [writer.tokenizer.start_id, *writer.tokenizer.tokenize("def").numpy().tolist()]


def test_a_source_is_truncated_to_its_first_tokens_and_the_end_token(pipeline):
    long = "la casa azul " * 200
    rows = pipeline.preprocess(tf.constant([long, "uno", ""]), truncate=True)
    assert (rows.error.numpy() == b"").all()
    ids = pipeline.tokenizer.tokenize(long).numpy()
    expected = [*ids[: pipeline.max_source_tokens - 1].tolist(), pipeline.tokenizer.end_id]
    assert rows.inputs["source_ids"].numpy()[0].tolist() == expected
    whole = pipeline.preprocess(tf.constant(["uno"])).inputs["source_ids"].numpy()[0]
    assert rows.inputs["source_ids"].numpy()[1][: len(whole)].tolist() == whole.tolist()


def test_returned_errors_have_no_traceback():
    errors = RowErrors("return")
    with errors.catching(0):
        raise TypeError("`texts` must be strings")
    (error,) = errors.merge({})
    assert error.__traceback__ is None
