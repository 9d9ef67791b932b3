import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import data, pipelines, training
from keras_transformer.models import BERT, SequenceClassifier, SpanClassifier, TokenClassifier
from keras_transformer.text import BytePairTokenizer, WordPieceTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##x", "##y", ".", "?"]
TOKENIZER = WordPieceTokenizer(PIECES)
LONG = "ax b c d e f gyx h " * 5
TEXTS = ["a b c", "h", "ax byy. c?", "", "☃ a", "a\u2003a  a a\n b"]
# The character U+200D gives no pieces.
WORDS = [["ax", "b.", "c"], ["\u200d", "hyx"], ["a"], LONG.split(), ["b c", "☃"]]
RANDOM = np.random.default_rng(0)


def bert(**options):
    keras.utils.set_random_seed(0)
    sizes = {
        "num_layers": 1,
        "num_heads": 2,
        "model_dim": 16,
        "hidden_dim": 32,
        "max_length": 16,
        "dropout": 0.0,
    }
    return BERT(len(PIECES), **{**sizes, **options})


def in_order(batches):
    """Return the inputs and labels of all rows by name, in one array each, without padding rows."""
    rows = list(batches)
    assert len(rows) == batches.cardinality().numpy()
    inputs = {name: np.concatenate([given[name] for given, _ in rows]) for name in rows[0][0]}
    kept = (inputs["token_ids"] != TOKENIZER.pad_id).any(axis=1)
    return {name: each[kept] for name, each in inputs.items()}, np.concatenate([y for _, y in rows])[kept]


def assert_pipelines_inputs(found, batch):
    """Check that rows equal the batch of a pipeline's preprocessing, up to padding."""
    assert not any(batch.error.numpy())
    assert found.keys() == batch.inputs.keys()
    for name, expected in batch.inputs.items():
        assert found[name].dtype == expected.numpy().dtype
        padding = found[name].shape[1] - expected.shape[1]
        np.testing.assert_array_equal(found[name], np.pad(expected, [[0, 0], [0, padding]]), name)


ONE_LENGTH = {"batch_size": 2, "max_length": 16, "length_buckets": [16], "shuffle": False}


def test_texts_have_the_ids_of_the_pipeline():
    classifier = pipelines.TextClassification(SequenceClassifier(bert(), 2), TOKENIZER)
    inputs, labels = in_order(data.classification(TEXTS, [0, 1, 2, 3, 4, 5], TOKENIZER, **ONE_LENGTH))
    assert_pipelines_inputs(inputs, classifier.preprocess(tf.constant(TEXTS)))
    assert labels.tolist() == [0, 1, 2, 3, 4, 5]
    inputs, labels = in_order(
        data.classification(list(zip(TEXTS, TEXTS[::-1], strict=True)), [0.5] * 6, TOKENIZER, **ONE_LENGTH)
    )
    assert_pipelines_inputs(inputs, classifier.preprocess(tf.constant(TEXTS), tf.constant(TEXTS[::-1])))
    assert labels.shape == (6, 1)


def test_words_have_the_ids_and_the_labels_of_the_pipeline():
    tagger = pipelines.TokenClassification(TokenClassifier(bert(), 9), TOKENIZER, long_texts="window")
    tags = [RANDOM.integers(0, 9, len(words)).tolist() for words in WORDS]
    inputs, labels = in_order(data.tagging(WORDS, tags, TOKENIZER, **ONE_LENGTH))
    batch = tagger.preprocess(tf.constant([" ".join(words) for words in WORDS]))
    assert_pipelines_inputs(inputs, batch)
    # Logits that predict the labels give the tags of all words with tokens.
    logits = np.where(labels[..., None] == np.arange(9), 9.0, 0.0)[:, : batch.inputs["token_ids"].shape[1]]
    found = tagger.postprocess({"logits": tf.constant(logits, tf.float32)}, batch)
    rows = zip(found["starts"].numpy(), found["labels"].numpy(), strict=True)
    answers = [dict(zip(*row, strict=True)) for row in rows]
    for words, of_words, answer in zip(WORDS, tags, answers, strict=True):
        # Words are labelled at their first piece; the pipeline splits "b." and "b c".
        places = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
        expected = {place: tag for place, tag in zip(places, of_words, strict=True) if place in answer}
        assert len(expected) == len(words) - (words is WORDS[1])  # a word without tokens
        assert expected.items() <= answer.items()
    assert (labels >= 0).sum() == sum(map(len, WORDS)) - 1  # each word with tokens is labelled once


QUESTIONS = ["a?", "b c", "h", "", "h"]
CONTEXTS = ["ax b.  c d", "h", LONG + "e☃", " a\u2003b? ", LONG]
ANSWERS = [("b", 3), ("h", 0), ("gyx h ax", 70), ("b?", 3), ("e f", 49)]


