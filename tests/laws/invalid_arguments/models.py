"""Invalid arguments of models and of their calls."""

import functools

import numpy as np

from keras_transformer.layers import LogMelSpectrogram
from keras_transformer.layers.residual import NORMALIZATIONS
from keras_transformer.models import (
    BERT,
    CTC,
    GAT,
    GPT,
    T5,
    EncoderDecoderClassifier,
    Gemma,
    GPTClassifier,
    GPTMultipleChoice,
    GraphClassifier,
    ImageSegmenter,
    LinkPredictor,
    Llama,
    MaskedLanguageModel,
    Pretraining,
    SentenceEncoder,
    SequenceClassifier,
    SpeechEncoder,
    TokenClassifier,
    Transformer,
    Unlimiformer,
    ViT,
    Whisper,
)
from keras_transformer.relations import SlidingWindow

from .table import POSITIVE, RATE, InvalidCalls, must

invalid = InvalidCalls()
SIZES = {"vocabulary_size": 12, "num_layers": 1, "num_heads": 2, "model_dim": 8}
HEADS_DIVIDE = ({"num_heads": 3}, "`num_heads` must divide `model_dim`. Received: num_heads=3, model_dim=8")
NUMBERS = dict.fromkeys(SIZES, 0)
bert = functools.partial(BERT, **SIZES, max_length=9)
transformer = functools.partial(Transformer, **SIZES)


def decoder():
    """Return a GPT with ids for the special tokens of its heads."""
    return GPT(10, 1, 2, 8, max_length=16, end_id=1).resize_token_embeddings(13)


invalid(
    GPT,
    SIZES,
    HEADS_DIVIDE,
    must(POSITIVE, **NUMBERS, max_length=0),
    must(POSITIVE, num_heads=2.5, model_dim=None, vocabulary_size=50.0, max_length="16"),
    must(POSITIVE, vocabulary_size=None),
    must(RATE, dropout=1.5),
    must(RATE, dropout="0.1"),
    must("be in [0, 12)", pad_id=12),
    must("be in [0, 12)", pad_id="0"),
    must("be", position_encoding="sine"),
    must("be one of", rematerialize="layers"),
    ({"relation": None}, "`relation` must not relate a token to a later one. Received: relation=Full"),
    must("not relate a token to a later one", relation=SlidingWindow(2, 1)),
    (
        {"model_dim": 10, "position_encoding": "rotary"},
        "`key_dim` must be even for rotary positions. Received: key_dim=5",
    ),
)
for decoder_only in (Llama, Gemma):
    invalid(
        decoder_only,
        {**SIZES, "num_layers": 2, "hidden_dim": 6, "num_kv_heads": 2, "key_dim": 4},
        must(POSITIVE, num_layers=0, max_length=0),
        must("divide `num_heads`", num_kv_heads=3),
        must(RATE, dropout=1.5),
        must("be in [0, 12)", pad_id=12),
        must("not relate a token to a later one", relation=SlidingWindow(2, 1)),
        must(
            "be one for all blocks, or a list with one for each of 2", relation=["causal"] * 3, scaling=[None]
        ),
        must("be one for all blocks, or a list with one for each of 2", max_wavelength=[10.0]),
        must("be", scaling="yarn"),
    )
invalid(GPT.from_size, {}, must("be one of", name="gpt5"), name="GPT.from_size")
invalid(
    Transformer,
    SIZES,
    HEADS_DIVIDE,
    (
        {"num_decoder_heads": 3},
        "`num_decoder_heads` must divide `model_dim`. Received: num_decoder_heads=3, model_dim=8",
    ),
    must(POSITIVE, **NUMBERS, hidden_dim=0, num_decoder_layers=0, num_decoder_heads=0, decoder_hidden_dim=0),
    must(POSITIVE, num_heads=None, model_dim="16"),
    ({"model_dim": 9, "num_heads": 3}, "`model_dim` must be even. Received: model_dim=9"),
    must(RATE, dropout=1.5, attention_dropout=1),
    must(f"be one of {NORMALIZATIONS}", normalization="all"),
    must("be in [0, 12)", pad_id=12, end_id=-1),
)
invalid(
    T5,
    SIZES,
    must(POSITIVE, **NUMBERS, key_dim=0, hidden_dim=0, num_decoder_heads=0, decoder_hidden_dim=0),
    must(POSITIVE, num_layers="1"),
    must(RATE, dropout=1.5),
    ({"num_buckets": 7}, "`num_buckets` must be …even… Received: num_buckets=7"),
    must("be greater than", max_distance=2),
    must("be", end_id=12),
)
invalid(T5.from_size, {}, must("be one of", name="t6"), name="T5.from_size")
for model in (Transformer, T5):
    invalid(
        model,
        SIZES,
        ({"decoder_relation": None}, "`decoder_relation` must not relate … Received: decoder_relation=Full"),
        must("not relate a token to a later one", decoder_relation=SlidingWindow(2, 1)),
        must("be a Relation", decoder_relation="window", encoder_relation=3),
    )
