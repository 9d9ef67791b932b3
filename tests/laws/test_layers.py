"""Laws of every layer; add new layers and variants as cases in `layers.py`."""

import functools
import inspect
import json

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import ConvolutionalSubsampling

from .cases import (
    CLOSE,
    call,
    normal,
    numbers,
    over,
    stateless,
    tensors,
    training,
    weight_gradients,
)
from .layers import LAYERS

each_layer = over(LAYERS)
each_dropping = over(LAYERS, lambda case: any("dropout" in name or name == "rate" for name in case.options))
each_masked = over(LAYERS, lambda case: case.masks())
each_sequence = over(
    LAYERS,
    lambda case: (
        case.first().dtype.kind == "f"
        and case.first().ndim == 3
        and case.make is not ConvolutionalSubsampling
    ),
)


@functools.cache
def shared(case):
    """Return a layer with random weights, which tests share and do not change."""
    return case.built()


@each_layer
def test_config_has_every_argument_and_creates_an_equal_layer(case):
    layer = case.new(dtype="mixed_float16")
    config, kind = layer.get_config(), type(layer)
    arguments = set(inspect.signature(kind).parameters) - {"kwargs"}
    assert arguments - set(config) == set()
    serialised = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    for again in (kind.from_config(config), keras.saving.deserialize_keras_object(serialised)):
        assert again.get_config() == config
    for name, value in case.options.items():
        if not isinstance(config.get(name, {}), dict):  # of an object
            assert config[name] == value, name


@each_layer
def test_outputs_are_equal_after_loading(case, tmp_path):
    model = case.functional()
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(again(case.inputs), model(case.inputs))
    assert [weight.name for weight in again.weights] == [weight.name for weight in model.weights]


@each_layer
def test_symbolic_outputs_have_the_shapes_and_dtypes_of_the_outputs(case):
    layer = shared(case)
    output = call(layer, case.inputs)
    fixed = {name: keras.KerasTensor(x.shape, x.dtype) for name, x in case.inputs.items()}
    known, unknown = call(layer, fixed), call(case.new(), case.symbols())
    assert known.shape == output.shape
    assert unknown.shape[0] is None
    assert all(size in (None, given) for size, given in zip(unknown.shape, output.shape, strict=True))
    for symbol in (known, unknown):
        assert symbol.dtype == keras.backend.standardize_dtype(output.dtype)


@each_layer
def test_examples_of_a_batch_do_not_affect_each_other(case):
    layer = shared(case)
    output = numbers(call(layer, case.inputs))
    for row in range(len(output)):
        single = {name: value[row : row + 1] for name, value in case.inputs.items()}
        np.testing.assert_allclose(call(layer, single)[0], output[row], **CLOSE)
    if case.options.get("kernel") == "chunked":
        return  # does not support an empty batch
    nothing = {name: value[:0] for name, value in case.inputs.items()}
    assert call(layer, nothing).shape == (0, *output.shape[1:])


@over(LAYERS, slow=("EncoderBlock", "DecoderBlock", "S4D", "Mamba2"))
@pytest.mark.parametrize("mode", [pytest.param("graph", marks=pytest.mark.slow), "xla"])
def test_compiled_outputs_equal_eager_outputs_with_dropout(case, mode, modes):
    if mode not in modes:
        pytest.skip("no such mode on this backend")
    layer, inputs = case.built(), tensors(case.inputs)
    function = stateless(layer, inputs, **training(layer))
    weights = [ops.copy(weight) for weight in layer.trainable_weights]
    np.testing.assert_allclose(modes[mode](function)(weights, inputs), function(weights, inputs), **CLOSE)


@each_layer
def test_every_weight_has_a_gradient(case):
    layer = shared(case)
    config = layer.get_config()
    distances = config.get("shared_query_key") and config["score"]["class_name"] == "RBF"
    for path, gradient in weight_gradients(layer, case.inputs).items():
        assert np.isfinite(gradient).all(), path
        has_gradient = np.abs(gradient).max() > 1e-5
        if distances and path.endswith("query/bias"):  # a bias of queries and keys changes no distance
            assert not has_gradient, path
        else:
            # A key bias changes all scores of a query equally.
            assert has_gradient or path.endswith("key/bias"), path


