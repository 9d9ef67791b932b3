import time

import keras
import numpy as np
import pytest

from keras_transformer import models, training
from keras_transformer.training import progress

pytestmark = pytest.mark.backend_neutral

TINY = {"num_layers": 1, "num_heads": 1, "model_dim": 4, "hidden_dim": 4}


class Watch(keras.callbacks.Callback):
    """Advance a clock by 2 s for each batch and by 100 s for each validation, and keep the logs of batches."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.now, self.logs = 1000.0, []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def on_train_batch_begin(self, batch, logs=None):
        self.now += 2

    def on_test_begin(self, logs=None):
        self.now += 100

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append(dict(logs))


def arrays(dataset):
    x, y = zip(*dataset, strict=True)
    joined = np.concatenate([np.asarray(each["token_ids"]) for each in x])
    return {"token_ids": joined}, np.concatenate([np.asarray(each) for each in y])


def generator(dataset):
    while True:
        for x, y in dataset:
            yield {name: np.asarray(value) for name, value in x.items()}, np.asarray(y)


@pytest.mark.slow_variants
@pytest.mark.parametrize("form", ["dataset", "arrays", "generator"])
def test_logs_contain_training_speed_and_remaining_time(form, bigrams, padded_batches, monkeypatch):
    watch = Watch(monkeypatch)
    x, y = arrays(padded_batches)
    given = {
        "dataset": {"x": padded_batches},
        "arrays": {"x": x, "y": y, "batch_size": 4},
        "generator": {"x": generator(padded_batches), "steps_per_epoch": 3},
    }[form]
    rate = training.TransformerSchedule(4, 2)
    history = bigrams(keras.optimizers.SGD(rate)).fit(
        **given,
        shuffle=False,
        epochs=2,
        validation_data=(x, y),
        verbose=0,
        callbacks=[watch, training.Progress()],
    )
    per_second = np.count_nonzero(y) / 3 / 2
    np.testing.assert_allclose(history.history["tokens_per_second"][1], per_second, rtol=0.2)
    if form != "generator":  # batches are prefetched
        np.testing.assert_allclose(history.history["tokens_per_second"], per_second)
    np.testing.assert_allclose(history.history["learning_rate"], [float(rate(3)), float(rate(6))], rtol=1e-5)
    assert "minutes_left" not in history.history
    assert "tokens_per_second" not in watch.logs[0]  # compilation
    left = [logs["minutes_left"] * 60 for logs in watch.logs[1:]]
    # 4 and 3 remaining batches of 2 s; from then on, the mean time includes the validation of 100 s.
    np.testing.assert_allclose(left, [8, 6, 2 * 106 / 3, 108 / 4, 0])


@pytest.mark.slow
def test_the_time_budget_determines_the_remaining_time(bigrams, padded_batches, monkeypatch):
    for order in (1, -1):
        watch = Watch(monkeypatch)
        callbacks = [training.Progress(), training.TimeBudget(1, 0.1)][::order]
        bigrams().fit(padded_batches, epochs=4, shuffle=False, verbose=0, callbacks=[*callbacks, watch])
        np.testing.assert_allclose([logs["minutes_left"] for logs in watch.logs], 1 - np.arange(12) / 30)


def test_models_without_token_counts_log_the_learning_rate():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    history = model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0, callbacks=[training.Progress()])
    assert history.history["learning_rate"] == pytest.approx([0.01])
    assert "tokens_per_second" not in history.history


def test_tokens_are_counted_without_padding():
    ids = np.array([[5, 6, 0], [7, 0, 0]])
    translator = models.Transformer(9, **TINY)
    assert translator.count_tokens({"source_ids": ids, "target_ids": ids[:, :2]}) == 6
    assert models.SequenceClassifier(models.BERT(9, **TINY), 2).count_tokens(ids) == 3
    decoder = models.GPT(9, **TINY, pad_id=None)
    assert decoder.count_tokens(ids) == 6
    assert decoder.count_tokens({"token_ids": ids, "padding_mask": ids > 0}) == 3
    assert decoder.count_tokens({"token_ids": ids, "lengths": np.array([2, 1])}) == 3


@pytest.mark.parametrize("verbose", ["auto", 0, 2])
def test_progress_is_logged_without_a_total(capsys, verbose):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((2, 1))
    model.fit(x, x, epochs=3, callbacks=[progress.EpochsWithoutTotal()], verbose=verbose)
    printed = capsys.readouterr().out.splitlines()
    titles = [line for line in printed if line.startswith("Epoch")]
    assert titles == ([] if verbose == 0 else ["Epoch 1", "Epoch 2", "Epoch 3"])
    assert ("loss" in "".join(printed)) == (verbose != 0)
