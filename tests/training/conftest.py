"""A small model and dataset that train quickly."""

import keras
import numpy as np
import pytest

from keras_transformer import data, models
from keras_transformer.models.input_specs import InputSpec
from keras_transformer.training import LabelSmoothedCrossentropy

VOCABULARY, BATCHES = 12, 3


@keras.saving.register_keras_serializable(package="tests_training")
class Bigrams(models.model.Model):
    """Predict each token from the previous one, with one matrix."""

    pad_id = 0

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(VOCABULARY, VOCABULARY, name="embedding")
        self.embedding.build()

    def input_specs(self):
        return {"token_ids": InputSpec(VOCABULARY)}

    def call(self, inputs):
        return self.embedding(self.named_inputs(inputs)["token_ids"])

    def compute_output_shape(self, input_shape):
        return (*input_shape["token_ids"], VOCABULARY)


@pytest.fixture
def bigrams():
    """Return bigrams(optimizer="sgd", normalizer="tokens"), which creates a model that trains without compilation."""

    def make(optimizer="sgd", normalizer="tokens"):
        keras.utils.set_random_seed(0)
        model = Bigrams()
        model.compile(optimizer, LabelSmoothedCrossentropy(0.1, normalizer=normalizer), run_eagerly=True)
        return model

    return make


@pytest.fixture
def padded_batches():
    """A dataset of 3 batches of 4 rows, with padding."""
    random = np.random.default_rng(0)
    ids = random.integers(1, VOCABULARY, (4 * BATCHES, 6))
    ids[np.arange(6) >= random.integers(2, 7, (len(ids), 1))] = 0

    def objective(batch):
        found = ids[batch.rows].astype(np.int32)
        return {"token_ids": found}, found

    order = data.epochs.RowOrder(len(ids), 4, True, data.epochs.Shard())
    return data.batches.batches(order, objective, 0, [ids])
