"""Invalid arguments of pipelines and exports."""

import functools

import numpy as np

from keras_transformer import export, models, pipelines, text
from tests.audio import wav

from .table import InvalidCalls, must

invalid = InvalidCalls()
TOKENIZER = text.ByteTokenizer()
SIZES = {"vocabulary_size": 260, "num_layers": 1, "num_heads": 2, "model_dim": 8}


@functools.cache
def bert():
    """Return a small encoder."""
    return models.BERT(**SIZES, max_length=16)


@functools.cache
def classifier():
    """Return a small text classifier."""
    return models.SequenceClassifier(bert(), 3)


@functools.cache
def spans():
    """Return a small span classifier."""
    return models.SpanClassifier(bert())


@functools.cache
def translator():
    """Return a small encoder-decoder."""
    return models.Transformer(**SIZES, hidden_dim=8)


@functools.cache
def generator():
    """Return a pipeline that generates."""
    gpt = models.GPT(**SIZES, max_length=16)
    return pipelines.TextGeneration(gpt, TOKENIZER, max_new_tokens=2)


invalid(
    lambda texts: generator()(texts),
    {},
    ({"texts": {"a": 1}}, "`texts` must have \"messages\" in each conversation. Received: {'a': 1}"),
    type_errors=[
        must("be a list of strings", texts=5),
        ({"texts": b"ab"}, "`texts` must be a list of strings. Received: texts="),
    ],
    name="TextGeneration call",
)
invalid(
    lambda text: pipelines.TextClassification(classifier(), TOKENIZER)(text),
    {},
    ({"text": {"a": 1}}, "`text` must be a list of strings. Received: text="),
    ({"text": 5}, "`text` must be a list of strings. Received: text="),
    name="TextClassification call",
    error=TypeError,
)


@functools.cache
def reranker():
    """Return a small cross-encoder."""
    return pipelines.Reranking(models.SequenceClassifier(bert(), 1), TOKENIZER)


QUERY = {"query": "a", "text": ["b"]}
invalid(
    lambda query, text: reranker()(query, text),
    QUERY,
    ({"query": ["a", "b"]}, "`query` and `text` must have the same length. Received: 2 and 1 texts"),
    (
        {"text": ["b" * 20]},
        "`text` must have at most 12 tokens each beside its `query`… Received: 20 tokens in text[0]",
    ),
    type_errors=[
        must("be a list of strings", query=None),
        must("be a list of strings", text=None),
        ({"query": ["a", 5], "text": ["b", "c"]}, "`query` must be… Received: query[1]=5"),
        ({"text": ["b", 5]}, "`text` must be… Received: text[1]=5"),
    ],
    name="Reranking call",
)
invalid(
    lambda query, text: reranker().rank(query, text),
    QUERY,
    must("be a string", query=["a"]),
    must("be a list of strings", text="b"),
    name="Reranking.rank",
    error=TypeError,
)
invalid(
    lambda top_k: reranker().rank("a", ["b"], top_k),
    {},
    must("be a positive integer", top_k=0),
    must("be a positive integer", top_k=1.5),
    name="Reranking.rank",
)
invalid(
    lambda activation: pipelines.Reranking(reranker().model, TOKENIZER, activation),
    {},
    must("be one of ('sigmoid', 'linear')", activation="tanh"),
    name="Reranking",
)
invalid(
    lambda: pipelines.Reranking(classifier(), TOKENIZER),
    {},
    ({}, "`model` must have one class. Received: num_classes=3"),
    name="Reranking",
)
invalid(
    lambda pipeline: pipelines.from_hugging_face("never-read", pipeline=pipeline),
    {},
    must("be a class of pipelines", pipeline="Reranking"),
    must("be a class of pipelines", pipeline=models.BERT),
    name="from_hugging_face",
    error=TypeError,
)
for pipeline, model, message in (
    (pipelines.Reranking, bert, "a classifier of texts with one class… Received: a BERT without num_classes"),
    (pipelines.TextClassification, translator, "a classifier… Received: a Transformer without num_classes"),
    (pipelines.TextClassification, bert, "a classifier of texts… Received: a BERT without num_classes"),
    (pipelines.TextClassification, lambda: None, "… Received: a NoneType"),
    (pipelines.TokenClassification, classifier, "a classifier of tokens… Received: a SequenceClassifier"),
    (pipelines.QuestionAnswering, classifier, "a span classifier… Received: a SequenceClassifier"),
):
    invalid(
        lambda pipeline, model: pipeline(model(), TOKENIZER),
        {"pipeline": pipeline},
        ({"model": model}, f"`model` must be {message}"),
        name=pipeline.__name__,
        error=TypeError,
    )
