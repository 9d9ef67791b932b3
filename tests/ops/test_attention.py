import itertools

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.ops import attention, attention_weights
from keras_transformer.ops.scores import ScaledDotProduct
from keras_transformer.relations import Causal, Full

# JAX compiles every new shape for seconds: run only one case of each law there.
neutral = pytest.mark.backend_neutral

# JAX has float64 only where a global flag is set.
FLOAT = "float32" if keras.config.backend() == "jax" else "float64"
CLOSE = {"rtol": 1e-4, "atol": 1e-5} if FLOAT == "float32" else {"rtol": 1e-9, "atol": 1e-11}


def reference(query, key, value, allowed, bias, scale, upstream):
    """Compute attention pair by pair in float64: output, weights, gradients for query, key and value."""
    query, key, value = (array.astype("float64") for array in (query, key, value))
    (B, T, N, _), (_, S, K, _) = query.shape, key.shape  # noqa: N806
    output, weights = np.zeros((B, T, N, value.shape[-1])), np.zeros((B, N, T, S))
    d_query, d_key, d_value = np.zeros_like(query), np.zeros_like(key), np.zeros_like(value)
    for b, n, i in itertools.product(range(B), range(N), range(T)):
        k = n // (N // K)
        neighbours = np.flatnonzero(allowed[b, n, i])
        if len(neighbours) == 0:
            continue
        scores = scale * key[b, neighbours, k] @ query[b, i, n] + bias[b, n, i, neighbours]
        kernel = np.exp(scores - scores.max())
        alpha = kernel / kernel.sum()
        weights[b, n, i, neighbours] = alpha
        output[b, i, n] = alpha @ value[b, neighbours, k]
        d_value[b, neighbours, k] += np.outer(alpha, upstream[b, i, n])
        d_alpha = value[b, neighbours, k] @ upstream[b, i, n]
        d_scores = alpha * (d_alpha - alpha @ d_alpha)
        d_query[b, i, n] = scale * d_scores @ key[b, neighbours, k]
        d_key[b, neighbours, k] += scale * np.outer(d_scores, query[b, i, n])
    return output, weights, (d_query, d_key, d_value)


def attention_inputs(*extras, B=2, T=4, S=4, N=4, K=4, H=3, V=3, relation=None, scale=None):  # noqa: N803
    """Return random tensors, the arguments of `attention`, and their definitions `allowed`, `bias` and `scale`."""
    random = np.random.default_rng(sum(map(ord, "".join(extras))) + 7 * T + S)

    def normal(*shape):
        return random.normal(size=shape).astype(FLOAT)

    tensors = normal(B, T, N, H), normal(B, S, K, H), normal(B, S, K, V)
    arguments = {"relation": relation, "score": None if scale is None else ScaledDotProduct(scale)}
    allowed = np.ones((B, N, T, S), bool)
    bias = np.zeros((B, N, T, S))
    q, k = np.arange(T), np.arange(S)
    if "shared positions" in extras:
        q, k = q * 3 + 1, k * 2
        arguments |= {"query_positions": q.astype("int32"), "key_positions": k.astype("int32")}
    if "positions of each row" in extras:
        q, k = random.integers(0, 9, (B, T)), random.integers(0, 9, (B, S))
        arguments |= {"query_positions": q.astype("int32"), "key_positions": k.astype("int32")}
    if "query positions alone" in extras:
        q = random.integers(0, 4, (B, T))
        arguments |= {"query_positions": q.astype("int32")}
    if relation is not None:
        before = k[..., None, :] <= q[..., :, None]
        causal = before if before.ndim == 2 else before[:, None]
        allowed &= ~causal if relation == ~Causal() else causal
    if "bias" in extras:
        bias = normal(B, N, T, S)
        arguments["bias"] = bias
    if "bias of each head" in extras:
        arguments["bias"] = normal(N, 1, S)
        bias = np.broadcast_to(arguments["bias"], bias.shape)
    for extra, shape in (
        ("mask (T, S)", (T, S)),
        ("mask (N, T, S)", (N, T, S)),
        ("mask (B, 1, T, 1)", (B, 1, T, 1)),
    ):
        if extra in extras:
            arguments["mask"] = random.random(shape) < 0.6
            allowed &= arguments["mask"]
    if "mask (B, N, T, S)" in extras:
        arguments["mask"] = random.random((B, N, T, S)) < 0.5
        arguments["mask"][0, :, 1] = False
        allowed &= arguments["mask"]
    if "padding" in extras:
        lengths = np.arange(S, S - B, -1)
        lengths[-1] = 0  # a row that is all padding
        arguments["padding_mask"] = np.arange(S) < lengths[:, None]
        allowed &= arguments["padding_mask"][:, None, None, :]
    if "segments" in extras:
        segments = np.sort(random.integers(0, 3, (B, T)), axis=1).astype("int32")
        arguments["segment_ids"] = segments
        allowed &= (segments[:, :, None] == segments[:, None, :])[:, None]
    arguments = {name: argument for name, argument in arguments.items() if argument is not None}
    return tensors, arguments, (allowed, bias, H**-0.5 if scale is None else scale)


