"""The models on which laws are tested: a call of `cases` for each model, a line for each variant."""

import keras
import numpy as np

from keras_transformer import models
from keras_transformer.layers import DynamicNTKScaling, LinearScaling, LogMelSpectrogram
from keras_transformer.models import BERT, GAT, GPT, T5, Gemma, Llama, Transformer, Unlimiformer, ViT
from keras_transformer.ops.scores import ScaledDotProduct
from keras_transformer.relations import Causal, GlobalTokens, SlidingWindow, Strided

from .cases import cases, normal

# Rows with padding; the last row is only padding.
IDS = np.array([[5, 6, 7, 3, 0], [8, 9, 10, 4, 3], [0, 0, 0, 0, 0]])
TARGET = np.array([[2, 9, 4], [2, 7, 0], [2, 5, 6]])
SEQUENCE = {"token_ids": IDS}
SEGMENTS = {"token_ids": IDS, "segment_ids": np.array([[0, 0, 1, 1, 0]] * 3)}
PAIRS = {"source_ids": IDS, "target_ids": TARGET}
TWO_SEQUENCES = {"token_ids": np.stack([IDS, IDS[::-1]], axis=1)}  # for each example
CLASSIFIED = {"token_ids": np.where(IDS == 3, 15, IDS)}  # 15 is the token that a GPT's head reads
TWO_CLASSIFIED = {"token_ids": np.where(TWO_SEQUENCES["token_ids"] == 3, 15, TWO_SEQUENCES["token_ids"])}
IMAGES = {"inputs": np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3)).astype("float32")}
AUDIO = {"audio": 0.1 * normal(3, 1600), "lengths": np.array([1600, 900, 0])}
FRAMES = {"frames": normal(3, 9, 5), "lengths": np.array([9, 4, 0])}
NODES = normal(3, 6, 16)
EDGES = np.array([[[0, 1], [1, 2], [3, 3], [-1, -1]]] * 3)  # 4 and 5 are isolated
PAIRS_OF_NODES = np.array([[[0, 1], [4, 2]]] * 3)
ADJACENCY = np.array([[[[s, t] in edges for s in range(6)] for t in range(6)] for edges in EDGES.tolist()])

SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 32, "dropout": 0.0}
WORDS = {"vocabulary_size": 16, **SIZES}
LIMITED = {**WORDS, "max_length": 8}
MODERN = {"position_encoding": "rotary", "norm": "rms", "activation": "swiglu", "use_bias": False}
WINDOW = SlidingWindow(1, 1)
RELATIONS = {
    "window": {"encoder_relation": WINDOW, "decoder_relation": SlidingWindow(1)},
    "strided": {
        "encoder_relation": WINDOW | Strided(3, causal=False),
        "decoder_relation": SlidingWindow(1) | Strided(3),
    },
    "global": {
        "encoder_relation": WINDOW | GlobalTokens([0]),
        "decoder_relation": (SlidingWindow(1) | GlobalTokens([0])) & Causal(),
    },
}
RATES = {"dropout": 0.3, "attention_dropout": 0.2}
IDENTIFIERS = {"pad_id": 1, "end_id": 6, "name": "mine"}


def head(kind, pretrained=BERT):
    """Return a function that creates a model with a head on an encoder or decoder."""

    def make(dtype=None, **options):
        return kind(pretrained(**LIMITED, dtype=dtype), dtype=dtype, **options)

    make.__name__ = kind.__name__
    return make


def decoder(vocabulary_size, **options):
    """Return a GPT with ids for the special tokens of its heads."""
    return GPT(vocabulary_size - 3, **options).resize_token_embeddings(vocabulary_size)


def bart(vocabulary_size, **options):
    """Return a Transformer with learned positions."""
    return Transformer(vocabulary_size, position_encoding="learned", **options)


def recognizer(dtype=None, **options):
    """Return a CTC model on an encoder of audio."""
    return models.CTC(models.SpeechEncoder(**SIZES, dtype=dtype), dtype=dtype, **options)


def on_gat(kind):
    """Return a function that creates a model with a head on a GAT."""

    def make(dtype=None, **options):
        return kind(GAT(16, 4, (2, 1), 8, dropout=0.0, dtype=dtype), dtype=dtype, **options)

    make.__name__ = kind.__name__
    return make


