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


def test_chunked_computation_and_partial_calls_equal_the_recurrence(mixer, inputs):
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


def test_reordered_hypotheses_continue_from_their_states(mixer, inputs):
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


def test_blocks_accept_recurrent_mixers(mixer):
    block = DecoderBlock(mixer, FeedForward(8))
    assert type(DecoderBlock.from_config(block.get_config()).self_attention) is type(mixer)


@pytest.mark.parametrize("masked", [False, True])
def test_a_token_loop_equals_the_unrolled_computation(inputs, masked, monkeypatch):
    mask = np.arange(21) < np.array([[21], [5], [9]]) if masked else None

    def update(token, state):
        mean = 0.9 * state["mean"] + 0.1 * token
        return ops.tanh(mean[:, :3]), {"mean": mean}

    def run(every):
        return arrays(recurrence(update, inputs, {"mean": ops.zeros((3, 16))}, mask, every))

    looped = [run(every) for every in (False, True)]
    monkeypatch.setattr(base, "UNROLLED", 100)
    close(looped, [run(every) for every in (False, True)])


def test_attention_returns_its_cache_unchanged():
    layer = MultiHeadAttention(2, relation="causal")
    layer.build((None, None, 8))
    cache = layer.empty_cache(2, 4)
    assert layer.select(cache, np.zeros((2, 3), "int32")) is cache
