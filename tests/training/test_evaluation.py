import keras
import pytest

from keras_transformer import training

pytestmark = pytest.mark.backend_neutral


class Scores:
    """A function that returns the next score at each call."""

    def __init__(self, *scores):
        self.left = list(scores)

    def __call__(self):
        return self.left.pop(0)


def fit(model, dataset, *callbacks, epochs=4):
    return model.fit(dataset, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks)).history


def test_other_callbacks_see_the_result_in_any_order(bigrams, padded_batches):
    stop = keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=1, restore_best_weights=True)
    evaluation = training.Evaluation(Scores(1.0, 3.0, 2.0), "bleu")
    history = fit(bigrams(), padded_batches, stop, evaluation)
    assert history["val_bleu"] == [1.0, 3.0, 2.0]
    assert stop.best_epoch == 1


def test_values_of_a_result_dictionary_are_logged(bigrams, padded_batches):
    found = {"bleu": 12.5, "chrf": 30.0, "sentences": 3, "signatures": {"bleu": "nrefs:1"}}
    history = fit(bigrams(), padded_batches, training.Evaluation(lambda: found), epochs=1)
    assert {name: values for name, values in history.items() if name.startswith("val_")} == {
        "val_bleu": [12.5],
        "val_chrf": [30.0],
    }


def test_epoch_logs_have_the_last_result(bigrams, padded_batches):
    """Epochs have 3 batches: results come after batches 2, 4 and 6, and at ends of epochs without one."""
    expected = {**fit(bigrams(), padded_batches, epochs=2), "val_score": [1.0, 3.0]}
    padded_batches.epochs.start_at(0)
    evaluation = training.Evaluation(Scores(1, 2, 3), freq=2)
    assert fit(bigrams(), padded_batches, evaluation, epochs=2) == expected
    history = fit(bigrams(), padded_batches, training.Evaluation(Scores(1, 2, 3, 4), freq=5), epochs=3)
    assert history["val_score"] == [1.0, 2.0, 3.0]


def test_the_function_sees_the_weights_after_the_batch(bigrams, padded_batches):
    model, seen = bigrams(), []
    evaluation = training.Evaluation(lambda: seen.append(model.get_weights()[0].tobytes()) or 0.0, freq=1)
    fit(model, padded_batches, evaluation, epochs=1)
    assert len(set(seen)) == 3
    assert seen[-1] == model.get_weights()[0].tobytes()


def test_a_restored_state_continues_the_epoch():
    evaluation, other = (training.Evaluation(Scores(5.0, 6.0), freq=2) for _ in range(2))
    evaluation.set_model(None)
    evaluation.on_train_batch_end(0)
    evaluation.on_train_batch_end(1)
    other.set_state(evaluation.get_state())
    logs = {}
    other.on_epoch_end(0, logs)
    assert logs == {"val_score": 5.0}


@pytest.mark.slow_variants
@pytest.mark.parametrize("found", ["high", None, {"sentences": 3}, [1.0, 2.0]])
def test_non_numeric_results_are_rejected(found, bigrams, padded_batches):
    with pytest.raises(TypeError, match="`function` must return a number.*Received: "):
        fit(bigrams(), padded_batches, training.Evaluation(lambda: found), epochs=1)


@pytest.mark.parametrize("freq", ["batch", 0, -1, 1.5, None, True])
def test_invalid_frequencies_are_rejected(freq):
    with pytest.raises(ValueError, match='`freq` must be "epoch" or a positive integer. Received: freq='):
        training.Evaluation(lambda: 0.0, freq=freq)


def test_a_score_in_place_of_a_function_is_rejected():
    with pytest.raises(TypeError, match=r"`function` must be a function.*Received: function=0.5"):
        training.Evaluation(0.5)