invalid(
    BERT,
    {**SIZES, "max_length": 9},
    HEADS_DIVIDE,
    must(POSITIVE, num_layers=0, max_length=0, embedding_dim=0, vocabulary_size=None),
    must("not be negative", num_segments=-1),
    must("be in [0, 12)", pad_id=12),
)
invalid(BERT.from_size, {}, must("be one of", name="huge"), name="BERT.from_size")
invalid(
    lambda **inputs: bert()(inputs),
    {},
    ({"token_ids": np.ones((1, 10), int)}, "`token_ids` must be at most max_length=9 long. Received: "),
    name="BERT call",
)
invalid(
    lambda **options: SequenceClassifier(bert(), **options),
    {"num_classes": 2},
    must(POSITIVE, num_classes=0),
    must(POSITIVE, num_classes="3"),
    must("be one of", pooling="max"),
    name="SequenceClassifier",
)
invalid(
    lambda num_classes=3, **options: EncoderDecoderClassifier(
        Transformer(**SIZES, hidden_dim=8), num_classes, **options
    ),
    {},
    must(POSITIVE, num_classes=0),
    must("be one of ('text', 'start')", decoder_input="end"),
    name="EncoderDecoderClassifier",
)
invalid(
    EncoderDecoderClassifier,
    {"num_classes": 3},
    ({"encoder": None}, "`encoder` must be an encoder–decoder … Received: a NoneType"),
    error=TypeError,
)
invalid(
    lambda num_classes: TokenClassifier(bert(), num_classes),
    {},
    must(POSITIVE, num_classes=-1),
    name="TokenClassifier",
)
for make in (Pretraining, functools.partial(SequenceClassifier, num_classes=3)):
    invalid(
        lambda make: make(bert(pooler=False)),
        {"make": make},
        ({}, "`encoder` must have a pooler… Received: an encoder with pooler=False"),
        name="head without pooler",
    )
invalid(
    SequenceClassifier,
    {"num_classes": 3},
    ({"encoder": None}, "`encoder` must be an encoder … Received: a NoneType"),
    error=TypeError,
)
invalid(
    lambda head, core: head(core()),
    {},
    (
        {"head": MaskedLanguageModel, "core": decoder},
        "`encoder` must be an encoder … Received: a GPT",
    ),
    (
        {"head": functools.partial(GPTClassifier, num_classes=3), "core": bert},
        "`decoder` must be a `models.GPT`. Received: a BERT",
    ),
    name="head",
    error=TypeError,
)
invalid(
    lambda pooling, **options: SentenceEncoder(bert(**options), pooling),
    {},
    *[must("be one of", pooling=pooling) for pooling in ("other", ())],
    ({"pooling": ("mean", "other")}, "`pooling` must be one of… Received: pooling='other'"),
    ({"pooling": ("mean", "pooler"), "pooler": False}, "`encoder` must have a pooler… Received: "),
    name="SentenceEncoder",
)
invalid(
    lambda **options: GPTClassifier(decoder(), **options),
    {"num_classes": 2},
    must(POSITIVE, num_classes=0),
    must("be 3", special_ids=(1, 2)),
    must("be 3 different ids", special_ids=(4, 5, 13)),
    ({"special_ids": (0, 5, 6)}, "`special_ids` must be 3 … Received: special_ids=(0, 5, 6) with pad_id=0"),
    must(RATE, dropout=1.0),
    name="GPTClassifier",
)
invalid(
    lambda **options: GPTMultipleChoice(GPT(10, 1, 2, 8, **options)),
    {},
    ({"end_id": 9}, "`special_ids` must be 3 …resize_token_embeddings…end_id=9"),
    name="GPTMultipleChoice",
)
invalid(
    lambda vocabulary_size: decoder().resize_token_embeddings(vocabulary_size),
    {},
    must(POSITIVE, vocabulary_size=0),
    must(POSITIVE, vocabulary_size=12.0),
    ({"vocabulary_size": 1}, "`end_id` must be in [0, 1). Received: end_id=1"),
    name="resize_token_embeddings",
)
ONE, SEVERAL = np.full((2, 6), 5), np.full((2, 2, 6), 5)
OF_SHAPE = "`token_ids` must be integers of shape "
for head, ids, shape in (
    (functools.partial(GPTClassifier, num_classes=3), SEVERAL, "(B, T)"),
    (functools.partial(GPTClassifier, num_classes=3, symmetric=True), ONE, "(B, 2, T)"),
    (GPTMultipleChoice, ONE, "(B, K, T)"),
):
    invalid(
        lambda head, token_ids: head(decoder())(token_ids),
        {"head": head},
        ({"token_ids": ids}, f"{OF_SHAPE}{shape}. Received: …shape=…dtype=int"),
        name=f"head of {shape}",
    )
