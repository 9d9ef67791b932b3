"""Invalid arguments of layers."""

import functools

import keras
import numpy as np

from keras_transformer import ops as kt_ops
from keras_transformer.layers import (
    S4D,
    AdditiveScore,
    ALiBi,
    ConvolutionalSubsampling,
    DecoderBlock,
    Dropout,
    DynamicNTKScaling,
    EncoderBlock,
    FeedForward,
    GATScore,
    GraphAttention,
    HypergraphAttention,
    LearnedPositions,
    Llama3Scaling,
    LogMelSpectrogram,
    LongRoPEScaling,
    Mamba2,
    MultiHeadAttention,
    Positions2D,
    RecurrentMixer,
    RelativeBias,
    RetrievalAttention,
    RotaryPositions,
    SinusoidalPositions,
    TokenEmbedding,
    YaRNScaling,
    score_layers,
)
from keras_transformer.layers.residual import Residual
from keras_transformer.ops import scores
from tests.layers.block_makers import decoder_block, encoder_block

from .table import POSITIVE, RATE, InvalidCalls, must

invalid = InvalidCalls()


def called(make, *arguments, **options):
    """Return a function that calls a new layer."""
    return lambda **inputs: make(*arguments, **options)(**inputs)


def zeros(*shape, dtype="float32"):
    """Return an array of zeros."""
    return np.zeros(shape, dtype)


X, MEMORY, EDGES, IDS = (
    zeros(2, 7, 8),
    zeros(2, 4, 8),
    zeros(2, 4, 2, dtype="int32"),
    zeros(2, 7, dtype="int32"),
)

invalid(
    MultiHeadAttention,
    {"num_heads": 4, "key_dim": 3},
    must(POSITIVE, num_heads=0, key_dim=-1, value_dim=0, num_kv_heads=0),
    must(POSITIVE, num_heads="4"),
    must(POSITIVE, num_heads=True),
    ({"num_kv_heads": 3}, "`num_kv_heads` must divide `num_heads`… Received: num_kv_heads=3, num_heads=4"),
    (
        {"num_kv_heads": 2, "shared_query_key": True},
        "`num_kv_heads` must equal `num_heads` for a shared projection. Received: num_kv_heads=2, num_heads=4",
    ),
    (
        {"key_bias": False, "shared_query_key": True},
        "`key_bias` must equal `qkv_bias` for a shared projection. Received: key_bias=False, qkv_bias=True",
    ),
    must(RATE, dropout=1.0),
    must("be", relation="cause", position_encoding="rotari", score="scaled", kernel="flash"),
    ({"position_encoding": SinusoidalPositions()}, "…added to the inputs… Received"),
    ({"position_encoding": ALiBi(3)}, "`position_encoding` must have as many heads… Received: …num_heads=3"),
    (
        {"position_encoding": RotaryPositions()},
        "`key_dim` must be even for rotary positions. Received: key_dim=3",
    ),
)
invalid(
    called(MultiHeadAttention, 2, 4),
    {"query": X, "value": X},
    ({"positions": IDS}, "`positions` must be None if `value` is passed… Received"),
    ({"segment_ids": IDS}, "`segment_ids` must be None if `value` is passed… Received"),
    name="MultiHeadAttention call",
)
invalid(
    called(MultiHeadAttention, 2, 4, shared_query_key=True),
    {"query": X},
    ({"value": zeros(2, 4, 6)}, "`key` must have the size 8 of the query … Received: key=(2, 4, 6)"),
    name="MultiHeadAttention shared",
)
invalid(
    called(HypergraphAttention, 2),
    {"nodes": X, "hyperedges": MEMORY},
    (
        {"incidences": EDGES + np.array([7, 0], "int32")},
        "`incidences` must be pairs [node, hyperedge] with nodes in [0, 7), … Received: incidences=[[7, 0]]",
    ),
    (
        {"incidences": EDGES + np.array([0, 4], "int32")},
        "`incidences` must be … hyperedges in [0, 4), … Received: incidences=[[0, 4]]",
    ),
    ({"incidences": EDGES - 2}, "`incidences` must be … or −1 for padding. Received: incidences=[[-2, -2]]"),
    ({"incidences": EDGES[0]}, "`edges` must be"),
    name="HypergraphAttention call",
)
invalid(
    called(MultiHeadAttention, 2, 4, kernel="banded"),
    {"query": X},
    ({}, "`kernel`… Received: kernel='banded', but the relation has no finite bandwidth"),
    name="MultiHeadAttention banded",
)
invalid(
    RetrievalAttention,
    {"num_heads": 4, "key_dim": 3, "k": 2},
    must(POSITIVE, k=0, num_heads=0),
    ({"num_kv_heads": 3}, "`num_kv_heads` must divide… Received: …num_kv_heads=3"),
    must("be", score="luong"),
)
invalid(
    GraphAttention,
    {"num_heads": 2, "head_dim": 3},
    must(POSITIVE, num_heads=0, head_dim=-1),
    must("be", dropout=1.0, score="gat3", kernel="fast"),
)
invalid(
    called(GraphAttention, 3, 4),
    {"nodes": X},
    ({}, "Either `edges` or `adjacency` … Received: neither"),
    ({"edges": EDGES, "adjacency": zeros(2, 7, 7) > 0}, "Either `edges` or `adjacency` … Received: both"),
    ({"adjacency": zeros(7, 7) > 0}, "`adjacency` must be …2, 7, 7… Received: …7, 7"),
    ({"adjacency": zeros(2, 6, 6) > 0}, "`adjacency` must be …2, 7, 7… Received: …6"),
    ({"edges": zeros(2, 4, 3, dtype="int32")}, "`edges` must be … Received: "),
    ({"edges": np.array([[[0, 7]], [[0, 0]]])}, "`edges` must be … Received: [0, 7], edge 0 of sample 0"),
    ({"edges": np.array([[[0, 0]], [[-1, 0]]])}, "`edges` must be … Received: [-1, 0], edge 0 of sample 1"),
    name="GraphAttention call",
)
for layer, axes in ((MultiHeadAttention, "query_shape"), (GraphAttention, "nodes_shape")):
    rows = [({axes: shape}, "…must have three axes… Received: ") for shape in ((2, 3, 5, 8), (5, 8))]
    invalid(layer(2, 4).build, {}, rows, name=f"{layer.__name__} build")
