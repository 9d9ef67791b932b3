"""The pipelines on which laws are tested: a row for each, with inputs that it accepts and an input that it rejects."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import generation, models, pipelines, text
from keras_transformer.export.parity import outputs

from .cases import randomise

SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}
SEVERAL = "multi_label_classification"
WINDOW = {"long_texts": "window"}
LABELS = ["x", "y", "z"]
LONG = "abcdefghijklmnopqrstuvwxyz" * 2  # too long for every setting except "window"
TEXTS = ["a b", " ñ\u3000☃\n b\u00a0", "", "x", "ab cd ef", "é\u0301 中文 👍🏽", "don't", "a\tb\x1cc"]
LINES = ["the cat sat on the mat", "a dog, an owl: who's there?", "ñandú ☃ 1,000 中文", "naïve café"]
LONGER = [*TEXTS, LONG, "a b cc d e ff g h i j k l mmmmm n o p", LONG * 3]
QUESTIONS = [["a", "", "ab c", "é"], ["b c", " ñ \u2003☃", "x", "a\u3000b"]]
PAIRS = [TEXTS[:5], TEXTS[4::-1]]
MASKED = ["a [MASK] b", "[MASK][MASK]x☃", "c [MASK] d [MASK] ."]
RANDOM = np.random.default_rng(1)
IMAGES = RANDOM.uniform(0, 255, (3, 8, 8, 3)).astype("float32")
AUDIO = RANDOM.normal(0, 0.1, (3, 3000)).astype("float32")
NODES, EDGES = RANDOM.normal(size=(3, 4, 5)).astype("float32"), RANDOM.integers(0, 4, (3, 6, 2))
BYTES = text.ByteTokenizer()


@dataclasses.dataclass(frozen=True)
class PipelineCase:
    """A function that creates a pipeline, rows of each input of a call, and a row that its SavedModel rejects."""

    make: Callable[[], Any]
    columns: Sequence[Any]
    invalid: Sequence[Any]

    @functools.cached_property
    def pipeline(self):
        """The pipeline of all laws, whose graphs are traced once."""
        return self.make()

    @property
    def reads_texts(self):
        """Whether the inputs are texts."""
        return isinstance(self.columns[0], list)


def row(make, *columns, invalid=None, quick=False):
    """Return a case and its markers; by default it rejects a text that is too long."""
    case = PipelineCase(make, columns, invalid or [" ".join(LONG), *["a"] * (len(columns) - 1)])
    return case, [] if quick else [pytest.mark.slow]


@functools.cache
def word_pieces():
    """Return a WordPiece tokenizer of `LINES`."""
    return text.WordPieceTokenizer.train(LINES, 120)


@functools.cache
def byte_pairs():
    """Return a byte pair tokenizer of `LINES`."""
    return text.BytePairTokenizer.train(LINES, 280)


@functools.cache
def roberta_tokenizer():
    """Return a tokenizer as of RoBERTa, with the preceding space in the mask token."""
    roles = {"start": "<s>", "pad": "<pad>", "end": "</s>", "unknown": "<unk>", "mask": "<mask>"}
    trained = text.BytePairTokenizer.train(TEXTS, 300, special_tokens=roles)
    return text.BytePairTokenizer(
        trained.vocabulary, trained.merges, special_tokens=roles, pair_separators=2, lstrip_mask=True
    )


@functools.cache
def masking_byte_pairs():
    """Return a byte pair tokenizer whose special tokens are recognized in texts."""
    roles = {"pad": "<pad>", "unknown": "<unk>", "start": "<s>", "end": "</s>", "mask": "<mask>"}
    return text.BytePairTokenizer.train(LINES, 280, special_tokens=roles, special_tokens_in_text=True)


def bert(tokenizer=BYTES, head=lambda encoder: encoder, **options):
    """Return a random model with high dropout, which pipelines and exports must not apply."""
    options = {**SIZES, "max_length": 40, "dropout": 0.5, "pad_id": tokenizer.pad_id, **options}
    return randomise(head(models.BERT(tokenizer.vocabulary_size, **options)), 1)


def gpt(kind, tokenizer=BYTES, **options):
    """Return a random model with a head on a decoder-only model."""
    ids = {"pad_id": tokenizer.pad_id, "end_id": tokenizer.end_id}
    decoder = models.GPT(tokenizer.vocabulary_size, **SIZES, max_length=40, dropout=0.5, **ids)
    return randomise(kind(decoder.resize_token_embeddings(decoder.vocabulary_size + 3), **options), 1)


def classify(tokenizer=BYTES, num_classes=3, labels=None, long_texts="refuse", num_segments=2, **options):
    """Return a classifier of texts with an encoder."""

    def head(encoder):
        return models.SequenceClassifier(encoder, num_classes, **options)

    model = bert(tokenizer, head, num_segments=num_segments)
    return pipelines.TextClassification(model, tokenizer, labels, long_texts)


def classify_by_gpt(tokenizer=BYTES, long_texts="refuse", **options):
    """Return a classifier of texts with a decoder-only model."""
    model = gpt(models.GPTClassifier, tokenizer, num_classes=3, **options)
    return pipelines.TextClassification(model, tokenizer, LABELS, long_texts)


def several_labels():
    """Return a classifier whose texts have different labels, and different numbers of labels."""
    model = bert(head=lambda encoder: models.SequenceClassifier(encoder, 3, "mean", problem_type=SEVERAL))
    pipeline = pipelines.TextClassification(model, BYTES, LABELS, "window", 0.4)
    probabilities = np.clip(pipeline.scores(LONGER), 1e-6, 1 - 1e-6)
    model.head.bias.assign_sub(np.log(probabilities / (1 - probabilities)).mean(0))
    return pipeline


def classify_by_bart(wrapped=lambda model: model):
    """Return a classifier of texts with an encoder–decoder, or a wrapped one."""
    tokenizer = roberta_tokenizer()
    ids = {"pad_id": tokenizer.pad_id, "start_id": tokenizer.end_id, "end_id": tokenizer.end_id}
    sizes = {**SIZES, "position_encoding": "learned", "max_length": 40, "dropout": 0.5}
    model = wrapped(models.Transformer(tokenizer.vocabulary_size, **sizes, **ids))
    return pipelines.TextClassification(randomise(models.EncoderDecoderClassifier(model, 3), 1), tokenizer)


def rerank(tokenizer=BYTES, num_segments=2, **options):
    """Return a cross-encoder."""

    def head(encoder):
        return models.SequenceClassifier(encoder, 1)

    return pipelines.Reranking(bert(tokenizer, head, num_segments=num_segments), tokenizer, **options)


def zero_shot(tokenizer=BYTES, **options):
    """Return a classifier of entailment that scores labels for texts."""

    def head(encoder):
        return models.SequenceClassifier(encoder, 3)

    labels = ["contradiction", "neutral", "entailment"]
    return pipelines.ZeroShotClassification(bert(tokenizer, head), tokenizer, labels, **options)


def tag(tokenizer=BYTES, **options):
    """Return a classifier of words."""
    model = bert(tokenizer, lambda encoder: models.TokenClassifier(encoder, 3))
    return pipelines.TokenClassification(model, tokenizer, LABELS, **options)


def answer(tokenizer=BYTES, num_segments=2, **options):
    """Return a pipeline that answers questions."""
    model = bert(tokenizer, models.SpanClassifier, num_segments=num_segments)
    return pipelines.QuestionAnswering(model, tokenizer, **options)


def fill_mask(tokenizer, num_segments=2, **options):
    """Return a pipeline that predicts masked tokens."""
    model = bert(tokenizer, models.MaskedLanguageModel, num_segments=num_segments)
    return pipelines.FillMask(model, tokenizer, **options)


def embed(tokenizer=BYTES, **options):
    """Return a pipeline that embeds texts."""
    return pipelines.Embedding(bert(tokenizer), tokenizer, **options)


def embed_with_prompts():
    """Return a pipeline with a head on several poolings, and with prompts."""
    head = [keras.layers.Dense(3, "tanh"), keras.layers.LayerNormalization(epsilon=1e-5)]
    poolings = ("last", "max", "mean_sqrt_length", "weighted_mean")
    model = bert(head=lambda encoder: models.SentenceEncoder(encoder, poolings, head))
    prompts = {"prompts": {"query": "é: ", "none": ""}, "default_prompt_name": "query"}
    return pipelines.Embedding(model, BYTES, long_texts="truncate", max_length=14, **prompts)


def classify_images(num_classes=3, labels=None, patch_size=4, seed=1, **options):
    """Return a classifier of images."""
    model = models.ViT(8, patch_size, num_classes, **SIZES, dropout=0.5, **options)
    return pipelines.ImageClassification(randomise(model, 1, seed), labels)


def classify_nodes():
    """Return a classifier of the nodes of a graph."""
    return pipelines.NodeClassification(randomise(models.GAT(5, 3, (2, 1), head_dim=4, dropout=0.5), 1))


def recognize_speech():
    """Return a recognizer of speech."""
    encoder = models.SpeechEncoder(**SIZES, dropout=0.5)
    return pipelines.SpeechToText(randomise(models.CTC(encoder, BYTES.vocabulary_size), 1), BYTES)


def transcribe(sampler=None, **options):
    """Return a recognizer of speech that generates tokens."""
    ids = {name: getattr(BYTES, name) for name in ("pad_id", "start_id", "end_id")}
    lengths = {"max_source_length": 10, "max_length": 12, "num_mels": 9}
    model = randomise(models.Whisper(BYTES.vocabulary_size, **SIZES, **lengths, **ids), 1)
    options = {"prefix_ids": [70, 71], "max_new_tokens": 6, **options}
    return pipelines.SpeechToText(model, BYTES, sampler or generation.Beam(2), **options)


def transcribe_languages(**options):
    """Return a recognizer of speech of several languages."""
    known = {"languages": {"en": 80, "es": 81, "fr": 79}, "tasks": {"transcribe": 90, "translate": 91}}
    return transcribe("greedy", **{"prefix_ids": [70], **known, **options})


@functools.cache
def sentence_pieces():
    """Return a SentencePiece tokenizer of `LINES`."""
    return text.SentencePieceTokenizer.train(LINES, 300, normalization="identity")


def translate(tokenizer=BYTES, **options):
    """Return a pipeline of an encoder–decoder."""
    ids = {name: getattr(tokenizer, name) for name in ("pad_id", "start_id", "end_id")}
    model = randomise(models.Transformer(tokenizer.vocabulary_size, **SIZES, dropout=0.5, **ids), 1)
    return pipelines.TextToText(model, tokenizer, max_new_tokens=5, max_source_tokens=60, **options)


def write(tokenizer=BYTES, **options):
    """Return a pipeline of a decoder-only model."""
    ids = {"pad_id": tokenizer.pad_id, "end_id": tokenizer.end_id}
    model = randomise(models.GPT(tokenizer.vocabulary_size, **SIZES, max_length=40, dropout=0.5, **ids), 1)
    return pipelines.TextGeneration(model, tokenizer, max_new_tokens=5, **options)


def write_without_padding_id():
    """Return a pipeline as of GPT-2: one special token for start and end, and no padding."""
    roles = dict.fromkeys(("unknown", "start", "end"), "<|endoftext|>")
    tokenizer = text.BytePairTokenizer.train(LINES, 280, special_tokens=roles)
    return write(tokenizer, add_start=True, special_tokens=True)


def result_of(function, *arguments, **options):
    """Return the value of a call, or the type and message of its error."""
    try:
        found = function(*arguments, **options)
    except (TypeError, ValueError) as error:
        return comparable(error)
    return [comparable(each) for each in found] if options.get("errors") == "return" else found


def comparable(value):
    """Return the type and message of an error, and other values unchanged."""
    if not isinstance(value, Exception):
        return value
    message = str(value)
    # Serving does not accept string tensors.
    return type(value), message.replace("a str, a list of str or a string tensor", "strings").split(" (of")[0]


def run_of(pipeline):
    """Return a function that calls the signatures directly; the slow tests export them."""
    found = pipeline.signatures()

    def run(name, inputs):
        tensors = found[name].function(*(tf.constant(values) for values in inputs.values()))
        return {output: outputs._decoded(tensor.numpy()) for output, tensor in tensors.items()}

    return run


INVALID_BYTES = [b"\xff"]
INVALID_AUDIO = [np.full(3000, np.nan, "float32")]
INVALID_IMAGE = [np.full((8, 8, 3), 300, "float32")]
# Pipelines that run their model once on texts.
OF_TEXTS = {
    "text": row(lambda: classify(labels=["x", 1, "z"], **WINDOW), LONGER, invalid=INVALID_BYTES, quick=True),
    "text, refuse": row(lambda: classify(labels=LABELS), TEXTS[:5]),
    "text, one segment": row(lambda: classify(num_segments=1, pooling="mean"), TEXTS[:5]),
    "text, pairs": row(lambda: classify(word_pieces()), *PAIRS),
    "text, pairs, window": row(lambda: classify(byte_pairs(), **WINDOW), LINES, LINES[::-1]),
    "text, several labels": row(several_labels, LONGER, invalid=INVALID_BYTES),
    "text, number": row(
        lambda: classify(word_pieces(), 1, **WINDOW), [*LONGER, *LINES], invalid=INVALID_BYTES
    ),
    "text, RoBERTa, pairs": row(lambda: classify(roberta_tokenizer(), num_segments=1), *PAIRS),
    "text, GPT": row(
        lambda: classify_by_gpt(byte_pairs(), **WINDOW), [*LONGER, *LINES], invalid=INVALID_BYTES
    ),
    "text, GPT, pairs": row(lambda: classify_by_gpt(symmetric=True), TEXTS[:3], TEXTS[2::-1]),
    "text, GPT, numbers": row(lambda: classify_by_gpt(problem_type="regression"), TEXTS[:5]),
    "text, GPT, several labels": row(lambda: classify_by_gpt(problem_type=SEVERAL), TEXTS[:5]),
    "text, BART, pairs": row(classify_by_bart, *PAIRS),
    "text, Unlimiformer": row(
        lambda: classify_by_bart(lambda model: models.Unlimiformer(model, 3, 8)),
        LONGER,
        invalid=INVALID_BYTES,
    ),
    "zero-shot": row(
        lambda: zero_shot(candidate_labels=["hello there", "q"], hypothesis_template="{}!"), TEXTS[:5]
    ),
    "rerank": row(lambda: rerank(num_segments=3, activation="linear"), *PAIRS),
    "rerank, window": row(
        lambda: rerank(**WINDOW),
        [*TEXTS[:5], "abc"],
        ["abc " * 6, *TEXTS[:5]],
        invalid=[INVALID_BYTES[0], "a"],
    ),
    "rerank, RoBERTa": row(
        lambda: rerank(roberta_tokenizer(), 1, activation="linear", long_texts="truncate", max_length=20),
        [*TEXTS, *LINES],
        [*LINES, *TEXTS],
        invalid=[INVALID_BYTES[0], "a"],
    ),
    "token": row(lambda: tag(**WINDOW), LONGER, invalid=INVALID_BYTES),
    "token, WordPiece": row(lambda: tag(word_pieces()), [*TEXTS[:3], *LINES]),
    "span": row(lambda: answer(max_answer_tokens=2, no_answer_threshold=-2.0), *QUESTIONS),
    "span, RoBERTa": row(lambda: answer(roberta_tokenizer(), 1, max_answer_tokens=2), *QUESTIONS),
    "span, window": row(
        lambda: answer(**WINDOW, doc_stride=3), ["a", "b", "ab"], [LONGER[-2], LONG, f"{LONG} {LONG} x"]
    ),
    "fill": row(lambda: fill_mask(word_pieces(), top=3), MASKED, invalid=["[MASK] " * 50]),
    "fill, BPE": row(lambda: fill_mask(masking_byte_pairs(), mask="<mask>"), ["a <mask> b", "<mask>"]),
    "fill, RoBERTa": row(
        lambda: fill_mask(roberta_tokenizer(), 0),
        ["a <mask> b", "<mask>  <mask>x☃", "c\u2003 <mask> d<mask> ."],
    ),
    "embedding": row(embed, TEXTS[:5], quick=True),
    "embedding, window": row(lambda: embed(**WINDOW), LONGER, invalid=INVALID_BYTES),
    "embedding, first, window": row(
        lambda: embed(pooling="first", normalize=False, **WINDOW), LONGER, invalid=INVALID_BYTES
    ),
    "embedding, truncate": row(
        lambda: embed(pooling=("max", "last"), long_texts="truncate", max_length=9),
        [*LONGER, "x" * 7],
        invalid=INVALID_BYTES,
    ),
    "embedding, prompts": row(embed_with_prompts, TEXTS[:5], invalid=INVALID_BYTES),
    "embedding, pooler": row(lambda: embed(byte_pairs(), pooling="pooler"), LINES[2:]),
}
# Pipelines that run their model once.
FORWARD = {
    **OF_TEXTS,
    "image": row(lambda: classify_images(labels=LABELS), IMAGES, invalid=INVALID_IMAGE, quick=True),
    "image, several labels": row(
        lambda: classify_images(labels=LABELS, problem_type=SEVERAL), IMAGES, invalid=INVALID_IMAGE
    ),
    "image, number": row(lambda: classify_images(1, patch_size=(8, 2)), IMAGES, invalid=INVALID_IMAGE),
    "speech": row(recognize_speech, AUDIO, invalid=INVALID_AUDIO),
    "transcription": row(transcribe, AUDIO, invalid=INVALID_AUDIO),
    "nodes": row(classify_nodes, NODES, EDGES, invalid=[NODES[0], EDGES[0] + 9], quick=True),
}
GENERATING = {
    "translation": row(translate, [*TEXTS[:5], *LINES]),
    "generation": row(write, ["a b", "x", "ab cd ef", *LINES], quick=True),
    "generation, no padding id": row(
        write_without_padding_id, ["", "<|endoftext|>", "the<|endoftext|>", "who's there?", "a"]
    ),
}
PIPELINES = {**FORWARD, **GENERATING}
# Pipelines of `FORWARD` that differ by more than their tokenizers, for laws that take seconds for each.
DIFFERENT = {
    name: case
    for name, case in FORWARD.items()
    if not name.endswith(("RoBERTa", "RoBERTa, pairs", "WordPiece", "BPE", "truncate", "pooler"))
}
