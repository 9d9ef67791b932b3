"""Transformer-XL: the memory of earlier segments, and its relative positions."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import data, generation, layers, models, text, training
from tests.laws.cases import normal, randomise

IDS = np.random.default_rng(0).integers(1, 20, (2, 12))
SIZES = {"num_layers": 2, "num_heads": 2, "model_dim": 8, "dropout": 0.0}


def model(batch_size=None, memory_length=12, **options):
    return models.TransformerXL(
        20, **{**SIZES, **options}, memory_length=memory_length, batch_size=batch_size, pad_id=None
    )


def stateless_and_stateful(**options):
    """Return equal models with random weights, without and with memory."""
    stateless = randomise(model(**options))
    return stateless, stateless.with_batch_size(2)


def by_segments(stateful, ids, size):
    return np.concatenate([stateful(ids[:, i : i + size]) for i in range(0, ids.shape[1], size)], axis=1)


def test_scores_equal_the_equation():
    """The equation of section 3.3, with one vector for each distance."""
    encoding = layers.RelativeSinusoidalPositions(6)
    layer = layers.MultiHeadAttention(2, 4, position_encoding=encoding, relation="causal")
    inputs = normal(1, 7, 8)
    layer(inputs)
    randomise(layer)
    heads = {
        name: np.asarray(getattr(layer, f"{name}_projection")(inputs)).reshape(7, 2, 4)
        for name in ("query", "key", "value")
    }
    u, v, kernel = map(np.asarray, (encoding.content_bias, encoding.position_bias, encoding.kernel))
    distances = np.arange(7)[:, None] - np.arange(7)
    angles = distances[..., None] * encoding.frequencies
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)  # (T, S, F)
    content = np.einsum("tnh,snh->nts", heads["query"] + u, heads["key"])
    position = np.einsum("tnh,nhf,tsf->nts", heads["query"] + v, kernel, waves)
    weights = ops.softmax(np.where(distances >= 0, (content + position) / 2, -np.inf))
    expected = np.einsum("nts,snh->tnh", weights, heads["value"]).reshape(1, 7, 8)
    np.testing.assert_allclose(layer(inputs), layer.output_projection(expected), atol=1e-5)


@pytest.mark.slow_variants
@pytest.mark.parametrize("size", [1, 4, 5])
@pytest.mark.parametrize("encoding", ["relative_sinusoidal", "rotary"])
def test_segments_with_full_memory_equal_one_pass(encoding, size):
    stateless, stateful = stateless_and_stateful(position_encoding=encoding)
    np.testing.assert_allclose(by_segments(stateful, IDS, size), stateless(IDS), atol=1e-5)


def test_memory_is_limited_to_its_length():
    """A token beyond the memory of all blocks does not change later segments, a token within it does."""
    stateful = stateless_and_stateful(memory_length=2)[1]
    first = by_segments(stateful, IDS, 2)
    changed = IDS.copy()
    changed[:, 0] = changed[:, 0] % 19 + 1
    stateful.reset_state()
    difference = np.abs(by_segments(stateful, changed, 2) - first).max(axis=(0, 2))
    assert (difference[:6] > 0).all()  # one segment further in each of two blocks
    np.testing.assert_array_equal(difference[6:], 0.0)


def test_reset_state_forgets():
    stateful = stateless_and_stateful()[1]
    first, second = stateful(IDS), stateful(IDS)
    assert np.abs(first - second).max() > 1e-3
    stateful.reset_state()
    np.testing.assert_array_equal(stateful(IDS), first)


def test_rows_do_not_attend_to_padding_in_memory():
    stateless = randomise(models.TransformerXL(20, **SIZES, memory_length=4, pad_id=0))
    stateful = stateless.with_batch_size(2)
    padded = np.array([[5, 6, 7, 0], [8, 9, 0, 0]])
    for ids in (padded, IDS[:, :3]):
        outputs = stateful(ids)
    stateful.reset_state()
    changed_padding = {"token_ids": np.where(padded, padded, 11), "padding_mask": padded != 0}
    for inputs in (changed_padding, IDS[:, :3]):
        other = stateful(inputs)
    np.testing.assert_allclose(other, outputs, atol=1e-6)
    stateful.reset_state()
    for inputs in ({"token_ids": padded, "lengths": np.array([3, 2])}, IDS[:, :3]):
        by_length = stateful(inputs)
    np.testing.assert_allclose(by_length, outputs, atol=1e-6)


def test_gradients_stop_at_the_memory(gradients):
    """The gradient of the second segment is that for a constant memory."""
    layer = layers.SegmentAttention(2, 4, 2, position_encoding="rotary")
    first, second = normal(2, 4, 8), normal(2, 4, 8, seed=1)
    layer.build((2, None, 8))
    randomise(layer)

    def loss(first):
        with keras.StatelessScope():
            layer(first)
            return ops.sum(layer(second) ** 2)

    np.testing.assert_array_equal(gradients(loss, first)[0], 0.0)


@pytest.mark.slow_variants
@pytest.mark.parametrize("batch_size", [None, 5])
def test_generation_equals_calls_without_cache(batch_size):
    stateless = stateless_and_stateful()[0]
    generator = stateless if batch_size is None else stateless.with_batch_size(batch_size)
    ids = IDS[:, :4]
    generated = generation.generate(generator, ids, max_new_tokens=6, sampler=generation.Greedy())
    for _ in range(6):
        ids = np.concatenate([ids, np.argmax(stateless(ids)[:, -1:], axis=-1)], axis=1)
    np.testing.assert_array_equal(generated.ids[:, 0], ids[:, 4:])


def test_contiguous_batches_continue_the_rows_of_the_batch_before():
    lines = ["to be or not to be", "that is the question"] * 5
    tokenizer = text.ByteTokenizer()
    stream = np.concatenate([[*tokenizer.encode(line).numpy(), tokenizer.end_id] for line in lines])
    dataset = data.language_modeling(lines, tokenizer, 3, length=8, contiguous=True, shuffle=False)
    batches = [(inputs["token_ids"].numpy(), labels.numpy()) for inputs, labels in dataset]
    assert {inputs.shape for inputs, _ in batches} == {(3, 8)}
    rows = np.concatenate([inputs for inputs, _ in batches], axis=1)  # each row is a part of the text
    np.testing.assert_array_equal(rows.reshape(-1)[: len(stream) - 1], stream[:-1])
    parts = [
        list(
            data.language_modeling(
                lines, tokenizer, 1, length=8, contiguous=True, shuffle=False, shard=(i, 3)
            )
        )
        for i in range(3)
    ]
    for number, (inputs, labels) in enumerate(batches):
        for i, part in enumerate(parts):
            np.testing.assert_array_equal(part[number][0]["token_ids"], inputs[i : i + 1])
            np.testing.assert_array_equal(part[number][1], labels[i : i + 1])


@pytest.mark.slow_variants
@pytest.mark.parametrize("jit_compile", [False, True])
def test_memory_is_reset_before_epochs_and_restored_after_validation(jit_compile):
    """With a learning rate of 0, all epochs have one loss, and validation leaves the memory of training."""
    tokenizer = text.ByteTokenizer()
    texts = ["to be or not to be, that is the question"] * 8
    batches = data.language_modeling(texts, tokenizer, 2, length=8, contiguous=True, shuffle=False)
    others = data.language_modeling(texts[:4], tokenizer, 2, length=8, contiguous=True, shuffle=False)
    stateful = randomise(
        models.TransformerXL(tokenizer.vocabulary_size, **SIZES, memory_length=8, batch_size=2)
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    stateful.compile(keras.optimizers.SGD(0.0), loss, jit_compile=jit_compile)
    memories = []

    class Record(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            memories.append(ops.convert_to_numpy(stateful.blocks[0].self_attention.memory))

    options = {"callbacks": [training.ResetState(), Record()], "shuffle": False, "verbose": 0}
    history = stateful.fit(batches, epochs=2, validation_data=others, **options).history
    stateful.fit(batches, **options)
    for losses in history.values():
        np.testing.assert_allclose(losses, losses[0], rtol=1e-6)
    assert memories[0].any()
    for memory in memories[1:]:
        np.testing.assert_array_equal(memory, memories[0])
    with_memory = stateful.evaluate(batches, verbose=0)  # of the last epoch
    assert abs(with_memory - history["loss"][0]) > 1e-6


def test_stateful_models_are_saved_with_their_memory(tmp_path):
    stateful = stateless_and_stateful()[1]
    stateful(IDS)
    stateful.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(IDS), stateful(IDS), atol=1e-6)


def test_invalid_uses_are_rejected():
    stateful = model(2)
    with pytest.raises(ValueError, match=r"`query` must have batch_size=2 rows.*Received: query=\(3, 4, 8\)"):
        stateful(np.ones((3, 4), "int32"))
    with pytest.raises(ValueError, match=r"`segment_ids` must be None for a layer with memory"):
        stateful({"token_ids": IDS, "segment_ids": np.ones_like(IDS)})
    with pytest.raises(
        ValueError, match="`model` must have a method `reset_state`.*Received: model='Sequential'"
    ):
        training.ResetState().set_model(keras.Sequential())
    with pytest.raises(ValueError, match="`contiguous` must be False with `separate`"):
        data.language_modeling(["a"], text.ByteTokenizer(), contiguous=True, separate=True)
    with pytest.raises(ValueError, match="`features` must be positive and even. Received: features=3"):
        layers.RelativeSinusoidalPositions(3)
    block = layers.DecoderBlock(
        layers.SegmentAttention(2, 4, 2), layers.FeedForward(8), dropout=0.1, rematerialize=True
    )
    with pytest.raises(
        ValueError, match="`rematerialize` must be False for layers that update weights in a call"
    ):
        block(normal(2, 4, 8), training=True)
