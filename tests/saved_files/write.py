"""Write a saved file of every model, and a saved pipeline and an export of every pipeline, with random weights.

python tests/saved_files/write.py             # writes files that do not exist
python tests/saved_files/write.py gpt vit     # writes only these

`tests/test_saved_files.py` loads them: every later version reads the files of an earlier one, with equal outputs. An
existing file is never written again.
"""

import pathlib
import sys
import tarfile
import tempfile

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer import layers, models, pipelines, relations

FOLDER = pathlib.Path(__file__).resolve().parent

SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16, "dropout": 0.1}
IDS = np.array([[5, 6, 7, 3, 0], [8, 9, 10, 4, 3], [0, 0, 0, 0, 0]])
PAIRS = {"source_ids": IDS, "target_ids": np.array([[2, 9, 4], [2, 7, 0], [2, 5, 6]])}
SEGMENTS = {"token_ids": IDS, "segment_ids": np.array([[0, 0, 1, 1, 0]] * 3)}
SEQUENCES = np.stack([IDS, IDS[::-1]], axis=1)  # two for each example
random = np.random.default_rng(0)
IMAGES = random.integers(0, 256, (2, 8, 8, 3)).astype("float32")
GRAPHS = {
    "nodes": random.normal(size=(2, 6, 4)).astype("float32"),
    "edges": np.array([[[0, 1], [1, 2], [3, 3], [-1, -1]]] * 2),
}
VECTORS = random.normal(size=(2, 5, 8)).astype("float32")
MEMORY = random.normal(size=(2, 7, 8)).astype("float32")


def gpt(**options):
    return models.GPT(16, **{"max_length": 8, **SIZES, **options})


def llama(**options):
    modern = {"norm": "rms", "activation": "swiglu", "use_bias": False, "position_encoding": "rotary"}
    return gpt(**modern, num_kv_heads=1, **options)


def bert():
    return models.BERT(16, **SIZES, max_length=8)


def transformer(**options):
    return models.Transformer(16, **SIZES, **options)


def t5(**options):
    return models.T5(16, **SIZES, key_dim=4, num_decoder_layers=2, **options)


def quantized(model):
    model.quantize("int8")
    return model


def with_lora(model):
    for block in model.blocks:
        block.self_attention.enable_lora(2)
    return model


def of_layer(layer, *shapes, **options):
    """Return a user's model with a layer of this package on vectors."""
    inputs = [keras.Input(shape) for shape in shapes]
    return keras.Model(inputs if len(inputs) > 1 else inputs[0], layer(*inputs, **options))


def attention(**options):
    return of_layer(layers.MultiHeadAttention(2, 4, **options), (None, 8))


