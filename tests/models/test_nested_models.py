"""Models as layers of a user's own Keras model."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_transformer import models
from keras_transformer.layers import EncoderBlock, FeedForward, MultiHeadAttention, TokenEmbedding
from keras_transformer.training import LabelSmoothedCrossentropy

pytestmark = pytest.mark.backend_neutral

IDS = np.array([[2, 5, 6, 3, 0, 0], [2, 7, 8, 9, 3, 0]], "int32")
LABELS = np.array([[1, 2, 0, 1, 0, 0], [2, 1, 1, 0, 2, 0]], "int32")
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "max_length": 8, "dropout": 0.0}
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def bert(vocabulary_size=20, **options):
    return models.BERT(vocabulary_size, **SIZES, **options)


@keras.saving.register_keras_serializable(package="tests")
class Classifier(keras.Model):
    """A subclassed model with an encoder and layers of its own."""

    def __init__(self, encoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.pool, self.own = layers.GlobalAveragePooling1D(), layers.Dense(3)

    def call(self, inputs):
        return self.own(self.pool(self.encoder(inputs)))

    def get_config(self):
        return {"encoder": keras.saving.serialize_keras_object(self.encoder)}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config["encoder"]))


def functional(encoder, dtype="int32"):
    inputs = keras.Input((None,), dtype=dtype)
    return keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(encoder(inputs))))


def sequential(encoder):
    return keras.Sequential([encoder, layers.GlobalAveragePooling1D(), layers.Dense(3)])


PARENTS = {
    "functional": functional,
    "floats": lambda encoder: functional(encoder, "float32"),
    "sequential": sequential,
    "subclass": Classifier,
}


@pytest.mark.parametrize("name", PARENTS)
def test_padding_does_not_change_a_parent(name, tmp_path):
    model = PARENTS[name](bert())
    expected = model(IDS)
    for given in (np.pad(IDS, [[0, 0], [0, 2]]), IDS.astype("uint16"), IDS.astype("float32")):
        np.testing.assert_allclose(model(given), expected, atol=1e-6)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "model.keras")(IDS), expected)


EDGES = np.array([[[0, 1], [1, 2], [-1, -1]]], "int32")
RETRACED = {
    "length": (
        bert,
        [IDS[:, :size] for size in (4, 5)],
        [np.ones((2, 9), "int32")],
        "`token_ids` must be at most max_length=8 long",
    ),
    "unknown ids": (bert, [IDS], [IDS + 15, IDS - 3], r"`token_ids` must be in \[0, 20\)"),
    "lengths of two texts": (
        lambda: models.Transformer(20, 1, 2, 8, position_encoding="learned", max_length=8),
        [{"source_ids": IDS, "target_ids": IDS[:, :size]} for size in (4, 5)],
        [{"source_ids": IDS, "target_ids": np.ones((2, 9), "int32")}],
        "`target_ids` must be at most max_length=8 long",
    ),
    "unknown nodes": (
        lambda: models.GAT(5, 3, (1,), 4),
        [{"nodes": np.ones((1, 4, 5), "float32"), "edges": EDGES}],
        [{"nodes": np.ones((1, 4, 5), "float32"), "edges": EDGES + 2}],
        r"`edges` must be in \[-1, T\)",
    ),
}

# The quick tests have each case, and each parent, once.
QUICK = {
    "length": sequential,
    "unknown ids": functional,
    "lengths of two texts": Classifier,
    "unknown nodes": Classifier,
}
CHECKED = [
    pytest.param(
        case,
        parent,
        id=f"{case}-{parent.__name__}",
        marks=() if parent is QUICK[case] else pytest.mark.slow,
    )
    for case, (_, _, invalid, _) in RETRACED.items()
    for parent in ([Classifier] if isinstance(invalid[0], dict) else [Classifier, functional, sequential])
]


@pytest.mark.parametrize(("case", "parent"), CHECKED)
def test_the_step_of_a_parent_checks_inputs(case, parent):
    """Keras retraces with unknown lengths, and knows nothing of our inputs."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip("assertions are TensorFlow's: JAX knows lengths, and checks no ids")
    from tensorflow.errors import InvalidArgumentError

    make, valid, invalid, message = RETRACED[case]
    model = parent(make())
    for inputs in valid:
        model.predict(inputs, verbose=0)
    for inputs in invalid:
        with pytest.raises(InvalidArgumentError, match=message):
            model.predict(inputs, verbose=0)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # of the pooler
