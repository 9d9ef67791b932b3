"""Laws of Transformer and T5 with any relation of encoder and decoder."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import generation, inspection, relations
from keras_transformer.models import T5, Transformer
from keras_transformer.ops import GrowingCache, StaticCache
from keras_transformer.relations import Causal, Full, GlobalTokens, SlidingWindow, Strided
from tests.random_weights import randomise

# JAX compiles every new shape for seconds: run only one case of each law there.
neutral = pytest.mark.backend_neutral

SIZES = {"vocabulary_size": 14, "num_layers": 2, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}
SPECIAL = {"start_id": 2, "end_id": 3}
MODELS = {
    "Transformer": lambda **options: Transformer(**SIZES, dropout=0.0, **options),
    "T5": lambda **options: T5(
        **SIZES, key_dim=4, num_buckets=8, max_distance=6, dropout=0.0, **SPECIAL, **options
    ),
}
RELATIONS = {
    "window": (SlidingWindow(1, 1), SlidingWindow(1)),
    "strided": (SlidingWindow(1, 1) | Strided(3, causal=False), SlidingWindow(1) | Strided(3)),
    "global": (SlidingWindow(1, 1) | GlobalTokens([0]), (SlidingWindow(1) | GlobalTokens([0])) & Causal()),
}
SOURCE = np.array([[5, 6, 7, 9, 11, 8, 3], [8, 4, 10, 3, 0, 0, 0]])
TARGET = np.array([[2, 9, 4, 5, 12, 6], [2, 7, 10, 0, 0, 0]])

models = pytest.mark.parametrize("name", MODELS)
each = pytest.mark.parametrize(("encoder_relation", "decoder_relation"), RELATIONS.values(), ids=RELATIONS)


def tiny(name, encoder_relation=None, decoder_relation="causal", **options):
    """Return a small model with random weights, large enough for attention to be far from uniform."""
    return randomise(
        MODELS[name](encoder_relation=encoder_relation, decoder_relation=decoder_relation, **options)
    )


def logits(model, source=SOURCE, target=TARGET):
    return ops.convert_to_numpy(model({"source_ids": source, "target_ids": target}))


@pytest.mark.slow_variants
@each
@models
@neutral
def test_attention_weights_are_zero_outside_the_relations(name, encoder_relation, decoder_relation):
    model = tiny(name, encoder_relation, decoder_relation)
    weights = inspection.attention_weights(model, {"source_ids": SOURCE, "target_ids": TARGET})
    for maps, relation, ids in (
        (weights.encoder, encoder_relation, SOURCE),
        (weights.decoder, decoder_relation, TARGET),
    ):
        related = relation.matrix(ids.shape[1]) & (ids != 0)[:, None, :]
        for layer in maps:
            np.testing.assert_array_equal(layer > 0, np.broadcast_to(related[:, None], layer.shape))


@pytest.mark.slow_variants
@models
@neutral
def test_the_default_relations_are_full_and_causal(name):
    model, named = tiny(name), tiny(name, "full", "causal")
    assert (model.encoder_relation, model.decoder_relation) == (Full(), Causal())
    np.testing.assert_array_equal(logits(named), logits(model))
    config = model.get_config()
    assert named.get_config() == {**config, "name": named.name}
    del config["encoder_relation"], config["decoder_relation"]  # as in files of earlier versions
    assert type(model).from_config(config).get_config() == model.get_config()


@models
def test_a_windowed_decoder_caches_only_its_window(name):
    model = tiny(name, decoder_relation=SlidingWindow(3))
    for length, kv_cache in ((100, StaticCache()), (0, GrowingCache())):
        cache = model.empty_cache(2, length, kv_cache=kv_cache)
        assert [layer["positions"].shape for layer in cache] == [(2, 4), (2, 4)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), [*(("Transformer", case) for case in RELATIONS), ("T5", "window")])
def test_cached_generation_equals_uncached(name, case):
    model, prefix = tiny(name, *RELATIONS[case]), [[7, 0], [5, 9]]
    out = generation.generate(model, SOURCE, max_new_tokens=8, prefix_ids=prefix)
    for row, source in enumerate(SOURCE):
        source = source[source != 0][None]
        target = [2, *(token for token in prefix[row] if token)]
        for token in out.ids[row, 0, : out.lengths[row, 0]]:
            z = logits(model, source, np.array([target]))[0, -1]
            z[[0, 2]] = -np.inf  # never generated
            assert token == z.argmax()
            target.append(token)
    assert out.lengths.max() > 4


def test_relations_are_accepted_as_config():
    config = keras.saving.serialize_keras_object(relations.SlidingWindow(2))
    model = MODELS["Transformer"](encoder_relation=config, decoder_relation=config)
    assert model.encoder_relation == model.decoder_relation == SlidingWindow(2)
