import math

import numpy as np
import pytest
from keras import ops

from keras_transformer.ops.biases import BucketBias, LinearBias, PositionBias, buckets, slopes

pytestmark = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
TABLE = RANDOM.normal(size=(8, 3)).astype("float32")
POSITIONS = {
    "index": (np.arange(5), np.arange(7)),
    "offset": (np.arange(40, 45), np.arange(30, 37)),
    "each row its own": (np.array([[3, 0, 9], [1, 2, 30]]), np.array([[0, 1, 2, 3], [50, 4, 9, 2]])),
    "rows of queries": (np.array([[3, 0, 9], [1, 2, 30]]), np.arange(4)),
    "padding": (np.array([[-1, -1, 0], [-1, 0, 1]]), np.array([[-1, -1, 0], [-1, 0, 1]])),
}


def in_block(positions, dtype="int32"):
    """Return query positions (…, T, 1) and key positions (…, 1, S)."""
    queries, keys = (np.asarray(given, dtype) for given in POSITIONS[positions])
    return queries[..., None], keys[..., None, :]


def published_bucket(relative, num_buckets, max_distance, bidirectional):
    """Compute the bucket of Raffel et al. for one relative position, with exact arithmetic for the logarithm."""
    bucket, distance = 0, relative
    if bidirectional:
        num_buckets //= 2
        bucket += num_buckets * (relative > 0)
        distance = abs(relative)
    else:
        distance = -min(relative, 0)
    exact = num_buckets // 2
    if distance < exact:
        return bucket + distance
    ranges = num_buckets - exact
    # The largest r for which (distance / exact) ≥ (max_distance / exact)^(r / ranges), as integers.
    r = max(r for r in range(ranges + 1) if distance**ranges * exact**r >= exact**ranges * max_distance**r)
    return bucket + min(exact + r, num_buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("num_buckets", "max_distance"), [(32, 128), (32, 256), (8, 20), (64, 100), (16, 1000)]
)
def test_buckets_equal_t5(num_buckets, max_distance, bidirectional):
    relative = np.arange(-2 * max_distance, 2 * max_distance + 1)
    found = buckets(relative, num_buckets, max_distance, bidirectional)
    expected = [published_bucket(int(r), num_buckets, max_distance, bidirectional) for r in relative]
    np.testing.assert_array_equal(found, expected)
    assert set(found) == set(range(num_buckets)) - ({num_buckets // 2} if bidirectional else set())


def test_default_buckets_equal_t5():
    relative = [0, -1, 1, -7, -8, 8, -15, -16, -127, -128, -5000, 5000]
    assert buckets(relative, 32, 128).tolist() == [0, 1, 17, 7, 8, 24, 9, 10, 15, 15, 15, 31]
    assert buckets([5, 0, -15, -16, -128], 32, 128, bidirectional=False).tolist() == [0, 0, 15, 16, 31]


def naive(bias, queries, keys):
    """Compute the bias entry by entry."""

    def entry(head, i, j):
        if isinstance(bias, LinearBias):
            return -slopes(bias.num_heads)[head] * abs(int(i) - int(j))
        table = np.asarray(bias.table)
        return table[
            published_bucket(int(j) - int(i), len(table), bias.max_distance, bias.bidirectional), head
        ]

    heads = bias.num_heads if isinstance(bias, LinearBias) else bias.table.shape[1]
    queries, keys = np.broadcast_arrays(queries, keys)
    result = np.empty((*queries.shape[:-2], heads, *queries.shape[-2:]))
    for index in np.ndindex(result.shape):
        pair = (*index[:-3], *index[-2:])
        result[index] = entry(index[-3], queries[pair], keys[pair])
    return result


BIASES = {
    "linear": LinearBias(3),
    "buckets": BucketBias(TABLE, 20),
    "buckets of the past": BucketBias(TABLE, 20, bidirectional=False),
}


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_a_bias_block_equals_the_definition_entry_by_entry(bias, positions):
    assert isinstance(bias, PositionBias)
    queries, keys = in_block(positions)
    found = np.asarray(bias.block(bias.parameters, queries, keys))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, naive(bias, queries, keys), rtol=1e-6)


@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_blocks_together_are_the_full_bias(bias):
    queries, keys = np.arange(6)[:, None], np.arange(8)[None]
    whole = bias.block(bias.parameters, queries, keys)
    rows = [
        np.concatenate([bias.block(bias.parameters, q, k) for k in np.split(keys, 2, axis=1)], axis=-1)
        for q in np.split(queries, 3)
    ]
    np.testing.assert_array_equal(np.concatenate(rows, axis=-2), whole)


@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_biases_are_invariant_under_translations(bias):
    queries, keys = in_block("index")
    shifted = bias.block(bias.parameters, queries + 1000, keys + 1000)
    np.testing.assert_array_equal(shifted, bias.block(bias.parameters, queries, keys))


@pytest.mark.parametrize("mode", ["graph", "xla"])
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_forward_and_backward_are_equal_in_every_mode(modes, mode, bias):
    if mode not in modes:
        pytest.skip("no such mode on this backend")
    queries, keys = (ops.convert_to_tensor(x) for x in in_block("each row its own"))
    parameters = tuple(ops.convert_to_tensor(parameter) for parameter in bias.parameters)
    block = bias.block(parameters, queries, keys)
    np.testing.assert_allclose(modes[mode](bias.block)(parameters, queries, keys), block, rtol=1e-6)
    expected = bias.backward(parameters, queries, keys, block)
    found = modes[mode](bias.backward)(parameters, queries, keys, block)
    assert len(found) == len(expected) == len(parameters)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("positions", POSITIONS)
def test_backward_equals_automatic_differentiation(gradients, positions, bidirectional):
    queries, keys = in_block(positions)
    bias = BucketBias(TABLE, 20, bidirectional)
    upstream = RANDOM.normal(size=naive(bias, queries, keys).shape).astype("float32")

    def weighted(table):
        return ops.sum(
            bias.block((table * 1.0,), queries, keys) * upstream
        )  # × 1: TensorFlow's gradient is dense

    (expected,) = gradients(weighted, TABLE)
    (found,) = bias.backward((TABLE,), queries, keys, upstream)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_backward_equals_finite_differences():
    # The bias is linear in its table, so the difference is exact for any step.
    queries, keys = in_block("offset")
    bias = BucketBias(TABLE, 20)
    upstream = RANDOM.normal(size=(3, 5, 7)).astype("float32")
    (found,) = bias.backward((TABLE,), queries, keys, upstream)
    before = np.asarray(bias.block((TABLE,), queries, keys))
    for index in np.ndindex(TABLE.shape):
        moved = TABLE.copy()
        moved[index] += 1
        difference = (np.asarray(bias.block((moved,), queries, keys)) - before) * upstream
        np.testing.assert_allclose(found[index], difference.sum(), atol=1e-5)


def test_backward_of_a_linear_bias_has_no_gradients():
    bias = LinearBias(3)
    assert bias.parameters == ()
    assert bias.backward((), *in_block("index"), np.ones((3, 5, 7))) == ()


def test_half_precision_tables_and_gradients_are_summed_in_float32():
    queries, keys = np.zeros((100, 1), int), np.zeros((1, 100), int)
    bias = BucketBias(ops.cast(TABLE, "float16"), 20)
    assert np.asarray(bias.block(bias.parameters, queries, keys)).dtype == np.float32
    (found,) = bias.backward(bias.parameters, queries, keys, ops.ones((3, 100, 100), "float16"))
    np.testing.assert_allclose(np.asarray(found)[0], 10_000)  # float16 sums of ones would stop at 2,048


class TestSlopes:
    @pytest.mark.parametrize("num_heads", range(1, 13))
    def test_alibi_slopes_equal_the_paper(self, num_heads):
        """The reference is the recursive code of the authors."""

        def of_power(n):
            start = 2 ** (-(2 ** -(math.log2(n) - 3)))
            return [start * start**i for i in range(n)]

        def authors(n):
            if math.log2(n).is_integer():
                return of_power(n)
            closest = 2 ** math.floor(math.log2(n))
            return of_power(closest) + authors(2 * closest)[0::2][: n - closest]

        np.testing.assert_allclose(slopes(num_heads), authors(num_heads), rtol=1e-12)

    @pytest.mark.parametrize("num_heads", range(1, 13))
    def test_alibi_slopes_differ_and_are_between_zero_and_one(self, num_heads):
        found = slopes(num_heads)
        assert len(set(found)) == num_heads
        assert all(0 < slope < 1 for slope in found)

    def test_alibi_slopes_of_eight_heads_are_powers_of_two(self):
        assert slopes(8) == tuple(2.0**-n for n in range(1, 9))


def test_a_linear_bias_is_symmetric_and_decreases_with_the_distance():
    bias = LinearBias(6)
    found = np.asarray(bias.block((), np.arange(9)[:, None], np.arange(9)[None]))
    np.testing.assert_array_equal(found, found.transpose(0, 2, 1))
    assert (np.diagonal(found, axis1=1, axis2=2) == 0).all()
    assert (np.diff(found[:, 0]) < 0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearBias(0), "`num_heads` must be a positive integer. Received: num_heads=0"),
        (lambda: BucketBias(np.ones(8)), r"`table` must be \(num_buckets, N\). Received: table.shape=\(8,\)"),
        (lambda: BucketBias(np.ones((2, 3))), "`num_buckets` must be at least 4 and even .*num_buckets=2"),
        (lambda: BucketBias(np.ones((7, 3))), "`num_buckets` must be at least 4 and even .*num_buckets=7"),
        (lambda: BucketBias(np.ones((1, 3)), 9, False), "`num_buckets` must be at least 2 .*num_buckets=1"),
        (lambda: BucketBias(np.ones((8, 3)), 2), "`max_distance` must be greater than 2, .*max_distance=2"),
        (lambda: buckets(3, 8, 4, False), "`max_distance` must be greater than 4, .*max_distance=4"),
    ],
)
def test_errors_name_the_argument_and_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()
