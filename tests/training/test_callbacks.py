import contextlib
import itertools
import math
import time

import keras
import numpy as np
import pytest

from keras_transformer.training import TimeBudget

pytestmark = pytest.mark.backend_neutral


class LastEpochs(keras.callbacks.Callback):
    """Train only the last two epochs."""

    epochs = None

    @contextlib.contextmanager
    def fit_context(self, model, arguments):
        arguments["initial_epoch"] = arguments["epochs"] - 2
        yield
        self.epochs = model.history.epoch


def test_callbacks_can_change_the_arguments_of_fit_and_enclose_it(bigrams, padded_batches):
    callback = LastEpochs()
    bigrams().fit(padded_batches, epochs=5, shuffle=False, verbose=0, callbacks=callback)
    assert callback.epochs == [3, 4]
    assert padded_batches.epochs.current == (4, 0)


class Clock:
    """A clock that advances only when set."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made)
    return made


def fit(clock, /, seconds_a_batch, epochs=1000, batches=4, **options):
    """Train with a clock that advances by `seconds_a_batch`; return the rate of each batch, history, model, budget."""
    options = {"minutes": 1, "peak_rate": 0.5, "warmup": 0.25, **options}
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(123.0), "mse")
    rates = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))

        def on_train_batch_end(self, batch, logs=None):
            clock.now += seconds_a_batch

    data = np.zeros((batches, 1), "float32")
    budget = TimeBudget(**options)
    history = model.fit(
        data, data, batch_size=1, epochs=epochs, verbose=0, callbacks=[Watch(), budget], shuffle=False
    )
    return rates, history, model, budget


def test_the_rate_rises_to_the_peak_and_decays_to_zero_at_the_end(clock):
    rates, history, _, _ = fit(clock, seconds_a_batch=3)
    # The clock starts with the end of batch 0; batch n begins 3 (n - 1) seconds later.
    shares = [3 * n / 60 for n in range(20)]
    expected = [0.0005] + [0.5 * max(1e-3, min(f / 0.25, (1 - f) / 0.75)) for f in shares]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)
    peak = int(np.argmax(rates))
    assert all(a < b for a, b in itertools.pairwise(rates[1 : peak + 1]))
    assert all(a > b for a, b in itertools.pairwise(rates[peak:]))
    assert rates[peak] == pytest.approx(0.5)
    assert len(history.epoch) == 6


def test_the_clock_starts_after_the_first_batch(clock):
    clock.now += 10_000
    rates, *_ = fit(clock, seconds_a_batch=6)
    assert len(rates) == 11


def test_another_clock_measures_the_time(clock):
    rates, *_ = fit(clock, seconds_a_batch=6, clock=lambda: 2 * clock.now)
    assert len(rates) == 6


def test_training_can_end_within_an_epoch(clock):
    rates, *_ = fit(clock, seconds_a_batch=61, batches=10)
    assert len(rates) == 2


def test_training_may_end_before_the_time_budget(clock):
    rates, *_ = fit(clock, seconds_a_batch=0.1, epochs=2)
    assert len(rates) == 8


def test_a_second_fit_restarts_the_clock(clock):
    rates, _, model, budget = fit(clock, seconds_a_batch=20)
    clock.now += 5000
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)
            clock.now += 20

    data = np.zeros((4, 1), "float32")
    model.fit(data, data, batch_size=1, epochs=1000, verbose=0, callbacks=[Watch(), budget])
    assert len(seen) == len(rates)


def test_a_learning_rate_schedule_raises_an_error():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10)), "mse")
    data = np.zeros((4, 1), "float32")
    with pytest.raises((TypeError, ValueError), match=r"[Ss]chedule"):
        model.fit(data, data, verbose=0, callbacks=[TimeBudget(1, 0.1)])


@pytest.mark.parametrize(
    ("argument", "value"),
    [("minutes", 0), ("minutes", -1), ("minutes", math.nan), ("minutes", math.inf)]
    + [("peak_rate", 0.0), ("peak_rate", -1e-3), ("peak_rate", math.nan)]
    + [("warmup", value) for value in (0, 1, -0.1, 1.1, math.nan)],
)
def test_arguments_out_of_range_are_rejected(argument, value):
    options = {"minutes": 1, "peak_rate": 0.1, argument: value}
    with pytest.raises(ValueError, match=f"`{argument}` must .*Received: {argument}="):
        TimeBudget(**options)


def test_a_resumed_time_budget_continues_with_the_remaining_time(clock):
    """The clock starts after the first batch of the resumed training, which includes compilation."""
    _, _, model, budget = fit(clock, seconds_a_batch=3, epochs=2)  # 7 of 8 batches are counted
    resumed = TimeBudget(minutes=1, peak_rate=0.5)
    resumed.set_model(model)
    resumed.on_train_begin()
    resumed.set_state(budget.get_state())
    clock.now += 1000
    model.stop_training, batches = False, 0
    while not model.stop_training:
        resumed.on_train_batch_end(batches)
        clock.now += 3
        batches += 1
    assert batches == 1 + 60 // 3 - 7