invalid(
    lambda token_ids: GPTClassifier(decoder(), 3)(token_ids),
    {},
    ({"token_ids": np.full((1, 17), 5)}, "…must be at most max_length=16 long. Received: "),
    name="GPTClassifier call",
)
for make in (
    lambda **options: SequenceClassifier(bert(), **options),
    lambda **options: GPTClassifier(decoder(), **options),
    lambda **options: ViT(8, 4, num_layers=1, num_heads=2, model_dim=8, hidden_dim=16, **options),
):
    invalid(
        make,
        {},
        (
            {"num_classes": 3, "problem_type": "multi_label"},
            "`problem_type` must be one of … Received: problem_type='multi_label'",
        ),
        (
            {"num_classes": 1, "problem_type": "single_label_classification"},
            "`problem_type` must not be … Received: …num_classes=1",
        ),
        ({"num_classes": 0, "problem_type": "regression"}, f"`num_classes` must {POSITIVE}"),
        ({"num_classes": 0}, f"`num_classes` must {POSITIVE}"),
        name="problem type",
    )
invalid(
    lambda **options: Unlimiformer(transformer(), **options),
    {"top_k": 3, "chunk_length": 8, "overlap": 4},
    must(POSITIVE, top_k=0, chunk_length=0),
    ({"overlap": 8}, "`overlap` must be in [0, chunk_length). Received: overlap=8, chunk_length=8"),
    must("be in [0, chunk_length)", overlap=-1),
    name="Unlimiformer",
)

VIT = {
    "image_size": (8, 12),
    "patch_size": 4,
    "num_classes": 3,
    "num_layers": 1,
    "num_heads": 2,
    "model_dim": 8,
}
IMAGES = np.zeros((2, 8, 12, 3), "uint8")
MULTIPLE = "`image_size` must be a multiple of `patch_size`. Received: "
invalid(
    ViT,
    {**VIT, "hidden_dim": 16},
    HEADS_DIVIDE,
    ({"patch_size": 5}, MULTIPLE + "…(8, 12)…5"),
    ({"patch_size": (8, 8)}, MULTIPLE + "…(8, 8)"),
    *[must("be a positive", patch_size=size) for size in (0, (4, 4, 4), (4, "4"))],
    must("be a positive", image_size=(8, 0)),
    must(POSITIVE, num_classes=0),
    must("be one of", pooling="max"),
    ({"positions": "rotary"}, "`kind` must be one of"),
    must("not be negative", window=-1),
    must("be", value_range=(1, 0)),
    (
        {"relation": "causal", "window": 1},
        "`relation` must be None if `window` is passed. Received: relation='causal'",
    ),
)
invalid(
    lambda num_classes, classes_of_encoder: ImageSegmenter(
        ViT(**{**VIT, "hidden_dim": 16, "num_classes": classes_of_encoder}), num_classes
    ),
    {"num_classes": 2, "classes_of_encoder": None},
    must(POSITIVE, num_classes=0),
    ({"classes_of_encoder": 3}, "`encoder` must have no head… Received: a ViT with num_classes=3"),
    name="ImageSegmenter",
)
invalid(ViT.from_size, {}, must("be one of", name="b8"), name="ViT.from_size")
invalid(
    lambda inputs, **options: ViT(**VIT, hidden_dim=16, **options)(inputs),
    {},
    ({"inputs": IMAGES[:, :4]}, "`inputs` must be images …(B, 8, 12, 3); `resized`… Received: …4, 12, 3"),
    ({"inputs": IMAGES[..., :1]}, "`inputs` must be images … Received: …8, 12, 1"),
    ({"inputs": IMAGES[0]}, "`inputs` must be images … Received: …(8, 12, 3)"),
    (
        {"inputs": IMAGES, "value_range": (0, 1)},
        "`inputs` must be floats … Received: inputs.dtype=uint8",
    ),
    name="ViT call",
)

