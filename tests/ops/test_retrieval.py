import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.ops import attention, attention_weights, retrieval, retrieval_attention
from keras_transformer.ops.scores import RBF, Additive, Cosine

# JAX compiles every new shape: run only one case of each law there.
neutral = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
SEED = np.array([3, 4], "uint32")


def normal(*shape):
    return RANDOM.normal(size=shape).astype("float32")


def tensors(keys=9, kv_heads=2):
    """Return queries (B, T, N, H), keys (B, S, K, H) and values (B, S, K, V)."""
    return normal(2, 3, 4, 5), normal(2, keys, kv_heads, 5), normal(2, keys, kv_heads, 6)


def reference(query, key, value, k, padding_mask):
    """Compute the output query by query; return it and the selected keys (B, N, T, S)."""
    batch, queries, heads, size = query.shape
    output = np.zeros((batch, queries, heads, value.shape[-1]))
    chosen = np.zeros((batch, heads, queries, key.shape[1]), bool)
    for b, t, n in np.ndindex(batch, queries, heads):
        head = n // (heads // key.shape[2])
        logits = key[b, :, head] @ query[b, t, n] / np.sqrt(size)
        best = [j for j in np.argsort(-logits) if padding_mask[b, j]][:k]
        kernel = np.exp(logits[best])
        output[b, t, n] = (kernel / kernel.sum()) @ value[b, best, head] if best else 0
        chosen[b, n, t, best] = True
    return output, chosen


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_each_head_of_each_query_attends_to_its_k_best_keys(kv_heads, k):
    query, key, value = tensors(kv_heads=kv_heads)
    padding_mask = np.arange(9) < np.array([[9], [6]])
    expected, _ = reference(query, key, value, k, padding_mask)
    np.testing.assert_allclose(
        retrieval_attention(query, key, value, k, padding_mask=padding_mask), expected, **CLOSE
    )
    everything = np.ones((2, 9), bool)
    expected, _ = reference(query, key, value, k, everything)
    np.testing.assert_allclose(retrieval_attention(query, key, value, k), expected, **CLOSE)


@pytest.mark.parametrize("dropout", [0.0, pytest.param(0.4, marks=neutral)])
@pytest.mark.parametrize("score", ["scaled_dot_product", Cosine(2.0)], ids=["dot", "cosine"])
def test_retrieval_equals_attention_to_the_selected_keys_with_gradients_and_dropout(
    gradients, score, dropout
):
    arrays, upstream = tensors(), normal(2, 3, 4, 6)
    padding_mask = np.arange(9) < np.array([[9], [2]])
    query, key, _ = arrays
    if score != "scaled_dot_product":
        query, key = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key))
    _, chosen = reference(query, key, arrays[2], 4, padding_mask)
    options = {"score": score, "dropout": dropout, "seed": SEED}

    def retrieved(*tensors):
        return retrieval_attention(*tensors, 4, padding_mask=padding_mask, **options)

    def masked(*tensors):
        return attention(*tensors, mask=chosen, **options)

    np.testing.assert_allclose(retrieved(*arrays), masked(*arrays), **CLOSE)
    found, expected = (
        gradients(lambda *tensors, f=f: ops.sum(f(*tensors) * upstream), *arrays) for f in (retrieved, masked)
    )
    for of_retrieval, of_attention in zip(found, expected, strict=True):
        np.testing.assert_allclose(of_retrieval, of_attention, **CLOSE)


@pytest.mark.parametrize(
    ("block_size", "score"),
    [(1, "scaled_dot_product"), (4, RBF(2.0)), (4, Additive(normal(4, 5))), (100, "cosine")],
    ids=str,
)
def test_search_in_blocks_equals_attention_to_the_k_best_keys(monkeypatch, gradients, block_size, score):
    monkeypatch.setattr(retrieval, "BLOCK_SIZE", block_size)
    arrays, upstream = tensors(), normal(2, 3, 4, 6)
    padding_mask = np.arange(9) < np.array([[9], [2]])
    options = {"score": score, "padding_mask": padding_mask, "dropout": 0.4, "seed": SEED}
    weights = np.asarray(attention_weights(*arrays[:2], score=score, padding_mask=padding_mask))
    best = weights >= np.sort(weights, axis=-1)[..., -4:-3]
    functions = (
        lambda *tensors: retrieval_attention(*tensors, 4, **options),
        lambda *tensors: attention(*tensors, mask=best, **options),
    )
    np.testing.assert_allclose(*(function(*arrays) for function in functions), **CLOSE)
    found, expected = (
        gradients(lambda *tensors, f=f: ops.sum(f(*tensors) * upstream), *arrays) for f in functions
    )
    for of_retrieval, of_attention in zip(found, expected, strict=True):
        np.testing.assert_allclose(of_retrieval, of_attention, **CLOSE)