@each_layer
@pytest.mark.parametrize("precision", ["float16", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_mixed_precision_is_accurate_and_finite_with_padded_rows(case, precision):
    exact = shared(case)
    layer = case.new(dtype=f"mixed_{precision}")
    found = call(layer, case.inputs)
    layer.set_weights(exact.get_weights())
    found, expected = call(layer, case.inputs), numbers(call(exact, case.inputs))
    positions_only = next(iter(case.inputs)) == "query_positions"  # a bias is added to scores in float32
    assert keras.backend.standardize_dtype(found.dtype) == ("float32" if positions_only else precision)
    assert {weight.dtype for weight in layer.trainable_weights} <= {"float32"}
    scale = max(1, np.abs(expected).max())
    np.testing.assert_allclose(numbers(found), expected, atol=0.03 * scale, rtol=0.05)
    padded = {name: value & False if name in case.masks() else value for name, value in case.inputs.items()}
    padded = {name: value * 20 if value.dtype.kind == "f" else value for name, value in padded.items()}
    assert np.isfinite(numbers(call(layer, padded, **training(layer)))).all()
    for path, gradient in weight_gradients(layer, padded, **training(layer)).items():
        assert np.isfinite(gradient).all(), path


@each_dropping
def test_dropout_applies_only_during_training_and_is_reproducible(case):
    calls = []
    for _ in range(2):
        keras.utils.set_random_seed(7)
        layer = case.built()
        calls.append([numbers(call(layer, case.inputs, training=True)) for _ in range(2)])
    np.testing.assert_array_equal(*calls)
    expected = numbers(call(layer, case.inputs))
    np.testing.assert_array_equal(call(layer, case.inputs, training=False), expected)
    first, second = calls[0]
    assert not np.allclose(first, second)
    assert not np.allclose(first, expected)


def hidden_noise(case, name):
    """Return the inputs with large noise at positions that a mask hides."""
    covered, mask = case.masks()[name], case.inputs[name]
    value = case.inputs[covered]
    noise = 50 * normal(*value.shape, seed=5)
    return {**case.inputs, covered: np.where(mask[..., None], value, noise)}


def visible(case, output):
    """Return the outputs at positions of the first input that no mask hides."""
    hidden = next(
        (mask for mask, covered in case.masks().items() if covered == next(iter(case.inputs))), None
    )
    return numbers(output) if hidden is None else numbers(output)[case.inputs[hidden]]


@each_masked
def test_padding_does_not_change_other_outputs(case):
    layer = shared(case)
    expected = visible(case, call(layer, case.inputs))
    for name in case.masks():
        found = visible(case, call(layer, hidden_noise(case, name)))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=name)


def with_mask_of_keras(value, mask):
    """Return a tensor with a Keras mask; zeros where it is False."""
    return keras.layers.Masking(77.0)(np.where(mask[..., None], value, np.float32(77)))


@each_masked
def test_an_implicit_keras_mask_equals_the_mask_argument(case):
    layer = shared(case)
    masked, bare = dict(case.inputs), dict(case.inputs)
    for name, covered in case.masks().items():
        masked[covered] = with_mask_of_keras(case.inputs[covered], case.inputs[name])
        bare[covered] = np.asarray(masked[covered])
    implicit = {name: value for name, value in masked.items() if name not in case.masks()}
    expected = call(layer, bare)
    np.testing.assert_allclose(call(layer, implicit), expected, rtol=1e-6, atol=1e-6)
    # An implicit Keras mask and an explicit mask are combined.
    both, given = dict(bare), dict(masked)
    for name in case.masks():
        other = np.arange(case.inputs[name].shape[1]) != [[1], [0]]
        both[name], given[name] = case.inputs[name] & other, other
    np.testing.assert_allclose(call(layer, given), call(layer, both), rtol=1e-6, atol=1e-6)


@each_sequence
def test_the_output_has_the_mask_of_the_first_input(case):
    layer, pool = shared(case), keras.layers.GlobalAveragePooling1D()
    first, *others = case.inputs
    mask = np.arange(case.inputs[first].shape[1]) < [[3], [2]]
    masked = with_mask_of_keras(case.inputs[first], mask)
    inputs = {name: case.inputs[name] for name in others if name not in case.masks()}
    output = call(layer, {first: masked, **inputs})
    np.testing.assert_allclose(pool(output), pool(numbers(output), mask=mask), **CLOSE)
    if "value" in case.inputs:  # the query mask does not hide keys
        np.testing.assert_array_equal(output, call(layer, {first: numbers(masked), **inputs}))


@pytest.mark.slow_variants
@each_layer
def test_fit_decreases_the_loss_and_updates_every_weight(case):
    model = case.functional()
    weights = [weight for weight in model.trainable_weights if not weight.path.endswith("key/bias")]
    if not weights:
        return
    values, output = [numbers(weight) for weight in weights], numbers(model(case.inputs))
    model.compile(keras.optimizers.SGD(1e-2), "mse")
    model.fit(case.inputs, np.zeros_like(output), epochs=3, verbose=0)
    assert np.square(numbers(model(case.inputs))).mean() < np.square(output).mean()
    for weight, value in zip(weights, values, strict=True):
        assert not np.array_equal(weight, value), weight.path
