import contextlib
import os
import resource
import signal

import keras
import numpy as np
import pytest

from keras_transformer import data, models, training
from keras_transformer.text import ByteTokenizer

TEXTS = [f"{n} + {m} = {n + m}" for n in range(6) for m in range(6)]
EPOCHS, BATCHES = 3, 6
RATE = training.TransformerSchedule(8, 10)


def batches(texts=TEXTS, seed=0):
    return data.language_modeling(texts, ByteTokenizer(), 8, length=8, seed=seed)


@keras.saving.register_keras_serializable(package="test_exact_resume")
class Tiny(models.model.Model):
    """An embedding with dropout, which compiles quickly."""

    def __init__(self, dropout=0.3):
        super().__init__()
        self.embedding = keras.layers.Embedding(ByteTokenizer().vocabulary_size, 8)
        self.dropout = keras.layers.Dropout(dropout)
        self.head = keras.layers.Dense(ByteTokenizer().vocabulary_size)
        self(keras.ops.zeros((1, 1), "int32"))

    def call(self, inputs, training=None):
        ids = inputs["token_ids"] if isinstance(inputs, dict) else inputs
        return self.head(self.dropout(self.embedding(ids), training=training))

    def get_config(self):
        return {"dropout": self.dropout.rate}


def model(dropout=0.3, optimizer=None, smoothing=0.1):
    keras.utils.set_random_seed(1)
    return compiled(Tiny(dropout), optimizer, smoothing)


def compiled(made, optimizer=None, smoothing=0.1):
    made.compile(
        optimizer or keras.optimizers.Adam(RATE),
        training.LabelSmoothedCrossentropy(smoothing, pad_id=ByteTokenizer().pad_id),
        metrics=[training.TokenAccuracy()],
    )
    return made


class Stop(keras.callbacks.Callback):
    """End training with an error after a number of batches, as a crash would."""

    def __init__(self, batches):
        super().__init__()
        self.left = batches

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise RuntimeError("crash")


def fit(
    made,
    folder=None,
    stop=None,
    epochs=EPOCHS,
    save_freq=1,
    callbacks=(),
    dataset=None,
    validation=TEXTS[:6],
    initial_epoch=0,
):
    found = [
        keras.callbacks.EarlyStopping("loss", patience=2, restore_best_weights=True),
        *callbacks,
    ]
    if folder is not None:
        found.insert(0, training.ExactResume(folder, save_freq))
    if stop is not None:
        found.append(Stop(stop))
    dataset = batches() if dataset is None else dataset
    return made.fit(
        dataset,
        validation_data=batches(validation),
        epochs=epochs,
        initial_epoch=initial_epoch,
        verbose=0,
        callbacks=found,
    )


def state(made):
    return [keras.ops.convert_to_numpy(each) for each in (*made.variables, *made.optimizer.variables)]


@pytest.fixture(scope="module")
def uninterrupted():
    """Return the history and the state of a run without the callback."""
    made = model()
    return fit(made), state(made)


@pytest.mark.backend_neutral
@pytest.mark.slow_variants
@pytest.mark.parametrize("stop", [9, 1, 6, 7, 12, 17, 18])
def test_resumed_training_equals_uninterrupted_training(stop, uninterrupted, tmp_path):
    with pytest.raises(RuntimeError, match="crash"):
        fit(model(), tmp_path, stop)
    made = model()
    history = fit(made, tmp_path, callbacks=[_Nothing()])
    assert history.history == uninterrupted[0].history
    assert history.epoch == uninterrupted[0].epoch
    assert all(map(np.array_equal, state(made), uninterrupted[1]))
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.backend_neutral
@pytest.mark.slow
def test_training_with_an_initial_epoch_is_resumed(tmp_path):
    expected = fit(made := model(), initial_epoch=1)
    with pytest.raises(RuntimeError, match="crash"):
        fit(model(), tmp_path, BATCHES - 1, initial_epoch=1)
    history = fit(again := model(), tmp_path, callbacks=[_Nothing()], initial_epoch=1)
    assert history.epoch == expected.epoch
    assert history.history == expected.history
    assert all(map(np.array_equal, state(again), state(made)))


class Losses(keras.callbacks.Callback):
    """Record the loss after each batch, which shows the order of batches if nothing is learned."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])


@pytest.mark.backend_neutral
def test_each_epoch_of_fit_uses_the_next_epoch_of_the_dataset():
    made = model(dropout=0.0, optimizer=keras.optimizers.SGD(0.0))

    def losses(dataset, **epochs):
        seen = Losses()
        made.fit(dataset, shuffle=False, verbose=0, callbacks=[seen], **epochs)
        return seen.losses

    dataset = batches()
    expected = losses(dataset, epochs=3)
    assert len({tuple(expected[i : i + BATCHES]) for i in (0, BATCHES, 2 * BATCHES)}) == 3
    compiled(made, keras.optimizers.SGD(0.0))  # metrics and loss are built again
    again = batches()
    assert losses(again, epochs=1) == expected[:BATCHES]
    assert losses(again, epochs=2) == expected[BATCHES:]
    assert losses(dataset, initial_epoch=2, epochs=3) == expected[-BATCHES:]
    assert losses(dataset, initial_epoch=1, epochs=2) == expected[BATCHES:-BATCHES]


class _Nothing(Stop):
    """Stand-in for `Stop`, as states record the names of callbacks."""

    def __init__(self):
        super().__init__(-1)


_Nothing.__name__ = "Stop"


class _HalfRate(keras.callbacks.Callback):
    """Halve the learning rate after each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        optimizer = self.model.optimizer
        optimizer.learning_rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate)) / 2