CASES = {
    "full": ((), {}),
    "causal": ((), {"relation": "causal"}),
    "after": ((), {"relation": ~Causal()}),
    "few queries": ((), {"relation": "causal", "T": 2, "S": 5}),
    "few keys": ((), {"relation": "causal", "T": 5, "S": 2}),
    "one query": ((), {"T": 1, "S": 5}),
    "one key": ((), {"relation": "causal", "T": 5, "S": 1}),
    "one key, masked": (("mask (B, N, T, S)",), {"S": 1}),
    "values of another size": ((), {"relation": "causal", "V": 5}),
    "grouped": ((), {"K": 2, "T": 3, "S": 5}),
    "grouped, values of another size": (("bias", "padding"), {"K": 2, "V": 2, "relation": "causal"}),
    "multi-query": ((), {"K": 1, "relation": "causal"}),
    "one head, one row": ((), {"B": 1, "N": 1, "K": 1}),
    "scale": ((), {"scale": 0.1}),
    "scale 0": ((), {"scale": 0.0, "relation": "causal"}),
    "bias": (("bias",), {"T": 3}),
    "bias of each head": (("bias of each head",), {"K": 2}),
    "mask (T, S)": (("mask (T, S)",), {"S": 6}),
    "mask (N, T, S)": (("mask (N, T, S)",), {"B": 3}),
    "mask (B, 1, T, 1)": (("mask (B, 1, T, 1)",), {"B": 3}),
    "mask (B, N, T, S)": (("mask (B, N, T, S)",), {"S": 3, "K": 2}),
    "padding": (("padding",), {"B": 3, "S": 5}),
    "segments": (("segments",), {"T": 6, "S": 6}),
    "shared positions": (("shared positions",), {"relation": "causal", "S": 6}),
    "positions of each row": (("positions of each row",), {"relation": "causal", "T": 3, "S": 6}),
    "query positions alone": (("query positions alone",), {"relation": "causal", "T": 3, "S": 6}),
    "everything": (
        ("bias", "mask (B, N, T, S)", "padding", "segments", "positions of each row"),
        {"relation": "causal", "B": 3, "T": 6, "S": 6, "K": 2, "V": 2, "scale": 0.7},
    ),
}

