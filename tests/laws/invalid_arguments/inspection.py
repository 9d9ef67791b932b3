"""Invalid arguments of inspection."""

import functools

import keras
import numpy as np

from keras_transformer import inspection, models
from keras_transformer.layers import TokenEmbedding
from keras_transformer.models.encoder_decoder import AttentionWeights

from .table import POSITIVE, InvalidCalls, must

invalid = InvalidCalls()
SIZES = {"num_layers": 2, "num_heads": 2, "model_dim": 8}
IDS = np.array([[5, 6, 3]])
TARGETS = {"source_ids": IDS, "target_ids": IDS}


@functools.cache
def gpt():
    """Return a small decoder-only model."""
    return models.GPT(20, **SIZES, max_length=6)


@functools.cache
def transformer():
    """Return a small encoder-decoder."""
    return models.Transformer(20, **SIZES, hidden_dim=8)


invalid(
    lambda layer: inspection.self_attention_weights(gpt(), IDS, layer),
    {},
    *[must("be in [-2, 2)", layer=layer) for layer in (2, -3)],
    name="self_attention_weights",
)
invalid(
    lambda layer: inspection.cross_attention_weights(transformer(), IDS, IDS, layer),
    {},
    *[must("be in [-2, 2)", layer=layer) for layer in (2, -3, 100)],
    name="cross_attention_weights",
)
invalid(
    lambda model: inspection.self_attention_weights(model(), TARGETS),
    {},
    ({"model": lambda: keras.Sequential([keras.layers.Dense(1)])}, "`model` must have `blocks`… Received: "),
    ({"model": transformer}, "`model` must be an encoder or decoder; use `attention_weights`… Received: "),
    name="self_attention_weights",
)
invalid(
    lambda model: inspection.attention_weights(model(), IDS),
    {},
    ({"model": gpt}, "`model` must be an encoder–decoder…use `self_attention_weights`… Received: "),
    name="attention_weights",
)
MATRIX, TOKENS = np.ones((6, 3)), ["king", "queen", "man", "woman", "apple", "[PAD]"]
invalid(
    lambda embeddings=MATRIX, tokens=TOKENS, query="king", k=3: inspection.nearest_tokens(
        embeddings, tokens, query, k
    ),
    {},
    must("be one of the 6 tokens", query="prince"),
    *[must("be an id in [0, 6)", query=query) for query in (6, -1)],
    ({"query": [1.0, 2.0]}, "…a vector of 3 numbers. Received: query.shape=(2,)"),
    ({"tokens": TOKENS[1:]}, "`tokens` must have a string for each… Received: 5 tokens"),
    ({"embeddings": MATRIX[0]}, "`embeddings` must be (V, D). Received: embeddings.shape=(3,)"),
    must(POSITIVE, k=0),
    ({"embeddings": keras.layers.Dense(3)}, "`embeddings` must be a matrix or a built embedding layer"),
    ({"embeddings": TokenEmbedding(6, 3)}, "…a built embedding layer. Received: …built=False"),
    name="nearest_tokens",
)
invalid(
    lambda embeddings=MATRIX, labels=TOKENS, groups=None: inspection.plot_embeddings(
        embeddings, labels, groups
    ),
    {},
    ({"labels": TOKENS[1:]}, "`labels` must have a string for each row… Received: 5 labels"),
    ({"groups": ["a"]}, "`groups` must have a string for each row… Received: 1 groups"),
    (
        {"embeddings": MATRIX[:1], "labels": ["a"]},
        "…at least two rows and two columns. Received: embeddings.shape=(1, 3)",
    ),
    ({"embeddings": MATRIX[:, :1]}, "…at least two rows and two columns. Received: embeddings.shape=(6, 1)"),
    name="plot_embeddings",
)
invalid(
    lambda weights, queries, keys: inspection.plot_attention(weights, queries, keys),
    {"weights": np.ones((3, 2)), "queries": "abc", "keys": "xy"},
    *[
        ({"queries": queries, "keys": keys}, "`weights` must have… Received: weights.shape=(3, 2)")
        for queries, keys in (("ab", "xy"), ("abc", "xyz"), ("xy", "abc"))
    ],
    ({"weights": np.ones((2, 3, 2))}, "`weights` must… Received: weights.shape=(2, 3, 2)"),
    name="plot_attention",
)
MAPS = AttentionWeights(*(list(np.ones((2, 3, 2, *sizes))) for sizes in ((5, 5), (4, 4), (4, 5))))
invalid(
    lambda **options: inspection.plot_attention_weights(
        MAPS, **{"source_labels": "abcde", "target_labels": "wxyz", **options}
    ),
    {},
    must("be in [-3, 3)", row=3),
    must("be in [-2, 2)", layer=2, head=-3),
    ({"source_labels": "abcdef"}, "`weights` must have a row for each of 6 query labels"),
    name="plot_attention_weights",
)
invalid(
    lambda history={"loss": [1.0]}, **options: inspection.plot_history(history, **options),
    {},
    must("be", mode="auto"),
    ({"history": {}}, "`history` must have at least one metric"),
    name="plot_history",
)
invalid(
    lambda **options: inspection.plot_relation(**{"relation": "causal", "num_queries": 3, **options}),
    {},
    *[must("be an integer in [1, 64]", num_queries=count) for count in (0, 65, 3.0, True, None)],
    must("be an integer in [1, 64]", num_keys=-1),
    must("be a Relation", relation="nearby"),
    must("be two axes", axes=[None]),
    name="plot_relation",
)
invalid(
    lambda **options: inspection.plot_tokens(["a token", "b"], **options),
    {},
    *[
        (
            {"values": values},
            f"`values` must have one entry for each of 2 tokens… Received: …shape={values.shape}",
        )
        for values in (np.ones(1), np.ones((2, 1)))
    ],
    ({"groups": ["x"]}, "`groups` must have one entry for each of 2 tokens. Received: "),
    ({"values": np.ones(2), "groups": ["x"] * 2}, "…must not both be passed"),
    must("be at least 7, the length of the longest token", width=5),
    name="plot_tokens",
)