def on_vit(kind):
    """Return a function that creates a model with a head on a ViT."""

    def make(dtype=None, pooling="token", patch_size=(4, 4), **options):
        encoder = ViT((8, 8), patch_size, None, **SIZES, pooling=pooling, dtype=dtype)
        return kind(encoder, dtype=dtype, **options)

    make.__name__ = kind.__name__
    return make


def unlimiformer(dtype=None, **options):
    """Return a Transformer with retrieval."""
    return Unlimiformer(Transformer(**WORDS, dtype=dtype), **options)


def classifier_of_chunks(dtype=None, **options):
    """Return a classifier with retrieval."""
    return models.EncoderDecoderClassifier(unlimiformer(dtype, top_k=2, chunk_length=4), **options)


MODELS = {
    **cases(
        GPT,
        LIMITED,
        SEQUENCE,
        {
            "gpt2": {},
            "gpt1": {"normalization": "post", **RATES, "embedding_dropout": 0.1, **IDENTIFIERS},
            "rotary": {"position_encoding": "rotary", "max_length": None},
            "modern": {**MODERN, "num_kv_heads": 1, "epsilon": 1e-3, "max_length": None},
            "window": {"position_encoding": "alibi", "relation": SlidingWindow(2), "max_length": None},
            "t5": {"position_encoding": "relative_bias", "max_length": None},
        },
    ),
    **cases(
        GPT,
        LIMITED,
        {"token_ids": IDS, "padding_mask": IDS != 0},
        {"no padding id": {"pad_id": None}},
        everyday=False,
    ),
    **cases(
        Llama,
        {**WORDS, "num_kv_heads": 1, "key_dim": 6, "pad_id": 0},
        SEQUENCE,
        {
            "grouped": {},
            "everything": {
                "num_layers": 2,
                "max_wavelength": [100.0, None],
                "relation": [SlidingWindow(2), Causal()],
                "scaling": DynamicNTKScaling(2.0, 8),
                "rotary_dim": 4,
                "qkv_bias": True,
                "head_norm": True,
                "tied": True,
                "max_length": 7,
            },
        },
        everyday=False,
    ),
    **cases(
        Gemma,
        {**WORDS, "num_kv_heads": 1, "key_dim": 6},
        SEQUENCE,
        {
            "gemma 1": {},
            "gemma 2": {
                "num_layers": 2,
                "relation": [SlidingWindow(2), Causal()],
                "score": ScaledDotProduct(0.3, 2.0),
                "soft_cap": 3.0,
                "normalization": "sandwich",
            },
            "gemma 3": {
                "num_layers": 2,
                "relation": [SlidingWindow(2), Causal()],
                "max_wavelength": [10.0, 100.0],
                "scaling": [None, LinearScaling(8.0)],
                "normalization": "sandwich",
                "head_norm": True,
                "epsilon": 1e-3,
                "dropout": 0.1,
                **IDENTIFIERS,
            },
        },
        everyday=False,
    ),
    **cases(
        models.TransformerXL,
        {**WORDS, "memory_length": 4},
        SEQUENCE,
        {"pre": {"normalization": "pre", "relation": SlidingWindow(2), **IDENTIFIERS}},
        everyday=False,
    ),
    **cases(
        Transformer,
        WORDS,
        PAIRS,
        {
            "pre": {},
            "post": {"normalization": "post", "activation": "gelu", **RATES, **IDENTIFIERS, "start_id": 5},
            "sandwich": {
                "normalization": "sandwich",
                "num_decoder_layers": 2,
                "num_decoder_heads": 4,
                "decoder_hidden_dim": 6,
            },
            "rms, swiglu": {"norm": "rms", "activation": "swiglu", "hidden_dropout": 0.2},
            "bart": {
                "normalization": "post",
                "position_encoding": "learned",
                "max_length": 8,
                "embedding_norm": True,
                "scale_embedding": False,
                "output_bias": True,
            },
            "m2m": {"position_layout": "fairseq"},
            "symmetric rbf": {"score": "rbf", "shared_query_key": True},
            "additive": {"score": "additive"},
            **RELATIONS,
        },
    ),
    **cases(
        T5,
        {**WORDS, "key_dim": 8, "start_id": 0},
        PAIRS,
        {
            "original": {"num_decoder_layers": 2, "num_decoder_heads": 3, "decoder_hidden_dim": 6},
            "v1.1": {"activation": "geglu_tanh", "tied": False, "dropout": 0.3, "epsilon": 1e-3},
            **RELATIONS,
        },
    ),
    **cases(
        unlimiformer, {"top_k": 2, "chunk_length": 4}, PAIRS, {"defaults": {}, "overlap": {"overlap": 2}}
    ),
    **cases(
        BERT,
        LIMITED,
        SEGMENTS,
        {
            "base": {},
            "everything": {
                "num_segments": 3,
                "activation": "gelu_tanh",
                "normalization": "pre",
                "relation": "causal",
                "epsilon": 1e-6,
                "pooler": False,
                **RATES,
                "pad_id": 4,
                "name": "mine",
            },
            "albert": {"embedding_dim": 6, "shared_blocks": True, "num_layers": 2},
        },
    ),
    **cases(BERT, LIMITED, SEQUENCE, {"distilbert": {"num_segments": 0, "pooler_activation": "relu"}}),
    **cases(
        models.ModernBERT,
        {**LIMITED, "window": 2, "pad_id": 0},
        SEQUENCE,
        {
            "base": {"num_layers": 2},
            "everything": {
                "num_layers": 3,
                "global_every": 2,
                "dropout": 0.2,
                "activation": "swiglu",
                "max_wavelength": 100.0,
                "local_max_wavelength": 10.0,
                "epsilon": 1e-3,
                "pooler_input": "mean",
                "pooler_activation": "relu",
                "name": "mine",
            },
        },
    ),
    **cases(head(models.Pretraining), {}, SEGMENTS, {"bert": {}}),
    **cases(head(models.MaskedLanguageModel), {}, SEGMENTS, {"bert": {}}, everyday=False),
    **cases(head(models.TokenClassifier), {"num_classes": 3}, SEGMENTS, {"bert": {}}, everyday=False),
    **cases(head(models.SpanClassifier), {}, SEGMENTS, {"bert": {}}, everyday=False),
    **cases(
        head(models.SequenceClassifier),
        {"num_classes": 3},
        SEGMENTS,
        {
            "pooler": {},
            "mean": {"pooling": "mean", "dropout": 0.1},
            "regression": {"num_classes": 1, "problem_type": "regression"},
        },
        everyday=False,
    ),
    **cases(
        head(models.EncoderDecoderClassifier, bart),
        {"num_classes": 3},
        SEQUENCE,
        {"bart": {"dropout": 0.1}, "regression": {"num_classes": 1}},
        everyday=False,
    ),
    **cases(
        classifier_of_chunks,
        {"num_classes": 3},
        SEQUENCE,
        {"chunks": {"dropout": 0.1}, "start": {"decoder_input": "start"}},
        everyday=False,
    ),
    **cases(
        head(models.SentenceEncoder),
        {"pooling": ["first", "max"]},
        TWO_SEQUENCES,
        {"bert": {}},
        everyday=False,
    ),
    **cases(
        head(models.GPTClassifier, decoder),
        {"num_classes": 2},
        CLASSIFIED,
        {"gpt": {"dropout": 0.1}},
    ),
    **cases(
        head(models.GPTClassifier, decoder),
        {"num_classes": 2, "symmetric": True},
        TWO_CLASSIFIED,
        {"pairs": {}},
        everyday=False,
    ),
    **cases(
        head(models.GPTMultipleChoice, decoder), {}, TWO_CLASSIFIED, {"gpt": {"dropout": 0.1}}, everyday=False
    ),
    **cases(
        ViT,
        {"image_size": (8, 8), "patch_size": (4, 4), "num_classes": 3, **SIZES},
        IMAGES,
        {
            "class token": {},
            "mean, window": {
                "pooling": "mean",
                "positions": "sinusoidal",
                "window": 1,
                "patch_size": (4, 2),
                "activation": "gelu_tanh",
                **RATES,
                "epsilon": 1e-12,
                "qkv_bias": False,
                "name": "mine",
            },
            "features": {"num_classes": None},
            "relation": {"relation": SlidingWindow(1) | GlobalTokens([0])},
        },
    ),
    **cases(
        models.SpeechEncoder,
        {**SIZES, "num_features": 5},
        FRAMES,
        {"frames": {"strides": [1, 3], "kernel_size": 5, "activation": "relu"}},
        everyday=False,
    ),
    **cases(
        models.SpeechEncoder,
        SIZES,
        AUDIO,
        {
            "audio": {
                "features": LogMelSpectrogram(8, 8000, 64, 32),
                "position_encoding": "alibi",
                "relation": WINDOW,
                "epsilon": 1e-3,
                "dropout": 0.2,
                "name": "mine",
            }
        },
        everyday=False,
    ),
    **cases(
        models.Whisper,
        {
            **WORDS,
            "max_source_length": 5,
            "max_length": 8,
            "num_mels": 8,
            "pad_id": 0,
            "start_id": 2,
            "end_id": 3,
        },
        {"audio": AUDIO["audio"], "target_ids": TARGET},
        {
            "defaults": {},
            "everything": {
                "num_decoder_layers": 2,
                "num_decoder_heads": 4,
                "decoder_hidden_dim": 6,
                "activation": "relu",
                **RATES,
                "dropout": 0.1,
            },
        },
        everyday=False,
    ),
    **cases(recognizer, {"vocabulary_size": 16}, AUDIO, {"defaults": {}}),
    **cases(
        on_vit(models.ImageSegmenter),
        {"num_classes": 3},
        IMAGES,
        {"class token": {}, "mean": {"pooling": "mean", "patch_size": (4, 2), "dropout": 0.1}},
        everyday=False,
    ),
    **cases(
        GAT,
        {"num_features": 16, "num_classes": 3, "num_heads": (2, 1), "head_dim": 8, "dropout": 0.0},
        {"nodes": NODES, "edges": EDGES},
        {
            "gat": {},
            "gatv2, residual": {
                "score": "gatv2",
                "residual": True,
                "regularizer": keras.regularizers.L2(0.01),
                "self_loops": False,
                "activation": "relu",
                "dropout": 0.3,
                "name": "mine",
            },
        },
    ),
    **cases(
        GAT,
        {"num_features": 16, "num_classes": 3, "num_heads": (2, 1), "head_dim": 8, "dropout": 0.0},
        {"nodes": NODES, "adjacency": ADJACENCY},
        {"adjacency": {}},
        everyday=False,
    ),
    **cases(
        on_gat(models.GraphClassifier),
        {"num_classes": 3},
        {"nodes": NODES, "edges": EDGES, "padding_mask": np.arange(6) < [[6], [4], [0]]},
        {
            "mean": {},
            "sum": {"pooling": "sum", "dropout": 0.5},
            "max": {"pooling": "max"},
            "regression": {"num_classes": 1, "problem_type": "regression"},
        },
        everyday=False,
    ),
    **cases(
        on_gat(models.LinkPredictor),
        {},
        {"nodes": NODES, "edges": EDGES, "pairs": PAIRS_OF_NODES},
        {"links": {}},
        everyday=False,
    ),
}
# Models that together have all layers, for laws that take seconds for each model.
DIFFERENT = {
    name: MODELS[name]
    for name in (
        "GPT-gpt2",
        "GPT-rotary",
        "Llama-grouped",
        "Gemma-gemma 3",
        "Transformer-pre",
        "T5-original",
        "T5-v1.1",
        "Unlimiformer-defaults",
        "Pretraining-bert",
        "SequenceClassifier-pooler",
        "GPTClassifier-gpt",
        "ViT-class token",
        "Recognizer-defaults",
        "ImageSegmenter-class token",
        "GAT-gat",
        "GraphClassifier-mean",
        "LinkPredictor-links",
    )
}
HEADS = {
    name: MODELS[name]
    for name in MODELS
    if name.endswith(("-bert", "-gpt", "-pairs", "-base", "-no padding id"))
}
