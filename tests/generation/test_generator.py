import gc
import json
import re
import weakref

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import generation
from keras_transformer.training import LabelSmoothedCrossentropy

from .reference import forced, greedy_search, traced_searches

pytestmark = pytest.mark.backend_neutral

MOST = 8
RANDOM = np.random.default_rng(3)
LENGTHS = (1, 7, 3, 5, 12, 2, 4, 9, 6, 11, 8, 3)
SOURCES = np.zeros((len(LENGTHS), 12), np.int32)
for _row, _length in zip(SOURCES, LENGTHS, strict=True):
    _row[:_length] = [*RANDOM.integers(4, 40, _length - 1), 3]


@pytest.fixture(scope="module")
def make(random_transformer):
    """Return make(**options), which creates a model whose outputs for `SOURCES` differ."""
    return lambda seed=6, **options: random_transformer(seed, **options)


@pytest.fixture(scope="module")
def model(make):
    return make()


@pytest.fixture(scope="module")
def expected(model):
    return uncached(model, SOURCES)


def uncached(model, source_ids):
    """Return the ids (B, MOST) and lengths (B,) of a search without cache."""
    found = greedy_search(model, [row[row != model.pad_id].tolist() for row in source_ids], MOST)
    lengths = [len(ids) for ids, _ in found]
    padded = [[*ids, *[model.pad_id] * (MOST - len(ids))] for ids, _ in found]
    return np.array(padded), np.array(lengths)


def generate(model, source_ids, **options):
    return generation.generate(model, source_ids, max_new_tokens=MOST, **options)


def summed_scores(model, ids):
    """Return the log-probabilities of outputs from a full forward pass."""
    return [forced(model, *row)[0].sum() for row in zip(SOURCES, ids[:, None], strict=True)]


def test_outputs_of_the_test_model_are_diverse(expected):
    ids, lengths = expected
    assert len({tuple(row) for row in ids}) > len(ids) // 2
    assert len({*lengths.tolist()}) > 3
    assert max(lengths) == MOST
    assert len(set(ids.ravel().tolist())) > 6


def test_padding_follows_end_token_and_lengths_include_it(model):
    out = generate(model, SOURCES)
    assert (out.best == model.end_id).any(axis=1).sum() >= 2
    for row, length in zip(out.best, out.lengths[:, 0], strict=True):
        assert (row[:length] != model.pad_id).all()
        assert (row[length:] == model.pad_id).all()
        assert (row[: length - 1] != model.end_id).all()
        assert length == MOST or row[length - 1] == model.end_id


@pytest.mark.slow
def test_empty_sources_generate_nothing(model):
    for source in (np.zeros((12, 9), int), np.zeros((12, 0), int)):
        out = generate(model, source)
        assert out.ids.shape == (12, 1, MOST)
        assert not out.lengths.any()
        assert (out.best == model.pad_id).all()


@pytest.mark.slow
def test_the_loop_ends_when_all_rows_have_ended(make):
    """Steps are counted by a model whose `step` runs eagerly."""
    model = make()
    steps = []

    class Counted:
        vocabulary_size = model.vocabulary_size
        pad_id, start_id, end_id = model.pad_id, model.start_id, model.end_id
        encode, empty_cache = model.encode, model.empty_cache

        def step(self, *arguments, **options):
            steps.append(1)
            return model.step(*arguments, **options)

    ids, lengths = uncached(model, SOURCES)
    ending = lengths < MOST
    out = generation.generate_ids(Counted(), ops.array(SOURCES[ending]), MOST)
    np.testing.assert_array_equal(ops.convert_to_numpy(out["ids"][:, 0]), ids[ending])
    if keras.backend.backend() == "tensorflow":  # JAX traces the body once for any number of steps
        assert len(steps) == max(lengths[ending]) < MOST
        steps.clear()
        generation.generate_ids(Counted(), ops.zeros((2, 3), "int32"), MOST)
        assert not steps


