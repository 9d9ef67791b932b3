import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.models import Transformer
from keras_transformer.training import LabelSmoothedCrossentropy, TokenAccuracy
from tests.random_weights import randomise

# JAX compiles every new shape for seconds: run only one case of each law there.
neutral = pytest.mark.backend_neutral

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
TINY = {"vocabulary_size": 12, "num_layers": 2, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}
SOURCE = np.array([[5, 6, 7, 3, 0], [8, 3, 0, 0, 0]])
TARGET = np.array([[2, 9, 4, 5], [2, 7, 0, 0]])
NORMALIZATIONS = ("pre", "post", "sandwich")


def tiny(**options):
    """Return a small model with random weights, including biases."""
    return randomise(Transformer(**{**TINY, **options}), scale=0.4)


def logits(model, source=SOURCE, target=TARGET):
    return np.asarray(model({"source_ids": np.asarray(source), "target_ids": np.asarray(target)}))


def padded(ids, count, side="right", pad_id=0):
    padding = np.full((len(ids), count), pad_id)
    return np.concatenate([ids, padding] if side == "right" else [padding, ids], axis=1)


def test_named_sizes_equal_the_paper_and_accept_overrides():
    model = Transformer.base(20, num_layers=1, model_dim=8, hidden_dim=16, num_heads=2)
    assert (model.normalization, model.dropout, model.num_layers) == ("post", 0.1, 1)
    model = Transformer.big(20, num_layers=1, model_dim=8, hidden_dim=16, num_heads=2)
    assert (model.normalization, model.dropout) == ("post", 0.3)
    model = Transformer.small(20, num_layers=1, dropout=0.0)
    assert (model.normalization, model.model_dim, model.dropout) == ("pre", 256, 0.0)


def test_source_tokens_change_all_logits_of_their_row():
    model = tiny()
    before = logits(model)
    source = SOURCE.copy()
    source[0, 1] = 10
    after = logits(model, source=source)
    assert not np.isclose(after[0], before[0]).all(-1).any()
    np.testing.assert_array_equal(after[1], before[1])


@pytest.mark.slow
def test_source_order_changes_the_output():
    model = tiny()
    assert not np.allclose(
        logits(model, SOURCE[:, [1, 0, 2, 3]])[0], logits(model, SOURCE[:, :4])[0], **CLOSE
    )


def test_left_padded_prompts_equal_unpadded():
    model = tiny()
    expected = logits(model, target=TARGET[:, :2])[:, -1]
    target = padded(TARGET[:, :2], 3, "left")
    positions = np.maximum(np.arange(5) - 3, 0)[None].repeat(2, axis=0)
    output, _ = model.step(
        target,
        model.empty_cache(2, 5),
        model.encode(SOURCE),
        cache_index=0,
        positions=positions.astype("int32"),
    )
    np.testing.assert_allclose(output[:, -1], expected, **CLOSE)


@pytest.mark.slow
def test_compiled_model_reloads_compiled_and_continues_training(tmp_path):
    model = tiny(num_layers=1, dropout=0.0)
    model.compile(
        keras.optimizers.Adam(0.01),
        LabelSmoothedCrossentropy(0.1),
        metrics=[TokenAccuracy()],
        jit_compile=False,
    )
    inputs = {"source_ids": SOURCE, "target_ids": TARGET}
    labels = np.array([[9, 4, 5, 3], [7, 3, 0, 0]])
    model.fit(inputs, labels, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.loss.get_config() == model.loss.get_config()
    assert again.optimizer.iterations == 1
    reloaded, original = (m.fit(inputs, labels, verbose=0).history for m in (again, model))
    assert again.optimizer.iterations == 2
    np.testing.assert_allclose(reloaded["loss"], original["loss"], rtol=1e-5)
    np.testing.assert_allclose(
        logits(again), logits(model), rtol=1e-3, atol=1e-4
    )  # the moments of Adam are restored too


@pytest.mark.slow
def test_weights_save_and_load(tmp_path):
    model, other = tiny(), Transformer(**TINY)
    assert not np.allclose(logits(other), logits(model))
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(logits(other), logits(model))


def reversals(count, length=6, vocabulary=12):
    """Return sources of ids from 4, and their reversals as targets and labels."""
    random = np.random.default_rng(0)
    words = random.integers(4, vocabulary, (count, length))
    lengths = random.integers(2, length + 1, (count, 1))
    source = np.where(np.arange(length) < lengths, words, 0)
    labels = np.zeros((count, length + 1), "int32")
    for row, (ids, size) in enumerate(zip(source, lengths[:, 0], strict=True)):
        labels[row, :size] = ids[:size][::-1]
        labels[row, size] = 3
    target = np.concatenate([np.full((count, 1), 2), labels[:, :-1]], axis=1)
    target[target == 3] = 0
    return {"source_ids": source, "target_ids": target}, labels


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=neutral)], ids=["graph", "xla"])
def test_tiny_model_learns_to_reverse(jit_compile):
    keras.utils.set_random_seed(0)
    model = Transformer(12, num_layers=1, num_heads=2, model_dim=32, hidden_dim=64, dropout=0.0)
    model.compile(
        keras.optimizers.Adam(5e-3),
        LabelSmoothedCrossentropy(0.0),
        metrics=[TokenAccuracy()],
        jit_compile=jit_compile,
    )
    inputs, labels = reversals(128)
    history = model.fit(inputs, labels, batch_size=32, epochs=70, verbose=0)
    assert history.history["token_accuracy"][-1] > 0.98
    # Free-running generation also succeeds, which excludes leaks of later tokens in training.
    ids = np.zeros((128, labels.shape[1] + 1), int)
    ids[:, 0] = 2
    for t in range(labels.shape[1]):
        ids[:, t + 1] = logits(model, inputs["source_ids"], ids[:, :-1])[:, t].argmax(-1)
    valid = labels != 0
    assert (ids[:, 1:] == labels)[valid].mean() > 0.95


@pytest.mark.slow
def test_ids_of_every_integer_type_give_equal_outputs():
    model = tiny()
    expected = logits(model)
    for dtype in ("int32", "int64", "uint8"):
        np.testing.assert_array_equal(logits(model, SOURCE.astype(dtype), TARGET.astype(dtype)), expected)
    inputs = {"source_ids": ops.convert_to_tensor(SOURCE), "target_ids": ops.convert_to_tensor(TARGET)}
    np.testing.assert_array_equal(model(inputs), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
def test_models_can_be_quantized_before_their_first_call():
    model = Transformer(20, num_layers=1, num_heads=2, model_dim=8, hidden_dim=16)
    model.quantize("int8")
    ids = np.array([[4, 5, 3]])
    assert np.isfinite(ops.convert_to_numpy(model({"source_ids": ids, "target_ids": ids}))).all()


@pytest.mark.slow
def test_encoder_and_decoder_may_differ_in_depth():
    model = tiny(num_layers=1, num_decoder_layers=3)
    assert (len(model.encoder_blocks), len(model.decoder_blocks)) == (1, 3)
    assert (model.num_layers, model.num_decoder_layers) == (1, 3)
    assert Transformer.from_config(model.get_config()).get_config() == model.get_config()
    assert tiny(num_layers=2).num_decoder_layers == 2
    assert len(model.cross_attention_weights(SOURCE, TARGET)) == 3