def test_questions_have_the_ids_and_the_labels_of_the_pipeline():
    answerer = pipelines.QuestionAnswering(SpanClassifier(bert()), TOKENIZER, long_texts="window")
    answers = [(text, CONTEXTS[i].index(text, max(0, start - 9))) for i, (text, start) in enumerate(ANSWERS)]
    inputs, labels = in_order(data.questions(QUESTIONS, CONTEXTS, answers, TOKENIZER, **ONE_LENGTH))
    batch = answerer.preprocess(tf.constant(QUESTIONS), tf.constant(CONTEXTS))
    assert_pipelines_inputs(inputs, batch)
    # Logits that predict the labels give the answers; windows without the answer predict the first position.
    places = np.arange(batch.inputs["token_ids"].shape[1])
    logits = {
        f"{name}_logits": tf.constant(np.where(labels[:, i, None] == places, 50.0, 0.0), tf.float32)
        for i, name in enumerate(("start", "end"))
    }
    found = answerer.postprocess(logits, batch)
    assert [answer.decode() for answer in found["answer"].numpy()] == ["b", "h", "gyx h ax", "b?", "e f"]
    starts = [start for _, start in answers]
    assert found["start"].numpy().tolist() == starts
    assert (labels[:, 0] <= labels[:, 1]).all()
    answerer.doc_stride = 3
    options = {**ONE_LENGTH, "doc_stride": 3}
    overlapping, _ = in_order(data.questions(QUESTIONS, CONTEXTS, answers, TOKENIZER, **options))
    batch = answerer.preprocess(tf.constant(QUESTIONS), tf.constant(CONTEXTS))
    assert_pipelines_inputs(overlapping, batch)
    without, nothing = in_order(data.questions(QUESTIONS, CONTEXTS, [None] * 5, TOKENIZER, **ONE_LENGTH))
    np.testing.assert_array_equal(without["token_ids"], inputs["token_ids"])
    assert not nothing.any()


def test_pairs_have_all_separators_and_one_segment_with_the_tokenizer_of_roberta():
    roles = {"start": "<s>", "pad": "<pad>", "end": "</s>", "unknown": "<unk>"}
    trained = BytePairTokenizer.train(TEXTS, 270, special_tokens=roles)
    tokenizer = trained.with_arguments(pair_separators=2)
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "max_length": 24}
    encoder = BERT(tokenizer.vocabulary_size, **sizes, num_segments=1, pad_id=tokenizer.pad_id)
    pairs, options = (
        [("a b", "c"), ("h h", "a b c")],
        {**ONE_LENGTH, "length_buckets": [24], "max_length": 24},
    )
    classifier = pipelines.TextClassification(SequenceClassifier(encoder, 2), tokenizer)
    answerer = pipelines.QuestionAnswering(SpanClassifier(encoder), tokenizer)
    inputs, _ = in_order(data.classification(pairs, [0, 1], tokenizer, **options))
    answers = [("c", 0), ("b", 2)]
    of_questions, labels = in_order(data.questions(*zip(*pairs, strict=True), answers, tokenizer, **options))
    for pipeline, found in ((classifier, inputs), (answerer, of_questions)):
        expected = pipeline.preprocess(*map(tf.constant, zip(*pairs, strict=True))).inputs["token_ids"]
        length = expected.shape[1]
        np.testing.assert_array_equal(found["token_ids"][:, :length], expected)
        assert (found["token_ids"][:, length:] == tokenizer.pad_id).all()
        assert not found["segment_ids"].any()
    ids = [tokenizer.tokenize(text).numpy()[-1] for text in ("c", " b")]
    assert of_questions["token_ids"][[0, 1], labels[:, 0]].tolist() == ids
    # The longer text is truncated first, beside both separators.
    long = data.classification([("a", "b " * 30)], [0], tokenizer, **{**options, "length_buckets": [12]})
    (ids,) = in_order(long)[0]["token_ids"]
    assert len(ids) == 12
    assert ids[[0, 2, 3, 11]].tolist() == [tokenizer.start_id, *[tokenizer.end_id] * 3]


