import keras
import numpy as np
import pytest

from keras_transformer import generation, layers, models
from keras_transformer.generation import (
    BannedWords,
    Beam,
    Contrastive,
    ForcedLastToken,
    ForcedPrefix,
    MinNewTokens,
    NoRepeatNGram,
    Sample,
    VocabularyShortlist,
)
from keras_transformer.interop.assignment import quantize_weights

VOCABULARY = 40
IDS = [*range(3, 40, 3)]  # the end token 3 among them
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 32}
SPECIAL = {"pad_id": 0, "start_id": 2, "end_id": 3}


class Masked:
    """A model whose logits of the tokens outside the shortlist are −10³⁰."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        if name == "output_kernel":
            raise AttributeError(name)
        return getattr(self._model, name)

    def step(self, *arguments, **options):
        logits, cache = self._model.step(*arguments, **options)
        others = np.isin(np.arange(VOCABULARY), IDS, invert=True)
        return keras.ops.where(others, -1e30, logits), cache


def with_random_weights(model):
    random = np.random.default_rng(0)
    for weight in model.weights:
        if len(weight.shape) > 1 or "output_bias" in weight.path:
            weight.assign(random.normal(size=weight.shape) * 0.5)
    return model


MODELS = {
    "Transformer": lambda: models.Transformer(VOCABULARY, **SIZES, **SPECIAL),
    "with a bias": lambda: models.Transformer(VOCABULARY, **SIZES, **SPECIAL, output_bias=True),
    "T5": lambda: models.T5(VOCABULARY, **SIZES, **SPECIAL, key_dim=8),
    "T5, untied": lambda: models.T5(VOCABULARY, **SIZES, **SPECIAL, key_dim=8, tied=False),
    "GPT": lambda: models.GPT(VOCABULARY, **SIZES, max_length=32, pad_id=0, end_id=3),
}
SAMPLERS = {
    "greedy": "greedy",
    "beam": Beam(3, num_return=2),
    "sample": Sample(temperature=0.8, top_k=6, seed=5, num_return=2),
}
CONSTRAINTS = {
    "alone": [],
    "with others": [
        BannedWords([[6, 9], [7], [12]]),
        MinNewTokens(2),
        NoRepeatNGram(2),
        ForcedLastToken([3]),
    ],
    "with a prefix": [ForcedPrefix([9, 6])],
}


@pytest.mark.slow_variants
@pytest.mark.parametrize("constraints", CONSTRAINTS.values(), ids=CONSTRAINTS)
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("name", MODELS)
def test_a_shortlist_equals_masked_logits(name, sampler, constraints):
    model = with_random_weights(MODELS[name]())
    sources = np.array([[5, 7, 10, 4], [8, 25, 0, 0], [11, 13, 3, 0]])
    options = {"max_new_tokens": [7, 5, 8], "constraints": constraints}
    if name != "GPT":
        options |= {"prefix_ids": [[10, 0], [6, 11], [0, 0]], "start_ids": [2, 10, 6]}
    expected = generation.generate(Masked(model), sources, sampler, **options)
    options["constraints"] = [*constraints, VocabularyShortlist(IDS)]
    received = generation.generate(model, sources, sampler, **options)
    assert {*np.unique(received.ids)} <= {0, *IDS}
    np.testing.assert_array_equal(received.ids, expected.ids)
    np.testing.assert_array_equal(received.lengths, expected.lengths)
    np.testing.assert_allclose(received.token_scores, expected.token_scores, atol=1e-4)


def test_the_loop_computes_the_logits_of_the_shortlist_only(monkeypatch):
    shapes = []
    logits = layers.TokenEmbedding.logits

    def recorded(self, hidden, kernel=None):
        shapes.append(logits(self, hidden, kernel).shape[-1])
        return logits(self, hidden, kernel)

    monkeypatch.setattr(layers.TokenEmbedding, "logits", recorded)
    model = MODELS["Transformer"]()
    generation.generate(model, [[5, 3]], max_new_tokens=4, constraints=[VocabularyShortlist(IDS)])
    assert {*shapes} == {len(IDS)}


@pytest.mark.slow
def test_a_stream_has_the_ids_of_the_loop():
    model = with_random_weights(MODELS["Transformer"]())
    options = {"max_new_tokens": 6, "constraints": [VocabularyShortlist(IDS)]}
    tokens = [*generation.stream(model, [[5, 7, 3], [8, 3, 0]], **options)]
    expected = generation.generate(model, [[5, 7, 3], [8, 3, 0]], **options).best
    np.testing.assert_array_equal(np.stack(tokens, axis=1), expected[:, : len(tokens)])


@pytest.mark.parametrize(
    ("sampler", "constraints", "message"),
    [
        ("greedy", [VocabularyShortlist([5, 6])], "shortlist with the end token"),
        ("greedy", [VocabularyShortlist([3, 40])], r"have ids in \[0, 40\)"),
        (
            "greedy",
            [VocabularyShortlist([3, 5]), ForcedPrefix([6])],
            "force tokens of the shortlist|contradict",
        ),
        ("greedy", [VocabularyShortlist([3, 5]), VocabularyShortlist([3])], "one shortlist"),
        (Contrastive(2), [VocabularyShortlist([3, 5])], "`Greedy`, `Beam` or `Sample`"),
    ],
)
def test_invalid_shortlists_raise(sampler, constraints, message):
    model = MODELS["Transformer"]()
    with pytest.raises(ValueError, match=message):
        generation.generate(model, [[5, 3]], sampler, constraints=constraints)


QUANTIZED = {
    **MODELS,
    "Llama, untied": lambda: models.Llama(VOCABULARY, **SIZES, pad_id=0, end_id=3),
}


@pytest.mark.slow_variants
@pytest.mark.parametrize("mode", ["int4", "int8"])
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_output_matrices_give_the_logits_of_generation(name, mode):
    model = with_random_weights(QUANTIZED[name]())
    model.quantize(mode, filters="embedding|head")
    sources = np.array([[5, 7, 10, 4], [8, 25, 0, 0]])
    found = generation.Generator(model, max_new_tokens=4, jit_compile=False)(sources)
    expected = generation.score(model, sources, found.best)  # by one pass over all tokens
    np.testing.assert_allclose(found.token_scores[:, 0], expected.token_scores, rtol=1e-4, atol=1e-4)
    assert model.output_kernel() is None
    with pytest.raises(ValueError, match="matrix of floats"):
        generation.generate(model, sources, constraints=[VocabularyShortlist([3, 5])])


@pytest.mark.slow
def test_weights_that_are_quantized_while_they_are_read_have_no_matrix_of_floats():
    model = MODELS["Transformer"]()
    quantize_weights(model)
    with pytest.raises(ValueError, match="matrix of floats"):
        generation.generate(model, [[5, 3]], constraints=[VocabularyShortlist([3, 5])])