for layer in (Residual, encoder_block, decoder_block):
    invalid(layer, {}, must("be one of", normalization="all", norm="batch"), must(RATE, dropout=1))
for layer, inputs in ((encoder_block, [X]), (decoder_block, [X, MEMORY])):
    invalid(
        lambda layer, inputs, **options: layer(**options)(*inputs),
        {"layer": layer, "inputs": inputs},
        ({"num_heads": 3}, "`num_heads` must divide `model_dim`. Received: num_heads=3, model_dim=8"),
        must(POSITIVE, num_heads=0, hidden_dim=0),
        must("be", relation="future"),
        name=layer.__name__,
    )
feed_forward, attention = FeedForward(12), MultiHeadAttention(2)
invalid(EncoderBlock, {"feed_forward": feed_forward}, must("be a layer", attention=2), error=TypeError)
invalid(DecoderBlock, {"self_attention": attention}, must("be a layer", feed_forward=12), error=TypeError)


def decoder_built_with(*memory, then):
    """Call a block with a memory if it was built without one, and the reverse."""
    block = decoder_block()
    block.build(X.shape, *(each.shape for each in memory))
    block(X, *then)


invalid(
    decoder_built_with,
    {},
    ({"then": [MEMORY]}, "`memory` must be passed … Received: one for a block built without"),
)
invalid(
    functools.partial(decoder_built_with, MEMORY),
    {"then": []},
    ({}, "`memory` must be passed … Received: none for a block built with"),
    name="decoder_built_with memory",
)
invalid(
    FeedForward,
    {"hidden_dim": 3},
    must(POSITIVE, hidden_dim=0),
    must(POSITIVE, hidden_dim="8"),
    must(RATE, dropout=-0.5),
    ({"activation": "siglu"}, "Could not interpret activation function identifier: siglu"),
)
for layer in (FeedForward, MultiHeadAttention):
    invalid(
        called(layer, 2, kernel_initializer="neither"),
        {"inputs" if layer is FeedForward else "query": X},
        ({}, "Could not interpret initializer identifier: neither"),
        name=f"{layer.__name__} initializer",
    )
invalid(
    TokenEmbedding,
    {"vocabulary_size": 3, "model_dim": 4},
    must(POSITIVE, vocabulary_size=0, model_dim=0),
    must("be positive", soft_cap=0),
)
invalid(Dropout, {}, *[must(RATE, rate=rate) for rate in (-0.1, 1.0, 2)])