WITHOUT = "Received: a SequenceClassifier without "
for pipeline, message in (
    (pipelines.ImageClassification, f"a classifier of images… {WITHOUT}image_size"),
    (pipelines.NodeClassification, f"a classifier of nodes… {WITHOUT}num_features"),
):
    invalid(
        lambda pipeline: pipeline(classifier()),
        {"pipeline": pipeline},
        ({}, f"`model` must be {message}"),
        name=pipeline.__name__,
        error=TypeError,
    )
for pipeline, model in ((pipelines.TextToText, translator), (pipelines.TextClassification, classifier)):
    invalid(
        lambda pipeline, model, tokenizer: pipeline(model(), tokenizer),
        {"pipeline": pipeline, "model": model},
        must("be one of keras_transformer.text", tokenizer=None),
        name=pipeline.__name__,
        error=TypeError,
    )
invalid(
    lambda labels: pipelines.TextClassification(classifier(), TOKENIZER, labels=labels),
    {},
    must("be a list of strings", labels="abc"),
    name="TextClassification",
    error=TypeError,
)
invalid(
    lambda **options: pipelines.TextToText(translator(), TOKENIZER, **options),
    {},
    must("be at most 1048576", max_new_tokens=10**9),
    must("be a positive integer", max_new_tokens=0),
    must("be positive", max_source_tokens=0),
    ({"generation": "nucleus"}, "`sampler` must be one of… Received: sampler='nucleus'"),
    name="TextToText",
)
invalid(
    lambda batch_size: generator()(["a"], batch_size=batch_size),
    {},
    *[must("be a positive integer", batch_size=size) for size in (0, -1)],
    name="TextGeneration call",
)
invalid(
    lambda labels=("entailment", "other"), **options: pipelines.ZeroShotClassification(
        models.SequenceClassifier(bert(), 2), TOKENIZER, labels, **options
    ),
    {},
    must("name two or more classes, one of which begins with 'entail'", labels=["a", "b"]),
    *[must("be one or more labels, not empty", candidate_labels=each) for each in ([], ["a", ""])],
    ({"hypothesis_template": "a"}, "`hypothesis_template` must have {} once… Received: a"),
    must("be one of ('refuse', 'truncate')", long_texts="window"),
    name="ZeroShotClassification",
)
invalid(
    lambda **options: pipelines.ZeroShotClassification(
        models.SequenceClassifier(bert(), 2), TOKENIZER, ["entailment", "other"]
    )("a", **options),
    {},
    must("be given for a pipeline without this setting", candidate_labels=None),
    name="ZeroShotClassification call",
)
invalid(
    lambda candidate_labels=("a",), **options: pipelines.ZeroShotClassification(
        models.SequenceClassifier(bert(), 2), TOKENIZER, ["entailment", "other"]
    )("a", candidate_labels, **options),
    {},
    ({"candidate_labels": [1]}, "`candidate_labels` must be strings. Received: candidate_labels[0]=1"),
    must("be a string", hypothesis_template=b"{}"),
    must("be True or False", multi_label=1),
    name="ZeroShotClassification call",
    error=TypeError,
)
invalid(
    lambda **options: pipelines.QuestionAnswering(spans(), TOKENIZER, **options),
    {},
    *[must("be a finite number or None", no_answer_threshold=each) for each in ("0", True, float("nan"))],
    *[must("be a positive integer", doc_stride=each) for each in (0, 1.5)],
    name="QuestionAnswering",
)
invalid(
    lambda setting=None, **options: pipelines.QuestionAnswering(
        spans(), TOKENIZER, no_answer_threshold=setting
    )("a", "b", **options),
    {},
    must("be None for a pipeline without this setting, which always answers", no_answer_threshold=0.5),
    must("be a number or None", no_answer_threshold="0"),
    name="QuestionAnswering call without a threshold",
)
invalid(
    lambda **texts: pipelines.QuestionAnswering(spans(), TOKENIZER)(**texts),
    {"question": ["a", "b"]},
    ({"context": ["c"]}, "`question` and `context` must have the same length. Received: 2 and 1"),
    name="QuestionAnswering call",
)
invalid(
    lambda pairs: pipelines.evaluate(generator(), pairs),
    {},
    ({"pairs": ["ab", "cd"]}, "`pairs` must be pairs of strings, (source, target). Received: pairs[0]='ab'"),
    name="evaluate",
)
SAVE = {
    "save": lambda folder: generator().save(folder),
    "export.bundle": lambda folder: export.bundle(generator(), folder),
    "export.onnx": lambda folder: export.onnx(generator(), folder),
}
for name, save in SAVE.items():
    invalid(
        save,
        {},
        must("not be empty", folder=""),
        type_errors=[must("be a path", folder=None)],
        name=name,
    )
