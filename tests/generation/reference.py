"""Small models to test searches, and searches without a cache."""

import itertools

import keras
import numpy as np
from keras import ops

from keras_transformer.generation import generator
from keras_transformer.generation.compilation import bucket
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.layers import DecoderBlock, FeedForward, MultiHeadAttention, TokenEmbedding
from keras_transformer.models import Transformer


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


def traced_searches(monkeypatch):
    """Return a list to which every trace of the loop adds the shape of its source ids."""
    traced, run_search = [], generator.run_search

    def traced_search(inputs):
        traced.append(tuple(inputs.source_ids.shape))
        return run_search(inputs)

    monkeypatch.setattr(generator, "run_search", traced_search)
    return traced


def randomise(model, seed, scale=1.0):
    random = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        if "gamma" not in weight.path:
            weight.assign(random.normal(size=weight.shape) * scale / np.sqrt(weight.shape[0]) * 2)
    return model


def decoder(seed=0, **options):
    """Return a decoder-only model with random weights."""
    return randomise(Decoder(**options), seed)


def translator(seed=0, vocabulary_size=6, **block):
    """Return an encoder–decoder with any decoder block and random weights."""
    model = Transformer(vocabulary_size, num_layers=1, num_heads=4, model_dim=8, hidden_dim=16, dropout=0.0)
    if block:
        options = {name: block.pop(name) for name in ("normalization", "norm") if name in block}
        self_attention = MultiHeadAttention(4, **{"relation": "causal", **block})
        parts = (self_attention, FeedForward(16), MultiHeadAttention(4))
        model.decoder_blocks = [DecoderBlock(*parts, name="decoder_0", **options)]
        model.decoder_blocks[0].build((None, None, 8), (None, None, 8))
    return randomise(model, seed)


