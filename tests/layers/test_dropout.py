import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import Dropout

pytestmark = pytest.mark.backend_neutral

ONES = np.ones((20, 30), "float32")


def test_dropout_is_the_identity_in_inference():
    layer = Dropout(0.5)
    for training in (None, False):
        np.testing.assert_array_equal(layer(ONES, training=training), ONES)
    np.testing.assert_array_equal(Dropout(0.0)(ONES, training=True), ONES)


def test_dropout_drops_a_fraction_and_scales_the_rest_in_training():
    output = np.asarray(Dropout(0.25, seed=1)(np.ones((200, 300), "float32"), training=True))
    assert set(np.unique(output)) == {0, np.float32(1 / 0.75)}
    assert abs((output == 0).mean() - 0.25) < 0.01


@pytest.mark.parametrize("seed", [0, 1, None])
def test_every_call_drops_different_elements(seed):
    layer = Dropout(0.5, seed=seed)
    masks = [np.asarray(layer(ONES, training=True)) != 0 for _ in range(4)]
    for i, a in enumerate(masks):
        for b in masks[:i]:
            assert 0.35 < (a == b).mean() < 0.65
            assert 0.35 < (a[1:] == b[:-1]).mean() < 0.65


def test_layers_without_a_seed_differ_and_follow_the_global_seed():
    outputs = []
    for _ in range(2):
        keras.utils.set_random_seed(7)
        outputs.append([np.asarray(Dropout(0.5)(ONES, training=True)) for _ in range(2)])
    np.testing.assert_array_equal(*outputs)
    assert not np.array_equal(*outputs[0])


def test_one_seed_drops_the_same_elements_in_every_mode(modes):
    expected = np.asarray(Dropout(0.5, seed=3)(ONES, training=True))
    if keras.config.backend() == "jax":
        pytest.skip("a seed generator inside jax.jit needs stateless_call")
    for name, wrap in modes.items():
        layer = Dropout(0.5, seed=3)
        layer.build(ONES.shape)
        found = wrap(lambda x, layer=layer: layer(x, training=True))(ops.convert_to_tensor(ONES))
        np.testing.assert_array_equal(found, expected, err_msg=name)
