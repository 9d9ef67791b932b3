"""A language model whose blocks have recurrent layers, attention, or both alternately."""

import keras
import numpy as np
from keras import ops

from keras_transformer import layers, models, relations
from keras_transformer.layers.mixers.mixer import recurrence
from keras_transformer.ops import scores


@keras.saving.register_keras_serializable(package="tests")
class Gated(layers.RecurrentMixer):
    """A minimal recurrent layer: h = f h + (1 - f) x, with f = sigmoid(W x)."""

    def build(self, input_shape):
        self.size = input_shape[-1]
        self.forget = keras.layers.Dense(self.size, dtype=self.dtype_policy, name="forget")
        self.forget.build(input_shape)

    def zero_state(self, batch_size):
        return {"hidden": ops.zeros((batch_size, self.size), "float32")}

    def scan(self, inputs, state, mask, every):
        return recurrence(self.update, inputs, state, mask, every)

    def update(self, inputs, state):
        forget = ops.cast(ops.sigmoid(self.forget(inputs)), "float32")
        hidden = forget * state["hidden"] + (1 - forget) * ops.cast(inputs, "float32")
        return ops.cast(ops.tanh(hidden), inputs.dtype), {"hidden": hidden}


MIXERS = {
    "gated": Gated,
    "s4d": lambda **kwargs: layers.S4D(3, 0.1, 1.0, **kwargs),
    "mamba2": lambda **kwargs: layers.Mamba2(2, state_dim=4, num_groups=2, **kwargs),
    "attention": lambda **kwargs: layers.MultiHeadAttention(
        2, relation="causal", position_encoding="rotary", **kwargs
    ),
    "window": lambda **kwargs: layers.MultiHeadAttention(
        2, relation=relations.SlidingWindow(2), position_encoding="rotary", **kwargs
    ),
    "wide heads": lambda **kwargs: layers.MultiHeadAttention(
        2, 6, relation=relations.SlidingWindow(3), score=scores.ScaledDotProduct(0.3, 5.0), **kwargs
    ),
}


@keras.saving.register_keras_serializable(package="tests")
class Hybrid(models.CausalLanguageModel):
    """A decoder-only model with a mixer of `MIXERS` in each block."""

    def __init__(self, vocabulary_size, mixers, model_dim=8, pad_id=0, end_id=3, **kwargs):
        super().__init__(vocabulary_size, len(mixers), model_dim, pad_id, end_id, **kwargs)
        self.mixers = list(mixers)
        self.embedding = layers.TokenEmbedding(
            vocabulary_size, model_dim, tied=False, dtype=self.dtype_policy
        )
        self.blocks = [
            layers.DecoderBlock(
                MIXERS[mixer](dtype=self.dtype_policy, name="self_attention"),
                layers.FeedForward(2 * model_dim, dtype=self.dtype_policy, name="feed_forward"),
                dtype=self.dtype_policy,
                name=f"block_{index}",
            )
            for index, mixer in enumerate(self.mixers)
        ]
        self._build_weights()


HYBRIDS = {
    "gated": ["gated"],
    "s4d": ["s4d"],
    "mamba2": ["mamba2"],
    "hybrid": ["mamba2", "window", "s4d"],
    "attention": ["attention", "wide heads"],
}


def hybrid(name, seed=0, vocabulary_size=12, **kwargs):
    """Create a model of `HYBRIDS` with random embeddings, large enough for outputs to differ."""
    keras.utils.set_random_seed(seed)
    model = Hybrid(vocabulary_size, HYBRIDS[name], **kwargs)
    random = np.random.default_rng(seed)
    for weight in model.embedding.weights:
        weight.assign(random.normal(size=weight.shape))
    return model