GRAPH = {"num_features": 5, "num_classes": 3}
NODES, EDGES = np.zeros((1, 6, 5), "float32"), np.zeros((1, 5, 2), int)
invalid(
    GAT,
    GRAPH,
    must(POSITIVE, num_features=0, num_classes=0),
    must("be a list", num_heads=()),
    must("be a list", num_heads=8),
    must("be", dropout=1.0, score="gat3"),
)
invalid(
    lambda nodes, **edges: GAT(**GRAPH)({"nodes": nodes, **edges}),
    {"nodes": NODES, "edges": EDGES},
    ({"nodes": NODES[..., :4]}, "`nodes` must be numbers of shape (B, T, 5)… Received: …(1, 6, 4)"),
    ({"nodes": NODES[0]}, "`nodes` must be … Received: …(6, 5)"),
    ({"edges": EDGES[0]}, "`edges` must be … Received: …5, 2"),
    ({"edges": EDGES + 0.5}, "`edges` must be integers. Received: 0.5"),
    name="GAT call",
)
invalid(
    lambda nodes: GAT(**GRAPH)({"nodes": nodes}),
    {},
    ({"nodes": NODES}, "Either `edges` or `adjacency` … Received: neither"),
    name="GAT without edges",
)
invalid(
    lambda **options: GraphClassifier(GAT(**GRAPH), **options),
    {"num_classes": 2},
    must(POSITIVE, num_classes=0),
    must("be one of", pooling="first"),
    must(RATE, dropout=1.0),
    name="GraphClassifier",
)
for head in (
    functools.partial(GraphClassifier, num_classes=2),
    LinkPredictor,
    functools.partial(ImageSegmenter, num_classes=2),
):
    invalid(
        head,
        {},
        ({"encoder": None}, "`encoder` must be a `models.… Received: a NoneType"),
        name="head of nothing",
        error=TypeError,
    )
invalid(
    lambda **pairs: LinkPredictor(GAT(**GRAPH))({"nodes": NODES, "edges": EDGES, **pairs}),
    {},
    ({}, "`inputs` must have ['nodes', 'pairs'] … Received: the keys ['edges', 'nodes']"),
    ({"pairs": EDGES[0]}, "`pairs` must be integers of shape (B, P, 2), B = 1. Received: pairs.shape=(5, 2)"),
    ({"pairs": EDGES + 6}, "`pairs` must be in [0, 6). Received: 6 at index [0, 0, 0]"),
    ({"pairs": EDGES - 1}, "`pairs` must be in [0, 6). Received: -1 at index [0, 0, 0]"),
    name="LinkPredictor call",
)

