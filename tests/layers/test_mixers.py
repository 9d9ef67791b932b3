import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import (
    S4D,
    DecoderBlock,
    FeedForward,
    Mamba2,
    MultiHeadAttention,
    RecurrentMixer,
)
from keras_transformer.layers.mixers import base
from keras_transformer.layers.mixers.base import recurrence

pytestmark = pytest.mark.backend_neutral

MIXERS = {
    "s4d": lambda: S4D(4, 0.1, 1.0),
    "mamba2": lambda: Mamba2(4, state_dim=8, num_groups=2),
}


def arrays(tree):
    return keras.tree.map_structure(ops.convert_to_numpy, tree)


def close(found, expected):
    keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)


@pytest.fixture(params=MIXERS)
def mixer(request):
    keras.utils.set_random_seed(0)
    layer = MIXERS[request.param]()
    layer.build((None, None, 16))
    return layer


@pytest.fixture
def inputs():
    return np.random.default_rng(0).normal(size=(3, 21, 16)).astype("float32")


def test_chunks_equal_the_recurrence_and_parts_equal_the_whole(mixer, inputs):
    zero = mixer.zero_state(3)
    outputs, state = arrays(mixer.scan(inputs, zero, None, False))
    stepped, states = arrays(mixer.scan(inputs, zero, None, True))
    close(stepped, outputs)
    close({name: values[:, -1] for name, values in states.items()}, state)
    first, middle = mixer.scan(inputs[:, :8], zero, None, False)
    close(arrays(first), outputs[:, :8])
    close({name: values[:, 7] for name, values in states.items()}, arrays(middle))
    close(arrays(mixer.scan(inputs[:, 8:], middle, None, False)), (outputs[:, 8:], state))


def test_padding_anywhere_changes_neither_outputs_nor_state(mixer, inputs):
    real = np.random.default_rng(1).random((3, 21)) < 0.6
    noise = np.where(real[..., None], inputs, 100.0).astype("float32")
    cache = mixer.empty_cache(3)
    outputs, state = arrays(mixer.step(noise, cache, padding_mask=real))
    called = arrays(mixer(noise, padding_mask=real))
    for row in range(3):
        expected, last = arrays(mixer.step(inputs[row : row + 1, real[row]], mixer.empty_cache(1)))
        close(outputs[row, real[row]], expected[0])
        close(called[row, real[row]], expected[0])
        close({name: values[row : row + 1] for name, values in state.items()}, last)


def test_outputs_do_not_depend_on_later_tokens(mixer, inputs):
    changed = np.concatenate([inputs[:, :10], -inputs[:, 10:]], axis=1)
    np.testing.assert_allclose(mixer(changed)[:, :10], mixer(inputs)[:, :10], atol=1e-6)
    assert np.abs(mixer(changed)[:, 10:] - mixer(inputs)[:, 10:]).max() > 1e-3


def test_hypotheses_continue_the_states_that_are_selected(mixer, inputs):
    _, cache = mixer.step(inputs[:, :5], mixer.empty_cache(3))
    cache = mixer.select(cache, np.zeros((3, 2), "int32"))
    _, both = mixer.step(inputs[:, 5:7], cache)  # one token for each of two hypotheses
    swapped = mixer.select(both, np.array([[1, 0]] * 3, "int32"))
    outputs, _ = mixer.step(inputs[:, 7:9], swapped)
    for index in range(2):
        order = [*range(5), 6 - index, 7 + index]
        close(arrays(outputs)[:, index], arrays(mixer(inputs[:, order]))[:, -1])


def test_a_trace_has_the_state_after_each_token(mixer, inputs):
    _, cache = mixer.step(inputs[:, :5], mixer.empty_cache(3))
    _, trace = mixer.step(inputs[:, 5:9], cache, trace=True)
    for count in range(5):
        found = mixer.select(trace, np.full((3, 1), count, "int32"))
        _, expected = mixer.step(inputs[:, : 5 + count], mixer.empty_cache(3))
        close(arrays(found), arrays(expected))


def test_every_weight_has_a_gradient(mixer, inputs):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("a tape of TensorFlow")
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(mixer(inputs) ** 2)
    for weight, gradient in zip(
        mixer.trainable_weights, tape.gradient(loss, mixer.trainable_weights), strict=True
    ):
        assert np.isfinite(gradient).all()
        assert np.abs(gradient).max() > 0, weight.path


def test_layers_come_back_from_their_configs(mixer):
    again = type(mixer).from_config(mixer.get_config())
    assert again.get_config() == mixer.get_config()
    block = DecoderBlock(again, FeedForward(8))
    assert type(DecoderBlock.from_config(block.get_config()).self_attention) is type(mixer)


@pytest.mark.parametrize("masked", [False, True])
def test_a_loop_over_tokens_equals_the_unrolled_one(inputs, masked, monkeypatch):
    mask = np.arange(21) < np.array([[21], [5], [9]]) if masked else None

    def update(token, state):
        mean = 0.9 * state["mean"] + 0.1 * token
        return ops.tanh(mean[:, :3]), {"mean": mean}

    def run(every):
        return arrays(recurrence(update, inputs, {"mean": ops.zeros((3, 16))}, mask, every))

    looped = [run(every) for every in (False, True)]
    monkeypatch.setattr(base, "UNROLLED", 100)
    close(looped, [run(every) for every in (False, True)])


@pytest.mark.parametrize("name", ["attention_mask", "segment_ids", "edges"])
def test_masks_that_a_state_cannot_hold_are_refused(mixer, inputs, name):
    with pytest.raises(ValueError, match=f"`{name}` must be None for {type(mixer).__name__}"):
        mixer(inputs, **{name: np.ones((3, 21), "int32")})


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: S4D(0), "`state_dim` must be a positive integer"),
        (lambda: S4D(min_step=0.2, max_step=0.1), "`min_step` must be positive and at most `max_step`"),
        (lambda: Mamba2(3, num_groups=2), "`num_groups` must divide `num_heads`"),
        (lambda: Mamba2(3).build((None, None, 8)), "`num_heads` must divide `inner_dim`"),
        (lambda: RecurrentMixer().zero_state(1), "RecurrentMixer must implement `zero_state`"),
    ],
)
def test_invalid_arguments_are_refused(create, message):
    with pytest.raises((ValueError, NotImplementedError), match=message):
        create()


def test_attention_returns_its_cache_unchanged():
    layer = MultiHeadAttention(2, relation="causal")
    layer.build((None, None, 8))
    cache = layer.empty_cache(2, 4)
    assert layer.select(cache, np.zeros((2, 3), "int32")) is cache