@pytest.mark.slow
def test_pad_and_start_are_never_generated(make):
    model = make()
    table = model.embedding.embedding.embeddings
    # The final norm adds this bias to every hidden state: an embedding along it has the highest logit.
    direction = np.ones(16)
    model.final_norms["decoder_norm"].beta.assign(5 * direction)
    rows = ops.convert_to_numpy(table).copy()
    rows[[model.pad_id, model.start_id]] = 2 * direction, 3 * direction
    table.assign(rows)
    logits = model({"source_ids": SOURCES, "target_ids": np.full((len(SOURCES), 1), model.start_id)})
    assert (ops.convert_to_numpy(logits)[:, 0].argmax(axis=-1) == model.start_id).all()
    out = generate(model, SOURCES)
    for row, length in zip(out.best, out.lengths[:, 0], strict=True):
        assert length >= 1
        assert not np.isin(row[:length], [model.pad_id, model.start_id]).any()
    np.testing.assert_array_equal(out.best, uncached(model, SOURCES)[0])
    # Scores are log-probabilities of the model, which include the two masked tokens.
    np.testing.assert_allclose(out.scores[:, 0], summed_scores(model, out.best), rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_ties_choose_the_lowest_id(make):
    model = make()
    table = model.embedding.embedding.embeddings
    rows = ops.convert_to_numpy(table).copy()
    rows[[5, 17, 30]] = 4 * np.ones(16)
    table.assign(rows)
    model.final_norms["decoder_norm"].beta.assign(5 * np.ones(16))
    assert (generate(model, SOURCES).best == 5).all()


@pytest.mark.slow
def test_new_weights_are_used_by_the_next_call(make):
    model = make()
    before = generate(model, SOURCES).best
    other = make(seed=8)
    model.set_weights(other.get_weights())
    after = generate(model, SOURCES).best
    np.testing.assert_array_equal(after, uncached(other, SOURCES)[0])
    assert (before != after).any()
    table = model.embedding.embedding.embeddings
    table.assign(make(seed=5).embedding.embedding.embeddings)
    np.testing.assert_array_equal(generate(model, SOURCES).best, uncached(model, SOURCES)[0])


@pytest.mark.slow
def test_training_between_two_calls_changes_the_second(make):
    model = make()
    model.compile(keras.optimizers.SGD(0.5), LabelSmoothedCrossentropy(0.1))
    before = generate(model, SOURCES).best
    inputs = {"source_ids": SOURCES, "target_ids": np.roll(SOURCES, 1, axis=1)}
    model.fit(inputs, SOURCES, batch_size=4, epochs=2, verbose=0)
    after = generate(model, SOURCES).best
    np.testing.assert_array_equal(after, uncached(model, SOURCES)[0])
    assert (before != after).any()
    model.fit(inputs, SOURCES, batch_size=4, epochs=1, verbose=0)
    np.testing.assert_array_equal(generate(model, SOURCES).best, uncached(model, SOURCES)[0])


@pytest.mark.slow
def test_quantized_weights_are_used_by_the_next_call(make):
    model = make()
    before = generate(model, SOURCES)
    model.quantize("int8", filters="query|key|value|output|feed_forward")
    quantised = generation.Generator(model, max_new_tokens=MOST)(SOURCES)
    assert (before.scores != quantised.scores).any()
    np.testing.assert_allclose(generate(model, SOURCES).scores, quantised.scores, rtol=1e-6)


@pytest.mark.slow
def test_lora_weights_are_used_by_the_next_call(make):
    model = make()
    generate(model, SOURCES)
    dense = model.decoder_blocks[0].feed_forward
    layers = [layer for layer in dense._flatten_layers() if isinstance(layer, keras.layers.Dense)]
    for layer in layers:
        layer.enable_lora(2)
        layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    assert layers
    fresh = generation.Generator(model, max_new_tokens=MOST)(SOURCES)
    np.testing.assert_array_equal(generate(model, SOURCES).best, fresh.best)


@pytest.mark.slow
def test_similar_sizes_compile_once(model, monkeypatch):
    traced = traced_searches(monkeypatch)
    # Without compiling, JAX would search at every call.
    compiled = keras.backend.backend() == "jax"
    run = generation.Generator(model, max_new_tokens=2, jit_compile=compiled)
    for rows, columns in ((5, 9), (8, 16), (6, 12), (7, 9)):
        run(np.full((rows, columns), 5))
    assert traced == [(8, 16)]
    run(np.full((9, 16), 5))
    run(np.full((8, 17), 5))
    run(np.full((1, 1), 5))
    assert traced == [(8, 16), (16, 16), (8, 32), (1, 8)]


@pytest.mark.slow
def test_equal_settings_compile_once(make, monkeypatch):
    model = make()
    made = []
    original = generation.compilation.compiled
    monkeypatch.setattr(
        generation.compilation, "compiled", lambda *arguments: made.append(1) or original(*arguments)
    )
    for _ in range(3):
        generate(model, SOURCES[:1])
        generate(model, SOURCES[:1], sampler=generation.Greedy())
    assert len(made) == 1
    generation.generate(model, SOURCES[:1], max_new_tokens=MOST + 1)
    assert len(made) == 2


def test_models_cache_the_most_recently_used_generators(make, monkeypatch):
    monkeypatch.setattr(generation.compilation, "MAX_CACHED", 2)
    model, made = make(), []
    original = generation.Generator.of

    def counted(model, settings):
        made.append(sum(one.count for one in settings.logits_processors.constraints))
        return original(model, settings)

    monkeypatch.setattr(generation.Generator, "of", counted)
    source = np.zeros((0, 3), int)  # an empty batch compiles nothing
    for minimum in (0, 1, 0, 2, 0, 1, 0):
        generate(model, source, min_new_tokens=minimum)
    assert made == [0, 1, 2, 1]


@pytest.mark.slow
def test_cached_generators_do_not_keep_the_model_alive(make):
    model = make()
    reference, attributes = weakref.ref(model), set(vars(model))
    tokens = generation.stream(model, SOURCES[:1], max_new_tokens=2)
    generate(model, SOURCES[:1])
    generation.score(model, SOURCES[:1], SOURCES[:1])
    assert set(vars(model)) == attributes
    del model
    assert len(list(tokens)) <= 2  # a stream compiles
    del tokens
    gc.collect()
    assert reference() is None


@pytest.mark.slow
def test_model_saves_and_loads_after_generation(make, tmp_path):
    model = make()
    before = generate(model, SOURCES).best
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(generate(loaded, SOURCES).best, before)


@pytest.mark.slow_variants
@pytest.mark.parametrize(("policy", "jit_compile"), [("mixed_bfloat16", False), ("mixed_float16", True)])
def test_mixed_precision_generates_finite_scores_and_ends(make, policy, jit_compile):
    model = make(dtype=policy)
    out = generation.Generator(model, max_new_tokens=MOST, jit_compile=jit_compile)(SOURCES)
    assert np.isfinite(out.scores).all()
    np.testing.assert_allclose(out.scores[:, 0], summed_scores(model, out.best), rtol=0.05, atol=0.5)
    assert len(set(out.lengths.ravel().tolist())) > 1


def test_empty_batch_gives_empty_generation(model):
    for empty in (np.zeros((0, 5), np.int32), np.zeros((0, 0)), np.zeros((0, 5))):
        out = generate(model, empty)
        assert (out.ids.shape, out.lengths.shape, out.scores.shape) == ((0, 1, MOST), (0, 1), (0, 1))
        assert out.best.shape == (0, MOST)


@pytest.mark.slow
def test_results_have_the_documented_types_and_shapes(model):
    out = generate(model, SOURCES[:3])
    assert (out.ids.dtype, out.lengths.dtype, out.scores.dtype) == (np.int32, np.int32, np.float32)
    assert (out.ids.shape, out.lengths.shape) == ((3, 1, MOST), (3, 1))
    assert out.scores.shape == out.ranking_scores.shape == (3, 1)


def test_one_generated_token_equals_the_first_of_many(model, expected):
    out = generation.generate(model, SOURCES, max_new_tokens=1)
    np.testing.assert_array_equal(out.best[:, 0], expected[0][:, 0])
    assert (out.lengths == 1).all()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
def test_any_integer_type_is_accepted(model, expected, dtype):
    np.testing.assert_array_equal(generate(model, SOURCES.astype(dtype)).best, expected[0])


def test_lists_and_tensors_are_accepted(model, expected):
    np.testing.assert_array_equal(generate(model, SOURCES.tolist()).best, expected[0])
    np.testing.assert_array_equal(generate(model, ops.array(SOURCES)).best, expected[0])


@pytest.mark.slow
def test_numpy_numbers_equal_python_numbers(model):
    sampler = generation.Beam(np.int64(2), length_penalty=np.float32(1))
    assert json.loads(json.dumps(generation.samplers.serialize(sampler)))["num_beams"] == 2
    out = generation.generate(
        model, SOURCES, sampler, max_new_tokens=np.int64(MOST), min_new_tokens=np.int64(1)
    )
    expected = generation.generate(
        model, SOURCES, generation.Beam(2, 1.0), max_new_tokens=MOST, min_new_tokens=1
    )
    np.testing.assert_array_equal(out.ids, expected.ids)


@pytest.mark.parametrize(
    ("alpha", "normalization"), [(-100.0, "length"), (100.0, "gnmt"), (-60, "gnmt"), (1e308, "length")]
)
def test_penalties_outside_float32_are_rejected(model, alpha, normalization):
    sampler = generation.Beam(2, alpha, normalization)
    with pytest.raises(ValueError, match=rf"`length_penalty` must give .*{re.escape(str(alpha))}"):
        generation.Generator(model, sampler, 64)
    with pytest.raises(ValueError, match="`length_penalty` must give"):
        generation.generate(model, SOURCES, sampler)
    assert (sampler.penalties(1) > 0).all()


def test_sampler_names_and_configs_are_equivalent():
    greedy = generation.Greedy()
    assert (
        generation.get("greedy") == generation.get(greedy) == generation.get({"sampler": "greedy"}) == greedy
    )
    for sampler in (greedy, generation.Beam(3, -1.0, "length", False, 2), generation.Sample(0.5, 3, seed=7)):
        assert generation.get(generation.samplers.serialize(sampler)) == sampler
    assert generation.get("beam") == generation.Beam()