invalid(pipelines.load, {}, must("be a path", folder=None), error=TypeError)
invalid(
    lambda **options: export.saved_model(generator(), "never-written", **options),
    {},
    must("be a plain folder name", name=5),
    type_errors=[must("be a list of texts", texts="Hola")],
    name="export.saved_model",
)


SPEECH = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 8}
SAMPLES = np.zeros(1600, "float32")


@functools.cache
def recognizer(num_features=None, vocabulary_size=260):
    """Return a small recognizer of speech."""
    return models.CTC(models.SpeechEncoder(**SPEECH, num_features=num_features), vocabulary_size)


@functools.cache
def whisper():
    """Return a small model of audio that generates."""
    sizes = {**SPEECH, "max_source_length": 10, "max_length": 6}
    return models.Whisper(260, **sizes, pad_id=0, start_id=2, end_id=3)


invalid(
    lambda model=recognizer, tokenizer=TOKENIZER, **options: pipelines.SpeechToText(
        model(), tokenizer, **options
    ),
    {},
    must("be positive", max_seconds=0),
    must("be positive", max_seconds="1"),
    (
        {"model": functools.partial(recognizer, vocabulary_size=7)},
        "`model` and `tokenizer` must have the same vocabulary_size. Received: model.vocabulary_size=7, tok",
    ),
    type_errors=[
        must("be one of keras_transformer.text", tokenizer=None),
        ({"model": bert}, "`model` must be a recognizer of speech, such as `models.CTC`. Received: a BERT"),
        (
            {"model": functools.partial(recognizer, num_features=5)},
            "`model` must read audio rather than frames. Received: model.sample_rate=None",
        ),
    ],
    name="SpeechToText",
)
invalid(
    lambda **options: pipelines.SpeechToText(whisper(), TOKENIZER, **options),
    {"max_new_tokens": 4},
    ({"generation": "sample"}, "`generation` must not sample for speech. Received: generation=Sample("),
    must("be a positive integer", max_new_tokens=0),
    must("be at most 6, the positions of the model after `prefix_ids`", max_new_tokens=7),
    must("be at most 0.2, the model's duration", max_seconds=1.0),
    ({"prefix_ids": [5, 260]}, "`prefix_ids[1]` must be in [0, 260). Received: prefix_ids[1]=260"),
    ({"constraints": [3]}, "`constraints` must contain constraints such as … Received: a list with 3"),
    name="SpeechToText of Whisper",
)
invalid(
    lambda audio=SAMPLES, **options: pipelines.SpeechToText(recognizer(), TOKENIZER)([audio], **options),
    {},
    must("be a positive integer", batch_size=0),
    must("be 'raise' or 'return'", errors="skip"),
    (
        {"audio": wav(SAMPLES, rate=8000)},
        "`audio` must have 16000 samples a second, or resample=True. Received: 8000 in ",
    ),
    ({"audio": wav(SAMPLES, channels=2)}, "`audio` must have one channel. Received: 2 channels in "),
    ({"audio": b""}, "`audio` must be a WAV file of integer samples. Received: 0 bytes, an incomplete file"),
    ({"audio": wav([])}, "`audio` must have samples. Received: none in "),
    ({"audio": SAMPLES[:0]}, "`audio` must have 160 to 480000 samples (30.0 seconds). Received: 0 samples"),
    ({"audio": SAMPLES[None]}, "`audio` must be floats (N,), of one channel. Received: … shape (1, 1600)"),
    ({"audio": SAMPLES + np.nan}, "`audio` must be finite. Received: NaN or infinite samples in audio[0]"),
    ({"audio": SAMPLES.astype("int16")}, "`audio` must be floats, usually from -1 to 1. Received: int16"),
    ({"audio": None}, "`audio` must be floats (N,) or the path of a WAV file. Received: a NoneType"),
    name="SpeechToText call",
)
invalid(
    lambda audio: pipelines.SpeechToText(recognizer(), TOKENIZER)(audio),
    {},
    ({"audio": "missing.wav"}, "[Errno 2] No such file or directory: 'missing.wav'"),
    name="SpeechToText call",
    error=FileNotFoundError,
)
