"""The k largest values equal the first of a full sort."""

import numpy as np
import pytest

from keras_transformer.generation.search.top_k import top_k

pytestmark = pytest.mark.backend_neutral


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("length", "count"), [(1, 1), (2, 2), (7, 1), (9, 8), (50, 3), (100, 7), (1000, 1), (1000, 16)]
)
@pytest.mark.parametrize("different", [2, 30, 10**6])
@pytest.mark.parametrize("leading", [(1,), (3,), (2, 3)], ids=str)
def test_top_k_equals_stable_sort(length, count, different, leading, modes):
    random = np.random.default_rng(length + different)
    values = random.integers(-different, different, (*leading, length)).astype("float32")
    values[..., ::3] -= 1e30
    expected = np.argsort(-values, axis=-1, kind="stable")[..., :count]
    for mode in ("eager", "xla"):
        found, index = modes[mode](lambda x: top_k(x, count))(values)
        np.testing.assert_array_equal(index, expected)
        np.testing.assert_array_equal(found, np.take_along_axis(values, expected, axis=-1))