@pytest.mark.slow_variants
@pytest.mark.parametrize("parent", [functional, Classifier], ids=lambda parent: parent.__name__)
def test_unknown_ids_give_nan_in_the_compiled_step_of_a_parent(parent):
    """XLA and JAX raise no error for them."""
    model, classes = parent(bert()), LABELS[:, 0]
    model.compile("sgd", LOSS, jit_compile=True)
    assert np.isfinite(model.predict(IDS, verbose=0)).all()
    for unknown in (-3, 20):
        ids = np.where(IDS == 5, unknown, IDS)
        np.testing.assert_array_equal(np.isnan(model.predict(ids, verbose=0)), [[True] * 3, [False] * 3])
    assert np.isnan(model.train_on_batch(ids, classes))


def test_fractions_are_no_ids_in_a_parent():
    """A graph raises an error; where it cannot, under XLA and on JAX, their rows are NaN."""
    ids = np.where(IDS == 5, 5.5, IDS.astype("float32"))
    model = Classifier(bert())
    model.compile("sgd", LOSS, jit_compile=True)
    assert np.isfinite(model.predict(IDS.astype("float32"), verbose=0)).all()
    np.testing.assert_array_equal(np.isnan(model.predict(ids, verbose=0)), [[True] * 3, [False] * 3])


def test_graphs_with_edges_of_other_nodes_give_nan_in_the_compiled_step_of_a_parent():
    model = Classifier(models.GAT(5, 3, (1,), 4))
    model.compile("sgd", LOSS, jit_compile=True)
    graphs = {"nodes": np.ones((3, 4, 5), "float32"), "edges": np.repeat(EDGES, 3, axis=0)}
    assert np.isfinite(model.predict(graphs, verbose=0)).all()
    for unknown in (-2, 4):
        graphs["edges"][1, 0, 0] = unknown
        expected = [[place == 1] * 3 for place in range(3)]
        np.testing.assert_array_equal(np.isnan(model.predict(graphs, verbose=0)), expected)


@pytest.mark.parametrize("make", [models.GPT, models.Transformer], ids=lambda make: make.__name__)
def test_a_saved_parent_keeps_the_weights_of_its_own_layers(make, tmp_path):
    """Keras builds a loaded model with float inputs; if that fails, its layers keep their new weights."""
    decoder = make(20, **{name: size for name, size in SIZES.items() if name != "max_length"})
    names = ("source_ids", "target_ids") if make is models.Transformer else ("token_ids",)
    inputs = dict.fromkeys(names, IDS)
    model = Classifier(decoder)
    expected = model(inputs)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "model.keras")(inputs), expected)


def test_a_model_equals_the_same_network_of_layers():
    embedding = TokenEmbedding(20, 8, pad_id=0)
    block = EncoderBlock(MultiHeadAttention(2), FeedForward(16))
    inputs = keras.Input((6,), dtype="int32")
    encoder = keras.Model(inputs, block(embedding(inputs)))

    @keras.saving.register_keras_serializable(package="tests")
    class Same(models.model.Model):
        def call(self, ids):
            return block(embedding(ids))

        def compute_mask(self, ids, previous_mask=None):
            return ops.not_equal(ids, 0)

    head, weights = layers.Dense(3), np.ones((2, 6), "float32")
    results = []
    for core in (encoder, Same()):
        outer = keras.Input((6,), dtype="int32")
        model = keras.Model(outer, head(core(outer)))
        model.compile(loss=LOSS, weighted_metrics=["accuracy"])
        results.append(model.evaluate(IDS, LABELS, sample_weight=weights, verbose=0))
    np.testing.assert_allclose(*results, rtol=1e-6)


@pytest.mark.parametrize("columns", [0, 2])
def test_losses_and_metrics_of_keras_skip_padding(columns):
    model = models.TokenClassifier(bert(), 3)
    model.compile(loss=LOSS, metrics=["accuracy"])
    found = model.evaluate(
        np.pad(IDS, [[0, 0], [0, columns]]), np.pad(LABELS, [[0, 0], [0, columns]]), verbose=0
    )
    logits, real = ops.convert_to_numpy(model(IDS)), IDS != 0
    surprisals = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, LABELS[..., None], -1)[..., 0]
    expected = [surprisals[real].mean(), (logits.argmax(-1) == LABELS)[real].mean()]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