@pytest.mark.slow
@pytest.mark.backend_neutral
def test_the_scale_of_a_loss_scale_optimizer_is_restored(tmp_path):
    """The interrupted model itself resumes, as in a notebook, with a changed learning rate."""

    def scaled():
        inner = keras.optimizers.Adam(0.1, gradient_accumulation_steps=2)
        return model(optimizer=keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=2))

    expected, made = scaled(), scaled()
    history = fit(expected, callbacks=[_HalfRate(), _Nothing()])
    assert float(keras.ops.convert_to_numpy(expected.optimizer.dynamic_scale)) > 2**20
    with pytest.raises(RuntimeError, match="crash"):
        fit(made, tmp_path, 9, callbacks=[_HalfRate()])
    assert fit(made, tmp_path, callbacks=[_HalfRate(), _Nothing()]).history == history.history
    assert all(map(np.array_equal, state(made), state(expected)))


@pytest.mark.slow
def test_complete_training_is_not_repeated_but_can_be_extended(tmp_path, uninterrupted):
    fit(model(), tmp_path)
    again = model()
    history = fit(again, tmp_path)
    assert history.history == uninterrupted[0].history
    assert all(map(np.array_equal, state(again), uninterrupted[1]))
    assert fit(again, tmp_path, epochs=EPOCHS + 1).epoch == [*range(EPOCHS + 1)]


@pytest.mark.slow
def test_training_resumes_from_the_previous_state_if_the_last_is_damaged(tmp_path, uninterrupted):
    with pytest.raises(RuntimeError, match="crash"):
        fit(model(), tmp_path, 9)
    older, last = sorted(tmp_path.iterdir())
    content = last.read_bytes()
    for damaged in (content[: len(content) // 2], content[:5000] + b"?" + content[5001:]):
        last.write_bytes(damaged)
        with pytest.warns(UserWarning, match=f"{last.name}.*is damaged.*The previous state is used"):
            assert training.states.last_state(tmp_path).path == older
    made = model()
    with pytest.warns(UserWarning, match="is damaged"):
        fit(made, tmp_path, callbacks=[_Nothing()])
    assert all(map(np.array_equal, state(made), uninterrupted[1]))
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(ValueError, match="to start again"):
        fit(model(), tmp_path)


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("argument", "changed"),
    [
        ("model.dropout", {"made": lambda: model(dropout=0.2)}),
        ("optimizer.beta_1", {"made": lambda: model(optimizer=keras.optimizers.Adam(RATE, beta_1=0.8))}),
        (
            "gradient_accumulation_steps",
            {"made": lambda: model(optimizer=keras.optimizers.Adam(RATE, gradient_accumulation_steps=2))},
        ),
        ("loss.smoothing", {"made": lambda: model(smoothing=0.2)}),
        ("x", {"dataset": lambda: batches(seed=1)}),
        ("validation_data", {"validation": lambda: TEXTS[6:12]}),
        ("callbacks", {"callbacks": lambda: [keras.callbacks.TerminateOnNaN()]}),
    ],
)
def test_states_of_a_different_training_are_rejected(argument, changed, tmp_path, complete):
    given = {name: make() for name, make in changed.items()}
    with pytest.raises(ValueError, match=f"`{argument}` must be the same as in the interrupted training"):
        fit(given.pop("made", None) or model(), complete, **given)


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    folder = tmp_path_factory.mktemp("complete")
    fit(model(), folder, epochs=1)
    return folder


def test_datasets_and_models_that_cannot_resume_are_rejected(tmp_path):
    for dataset in (batches().map(lambda x, y: (x, y)), batches().take(2), np.ones((8, 8), "int32")):
        with pytest.raises(ValueError, match="`x` must be an unchanged dataset from keras_transformer.data"):
            fit(model(), tmp_path, dataset=dataset)
    with pytest.raises(ValueError, match="full epochs of 6 batches.*Received: epochs of 2 batches"):
        model().fit(
            batches(), steps_per_epoch=2, verbose=0, shuffle=False, callbacks=[training.ExactResume(tmp_path)]
        )
    with pytest.raises(ValueError, match="`callbacks` must have one ExactResume"):
        fit(model(), tmp_path, callbacks=[training.ExactResume(tmp_path)])
    other = keras.Sequential([keras.layers.Dense(1)])
    other.compile(loss="mse")
    with pytest.raises(ValueError, match="`model` must be a model of keras_transformer"):
        other.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0, callbacks=[training.ExactResume(tmp_path)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("save_freq", [0, -1, "batch", 1.5, None, True])
def test_invalid_frequencies_are_rejected(save_freq, tmp_path):
    with pytest.raises(ValueError, match="`save_freq` must be"):
        training.ExactResume(tmp_path, save_freq)


class Interrupt(Stop):
    """Send SIGINT after a number of batches."""

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGINT)


class InterruptEpoch(Stop):
    """Send SIGINT at the end of the epoch whose last batch has a number."""

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1

    def on_epoch_end(self, epoch, logs=None):
        if not self.left:
            os.kill(os.getpid(), signal.SIGINT)


for each in (Interrupt, InterruptEpoch):
    each.__name__ = "Stop"


@pytest.mark.backend_neutral
@pytest.mark.slow_variants
@pytest.mark.parametrize("on_signal", ["raise", "stop"])
@pytest.mark.parametrize(
    ("interrupt", "batches"), [(Interrupt, 9), (InterruptEpoch, 6), (InterruptEpoch, 18)]
)
def test_the_first_signal_saves_a_state_and_ends_training(
    interrupt, batches, on_signal, tmp_path, uninterrupted, capsys
):
    before = signal.getsignal(signal.SIGINT)
    resume = training.ExactResume(tmp_path, on_signal=on_signal)
    raised = pytest.raises(KeyboardInterrupt) if on_signal == "raise" else contextlib.nullcontext()
    with raised:
        fit(model(), callbacks=[interrupt(batches), resume])
    assert resume.signal == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before
    assert training.states.num_batches(tmp_path) == batches
    shown = "Training is interrupted after batch" in capsys.readouterr().out
    assert shown == (on_signal == "raise" and batches < 18)
    made = model()
    history = fit(made, tmp_path, callbacks=[_Nothing()])
    assert all(map(np.array_equal, state(made), uninterrupted[1]))
    assert history.history == uninterrupted[0].history


@pytest.mark.slow
def test_a_full_disk_ends_training_and_keeps_earlier_states(tmp_path):
    with pytest.raises(RuntimeError, match="crash"):
        fit(model(), tmp_path, 9)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))  # simulate a full disk
    try:
        with pytest.raises(
            OSError, match="`folder` must have space for three states of training of .* MiB.*File too large"
        ):
            fit(model(), tmp_path, callbacks=[_Nothing()])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.slow