CASES_ON_JAX = ("few keys", "one key", "grouped, values of another size", "padding", "everything")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=neutral if case in CASES_ON_JAX else ()) for case in CASES]
)
def test_outputs_weights_and_gradients_equal_the_definition(case, gradients):
    extras, sizes = CASES[case]
    tensors, arguments, definition = attention_inputs(*extras, **sizes)
    upstream = (
        np.random.default_rng(1).normal(size=(*tensors[0].shape[:3], tensors[2].shape[-1])).astype(FLOAT)
    )
    output, weights, expected = reference(*tensors, *definition, upstream)

    np.testing.assert_allclose(attention(*tensors, **arguments), output, **CLOSE)
    found = gradients(lambda q, k, v: ops.sum(attention(q, k, v, **arguments) * upstream), *tensors)
    for name, gradient, expected_gradient in zip(("query", "key", "value"), found, expected, strict=True):
        np.testing.assert_allclose(gradient, expected_gradient, **CLOSE, err_msg=name)

    computed_weights = np.asarray(attention_weights(*tensors[:2], **arguments))
    np.testing.assert_allclose(computed_weights, weights, **CLOSE)
    allowed = definition[0]
    assert (computed_weights[~allowed] == 0).all()
    np.testing.assert_allclose(computed_weights.sum(-1), allowed.any(-1), rtol=1e-6)


def test_the_bias_gradient_equals_the_score_gradient(gradients):
    (query, key, value), _, (allowed, bias, scale) = attention_inputs("bias")
    found = gradients(
        lambda b: ops.sum(attention(query, key, value, "causal", bias=b)[..., 0]), bias.astype(FLOAT)
    )
    step = 1e-2
    pair = (1, 2, 3, 1)
    outputs = []
    causal = Causal().matrix(4) & allowed
    for sign in (1, -1):
        moved = bias.copy()
        moved[pair] += sign * step
        output, *_ = reference(query, key, value, causal, moved, scale, np.zeros_like(query))
        outputs.append(output[..., 0].sum())
    assert found[0][pair] == pytest.approx((outputs[0] - outputs[1]) / (2 * step), rel=1e-3)
    assert (found[0][..., ~Causal().matrix(4)] == 0).all()


@pytest.mark.parametrize("relation", [None, "full", Full(), Full() | Causal(), ~(~Full())], ids=str)
def test_every_form_of_full_attention_equals_the_default(relation):
    tensors, *_ = attention_inputs(T=3)
    np.testing.assert_allclose(attention(*tensors, relation), attention(*tensors), **CLOSE)


def test_an_empty_relation_gives_zeros_and_zero_gradients(gradients):
    tensors, *_ = attention_inputs(T=3)
    assert (np.asarray(attention(*tensors, ~Full())) == 0).all()
    for gradient in gradients(lambda q, k, v: ops.sum(attention(q, k, v, ~Full())), *tensors):
        assert (gradient == 0).all()


def test_permuting_keys_changes_nothing_and_permuting_queries_permutes_the_output():
    (query, key, value), *_ = attention_inputs(T=4, S=5)
    expected = np.asarray(attention(query, key, value))
    order = [3, 0, 4, 1, 2]
    np.testing.assert_allclose(attention(query, key[:, order], value[:, order]), expected, **CLOSE)
    order = [2, 0, 3, 1]
    np.testing.assert_allclose(attention(query[:, order], key, value), expected[:, order], **CLOSE)


def test_outputs_are_invariant_to_position_translation_but_not_permutation():
    tensors, *_ = attention_inputs(T=4)
    expected = attention(*tensors, "causal")
    moved = np.arange(4, dtype="int32") + 11
    np.testing.assert_allclose(
        attention(*tensors, "causal", query_positions=moved, key_positions=moved), expected, **CLOSE
    )
    moved = moved[[1, 0, 2, 3]]
    other = attention(*tensors, "causal", query_positions=moved, key_positions=moved)
    assert not np.allclose(other, expected)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("given", ["query_positions", "key_positions"])
@neutral
def test_query_or_key_positions_may_have_any_integer_type(given, dtype):
    # NumPy integers are int64, and default positions are int32.
    tensors, *_ = attention_inputs(T=4)
    found = attention(*tensors, "causal", **{given: np.arange(4).astype(dtype)})
    np.testing.assert_allclose(found, attention(*tensors, "causal"), **CLOSE)


