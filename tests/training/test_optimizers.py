import keras
import numpy as np
import pytest

from keras_transformer import models, training
from keras_transformer.training import exclude_from_weight_decay

pytestmark = pytest.mark.backend_neutral

SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}
MODELS = {
    "Transformer": lambda: models.Transformer(20, output_bias=True, **SIZES),
    "GPT": lambda: models.GPT(20, max_length=8, **SIZES),
    "MaskedLanguageModel": lambda: models.MaskedLanguageModel(models.BERT(20, max_length=8, **SIZES)),
    "T5": lambda: models.T5(20, **SIZES),
    "ViT": lambda: models.ViT(image_size=8, patch_size=4, num_classes=3, **SIZES),
}


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", MODELS)
def test_weight_decay_applies_to_kernels_only(name):
    model = MODELS[name]()
    optimizer = exclude_from_weight_decay(keras.optimizers.AdamW(1.0, weight_decay=0.1))
    optimizer.build(model.trainable_variables)
    before = {
        variable.path: keras.ops.convert_to_numpy(variable).copy() for variable in model.trainable_variables
    }
    zeros = [keras.ops.zeros(variable.shape) for variable in model.trainable_variables]
    optimizer.apply(zeros, model.trainable_variables)
    for variable in model.trainable_variables:
        value = keras.ops.convert_to_numpy(variable)
        decayed = before[variable.path] * (0.9 if variable.name == "kernel" else 1.0)
        assert value == pytest.approx(decayed, rel=1e-5), variable.path


def test_built_optimizers_are_rejected():
    optimizer = keras.optimizers.AdamW()
    optimizer.build([keras.Variable([0.0])])
    with pytest.raises(ValueError, match="variables yet"):
        exclude_from_weight_decay(optimizer)
    with pytest.raises(TypeError, match="Received: optimizer='adamw'"):
        exclude_from_weight_decay("adamw")


def trained(optimizer, jit=False):
    """Return the weights of a small classifier after three epochs."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=jit)
    inputs = np.random.default_rng(0).standard_normal((16, 5)).astype("float32")
    model.fit(inputs, np.arange(16) % 3, batch_size=4, epochs=3, verbose=0, shuffle=False)
    return [keras.ops.convert_to_numpy(variable) for variable in model.variables]


OPTIONS = {
    "Adam": {"beta_2": 0.98, "epsilon": 1e-9},
    "Adam, clipped": {"clipnorm": 0.1},
    "Adam, accumulated": {"gradient_accumulation_steps": 2},
    "Adam, averaged": {"use_ema": True, "ema_overwrite_frequency": 5},
    "Adam, amsgrad": {"amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
}


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", OPTIONS)
def test_one_operation_equals_keras(name):
    kind = name.partition(",")[0]
    expected = trained(getattr(keras.optimizers, kind)(0.01, **OPTIONS[name]))
    optimizer = getattr(training, kind)(0.01, **OPTIONS[name])
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(copy) is type(optimizer)
    for found in (trained(optimizer), trained(copy, jit=True)):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


on_tensorflow = pytest.mark.skipif(
    keras.config.backend() != "tensorflow", reason="other backends have no such gradients and operations"
)


@on_tensorflow
def test_gradients_of_repeated_rows_are_summed():
    import tensorflow as tf

    values, rows, shape = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [2, 0, 2], (4, 2)
    results = []
    for gradient in (
        tf.IndexedSlices(tf.constant(values), tf.constant(rows), tf.constant(shape)),
        tf.constant([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0], [0.0, 0.0]]),
    ):
        variable, optimizer = keras.Variable(np.zeros(shape, "float32")), training.Adam(0.1)
        optimizer.build([variable])
        for _ in range(2):
            optimizer.apply([gradient], [variable])
        results.append([each.numpy() for each in optimizer.variables] + [variable.numpy()])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@on_tensorflow
def test_an_update_is_one_operation():
    import tensorflow as tf

    variable, optimizer = keras.Variable([1.0, 2.0]), training.Adam(0.1)
    optimizer.build([variable])
    update = tf.function(lambda gradient: optimizer.apply([gradient], [variable]))
    graph = update.get_concrete_function(tf.TensorSpec([2])).graph
    operations = [each.type for each in graph.get_operations()]
    assert operations.count("ResourceApplyAdam") == 1
    assert "Sqrt" not in operations
