"""The layers on which laws are tested: a call of `cases` for each layer, a line for each variant."""

import keras
import numpy as np

from keras_transformer.layers import (
    S4D,
    AdditiveScore,
    ALiBi,
    ConvolutionalSubsampling,
    Dropout,
    FeedForward,
    GATScore,
    GraphAttention,
    LearnedPositions,
    LinearScaling,
    Llama3Scaling,
    LogMelSpectrogram,
    Mamba2,
    MultiHeadAttention,
    NTKScaling,
    Positions2D,
    RelativeBias,
    RelativeSinusoidalPositions,
    RetrievalAttention,
    RotaryPositions,
    SegmentAttention,
    SimplicialAttention,
    SinusoidalPositions,
    TokenEmbedding,
    TriangleAttention,
    YaRNScaling,
)
from keras_transformer.ops import scores
from keras_transformer.relations import Causal, SlidingWindow, Strided
from tests.layers.block_makers import decoder_block, encoder_block

from .cases import cases, normal

B, T, S, D = 2, 5, 4, 8
X, MEMORY = normal(B, T, D), normal(B, S, 6)
PADDING = np.arange(T) < [[5], [3]]
MEMORY_PADDING = np.arange(S) < [[2], [4]]
IDS = np.array([[5, 6, 0], [1, 0, 0]])
SEGMENTS = np.array([[1, 1, 2, 2, 2], [1, 1, 1, 2, 2]])
POSITIONS = np.array([[4, 5, 6], [0, 1, 2]])
EDGES = np.array([[[0, 1], [2, 2], [3, 1], [3, 1], [-1, -1]], [[1, 0], [-1, -1], [2, 1], [0, 4], [4, 4]]])
ADJACENCY = np.array([[[[s, t] in edges for s in range(T)] for t in range(T)] for edges in EDGES.tolist()])
INITIALIZERS = {
    "kernel_initializer": "he_normal",
    "output_initializer": keras.initializers.RandomNormal(stddev=0.3),
}

# Position encodings, scores and grouped heads.
ATTENTION = {
    "rotary": {"position_encoding": "rotary"},
    "alibi": {"position_encoding": "alibi"},
    "relative bias": {"position_encoding": "relative_bias"},
    "relative sinusoidal": {"position_encoding": RelativeSinusoidalPositions(6)},
    "causal buckets": {"position_encoding": RelativeBias(4, 8, 6, bidirectional=False)},
    "cosine": {"score": "cosine"},
    "soft cap": {"score": scores.ScaledDotProduct(soft_cap=2.0)},
    "rbf": {"score": "rbf"},
    "polynomial": {"score": "polynomial"},
    "linear": {"score": "linear"},
    "additive": {"score": "additive"},
    "bilinear": {"score": "bilinear"},
    "gat": {"score": "gat"},
    "gatv2": {"score": "gatv2"},
    "shared query and key, rbf": {"shared_query_key": True, "score": "rbf"},
    "grouped, rotary": {"position_encoding": "rotary", "num_kv_heads": 2},
    "multi-query, alibi, cosine": {"position_encoding": "alibi", "num_kv_heads": 1, "score": "cosine"},
    "gat, relative bias": {"position_encoding": "relative_bias", "score": "gat", "value_dim": 5},
}
BLOCKS = {
    "pre, dropout": {"dropout": 0.2, "attention_dropout": 0.3, "hidden_dropout": 0.5},
    "post": {"normalization": "post", "activation": "gelu", "dropout": 0.3},
    "sandwich, rms": {"normalization": "sandwich", "norm": "rms", "activation": "swiglu", "epsilon": 0.1},
    "pre, rms": {"norm": "rms"},
    "post, rms, window": {"normalization": "post", "norm": "rms", "relation": SlidingWindow(1, 1)},
    "sandwich, no biases": {"normalization": "sandwich", "use_bias": False, "relation": ~Causal()},
    "grouped, rotary": {"num_heads": 4, "num_kv_heads": 2, "position_encoding": "rotary"},
    "gatv2, relative bias": {"position_encoding": "relative_bias", "score": "gatv2", "value_dim": 5},
    "rematerialized": {"rematerialize": True, "dropout": 0.1},
}
SCALINGS = {
    "linear": LinearScaling(4.0),
    "ntk": NTKScaling(4.0),
    "yarn": YaRNScaling(8.0, 2048),
    "llama3": Llama3Scaling(8.0, 2048),
}

