import inspect

import keras
import numpy as np
import pytest

from keras_transformer import models
from keras_transformer.layers import TokenEmbedding
from keras_transformer.models.input_checks import InputCheck
from keras_transformer.models.input_specs import InputSpec
from keras_transformer.models.model import Model
from keras_transformer.training import LabelSmoothedCrossentropy

pytestmark = pytest.mark.backend_neutral

ROWS, B, T, V = 12, 4, 6, 20
RANDOM = np.random.default_rng(0)
IDS, LABELS = RANDOM.integers(1, V, (2, ROWS, T)).astype("int32")


def with_value(array, value, row=9, column=2):
    changed = array.astype("float32" if isinstance(value, float) else array.dtype)
    changed[row, column] = value
    return changed


@pytest.mark.parametrize(
    "name", ["fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"]
)
def test_signatures_have_the_arguments_of_keras(name):
    found, expected = (inspect.signature(getattr(kind, name)).parameters for kind in (Model, keras.Model))
    assert found["check_inputs"].default is True
    assert {key: value for key, value in found.items() if key != "check_inputs"} == expected


class Bigrams(Model):
    """A minimal language model: logits of the next token from the last one."""

    def __init__(self):
        super().__init__()
        self.embedding = TokenEmbedding(V, 4, pad_id=None)
        self.embedding.build((None, None))
        self.built = True

    def input_specs(self):
        return {"token_ids": InputSpec(V), "padding_mask": InputSpec(2, required=False)}

    def call(self, inputs):
        return self.embedding.logits(self.embedding(self.named_inputs(inputs)["token_ids"]))

    def compute_output_shape(self, input_shape):
        shape = input_shape["token_ids"] if isinstance(input_shape, dict) else input_shape
        return (*shape, V)


def compiled(loss, jit_compile=False):
    model = Bigrams()
    model.compile("sgd", loss, jit_compile=jit_compile)
    return model


@pytest.fixture(scope="module")
def language_model():
    # XLA does not raise errors for ids and labels out of range.
    return compiled(LabelSmoothedCrossentropy(), jit_compile=True)


class Batches(keras.utils.PyDataset):
    def __init__(self, *arrays, **kwargs):
        super().__init__(**kwargs)
        self.arrays, self.epochs = arrays, 0

    def __len__(self):
        return ROWS // B

    def __getitem__(self, index):
        return tuple(array[index * B : (index + 1) * B] for array in self.arrays)

    def on_epoch_end(self):
        self.epochs += 1


def dataset(*arrays):
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices(arrays).batch(B, drop_remainder=True)


def generator(*arrays):
    return (tuple(array[i : i + B] for array in arrays) for i in range(0, ROWS, B))


# Arguments of `fit`, and the row of the ninth example in its batch.
SOURCES = {
    "arrays": (lambda x, y: (x, y), 9),
    "dictionary": (lambda x, y: ({"token_ids": x}, y), 9),
    "tf.data": (lambda x, y: (dataset(x, y),), 1),
    "PyDataset": (lambda x, y: (Batches(x, y),), 1),
    "generator": (lambda x, y: (generator(x, y),), 1),
}
WRONG = {
    "id": (
        with_value(IDS, 99),
        LABELS,
        r"`token_ids` must be in \[0, 20\). Received: 99 at row {row}, column 2",
    ),
    "label": (
        IDS,
        with_value(LABELS, -100),
        r"`y` must be integers in \[0, 20\).*Received: -100 at row {row}, column 2",
    ),
}


def fit(model, *data, **options):
    return model.fit(*data, **{"batch_size": B, "verbose": 0, "shuffle": False, **options})


@pytest.mark.slow_variants
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("source", SOURCES)
def test_fit_rejects_ids_and_labels_out_of_range_from_any_source(language_model, source, wrong):
    data, row = SOURCES[source]
    x, y, message = WRONG[wrong]
    with pytest.raises(ValueError, match=message.format(row=row)):
        fit(language_model, *data(x, y))


