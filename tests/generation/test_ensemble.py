import keras
import numpy as np
import pytest

from keras_transformer import generation
from keras_transformer.generation import Ensemble

from .reference import decoder, translator

pytestmark = pytest.mark.backend_neutral

ON_JAX = keras.backend.backend() == "jax"
SOURCES = np.array([[4, 5, 4, 3], [5, 3, 0, 0], [4, 4, 5, 5]])
PROMPTS = np.array([[5, 6, 7, 8, 9], [0, 0, 4, 5, 6], [4, 5, 6, 0, 0]])


def run(model, sampler, most, ids):
    return generation.Generator(model, sampler, most, jit_compile=ON_JAX)(ids)


@pytest.mark.slow
def test_new_weights_of_members_are_used():
    models = [translator(1, 9), translator(2, 9)]
    ensemble = Ensemble(models)
    before = generation.generate(ensemble, SOURCES, max_new_tokens=4)
    models[1].set_weights(translator(4, 9).get_weights())
    after = generation.generate(ensemble, SOURCES, max_new_tokens=4)
    assert (before.scores != after.scores).any()


def test_incompatible_members_are_rejected():
    for models in ([translator(0, 9), translator(0, 10)], [translator(0, 12), decoder()], []):
        with pytest.raises(ValueError, match=r"`models` must .*Received: "):
            Ensemble(models)
    members = [decoder(), decoder()]
    for weights in (
        [1],
        [1, 0],
        [1, -1],
        [1, float("nan")],
        ["a", "b"],
        [1, None],
        [1, True],
        1.0,
        [1e-308, 1e300],
    ):
        with pytest.raises(ValueError, match=r"`weights` must .*Received: weights="):
            Ensemble(members, weights)


def test_large_ensemble_weights_are_normalized():
    assert Ensemble([decoder(), decoder()], [1e308, 1e308]).weights == [0.5, 0.5]
