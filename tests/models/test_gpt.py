import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import generation, relations
from keras_transformer.models import GPT
from keras_transformer.training import LabelSmoothedCrossentropy
from tests.random_weights import randomise

# JAX compiles every new shape for seconds: run only one case of each law there.
neutral = pytest.mark.backend_neutral

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
TINY = {
    "vocabulary_size": 12,
    "num_layers": 2,
    "num_heads": 2,
    "model_dim": 8,
    "max_length": 16,
    "dropout": 0.0,
}
IDS = np.array([[5, 6, 7, 3, 9], [8, 3, 4, 0, 0]])
MODERN = {"position_encoding": "rotary", "norm": "rms", "activation": "swiglu", "use_bias": False}
VARIANTS = {
    "gpt2": {},
    "gpt1": {"normalization": "post"},
    "modern": {**MODERN, "num_kv_heads": 1},
    "window": {"position_encoding": "alibi", "relation": relations.SlidingWindow(2)},
    "t5": {"position_encoding": "relative_bias"},
}
each = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)


def tiny(**options):
    """Return a small model with random weights, including biases."""
    return randomise(GPT(**{**TINY, **options}), scale=0.6)


def logits(model, ids=IDS, **more):
    ids = np.asarray(ids)
    return ops.convert_to_numpy(model({"token_ids": ids, **more} if more else ids))


@neutral
def test_from_size_accepts_overrides():
    model = GPT.from_size(
        "gpt2", num_layers=1, num_heads=2, model_dim=8, vocabulary_size=9, end_id=1, pad_id=0
    )
    assert (model.max_length, model.hidden_dim, model.vocabulary_size) == (1024, 32, 9)


@pytest.mark.slow_variants
@each
def test_packed_texts_equal_separate_texts(options):
    model = tiny(**options)
    packed = np.concatenate([IDS[0], IDS[1, :3]])[None]
    segments = np.array([[1] * 5 + [2] * 3])
    positions = np.array([[0, 1, 2, 3, 4, 0, 1, 2]])
    found = logits(model, packed, segment_ids=segments, positions=positions)
    np.testing.assert_allclose(found[0, :5], logits(model)[0], **CLOSE)
    np.testing.assert_allclose(found[0, 5:], logits(model)[1, :3], **CLOSE)


def test_max_length_limits_prompt_and_new_tokens():
    with pytest.raises(ValueError, match="at most 7 tokens in each row, because the model has 16 positions"):
        generation.generate(tiny(), np.full((1, 9), 5), max_new_tokens=10)
    assert tiny(**MODERN).max_length is None
    with pytest.raises(ValueError, match="must be at most max_length=16 long"):
        logits(tiny(), np.full((1, 17), 5))


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=neutral)], ids=["graph", "xla"])
def test_tiny_model_learns_to_count(jit_compile):
    keras.utils.set_random_seed(0)
    model = GPT(12, num_layers=1, num_heads=2, model_dim=16, max_length=8, dropout=0.0)
    model.compile(keras.optimizers.Adam(0.02), LabelSmoothedCrossentropy(0.0), jit_compile=jit_compile)
    ids = 1 + (np.arange(64)[:, None] + np.arange(9)) % 11
    model.fit(ids[:, :-1], ids[:, 1:], batch_size=32, epochs=40, verbose=0)
    assert (logits(model, ids[:, :-1]).argmax(-1) == ids[:, 1:]).mean() > 0.98


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
@pytest.mark.parametrize(("mode", "error"), [("int8", 0.1), ("int4", 0.4)])
def test_a_quantized_model_generates(mode, error):
    model = tiny(num_layers=1)
    expected = logits(model)[0]
    model.quantize(mode)
    found = logits(model)[0]
    assert not np.array_equal(found, expected)
    np.testing.assert_allclose(found, expected, atol=error * np.abs(expected).max())
    positions = np.arange(5, dtype="int32")[None]
    stepped, _ = model.step(IDS[:1], model.empty_cache(1, 5), cache_index=0, positions=positions)
    np.testing.assert_allclose(stepped[0], found, **CLOSE)