@pytest.mark.slow_variants
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("source", SOURCES)
def test_fit_reads_every_batch_once(language_model, source):
    before = int(language_model.optimizer.iterations.value)
    fit(language_model, *SOURCES[source][0](IDS, LABELS))
    assert int(language_model.optimizer.iterations.value) - before == ROWS // B


@pytest.mark.slow
def test_input_checks_keep_the_epochs_of_a_py_dataset(language_model):
    checked, unchecked = Batches(IDS, LABELS), Batches(IDS, LABELS)
    fit(language_model, checked, epochs=2)
    fit(language_model, unchecked, epochs=2, check_inputs=False)
    assert checked.epochs == unchecked.epochs > 0


def test_check_inputs_false_skips_validation(language_model):
    x, y, _ = WRONG["label"]
    fit(language_model, x, y, check_inputs=False)
    language_model.evaluate(x, y, verbose=0, check_inputs=False)


@pytest.mark.parametrize("validation", ["arrays", "tf.data"])
def test_validation_data_is_checked_before_training(language_model, validation):
    x, y, message = WRONG["label"]
    data, row = SOURCES[validation]
    given = data(x, y)
    with pytest.raises(ValueError, match=message.format(row=row)):
        fit(language_model, IDS, LABELS, validation_data=given if len(given) == 2 else given[0])
    fit(language_model, IDS, LABELS, validation_data=(IDS, LABELS))


def test_evaluate_and_predict_validate_inputs(language_model):
    x, _, message = WRONG["id"]
    for run in (
        lambda: language_model.evaluate(x, LABELS, verbose=0),
        lambda: language_model.predict(x, verbose=0),
    ):
        with pytest.raises(ValueError, match=message.format(row=9)):
            run()


SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
OUT_OF_CLASSES = r"`y` must be integers in \[0, 3\).*Received: {} at row 5"
CLASSES = RANDOM.integers(0, 3, ROWS)


def labels_with(value):
    changed = CLASSES.astype("float32" if isinstance(value, float) else CLASSES.dtype)
    changed[5] = value
    return changed


INVALID_LABELS = {
    "too large": (SPARSE, labels_with(3), OUT_OF_CLASSES.format(3)),
    "-1": (SPARSE, labels_with(-1), OUT_OF_CLASSES.format(-1)),
    "half": (SPARSE, labels_with(0.5), OUT_OF_CLASSES.format(0.5)),
    "NaN": (SPARSE, labels_with(float("nan")), "`y` must be finite. Received: nan at row 5"),
    "NaN of a regression": (
        "mse",
        np.full((ROWS, 3), np.nan, "float32"),
        "`y` must be finite. Received: nan at row 0, column 0",
    ),
    "one-hot for sparse": (SPARSE, np.eye(3)[CLASSES], r"`y` must be labels of shape \(12,\)"),
    "classes for dense": ("mse", CLASSES, r"`y` must be labels of shape \(12, 3\)"),
    "other ignored class": (
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1),
        labels_with(-100),
        r"in \[0, 3\), or ignore_class=-1. Received: -100 at row 5",
    ),
}


@pytest.fixture(scope="module")
def sequence_classifier():
    return models.SequenceClassifier(models.BERT(V, 1, 2, 8, max_length=T), 3)


@pytest.mark.parametrize("case", INVALID_LABELS)
def test_labels_that_do_not_match_the_loss_are_rejected(sequence_classifier, case):
    loss, labels, message = INVALID_LABELS[case]
    sequence_classifier.compile("sgd", loss, jit_compile=False)
    with pytest.raises(ValueError, match=message):
        fit(sequence_classifier, IDS, labels)


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        (SPARSE, CLASSES[:, None]),
        (SPARSE, CLASSES.astype("float32")),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1), labels_with(-1)),
        (lambda y_true, y_pred: keras.ops.mean(y_pred), labels_with(7)),
    ],
    ids=["(B, 1)", "float32", "ignore_class", "a function"],
)
def test_labels_that_match_the_loss_are_accepted(sequence_classifier, loss, labels):
    sequence_classifier.compile("sgd", loss)
    InputCheck(sequence_classifier).batch(IDS, labels)