# Functions that create each model, and inputs.
CASES = {
    "transformer": (transformer, PAIRS),
    "transformer post": (lambda: transformer(normalization="post", output_bias=True), PAIRS),
    "gpt": (gpt, IDS),
    "gpt post without padding id": (
        lambda: gpt(normalization="post", pad_id=None),
        {"token_ids": IDS, "padding_mask": IDS != 0},
    ),
    "gpt llama": (llama, IDS),
    "llama": (
        lambda: models.Llama(16, **{**SIZES, "num_layers": 2}, num_kv_heads=1, key_dim=6, pad_id=0),
        IDS,
    ),
    "gpt alibi window": (lambda: gpt(position_encoding="alibi", relation=relations.Strided(2)), IDS),
    "gpt relative bias": (
        lambda: gpt(position_encoding="relative_bias", normalization="sandwich", num_layers=2),
        IDS,
    ),
    "gpt float16": (lambda: gpt(dtype="mixed_float16"), IDS),
    "gpt int8": (lambda: quantized(gpt()), IDS),
    "gpt lora": (lambda: with_lora(gpt()), IDS),
    "gpt trained": (lambda: gpt(position_encoding="relative_bias", dropout=0.0), IDS),
    "transformer trained": (lambda: transformer(num_decoder_layers=2), PAIRS),
    "gpt classifier": (lambda: models.GPTClassifier(gpt(), 2), IDS),
    "gpt pair classifier": (lambda: models.GPTClassifier(gpt(), 2, symmetric=True), SEQUENCES),
    "gpt multiple choice": (lambda: models.GPTMultipleChoice(gpt()), SEQUENCES),
    "bert": (bert, SEGMENTS),
    "bert masked language model": (lambda: models.MaskedLanguageModel(bert()), SEGMENTS),
    "bert pretraining": (lambda: models.Pretraining(bert()), SEGMENTS),
    "bert sequence classifier": (lambda: models.SequenceClassifier(bert(), 3), SEGMENTS),
    "bert token classifier": (lambda: models.TokenClassifier(bert(), 3), SEGMENTS),
    "bert span classifier": (lambda: models.SpanClassifier(bert()), SEGMENTS),
    "bert sentence encoder": (lambda: models.SentenceEncoder(bert(), "first"), SEQUENCES),
    "t5": (t5, PAIRS),
    "t5 v1.1": (lambda: t5(activation="geglu_tanh", tied=False), PAIRS),
    "vit": (lambda: models.ViT(8, 4, num_classes=3, **SIZES), IMAGES),
    "gat": (lambda: models.GAT(4, 3, (2, 1), 4, residual=True), GRAPHS),
    "gatv2": (lambda: models.GAT(4, 3, (2, 1), 4, score="gatv2"), GRAPHS),
    "unlimiformer": (lambda: models.Unlimiformer(transformer(), top_k=2, chunk_length=4), PAIRS),
    "attention rotary": (lambda: attention(position_encoding="rotary", relation="causal"), VECTORS),
    "attention head norm": (lambda: attention(head_norm="rms", position_encoding="rotary"), VECTORS),
    "attention additive": (lambda: attention(score=layers.AdditiveScore()), VECTORS),
    "attention bilinear": (lambda: attention(score=layers.BilinearScore()), VECTORS),
    "attention 2-D positions": (
        lambda: of_layer(layers.Positions2D("learned", (2, 3)), (6, 8)),
        VECTORS[:, :1].repeat(6, axis=1),
    ),
    "encoder block": (
        lambda: of_layer(
            layers.EncoderBlock(
                layers.MultiHeadAttention(2, relation=relations.Strided(2), position_encoding="alibi"),
                layers.FeedForward(16),
            ),
            (None, 8),
        ),
        VECTORS,
    ),
    "decoder block": (
        lambda: of_layer(
            layers.DecoderBlock(
                layers.MultiHeadAttention(
                    2, relation="causal", position_encoding="relative_bias", use_bias=False
                ),
                layers.FeedForward(16, "swiglu", use_bias=False),
                norm="rms",
            ),
            (None, 8),
        ),
        VECTORS,
    ),
    "cross-attention decoder block": (
        lambda: of_layer(
            layers.DecoderBlock(
                layers.MultiHeadAttention(2, relation="causal"),
                layers.FeedForward(16),
                layers.MultiHeadAttention(2),
                normalization="post",
            ),
            (None, 8),
            (None, 8),
        ),
        [VECTORS, MEMORY],
    ),
}

BYTES = kt.text.ByteTokenizer()
PIECES = kt.text.WordPieceTokenizer(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdeghnosu", "##s", "##ou"]
)


def tiny(make, tokenizer=BYTES, **options):
    sizes = {**SIZES, "model_dim": 4, "hidden_dim": 4}
    return randomised(make(tokenizer.vocabulary_size, **sizes, **options))


def encoder(tokenizer=BYTES):
    return tiny(models.BERT, tokenizer, max_length=24)


def translate(generation="greedy", tokenizer=BYTES, **options):
    ids = {name: getattr(tokenizer, name) for name in ("pad_id", "start_id", "end_id")}
    model = tiny(models.Transformer, tokenizer, **ids)
    return pipelines.TextToText(
        model, tokenizer, generation, max_new_tokens=6, max_source_tokens=24, **options
    )


def write_text(generation="greedy", **options):
    model = tiny(models.GPT, max_length=32, pad_id=BYTES.pad_id, end_id=BYTES.end_id)
    return pipelines.TextGeneration(
        model, BYTES, generation, max_new_tokens=6, max_source_tokens=24, **options
    )


def features():
    return layers.LogMelSpectrogram(num_mels=8, sample_rate=1000, window_length=50, hop_length=20)


