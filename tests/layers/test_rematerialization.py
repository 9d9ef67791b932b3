"""Rematerialized models equal models that keep their activations, and need less memory."""

import keras
import numpy as np
import pytest

from keras_transformer import models
from keras_transformer.relations import SlidingWindow

pytestmark = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(1, 16, (4, 8))
PAIRS = {"source_ids": IDS, "target_ids": np.where(np.arange(8) < [[8], [5], [3], [1]], IDS, 0)}
IMAGES = RANDOM.uniform(0, 255, (4, 8, 8, 3)).astype("float32")
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16, "dropout": 0.2}


def transformer(**options):
    return models.Transformer(16, **SIZES, **options)


def classifier(**options):
    return models.SequenceClassifier(models.BERT(16, **SIZES, max_length=8, **options), 3)


CASES = {
    "gpt": (lambda **options: models.GPT(16, **SIZES, max_length=8, **options), IDS),
    "llama": (lambda **options: models.Llama(16, **SIZES, **options), IDS),
    "gpt rotary": (lambda **options: models.GPT(16, **SIZES, position_encoding="rotary", **options), IDS),
    "transformer": (transformer, PAIRS),
    "transformer windows": (
        lambda **options: transformer(
            encoder_relation=SlidingWindow(1, 1), decoder_relation=SlidingWindow(2), **options
        ),
        PAIRS,
    ),
    "t5": (lambda **options: models.T5(16, **SIZES, key_dim=4, **options), PAIRS),
    "unlimiformer": (lambda **options: models.Unlimiformer(transformer(**options), 3, 4), PAIRS),
    "bert": (classifier, IDS),
    "vit": (lambda **options: models.ViT(8, 4, 3, **SIZES, **options), IMAGES),
}


def trained(case, rematerialize, **fit):
    """Return all variables, including seeds, before and after a step of plain gradient descent with dropout."""
    make, inputs = CASES[case]
    keras.utils.set_random_seed(0)
    model = make(rematerialize=rematerialize)
    labels = np.zeros(keras.ops.shape(model.compute_output_spec(inputs_spec(inputs)))[:-1], "int32")
    model.compile(
        keras.optimizers.SGD(1.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True), **fit
    )
    before = values(model)
    model.fit(inputs, labels, batch_size=2, epochs=1, shuffle=False, verbose=0)
    return before, values(model)


def inputs_spec(inputs):
    return keras.tree.map_structure(lambda each: keras.KerasTensor(each.shape, each.dtype), inputs)


def values(model):
    return [keras.ops.convert_to_numpy(variable) for variable in model.variables]


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case == "gpt" else pytest.mark.slow) for case in CASES]
)
def test_rematerialization_does_not_change_gradients_and_dropout(case):
    before, expected = trained(case, None)
    _, found = trained(case, "blocks")
    assert any(np.abs(after - start).max() > 0.01 for start, after in zip(before, expected, strict=True))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_frozen_weights_keep_their_precision_in_mixed_precision():
    make, ids = CASES["gpt"]
    outputs = []
    for rematerialize in (None, "blocks"):
        keras.utils.set_random_seed(0)
        model = make(rematerialize=rematerialize, dtype="mixed_bfloat16")
        model.blocks[0].trainable = False
        outputs.append(keras.ops.convert_to_numpy(model(ids, training=True)))
    np.testing.assert_array_equal(*outputs)


def test_the_config_round_trips():
    make, _ = CASES["gpt"]
    model = make(rematerialize="blocks")
    assert model.get_config()["rematerialize"] == "blocks"
    assert all(block.rematerialize for block in type(model).from_config(model.get_config()).blocks)
    assert not any(block.rematerialize for block in make().blocks)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX reports the memory of a compiled function")
def test_rematerialization_reduces_compiled_memory():
    import jax

    ids, sizes = (
        np.ones((4, 128), "int32"),
        {"num_layers": 3, "num_heads": 2, "model_dim": 32, "max_length": 128},
    )

    def temporary_bytes(rematerialize):
        model = models.GPT(16, **sizes, rematerialize=rematerialize)

        def loss(trainable, non_trainable):
            logits, _ = model.stateless_call(trainable, non_trainable, ids, training=True)
            return keras.ops.mean(logits**2)

        variables = [
            [variable.value for variable in group]
            for group in (model.trainable_variables, model.non_trainable_variables)
        ]
        # XLA on a CPU, unlike on a GPU, would drop the barriers and merge repeated computations.
        options = {"xla_disable_hlo_passes": "cse_barrier_expander"}
        compiled = jax.jit(jax.grad(loss)).lower(*variables).compile(options)
        return compiled.memory_analysis().temp_size_in_bytes

    kept, computed_again = temporary_bytes(None), temporary_bytes("blocks")
    assert computed_again < 0.6 * kept, (computed_again, kept)
