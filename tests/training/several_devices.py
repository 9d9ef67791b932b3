"""Small models and their training on several devices or in several processes."""

import keras
import numpy as np

from keras_transformer import models
from keras_transformer.training import InfoNCE, LabelSmoothedCrossentropy, layout_map

RANDOM = np.random.default_rng(0)
ROWS, LENGTH, VOCABULARY = 8, 6, 16
IDS = RANDOM.integers(1, VOCABULARY, (ROWS, LENGTH))
IDS = np.where(np.arange(LENGTH) < RANDOM.integers(2, LENGTH + 1, (ROWS, 1)), IDS, 0)
AUDIO = {
    "audio": RANDOM.normal(0, 0.1, (ROWS, 2000)).astype("float32"),
    "lengths": RANDOM.integers(1500, 2001, ROWS),
}
FRAMES = RANDOM.normal(size=(ROWS, 6, 5)).astype("float32")
IMAGES = RANDOM.uniform(0, 255, (ROWS, 8, 8, 3)).astype("float32")
GRAPHS = {
    "nodes": RANDOM.normal(size=(ROWS, LENGTH, 5)).astype("float32"),
    "edges": RANDOM.integers(0, LENGTH, (ROWS, 8, 2)),
}
CLASSES = RANDOM.integers(0, 4, ROWS)
IDS_OF_WHISPER = {"pad_id": 0, "start_id": 1, "end_id": 2}
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16, "dropout": 0.1}
PAIRS = {"source_ids": IDS, "target_ids": IDS}
SENTENCES = np.stack([IDS, IDS[::-1]], axis=1)


# Two sequences in each row, for GPT.
PACKED = {
    "token_ids": RANDOM.integers(1, VOCABULARY, IDS.shape),
    "segment_ids": np.tile([1, 1, 1, 1, 2, 2], (ROWS, 1)),
    "positions": np.tile([0, 1, 2, 3, 0, 1], (ROWS, 1)),
}


def gat():
    return models.GAT(5, 4, (2, 2), 4, dropout=0.1)


def transformer():
    return models.Transformer(VOCABULARY, **SIZES)


def gpt():
    return models.GPT(VOCABULARY, **SIZES, max_length=LENGTH)


def bert():
    return models.BERT(VOCABULARY, **SIZES, max_length=LENGTH)


def of_tokens(replicas):
    return LabelSmoothedCrossentropy(0.1, normalizer=float((IDS != 0).sum()) / 2 / replicas)


def of_classes(replicas):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def of_both(replicas):
    return {"classes": of_classes(replicas), "tokens": of_tokens(replicas)}


