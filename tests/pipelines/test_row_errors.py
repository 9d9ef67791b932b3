"""`errors="return"`: an invalid row fails only its own row. `truncate=True`: long texts are truncated."""

import functools
import itertools

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
from keras_transformer.pipelines.ragged_rows import first_lengths
from keras_transformer.text import ByteTokenizer, WordPieceTokenizer
from keras_transformer_serving.pipelines.errors import RowErrors
from keras_transformer_serving.pipelines.texts import TRUNCATION_SIDES, first_length
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


def with_side(pipeline, side, **settings):
    """Return a pipeline which truncates texts on a side."""
    return type(pipeline)(pipeline.model, pipeline.tokenizer, truncation_side=side, **settings)


def kept(text, count, side):
    """Return the first or last words of a text."""
    words = text.split()
    return " ".join(words[:count] if side == "right" else words[max(len(words) - count, 0) :])


@pytest.mark.slow_variants
@pytest.mark.parametrize("side", TRUNCATION_SIDES)
@pytest.mark.parametrize("name", ["text", "token", "fill", "embedding"])
def test_a_text_is_truncated_to_its_first_or_last_tokens(name, side):
    pipeline = with_side(MAKERS[name](), side)
    long = LONG if name == "fill" else LETTERS
    long = long if side == "right" else " ".join(long.split()[::-1])
    cut = kept(long, 10, side)
    rows = [long, "a [MASK]", f"{long} {LETTERS}" if side == "right" else f"{LETTERS} {long}", cut]
    expected = pipeline([cut, "a [MASK]", cut, cut])
    if name == "token":
        places = [(word.word, word.start) for word in pipeline(long, truncate=True)]
        begin = 0 if side == "right" else len(long) - len(cut)
        assert places == [(word.word, word.start + begin) for word in expected[0]]
        found = pipeline(rows, truncate=True)
        assert_same(
            [[word[1:3] for word in row] for row in found], [[word[1:3] for word in row] for row in expected]
        )
        return
    assert_same(pipeline(rows, truncate=True), expected)
    assert_same(pipeline(long, truncate=True), expected[0])
    if name == "fill":
        far = f"{LETTERS} [MASK]" if side == "right" else f"[MASK] {LETTERS}"
        with pytest.raises(ValueError, match=r"'\[MASK\]' in the 10 tokens that truncate=True keeps"):
            pipeline(far, truncate=True)
        assert len(pipeline(f"{long} {far}" if side == "right" else f"{far} {long}", truncate=True)) == 1
    else:
        assert_same(with_side(pipeline, side, long_texts="window")(rows, truncate=True), expected)


@pytest.mark.parametrize("side", TRUNCATION_SIDES)
def test_truncated_texts_and_pairs_have_the_ids_of_the_words_that_are_kept(side):
    classifier = with_side(MAKERS["text"](), side, max_length=9)
    served = classifier.served()
    texts = [LETTERS, "a b", "", "h g f e d c b a"]
    for text, other in itertools.product(texts, [None, *texts]):
        columns = [text] if other is None else [text, other]
        counts = [len(column.split()) for column in columns]
        room = 9 - 1 - len(columns)
        first = room if other is None else first_length(*counts, room)
        cut = [kept(columns[0], first, side)]
        cut += [kept(column, room - len(cut[0].split()), side) for column in columns[1:]]
        expected = classifier.preprocess(*[tf.constant([column]) for column in cut])
        found = classifier.preprocess(*[tf.constant([column]) for column in columns], truncate=True)
        assert found.error.numpy().tolist() == [b""]
        for name, values in expected.inputs.items():
            np.testing.assert_array_equal(found.inputs[name], values, name)
        windows, _ = served.preprocess(*columns, truncate=True)
        assert windows.ids == served.preprocess(*cut)[0].ids
        assert windows.before == served.preprocess(*cut)[0].before


def test_a_limit_above_the_positions_and_an_unknown_side_are_errors():
    model = small(lambda e: SequenceClassifier(e, 3))
    with pytest.raises(ValueError, match=r"`max_length` must be an integer in \[2, 12\], the model's limit"):
        TextClassification(model, TOKENIZER, max_length=13)
    with pytest.raises(
        ValueError, match="`truncation_side` must be one of .*Received: truncation_side='both'"
    ):
        TextClassification(model, TOKENIZER, truncation_side="both")


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
    # A word whose first token is cut off is omitted.
    last = with_side(classifier, "left")("abcb c a a", truncate=True)
    assert [(each.word, each.start, each.end) for each in last] == [("c", 5, 6), ("a", 7, 8), ("a", 9, 10)]
    assert_same([each[1:3] for each in last], [each[1:3] for each in classifier("c a a")])


@pytest.mark.slow
@pytest.mark.parametrize("side", TRUNCATION_SIDES)
def test_questions_are_kept_and_contexts_truncated(side):
    answer = with_side(MAKERS["span"](), side)
    cut = kept(LETTERS, 7, side)
    begin = LETTERS.index(cut)
    found, expected = answer("a b", LETTERS, truncate=True), answer("a b", cut)
    assert_same((found.text, found.probability), (expected.text, expected.probability))
    assert (found.start, found.end) == (expected.start + begin, expected.end + begin)
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


@pytest.mark.parametrize("side", TRUNCATION_SIDES)
def test_a_source_is_truncated_to_its_first_or_last_tokens_and_the_end_token(pipeline, side):
    pipeline = with_side(pipeline, side, max_source_tokens=pipeline.max_source_tokens)
    long = "la casa azul " * 200
    rows = pipeline.preprocess(tf.constant([long, "uno", ""]), truncate=True)
    assert (rows.error.numpy() == b"").all()
    ids, count = pipeline.tokenizer.tokenize(long).numpy().tolist(), pipeline.max_source_tokens - 1
    expected = [*(ids[:count] if side == "right" else ids[-count:]), pipeline.tokenizer.end_id]
    assert pipeline.encode([long], truncate=True).numpy()[0].tolist() == expected
    assert rows.inputs["source_ids"].numpy()[0].tolist() == expected
    whole = pipeline.preprocess(tf.constant(["uno"])).inputs["source_ids"].numpy()[0]
    assert rows.inputs["source_ids"].numpy()[1][: len(whole)].tolist() == whole.tolist()


def test_returned_errors_have_no_traceback():
    errors = RowErrors("return")
    with errors.catching(0):
        raise TypeError("`texts` must be strings")
    (error,) = errors.merge({})
    assert error.__traceback__ is None
