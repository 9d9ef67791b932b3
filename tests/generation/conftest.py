"""Small models to test searches: a decoder-only model, encoder–decoders of any block, and brute force."""

import itertools
import pathlib

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.layers import DecoderBlock, FeedForward, MultiHeadAttention, TokenEmbedding
from keras_transformer.models import Transformer

# On JAX every eager call compiles, so the other files run only in `make test-all`.
QUICK_ON_JAX = {
    "test_alignment.py",
    "test_bad_input.py",
    "test_generator.py",
    "test_sampling.py",
    "test_top_k.py",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    here = pathlib.Path(__file__).parent
    for item in items:
        if (
            item.path.parent == here
            and item.path.name not in QUICK_ON_JAX
            and keras.backend.backend() == "jax"
        ):
            item.add_marker(pytest.mark.slow)


class Decoder(keras.Model):
    """A decoder-only model of causal attention blocks, with the methods for generation."""

    pad_id, end_id = 0, 3

    def __init__(self, vocabulary_size=12, layers=1, max_length=None, **attention):
        super().__init__()
        self.vocabulary_size, self.max_length = vocabulary_size, max_length
        self.embedding = TokenEmbedding(vocabulary_size, 8)
        options = {"relation": "causal", "position_encoding": "rotary", **attention}
        self.attentions = [MultiHeadAttention(4, 2, **options) for _ in range(layers)]
        self.feed_forwards = [FeedForward(16) for _ in range(layers)]
        self.embedding.build((None, None))
        for layer in (*self.attentions, *self.feed_forwards):
            layer.build((None, None, 8))
        self.built = True

    def call(self, ids):
        hidden = self.embedding(ids)
        for attention, feed_forward in zip(self.attentions, self.feed_forwards, strict=True):
            hidden = hidden + attention(hidden, padding_mask=ops.not_equal(ids, self.pad_id))
            hidden = hidden + feed_forward(hidden)
        return self.embedding.logits(hidden)

    def empty_cache(self, batch_size, length, **options):
        return [attention.empty_cache(batch_size, length, **options) for attention in self.attentions]

    def step(self, ids, cache, **options):
        hidden, new = self.embedding(ids), []
        for attention, feed_forward, old in zip(self.attentions, self.feed_forwards, cache, strict=True):
            attended, entry = attention.step(
                hidden, old, padding_mask=ops.not_equal(ids, self.pad_id), **options
            )
            hidden = hidden + attended
            hidden = hidden + feed_forward(hidden)
            new.append(entry)
        return self.embedding.logits(hidden), new


def randomise(model, seed, scale=1.0):
    random = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        if "gamma" not in weight.path:
            weight.assign(random.normal(size=weight.shape) * scale / np.sqrt(weight.shape[0]) * 2)
    return model


@pytest.fixture(scope="session")
def decoder():
    """Return decoder(seed, **options), which creates a decoder-only model with random weights."""
    return lambda seed=0, **options: randomise(Decoder(**options), seed)


@pytest.fixture(scope="session")
def translator():
    """Return translator(seed, vocabulary_size, **block), which creates an encoder–decoder with any decoder block."""

    def make(seed=0, vocabulary_size=6, **block):
        model = Transformer(
            vocabulary_size, num_layers=1, num_heads=4, model_dim=8, hidden_dim=16, dropout=0.0
        )
        if block:
            options = {name: block.pop(name) for name in ("normalization", "norm") if name in block}
            parts = (
                MultiHeadAttention(4, **{"relation": "causal", **block}),
                FeedForward(16),
                MultiHeadAttention(4),
            )
            model.decoder_blocks = [DecoderBlock(*parts, name="decoder_0", **options)]
            model.decoder_blocks[0].build((None, None, 8), (None, None, 8))
        return randomise(model, seed)

    return make


@pytest.fixture(scope="session")
def forced():
    """Return forced(model, source, targets): log-probabilities (n, M) of targets from full forward passes."""

    def score(model, source, targets):
        targets = np.asarray(targets)
        if is_encoder_decoder(model):
            start = np.full((len(targets), 1), model.start_id)
            inputs = np.concatenate([start, targets[:, :-1]], axis=1)
            logits = model({"source_ids": np.repeat(source[None], len(targets), 0), "target_ids": inputs})
        else:
            prompt = source[source != model.pad_id]
            inputs = np.concatenate([np.repeat(prompt[None], len(targets), 0), targets[:, :-1]], axis=1)
            logits = model(inputs)[:, len(prompt) - 1 :]
        logits = ops.convert_to_numpy(logits).astype(float)
        scores = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        taken = np.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
        return np.where(targets == model.pad_id, 0, taken)

    return score


@pytest.fixture(scope="session")
def every_sequence():
    """Return every_sequence(vocabulary, end_ids, max_length): all possible outputs, padded with 0."""

    def sequences(vocabulary, end_ids, max_length):
        rows = [
            (*row, *[0] * (max_length - length))
            for length in range(1, max_length + 1)
            for row in itertools.product(vocabulary, repeat=length)
            if not set(row[:-1]) & set(end_ids) and (row[-1] in end_ids or length == max_length)
        ]
        return np.array(rows)

    return sequences


@pytest.fixture(scope="session")
def reference_beam(forced):
    """Return a beam search in Python, with a full forward pass for every hypothesis."""

    def search(model, source, beam, max_length, allowed):
        penalties = beam.penalties(max_length).astype(float)
        running, ended = [((), 0.0)], []
        for step in range(max_length):
            candidates = []
            if not running:
                break
            rows = np.zeros((len(running) * len(allowed), step + 1), int)
            for i, ((ids, _), token) in enumerate(itertools.product(running, allowed)):
                rows[i] = (*ids, token)
            last = forced(model, source, rows)[:, -1]
            candidates = [
                (tuple(row), parent[1] + new)
                for row, new, (parent, _) in zip(
                    rows.tolist(), last, itertools.product(running, allowed), strict=True
                )
            ]
            candidates.sort(key=lambda one: -one[1])
            ended += [
                (ids, total, total / penalties[step + 1])
                for ids, total in candidates[: beam.num_beams]
                if ids[-1] == model.end_id
            ]
            going = [one for one in candidates if one[0][-1] != model.end_id]
            running = going[: beam.num_beams]
            best = sorted((one[2] for one in ended), reverse=True)[: beam.num_beams]
            if beam.early_stopping in ("heuristic", "num_beams") and len(best) == beam.num_beams and running:
                nothing_better = running[0][1] / penalties[step + 1] <= best[-1]
                if step + 1 < max_length and (beam.early_stopping == "num_beams" or nothing_better):
                    running = []
        ended += [(ids, total, total / penalties[max_length]) for ids, total in running]
        return sorted(ended, key=lambda one: -one[2])[: beam.num_return]

    return search