invalid(
    S4D,
    {"max_step": 0.1},
    must(POSITIVE, state_dim=0),
    must("be positive and at most `max_step`", min_step=0.2),
)
invalid(Mamba2, {"num_heads": 3}, ({"num_groups": 2}, "`num_groups` must divide `num_heads`… Received: "))
invalid(
    Mamba2(3).build,
    {},
    ({"input_shape": (None, None, 8)}, "`num_heads` must divide `inner_dim`… Received: "),
    name="Mamba2 build",
)
for mixer in (S4D, Mamba2):
    invalid(
        called(mixer, 4),
        {"inputs": X},
        *[
            ({mask: IDS}, f"`{mask}` must be None for {mixer.__name__}. Received: {mask}=")
            for mask in ("attention_mask", "segment_ids", "edges")
        ],
        name=mixer.__name__,
    )
invalid(
    RecurrentMixer().zero_state,
    {},
    ({"batch_size": 1}, "RecurrentMixer must implement `zero_state`."),
    error=NotImplementedError,
)

invalid(ALiBi, {}, must(POSITIVE, num_heads=0))
invalid(
    RelativeBias, {"num_heads": 2}, must(POSITIVE, num_heads=0), must("be", num_buckets=5, max_distance=8)
)
invalid(
    SinusoidalPositions,
    {},
    must("be positive", max_wavelength=0),
    must("be positive", max_wavelength=-5.0),
    must("be one of", layout="thirds"),
)
invalid(
    called(SinusoidalPositions),
    {},
    ({"inputs": zeros(2, 3, 7)}, "`inputs` must have an even last axis… Received: …(2, 3, 7)"),
    name="SinusoidalPositions call",
)
for layout in ("interleaved", "halves"):
    rows = [must("be positive and even", model_dim=size) for size in (0, 7)]
    invalid(
        SinusoidalPositions(layout=layout).shift_matrix, {"offset": 1}, *rows, name=f"shift_matrix {layout}"
    )
TOO_LONG = "`inputs` must be at most max_length=6 long. Received: inputs.shape="
OUTSIDE = "`positions` must be in [0, max_length=6). Received: positions from "
invalid(LearnedPositions, {}, must(POSITIVE, max_length=0))
invalid(
    called(LearnedPositions, 6),
    {"inputs": zeros(1, 2, 4)},
    ({"inputs": zeros(1, 7, 4)}, TOO_LONG + "(1, 7, 4)"),
    ({"inputs": keras.KerasTensor((None, 7, 4))}, TOO_LONG + "(None, 7, 4)"),
    ({"positions": np.array([0, 6])}, OUTSIDE + "0 to 6"),
    ({"positions": np.array([-1, 2])}, OUTSIDE + "-1 to 2"),
    name="LearnedPositions call",
)
invalid(
    lambda shape, **options: Positions2D(**options)(zeros(*shape)),
    {"shape": (1, 3, 5, 8)},
    must("be one of", kind="rotary"),
    must("be positive", max_wavelength=0),
    must("be", grid_shape=(3,)),
    must("be", grid_shape=(3, 0)),
    ({"shape": (1, 3, 5, 6)}, "`inputs` must have a last axis divisible by 4. Received: …(1, 3, 5, 6)"),
    ({"shape": (1, 15, 8)}, "`inputs` must be (B, height, width, D), … Received: inputs.shape=(1, 15, 8)"),
    (
        {"shape": (1, 16, 8), "grid_shape": (3, 5)},
        "`inputs` must have … Received: inputs.shape=(1, 16, 8)",
    ),
    (
        {"shape": (1, 5, 3, 8), "grid_shape": (3, 5)},
        "`inputs` must have 3 × 5 cells, as many as the grid. Received: inputs.shape=(1, 5, 3, 8)",
    ),
    name="Positions2D",
)
invalid(
    called(Positions2D, "learned"),
    {},
    ({"inputs": keras.KerasTensor((None, None, 5, 8))}, "`grid_shape` must be passed if kind='learned'"),
    name="Positions2D call",
)
invalid(
    lambda shape, **options: RotaryPositions(**options)(zeros(*shape)),
    {"shape": (2, 3, 4, 8)},
    ({"shape": (2, 3, 4, 7)}, "`heads` must have an even last axis. Received: heads.shape=(2, 3, 4, 7)"),
    ({"shape": (2, 3, 8)}, "`heads` must have four axes … Received: heads.shape=(2, 3, 8)"),
    must("be at most", rotary_dim=10),
    must("be positive and even", rotary_dim=3),
    must("be positive and even", rotary_dim=0),
    must("be one of", layout="both"),
    must("be positive", max_wavelength=0),
    *[must("be", scaling=given) for given in ("yarn", 4.0, {}, {"name": "other"})],
    *[must("be", scaling=given) for given in ({"name": "yarn", "factor": 2.0}, {"name": "ntk", "speed": 2})],
    name="RotaryPositions",
)
invalid(
    YaRNScaling,
    {"factor": 8.0, "original_length": 2048},
    must("be", factor=0.5, original_length=0, beta_slow=0, attention_factor=0),
    ({"beta_fast": 0.5}, "`beta_slow` must be … Received: beta_slow="),
)
invalid(
    Llama3Scaling,
    {"factor": 8.0, "original_length": 2048},
    must("be", factor=0.5, original_length=0, low_frequency_factor=0),
)
invalid(
    DynamicNTKScaling, {"factor": 8.0, "original_length": 2048}, must("be", factor=0.5, original_length=0)
)
invalid(
    LongRoPEScaling,
    {"factor": 8.0, "original_length": 16, "short_factors": [1.0], "long_factors": [1.0]},
    must("be", factor=0.5, original_length=1, attention_factor=0),
    ({"short_factors": [1.0, 0]}, "`short_factors` must be positive. Received: short_factors=0"),
)
invalid(
    lambda **options: RotaryPositions(scaling=options)(zeros(2, 3, 4, 8)),
    {"name": "longrope", "factor": 8.0, "original_length": 16, "long_factors": [1.0]},
    (
        {"short_factors": [1.0] * 3},
        "`short_factors` must have one factor for each of 4 frequencies. Received: 3 factors",
    ),
    name="RotaryPositions with LongRoPE",
)
for identifier in ("luong", 3, {"name": "gat"}):
    message = f"`score` must be …'additive'…'rbf'… Received: score=…{identifier!r}"
    invalid(score_layers.get, {}, ({"identifier": identifier}, message), name="scores")
