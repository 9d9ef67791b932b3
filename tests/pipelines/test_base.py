"""The definition that pipeline calls and exports share."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.models import BERT, GAT, SequenceClassifier, SpanClassifier, TokenClassifier, ViT
from keras_transformer.pipelines import (
    ImageClassification,
    NodeClassification,
    QuestionAnswering,
    TextClassification,
    TokenClassification,
)
from keras_transformer.text import ByteTokenizer

BYTES = ByteTokenizer()
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
LONG = "x" * 40


def randomised(model):
    random = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(random.normal(size=weight.shape))
    return model


def bert(head):
    return randomised(head(BERT(BYTES.vocabulary_size, **SIZES, max_length=20, dropout=0.0)))


@pytest.fixture(scope="module")
def classifier():
    return TextClassification(bert(lambda encoder: SequenceClassifier(encoder, 3)), BYTES)


PIPELINES = {
    "text": lambda: TextClassification(bert(lambda encoder: SequenceClassifier(encoder, 3)), BYTES),
    "token": lambda: TokenClassification(bert(lambda encoder: TokenClassifier(encoder, 3)), BYTES),
    "span": lambda: QuestionAnswering(bert(SpanClassifier), BYTES),
    "image": lambda: ImageClassification(randomised(ViT(8, 4, num_classes=3, **SIZES))),
    "nodes": lambda: NodeClassification(randomised(GAT(5, 3, num_heads=(2, 1), head_dim=4))),
}
RANDOM = np.random.default_rng(1)
NODES, EDGES = RANDOM.normal(size=(3, 4, 5)).astype("float32"), RANDOM.integers(0, 4, (3, 6, 2))
IMAGES = RANDOM.uniform(0, 255, (3, 8, 8, 3)).astype("float32")
# Three inputs each, of which the second is invalid.
INPUTS = {
    "text": (np.array(["ab", LONG, "c"]),),
    "token": (np.array(["ab c", LONG, "c d"]),),
    "span": (np.array(["ab", LONG, "c"]), np.array(["d e", "f", "g"])),
    "image": (np.where(np.arange(3)[:, None, None, None] == 1, 300, IMAGES).astype("float32"),),
    "nodes": (NODES, np.where(np.arange(3)[:, None, None] == 1, 9, EDGES)),
}


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", PIPELINES)
def test_an_invalid_input_gives_an_error_and_does_not_change_other_outputs(name):
    pipeline = PIPELINES[name]()
    batch = pipeline.preprocess(*map(tf.constant, INPUTS[name]))
    assert [bool(error) for error in batch.error.numpy()] == [False, True, False]
    answers = {key: values.numpy() for key, values in pipeline.serve(*map(tf.constant, INPUTS[name])).items()}
    assert answers["error"].tolist() == batch.error.numpy().tolist()
    declared = pipeline.tensors(pipeline.config)["serving_default"][1]
    found = {key: (tf.as_dtype(values.dtype).name, values.ndim - 1) for key, values in answers.items()}
    assert found == {each.name: (each.dtype, len(each.shape)) for each in declared}
    empty = {"O": b"", "i": -1, "f": 0}
    assert all(
        np.all(answers[key][1] == empty[answers[key].dtype.kind]) for key in answers.keys() - {"error"}
    )
    accepted = pipeline.outputs_of(*(values[[0, 2]] for values in INPUTS[name]))
    for output, expected in accepted.items():
        values = answers[output][[0, 2]]
        values = values[:, : expected.shape[1]] if expected.ndim > 1 else values
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(values, expected, **CLOSE)
        else:
            np.testing.assert_array_equal(values, expected)
    all_invalid = pipeline.serve(*(tf.constant(values[1:2]) for values in INPUTS[name]))
    assert all((all_invalid[key].numpy() == answers[key][1]).all() for key in ("error", *accepted))
    none = pipeline.serve(*(tf.constant(values[:0]) for values in INPUTS[name]))
    assert all(len(values) == 0 for values in none.values())
    if name != "nodes":  # a call accepts one graph
        inputs = (values.tolist() if values.dtype.kind == "U" else values for values in INPUTS[name])
        with pytest.raises(ValueError, match=r"in \w+\[1\]"):
            pipeline(*inputs)


@pytest.mark.parametrize("name", ["text", "token", "span"])
def test_text_that_is_not_utf8_is_rejected(name):
    pipeline = PIPELINES[name]()
    texts = tf.constant([b"a b", b"hola\xffque", b"\xed\xa0\x80", "\ufffd\u2603".encode(), b"\x00"])
    error = pipeline.serve(*[texts] * (1 + (name == "span")))["error"].numpy()
    assert [b"must be UTF-8" in each for each in error] == [False, True, True, False, False]


@pytest.mark.slow
@pytest.mark.backend_neutral
def test_a_setting_changed_after_a_call_takes_effect():
    model = bert(lambda encoder: SequenceClassifier(encoder, 3, problem_type="multi_label_classification"))
    classifier = TextClassification(model, BYTES, threshold=0.0)
    assert classifier("a") == [0, 1, 2]
    classifier.threshold = 1.0
    assert classifier("a") == []
    classifier.threshold = 0.0
    classifier.labels[0] = 7
    assert classifier("a") == [7, 1, 2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_weights_changed_or_replaced_after_a_call_take_effect(classifier):
    model = keras.models.clone_model(classifier.model)
    model.set_weights(classifier.model.get_weights())
    pipeline = TextClassification(model, BYTES)
    before = pipeline.scores("abc")
    model.head.kernel.assign(-model.head.kernel)
    changed = pipeline.scores("abc")
    assert np.abs(changed - before).max() > 1e-3
    model.quantize("int8")
    inputs = BYTES.encode(["abc"], add_start=True, add_end=True)
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(model(inputs)))[0]
    np.testing.assert_allclose(pipeline.scores("abc"), expected, **CLOSE)


@pytest.mark.slow
@pytest.mark.backend_neutral
def test_lists_of_questions_are_answered_in_order():
    answerer = PIPELINES["span"]()
    questions, contexts = ["a", "b", "c"], ["d e f g h", "i", "j k"]
    found = answerer(questions, contexts, batch_size=2)
    single = [answerer(*pair) for pair in zip(questions, contexts, strict=True)]
    assert [span[:3] for span in found] == [span[:3] for span in single]
    np.testing.assert_allclose(
        [span.probability for span in found], [span.probability for span in single], **CLOSE
    )
    with pytest.raises(
        ValueError, match="`question` and `context` must have the same length. Received: 3 and 2"
    ):
        answerer(questions, contexts[:2])