def test_errors_name_the_output_of_invalid_labels():
    model = models.GPTClassifier(models.GPT(V, 1, 2, 8, max_length=T), 2)
    model.compile("sgd", {"classes": SPARSE, "tokens": LabelSmoothedCrossentropy()}, jit_compile=False)
    with pytest.raises(
        ValueError, match=r"`y\['classes'\]` must be integers in \[0, 2\).*Received: 2 at row 0"
    ):
        fit(model, IDS, {"classes": np.full(ROWS, 2), "tokens": LABELS})


def test_ignored_labels_train_as_if_absent():
    losses = []
    for labels, loss in (
        (with_value(LABELS, 0), LabelSmoothedCrossentropy()),
        (with_value(LABELS, -100), LabelSmoothedCrossentropy(ignore_class=-100)),
    ):
        keras.utils.set_random_seed(0)
        model = compiled(loss)
        losses.append(fit(model, IDS, labels).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-6)


CALLS = {
    "fractions": (
        lambda m: m(IDS + 0.5),
        r"`token_ids` must be integers. Received: \d+.5 at row 0, column 0",
    ),
    "NaN": (
        lambda m: m(with_value(IDS.astype("float32"), np.nan)),
        "`token_ids` must be integers. Received: nan at row 9, column 2",
    ),
    "float16": (
        lambda m: models.GPT(3000, 1, 1, 4, max_length=8)(IDS.astype("float16")),
        "`token_ids` must be integers: float16 rounds integers above 2048",
    ),
    "more than 32 bits": (
        lambda m: m(with_value(IDS.astype("uint64"), 2**32 + 1)),
        "`token_ids` must be integers of 32 bits. Received: 4294967297 at row 9, column 2",
    ),
    "one row": (lambda m: m(IDS[0]), r"`token_ids` must be integers of shape \(B, T\).*shape=\(6,\)"),
    "negative id": (
        lambda m: m(with_value(IDS, -5)),
        r"`token_ids` must be in \[0, 20\). Received: -5 at row 9, column 2",
    ),
    "id out of vocabulary": (
        lambda m: m(with_value(IDS, 20)),
        r"`token_ids` must be in \[0, 20\). Received: 20 at",
    ),
    "unknown input": (
        lambda m: m({"token_ids": IDS, "padding_masks": IDS > 0}),
        r"`inputs` must have \['token_ids'\] and may have \['padding_mask'\].*'padding_masks'",
    ),
    "missing input": (lambda m: m({"ids": IDS}), r"`inputs` must have \['token_ids'\].*keys \['ids'\]"),
    "mask of another length": (
        lambda m: m({"token_ids": IDS, "padding_mask": IDS[:, :3] > 0}),
        r"`padding_mask` must be booleans of shape \(B, T\), B = 12, T = 6. Received: .*\(12, 3\)",
    ),
    "float mask": (
        lambda m: m({"token_ids": IDS, "padding_mask": IDS.astype("float32")}),
        r"`padding_mask` must be in \[0, 2\)",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls_reject_invalid_inputs(language_model, case):
    call, message = CALLS[case]
    with pytest.raises(ValueError, match=message):
        call(language_model)


def test_encoder_decoders_reject_invalid_inputs():
    model = models.Transformer(V, 1, 2, 8, 8)
    with pytest.raises(TypeError, match=r"`inputs` must be a dictionary with \['source_ids', 'target_ids'\]"):
        model(IDS)
    with pytest.raises(ValueError, match=r"`target_ids` must be integers of shape \(B, T\), B = 12"):
        model({"source_ids": IDS, "target_ids": IDS[:2]})


def test_rank_is_checked_while_tracing(language_model, modes):
    for wrap in modes.values():
        with pytest.raises(ValueError, match="`token_ids` must be integers of shape"):
            wrap(language_model)(keras.ops.convert_to_tensor(IDS[0]))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint8", "uint16", "int64", "uint64"])
def test_ids_of_every_dtype_are_equal(language_model, dtype):
    expected = language_model(IDS)
    np.testing.assert_array_equal(language_model(IDS.astype(dtype)), expected)
    np.testing.assert_allclose(
        language_model.predict(IDS.astype(dtype), verbose=0), expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "dtype", ["uint16", "int8", "uint8", "int16", "uint32", "int64", "uint64", "float64"]
)
def test_models_fit_ids_and_labels_of_every_dtype(dtype):
    """TensorFlow has no Gather of unsigned indices."""
    weights = []
    for type_ in ("int32", dtype):
        keras.utils.set_random_seed(0)
        model = models.GPT(V, 1, 1, 4, max_length=8, dropout=0.0)
        model.compile("sgd", SPARSE, jit_compile=False)
        model.fit(IDS.astype(type_), LABELS.astype(type_), batch_size=4, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for array, expected in zip(*weights, strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-6, atol=1e-7)


STRINGS = np.array(["a", "b"] * (ROWS // 2))


@pytest.mark.parametrize("run", ["fit", "call", "dictionary"])
def test_ragged_ids_are_rejected_by_name(language_model, run):
    tf = pytest.importorskip("tensorflow")
    ragged = tf.ragged.constant([[1], [2, 3]])
    calls = {
        "fit": lambda: language_model.fit(ragged, LABELS[:2]),
        "call": lambda: language_model(ragged),
        "dictionary": lambda: language_model({"token_ids": ragged}),
    }
    with pytest.raises(TypeError, match=r"must be a dense tensor, such as ids.to_tensor.*a RaggedTensor"):
        calls[run]()


@pytest.mark.parametrize("kind", ["str", "object", "list"])
def test_strings_are_rejected_by_name(sequence_classifier, language_model, kind):
    given = [*STRINGS] if kind == "list" else STRINGS.astype(kind)
    sequence_classifier.compile("sgd", SPARSE, jit_compile=False)
    with pytest.raises(ValueError, match=r"`y(\[0\])?` must be numbers.*classes as indices"):
        fit(sequence_classifier, IDS, given)
    if kind != "list":
        with pytest.raises(ValueError, match="`x` must be numbers: token ids"):
            language_model.predict(given, verbose=0)


def test_strings_of_a_dataset_are_rejected_by_name(sequence_classifier):
    sequence_classifier.compile("sgd", SPARSE, jit_compile=False)
    with pytest.raises(ValueError, match="`y` must be numbers"):
        fit(sequence_classifier, dataset(IDS, STRINGS), batch_size=None)


def test_image_validation_uses_only_shapes():
    model = models.ViT(4, 2, 3, 1, 2, 8, 8, num_channels=1)
    model.compile("sgd", SPARSE)
    images, check = RANDOM.random((ROWS, 4, 4, 1)).astype("float32"), InputCheck(model)
    batches = list(check.data(dataset(images, CLASSES)))
    np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), images)
    np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), CLASSES)
    with pytest.raises(ValueError, match=r"in \[0, 3\).*Received: 3 at row 1"), check.raised():
        list(check.data(dataset(images, labels_with(3))))


def test_ragged_datasets_are_not_validated(language_model):
    tf = pytest.importorskip("tensorflow")
    ragged = tf.data.Dataset.from_tensors((tf.ragged.constant([[1], [2, 3]]), tf.constant([0, 1])))
    assert InputCheck(language_model).data(ragged) is ragged


@pytest.mark.parametrize("name", ["kl_divergence", "KLDivergence", "Dice", "tversky"])
def test_losses_without_from_logits_are_rejected(sequence_classifier, name):
    loss = getattr(keras.losses, name) if name[0].isupper() else name
    sequence_classifier.compile("sgd", loss() if inspect.isclass(loss) else loss)
    for run in (sequence_classifier.fit, sequence_classifier.evaluate, sequence_classifier.test_on_batch):
        with pytest.raises(
            ValueError, match=r"`loss` must be of logits: the outputs of SequenceClassifier.*logits=True"
        ):
            run(IDS, np.eye(3)[CLASSES])


@pytest.mark.parametrize("name", ["sparse_categorical_crossentropy", "SparseCategoricalCrossentropy"])
def test_losses_of_probabilities_are_rejected(name):
    loss = getattr(keras.losses, name) if name[0].isupper() else name
    model = models.GPT(V, 1, 1, 4, max_length=8)
    model.compile("sgd", loss() if inspect.isclass(loss) else loss)
    with pytest.raises(
        ValueError, match=r"`loss` must be of logits.*SparseCategoricalCrossentropy\(from_logits=True"
    ):
        model.fit(IDS, LABELS, verbose=0)
    classifier = models.GPTClassifier(models.GPT(V, 1, 1, 4, max_length=8), 3)
    classifier.compile("sgd", {"classes": "categorical_crossentropy", "tokens": LabelSmoothedCrossentropy()})
    with pytest.raises(ValueError, match=r"CategoricalCrossentropy\(from_logits=True.*loss\['classes'\]"):
        classifier.fit(IDS, {"classes": np.eye(3)[CLASSES], "tokens": LABELS}, verbose=0)


def test_class_weights_need_a_class_for_each_row():
    model = models.GPT(V, 1, 1, 4, max_length=8)
    model.compile("sgd", LabelSmoothedCrossentropy())
    with pytest.raises(ValueError, match=r"`class_weight` must be None .*Use `sample_weight`"):
        model.fit(IDS, LABELS, class_weight={1: 2.0}, verbose=0)
    encoder = models.BERT(V, 1, 1, 4, max_length=8, dropout=0.0)
    classifier = models.SequenceClassifier(encoder, 3, problem_type="multi_label_classification")
    classifier.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="multi_label_classification"):
        classifier.fit(IDS, np.eye(3)[CLASSES], class_weight={1: 2.0}, verbose=0)
    losses = []
    for options in ({"class_weight": {1: 2.0}}, {"sample_weight": np.where(CLASSES == 1, 2.0, 1.0)}):
        classifier = models.SequenceClassifier(encoder, 3, dropout=0.0)
        classifier.compile(keras.optimizers.SGD(0.0), SPARSE)
        classifier.head.kernel.assign(np.ones_like(classifier.head.kernel) * [[1.0, 2.0, 3.0]])
        losses.append(classifier.fit(IDS, CLASSES, verbose=0, **options).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_fit_alternates_weights_of_rows_and_tokens():
    """Keras requires weights of one rank in all calls of a compiled model."""
    weights = np.linspace(0.5, 2, ROWS).astype("float32")
    of_tokens = np.broadcast_to(weights[:, None], LABELS.shape)
    model = models.GPT(V, 1, 1, 4, max_length=8, dropout=0.0)
    model.compile(keras.optimizers.SGD(0.0), LabelSmoothedCrossentropy(0.0, pad_id=None), jit_compile=False)
    losses = [
        model.fit(IDS, LABELS, sample_weight=given, batch_size=ROWS, verbose=0).history["loss"]
        for given in (weights, of_tokens, weights, of_tokens)
    ]
    np.testing.assert_allclose(losses, losses[:1] * 4, rtol=1e-6)


def test_weights_of_rows_apply_to_all_their_tokens():
    """Keras multiplies the losses of tokens (B, T) by weights (B,) along T, in silence where B = T."""
    ids, labels = IDS[:2, :2], LABELS[:2, :2]
    weights = np.array([0.25, 1.75], "float32")
    model = models.GPT(V, 1, 1, 4, max_length=8, dropout=0.0)
    for length in (2, 1):
        model.compile(
            "sgd", SPARSE, weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy(from_logits=True)]
        )
        inputs = ids[:, :length], labels[:, :length]
        expected = model.test_on_batch(*inputs, np.repeat(weights, length).reshape(2, length))
        np.testing.assert_allclose(model.test_on_batch(*inputs, weights), expected, rtol=1e-6)
    classifier = models.GPTClassifier(model, 3, dropout=0.0)
    classifier.compile("sgd", {"classes": SPARSE, "tokens": SPARSE})
    targets = {"classes": CLASSES[:2], "tokens": labels}
    each = {"classes": weights, "tokens": np.repeat(weights, 2).reshape(2, 2)}
    expected = classifier.test_on_batch(ids, targets, each)
    for given in (weights, {"classes": weights, "tokens": weights}):
        np.testing.assert_allclose(classifier.test_on_batch(ids, targets, given), expected, rtol=1e-6)


