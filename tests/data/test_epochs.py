import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import data
from keras_transformer.data.epochs import shuffled
from keras_transformer.text import ByteTokenizer, WordPieceTokenizer

TEXTS = ["one two three", "four five six seven", "eight", "nine ten", "eleven twelve", "thirteen", "fourteen"]
TOKENIZER, WORDS = ByteTokenizer(), WordPieceTokenizer.train(TEXTS, 60)
PAIRS = [(text, text) for text in TEXTS]
DATASETS = {
    "translation_pairs": lambda **o: data.translation_pairs(PAIRS, TOKENIZER, 2, **o),
    "multi_task_pairs": lambda **o: data.multi_task_pairs(
        {"a: ": PAIRS, "b: ": PAIRS[:2]}, TOKENIZER, 2, limit=4, **o
    ),
    "language_modeling": lambda **o: data.language_modeling(TEXTS, TOKENIZER, 2, length=8, **o),
    "language_modeling, separate": lambda **o: data.language_modeling(
        TEXTS, TOKENIZER, 2, length=8, separate=True, **o
    ),
    "masked_language_modeling": lambda **o: data.masked_language_modeling(TEXTS, WORDS, 2, max_length=8, **o),
    "next_sentences": lambda **o: data.next_sentences([TEXTS[:4], TEXTS[4:]], WORDS, 2, max_length=12, **o),
    "span_corruption": lambda **o: data.span_corruption(
        TEXTS, TOKENIZER, 2, max_length=16, sentinels=[255, 254, 253], start_id=0, **o
    ),
    "image_batches": lambda **o: data.image_batches(
        np.arange(7 * 16).reshape(7, 4, 4, 1).astype("uint8"), np.arange(7), 2, shift=1, flip=True, **o
    ),
    "classification": lambda **o: data.classification(TEXTS, range(7), WORDS, 2, max_length=8, **o),
    "fine_tuning": lambda **o: data.fine_tuning(TEXTS, range(7), TOKENIZER, 2, special_ids=[1, 2, 3], **o),
}


def listed(dataset):
    """The batches of one iteration, each as a list of arrays."""
    return [[np.asarray(each) for each in tf.nest.flatten(batch)] for batch in dataset]


def equal(ones, others):
    return len(ones) == len(others) and all(
        all(map(np.array_equal, one, other)) for one, other in zip(ones, others, strict=True)
    )


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", DATASETS)
def test_an_epoch_continues_from_any_batch(name):
    dataset = DATASETS[name]()
    epochs = [listed(dataset) for _ in range(3)]
    assert not equal(epochs[0], epochs[1])
    assert all(len(epoch) == len(dataset) for epoch in epochs)
    again = DATASETS[name]()
    assert again.epochs.fingerprint == dataset.epochs.fingerprint
    for epoch, batch in ((1, 1), (0, len(dataset) - 1), (2, 0)):
        again.epochs.start_at(epoch, batch)
        assert equal(listed(itertools.islice(again, len(dataset) - batch)), epochs[epoch][batch:])
    again.epochs.start_at(1, 1)
    next(iter(again))
    assert equal(listed(again), epochs[2])


def test_fingerprints_differ_for_other_seeds_and_data():
    made = DATASETS["image_batches"]
    assert len({made().epochs.fingerprint, made(seed=1).epochs.fingerprint}) == 2
    others = [(text + "!", text) for text in TEXTS]
    one, other = (data.translation_pairs(pairs, TOKENIZER, 2).epochs.fingerprint for pairs in (PAIRS, others))
    assert one != other


def test_seeds_and_lengths_that_are_no_integers_are_refused():
    for argument in ("seed", "max_length"):
        with pytest.raises(ValueError, match=rf"`{argument}` must be .* integer. Received: {argument}=None"):
            data.translation_pairs(PAIRS, TOKENIZER, 2, **{argument: None})


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", DATASETS)
def test_an_epoch_does_not_wait_for_the_tuner_of_tensorflow(name):
    """With autotuning, TensorFlow only ends an epoch when its tuner wakes, up to a minute later."""
    assert DATASETS[name]().options().autotune.enabled is False


@pytest.mark.parametrize("count", [1, 2, 3, 10, 1000])
def test_shuffled_numbers_are_a_permutation(count):
    seeds, numbers = tf.constant([3, 5], tf.int64), tf.range(count, dtype=tf.int64)
    orders = [shuffled(numbers, seeds, count, purpose).numpy() for purpose in (0, 1)]
    assert all(sorted(order) == list(range(count)) for order in orders)
    assert count < 10 or not np.array_equal(*orders)


@pytest.mark.parametrize(("epoch", "batch"), [(-1, 0), (0, -1), (0, 4)])
def test_positions_outside_an_epoch_are_refused(epoch, batch):
    with pytest.raises(ValueError, match=f"Received: epoch={epoch}, batch={batch}"):
        DATASETS["image_batches"]().epochs.start_at(epoch, batch)
