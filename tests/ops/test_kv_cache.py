import numpy as np
import pytest
from keras import ops

from keras_transformer.ops import (
    append_update,
    grow_update,
    kv_cache,
    select_update,
    slice_update,
)

pytestmark = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
SHAPES = [(2, 5), (2, 5, 3), (2, 4, 5, 3)]  # positions; any; keys and values


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


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("cache_index", [0, 2, 4])
def test_slice_and_select_write_one_token_at_the_cache_index_only(shape, cache_index):
    cache, new = some(shape), some(shape, 1)
    expected = written(cache, new, cache_index)
    for index in (cache_index, ops.convert_to_tensor(cache_index, "int32")):
        np.testing.assert_array_equal(slice_update(cache, new, index), expected)
        np.testing.assert_array_equal(select_update(cache, new, index), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("cache_index", "length"), [(0, 3), (2, 3), (0, 5), (1, 2)])
def test_slice_and_select_write_several_tokens(shape, cache_index, length):
    cache, new = some(shape), some(shape, length)
    for index in (cache_index, ops.convert_to_tensor(cache_index, "int32")):
        np.testing.assert_array_equal(slice_update(cache, new, index), written(cache, new, cache_index))
        np.testing.assert_array_equal(select_update(cache, new, index), written(cache, new, cache_index))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("length", [1, 3])
def test_append_grows_the_cache_from_nothing(shape, length):
    cache, first, then = some(shape, 0), some(shape, length), some(shape, 1)
    cache = append_update(cache, first, 0)
    np.testing.assert_array_equal(cache, first)
    cache = append_update(cache, then, length)
    np.testing.assert_array_equal(cache, np.concatenate([first, then], axis=axis_of(shape)))


@pytest.mark.parametrize("update", [slice_update, select_update, append_update])
def test_the_cache_keeps_its_type(update):
    cache = ops.zeros((2, 4, 3), "float16")
    assert "float16" in str(update(cache, ops.ones((2, 1, 3), "float32"), 1).dtype)


@pytest.mark.parametrize("length", [1, 2])
def test_updates_agree_in_every_mode(modes, length):
    cache, new = some(SHAPES[-1]), some(SHAPES[-1], length)
    expected = written(cache, new, 3)
    for name, wrap in modes.items():
        for update in (slice_update, select_update):
            found = wrap(update)(*map(ops.convert_to_tensor, (cache, new)), ops.convert_to_tensor(3, "int32"))
            np.testing.assert_array_equal(found, expected, err_msg=name)


UPDATES = {update.__name__: update for update in (slice_update, select_update, append_update, grow_update)}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("window", [None, 2], ids="window={}".format)
@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_new_tokens_find_those_in_their_window_in_any_cache(update, window, count):
    """The numbers of tokens stand for their entries."""
    total = 12
    size = 0 if kv_cache.grows(update) and (window is None or update is append_update) else total
    entries = {"positions": ops.full((1, size if window is None else min(size, window + 1)), -1, "int32")}
    for cache_index in range(0, total, count):
        new = {"positions": ops.arange(cache_index, cache_index + count, dtype="int32")[None]}
        seen, entries = kv_cache.write(entries, new, cache_index, update, window)
        for token in range(cache_index, cache_index + count):
            needed = set(range(0 if window is None else max(token - window, 0), token + 1))
            assert needed <= {*ops.convert_to_numpy(seen["positions"])[0].tolist()}
    kept = ops.convert_to_numpy(entries["positions"])[0]
    assert len(kept) == (total if window is None or update is append_update else window + 1)


def test_token_indices_follow_from_the_number_of_tokens_written():
    entries = {"positions": ops.full((1, 3), -1, "int32")}
    for cache_index in range(8):
        _, entries = kv_cache.write(
            entries, {"positions": ops.full((1, 1), cache_index)}, cache_index, window=2
        )
        token_indices = ops.convert_to_numpy(kv_cache.rolling_token_indices(cache_index + 1, 3))
        np.testing.assert_array_equal(
            np.maximum(token_indices, -1), ops.convert_to_numpy(entries["positions"])[0]
        )


@pytest.mark.parametrize("update", [slice_update, select_update])
def test_a_cache_that_is_full_is_an_error(update):
    entries = {"positions": ops.full((1, 3), -1, "int32")}
    with pytest.raises(
        ValueError, match=r"`cache_index` must leave room for 2 entries in a cache of 3.*cache_index=2"
    ):
        kv_cache.write(entries, {"positions": ops.zeros((1, 2), "int32")}, 2, update)