# Functions that create each pipeline, by the name of its class, with a suffix for others of one class.
PIPELINE_CASES = {
    "TextToText": lambda: translate(
        kt.generation.Beam(2, num_return=2), constraints=[kt.generation.NoRepeatNGram(2)]
    ),
    "TextToText_int8": lambda: translate(long_texts="split"),
    "TextToText_languages": lambda: translate(
        tokenizer=kt.text.MarianT5Tokenizer.from_files(FOLDER.parent / "interop" / "folders" / "NLLB"),
        source_language="spa_Latn",
        target_language="eng_Latn",
    ),
    "TextGeneration": write_text,
    "TextGeneration_sampling": lambda: write_text(
        kt.generation.Sample(temperature=0.8, top_k=20, num_return=2, seed=3),
        constraints=[kt.generation.MinNewTokens(2)],
    ),
    "SpeechToText": lambda: pipelines.SpeechToText(
        randomised(models.CTC(models.SpeechEncoder(**SIZES, features=features()), BYTES.vocabulary_size)),
        BYTES,
        max_seconds=0.5,
    ),
    "SpeechToText_generating": lambda: pipelines.SpeechToText(
        tiny(models.Whisper, max_source_length=20, max_length=8, pad_id=0, start_id=2, end_id=3),
        BYTES,
        max_new_tokens=6,
        max_seconds=0.4,
    ),
    "Reranking": lambda: pipelines.Reranking(
        randomised(models.SequenceClassifier(encoder(PIECES), 1)), PIECES, long_texts="window"
    ),
    "TextClassification": lambda: pipelines.TextClassification(
        randomised(models.SequenceClassifier(encoder(), 3)),
        BYTES,
        labels=["x", "y", "z"],
        long_texts="window",
    ),
    "TokenClassification": lambda: pipelines.TokenClassification(
        randomised(models.TokenClassifier(encoder(), 3)), BYTES
    ),
    "QuestionAnswering": lambda: pipelines.QuestionAnswering(
        randomised(models.SpanClassifier(encoder())), BYTES
    ),
    "FillMask": lambda: pipelines.FillMask(randomised(models.MaskedLanguageModel(encoder(PIECES))), PIECES),
    "Embedding": lambda: pipelines.Embedding(encoder(PIECES), PIECES),
    "ImageClassification": lambda: pipelines.ImageClassification(randomised(CASES["vit"][0]())),
    "NodeClassification": lambda: pipelines.NodeClassification(randomised(CASES["gat"][0]())),
}
# Precisions of exports that are not of float32 alone.
PRECISIONS = {
    "TextClassification": ("float32", "int8"),
    "TextToText_int8": ("float32", "float16", "int8"),
}


def randomised(model):
    """Set every trainable weight, including biases, to random values."""
    random = np.random.default_rng(1)
    for weight in model.trainable_weights:
        weight.assign(random.normal(size=weight.shape) * 0.5)
    return model


def outputs(model, inputs):
    """Return the outputs of a model as float32 arrays."""
    found = keras.tree.flatten(model(inputs, training=False))
    return [keras.ops.convert_to_numpy(keras.ops.cast(output, "float32")) for output in found]


def write_model(name, folder):
    """Write the model of a case, its inputs and its outputs."""
    make, inputs = CASES[name]
    model = make()
    if "int8" not in name:
        randomised(model)
    if "trained" in name:
        model.compile("adam", "mse")
        model.fit(inputs, np.zeros_like(outputs(model, inputs)[0]), verbose=0, shuffle=False)
    model.save(folder / "model.keras")
    arrays = {f"input/{key}": values for key, values in named(inputs).items()}
    arrays |= {f"output/{index}": values for index, values in enumerate(outputs(model, inputs))}
    if getattr(model, "optimizer", None) is not None:
        arrays |= {
            f"optimizer/{variable.path}": np.asarray(variable) for variable in model.optimizer.variables
        }
    np.savez_compressed(folder / "arrays.npz", **arrays)


def write_pipeline(name, folder):
    """Write the saved pipeline and the export of a case."""
    pipeline = PIPELINE_CASES[name]()
    pipeline.save(folder / "pipeline")
    precisions = PRECISIONS.get(name, ("float32",))
    kt.export.bundle(pipeline, folder / "export", precisions=precisions, name="m")


def named(inputs):
    """Return inputs by name, or by index for a list."""
    if isinstance(inputs, list):
        return {str(index): values for index, values in enumerate(inputs)}
    return inputs if isinstance(inputs, dict) else {"0": inputs}


def _anonymous(entry):
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def main(names):
    """Write the archives with these names, or all that do not exist."""
    for name in names or [*CASES, *PIPELINE_CASES]:
        archive = FOLDER / f"{name.replace(' ', '_')}.tar.xz"
        if archive.exists():
            continue
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            (write_pipeline if name in PIPELINE_CASES else write_model)(name, folder)
            with tarfile.open(archive, "w:xz") as tar:
                for part in sorted(folder.iterdir()):
                    tar.add(part, part.name, filter=_anonymous)


if __name__ == "__main__":
    main(sys.argv[1:])