NODES = np.ones((1, 4, 5), "float32")
GRAPH = {"nodes": NODES, "edges": np.array([[[0, 1], [1, 2], [-1, -1]]], "int32")}
RETRACED = {
    "length": (
        lambda: models.BERT(V, 1, 1, 4, max_length=32),
        [np.ones((2, size), "int32") for size in (8, 12)],
        np.ones((2, 40), "int32"),
        r"`token_ids` must be at most max_length=32 long.*\(2, 40\)",
    ),
    "length of a decoder": (
        lambda: models.Transformer(V, 1, 1, 4, 4, position_encoding="learned", max_length=16),
        [{"source_ids": np.ones((2, size), "int32"), "target_ids": IDS[:2]} for size in (8, 12)],
        {"source_ids": IDS[:2], "target_ids": np.ones((2, 17), "int32")},
        "`target_ids` must be at most max_length=16 long",
    ),
    "image size": (
        lambda: models.ViT(8, 2, 3, 1, 2, 8, 8),
        [np.zeros((size, 8, 8, 3), "float32") for size in (1, 2)],
        np.zeros((2, 16, 16, 3), "float32"),
        r"images.*\(B, 8, 8, 3\).*Received: \w+.shape=\(2, 16, 16, 3\)",
    ),
    "channels first": (
        lambda: models.ImageSegmenter(models.ViT(8, 2, None, 1, 2, 8, 8), 3),
        [np.zeros((size, 8, 8, 3), "float32") for size in (1, 2)],
        np.zeros((2, 3, 8, 8), "float32"),
        r"images.*\(B, 8, 8, 3\).*Received: \w+.shape=\(2, 3, 8, 8\)",
    ),
    "unknown nodes": (
        lambda: models.GAT(5, 3, (1,), 4),
        [GRAPH],
        {"nodes": NODES, "edges": GRAPH["edges"] + 2},
        r"`edges` must be in \[-1, 4\). Received: 4 at index \[0, 1, 1\]",
    ),
    "half of an edge": (
        lambda: models.GAT(5, 3, (1,), 4),
        [GRAPH],
        {"nodes": NODES, "edges": np.array([[[0, 1], [3, -1]]])},
        r"`edges` must be -1 in both places, or in none. Received: 3 at index \[0, 1, 0\]",
    ),
    "NaN": (
        lambda: models.GraphClassifier(models.GAT(5, 3, (1,), 4), 2),
        [GRAPH],
        {**GRAPH, "nodes": np.where(np.arange(5) == 3, np.nan, NODES)},
        r"`nodes` must be finite. Received: nan at index \[0, 0, 3\]",
    ),
    "pairs": (
        lambda: models.LinkPredictor(models.GAT(5, 3, (1,), 4)),
        [{**GRAPH, "pairs": np.array([[[0, 3]]])}],
        {**GRAPH, "pairs": np.array([[[0, 4]]])},
        r"`pairs` must be in \[0, 4\)",
    ),
}