def random_transformer(seed, end_factor=2.0, **options):
    """Return a small encoder–decoder whose outputs differ by row; see `with_various_outputs`."""
    sizes = {"vocabulary_size": 40, "num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 32}
    return with_various_outputs(Transformer(**{**sizes, **options}), seed, end_factor)


def with_various_outputs(model, seed, end_factor):
    """Set the weights of a model so that its outputs differ by row, and return it.

    NumPy chooses the weights, so they are the same on every backend and in every process. The larger `end_factor`, the
    sooner outputs end.
    """
    random = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        name = weight.path.split("/")[-1]
        if name == "gamma":
            weight.assign(np.ones(weight.shape))
        elif name in ("beta", "bias"):
            weight.assign(random.normal(size=weight.shape) * 0.3)
        elif name == "embeddings":
            rows = random.normal(size=weight.shape) * 0.25
            rows[model.end_id] *= end_factor
            weight.assign(rows)
        else:
            weight.assign(random.normal(size=weight.shape) * 3 / np.sqrt(weight.shape[0]))
    return model


def forced(model, source, targets):
    """Return the log-probabilities (n, M) of targets from full forward passes."""
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


def every_sequence(vocabulary, end_ids, max_length):
    """Return all possible outputs, padded with 0."""
    rows = [
        (*row, *[0] * (max_length - length))
        for length in range(1, max_length + 1)
        for row in itertools.product(vocabulary, repeat=length)
        if not set(row[:-1]) & set(end_ids) and (row[-1] in end_ids or length == max_length)
    ]
    return np.array(rows)


def next_scores(model, sources, outputs):
    """Return the log-probabilities (n, V) of the next token of each output, from one full forward pass.

    −∞ for tokens that are never generated. Sources are without padding. Rows and tokens are added up to powers of two,
    as JAX compiles each operation for each shape.
    """
    most = getattr(model, "max_length", None) or np.inf

    def width_of(rows):
        size = max(map(len, rows))
        return max(size, min(bucket(size, 8), most))

    count = len(sources)
    sources, outputs = ([*rows, *[rows[0]] * (bucket(count, 1) - count)] for rows in (sources, outputs))
    if is_encoder_decoder(model):
        width = width_of(sources)
        source_ids = [[*source, *[model.pad_id] * (width - len(source))] for source in sources]
        read = [[model.start_id, *ids] for ids in outputs]
        inputs = {"source_ids": np.array(source_ids)}
    else:
        read, inputs = [[*source, *ids] for source, ids in zip(sources, outputs, strict=True)], {}
    lengths = np.array([len(ids) for ids in read])
    # Tokens after the last one of a row are masked by causality.
    width = width_of(read)
    padded = np.array([[*ids, *[model.end_id] * (width - len(ids))] for ids in read])
    logits = model({**inputs, "target_ids": padded} if inputs else padded)
    logits = ops.convert_to_numpy(logits)[np.arange(count), lengths[:count] - 1].astype(float)
    scores = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    never = [model.pad_id, getattr(model, "start_id", None)]
    scores[:, [token for token in never if token is not None]] = -np.inf
    return scores


def greedy_search(model, sources, most, allowed=lambda ids, scores: scores):
    """Return the ids of each source and their log-probabilities; `allowed` may forbid tokens by −∞."""
    found = [([], []) for _ in sources]
    for _ in range(most):
        going = [i for i, (ids, _) in enumerate(found) if len(sources[i]) and model.end_id not in ids]
        if not going:
            break
        scores = next_scores(model, [sources[i] for i in going], [found[i][0] for i in going])
        for i, row in zip(going, scores, strict=True):
            token = int(allowed(found[i][0], row).argmax())
            found[i][0].append(token)
            found[i][1].append(row[token])
    return found


def beam_search(model, source, beam, most):
    """Return the hypotheses of a beam search, with a full forward pass for all hypotheses: ids, score, ranking."""
    penalties = beam.penalties(most).astype(float)
    running, ended = [((), 0.0)], []
    for step in range(1, most + 1):
        if not running:
            break
        scores = next_scores(model, [source] * len(running), [ids for ids, _ in running])
        candidates = [
            ((*ids, token), total + scores[i, token])
            for i, (ids, total) in enumerate(running)
            for token in np.flatnonzero(scores[i] > -np.inf).tolist()
        ]
        candidates.sort(key=lambda one: -one[1])
        ended += [
            (ids, total, total / penalties[step])
            for ids, total in candidates[: beam.num_beams]
            if ids[-1] == model.end_id
        ]
        running = [one for one in candidates if one[0][-1] != model.end_id][: beam.num_beams]
        best = sorted((one[2] for one in ended), reverse=True)[: beam.num_beams]
        if beam.early_stopping in ("heuristic", "num_beams") and len(best) == beam.num_beams and running:
            nothing_better = running[0][1] / penalties[step] <= best[-1]
            if step < most and (beam.early_stopping == "num_beams" or nothing_better):
                running = []
    ended += [(ids, total, total / penalties[most]) for ids, total in running]
    return sorted(ended, key=lambda one: -one[2])[: beam.num_return]


def contrastive_search(model, source, sampler, most):
    """Return the ids and log-probabilities of contrastive search, with a full forward pass for every candidate."""

    def states(ids):
        """Return the normalised hidden states."""
        context, read = None, [*source, *ids]
        if is_encoder_decoder(model):
            context, read = model.encode(ops.array([source])), [model.start_id, *ids]
        hidden, _ = model.hidden_step(
            ops.array([read]),
            model.empty_cache(1, len(read)),
            context,
            cache_index=0,
            positions=ops.arange(len(read))[None],
        )
        hidden = ops.convert_to_numpy(hidden)[0]
        return hidden / np.linalg.norm(hidden, axis=-1, keepdims=True)

    ids, taken = [], []
    while len(ids) < most and model.end_id not in ids:
        seen, (scores,) = states(ids), next_scores(model, [source], [ids])
        shares = np.exp(scores - np.logaddexp.reduce(scores))
        candidates = np.argsort(-scores)[: sampler.top_k].tolist()
        objective = [
            (1 - sampler.penalty_alpha) * shares[one]
            - sampler.penalty_alpha * (states([*ids, one])[-1] @ seen.T).max()
            for one in candidates
        ]
        ids.append(candidates[int(np.argmax(objective))])
        taken.append(scores[ids[-1]])
    return ids, taken
