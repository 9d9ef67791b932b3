import keras
import numpy as np
import pytest

from keras_transformer.generation import Beam, generate
from keras_transformer.layers import RetrievalMemory
from keras_transformer.models import GPT, T5, EncoderDecoderClassifier, Transformer, Unlimiformer
from keras_transformer.ops import retrieval, scores
from keras_transformer.training import LabelSmoothedCrossentropy
from tests.random_weights import randomise

# JAX compiles every new shape for seconds: run only one case of each law there.
neutral = pytest.mark.backend_neutral

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
SOURCE = np.random.default_rng(1).integers(4, 12, (3, 29))
SOURCE[1, 17:] = 0
SOURCE[2] = 0
TARGET = np.array([[2, 9, 4, 5], [2, 7, 0, 0], [2, 5, 6, 7]])


def tiny(kind=Transformer, **options):
    """Return a small model with random weights, including biases."""
    sizes = {"vocabulary_size": 12, "num_layers": 2, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}
    return randomise(kind(**{**sizes, **options}), scale=0.4)


def logits(model, source=SOURCE, target=TARGET):
    return np.asarray(model({"source_ids": np.asarray(source), "target_ids": np.asarray(target)}))


def states_by_hand(model, row, chunk_length, overlap):
    """Return the states (n, D) of one row without padding: encode each chunk, keep its middle."""
    stride, left = chunk_length - overlap, overlap // 2
    kept = np.zeros((len(row), model.model_dim), np.float32)
    start = 0
    while True:
        states = np.asarray(
            model.encoder_states(row[None, start : start + chunk_length], training=False)[0][0]
        )
        first = left if start else 0
        kept[start + first : start + chunk_length] = states[first:]
        if start + chunk_length >= len(row):
            return kept
        start += stride


def stepped(model, source=SOURCE, target=TARGET):
    context, cache = model.encode(source), model.empty_cache(len(target), target.shape[1])
    outputs = []
    for cache_index in range(target.shape[1]):
        positions = np.full((len(target), 1), cache_index, "int32")
        output, cache = model.step(
            target[:, cache_index : cache_index + 1],
            cache,
            context,
            cache_index=cache_index,
            positions=positions,
        )
        outputs.append(np.asarray(output))
    return np.concatenate(outputs, axis=1)


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("options", "overlap"),
    [
        ({}, 4),
        ({"normalization": "post", "norm": "rms"}, 3),
        ({"normalization": "sandwich"}, 0),
        ({"output_bias": True, "start_id": 0, "position_layout": "halves"}, 7),
        ({"kind": T5, "key_dim": 3, "activation": "geglu", "end_id": 3}, 4),
    ],
)
def test_k_of_source_length_equals_full_cross_attention(options, overlap):
    model = tiny(**options)
    long = Unlimiformer(model, top_k=29, chunk_length=8, overlap=overlap)
    found = logits(long)
    for row, length in ((0, 29), (1, 17)):
        states = states_by_hand(model, SOURCE[row, :length], 8, overlap)
        mask = np.ones((1, length), bool)
        expected = model.logits(model.decoder_states(TARGET[row : row + 1], states[None], mask))
        np.testing.assert_allclose(found[row], np.asarray(expected)[0], **CLOSE)