LAYERS = {
    **cases(
        MultiHeadAttention,
        {"num_heads": 4, "key_dim": 4},
        {"query": X, "padding_mask": PADDING},
        {
            "everything": {
                "value_dim": 2,
                "num_kv_heads": 2,
                "relation": Causal() & ~SlidingWindow(0),
                "dropout": 0.2,
                "use_bias": False,
                "seed": 5,
                "kernel": "dense",
                "name": "attention",
            },
            "defaults": {},
            "strided, chunked": {
                "relation": Strided(2),
                "kernel": "chunked",
                "head_norm": "rms",
                "key_bias": False,
            },
            "initializers": {
                **INITIALIZERS,
                "query_initializer": "ones",
                "bias_initializer": "normal",
                "qkv_bias": False,
            },
            "regularized": {
                "kernel_regularizer": "l2",
                "bias_regularizer": "l1",
                "activity_regularizer": "l2",
                "kernel_constraint": keras.constraints.MaxNorm(3.0),
                "bias_constraint": "non_neg",
            },
            **ATTENTION,
        },
    ),
    **cases(
        MultiHeadAttention,
        {"num_heads": 4, "key_dim": 3},
        {"query": X, "value": MEMORY, "padding_mask": MEMORY_PADDING},
        {
            "cross, grouped, dropout": {"num_kv_heads": 2, "value_dim": 5, "dropout": 0.3, "seed": 1},
            "cross": {},
        },
        everyday=False,
    ),
    **cases(
        SegmentAttention,
        {"num_heads": 4, "key_dim": 4, "memory_length": 3},
        {"query": X, "padding_mask": PADDING},
        {"rotary": {"position_encoding": "rotary"}},
        everyday=False,
    ),
    **cases(
        RetrievalAttention,
        {"num_heads": 4, "key_dim": 3, "k": 2},
        {"query": X, "value": MEMORY, "padding_mask": MEMORY_PADDING},
        {
            "grouped, dropout": {
                "value_dim": 2,
                "num_kv_heads": 2,
                "score": AdditiveScore(name="mine"),
                "dropout": 0.2,
                "use_bias": False,
                "seed": 5,
                "name": "retrieval",
            },
            "defaults": {},
            "bilinear": {"score": "bilinear"},
        },
    ),
    **cases(
        encoder_block,
        {},
        {"inputs": X, "padding_mask": PADDING},
        {**BLOCKS, "causal": {"relation": "causal"}},
    ),
    **cases(
        decoder_block,
        {},
        {"inputs": X, "memory": MEMORY, "padding_mask": PADDING, "memory_padding_mask": MEMORY_PADDING},
        BLOCKS,
    ),
    **cases(
        decoder_block,
        {"cross": False},
        {"inputs": X, "padding_mask": PADDING, "segment_ids": SEGMENTS},
        {"decoder-only": {}},
        everyday=False,
    ),
    **cases(
        GraphAttention,
        {"num_heads": 3, "head_dim": 4},
        {"nodes": X, "edges": EDGES, "padding_mask": PADDING},
        {
            "gat": {"dropout": 0.2, "activation": "elu", "seed": 5},
            "gatv2": {"score": "gatv2", "concat": False, "self_loops": False, "kernel": "dense"},
            "dot product": {"score": "scaled_dot_product", "use_bias": False, "kernel_regularizer": "l1"},
            "cosine": {"score": scores.Cosine(3.0), "name": "graph"},
            "own score": {"score": GATScore(0.1, name="mine")},
        },
    ),
    **cases(
        GraphAttention,
        {"num_heads": 3, "head_dim": 4},
        {"nodes": X, "adjacency": ADJACENCY},
        {"adjacency": {}, "adjacency, gatv2, dropout": {"score": "gatv2", "dropout": 0.3}},
        everyday=False,
    ),
    **cases(
        SimplicialAttention,
        {"num_heads": 2},
        {"inputs": X, "padding_mask": PADDING},
        {
            "windows": {
                "key_dim": 3,
                "value_dim": 5,
                "relation": "causal",
                "second_relation": SlidingWindow(1),
                "pair_relation": ~SlidingWindow(0),
                "kernel": "dense",
                "dropout": 0.2,
                "use_bias": False,
                "seed": 3,
            },
            "defaults": {},
        },
    ),
    **cases(
        TriangleAttention,
        {"num_heads": 2},
        {"pairs": normal(B, S, S, D)},
        {"ending": {"key_dim": 3, "starting": False, "dropout": 0.2, "seed": 3}, "defaults": {}},
    ),
    **cases(
        FeedForward,
        {"hidden_dim": 10},
        {"inputs": X},
        {
            "geglu": {"activation": "geglu", "dropout": 0.5},
            "relu": {},
            "gelu": {"activation": "gelu", "dropout": 0.2, "use_bias": False},
            "glu": {"activation": "glu"},
            "reglu": {"activation": "reglu"},
            "geglu_tanh": {"activation": "geglu_tanh"},
            "swiglu": {"activation": "swiglu", **INITIALIZERS},
        },
    ),
    **cases(
        TokenEmbedding,
        {"vocabulary_size": 10, "model_dim": 16},
        {"inputs": IDS},
        {
            "defaults": {},
            "everything": {
                "scale": False,
                "pad_id": None,
                "embeddings_initializer": "ones",
                "name": "tokens",
            },
            "capped": {"soft_cap": 3.0, "pad_id": 6},
        },
    ),
    **cases(Dropout, {"rate": 0.5}, {"inputs": X}, {"defaults": {}, "seeded": {"seed": 4, "name": "drop"}}),
    **cases(
        S4D,
        {},
        {"inputs": X, "padding_mask": PADDING},
        {"small": {"state_dim": 4, "min_step": 0.1, "max_step": 1.0}},
    ),
    **cases(
        Mamba2,
        {"num_heads": 4},
        {"inputs": X, "padding_mask": PADDING},
        {"grouped": {"state_dim": 8, "num_groups": 2}},
    ),
    **cases(
        SinusoidalPositions,
        {},
        {"inputs": X[:, :3], "positions": POSITIONS},
        {"defaults": {}, "halves": {"max_wavelength": 50.0, "layout": "halves", "name": "sines"}},
    ),
    **cases(
        LearnedPositions,
        {"max_length": 9},
        {"inputs": X[:, :3], "positions": POSITIONS},
        {"defaults": {}, "ones": {"initializer": "ones"}},
    ),
    **cases(
        RotaryPositions,
        {},
        {"heads": normal(B, 3, 2, D), "positions": POSITIONS},
        {
            "yarn": {"scaling": SCALINGS["yarn"], "layout": "interleaved", "rotary_dim": 4},
            "defaults": {},
            "linear": {"scaling": SCALINGS["linear"]},
            "ntk": {"scaling": SCALINGS["ntk"], "max_wavelength": 100.0},
            "llama3": {"scaling": SCALINGS["llama3"], "max_wavelength": 100.0},
        },
    ),
    **cases(
        ALiBi,
        {"num_heads": 4},
        {"query_positions": POSITIONS, "key_positions": POSITIONS[:, :2]},
        {"defaults": {}},
    ),
    **cases(
        RelativeBias,
        {"num_heads": 4},
        {"query_positions": POSITIONS, "key_positions": POSITIONS[:, :2]},
        {
            "everything": {
                "num_buckets": 8,
                "max_distance": 20,
                "bidirectional": False,
                "initializer": "ones",
            },
            "defaults": {},
        },
    ),
    **cases(
        LogMelSpectrogram,
        {"num_mels": 8, "window_length": 32, "hop_length": 16},
        {"inputs": normal(B, 100), "lengths": np.array([100, 49])},
        {
            "whisper": {},
            "everything": {
                "sample_rate": 8000,
                "min_frequency": 50.0,
                "max_frequency": 3000.0,
                "normalization": "utterance",
                "name": "frames",
            },
        },
    ),
    **cases(
        ConvolutionalSubsampling,
        {"filters": 6},
        {"inputs": normal(B, 7, D), "lengths": np.array([6, 3])},
        {
            "defaults": {},
            "everything": {
                "kernel_size": 5,
                "strides": [1, 3],
                "activation": "gelu_tanh",
                "kernel_initializer": "he_normal",
            },
        },
    ),
    **cases(Positions2D, {}, {"inputs": normal(B, 3, 5, D)}, {"sinusoidal": {}}, {"inputs": (None, None, D)}),
    **cases(
        Positions2D,
        {},
        {"inputs": normal(B, 3, 5, D)},
        {"learned": {"kind": "learned", "initializer": "ones"}},
        {"inputs": (3, 5, D)},
    ),
    **cases(
        Positions2D,
        {"grid_shape": [3, 5]},
        {"inputs": normal(B, 15, D)},
        {"learned, row by row": {"kind": "learned"}, "row by row": {"max_wavelength": 50.0}},
        everyday=False,
    ),
}