def test_automatic_saving_takes_one_percent_of_the_time(tmp_path, monkeypatch):
    """A batch takes 10 s, saving 2 s: save once at the start, and then after at least 200 s."""
    now, saved = [0.0], []

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            now[0] += 10

    def write(folder, batches, meta, arrays):
        now[0] += 2
        saved.append((batches, now[0]))

    monkeypatch.setattr(training.exact_resume.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(training.states, "write", write)
    fit(model(), tmp_path, save_freq="auto", epochs=10, callbacks=[Slow()])
    assert [batches for batches, _ in saved] == [0, 20, 40, 60]  # the last at the end


@pytest.mark.backend_neutral
@pytest.mark.slow_variants
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="without TensorFlow")
@pytest.mark.parametrize("stop", [9, 12])
def test_training_resumes_without_tensorflow(stop, uninterrupted, tmp_path, monkeypatch):
    monkeypatch.setattr(data.batches, "_HAS_TENSORFLOW", False)
    assert isinstance(batches(), keras.utils.PyDataset)
    with pytest.raises(RuntimeError, match="crash"):
        fit(model(), tmp_path, stop)
    made = model()
    history = fit(made, tmp_path, callbacks=[_Nothing()])
    assert history.history == uninterrupted[0].history
    assert all(map(np.array_equal, state(made), uninterrupted[1]))


class Fail(keras.callbacks.Callback):
    """Raise an error at one of Keras' events."""

    def __init__(self, event):
        super().__init__()
        setattr(self, event, self.fail)

    def fail(self, batch, logs=None):
        if batch == 2 or "test" in self.event:
            raise RuntimeError("crash")

    event = ""


# On JAX, Keras takes the weights out of a model while it trains; elsewhere one event is as good as another.
on_jax = () if keras.backend.backend() == "jax" else pytest.mark.slow


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "event",
    [
        "on_train_batch_end",
        pytest.param("on_train_batch_begin", marks=on_jax),
        pytest.param("on_test_batch_end", marks=on_jax),
    ],
)
def test_a_model_keeps_its_weights_after_an_error(event, tmp_path):
    found = []
    for folder in (tmp_path, None):
        made, callback = model(), Fail(event)
        callback.event = event
        with pytest.raises(RuntimeError, match="crash"):
            fit(made, folder, callbacks=[callback], save_freq=100)
        found.append(state(made))
    for kept, expected in zip(*found, strict=True):
        np.testing.assert_allclose(kept, expected, rtol=1e-6)