@pytest.mark.parametrize("case", RETRACED)
def test_inputs_are_checked_after_retracing(case):
    make, valid, invalid, message = RETRACED[case]
    model = make()
    for inputs in valid:
        model.predict_on_batch(inputs)
    for run in (model, model.predict_on_batch, lambda inputs: model.predict(inputs, verbose=0)):
        with pytest.raises(ValueError, match=message):
            run(invalid)


UNKNOWN = {
    "unknown nodes": lambda: (models.GAT(5, 3, (1,), 4), {"nodes": NODES, "edges": GRAPH["edges"] + 2}),
    "half of an edge": lambda: (models.GAT(5, 3, (1,), 4), {"nodes": NODES, "edges": np.array([[[3, -1]]])}),
    "ids": lambda: (models.BERT(V, 1, 1, 4, max_length=8), np.array([[1, V]])),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_values_in_a_function_of_the_user_raise_an_error_or_give_nan(case):
    model, inputs = UNKNOWN[case]()
    inputs = keras.tree.map_structure(keras.ops.convert_to_tensor, inputs)
    if keras.backend.backend() == "jax":
        jax = pytest.importorskip("jax")
        assert np.isnan(jax.jit(lambda given: model(given))(inputs)).any()
        return
    tf = pytest.importorskip("tensorflow")
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be"):
        tf.function(lambda given: model(given), autograph=False)(inputs)
    assert np.isnan(tf.function(lambda given: model(given), jit_compile=True, autograph=False)(inputs)).any()


def test_exports_have_no_assertions(tmp_path):
    tf = pytest.importorskip("tensorflow")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("exported on TensorFlow only")
    models.GAT(5, 3, (1,), 4).export(tmp_path / "gat", verbose=False)
    graph = tf.saved_model.load(tmp_path / "gat").signatures["serving_default"].graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    assert not [node.name for node in nodes if node.op == "Assert"]


def test_batches_are_checked(language_model):
    for x, y, message in WRONG.values():
        for method in (language_model.train_on_batch, language_model.test_on_batch):
            with pytest.raises(ValueError, match=message.format(row=9)):
                method(x, y)
    model = models.GPT(V, 1, 1, 4, max_length=8)
    model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="`loss` must be of logits"):
        model.train_on_batch(IDS, LABELS)


