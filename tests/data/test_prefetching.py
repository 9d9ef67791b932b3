import numpy as np
import pytest

from keras_transformer import data
from keras_transformer.text import ByteTokenizer

TEXTS = ["one two three", "four five six", "seven eight nine"]
TOKENIZER = ByteTokenizer()
PAIRS = [(text, text) for text in TEXTS]
DATASETS = {
    "translation_pairs": lambda: data.translation_pairs(PAIRS, TOKENIZER, 2),
    "multi_task_pairs": lambda: data.multi_task_pairs({"copy: ": PAIRS}, TOKENIZER, 2),
    "language_modeling": lambda: data.language_modeling(TEXTS, TOKENIZER, 2, length=8),
    "span_corruption": lambda: data.span_corruption(
        TEXTS, TOKENIZER, 2, max_length=16, sentinels=[255, 254, 253], start_id=0
    ),
    "image_batches": lambda: data.image_batches(np.zeros((3, 4, 4, 1), "uint8"), np.zeros(3, int), 2),
    "fine_tuning": lambda: data.fine_tuning(TEXTS, [0, 1, 0], TOKENIZER, 2, special_ids=[1, 2, 3]),
}


@pytest.mark.parametrize("name", DATASETS)
def test_an_epoch_does_not_wait_for_the_tuner_of_tensorflow(name):
    """With autotuning, TensorFlow only ends an epoch when its tuner wakes, up to a minute later."""
    assert DATASETS[name]().options().autotune.enabled is False
