import numpy as np
import pytest
from keras import ops

from keras_transformer.ops import append_update, select_update, slice_update

pytestmark = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
SHAPES = [(2, 5), (2, 5, 3), (2, 4, 5, 3)]  # positions; any; keys and values


def axis_of(shape):
    return 2 if len(shape) == 4 else 1


def written(cache, new, slot):
    expected, axis = cache.copy(), axis_of(cache.shape)
    expected[(slice(None),) * axis + (slice(slot, slot + new.shape[axis]),)] = new
    return expected


def some(shape, length=None):
    axis = axis_of(shape)
    length = shape[axis] if length is None else length
    return RANDOM.normal(size=(*shape[:axis], length, *shape[axis + 1 :])).astype("float32")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("slot", [0, 2, 4])
def test_slice_and_select_write_one_token_at_the_slot_and_nothing_else(shape, slot):
    cache, new = some(shape), some(shape, 1)
    expected = written(cache, new, slot)
    for index in (slot, ops.convert_to_tensor(slot, "int32")):
        np.testing.assert_array_equal(slice_update(cache, new, index), expected)
        np.testing.assert_array_equal(select_update(cache, new, index), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("slot", "length"), [(0, 3), (2, 3), (0, 5), (1, 2)])
def test_slice_and_select_write_several_tokens(shape, slot, length):
    cache, new = some(shape), some(shape, length)
    for index in (slot, ops.convert_to_tensor(slot, "int32")):
        np.testing.assert_array_equal(slice_update(cache, new, index), written(cache, new, slot))
        np.testing.assert_array_equal(select_update(cache, new, index), written(cache, new, slot))


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
