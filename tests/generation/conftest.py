import pathlib

import keras
import pytest

# On JAX every eager call compiles, so the other files run only in `make test-all`.
QUICK_ON_JAX = {
    "test_alignment.py",
    "test_bad_input.py",
    "test_generator.py",
    "test_sampling.py",
    "test_top_k.py",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    here = pathlib.Path(__file__).parent
    for item in items:
        if (
            item.path.parent == here
            and item.path.name not in QUICK_ON_JAX
            and keras.backend.backend() == "jax"
        ):
            item.add_marker(pytest.mark.slow)
