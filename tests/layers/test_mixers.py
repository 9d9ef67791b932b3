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
from keras_transformer.layers.mixers.mixer import recurrence

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


def test_s4d_is_a_convolution_of_each_channel(inputs):
    layer = S4D(4, 0.1, 1.0)
    layer.build((None, None, 16))
    weight = arrays({name: getattr(layer, name) for name in ("log_step", "log_decay", "frequency", "skip")})
    a = -np.exp(weight["log_decay"]) + 1j * weight["frequency"]
    decay = np.exp(np.exp(weight["log_step"])[:, None] * a)
    output = np.array(layer.output_real) + 1j * np.array(layer.output_imaginary)
    powers = decay ** np.arange(21)[:, None, None]
    kernel = 2 * np.sum(output * (decay - 1) / a * powers, axis=-1).real  # (T, D)
    convolved = [
        [np.convolve(row[:, channel], kernel[:, channel])[:21] for channel in range(16)] for row in inputs
    ]
    outputs = np.swapaxes(convolved, 1, 2) + weight["skip"] * inputs
    outputs = layer.gate(keras.activations.gelu(outputs.astype("float32"), approximate=True))
    expected = outputs[..., :16] * ops.sigmoid(outputs[..., 16:])
    np.testing.assert_allclose(layer(inputs), expected, atol=1e-5)


def test_mamba2_is_attention_whose_weights_decay(inputs):
    layer = Mamba2(4, state_dim=8)
    layer.build((None, None, 16))
    layer.step_bias.assign([0.1, 0.5, 1.0, 2.0])
    projected = np.array(layer.input_projection(inputs))
    gate, values, step = np.split(projected, [32, 32 + 48], axis=-1)
    earlier = np.pad(values, [[0, 0], [3, 0], [0, 0]])
    values = sum(earlier[:, k : k + 21] * np.array(layer.kernel)[k] for k in range(4))
    values, keys, queries = np.split(np.array(ops.silu(values + np.array(layer.bias))), [32, 40], axis=-1)
    step = np.log1p(np.exp(step + np.array(layer.step_bias)))  # (B, T, H)
    values = values.reshape(3, 21, 4, 8)
    total = np.cumsum(-np.exp(np.array(layer.log_decay)) * step, axis=1)
    decay = np.exp(np.minimum(total[:, :, None] - total[:, None], 0))  # (B, T, S, H)
    weights = np.einsum("btn,bsn->bts", queries, keys)[..., None] * decay * step[:, None]
    weights = weights * np.tri(21)[:, :, None]
    outputs = np.einsum("btsh,bshp->bthp", weights, values) + np.array(layer.skip)[:, None] * values
    outputs = outputs.reshape(3, 21, 32) * np.array(ops.silu(gate))
    outputs = outputs / np.sqrt(np.mean(outputs**2, axis=-1, keepdims=True) + layer.epsilon)
    close(arrays(layer(inputs)), arrays(layer.output_projection(outputs * np.array(layer.scale))))


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
    monkeypatch.setattr("keras_transformer.layers.mixers.mixer.UNROLLED", 100)
    close(looped, [run(every) for every in (False, True)])


def test_attention_returns_its_cache_unchanged():
    layer = MultiHeadAttention(2, relation="causal")
    layer.build((None, None, 8))
    cache = layer.empty_cache(2, 4)
    assert layer.select(cache, np.zeros((2, 3), "int32")) is cache
