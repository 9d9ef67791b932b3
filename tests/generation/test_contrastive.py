import keras
import numpy as np
import pytest

from keras_transformer import generation
from keras_transformer.generation import Contrastive, NoRepeatNGram
from tests.laws.generation import gpt

from .reference import decoder

pytestmark = pytest.mark.backend_neutral

ON_JAX = keras.backend.backend() == "jax"
PROMPTS = np.array([[5, 6, 7, 8, 9], [0, 0, 4, 5, 6], [4, 5, 6, 0, 0], [0, 7, 7, 0, 0]])


def run(model, sampler, most, ids, constraints=(), **given):
    return generation.Generator(model, sampler, most, jit_compile=ON_JAX, constraints=constraints)(
        ids, **given
    )


@pytest.mark.slow
def test_constraints_and_limits_are_respected():
    model = gpt(5)
    greedy = run(model, "greedy", 6, PROMPTS)
    np.testing.assert_array_equal(run(model, Contrastive(100, 0.0), 6, PROMPTS).ids, greedy.ids)
    limits = np.array([6, 2, 4, 1])
    out = run(model, Contrastive(4, 0.3), 6, PROMPTS, [NoRepeatNGram(1)], limits=limits)
    assert (out.lengths[:, 0] <= limits).all()
    for ids, length in zip(out.best, out.lengths[:, 0], strict=True):
        assert len(set(ids[:length])) == length


def test_models_without_hidden_states_are_rejected():
    with pytest.raises(ValueError, match="`model` must have `hidden_step` and `logits`"):
        run(decoder(), "contrastive", 5, PROMPTS)
    assert generation.get("contrastive") == generation.get(generation.samplers.serialize(Contrastive()))