def half(array, dtype):
    return ops.cast(ops.convert_to_tensor(array), dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_masked_keys_do_not_change_the_output(dtype, dropout):
    tensors, arguments, (allowed, *_) = attention_inputs(
        "mask (B, N, T, S)", "padding", "segments", B=3, T=6, S=6, K=2, relation="causal"
    )
    query, key, value = (half(tensor, dtype) for tensor in tensors)
    options = {**arguments, "dropout": dropout, "seed": np.array([1, 2])}
    before = np.asarray(ops.cast(attention(query, key, value, **options), "float32"))
    checked = 0
    for j in range(6):
        moved = np.zeros((1, 6, 1, 1))
        moved[:, j] = 50
        after = attention(query, key + half(moved, dtype), value - half(moved, dtype), **options)
        after = np.asarray(ops.cast(after, "float32"))
        blind = ~allowed[..., j].transpose(0, 2, 1)  # (B, T, N)
        np.testing.assert_array_equal(after[blind], before[blind])
        checked += blind.sum()
        assert not np.array_equal(after, before) or blind.all()
    assert checked > 100


@pytest.mark.parametrize("lowest", ["-1e9", "lowest float32", "-inf"])
def test_an_additive_mask_gives_no_weight_to_unrelated_keys(lowest):
    # An additive mask as in other libraries. The second query cannot attend to any key.
    (query, key, value), *_ = attention_inputs(T=3, S=4)
    hidden = {"-1e9": -1e9, "lowest float32": np.finfo("float32").min, "-inf": -np.inf}[lowest]
    bias = np.zeros((3, 4), FLOAT)
    bias[1] = hidden
    mask = np.array([True, True, False, False])
    expected = attention(query, key, value, bias=bias, mask=mask)
    found = attention(query, key, value + (~mask[:, None, None] * 100.0).astype(FLOAT), bias=bias, mask=mask)
    assert np.isfinite(np.asarray(found)).all()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@neutral
def test_half_precision_is_finite_with_rows_of_padding(dtype, gradients):
    tensors, arguments, (allowed, *_) = attention_inputs("padding", B=3, S=5, K=2, relation="causal")
    tensors = [half(tensor, dtype) for tensor in tensors]
    output = attention(*tensors, **arguments)
    assert dtype in str(output.dtype)
    output = np.asarray(ops.cast(output, "float32"))
    assert np.isfinite(output).all()
    assert (output[~allowed.any(-1).transpose(0, 2, 1)] == 0).all()
    found = gradients(lambda q, k, v: ops.sum(ops.cast(attention(q, k, v, **arguments), "float32")), *tensors)
    for gradient in found:
        assert np.isfinite(gradient.astype("float32")).all()
        assert (gradient[-1] == 0).all()  # the row of padding


def test_half_precision_softmax_is_computed_in_float32():
    weights = attention_weights(
        half(np.ones((1, 1, 1, 1)), "float16"), half(np.ones((1, 3000, 1, 1)), "float16")
    )
    assert "float32" in str(weights.dtype)
    np.testing.assert_allclose(weights, 1 / 3000, rtol=1e-6)


@neutral
def test_every_mode_gives_equal_outputs_and_drops_equal_pairs(modes):
    (query, key, _), arguments, (allowed, *_) = attention_inputs(
        "bias", "padding", "positions of each row", B=3, T=6, S=5, K=2, relation="causal"
    )
    # With basis vectors as values, the output is the matrix of weights after dropout.
    value = np.broadcast_to(np.eye(5)[:, None], (3, 5, 2, 5)).astype(FLOAT)

    def function(query, key, value, seed):
        return attention(query, key, value, **arguments, dropout=0.4, seed=seed)

    tensors = [ops.convert_to_tensor(tensor) for tensor in (query, key, value)]
    seed = ops.convert_to_tensor([5, 6], "uint32")
    found = {name: np.asarray(wrap(function)(*tensors, seed)) for name, wrap in modes.items()}
    dropped = (found["eager"] == 0) & allowed.transpose(0, 2, 1, 3)
    assert 0.2 < dropped.sum() / allowed.sum() < 0.6
    for name, output in found.items():
        np.testing.assert_array_equal(output == 0, found["eager"] == 0, err_msg=name)
        np.testing.assert_allclose(output, found["eager"], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_sequence_lengths_may_be_unknown_when_traced():
    if keras.config.backend() != "tensorflow":
        pytest.skip("JAX has static shapes")
    import tensorflow as tf

    (query, key, value), arguments, _ = attention_inputs("padding", B=3, T=3, S=5, K=2)
    specs = [tf.TensorSpec((None, None, heads, 3), query.dtype) for heads in (4, 2, 2)]

    @tf.function(input_signature=[*specs, tf.TensorSpec((None, None), tf.bool)])
    def function(query, key, value, padding_mask):
        return attention(
            query, key, value, "causal", padding_mask=padding_mask, dropout=0.3, seed=tf.constant([1, 2])
        )

    options = {**arguments, "relation": "causal", "dropout": 0.3, "seed": np.array([1, 2])}
    for tensors in ((query, key, value), (query[:, :2], key, value)):
        np.testing.assert_allclose(
            function(*tensors, arguments["padding_mask"]), attention(*tensors, **options), **CLOSE
        )


class TestDropout:
    """With uniform scores and basis vectors as values, the output is the dropout mask divided by S."""

    sizes = (4, 30, 2, 50)  # B, T, N, S

    def weights(self, rate, seed):
        batch, queries, heads, keys = self.sizes
        zeros = np.zeros((batch, queries, heads, 1), "float32")
        basis = np.broadcast_to(np.eye(keys, dtype="float32")[:, None], (batch, keys, heads, keys))
        key = np.zeros((batch, keys, heads, 1), "float32")
        return np.asarray(attention(zeros, key, basis, dropout=rate, seed=np.array(seed))) * keys

    @pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
    def test_dropout_preserves_the_rate_and_the_expectation(self, rate):
        weights = self.weights(rate, (3, 4))
        deviation = (rate * (1 - rate) / weights.size) ** 0.5
        assert abs((weights != 0).mean() - (1 - rate)) < 5 * deviation
        np.testing.assert_allclose(weights[weights != 0], 1 / (1 - rate), rtol=1e-5)
        assert abs(weights.mean() - 1) < 5 * deviation / (1 - rate)

    def test_the_dropout_pattern_depends_on_the_seed(self):
        first = self.weights(0.5, (3, 4))
        np.testing.assert_array_equal(first, self.weights(0.5, (3, 4)))
        for other in ((3, 5), (4, 4), (4, 3)):
            assert 0.45 < ((first != 0) == (self.weights(0.5, other) != 0)).mean() < 0.55

    def test_grouped_heads_drop_independently(self):
        (query, key, _), *_ = attention_inputs(T=30, S=30, K=1)
        basis = np.broadcast_to(np.eye(30, dtype=FLOAT)[:, None], (2, 30, 1, 30))
        kept = np.asarray(attention(query, key, basis, dropout=0.5, seed=np.array([1, 2]))) != 0
        for a, b in itertools.combinations(range(4), 2):
            assert 0.4 < (kept[:, :, a] == kept[:, :, b]).mean() < 0.6


def test_an_empty_batch_gives_an_empty_batch():
    for sizes in ({}, {"K": 2}):
        (query, key, value), *_ = attention_inputs(**sizes, T=3)
        assert attention(query[:0], key[:0], value[:0], "causal").shape == (0, 3, 4, 3)


def test_attention_without_keys_gives_zeros():
    (query, key, value), *_ = attention_inputs()
    np.testing.assert_array_equal(attention(query, key[:, :0], value[:, :0]), np.zeros_like(query))


def test_masks_may_be_integers_or_lists():
    tensors, *_ = attention_inputs(T=3, S=3)
    expected = attention(*tensors, "causal")
    mask = Causal().matrix(3)
    for said in (mask.astype("int32"), mask.astype("uint8"), mask.tolist(), ops.convert_to_tensor(mask)):
        np.testing.assert_array_equal(attention(*tensors, mask=said), expected)
