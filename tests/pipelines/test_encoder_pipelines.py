import keras
import numpy as np
import pytest

from keras_transformer.models import (
    BERT,
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
    TokenClassification,
)
from keras_transformer.text import WordPieceTokenizer
from tests.random_weights import randomise

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##x", "##y", ".", "?"]
TOKENIZER = WordPieceTokenizer(PIECES)
TEXTS = ["a b c", "h", "ax byy. c?", "", "☃ a", "a a a a a b"]
LONG = "a b c d e f g h " * 4
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def tiny(make=lambda encoder: encoder, seed=0, **options):
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16, "max_length": 16}
    return randomise(make(BERT(len(PIECES), **{**sizes, **options})), seed=seed)


def row(text):
    ids = TOKENIZER.encode([text], add_start=True, add_end=True).numpy()
    return {"token_ids": ids, "segment_ids": np.zeros_like(ids)}


def softmax(logits):
    return keras.ops.convert_to_numpy(keras.ops.softmax(keras.ops.convert_to_tensor(logits)))


MAKERS = {
    "text": lambda **options: TextClassification(
        tiny(lambda e: SequenceClassifier(e, 3)), TOKENIZER, **options
    ),
    "token": lambda **options: TokenClassification(
        tiny(lambda e: TokenClassifier(e, 3)), TOKENIZER, **options
    ),
    "span": lambda **options: QuestionAnswering(tiny(SpanClassifier), TOKENIZER, **options),
    "fill": lambda **options: FillMask(tiny(MaskedLanguageModel), TOKENIZER, **options),
    "embed": lambda **options: Embedding(tiny(), TOKENIZER, **options),
}


class TestTextClassification:
    def test_outputs_equal_the_model_for_any_batch_size(self):
        classifier = MAKERS["text"](labels=["x", "y", "z"])
        expected = np.concatenate([softmax(classifier.model(row(text))) for text in TEXTS])
        for batch_size in (1, 2, 32):
            np.testing.assert_allclose(
                classifier.probabilities(TEXTS, batch_size=batch_size), expected, **CLOSE
            )
        assert classifier(TEXTS) == ["xyz"[i] for i in expected.argmax(1)]

    @pytest.mark.slow
    def test_pairs_are_two_segments(self):
        classifier = MAKERS["text"]()
        encoded = TOKENIZER.encode_pairs(["a b"], ["c."])
        inputs = {"token_ids": encoded["ids"], "segment_ids": encoded["segment_ids"]}
        np.testing.assert_allclose(
            classifier.probabilities("a b", "c."), softmax(classifier.model(inputs))[0], **CLOSE
        )
        with pytest.raises(
            ValueError, match="`text` and `text_pair` must have the same length. Received: 1 and 2"
        ):
            classifier(["a"], ["b", "c"])

    @pytest.mark.slow
    def test_long_texts_are_rejected_or_averaged_over_windows(self):
        with pytest.raises(
            ValueError, match=r"`text` must have at most 14 .*Received: 32 tokens in text\[1\]"
        ):
            MAKERS["text"]()(["a", LONG])
        classifier = MAKERS["text"](long_texts="window")
        words = LONG.split()
        windows = [" ".join(words[start : start + 14]) for start in (0, 7, 14, 18)]
        expected = classifier.probabilities(windows).mean(0)
        np.testing.assert_allclose(classifier.probabilities([LONG, "a"])[0], expected, **CLOSE)
        with pytest.raises(
            ValueError, match=r"`text_pair` must have at most 1 tokens each beside its `text`, as"
        ):
            classifier(["a b c d e f g h a b c d"], [LONG])
        with pytest.raises(ValueError, match=r"`text_pair` must have at most 0 tokens .* Received: 1 tokens"):
            classifier([LONG], ["a"])


class TestTokenClassification:
    @pytest.mark.slow
    def test_words_have_their_offsets_and_the_class_of_their_first_token(self):
        classifier = MAKERS["token"](labels=["x", "y", "z"])
        text = "  ax \n byy. c?"
        probabilities = softmax(classifier.model(row(text)))[0, 1:-1]
        pieces = TOKENIZER.pieces(text)
        tagged = classifier(text)
        assert [(each.word, text[each.start : each.end]) for each in tagged] == [
            (w, w) for w in ("ax", "byy", ".", "c", "?")
        ]
        for each, first in zip(tagged, "ab.c?", strict=True):
            own = probabilities[pieces.index(first)]
            assert each.label == "xyz"[own.argmax()]
            np.testing.assert_allclose(each.probability, own.max(), **CLOSE)
        found = classifier([text, "", "\u200b"])
        assert [[each.label for each in words] for words in found] == [
            [each.label for each in tagged],
            [],
            [],
        ]

    @pytest.mark.slow
    def test_each_token_of_a_long_text_is_classified_in_its_best_window(self):
        classifier = MAKERS["token"](long_texts="window")
        tagged = classifier(LONG)
        assert [each.word for each in tagged] == LONG.split()
        words = LONG.split()
        of_windows = [classifier(" ".join(words[start : start + 14])) for start in (0, 7, 14, 18)]
        np.testing.assert_allclose(tagged[3].probability, of_windows[0][3].probability, **CLOSE)
        np.testing.assert_allclose(tagged[13].probability, of_windows[1][6].probability, **CLOSE)
        np.testing.assert_allclose(tagged[31].probability, of_windows[3][13].probability, **CLOSE)
        with pytest.raises(ValueError, match="`text` must have at most 14 tokens"):
            MAKERS["token"]()(LONG)


