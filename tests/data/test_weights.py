import keras
import numpy as np
import tensorflow as tf

from keras_transformer import data
from keras_transformer.data import batches as datasets
from keras_transformer.data import epochs


def batches():
    drawn = np.random.default_rng(0)
    inputs, labels = drawn.normal(size=(12, 3)).astype("float32"), drawn.integers(0, 4, 12)
    return tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(5)


def trained(dataset, **options):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, kernel_initializer="ones")])
    model.compile(
        keras.optimizers.SGD(1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    model.fit(dataset, shuffle=False, verbose=0, **options)
    return model.get_weights()[0]


def test_class_weights_equal_class_weight_of_fit():
    weights = {1: 3.0, 2: 0.0}
    expected = trained(batches(), class_weight={0: 1.0, 3: 1.0, **weights})
    np.testing.assert_allclose(trained(data.with_class_weight(batches(), weights)), expected, rtol=1e-6)
    assert np.abs(trained(batches()) - expected).max() > 1e-3


def test_class_weights_multiply_sample_weights():
    once = data.with_class_weight(batches(), {1: 3.0, 2: 0.5})
    twice = data.with_class_weight(once, {1: 2.0})
    for (_, labels, first), (_, _, both) in zip(once, twice, strict=True):
        assert np.array_equal(first, np.array([1, 3, 0.5, 1], "float32")[labels])
        assert np.array_equal(both, np.array([1, 6, 0.5, 1], "float32")[labels])


def test_a_weighted_dataset_keeps_its_position_but_changes_its_fingerprint():
    order = epochs.RowOrder(3, 1, False, epochs.Shard())
    dataset = datasets.batches(order, lambda batch: (batch.rows, batch.rows), 0, [])
    weighted = data.with_class_weight(dataset, {2: 5.0})
    weighted.epochs.start_at(1, 1)
    assert [float(weights[0]) for _, _, weights in weighted.take(2)] == [1.0, 5.0]
    found = {
        each.epochs.fingerprint for each in (dataset, weighted, data.with_class_weight(dataset, {2: 4.0}))
    }
    assert len(found) == 3
