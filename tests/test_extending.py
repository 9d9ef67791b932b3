"""Relations, scores, position encodings and models defined in this file work like built-in ones."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer import generation, relations

pytestmark = pytest.mark.backend_neutral


@keras.saving.register_keras_serializable(package="tests")
@dataclasses.dataclass(frozen=True)
class SameParity(relations.Relation):
    """A query attends to the keys at an even distance."""

    def related(self, query_positions, key_positions):
        return (query_positions - key_positions) % 2 == 0

    def symmetries(self):
        return relations.kept_under(relations.TRANSLATIONS)


@keras.saving.register_keras_serializable(package="tests")
class Counter(keras.Model):
    """A language model whose next token is the last one plus 1, up to the end token."""

    def __init__(self, vocabulary_size=10, **kwargs):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.pad_id, self.end_id = 0, vocabulary_size - 1
        self.built = True

    def empty_cache(self, batch_size, length, **options):
        return []

    def step(self, ids, cache, context=None, **options):
        return ops.one_hot(ids + 1, self.vocabulary_size) * 10, cache


def test_a_new_relation_composes_attends_and_serializes():
    relation = SameParity() & relations.Causal()
    positions = np.arange(7)
    expected = (positions[:, None] >= positions) & ((positions[:, None] - positions) % 2 == 0)
    np.testing.assert_array_equal(relation.matrix(7), expected)
    random = np.random.default_rng(0)
    query, key, value = (random.normal(size=(2, 7, 2, 4)).astype("float32") for _ in range(3))
    found = kt.ops.attention(query, key, value, relation)
    masked = kt.ops.attention(query, key, value, mask=np.broadcast_to(expected, (2, 1, 7, 7)))
    np.testing.assert_allclose(found, masked, rtol=1e-5, atol=1e-6)
    layer = kt.layers.MultiHeadAttention(2, 4, relation=relation)
    assert kt.layers.MultiHeadAttention.from_config(layer.get_config()).relation == relation


@keras.saving.register_keras_serializable(package="tests")
class XPos(kt.layers.RotaryPositions):
    """Rotary positions with a decay of the score: Sun et al., "A Length-Extrapolatable Transformer" (2023)."""

    def queries(self, heads, positions=None):
        return super().queries(heads, positions) * self.scale(heads, positions, 1)

    def keys(self, heads, positions=None):
        return super().keys(heads, positions) * self.scale(heads, positions, -1)

    def scale(self, heads, positions, sign):
        positions = ops.arange(ops.shape(heads)[1]) if positions is None else positions
        base = (np.arange(0, heads.shape[-1], 2) / heads.shape[-1] + 0.4) / 1.4
        exponents = sign * ops.cast(positions, "float32")[..., None, None] / 512
        return ops.cast(ops.power(np.tile(base, 2).astype("float32"), exponents), heads.dtype)


def test_a_new_position_encoding_depends_on_distances_and_generates_with_a_cache():
    layer = kt.layers.MultiHeadAttention(2, 8, relation="causal", position_encoding=XPos())
    inputs = np.random.default_rng(0).normal(size=(1, 6, 16)).astype("float32")
    near, far = layer(inputs), layer(inputs, positions=np.arange(100, 106))
    np.testing.assert_allclose(near, far, atol=1e-5)
    rotary = kt.layers.MultiHeadAttention(2, 8, relation="causal", position_encoding="rotary")
    rotary.build(inputs.shape)
    rotary.set_weights(layer.get_weights())
    assert np.abs(np.asarray(near) - np.asarray(rotary(inputs))).max() > 1e-4
    model = kt.models.GPT(11, 2, 2, 16, 32, position_encoding=XPos(), pad_id=0, end_id=10)
    again = kt.models.GPT.from_config(model.get_config())
    again.set_weights(model.get_weights())
    ids = np.array([[3, 4, 5]])
    found = generation.generate(again, ids, max_new_tokens=5).best[0].tolist()
    while ids.shape[1] < 8 and ids[0, -1] != 10:
        ids = np.concatenate([ids, np.asarray(model(ids))[:, -1:].argmax(-1)], axis=1)
    assert found[: ids.shape[1] - 3] == ids[0, 3:].tolist()


@keras.saving.register_keras_serializable(package="tests")
class LearnedCosine(kt.layers.ScoreLayer):
    """The cosine similarity with a temperature for each head: Liu et al., "Swin Transformer V2" (2022)."""

    def create_weights(self, num_heads, num_kv_heads, key_dim):
        self.scale = self.add_weight(name="scale", shape=(num_heads, 1), initializer="ones")

    def features(self, query, key):
        return ops.normalize(query) * ops.cast(self.scale, query.dtype), ops.normalize(key)


@keras.saving.register_keras_serializable(package="tests")
class LogBias(kt.layers.BiasLayer):
    """b = −r log(1 + |i − j|) with a trained r for each head: Chi et al., "KERPLE" (2022)."""

    def build(self, *shapes):
        self.rate = self.add_weight(name="rate", shape=(self.num_heads,), initializer="ones")

    @property
    def parameters(self):
        return (self.rate,)

    def block(self, parameters, query_positions, key_positions):
        return -ops.cast(parameters[0], "float32")[:, None, None] * self.growth(
            query_positions, key_positions
        )

    def backward(self, parameters, query_positions, key_positions, upstream):
        slopes = -upstream * self.growth(query_positions, key_positions)
        return (ops.sum(slopes, axis=(*range(len(slopes.shape) - 3), -2, -1)),)

    def growth(self, query_positions, key_positions):
        distance = ops.cast(ops.absolute(key_positions - query_positions), "float32")
        return ops.log1p(ops.expand_dims(distance, -3))


@pytest.mark.parametrize(
    "options", [{"score": LearnedCosine}, {"position_encoding": lambda: LogBias(2)}], ids=["score", "bias"]
)
def test_a_new_score_or_bias_trains_equally_in_every_kernel_and_is_saved(options, tmp_path):
    inputs = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
    weights = []
    for kernel in ("dense", "chunked"):
        keras.utils.set_random_seed(0)
        layer = kt.layers.MultiHeadAttention(
            2, kernel=kernel, **{name: make() for name, make in options.items()}
        )
        model = keras.Sequential([keras.Input((6, 8)), layer])
        (own,) = [weight for weight in layer.weights if weight.name in ("scale", "rate")]
        model.compile(keras.optimizers.SGD(1.0), "mse")
        model.fit(inputs, inputs[:, ::-1], epochs=1, verbose=0)
        weights.append(model.get_weights())
        assert np.abs(ops.convert_to_numpy(own) - 1).max() > 1e-5
    for dense, chunked in zip(*weights, strict=True):
        np.testing.assert_allclose(chunked, dense, rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(inputs), model(inputs))


@pytest.mark.slow_variants
@pytest.mark.parametrize("sampler", ["greedy", "beam"])
def test_a_new_model_generates(sampler):
    out = generation.generate(Counter(), np.array([[3], [6]]), sampler, max_new_tokens=8)
    assert out.best.tolist() == [[4, 5, 6, 7, 8, 9, 0, 0], [7, 8, 9, 0, 0, 0, 0, 0]]