class TestQuestionAnswering:
    @pytest.mark.slow
    def test_the_answer_is_the_best_span_of_whole_words(self):
        answerer = MAKERS["span"](max_answer_tokens=3)
        context = " ax\nbyy.  c?"
        answer = answerer("d e", context)
        assert context[answer.start : answer.end] == answer.text
        encoded = TOKENIZER.encode_pairs(["d e"], [context])
        inputs = {"token_ids": encoded["ids"], "segment_ids": encoded["segment_ids"]}
        starts, ends = np.asarray(answerer.model(inputs))[0][:, 4:-1]
        spans = {(i, j): starts[i] + ends[j] for i in range(8) for j in range(i, min(8, i + 3))}
        first, last = max(spans, key=spans.get)
        words = [(1, 3)] * 2 + [(4, 7)] * 3 + [(7, 8), (10, 11), (11, 12)]
        assert (answer.start, answer.end) == (words[first][0], words[last][1])
        starts, ends = np.asarray(answerer.model(inputs))[0][:, [0, *range(4, 12)]]  # with that of no answer
        probability = softmax(starts)[1 + first] * softmax(ends)[1 + last]
        np.testing.assert_allclose(answer.probability, probability, rtol=1e-3)

    @pytest.mark.slow
    def test_a_long_context_is_rejected_or_split_into_windows(self):
        with pytest.raises(ValueError, match="`context` must have at most 12 tokens"):
            MAKERS["span"]()("g", LONG)
        answerer = MAKERS["span"](long_texts="window")
        answer = answerer("g", LONG)
        assert LONG[answer.start : answer.end] == answer.text
        assert answer.text

    @pytest.mark.slow
    def test_a_context_without_words_has_no_answer(self):
        with pytest.raises(
            ValueError, match=r"`context` must contain a word. Received: none in context\[1\]"
        ):
            MAKERS["span"]()(["a", "a"], ["b", "  "])


class TestFillMask:
    @pytest.mark.slow
    def test_predictions_are_the_most_probable_pieces(self):
        pipeline = MAKERS["fill"](top=3)
        ids = np.array([[2, 5, 4, 6, 4, 3]])
        expected = softmax(pipeline.model({"token_ids": ids}))[0]
        first, second = pipeline("a [MASK] b [MASK]")
        for found, gap in ((first, 2), (second, 4)):
            best = np.argsort(-expected[gap])[:3]
            assert [each.piece for each in found] == [PIECES[i] for i in best]
            np.testing.assert_allclose([each.probability for each in found], expected[gap][best], **CLOSE)
        assert pipeline(["a [MASK] b [MASK]"]) == [[first, second]]
        other = FillMask(pipeline.model, TOKENIZER, mask="___", top=3)
        assert other("a ___ b ___") == [first, second]

    @pytest.mark.slow
    def test_texts_without_mask_or_too_long_are_rejected(self):
        with pytest.raises(
            ValueError, match=r"`text` must contain .*'\[MASK\]'. Received: none in text\[1\]"
        ):
            MAKERS["fill"]()(["[MASK]", "b"])
        with pytest.raises(ValueError, match="`text` must have at most 14 tokens"):
            MAKERS["fill"]()(LONG + "[MASK]")


class TestEmbedding:
    @pytest.mark.slow_variants
    @pytest.mark.parametrize("pooling", ["mean", "first", "pooler"])
    def test_embeddings_are_pooled_encoder_outputs(self, pooling):
        embedder = MAKERS["embed"](pooling=pooling, normalize=False)
        for text, vector in zip(TEXTS, embedder(TEXTS, batch_size=4), strict=True):
            hidden = embedder.model(row(text))
            expected = {
                "mean": hidden[0].numpy().mean(0),
                "first": hidden[0, 0],
                "pooler": embedder.model.pool(hidden)[0],
            }[pooling]
            np.testing.assert_allclose(vector, expected, **CLOSE)
        unit = MAKERS["embed"](pooling=pooling)(TEXTS)
        np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-5)

    @pytest.mark.slow
    def test_the_embedding_of_a_long_text_is_the_mean_over_its_windows(self):
        with pytest.raises(ValueError, match="`text` must have at most 14 tokens"):
            MAKERS["embed"]()([LONG])
        embedder = MAKERS["embed"](long_texts="window", normalize=False)
        words = LONG.split()
        windows = embedder([" ".join(words[start : start + 14]) for start in (0, 7, 14, 18)])
        np.testing.assert_allclose(embedder(LONG), windows.mean(0), **CLOSE)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Embedding(tiny(), WordPieceTokenizer([*PIECES, "z"])),
            "the same vocabulary_size.*17 and 18",
        ),
        (
            lambda: MAKERS["embed"](long_texts="cut"),
            "`long_texts` must be one of .*Received: long_texts='cut'",
        ),
        (lambda: MAKERS["embed"](pooling="other"), "`pooling` must be one of .*Received: pooling='other'"),
        (lambda: MAKERS["text"](labels=["a"]), "`labels` must have a name for each .*Received: 1 labels"),
        (lambda: MAKERS["fill"](top=0), r"`top` must be in \[1, 17\].*Received: top=0"),
        (lambda: MAKERS["span"](max_answer_tokens=0), "`max_answer_tokens` must be a positive integer"),
        (
            lambda: MAKERS["text"]()(["a"], batch_size=0),
            "`batch_size` must be a positive integer. Received: batch_size=0",
        ),
    ],
)
def test_invalid_arguments_are_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        make()