@pytest.mark.parametrize("edge", [[1, 1.5], [1, 4.0], [-2.0, 1]])
def test_integers_of_a_dataset_of_floats_are_checked(edge):
    tf = pytest.importorskip("tensorflow")
    graph = {"nodes": NODES, "edges": np.array([[[0, 1], [1, 2], edge]])}
    for data in (graph, tf.data.Dataset.from_tensors(graph)):
        with pytest.raises(ValueError, match=r"`edges` must be .* at index \[0, 2, \d\]"):
            models.GAT(5, 3, (1,), 4).predict(data, verbose=0)


def test_images_of_another_size_are_rejected_below_another_model():
    tf = pytest.importorskip("tensorflow")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("other backends trace each shape")
    model = keras.Sequential([models.ViT(8, 2, 3, 1, 2, 8, 8)])
    step = tf.function(model, input_signature=[tf.TensorSpec((None, None, None, 3))])
    assert step(np.zeros((2, 8, 8, 3), "float32")).shape == (2, 3)
    with pytest.raises(tf.errors.InvalidArgumentError):
        step(np.zeros((2, 16, 16, 3), "float32"))


def test_values_of_a_dataset_that_are_not_finite_are_rejected():
    images = RANDOM.random((ROWS, 4, 4, 1)).astype("float32")
    images[5, 1, 2, 0] = np.inf
    model = models.ViT(4, 2, 3, 1, 2, 8, 8, num_channels=1)
    check = InputCheck(model)
    with (
        pytest.raises(ValueError, match=r"`images` must be finite. Received: inf at index \[1, 1, 2, 0\]"),
        check.raised(),
    ):
        list(check.data(dataset(images, CLASSES)))


@keras.saving.register_keras_serializable(package="tests")
class Probabilities(Bigrams):
    def call(self, inputs):
        return keras.ops.softmax(super().call(inputs))


def test_losses_of_probabilities_are_accepted_for_probabilities():
    model = Probabilities()
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.train_on_batch(IDS, LABELS)


def test_a_loss_of_probabilities_is_loaded_and_rejected_by_fit(tmp_path):
    model = models.GPT(V, 1, 1, 4, max_length=8)
    model.compile("sgd", "sparse_categorical_crossentropy")
    expected = model(IDS)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(IDS), expected)
    with pytest.raises(ValueError, match="`loss` must be of logits"):
        loaded.fit(IDS, LABELS, verbose=0)
