import dataclasses
import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.ops import GrowingCache, KVCache, RollingCache, StaticCache
from keras_transformer.ops.kv_cache import token_indices

pytestmark = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
SHAPES = [(2, 5), (2, 5, 3), (2, 4, 5, 3)]  # positions; any; keys and values
STATIC = [StaticCache(), StaticCache(in_place=False)]
CACHES = [*STATIC, RollingCache(), RollingCache(in_place=False), GrowingCache(), GrowingCache(rolling=False)]
SIZES = {"num_heads": 2, "key_dim": 3, "value_dim": 4}


def axis_of(shape):
    return 2 if len(shape) == 4 else 1


def written(cache, new, cache_index):
    expected, axis = cache.copy(), axis_of(cache.shape)
    expected[(slice(None),) * axis + (slice(cache_index, cache_index + new.shape[axis]),)] = new
    return expected


def some(shape, length=None):
    axis = axis_of(shape)
    length = shape[axis] if length is None else length
    return RANDOM.normal(size=(*shape[:axis], length, *shape[axis + 1 :])).astype("float32")


def tokens(start, end, batch_size=2):
    """Return new cache entries whose values encode their token index."""
    positions = np.broadcast_to(np.arange(start, end, dtype="int32"), (batch_size, end - start))
    values = positions[:, :, None, None] + np.zeros((1, 1, 2, 1), "float32") + [[[[0.25], [0.5]]]]
    return {
        "key": np.repeat(values, 3, axis=-1).astype("float32"),
        "value": np.repeat(-values, 4, axis=-1).astype("float32"),
        "positions": positions,
    }


def allocated(kv_cache, size, window=None):
    return kv_cache.allocate(2, size, **SIZES, dtype="float32", window=window)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("index", [0, 2, 4])
@pytest.mark.parametrize("kv_cache", STATIC, ids=str)
def test_a_static_cache_inserts_one_token_only_at_the_index(kv_cache, shape, index):
    cache, new = some(shape), some(shape, 1)
    for at in (index, ops.convert_to_tensor(index, "int32")):
        np.testing.assert_array_equal(kv_cache.insert(cache, new, at), written(cache, new, index))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("index", "length"), [(0, 3), (2, 3), (0, 5), (1, 2)])
@pytest.mark.parametrize("kv_cache", STATIC, ids=str)
def test_a_static_cache_inserts_several_tokens(kv_cache, shape, index, length):
    cache, new = some(shape), some(shape, length)
    for at in (index, ops.convert_to_tensor(index, "int32")):
        np.testing.assert_array_equal(kv_cache.insert(cache, new, at), written(cache, new, index))


@pytest.mark.parametrize("length", [1, 2])
def test_static_caches_agree_in_every_mode(modes, length):
    cache, new = some(SHAPES[-1]), some(SHAPES[-1], length)
    expected = written(cache, new, 3)
    for name, wrap in modes.items():
        for kv_cache in STATIC:
            tensors = map(ops.convert_to_tensor, (cache, new))
            found = wrap(kv_cache.insert)(*tensors, ops.convert_to_tensor(3, "int32"))
            np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize("length", [1, 3])