def classifier(encoder, decoder_input="text"):
    """Return a classifier with random weights, equal for equal sizes."""
    model = EncoderDecoderClassifier(encoder, 3, decoder_input=decoder_input)
    random = np.random.default_rng(1)
    for layer in (model.transform, model.head):
        for weight in layer.trainable_weights:
            weight.assign(random.normal(size=weight.shape))
    return model


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("options", "overlap", "decoder_input"),
    [
        ({}, 4, "text"),
        ({"kind": T5, "key_dim": 3}, 3, "text"),
        ({"position_encoding": "learned", "max_length": 8}, 0, "text"),
        ({}, 4, "start"),
    ],
)
def test_a_classifier_that_retrieves_all_states_equals_full_cross_attention(options, overlap, decoder_input):
    model = tiny(**options)
    texts = np.where(SOURCE == 0, 0, np.maximum(SOURCE, 4))
    texts[0, -1] = texts[1, 16] = model.end_id
    found = np.asarray(classifier(Unlimiformer(model, 29, 8, overlap), decoder_input)(texts))
    head = classifier(model)
    for row, length in ((0, 29), (1, 17)):
        states = states_by_hand(model, texts[row, :length], 8, overlap)
        last = texts[row : row + 1, length - 8 : length]
        decoded = np.concatenate([[[model.start_id]], last[:, :-1]], axis=1)
        decoded = decoded[:, :1] if decoder_input == "start" else decoded
        hidden = model.decoder_states(decoded, states[None], np.ones((1, length), bool))
        expected = head.head(head.transform(hidden[:, -1]))
        np.testing.assert_allclose(found[row], np.asarray(expected)[0], **CLOSE)


@pytest.mark.parametrize("decoder_input", ["text", "start"])
def test_a_classifier_of_one_chunk_equals_the_classifier_of_the_model(decoder_input):
    model = tiny()
    texts = SOURCE.copy()
    texts[:2, 9], texts[:, 10:] = model.end_id, 0
    expected = np.asarray(classifier(model, decoder_input)(texts))
    for length in (12, 29):  # with more padding, after the chunk
        long = classifier(Unlimiformer(model, 12, 12), decoder_input)
        np.testing.assert_allclose(np.asarray(long(texts[:, :length])), expected, **CLOSE)


def test_a_classifier_depends_on_tokens_of_every_chunk():
    model = tiny(start_id=0)
    texts = np.full((30, 29), 5)
    texts[np.arange(1, 29), np.arange(28)] = 9
    texts[:, 28] = model.end_id
    found = np.asarray(classifier(Unlimiformer(model, 29, 8, 4))(texts))
    assert (np.abs(found[1:29] - found[0]).max(axis=1) > 1e-6).all()


@neutral
def test_cached_steps_and_both_encoders_equal_full_forward():
    long = Unlimiformer(tiny(), top_k=3, chunk_length=8, overlap=4)
    np.testing.assert_allclose(stepped(long), logits(long), **CLOSE)


@pytest.mark.slow_variants
@pytest.mark.parametrize("block", [4, 7, 31, 100])
def test_blockwise_search_equals_full_search(monkeypatch, block):
    long = Unlimiformer(tiny(), top_k=3, chunk_length=8, overlap=4)
    expected = logits(long)
    monkeypatch.setattr(retrieval, "BLOCK_SIZE", block)
    np.testing.assert_allclose(logits(long), expected, **CLOSE)


@neutral
def test_a_source_of_one_chunk_equals_the_model():
    model = tiny()
    np.testing.assert_allclose(logits(Unlimiformer(model, 40, 40)), logits(model), **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 8])
def test_right_padding_does_not_change_outputs(count):
    long = Unlimiformer(tiny(), top_k=5, chunk_length=8, overlap=4)
    source = np.pad(SOURCE, [(0, 0), (0, count)])
    np.testing.assert_allclose(logits(long, source), logits(long), **CLOSE)
    np.testing.assert_allclose(stepped(long, source), logits(long), **CLOSE)
    np.testing.assert_allclose(logits(long, SOURCE[1:2, :17], TARGET[1:2]), logits(long)[1:2], **CLOSE)


def test_a_row_of_padding_equals_the_model():
    model = tiny()
    expected = logits(model, SOURCE[2:, :8], TARGET[2:])
    assert np.isfinite(expected).all()
    for k in (2, 50):
        found = logits(Unlimiformer(model, k, 8), SOURCE, TARGET)[2:]
        np.testing.assert_allclose(found, expected, **CLOSE)