DECODERS = {
    "GPT": lambda: models.GPT(20, **SIZES, pad_id=0),
    "GPTClassifier": lambda: models.GPTClassifier(models.GPT(20, **SIZES, pad_id=0), 2),
    "MaskedLanguageModel": lambda: models.MaskedLanguageModel(bert()),
    "Transformer": lambda: models.Transformer(20, **SIZES),
    "T5": lambda: models.T5(20, 1, 2, 8, 16, dropout=0.0),
}


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", DECODERS)
def test_training_and_evaluation_of_decoders_skip_padding(name):
    """On JAX, the steps of Keras do not call a model, but its `call`."""
    labels = np.where(IDS == 0, 0, (IDS + LABELS) % 20)
    results = []
    for columns in (0, 2):
        ids, targets = (np.pad(array, [[0, 0], [0, columns]]) for array in (IDS, labels))
        keras.utils.set_random_seed(0)
        model = DECODERS[name]()
        inputs = {"source_ids": ids, "target_ids": ids} if "source_ids" in model.input_specs() else ids
        has_classes = name == "GPTClassifier"
        loss, y = (
            ({"classes": LOSS, "tokens": LOSS}, {"classes": np.array([0, 1]), "tokens": targets})
            if has_classes
            else (LOSS, targets)
        )
        model.compile("sgd", loss, jit_compile=False)
        losses = [model.evaluate(inputs, y, verbose=0), model.test_on_batch(inputs, y)]
        losses += model.fit(inputs, y, verbose=0).history["loss"]
        results.append(np.concatenate([np.ravel(each)[:1] for each in losses]))
    np.testing.assert_allclose(*results, rtol=1e-5)


def test_a_loss_that_ignores_labels_counts_nothing_twice():
    model = models.GPT(20, **SIZES)
    model.compile(loss=LabelSmoothedCrossentropy(0.0))
    loss = model.evaluate(IDS, LABELS, verbose=0)
    logits, real = ops.convert_to_numpy(model(IDS)), LABELS != 0
    surprisals = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, LABELS[..., None], -1)[..., 0]
    np.testing.assert_allclose(loss, surprisals[real].mean(), rtol=1e-5)


def test_a_start_token_that_is_the_padding_id_is_not_masked():
    model = models.T5(20, 1, 2, 8, 16, pad_id=0, start_id=0)
    mask = model.compute_mask({"source_ids": IDS, "target_ids": np.array([[0, 5, 0], [0, 0, 0]], "int32")})
    np.testing.assert_array_equal(mask, [[True, True, False], [True, False, False]])


def test_no_mask_without_padding():
    assert models.GPT(20, **SIZES, pad_id=None).compute_mask(IDS) is None
    assert models.SequenceClassifier(bert(), 2).compute_mask(IDS) is None
    given = {"token_ids": IDS, "padding_mask": IDS > 4}
    np.testing.assert_array_equal(models.GPT(20, **SIZES, pad_id=None).compute_mask(given), IDS > 4)
    lengths = {"token_ids": IDS, "lengths": np.array([2, 6], "int32")}
    np.testing.assert_array_equal(bert().compute_mask(lengths).shape, (2, 6))


def test_ids_are_not_rounded_in_low_precision():
    ids = np.array([[2049, 2051, 2999]], "int32")
    encoder = models.BERT(3000, **SIZES, dtype="mixed_float16")
    expected = layers.GlobalAveragePooling1D()(encoder(ids))
    inputs = keras.Input((None,))  # float32, as it is without `dtype`
    model = keras.Model(inputs, layers.GlobalAveragePooling1D()(encoder(inputs)))
    np.testing.assert_array_equal(model(ids), expected)
    with pytest.raises(ValueError, match=r"float16 rounds integers above 2048.*keras.Input\(shape"):
        keras.Sequential(
            [models.BERT(3000, **SIZES, dtype="mixed_float16"), layers.GlobalAveragePooling1D()]
        )(ids)


def test_a_frozen_encoder_stays_frozen_below_a_new_head(tmp_path):
    encoder = bert()
    encoder.trainable = False
    model = models.SequenceClassifier(encoder, 2)
    names = ["pooler/kernel", "pooler/bias", "head/kernel", "head/bias"]
    assert [weight.path for weight in model.trainable_weights] == names
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert [weight.path for weight in again.trainable_weights] == names
    again.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    again.fit(np.ones((2, 4), "int32"), np.zeros(2, "int32"), verbose=0)
    models.BERT.built.fset(encoder, True)  # as Keras does again in `fit` on JAX
    for trained in (model, again):
        assert [weight.path for weight in trained.trainable_weights] == names


def test_a_model_created_frozen_is_frozen_in_another():
    model = models.MaskedLanguageModel(bert(trainable=False), name="masked_language_model")
    own = {"masked_language_model", "transform", "norm"}
    assert {weight.path.partition("/")[0] for weight in model.trainable_weights} == own
    assert keras.Sequential([models.MaskedLanguageModel(bert(), trainable=False)]).trainable_weights == []
    encoder = bert(trainable=False)
    encoder.trainable = True
    assert all(weight.trainable for weight in encoder.weights)


def test_a_frozen_block_stays_frozen(tmp_path):
    block = EncoderBlock(MultiHeadAttention(2), FeedForward(16))
    inputs = keras.Input((None, 8))
    model = keras.Model(inputs, block(inputs))
    block.trainable = False
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").trainable_weights == []
    block = EncoderBlock(MultiHeadAttention(2), FeedForward(16), trainable=False)
    assert keras.Model(inputs, block(inputs)).trainable_weights == []
