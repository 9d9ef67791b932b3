import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import generation, relations
from keras_transformer.models import GPT
from keras_transformer.training import LabelSmoothedCrossentropy

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
    model = GPT(**{**TINY, **options})
    random = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(random.normal(size=weight.shape) * 0.6)
    return model


def logits(model, ids=IDS, **more):
    ids = np.asarray(ids)
    return ops.convert_to_numpy(model({"token_ids": ids, **more} if more else ids))


def count(vocabulary_size, num_layers, model_dim, max_length, normalization="pre", **_):
    """Return the number of weights of the papers' blocks: four projections, a feed-forward of 4 D, two norms."""
    d = model_dim
    block = 4 * (d * d + d) + 8 * d * d + 5 * d + 2 * 2 * d
    return (vocabulary_size + max_length) * d + num_layers * block + (0 if normalization == "post" else 2 * d)


@pytest.mark.parametrize("normalization", ["pre", "post"])
@neutral
def test_parameter_count_equals_formula(normalization):
    assert tiny(normalization=normalization).count_params() == count(**TINY, normalization=normalization)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt", 116_534_784),
        ("gpt2", 124_439_808),
        ("gpt2_medium", 354_823_168),
        ("gpt2_large", 774_030_080),
        ("gpt2_xl", 1_557_611_200),
    ],
)
def test_sizes_have_published_parameter_counts(name, parameters):
    assert count(**GPT.sizes[name]) == parameters


@pytest.mark.slow
def test_from_size_has_published_parameter_count():
    assert GPT.from_size("gpt2").count_params() == 124_439_808
    assert GPT.from_size("gpt").count_params() == 116_534_784


@neutral
def test_from_size_accepts_overrides():
    model = GPT.from_size(
        "gpt2", num_layers=1, num_heads=2, model_dim=8, vocabulary_size=9, end_id=1, pad_id=0
    )
    assert (model.max_length, model.hidden_dim, model.vocabulary_size) == (1024, 32, 9)


@pytest.mark.slow
def test_initialization_equals_the_paper():
    model = GPT(200, num_layers=8, num_heads=4, model_dim=64, max_length=64)
    for weight in model.trainable_weights:
        found = float(np.std(ops.convert_to_numpy(weight)))
        if weight.name in ("kernel", "embeddings", "table"):
            expected = 0.02 / 4 if weight.path.endswith("output/kernel") else 0.02
            assert found == pytest.approx(expected, rel=0.06), weight.path
        else:
            assert found == 0
    first, second = (block.feed_forward.hidden.kernel for block in model.blocks[:2])
    assert not np.allclose(first, second)


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
def test_a_quantized_model_generates():
    model = tiny(num_layers=1)
    expected = logits(model)[0]
    model.quantize("int8")
    found = logits(model)[0]
    assert not np.array_equal(found, expected)
    np.testing.assert_allclose(found, expected, atol=0.1 * np.abs(expected).max())
    positions = np.arange(5, dtype="int32")[None]
    stepped, _ = model.step(IDS[:1], model.empty_cache(1, 5), cache_index=0, positions=positions)
    np.testing.assert_allclose(stepped[0], found, **CLOSE)


def test_attention_and_embedding_dropout_are_separate():
    model = GPT(20, 1, 2, 8, max_length=9, dropout=0.1, attention_dropout=0.2, embedding_dropout=0.3)
    block = model.blocks[0]
    rates = (block.self_attention.dropout, model.drop.rate, block.feed_forward_residual.dropout)
    assert rates == (0.2, 0.3, 0.1)
    assert GPT.from_config(model.get_config()).get_config() == model.get_config()