def test_each_head_attends_only_to_its_top_k_keys():
    model = tiny(num_layers=1)
    attention = model.decoder_blocks[0].cross_attention
    random = np.random.default_rng(3)
    store, query = random.normal(size=(1, 20, 8)).astype("f"), random.normal(size=(1, 2, 8)).astype("f")
    real = np.ones((1, 20), bool)

    def retrieved(store):
        return np.asarray(RetrievalMemory(store, 3).attend(attention, query, real))

    weights = np.asarray(attention.attention_weights(query, store))  # (1, N, T, S)
    chosen = np.argsort(-weights, axis=-1)[..., :3]
    # A softmax over the selected keys equals the renormalized full softmax.
    kept = np.where((np.arange(20) == chosen[..., None]).any(-2), weights, 0)
    kept /= kept.sum(-1, keepdims=True)
    values = np.asarray(attention.project(store)["value"])  # (1, N, S, V)
    heads = np.einsum("bnts,bnsv->btnv", kept, values).reshape(1, 2, 8)
    np.testing.assert_allclose(retrieved(store), np.asarray(attention.output_projection(heads)), **CLOSE)
    np.testing.assert_array_equal(RetrievalMemory(store, 3).attend(attention, query), retrieved(store))
    others = np.setdiff1d(np.arange(20), chosen)
    changed = store.copy()
    changed[:, others] *= 0.999  # changed, but not selected more often
    np.testing.assert_array_equal(retrieved(changed), retrieved(store))
    changed[:, chosen.ravel()[:1]] *= 0.999
    assert np.abs(retrieved(changed) - retrieved(store)).max() > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("k", [20, 29])  # at least the number of real tokens, without and with padding
def test_dropout_for_one_chunk_equals_the_model(k):
    def training_logits(wrap):
        keras.utils.set_random_seed(1)
        model = wrap(tiny(T5, key_dim=3, dropout=0.4))
        return np.asarray(model({"source_ids": SOURCE[1:], "target_ids": TARGET[1:]}, training=True))

    found = training_logits(lambda model: Unlimiformer(model, k, 29))
    np.testing.assert_allclose(found, training_logits(lambda model: model), **CLOSE)


@pytest.mark.slow
def test_only_retrieved_tokens_change_the_output():
    long = Unlimiformer(
        tiny(vocabulary_size=30), top_k=1, chunk_length=1, overlap=0
    )  # each state is one token
    source = np.arange(4, 30)[None]  # no token twice
    before = logits(long, source, TARGET[:1])
    others = np.stack([np.delete(source[0], position) for position in range(source.shape[1])])
    found = logits(long, others, np.repeat(TARGET[:1], len(others), axis=0))
    changed = np.abs(found - before).max(axis=(1, 2)) > 1e-5
    # At most one token per layer, head and query has an effect.
    assert 0 < changed.sum() <= 2 * 2 * 4


@pytest.mark.slow
def test_beam_search_of_one_chunk_equals_full_attention(random_transformer):
    model = random_transformer(3)
    source = np.random.default_rng(0).integers(4, 40, (3, 14))
    source[1, 6:] = 0
    expected = generate(model, source, Beam(2), max_new_tokens=6)
    found = generate(Unlimiformer(model, 16, 16), source, Beam(2), max_new_tokens=6)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_generation_from_long_sources_equals_full_forward(random_transformer):
    long = Unlimiformer(random_transformer(3), top_k=4, chunk_length=8, overlap=4)
    source = np.random.default_rng(0).integers(4, 40, (3, 30))
    source[1, 11:] = 0
    source[2] = 0
    found = generate(long, source, max_new_tokens=6)
    assert not found.best[2].any()
    assert found.lengths[2, 0] == 0
    for row in (0, 1):
        count = found.lengths[row, 0]
        ids = found.best[row : row + 1, :count]
        given = np.concatenate([[[2]], ids[:, :-1]], axis=1)
        foretold = logits(long, source[row : row + 1], given)[0].copy()
        foretold[:, [0, 2]] = -np.inf  # pad and start are never generated
        np.testing.assert_array_equal(foretold.argmax(-1), ids[0])


