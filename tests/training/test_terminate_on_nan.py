import keras
import numpy as np
import pytest

from keras_transformer import data, models, training

pytestmark = pytest.mark.backend_neutral


class Break(keras.callbacks.Callback):
    """Set a weight to NaN before a batch of an epoch."""

    def __init__(self, epoch, batch):
        super().__init__()
        self.place, self.epoch = (epoch, batch), 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == self.place:
            weight = self.model.trainable_variables[0]
            weight.assign(np.full(weight.shape, np.nan))


def test_the_report_names_and_contains_the_batch(bigrams, padded_batches, tmp_path, capsys):
    callbacks = [training.TerminateOnNaN(tmp_path / "new"), Break(1, 2), training.Progress()]
    history = bigrams().fit(padded_batches, epochs=4, shuffle=False, verbose=0, callbacks=callbacks)
    assert len(history.epoch) == 2
    assert padded_batches.epochs.next_epoch == 2
    path = tmp_path / "new" / "batch-3-of-epoch-2.npz"
    assert capsys.readouterr().out == (
        "\nTraining is terminated: the loss is nan after batch 3 of epoch 2. "
        f"1 of 1 weights are not finite: embedding/embeddings. The batch is in {path}.\n"
    )
    padded_batches.epochs.start_at(1, 2)
    (x, y) = next(iter(padded_batches))
    with np.load(path) as saved:
        np.testing.assert_array_equal(saved["token_ids"], x["token_ids"])
        np.testing.assert_array_equal(saved["y"], y)
        assert len(saved.files) == 2


class Linear(models.model.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.dense.build((None, 2))

    def call(self, inputs):
        return self.dense(inputs)


def linear_batches(value):
    """Return four batches of 5 rows, the third with `value` in rows 1 and 4."""
    x = np.random.default_rng(0).normal(size=(20, 2)).astype("float32")
    x[[11, 14], 1] = value

    def objective(batch):
        return x[batch.rows], np.zeros((5, 1), "float32"), np.ones(5, "float32")

    order = data.epochs.RowOrder(20, 5, False, data.epochs.Shard())
    return data.batches.batches(order, objective, 0, [x])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_error_names_the_rows_of_the_batch(value, tmp_path):
    model = Linear()
    model.compile("sgd", "mse", run_eagerly=True)
    callbacks = [training.TerminateOnNaN(tmp_path, raise_error=True)]
    expected = r"after batch 3 of epoch 1. `x` of the batch is not finite in rows 1, 4. 2 of 2 weights"
    with pytest.raises(RuntimeError, match=expected):
        model.fit(linear_batches(value), shuffle=False, verbose=0, callbacks=callbacks)
    with np.load(tmp_path / "batch-3-of-epoch-1.npz") as saved:
        assert sorted(saved.files) == ["sample_weight", "x", "y"]


def test_training_on_arrays_writes_no_report(bigrams, padded_batches, tmp_path, capsys):
    x, y = next(iter(padded_batches))
    callbacks = [training.TerminateOnNaN(tmp_path), Break(0, 1)]
    bigrams().fit(
        {"token_ids": np.asarray(x["token_ids"])}, np.asarray(y), 1, epochs=3, verbose=0, callbacks=callbacks
    )
    assert "after batch 2 of epoch 1. 1 of 1 weights are not finite" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_reported(bigrams, padded_batches, tmp_path, capsys):
    (tmp_path / "file").touch()
    callbacks = [training.TerminateOnNaN(tmp_path / "file"), Break(0, 0)]
    bigrams().fit(padded_batches, shuffle=False, verbose=0, callbacks=callbacks)
    assert "The batch could not be saved" in capsys.readouterr().out


@pytest.mark.slow
def test_an_update_skipped_by_loss_scaling_is_not_an_error(bigrams, padded_batches, tmp_path, capsys):
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-3), initial_scale=3e38)
    model = bigrams(optimizer, normalizer=0.2)  # gradients that overflow in float16
    callbacks = [training.TerminateOnNaN(tmp_path)]
    history = model.fit(padded_batches, epochs=4, shuffle=False, verbose=0, callbacks=callbacks)
    assert len(history.epoch) == 4
    assert float(optimizer.dynamic_scale.value) < 3e38
    assert 0 < int(optimizer.iterations.value) < 12
    assert not capsys.readouterr().out