invalid(
    score_layers.get,
    {},
    ({"identifier": keras.layers.Dense(2)}, "`score` must be …'additive'…'rbf'… Received: score="),
    name="scores",
)
invalid(
    keras.saving.serialize_keras_object,
    {},
    ({"obj": scores.Bilinear(np.ones((2, 3, 3)))}, "`score` must be a layer … Received: score=Bilinear"),
)
invalid(
    kt_ops.attention,
    dict.fromkeys(("query", "key", "value"), np.ones((1, 2, 1, 4))),
    ({"score": GATScore()}, "`score` must be built … Received: score=<GATScore"),
)
invalid(AdditiveScore, {}, must("be", activation="relu"))
invalid(
    LogMelSpectrogram,
    {},
    must(POSITIVE, num_mels=0, sample_rate=0, window_length=-2, hop_length=0.5),
    must("be even", window_length=401),
    must("not be negative", min_frequency=-1.0),
    must("be between `min_frequency` and half of `sample_rate`", max_frequency=9000.0),
    must("be one of", normalization="batch"),
)
for shape in ((2, 200), (400,), (2, 400, 1)):
    message = (
        "`inputs` must be audio (B, N) of more than window_length / 2 = 200 samples. Received: inputs.shape="
    )
    invalid(
        LogMelSpectrogram(), {}, ({"inputs": zeros(*shape)}, f"{message}{shape}"), name="LogMelSpectrogram"
    )
LENGTHS = "`lengths` must be integers of shape (B,), one for each row of `inputs`. Received: lengths.shape="
WRONG_LENGTHS = (
    ({"lengths": np.ones((2, 1), "int32")}, f"{LENGTHS}(2, 1), dtype=int32"),
    ({"lengths": np.ones(1, "int32")}, f"{LENGTHS}(1,), dtype=int32"),
    ({"lengths": np.ones(2, "float32")}, f"{LENGTHS}(2,), dtype=float32"),
)
invalid(LogMelSpectrogram(), {"inputs": zeros(2, 400)}, *WRONG_LENGTHS, name="LogMelSpectrogram")
invalid(
    ConvolutionalSubsampling,
    {"filters": 4},
    must(POSITIVE, filters=0, kernel_size=0),
    must("be odd", kernel_size=4),
    *[must("be a list of positive integers", strides=strides) for strides in ((2, 0), (), 2, (2, 1.5))],
)
invalid(
    called(ConvolutionalSubsampling, 4),
    {"inputs": zeros(2, 7, 3)},
    ({"inputs": zeros(2, 7)}, "`inputs` must be frames (B, T, F). Received: inputs.shape=(2, 7)"),
    *WRONG_LENGTHS,
    name="ConvolutionalSubsampling call",
)