@pytest.mark.slow
@neutral
def test_fit_trains_through_retrieval():
    model = tiny(dropout=0.1)
    long = Unlimiformer(model, top_k=4, chunk_length=8, overlap=4)
    assert [w.path for w in long.trainable_weights] == [w.path for w in model.trainable_weights]
    before = [np.asarray(weight) for weight in model.trainable_weights]
    long.compile(keras.optimizers.SGD(0.1), LabelSmoothedCrossentropy(0.0))
    labels = np.array([[9, 4, 5, 3], [7, 3, 0, 0], [5, 6, 7, 3]])
    long.fit({"source_ids": SOURCE, "target_ids": TARGET}, labels, batch_size=3, epochs=1, verbose=0)
    still = [
        weight.path
        for old, weight in zip(before, model.trainable_weights, strict=True)
        if np.array_equal(old, np.asarray(weight))
    ]
    # A key bias adds a constant to all scores, so attention does not depend on it.
    assert all("key/bias" in path for path in still)


@pytest.mark.slow
def test_gradients_equal_full_attention_for_large_k():
    tf = pytest.importorskip("tensorflow")
    if keras.config.backend() != "tensorflow":
        pytest.skip("taken with a tape")
    model = tiny()
    inputs = {"source_ids": SOURCE[:1, :8], "target_ids": TARGET[:1]}

    def found(function):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.math.log_softmax(function(inputs))[..., 5])
        return [tf.convert_to_tensor(g) for g in tape.gradient(loss, model.trainable_weights)]

    for actual, reference in zip(found(Unlimiformer(model, 8, 8)), found(model), strict=True):
        np.testing.assert_allclose(actual, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_quantized_key_projection_is_used():
    model = tiny()
    for block in model.decoder_blocks:
        block.cross_attention.key_projection.quantize("int8")
    np.testing.assert_allclose(
        logits(Unlimiformer(model, 8, 8), SOURCE[:, :8]), logits(model, SOURCE[:, :8]), atol=0.1
    )


@pytest.mark.slow
def test_a_pipeline_processes_long_texts(pipeline):
    from keras_transformer.pipelines import TextToText

    short = pipeline.model
    long = TextToText(
        Unlimiformer(short, 8, 16), pipeline.tokenizer, max_new_tokens=10, max_source_tokens=200
    )
    texts = ["uno dos", "la casa azul " * 12, ""]
    found = long(texts)
    assert found[0] == pipeline(texts)[0]
    assert found[2] == ""
    assert found[1] != ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "gpt"}, "must be an encoder–decoder with cross-attention.* Received: model of type GPT"),
        ({"model": scores.Cosine()}, "must have a scaled dot-product score.* Received: score=Cosine"),
        (
            {"chunk_length": 17},
            "`chunk_length` must be at most 16, the model's `max_length`. Received: .*=17",
        ),
        ({"model": scores.ScaledDotProduct(soft_cap=2.0)}, "without soft cap.* Received: .*soft_cap=2.0"),
    ],
)
def test_invalid_arguments_are_rejected(options, message):
    model = options.get("model")
    if model == "gpt":
        model = GPT(12, num_layers=1, num_heads=2, model_dim=8, max_length=8)
    else:
        model = tiny(num_layers=1, position_encoding="learned", max_length=16)
        if "model" in options:
            model.decoder_blocks[0].cross_attention.score = options["model"]
    with pytest.raises(ValueError, match=message):
        Unlimiformer(**{"top_k": 3, "chunk_length": 8, "overlap": 4, **options, "model": model})


@neutral
@pytest.mark.slow
def test_memory_besides_the_store_grows_only_by_ids_and_mask():
    if keras.config.backend() != "jax":
        pytest.skip("XLA's count of bytes is JAX's to ask for")
    import jax

    long = Unlimiformer(tiny(model_dim=32), top_k=8, chunk_length=32)

    def beyond(length):
        def step(source):
            context, cache = long.encode(source), long.empty_cache(1, 1)
            return long.step(
                TARGET[:1, :1], cache, context, cache_index=0, positions=np.zeros((1, 1), "int32")
            )

        compiled = jax.jit(step).lower(np.ones((1, length), "int32")).compile()
        return compiled.memory_analysis().temp_size_in_bytes - length * 32 * 4

    assert beyond(16_384) - beyond(1024) <= (4 + 1) * (16_384 - 1024)
