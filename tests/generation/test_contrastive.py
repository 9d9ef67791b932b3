import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import generation, relations
from keras_transformer.generation import Contrastive, NoRepeatNGram
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.models import GPT
from keras_transformer.ops import GrowingCache, StaticCache

pytestmark = pytest.mark.backend_neutral

ON_JAX = keras.backend.backend() == "jax"
# Cache updates of loops without TensorFlow's XLA: only TensorFlow loops support growing tensors.
CACHE = StaticCache(in_place=False) if ON_JAX else GrowingCache()
PROMPTS = np.array([[5, 6, 7, 8, 9], [0, 0, 4, 5, 6], [4, 5, 6, 0, 0], [0, 7, 7, 0, 0]])


def run(model, sampler, most, ids, constraints=(), **given):
    return generation.Generator(model, sampler, most, jit_compile=ON_JAX, constraints=constraints)(
        ids, **given
    )


@pytest.fixture(scope="module")
def gpt():
    """A decoder-only model of two layers with random weights."""

    def make(**options):
        model = GPT(
            12,
            num_layers=2,
            num_heads=2,
            model_dim=8,
            hidden_dim=16,
            dropout=0.0,
            pad_id=0,
            end_id=3,
            **options,
        )
        random = np.random.default_rng(5)
        for weight in model.trainable_weights:
            if "gamma" not in weight.path:
                weight.assign(random.normal(size=weight.shape) * 0.6)
        return model

    return make


def by_whole_passes(model, source, sampler, most):
    """Contrastive search in plain Python, with a full forward pass for every candidate."""
    single = not is_encoder_decoder(model)
    prompt = source[source != 0].tolist() if single else [model.start_id]
    context = () if single else (model.encode(ops.array(source[None])),)

    def read(ids):
        hidden, _ = model.hidden_step(
            ops.array([ids]),
            model.empty_cache(1, len(ids)),
            *context,
            cache_index=0,
            positions=ops.arange(len(ids))[None],
        )
        logits = ops.convert_to_numpy(model.logits(hidden))[0, -1].astype(float)
        hidden = ops.convert_to_numpy(hidden)[0]
        return hidden / np.linalg.norm(hidden, axis=-1, keepdims=True), logits

    ids, scores = [], []
    for _ in range(most):
        seen, logits = read(prompt + ids)
        logs = logits - np.logaddexp.reduce(logits)
        allowed = logits.copy()
        allowed[[0] if single else [0, model.start_id]] = -np.inf
        shares = np.exp(allowed - np.logaddexp.reduce(allowed))
        candidates = np.argsort(-allowed)[: sampler.top_k]
        alpha = sampler.penalty_alpha
        worth = [
            (1 - alpha) * shares[one] - alpha * (read([*prompt, *ids, int(one)])[0][-1] @ seen.T).max()
            for one in candidates
        ]
        ids.append(int(candidates[np.argmax(worth)]))
        scores.append(logs[ids[-1]])
        if ids[-1] == model.end_id:
            break
    return ids, scores


@pytest.mark.slow_variants
@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize("options", [{}, {"relation": relations.SlidingWindow(2)}], ids=str)
def test_decoder_choices_equal_full_forward(gpt, options, rows):
    model, sampler, prompts = gpt(**options), Contrastive(3, 0.8), PROMPTS[:rows]
    out = run(model, sampler, 6, prompts)
    for row, prompt in enumerate(prompts):
        ids, scores = by_whole_passes(model, prompt, sampler, 6)
        assert out.ids[row, 0, : out.lengths[row, 0]].tolist() == ids
        np.testing.assert_allclose(out.token_scores[row, 0, : len(ids)], scores, rtol=1e-3, atol=1e-3)
    assert (out.ids != run(model, "greedy", 6, prompts).ids).any()


@pytest.mark.slow
def test_encoder_decoder_choices_equal_full_forward_in_every_mode(random_transformer, modes):
    model, sampler = random_transformer(6), Contrastive(4, 0.5)
    sources = np.random.default_rng(0).integers(4, 40, (4, 6))
    sources[2] = 0
    expected = generation.Generator(model, sampler, 7, jit_compile=True)(sources)
    assert expected.lengths[2, 0] == 0
    for row in (0, 1, 3):
        ids, scores = by_whole_passes(model, sources[row], sampler, 7)
        assert expected.ids[row, 0, : expected.lengths[row, 0]].tolist() == ids
        np.testing.assert_allclose(expected.token_scores[row, 0, : len(ids)], scores, rtol=1e-3, atol=1e-3)
    loop = modes["xla" if ON_JAX else "eager"](
        lambda ids: generation.generate_ids(model, ids, 7, CACHE, sampler=sampler)["ids"]
    )
    np.testing.assert_array_equal(ops.convert_to_numpy(loop(ops.array(sources))), expected.ids)


@pytest.mark.slow
def test_zero_penalty_or_one_candidate_equals_greedy_with_constraints(gpt):
    model = gpt()
    greedy = run(model, "greedy", 6, PROMPTS)
    for sampler in (Contrastive(4, 0.0), Contrastive(1, 0.6), Contrastive(100, 0.0)):
        np.testing.assert_array_equal(run(model, sampler, 6, PROMPTS).ids, greedy.ids)
    limits = np.array([6, 2, 4, 1])
    out = run(model, Contrastive(4, 0.3), 6, PROMPTS, [NoRepeatNGram(1)], limits=limits)
    assert (out.lengths[:, 0] <= limits).all()
    for ids, length in zip(out.best, out.lengths[:, 0], strict=True):
        assert len(set(ids[:length])) == length


def test_models_without_hidden_states_are_rejected(decoder):
    with pytest.raises(ValueError, match="`model` must have `hidden_step` and `logits`"):
        run(decoder(), "contrastive", 5, PROMPTS)
    assert generation.get("contrastive") == generation.get(generation.samplers.serialize(Contrastive()))