# Model, inputs, labels and loss; the fastest first.
CASES = {
    "gat": (
        gat,
        GRAPHS,
        np.tile(CLASSES[:, None], LENGTH),
        of_classes,
    ),
    "graph classifier": (lambda: models.GraphClassifier(gat(), 4), GRAPHS, CLASSES, of_classes),
    "link predictor": (
        lambda: models.LinkPredictor(gat()),
        {**GRAPHS, "pairs": RANDOM.integers(0, LENGTH, (ROWS, 3, 2))},
        RANDOM.integers(0, 2, (ROWS, 3)),
        lambda replicas: keras.losses.BinaryCrossentropy(from_logits=True),
    ),
    "gpt": (gpt, IDS, IDS, of_tokens),
    "llama": (lambda: models.Llama(VOCABULARY, **SIZES, pad_id=0), IDS, IDS, of_tokens),
    "gemma": (
        lambda: models.Gemma(VOCABULARY, **SIZES, key_dim=4, num_kv_heads=2, head_norm=True),
        IDS,
        IDS,
        of_tokens,
    ),
    "transformer-xl": (
        lambda: models.TransformerXL(VOCABULARY, **SIZES, memory_length=4),
        IDS,
        IDS,
        of_tokens,
    ),
    "packed gpt": (gpt, PACKED, IDS, of_tokens),
    "transformer": (transformer, PAIRS, IDS, of_tokens),
    "t5": (lambda: models.T5(VOCABULARY, **SIZES, key_dim=4), PAIRS, IDS, of_tokens),
    "vit": (lambda: models.ViT(8, 4, 4, **SIZES), IMAGES, CLASSES, of_classes),
    "image segmenter": (
        lambda: models.ImageSegmenter(models.ViT(8, 4, None, **SIZES), 4),
        IMAGES,
        RANDOM.integers(0, 4, (ROWS, 8, 8)),
        of_classes,
    ),
    "speech": (
        lambda: models.CTC(models.SpeechEncoder(**SIZES), VOCABULARY),
        AUDIO,
        IDS[:, :2],
        lambda replicas: keras.losses.CTC(),
    ),
    "whisper": (
        lambda: models.Whisper(
            VOCABULARY, **SIZES, **IDS_OF_WHISPER, num_mels=5, max_source_length=3, max_length=LENGTH
        ),
        {"frames": FRAMES, "target_ids": IDS},
        IDS,
        of_tokens,
    ),
    "unlimiformer": (
        lambda: models.Unlimiformer(transformer(), top_k=3, chunk_length=4),
        PAIRS,
        IDS,
        of_tokens,
    ),
    "encoder-decoder classifier": (
        lambda: models.EncoderDecoderClassifier(transformer(), 4),
        IDS,
        CLASSES,
        of_classes,
    ),
    "classifier": (lambda: models.SequenceClassifier(bert(), 4), IDS, CLASSES, of_classes),
    "token classifier": (lambda: models.TokenClassifier(bert(), VOCABULARY), IDS, IDS, of_tokens),
    "span classifier": (
        lambda: models.SpanClassifier(bert()),
        IDS,
        np.stack([CLASSES % 2, CLASSES // 2], axis=1),
        of_classes,
    ),
    "masked language model": (lambda: models.MaskedLanguageModel(bert()), IDS, IDS, of_tokens),
    "modernbert": (
        lambda: models.MaskedLanguageModel(models.ModernBERT(VOCABULARY, **SIZES, window=2, pad_id=0)),
        IDS,
        IDS,
        of_tokens,
    ),
    "pretraining": (
        lambda: models.Pretraining(bert()),
        IDS,
        {"tokens": IDS, "next_sentence": CLASSES % 2},
        lambda replicas: {"tokens": of_tokens(replicas), "next_sentence": of_classes(replicas)},
    ),
    "sentence encoder": (
        lambda: models.SentenceEncoder(bert()),
        SENTENCES,
        np.arange(2 * ROWS).reshape(ROWS, 2),
        lambda replicas: InfoNCE(0.5),
    ),
    "gpt classifier": (
        lambda: models.GPTClassifier(gpt(), 4),
        IDS,
        {"classes": CLASSES, "tokens": IDS},
        of_both,
    ),
    "multiple choice": (
        lambda: models.GPTMultipleChoice(gpt()),
        np.where(np.arange(LENGTH) == LENGTH - 1, VOCABULARY - 1, SENTENCES),
        {"classes": CLASSES % 2, "tokens": SENTENCES},
        of_both,
    ),
}
# The gradients of key biases are rounding errors, as softmax ignores them. A much larger epsilon keeps Adam from
# scaling them up.
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(1e-3, epsilon=1e-3),
}


def new(case, optimizer, replicas=1):
    """Return a compiled model with the same weights and seeds at each call, for replicas of `tf.distribute`."""
    make, _, _, loss = CASES[case]
    keras.utils.set_random_seed(0)
    model = make()
    model.compile(OPTIMIZERS[optimizer](), loss(replicas))
    return model


def model_parallel(case, shape):
    """Return the tensor-parallel distribution of a case over a mesh of shape (batch, model)."""
    mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"))
    layouts = layout_map(CASES[case][0](), mesh)
    return keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")


def trained(case, optimizer, distribution=None, rows=slice(None), batch_size=ROWS // 2, epochs=2, replicas=1):
    """Return the model after two epochs of two updates under a distribution, on the selected rows."""
    keras.distribution.set_distribution(distribution)
    try:
        model = new(case, optimizer, replicas)
        inputs, labels = keras.tree.map_structure(lambda array: array[rows], CASES[case][1:3])
        model.fit(inputs, labels, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0)
    finally:
        keras.distribution.set_distribution(None)
    return model


def difference(one, other):
    """Return the largest difference between the weights of two models."""
    return max(
        np.abs(left - right).max() for left, right in zip(one.get_weights(), other.get_weights(), strict=True)
    )


def check(case, optimizer):
    """Check that data and tensor parallelism over two devices equal one device, and that weights are split."""
    one = trained(case, optimizer)
    assert difference(one, new(case, optimizer)) > 1e-3  # training changes the weights
    for distribution in (keras.distribution.DataParallel(), model_parallel(case, (1, 2))):
        two = trained(case, optimizer, distribution)
        split = [not each.value.sharding.is_fully_replicated for each in two.optimizer.variables]
        assert any(split) == isinstance(distribution, keras.distribution.ModelParallel)
        found = difference(one, two)
        print(case, optimizer, type(distribution).__name__, found)
        assert found < BOUND, (case, optimizer, distribution, found)


# Gradients are summed in another order, which changes float32 results by 1e-7, relative to updates up to 0.1.
BOUND = 5e-6


def save_sharded(folder):
    """Train under tensor parallelism with a checkpoint after each epoch, then for one more epoch."""
    keras.distribution.set_distribution(model_parallel("gpt", (1, 2)))
    model = new("gpt", "adam")
    checkpoint = keras.callbacks.OrbaxCheckpoint(folder, save_on_background=False)
    options = {"batch_size": ROWS // 2, "shuffle": False, "verbose": 0}
    model.fit(IDS, IDS, **options, epochs=2, callbacks=[checkpoint])
    model.fit(IDS, IDS, **options)
    np.savez(f"{folder}.npz", *model.get_weights())


def resume_sharded(folder, devices, bound):
    """Check that training resumes from the checkpoint on a number of devices with equal results."""
    # Keras finds seeds by the number of generators created before: create one model, as when saving.
    if devices == 1:
        CASES["gpt"][0]()
        distribution = keras.distribution.DataParallel()
    else:
        distribution = model_parallel("gpt", (1, devices))
    keras.distribution.set_distribution(distribution)
    model = keras.saving.load_model(folder)
    assert any(not each.value.sharding.is_fully_replicated for each in model.weights) == (devices == 2)
    model.fit(IDS, IDS, batch_size=ROWS // 2, shuffle=False, verbose=0)
    with np.load(f"{folder}.npz") as expected:
        found = max(
            np.abs(expected[name] - weight).max()
            for name, weight in zip(expected.files, model.get_weights(), strict=True)
        )
    assert found <= bound, found