SPEECH = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 8}
AUDIO, FRAMES = np.zeros((2, 1600), "float32"), np.zeros((2, 9, 5), "float32")
invalid(
    SpeechEncoder,
    SPEECH,
    HEADS_DIVIDE,
    must(POSITIVE, num_layers=0, model_dim=0, hidden_dim=0, num_features=0),
    must(RATE, dropout=1.0),
    must("be a list of positive integers", strides=()),
    must("be odd", kernel_size=4),
    must("be", position_encoding="sine", relation=3, rematerialize="layers"),
    (
        {"num_features": 5, "features": LogMelSpectrogram()},
        "`num_features` must be None for a model with `features`. Received: num_features=5, features=",
    ),
    type_errors=[must("be a layer such as `LogMelSpectrogram`", features="mel")],
)
invalid(
    CTC,
    {"encoder": SpeechEncoder(**SPEECH), "vocabulary_size": 5},
    must(POSITIVE, vocabulary_size=0),
    must(POSITIVE, vocabulary_size=2.5),
    type_errors=[({"encoder": None}, "`encoder` must be a `SpeechEncoder`. Received: a NoneType")],
)
OF_AUDIO = "`audio` must be floats of shape (B, N). Received: audio.shape="
for model in (SpeechEncoder(**SPEECH), CTC(SpeechEncoder(**SPEECH), 5)):
    invalid(
        lambda model, **inputs: model(inputs),
        {"model": model, "audio": AUDIO},
        (
            {"frames": FRAMES},
            "`inputs` must have ['audio'] and may have ['lengths']. Received: the keys ['audio', 'f",
        ),
        ({"audio": AUDIO[0]}, f"{OF_AUDIO}(1600,), dtype=float32"),
        ({"audio": AUDIO[..., None]}, f"{OF_AUDIO}(2, 1600, 1), dtype=float32"),
        ({"audio": AUDIO.astype("int16")}, f"{OF_AUDIO}(2, 1600), dtype=int16"),
        ({"audio": AUDIO + np.nan}, "`audio` must be finite. Received: nan at row 0, column 0"),
        ({"audio": AUDIO - np.inf}, "`audio` must be finite. Received: -inf at row 0, column 0"),
        (
            {"audio": AUDIO[:, :0]},
            "`inputs` must be audio (B, N) of more than … 200 samples. Received: …(2, 0)",
        ),
        (
            {"lengths": np.array([1600])},
            "`lengths` must be integers of shape (B), B = 2. Received: …shape=(1,)",
        ),
        (
            {"lengths": np.full(2, 1.5, "float32")},
            "`lengths` must be integers. Received: 1.5 at row 0",
        ),
        ({"lengths": np.array([-1, 2])}, "`lengths` must be at least 0. Received: -1 at row 0"),
        name=f"{type(model).__name__} call",
    )
invalid(
    lambda frames: SpeechEncoder(**SPEECH, num_features=5)({"frames": frames}),
    {},
    (
        {"frames": FRAMES[..., :4]},
        "`frames` must be floats of shape (B, T, 5)… Received: frames.shape=(2, 9, 4)",
    ),
    ({"frames": FRAMES + np.nan}, "`frames` must be finite. Received: nan at index [0, 0, 0]"),
    name="SpeechEncoder of frames call",
)
WHISPER = {
    "vocabulary_size": 12,
    **SPEECH,
    "max_source_length": 10,
    "max_length": 6,
    "pad_id": 0,
    "start_id": 1,
    "end_id": 2,
}
invalid(
    Whisper,
    WHISPER,
    HEADS_DIVIDE,
    (
        {"num_decoder_heads": 3},
        "`num_decoder_heads` must divide `model_dim`. Received: num_decoder_heads=3, model_dim=8",
    ),
    must(POSITIVE, **NUMBERS, hidden_dim=0, num_decoder_layers=0, num_mels=0),
    must(POSITIVE, num_decoder_heads=0, decoder_hidden_dim=0),
    must(POSITIVE, max_source_length=0, max_length=0),
    ({"model_dim": 9, "num_heads": 3}, "`model_dim` must be even. Received: model_dim=9"),
    must(RATE, dropout=1.0, attention_dropout=1.0, hidden_dropout=-0.1),
    must("be in [0, 12)", pad_id=12, start_id=12, end_id=-1),
    must("be one of", rematerialize="layers"),
)
MELS, TARGETS = np.zeros((2, 20, 80), "float32"), np.ones((2, 3), int)
EITHER = "`inputs` must have either 'audio' or 'frames'. Received: the keys "
invalid(
    lambda **inputs: Whisper(**WHISPER)({"target_ids": TARGETS, **inputs}),
    {},
    ({}, f"{EITHER}['target_ids']"),
    ({"audio": AUDIO, "frames": MELS}, f"{EITHER}['audio', 'frames', 'target_ids']"),
    (
        {"frames": MELS[:, 1:]},
        "`frames` must be floats of shape (B, 20, 80)… Received: frames.shape=(2, 19, 80)",
    ),
    ({"audio": AUDIO + np.nan}, "`audio` must be finite. Received: nan at row 0, column 0"),
    ({"audio": AUDIO.astype("int16")}, "`audio` must be floats of shape (B, N)… Received: …dtype=int16"),
    ({"audio": AUDIO[:1]}, "`audio` must be floats of shape (B, N), B = 2. Received: audio.shape=(1, 1600)"),
    ({"audio": AUDIO, "target_ids": 12 * TARGETS}, "`target_ids` must be in [0, 12). Received: 12 at row 0"),
    (
        {"audio": AUDIO, "target_ids": np.ones((2, 7), int)},
        "`target_ids` must be at most max_length=6 long. Received: ",
    ),
    name="Whisper call",
)
