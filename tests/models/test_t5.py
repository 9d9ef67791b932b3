import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import generation
from keras_transformer.models import T5
from keras_transformer.training import LabelSmoothedCrossentropy, TokenAccuracy

# JAX compiles every new shape for seconds: run only one case of each law there.
neutral = pytest.mark.backend_neutral

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
TINY = {
    "vocabulary_size": 12,
    "num_layers": 2,
    "num_heads": 2,
    "model_dim": 8,
    "hidden_dim": 16,
    "key_dim": 3,
    "num_buckets": 8,
    "max_distance": 6,
    "dropout": 0.0,
}
VARIANTS = {"original": {}, "v1.1": {"activation": "geglu_tanh", "tied": False}}
each = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
# The decoder starts from the padding id.
SOURCE = np.array([[5, 6, 7, 1, 0], [8, 1, 0, 0, 0]])
TARGET = np.array([[0, 9, 4, 5], [0, 7, 0, 0]])


def tiny(**options):
    """Return a small model with random weights."""
    model = T5(**{**TINY, **options})
    random = np.random.default_rng(0)
    for weight in model.trainable_weights:
        scale = 2.0 if weight.name in ("table", "embeddings") else 0.6
        weight.assign(random.normal(size=weight.shape) * scale)
    return model


def logits(model, source=SOURCE, target=TARGET):
    return ops.convert_to_numpy(model({"source_ids": np.asarray(source), "target_ids": np.asarray(target)}))


@neutral
def test_from_size_accepts_overrides():
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16, "vocabulary_size": 9}
    model = T5.from_size("v1_1_small", **sizes)
    assert (model.key_dim, model.activation, model.tied, model.vocabulary_size) == (
        64,
        "geglu_tanh",
        False,
        9,
    )


def by_hand(model, source, target):
    """Compute the paper's equations in NumPy, for rows without padding; all distances have exact buckets."""
    w = {weight.path: ops.convert_to_numpy(weight) for weight in model.weights}

    def norm(name, x):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w[f"{name}/scale"]

    def attention(name, x, y, bias):
        q, k, v = (
            (z @ w[f"{name}/{part}/kernel"]).reshape(len(z), model.num_heads, -1).swapaxes(0, 1)
            for z, part in ((x, "query"), (y, "key"), (y, "value"))
        )
        scores = q @ k.swapaxes(-1, -2) + bias
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = weights / weights.sum(-1, keepdims=True) @ v
        return out.swapaxes(0, 1).reshape(len(x), -1) @ w[f"{name}/output/kernel"]

    def feed_forward(name, x):
        hidden = x @ w[f"{name}/hidden/kernel"]
        if model.activation == "geglu_tanh":
            hidden = 0.5 * hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
            hidden = hidden * (x @ w[f"{name}/gate/kernel"])
        else:
            hidden = np.maximum(hidden, 0)
        return hidden @ w[f"{name}/output/kernel"]

    def distances(n):
        return np.arange(n)[None, :] - np.arange(n)[:, None]

    d = distances(len(source))
    bias = w["encoder_bias/table"][np.abs(d) + (d > 0) * model.num_buckets // 2].transpose(2, 0, 1)
    x = w["embedding/embedding/embeddings"][source]
    for i in range(model.num_layers):
        normed = norm(f"encoder_{i}/attention_residual/norm", x)
        x = x + attention(f"encoder_{i}/attention", normed, normed, bias)
        x = x + feed_forward(f"encoder_{i}/feed_forward", norm(f"encoder_{i}/feed_forward_residual/norm", x))
    memory = norm("encoder_norm", x)
    d = distances(len(target))
    bias = np.where(d > 0, -np.inf, w["decoder_bias/table"][np.maximum(-d, 0)].transpose(2, 0, 1))
    x = w["embedding/embedding/embeddings"][target]
    for i in range(model.num_layers):
        normed = norm(f"decoder_{i}/self_attention_residual/norm", x)
        x = x + attention(f"decoder_{i}/self_attention", normed, normed, bias)
        normed = norm(f"decoder_{i}/cross_attention_residual/norm", x)
        x = x + attention(f"decoder_{i}/cross_attention", normed, memory, 0.0)
        x = x + feed_forward(f"decoder_{i}/feed_forward", norm(f"decoder_{i}/feed_forward_residual/norm", x))
    x = norm("decoder_norm", x)
    if model.tied:
        return x @ w["embedding/embedding/embeddings"].T / np.sqrt(model.model_dim)
    return x @ w["head/kernel"]


@each
@neutral
def test_logits_equal_reference_implementation(options):
    model = tiny(**options, num_buckets=32, max_distance=20)
    expected = by_hand(model, SOURCE[0, :4], TARGET[0])
    np.testing.assert_allclose(logits(model)[0], expected, rtol=1e-3, atol=1e-3)


def test_layers_of_a_stack_share_one_relative_bias():
    for model in (tiny(), T5.from_config(tiny().get_config())):
        paths = [weight.path for weight in model.weights if weight.name == "table"]
        assert paths == ["encoder_bias/table", "decoder_bias/table"]
        assert all(block.attention.position_encoding is model.encoder_bias for block in model.encoder_blocks)
        for block in model.decoder_blocks:
            assert block.self_attention.position_encoding is model.decoder_bias


def test_positions_are_relative():
    model = tiny()
    moved = logits(model, np.concatenate([np.zeros((2, 3), int), SOURCE], axis=1))
    np.testing.assert_allclose(moved, logits(model), **CLOSE)
    swapped = logits(model, SOURCE[:, [1, 0, 2, 3]])
    assert not np.allclose(swapped[0], logits(model)[0], **CLOSE)


@pytest.mark.slow
def test_cross_attention_weights_sum_to_one():
    weights = [ops.convert_to_numpy(each) for each in tiny().cross_attention_weights(SOURCE, TARGET)]
    assert [each.shape for each in weights] == [(2, 2, 4, 5)] * 2
    for each_block in weights:
        np.testing.assert_allclose(each_block.sum(-1), 1.0, rtol=1e-5)
        assert not each_block[:, :, :, 4].any()


@pytest.mark.slow
@neutral
def test_tiny_model_learns_to_count_under_xla():
    keras.utils.set_random_seed(0)
    model = T5(12, num_layers=1, num_heads=2, model_dim=32, hidden_dim=64, key_dim=8, dropout=0.0)
    first = np.arange(32)[:, None]
    source = np.concatenate([2 + first % 10, np.ones((32, 1), int)], axis=1)
    labels = np.concatenate([2 + (first + np.arange(1, 5)) % 10, np.ones((32, 1), int)], axis=1)
    target = np.concatenate([np.zeros((32, 1), int), labels[:, :-1]], axis=1)
    model.compile(
        keras.optimizers.Adam(1e-2),
        LabelSmoothedCrossentropy(0.0),
        metrics=[TokenAccuracy()],
        jit_compile=True,
    )
    inputs = {"source_ids": source, "target_ids": target}
    history = model.fit(inputs, labels, batch_size=32, epochs=60, verbose=0)
    assert history.history["token_accuracy"][-1] > 0.95
    out = generation.generate(model, source[:16], max_new_tokens=5)
    assert (out.best == labels[:16]).mean() > 0.9
