import keras
import numpy as np
import pytest

from keras_transformer.training import PerUpdate, TransformerSchedule

pytestmark = pytest.mark.backend_neutral


@pytest.mark.parametrize(("dim", "warmup", "scale"), [(512, 4000, 1.0), (64, 1, 1.0), (256, 100, 2.5)])
def test_the_rate_equals_equation_3_of_the_paper(dim, warmup, scale):
    schedule = TransformerSchedule(dim, warmup, scale)
    for done in (0, 1, 2, 98, 99, 100, 3999, 4000, 4001, 100_000):
        step = done + 1
        expected = scale * dim**-0.5 * min(step**-0.5, step * warmup**-1.5)
        np.testing.assert_allclose(schedule(done), expected, rtol=1e-5)
        np.testing.assert_allclose(schedule(keras.ops.convert_to_tensor(done, "int32")), expected, rtol=1e-5)


def test_the_rate_peaks_at_the_end_of_warm_up():
    rates = [float(TransformerSchedule(64, 10)(done)) for done in range(50)]
    assert np.argmax(rates) == 9
    assert (np.diff(rates[:10]) > 0).all()
    assert (np.diff(rates[9:]) < 0).all()


def test_the_optimizer_follows_the_schedule():
    variable = keras.Variable([0.0])
    schedule = TransformerSchedule(4, 2)
    optimizer = keras.optimizers.SGD(schedule)
    for done in range(3):
        before = float(variable[0])
        optimizer.apply([keras.ops.ones(1)], [variable])
        assert before - float(variable[0]) == pytest.approx(float(schedule(done)), rel=1e-5)


def test_config_round_trip_is_the_identity():
    schedule = TransformerSchedule(64, 10, 2.0)
    config = schedule.get_config()
    assert config == {"model_dim": 64, "warmup_steps": 10, "scale": 2.0}
    assert TransformerSchedule.from_config(config).get_config() == config
    again = keras.optimizers.deserialize(keras.optimizers.serialize(keras.optimizers.Adam(schedule)))
    assert again._learning_rate.get_config() == config


@pytest.mark.parametrize("name", ["model_dim", "warmup_steps", "scale"])
@pytest.mark.parametrize("value", [0, -1])
def test_arguments_must_be_positive(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be positive. Received: {name}={value}"):
        TransformerSchedule(**{"model_dim": 4, name: value})


def test_the_rate_of_an_update_does_not_depend_on_accumulation():
    schedule = TransformerSchedule(4, 2)
    for steps in (None, 2, 3):
        variable = keras.Variable([0.0])
        optimizer = keras.optimizers.SGD(PerUpdate(schedule, steps), gradient_accumulation_steps=steps)
        optimizer.build([variable])
        rates = []
        for _ in range(4):
            before = float(variable[0])
            for _ in range(steps or 1):
                optimizer.apply([keras.ops.ones(1)], [variable])
            rates.append(before - float(variable[0]))
        np.testing.assert_allclose(rates, [float(schedule(done)) for done in range(4)], rtol=1e-5)


def test_the_config_of_update_schedules_round_trips():
    schedule = PerUpdate(TransformerSchedule(64, 10), 4)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert [float(copy(step)) for step in range(12)] == [float(schedule(step)) for step in range(12)]


@pytest.mark.parametrize(
    ("schedule", "steps", "error"),
    [
        (0.1, 2, TypeError),
        (TransformerSchedule(64), 0, ValueError),
        (TransformerSchedule(64), 2.5, ValueError),
    ],
)
def test_invalid_arguments_of_update_schedules_are_rejected(schedule, steps, error):
    with pytest.raises(error, match="Received"):
        PerUpdate(schedule, steps)
