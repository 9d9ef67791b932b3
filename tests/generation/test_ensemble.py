import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import generation
from keras_transformer.generation import Beam, Ensemble, Speculative
from keras_transformer.generation.generative_model import is_encoder_decoder

pytestmark = pytest.mark.backend_neutral

ON_JAX = keras.backend.backend() == "jax"
SOURCES = np.array([[4, 5, 4, 3], [5, 3, 0, 0], [4, 4, 5, 5]])
PROMPTS = np.array([[5, 6, 7, 8, 9], [0, 0, 4, 5, 6], [4, 5, 6, 0, 0]])


def run(model, sampler, most, ids):
    return generation.Generator(model, sampler, most, jit_compile=ON_JAX)(ids)


class Mean:
    """The ensemble computed with full forward passes, for `forced`."""

    pad_id, start_id, end_id = 0, 2, 3

    def __init__(self, models, weights):
        self.models, self.weights = models, weights
        self.is_encoder_decoder = is_encoder_decoder(models[0])

    def __call__(self, inputs):
        shares = [
            ops.softmax(model(inputs), axis=-1) * w
            for model, w in zip(self.models, self.weights, strict=True)
        ]
        return ops.log(sum(shares))


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, [3, 1]], ids=str)
def test_ensemble_beams_equal_the_mean_distribution(translator, reference_beam, weights):
    models = [translator(1, 9), translator(2, 9)]
    beam = Beam(3, num_return=2)
    out = run(Ensemble(models, weights), beam, 6, SOURCES)
    mean = Mean(models, [0.5, 0.5] if weights is None else [0.75, 0.25])
    for row, source in enumerate(SOURCES):
        expected = reference_beam(mean, source, beam, 6, [1, 3, 4, 5, 6, 7, 8])
        for found, (ids, score, _) in enumerate(expected):
            assert tuple(out.ids[row, found, : out.lengths[row, found]]) == ids
            np.testing.assert_allclose(out.scores[row, found], score, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_ensemble_supports_score_speculative_and_stream(decoder):
    models = [decoder(5), decoder(6)]
    ensemble = Ensemble(models)
    out = run(ensemble, "greedy", 6, PROMPTS)
    assert (out.ids != run(models[0], "greedy", 6, PROMPTS).ids).any()
    np.testing.assert_allclose(
        generation.score(ensemble, PROMPTS, out.best).scores, out.scores[:, 0], rtol=1e-4
    )
    np.testing.assert_array_equal(run(ensemble, Speculative(models[0], 2), 6, PROMPTS).ids, out.ids)
    steps = list(generation.stream(ensemble, PROMPTS, max_new_tokens=6))
    np.testing.assert_array_equal(np.stack(steps, axis=1), out.best[:, : len(steps)])


@pytest.mark.slow_variants
@pytest.mark.parametrize("times", [2, 1])
def test_ensemble_of_one_model_equals_the_model(translator, times):
    model = translator(1, 9)
    expected = run(model, "greedy", 6, SOURCES)
    out = run(Ensemble([model] * times), "greedy", 6, SOURCES)
    np.testing.assert_array_equal(out.ids, expected.ids)
    np.testing.assert_allclose(out.scores, expected.scores, rtol=1e-4)


@pytest.mark.slow
def test_new_weights_of_members_are_used(translator):
    models = [translator(1, 9), translator(2, 9)]
    ensemble = Ensemble(models)
    before = generation.generate(ensemble, SOURCES, max_new_tokens=4)
    models[1].set_weights(translator(4, 9).get_weights())
    after = generation.generate(ensemble, SOURCES, max_new_tokens=4)
    assert (before.scores != after.scores).any()


def test_incompatible_members_are_rejected(translator, decoder):
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


def test_large_ensemble_weights_are_normalized(decoder):
    assert Ensemble([decoder(), decoder()], [1e308, 1e308]).weights == [0.5, 0.5]