@pytest.mark.parametrize("k", [9, 50])
def test_k_of_the_memory_size_equals_attention(k):
    arrays = tensors()
    options = {"padding_mask": np.arange(9) < np.array([[9], [6]]), "dropout": 0.3, "seed": SEED}
    np.testing.assert_array_equal(retrieval_attention(*arrays, k, **options), attention(*arrays, **options))


class TestSymmetries:
    def test_outputs_are_invariant_under_memory_permutations(self):
        query, key, value = tensors()
        order = RANDOM.permutation(9)
        found = retrieval_attention(query, key[:, order], value[:, order], 4)
        np.testing.assert_allclose(found, retrieval_attention(query, key, value, 4), **CLOSE)

    def test_outputs_are_equivariant_under_query_permutations(self):
        query, key, value = tensors()
        found = retrieval_attention(query[:, [2, 0, 1]], key, value, 4)
        np.testing.assert_allclose(
            found, np.asarray(retrieval_attention(query, key, value, 4))[:, [2, 0, 1]], **CLOSE
        )


class TestPadding:
    @neutral
    def test_padding_is_never_selected(self):
        query, key, value = tensors()
        padding_mask = np.arange(9) < np.array([[6], [2]])
        expected = np.asarray(retrieval_attention(query, key, value, 3, padding_mask=padding_mask))
        key[~padding_mask], value[~padding_mask] = 1e3, 1e6
        found = retrieval_attention(query, key, value, 3, padding_mask=padding_mask)
        np.testing.assert_array_equal(found, expected)

    def test_rows_with_fewer_valid_keys_than_k_use_all_of_them(self):
        query, key, value = tensors()
        padding_mask = np.arange(9) < np.array([[2], [1]])
        found = np.asarray(retrieval_attention(query, key, value, 4, padding_mask=padding_mask))
        np.testing.assert_allclose(found, attention(query, key, value, padding_mask=padding_mask), **CLOSE)

    @pytest.mark.parametrize("k", [1, 4])
    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
    def test_padded_rows_give_zeros_and_finite_gradients(self, gradients, dtype, k):
        arrays = tensors()
        padding_mask = np.arange(9) < np.array([[9], [0]])

        def loss(*tensors):
            tensors = (ops.cast(tensor, dtype) for tensor in tensors)
            output = retrieval_attention(*tensors, k, padding_mask=padding_mask)
            assert keras.backend.standardize_dtype(output.dtype) == dtype
            return ops.sum(ops.square(ops.cast(output, "float32")))

        assert not np.asarray(retrieval_attention(*arrays, k, padding_mask=padding_mask))[1].any()
        for gradient in gradients(loss, *arrays):
            assert np.isfinite(gradient).all()
            assert not gradient[1].any()


def test_k_of_one_copies_the_value_of_the_best_key():
    query, key, value = tensors(kv_heads=4)
    found = np.asarray(retrieval_attention(query, key, value, 1))
    best = np.einsum("btnh,bsnh->btns", query, key).argmax(-1)
    for b, t, n in np.ndindex(found.shape[:3]):
        np.testing.assert_allclose(found[b, t, n], value[b, best[b, t, n], n], rtol=1e-6)


@pytest.mark.slow_variants
@neutral
@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_outputs_are_equal_in_every_mode(modes, mode):
    if mode not in modes:
        pytest.skip("no such mode on this backend")
    arrays = [ops.convert_to_tensor(array) for array in tensors()]

    def run(*tensors):
        return retrieval_attention(*tensors, 4, dropout=0.3, seed=SEED)

    np.testing.assert_allclose(modes[mode](run)(*arrays), run(*arrays), **CLOSE)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda q, k, v: retrieval_attention(q, k, v, 0), "`k` must be a positive integer. Received: k=0"),
        (lambda q, k, v: retrieval_attention(q, k, v[:, :3], 2), "must have the same length. Received: "),
        (lambda q, k, v: retrieval_attention(q, k, v, 2, dropout=0.5), "`seed` must be passed"),
        (
            lambda q, k, v: retrieval_attention(q, k, v, 2, padding_mask=np.ones((2, 3), bool)),
            "`padding_mask` must be .*Received: padding_mask.shape",
        ),
    ],
)
def test_errors_name_the_argument_and_value(make, message):
    with pytest.raises(ValueError, match=message):
        make(*tensors())
