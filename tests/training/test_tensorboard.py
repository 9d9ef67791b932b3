"""Keras' TensorBoard callback with models of this package, if tensorboard is installed."""

import keras
import numpy as np
import pytest

from keras_transformer import models, training

pytestmark = [pytest.mark.slow, pytest.mark.backend_neutral]


def tags(folder):
    """Return the tags of the event files of a folder."""
    tf = pytest.importorskip("tensorflow")
    from tensorflow.core.util.event_pb2 import Event

    files = [str(path) for path in folder.glob("events*")]
    events = [Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(files)]
    return {value.tag for event in events for value in event.summary.value}


@pytest.mark.parametrize("update_freq", ["epoch", "batch"])
def test_events_contain_loss_learning_rate_speed_and_weights(update_freq, tmp_path):
    pytest.importorskip("tensorboard")
    model = models.GPT(12, 1, 2, 8, max_length=8)
    rate = training.TransformerSchedule(8, 10)
    model.compile(keras.optimizers.Adam(rate), training.LabelSmoothedCrossentropy(0.1))
    ids = np.random.default_rng(0).integers(1, 12, (12, 6))
    board = keras.callbacks.TensorBoard(
        tmp_path, write_graph=True, histogram_freq=1, update_freq=update_freq, write_steps_per_second=True
    )
    callbacks = [board, training.Evaluation(lambda: 0.5), training.Progress()]
    model.fit(ids, ids, batch_size=4, epochs=2, validation_data=(ids, ids), verbose=0, callbacks=callbacks)
    found, validation = tags(tmp_path / "train"), tags(tmp_path / "validation")
    assert {"epoch_loss", "epoch_learning_rate", "epoch_tokens_per_second"} <= found
    assert {"epoch_loss", "epoch_score"} <= validation
    assert any(tag.endswith("embeddings/histogram") for tag in found)
    assert ({"batch_loss", "batch_learning_rate"} <= found) == (update_freq == "batch")
