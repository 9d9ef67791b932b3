import keras
import numpy as np
import pytest

from keras_transformer.models import (
    BERT,
    MaskedLanguageModel,
    ModernBERT,
    Pretraining,
    SequenceClassifier,
    SpanClassifier,
    TokenClassifier,
)
from keras_transformer.training import LabelSmoothedCrossentropy, TokenAccuracy
from tests.random_weights import randomise

# JAX compiles every new shape for seconds: run only one case of each law there.
neutral = pytest.mark.backend_neutral

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
TINY = {
    "vocabulary_size": 13,
    "num_layers": 2,
    "num_heads": 2,
    "model_dim": 8,
    "hidden_dim": 16,
    "max_length": 9,
}
IDS = np.array([[2, 7, 9, 5, 3, 0], [2, 6, 3, 8, 3, 0], [2, 12, 3, 0, 0, 0]])
SEGMENTS = np.array([[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0]])
INPUTS = {"token_ids": IDS, "segment_ids": SEGMENTS}
HEADS = {
    "masked": MaskedLanguageModel,
    "pretraining": Pretraining,
    "sequence": lambda encoder: SequenceClassifier(encoder, 3),
    "mean": lambda encoder: SequenceClassifier(encoder, 3, "mean", 0.0),
    "token": lambda encoder: TokenClassifier(encoder, 4),
    "span": SpanClassifier,
}


def tiny(head=None, **options):
    encoder = BERT(**{**TINY, "dropout": 0.0, **options})
    return randomise(encoder if head is None else HEADS[head](encoder))


def answer(model, inputs=INPUTS):
    return keras.tree.map_structure(np.asarray, model(inputs))


def test_attention_is_bidirectional_unless_causal():
    changed = IDS.copy()
    changed[0, 2] = 10
    for relation, same in ((None, []), ("causal", [0, 1])):
        model = tiny(relation=relation)
        equal = np.isclose(answer(model, changed), answer(model, IDS), **CLOSE).all(-1)
        assert np.flatnonzero(equal[0, :5]).tolist() == same
        assert equal[1:].all()


@pytest.mark.slow
def test_positions_and_segments_change_outputs_and_segments_default_to_zero():
    model = tiny()
    np.testing.assert_array_equal(
        answer(model, IDS), answer(model, {"token_ids": IDS, "segment_ids": IDS * 0})
    )
    assert not np.allclose(answer(model)[1], answer(model, IDS)[1], **CLOSE)
    swapped = IDS[:, [0, 2, 1, 3, 4, 5]]
    assert not np.allclose(answer(model, swapped)[0, 0], answer(model, IDS)[0, 0], **CLOSE)
    model.positions.table.assign(np.zeros(model.positions.table.shape))
    np.testing.assert_allclose(answer(model, swapped)[0, 0], answer(model, IDS)[0, 0], **CLOSE)


@pytest.mark.slow_variants
@pytest.mark.parametrize("head", HEADS)
def test_the_pooler_is_trained_only_if_it_is_used(head):
    trained = any("pooler" in weight.path for weight in tiny(head).trainable_weights)
    assert trained == (head in ("pretraining", "sequence"))


def test_the_pooler_uses_the_first_token():
    model = tiny()
    hidden = answer(model)
    kernel, bias = model.pooler.get_weights()
    np.testing.assert_allclose(model.pool(hidden), np.tanh(hidden[:, 0] @ kernel + bias), **CLOSE)


def test_masked_language_model_returns_logits_at_masked_positions():
    model = tiny("masked")
    positions = np.array([[1, 3], [3, 0], [2, 2]])
    every, some = answer(model), answer(model, {**INPUTS, "masked_positions": positions})
    assert (every.shape, some.shape, every.dtype) == ((3, 6, 13), (3, 2, 13), "float32")
    np.testing.assert_allclose(some, np.take_along_axis(every, positions[..., None], 1), **CLOSE)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.slow_variants
@pytest.mark.parametrize("head", ["masked", "pretraining"])
@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("gelu_tanh", gelu_tanh),
        ("relu", lambda x: np.maximum(x, 0)),
        ("glu", sigmoid),
        ("reglu", lambda x: np.maximum(x, 0)),
        ("geglu_tanh", gelu_tanh),
        ("swiglu", lambda x: x * sigmoid(x)),
        (None, lambda x: x),
    ],
)
def test_the_masked_language_model_uses_the_activation_of_the_encoder(head, activation, function, tmp_path):
    model = tiny(head, activation=activation)
    masked = getattr(model, "masked_language_model", model)
    kernel, bias = (np.asarray(weight) for weight in masked.transform.weights)
    transformed = function(np.asarray(model.encoder(INPUTS)) @ kernel + bias)
    expected = masked.encoder.embedding.logits(masked.norm(transformed)) + masked.bias
    found = answer(model)
    np.testing.assert_allclose(found if head == "masked" else found["tokens"], expected, **CLOSE)
    model.save(tmp_path / "it.keras")
    again = answer(keras.saving.load_model(tmp_path / "it.keras"))
    keras.tree.map_structure(np.testing.assert_array_equal, again, found)


def test_the_masked_language_model_adds_a_matrix_a_norm_and_biases():
    base = BERT(12, 1, 2, 8, hidden_dim=16, max_length=6)
    assert MaskedLanguageModel(base).count_params() - base.count_params() == 8 * 8 + 3 * 8 + 12