def test_a_growing_cache_appends_tokens(length):
    kv_cache = GrowingCache()
    state = allocated(kv_cache, 0)
    for start, end in ((0, length), (length, length + 1)):
        entries, state = kv_cache.write(state, tokens(start, end), start)
        for found, expected in zip(kv_cache.read(entries, 2), tokens(0, end).values(), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kv_cache", CACHES, ids=str)
def test_read_returns_the_written_tokens(kv_cache):
    state = allocated(kv_cache, 0 if isinstance(kv_cache, GrowingCache) else 4)
    for start, end in ((0, 2), (2, 3), (3, 4)):
        entries, state = kv_cache.write(state, tokens(start, end), start)
    for found, expected in zip(kv_cache.read(entries, 2), tokens(0, 4).values(), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kv_cache", CACHES, ids=str)
def test_caches_keep_their_dtype(kv_cache):
    state = kv_cache.allocate(2, 0 if isinstance(kv_cache, GrowingCache) else 4, **SIZES, dtype="float16")
    for count in (1, 2):
        _, new = kv_cache.write(state, tokens(0, count), 0)
        assert keras.backend.standardize_dtype(new["key"].dtype) == "float16"


@pytest.mark.slow_variants
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("window", [None, 2], ids="window={}".format)
@pytest.mark.parametrize("kv_cache", [*STATIC, GrowingCache(), GrowingCache(rolling=False)], ids=str)
def test_every_cache_contains_the_tokens_of_the_window(kv_cache, window, count):
    total = 12
    state = allocated(kv_cache, 0 if isinstance(kv_cache, GrowingCache) else total, window)
    layer = kv_cache.for_window(window, state["positions"].shape[1])
    for start in range(0, total, count):
        entries, state = layer.write(state, tokens(start, start + count), start)
        keys, values, positions = map(ops.convert_to_numpy, layer.read(entries, 2))
        valid = positions[0] >= 0
        np.testing.assert_array_equal(keys[:, valid, 1, 0], positions[:, valid] + 0.5)
        np.testing.assert_array_equal(values[:, valid, 0, 3], -positions[:, valid] - 0.25)
        for token in range(start, start + count):
            needed = set(range(0 if window is None else max(token - window, 0), token + 1))
            assert needed <= {*positions[0].tolist()}
    keeps_all = window is None or kv_cache == GrowingCache(rolling=False)
    assert state["positions"].shape[1] == (total if keeps_all else window + 1)


def test_token_indices_follow_from_the_number_of_tokens_written():
    kv_cache = RollingCache()
    state = allocated(kv_cache, 3)
    for start in range(8):
        _, state = kv_cache.write(state, tokens(start, start + 1), start)
        found = ops.convert_to_numpy(token_indices(start + 1, 3))
        np.testing.assert_array_equal(np.maximum(found, -1), ops.convert_to_numpy(state["positions"])[0])


@pytest.mark.parametrize("kv_cache", STATIC, ids=str)
def test_writing_to_a_full_cache_raises_an_error(kv_cache):
    with pytest.raises(
        ValueError,
        match=r"`cache_index` must be at most 1 to write 2 entries into a cache of 3.*cache_index=2",
    ):
        kv_cache.write(allocated(kv_cache, 3), tokens(2, 4), 2)


def test_cache_strategies_are_frozen_and_hashable():
    for cls in (StaticCache, RollingCache, GrowingCache):
        assert issubclass(cls, KVCache)
        assert cls() == cls()
        assert hash(cls()) == hash(cls())
        with pytest.raises(dataclasses.FrozenInstanceError):
            cls().in_place = True
    assert len({*CACHES, *CACHES}) == len(CACHES)


def test_a_bounded_window_keeps_the_cache_layout():
    for kv_cache in (*STATIC, GrowingCache()):
        assert kv_cache.for_window(None, 9) == kv_cache
        assert kv_cache.for_window(2, 9) == RollingCache(kv_cache.in_place)
    assert StaticCache().for_window(4, 4) == StaticCache()
    assert GrowingCache(rolling=False).for_window(2, 9) == GrowingCache(rolling=False)


def written_in_a_loop(kv_cache, inputs):
    """Return the state of a cache after four steps of a loop, whose keys are the inputs (2,) and the step."""

    def step(count, state):
        new = {
            "key": inputs[:, None, None, None] + ops.zeros((2, 1, 2, 3)) + ops.cast(count, "float32"),
            "value": ops.zeros((2, 1, 2, 4)),
            "positions": ops.zeros((2, 1), "int32") + count,
        }
        return count + 1, kv_cache.write(state, new, count)[1]

    start = (ops.zeros((), "int32"), allocated(kv_cache, kv_cache.loop_length(4, inputs)))
    return ops.while_loop(lambda count, _: count < 4, step, start)[1]


@pytest.mark.parametrize("kv_cache", [*STATIC, RollingCache(), RollingCache(in_place=False)], ids=str)
def test_cache_state_passes_through_a_while_loop(modes, kv_cache):
    loop = functools.partial(written_in_a_loop, kv_cache)

    for name, wrap in modes.items():
        state = wrap(loop)(ops.convert_to_tensor([1.0, 2.0]))
        keys, _, positions = kv_cache.read(state, 2)
        np.testing.assert_array_equal(positions, [[0, 1, 2, 3]] * 2, err_msg=name)
        np.testing.assert_array_equal(keys[1, :, 0, 0], [2, 3, 4, 5], err_msg=name)


def test_growing_cache_state_passes_through_a_tensorflow_loop():
    kv_cache = GrowingCache()
    inputs = ops.convert_to_tensor([1.0, 2.0])
    if keras.backend.backend() != "tensorflow":
        with pytest.raises(
            ValueError, match=r"`kv_cache` must have a fixed size.*Received: kv_cache=Growing"
        ):
            kv_cache.loop_length(4, inputs)
        return
    import tensorflow as tf

    loop = tf.function(functools.partial(written_in_a_loop, kv_cache), autograph=False)

    keys, _, positions = kv_cache.read(loop(inputs), 2)
    np.testing.assert_array_equal(positions, [[0, 1, 2, 3]] * 2)
    np.testing.assert_array_equal(keys[1, :, 0, 0], [2, 3, 4, 5])