@pytest.mark.parametrize("task", ["classification", "tagging", "questions"])
def test_batches_have_few_shapes_and_contain_every_row_once_an_epoch(task):
    texts = [" ".join(RANDOM.choice(list("abcdefgh"), RANDOM.integers(1, 40))) for _ in range(99)]
    texts = list(dict.fromkeys(texts))
    columns = {
        "classification": (texts, list(range(len(texts)))),
        "tagging": (
            [text.split() for text in texts],
            [[i] * len(text.split()) for i, text in enumerate(texts)],
        ),
        "questions": (["a"] * len(texts), texts, [(text[0], 0) for text in texts]),
    }[task]
    batches = getattr(data, task)(*columns, TOKENIZER, 8, max_length=45, length_buckets=3)
    epochs = [in_each_batch(batches) for _ in range(2)]
    assert len(batches) == len(epochs[0])
    assert len({ids.shape[1] for ids, _ in epochs[0]}) <= 3
    assert len({ids.shape for ids, _ in epochs[0]}) <= (3 if task == "tagging" else 6)
    rows = [
        sorted(str(ids[ids != 0]) for batch, _ in epoch for ids in batch if ids.any()) for epoch in epochs
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == len(texts)
    assert [ids.tolist() for ids, _ in epochs[0]] != [ids.tolist() for ids, _ in epochs[1]]
    if task == "classification":
        for ids, labels in epochs[0]:
            pieces = TOKENIZER.detokenize(ids).numpy()
            assert [texts[label] for label in labels] == [piece.decode() for piece in pieces]


def in_each_batch(batches):
    return [(inputs["token_ids"].numpy(), labels.numpy()) for inputs, labels in batches]


def test_long_texts_are_truncated_and_counted(caplog):
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        inputs, _ = in_order(
            data.classification(
                ["a b c d", "e"], [0, 1], TOKENIZER, max_length=5, length_buckets=1, shuffle=False
            )
        )
        pairs = [("a", "b c d e f"), ("a b c d e f", "a"), ("a b c d e", "d e f g"), ("a", "b")]
        of_pairs, _ = in_order(
            data.classification(pairs, [0, 1, 0, 1], TOKENIZER, max_length=8, length_buckets=1, shuffle=False)
        )
    a, b, c, d, e, f = range(5, 11)
    assert inputs["token_ids"].tolist() == [[2, a, b, c, 3], [2, e, 3, 0, 0]]
    assert of_pairs["token_ids"].tolist() == [
        [2, a, 3, b, c, d, e, 3],
        [2, a, b, c, d, 3, a, 3],
        [2, a, b, 3, d, e, f, 3],
        [2, a, 3, b, 3, 0, 0, 0],
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "classification truncates 1 of 2 texts to 5 ids, including special ones",
        "classification truncates 3 of 4 texts to 8 ids, including special ones",
    ]


def test_lengths_are_multiples_of_a_number():
    texts, labels = ["a b c", "a b c d e f g"], [0, 1]
    for multiple, expected in ((1, [5, 9]), (2, [6, 10]), (8, [8, 16])):
        batches = data.classification(
            texts, labels, TOKENIZER, pad_to_multiple_of=multiple, length_buckets=2, shuffle=False
        )
        assert [inputs["token_ids"].shape[1] for inputs, _ in batches] == expected
    with pytest.raises(ValueError, match="`pad_to_multiple_of` must be a positive integer"):
        data.classification(texts, labels, TOKENIZER, pad_to_multiple_of=0)


def test_unreachable_answers_and_long_questions_are_counted(caplog):
    questions, contexts = ["a", "a b c d e", "a"], ["a b c d e f", "a", "b"]
    answers = [("a b c d e f", 0), None, ("b", 0)]
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        inputs, labels = in_order(
            data.questions(
                questions, contexts, answers, TOKENIZER, max_length=8, length_buckets=1, shuffle=False
            )
        )
    assert inputs["token_ids"].shape == (3, 8)
    assert labels.tolist() == [[0, 0], [0, 0], [3, 3]]
    assert [record.getMessage() for record in caplog.records] == [
        "questions drops 1 of 3 questions, which leave no space for a context in 8 ids",
        "questions has no window that contains the answer for 1 of 3 questions, in rows of 8 ids",
    ]
    with pytest.raises(ValueError, match="`max_length` .* must leave space for a context.*a limit of 8"):
        data.questions(["a b c d e"], ["a"], [None], TOKENIZER, max_length=8)


SENTENCES = [RANDOM.choice(list("abcdefgh"), 6).tolist() for _ in range(64)]
CROSSENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def learn_classes():
    texts = list(map(" ".join, SENTENCES))
    labels = ["h" in text for text in texts]
    model = SequenceClassifier(bert(), 2, pooling="mean")
    fit(model, data.classification(texts, labels, TOKENIZER, 16, max_length=16), CROSSENTROPY)
    return pipelines.TextClassification(model, TOKENIZER)(texts), labels


def learn_tags():
    tags = [[int(word > "d") for word in words] for words in SENTENCES]
    model = TokenClassifier(bert(), 2)
    loss = training.LabelSmoothedCrossentropy(0.0, pad_id=None)
    fit(model, data.tagging(SENTENCES, tags, TOKENIZER, 16, max_length=16), loss)
    found = pipelines.TokenClassification(model, TOKENIZER)(map(" ".join, SENTENCES))
    return [[word.label for word in words] for words in found], tags


def learn_answers():
    contexts = [f"{''.join(w + ' ' for w in words if w != 'h')}h" for words in SENTENCES]
    contexts = [" ".join(RANDOM.permutation(context.split())) for context in contexts]
    answers = [("h", context.index("h")) for context in contexts]
    asked = ["a b"] * len(contexts)
    model = SpanClassifier(bert())
    fit(model, data.questions(asked, contexts, answers, TOKENIZER, 16, max_length=16), CROSSENTROPY)
    found = pipelines.QuestionAnswering(model, TOKENIZER)(asked, contexts)
    return [(answer.text, answer.start) for answer in found], answers


def fit(model, batches, loss):
    model.compile(keras.optimizers.Adam(0.02), loss)
    model.fit(batches, epochs=12, shuffle=False, verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize("learn", [learn_tags, learn_classes, learn_answers])
def test_fit_learns_a_rule_that_the_pipeline_applies(learn):
    found, expected = learn()
    correct = np.mean([a == b for a, b in zip(found, expected, strict=True)])
    assert correct > 0.95