def test_output_matrix_is_tied_to_the_embeddings():
    model = tiny("masked")
    before = answer(model)
    table = model.encoder.embedding.embedding.embeddings
    changed = np.asarray(table).copy()
    changed[11] += 1  # not in any input
    table.assign(changed)
    differs = ~np.isclose(answer(model), before, **CLOSE)
    assert differs[..., 11].all()
    assert not np.delete(differs, 11, axis=-1).any()


def sentences(count, seed=0):
    """Return rows of two kinds of words, where each word w is followed by w + 4."""
    random = np.random.default_rng(seed)
    words = random.integers(5, 9, (count, 3))
    rows = np.stack([words, words + 4], axis=-1).reshape(count, 6)
    return np.concatenate([np.full((count, 1), 2), rows, np.full((count, 1), 3)], axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=neutral)], ids=["graph", "xla"])
def test_masked_tokens_are_learned(jit_compile):
    keras.utils.set_random_seed(0)
    model = MaskedLanguageModel(BERT(13, 1, 2, 32, max_length=8, dropout=0.0, normalization="pre"))
    rows = sentences(256)
    positions = np.random.default_rng(1).integers(1, 7, (256, 1))
    labels = np.take_along_axis(rows, positions, 1)
    masked = rows.copy()
    np.put_along_axis(masked, positions, 4, 1)
    model.compile(
        keras.optimizers.Adam(3e-3), LabelSmoothedCrossentropy(0.0), metrics=[TokenAccuracy()],
        jit_compile=jit_compile,
    )  # fmt: skip
    inputs = {"token_ids": masked, "masked_positions": positions}
    history = model.fit(inputs, labels, batch_size=32, epochs=25, verbose=0)
    assert history.history["token_accuracy"][-1] > 0.9


@pytest.mark.slow
def test_pretraining_learns_both_tasks_by_fit():
    keras.utils.set_random_seed(0)
    model = Pretraining(BERT(13, 1, 2, 16, max_length=8, dropout=0.0))
    rows = sentences(64)
    first, second = rows[:, :4], rows[:, 4:]
    labels = {"tokens": rows[:, 1:2], "next_sentence": (first[:, 1] == 6).astype(int)}
    inputs = {
        "token_ids": np.concatenate([first, second], 1),
        "segment_ids": np.array([[0] * 4 + [1] * 4] * 64),
        "masked_positions": np.ones((64, 1), int),
    }
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    losses = {"tokens": LabelSmoothedCrossentropy(0.0), "next_sentence": crossentropy}
    model.compile(keras.optimizers.Adam(1e-2), losses, jit_compile=False)
    history = model.fit(inputs, labels, epochs=15, batch_size=32, verbose=0).history
    for name in ("tokens_loss", "next_sentence_loss"):
        assert history[name][-1] < 0.7 * history[name][0]


@pytest.mark.slow
def test_a_pair_classifier_learns_by_fit():
    """The label of a pair is 1 if the second segment contains word 5."""
    keras.utils.set_random_seed(1)
    words = np.random.default_rng(0).integers(5, 7, (512, 2))
    ids = np.stack([np.full(512, 2), words[:, 0], np.full(512, 3), words[:, 1], np.full(512, 3)], axis=1)
    inputs = {"token_ids": ids, "segment_ids": np.array([[0, 0, 0, 1, 1]] * 512)}
    model = SequenceClassifier(BERT(13, 1, 2, 32, max_length=5, dropout=0.0, normalization="pre"), 2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"], jit_compile=False)
    history = model.fit(inputs, words[:, 1] == 5, epochs=6, batch_size=64, verbose=0)
    assert history.history["accuracy"][-1] > 0.95


def test_padding_is_never_a_span():
    logits = answer(tiny("span"))
    assert logits.shape == (3, 2, 6)
    padding = np.repeat((IDS == 0)[:, None], 2, axis=1)
    assert (logits[padding] < -1e8).all()
    assert (logits[~padding] > -1e3).all()


@pytest.mark.slow
def test_a_model_without_pooler_encodes_but_does_not_pool(tmp_path):
    model = tiny(pooler=False)
    assert tiny().count_params() - model.count_params() == 8 * 8 + 8
    assert not [weight.path for weight in model.weights if "pooler" in weight.path]
    with pytest.raises(ValueError, match="`pool` needs a model with a pooler"):
        model.pool(answer(model))
    model.save(tmp_path / "it.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "it.keras")(INPUTS), model(INPUTS))
    for head in ("masked", "mean", "token", "span"):
        assert np.isfinite(answer(tiny(head, pooler=False))).all()


@pytest.mark.parametrize("model", ["distilbert", "modernbert"])
def test_models_without_segments_ignore_segment_ids(model):
    """Batches of `data` have segments for every encoder."""
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 8, "pad_id": 0}
    make = {
        "distilbert": lambda: BERT(12, **sizes, num_segments=0),
        "modernbert": lambda: ModernBERT(12, **sizes),
    }
    encoder = make[model]()
    ids = np.array([[5, 6, 7, 3], [8, 9, 3, 0]])
    np.testing.assert_array_equal(encoder({"token_ids": ids, "segment_ids": ids % 2}), encoder(ids))
    assert "segment_ids" not in encoder.input_signature()
