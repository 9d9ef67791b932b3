"""A model keeps its weights if `fit`, `evaluate` or `predict` is interrupted or raises an error."""

import os
import signal

import keras
import numpy as np
import pytest

from keras_transformer import models
from keras_transformer.training import LabelSmoothedCrossentropy

pytestmark = [
    pytest.mark.backend_neutral,
    pytest.mark.usefixtures("interrupts_are_handled"),
    pytest.mark.skipif(
        keras.backend.backend() != "jax", reason="only on JAX, Keras takes the weights out of the model"
    ),
]

IDS = np.array([[2, 5, 6, 3], [2, 7, 3, 0]], "int32")


class Batches(keras.utils.PyDataset):
    """Batches that raise an error, or interrupt the process, at one of them."""

    def __init__(self, at, event):
        super().__init__()
        self.at, self.event = at, event

    num_batches = 4

    def __getitem__(self, index):
        if index == self.at:
            self.event()
        return IDS, IDS


class AtBatch(keras.callbacks.Callback):
    """A callback that raises an error or interrupts the process at the beginning or end of a batch."""

    def __init__(self, at, event):
        super().__init__()
        self.at, self.event = at, event

    def on_train_batch_begin(self, batch, logs=None):
        if batch >= self.at:
            self.event()

    on_test_batch_end = on_predict_batch_end = on_train_batch_begin


def fail():
    raise RuntimeError("an error of the test")


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize("event", [fail, interrupt], ids=lambda event: event.__name__)
@pytest.mark.parametrize("at", [0, 2])
def test_weights_are_kept(method, event, at):
    model = models.GPT(20, 1, 2, 8, max_length=8, dropout=0.0)
    model.compile("adam", LabelSmoothedCrossentropy(), steps_per_execution=2 if at else 1)
    labels = {} if method == "predict" else {"y": IDS.repeat(6, 0)}
    expected, before = model.get_weights(), signal.getsignal(signal.SIGINT)
    for arguments in (
        {"x": Batches(at, event)},
        {"x": IDS.repeat(6, 0), **labels, "batch_size": 2, "callbacks": [AtBatch(at, event)]},
    ):
        with pytest.raises((RuntimeError, KeyboardInterrupt)):
            getattr(model, method)(**arguments, verbose=0)
        found = model.get_weights()
        assert all(np.isfinite(each).all() for each in found)
        if method != "fit":
            for each, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(each, other)
    assert signal.getsignal(signal.SIGINT) is before
    assert np.isfinite(np.asarray(model(IDS))).all()
    model.fit(IDS, IDS, verbose=0)


@pytest.mark.parametrize("method", ["train_on_batch", "test_on_batch", "predict_on_batch"])
def test_weights_are_kept_in_a_batch(method):
    model = models.GPT(20, 1, 2, 8, max_length=8, dropout=0.0)
    model.compile("adam", LabelSmoothedCrossentropy())
    data = [IDS] if method == "predict_on_batch" else [IDS, IDS]
    getattr(model, method)(*data)
    step = getattr(model, method.replace("on_batch", "function"))

    for event in (fail, interrupt):

        def with_event(*arguments, event=event):
            outputs = step(*arguments)
            event()
            return outputs

        setattr(model, method.replace("on_batch", "function"), with_event)
        with pytest.raises((RuntimeError, KeyboardInterrupt)):
            getattr(model, method)(*data)
        assert all(np.isfinite(each).all() for each in model.get_weights())
    setattr(model, method.replace("on_batch", "function"), step)
    model.train_on_batch(IDS, IDS)
