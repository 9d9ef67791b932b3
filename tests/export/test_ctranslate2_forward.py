"""Exports of encoders and of Whisper for CTranslate2: outputs of the pipeline, and what is rejected by name."""

import json
import re

import keras
import numpy as np
import pytest

import keras_transformer_serving as serving
from keras_transformer import export, layers, models, pipelines, relations, text
from keras_transformer.export.to_ctranslate2.heads import head_of
from keras_transformer.export.to_ctranslate2.speech import speech_of
from keras_transformer.generation import BannedWords, MinNewTokens
from keras_transformer_serving.ctranslate2_engines import heads, whisper
from keras_transformer_serving.model import Model
from tests.export.engines import engine_of
from tests.laws import pipelines as rows
from tests.pipelines.test_speech_segments import NO_TIMES, decoded, timed

ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")

TEXTS = ["a b", "", "ñandú ☃", "ab cd ef gh ij"]


def exported(pipeline, folder, precisions=("float32",)):
    return export.bundle(pipeline, folder / "it", targets=["ctranslate2"], precisions=precisions, say=str)


@pytest.mark.slow
def test_a_classifier_is_compared_and_loaded(tmp_path):
    pipeline = rows.classify(labels=rows.LABELS, **rows.WINDOW)
    folder = exported(pipeline, tmp_path)
    report = serving.verify(folder)["ctranslate2"]["graphs"]["forward"]
    assert report["rows"] == 37
    assert 0 < report["largest_difference"] < 1e-5
    served = serving.load(folder, workers=2)
    texts = [*TEXTS, rows.LONG]
    assert served(texts, batch_size=2) == pipeline(texts)
    np.testing.assert_allclose(served.scores(texts), pipeline.scores(texts), atol=1e-5)
    assert [*map(len, (served.engine.inputs, served.engine.outputs))] == [3, 2]
    card = (folder / "README.md").read_text()
    assert "`ctranslate2.Encoder` loads the folder `ctranslate2`" in card
    # CTranslate2 of_row gives the hidden states.
    ids = np.array([[3, 70, 71, 2]])
    plain = ctranslate2.Encoder(str(folder / "ctranslate2"))
    hidden = np.array(plain.forward_batch(ids.tolist(), token_type_ids=[[0] * 4]).last_hidden_state)
    np.testing.assert_allclose(hidden, pipeline.encoder(ids), atol=1e-5)


PADDED = text.ByteTokenizer(special_tokens_in_text=True)
WITH_PADDING = {
    "text": (rows.embed, (["a", "a <pad> b", "b"],)),
    "query": (rows.rerank, (["a", "<pad> b", "b"], ["a", "b", "b"])),
    "context": (rows.answer, (["a", "a", "a"], ["a b", "a <pad>", "b"])),
    "candidate_labels": (rows.zero_shot, (["a", "b", "b"], [["a"], ["a <pad>", "b"], ["b"]])),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_PADDING)
def test_only_the_row_with_the_padding_token_is_rejected(name, tmp_path):
    make, texts = WITH_PADDING[name]
    pipeline = make(PADDED)
    config, engine = engine_of(pipeline, tmp_path)
    tokenizer = serving.tokenizer_of(PADDED.model_bytes, config)
    served = serving.pipelines.pipeline_of(engine, config, tokenizer)
    if name == "candidate_labels":  # the labels are of a call
        found = [served(each, labels, errors="return") for each, labels in zip(*texts, strict=True)]
        expected = [pipeline(each, labels) for each, labels in zip(*texts, strict=True)]
    else:
        found, expected = served(*texts, errors="return"), pipeline(*texts)
    message = (
        f"`{name}` with the padding token needs an engine that hides tokens.*Received: CTranslate2 in {name}"
    )
    assert re.match(message, str(found[1]))
    for row in (0, 2):
        np.testing.assert_allclose(numbers(found[row]), numbers(expected[row]), atol=1e-4)


def numbers(answer):
    """Return the floats of an answer."""
    return [leaf for leaf in keras.tree.flatten(answer) if not isinstance(leaf, str | type(None))]


def test_padding_between_tokens_is_rejected(tmp_path):
    config, engine = engine_of(rows.embed(pooling=["mean", "max"]), tmp_path)
    served = Model(engine, config)
    ids = np.array([[3, 70, 2]])
    expected = served.run(input_ids=ids)
    for mask, row in (([[0, 1, 1]], ids), ([[1, 1, 1]], np.array([[3, served.config["pad_id"], 2]]))):
        with pytest.raises(ValueError, match="`attention_mask` must be 1 for the first tokens of a row"):
            served.run(input_ids=row, attention_mask=mask)
    longer = np.array([[3, 70, 2, 0, 0], [0] * 5, [3, 70, 71, 72, 2]])
    padded = served.run(input_ids=longer, attention_mask=[[1, 1, 1, 0, 0], [0] * 5, [1] * 5])
    np.testing.assert_allclose(padded["pooled"][:1], expected["pooled"], atol=1e-6)
    assert not padded["last_hidden_state"][0, 3:].any()
    for name in ("last_hidden_state", "pooled", "sentence_embedding"):
        assert not padded[name][1].any()
    empty = served.run(input_ids=longer[1:2], attention_mask=[[0] * 5])
    assert not empty["pooled"].any()


ENCODERS = {
    "pre-norm": {"normalization": "pre", "activation": "silu"},
    "sandwich": {"normalization": "sandwich", "activation": "relu"},
    "shared blocks": {"shared_blocks": True, "num_layers": 3},
    "no segments": {"num_segments": 0, "activation": "gelu_tanh"},
    "one segment": {"num_segments": 1, "epsilon": 1e-3},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_equal_the_pipeline(name, tmp_path):
    pipeline = pipelines.Embedding(rows.bert(**ENCODERS[name]), rows.BYTES)
    served = serving.load(exported(pipeline, tmp_path))
    np.testing.assert_allclose(served(TEXTS), pipeline(TEXTS), atol=1e-5)


@pytest.mark.slow
def test_precisions_of_encoders_are_models_of_their_own(tmp_path):
    folder = exported(rows.embed(), tmp_path, None)
    assert {*serving.verify(folder)["ctranslate2"]["precisions"]} == {"float16", "int8"}
    assert len(serving.load(folder, precision="int8", threads=1)(TEXTS)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"constraints": [BannedWords([[65], [66], [200]])]}])
def test_speech_equals_the_pipeline(options, tmp_path):
    pipeline = rows.transcribe("greedy", long_audio="split", **options)
    folder = exported(pipeline, tmp_path, None)
    assert {*serving.verify(folder)["ctranslate2"].get("precisions", {})} <= {"float16", "int8"}
    served, audio = serving.load(folder, workers=2), [*rows.AUDIO, np.tile(rows.AUDIO[0], 3)]
    assert served(audio, batch_size=2) == pipeline(audio)
    assert 'model("speech.wav")' in (folder / "README.md").read_text()
    # CTranslate2 of_row, with tokens for the ids.
    vocabulary = json.loads((folder / "ctranslate2" / "vocabulary.json").read_text())
    assert (vocabulary.index("<|startoftranscript|>"), vocabulary.index("<|notimestamps|>")) == (
        pipeline.model.start_id,
        71,
    )


@pytest.mark.slow
def test_languages_equal_the_pipeline(tmp_path):
    pipeline = rows.transcribe_languages(prefix_ids=[92])
    served, audio = serving.load(exported(pipeline, tmp_path)), [*rows.AUDIO]
    for options in ({}, {"language": ["es", "", "fr"], "task": "translate"}, {"language": "en"}):
        assert served.transcripts(audio, **options) == pipeline.transcripts(audio, **options)


@pytest.mark.slow
def test_timestamps_and_the_text_before_equal_the_pipeline(tmp_path):
    pipeline = timed()
    served, audio = serving.load(exported(pipeline, tmp_path)), [*rows.AUDIO]
    for options in (
        {"timestamps": True},
        {"prompt": "abc"},
        {"prompt": "ab", "timestamps": True, "long_audio": "sequential"},
    ):
        assert served.transcripts(audio, **options) == pipeline.transcripts(audio, **options)
    feed = {"audio": np.zeros((3, 2000), "float32"), "lengths": np.array([2000, 1500, 1000])}
    prompts = [
        [pipeline.model.start_id, NO_TIMES],
        [pipeline.model.start_id],
        [75, 65, pipeline.model.start_id],
    ]
    padded = np.array([prompt + [pipeline.model.pad_id] * (3 - len(prompt)) for prompt in prompts], "int32")
    together = served.engine.run({**feed, "decoder_input_ids": padded})["ids"]
    for row, prompt in enumerate(prompts):
        of_row = {name: values[row : row + 1] for name, values in feed.items()}
        found = served.engine.run({**of_row, "decoder_input_ids": np.array([prompt], "int32")})["ids"]
        np.testing.assert_array_equal(found[0], together[row])


@pytest.mark.slow
def test_ids_after_prompts_equal_calls_of_the_model(tmp_path):
    pipeline = timed()
    model = pipeline.model
    start, end, pad, limit = model.start_id, model.end_id, model.pad_id, pipeline.max_new_tokens
    prompts = [
        [start, NO_TIMES],
        [start, NO_TIMES],
        [start],
        [75, 65, start],
        [start, 70, 72],  # as long as that before
        [75, *range(60, 66), start, NO_TIMES],  # at most 4 ids follow
    ]
    audio = np.tile(rows.AUDIO[:, :2000], (2, 1))
    # The most probable token, unless it is left out, is padding, the start, or a time that is too late for the first.
    probable = decoded(pipeline, audio[0], prompts[0], is_timed=False)[0]
    third = decoded(pipeline, audio[4], prompts[4])[2]
    table = np.array(model.embedding.embedding.embeddings)
    for id_, factor, similar in (
        (pad, 1.4, probable),
        (start, 1.3, probable),
        (NO_TIMES + 9, 1.2, probable),
        (end, 1.2, third),
    ):
        table[id_] = factor * table[similar]
    model.embedding.embedding.embeddings.assign(table)
    found = [
        decoded(pipeline, *each, is_timed=NO_TIMES not in each[1])
        for each in zip(audio, prompts, strict=True)
    ]
    expected = np.full((len(prompts), limit), pad)
    for row, (ids, prompt) in enumerate(zip(found, prompts, strict=True)):
        ids = [*ids, end][: min(limit, model.max_length + 1 - len(prompt))]
        expected[row, : len(ids)] = ids
    _, engine = engine_of(pipeline, tmp_path)
    size = max(map(len, prompts))
    padded = np.array([[*prompt, *[pad] * (size - len(prompt))] for prompt in prompts], "int32")
    lengths = np.full(len(audio), audio.shape[1])
    outputs = engine.run({"audio": audio, "lengths": lengths, "decoder_input_ids": padded})
    np.testing.assert_array_equal(outputs["ids"], expected)
    assert end in expected
    assert len(found[-1]) == 4


def test_features_equal_the_layer():
    pipeline = rows.transcribe("greedy")
    audio = np.random.default_rng(0).normal(0, 0.1, (2, 2000)).astype("float32")
    padded = np.pad(audio, ((0, 0), (0, pipeline.model.max_samples - 2000)))
    expected = keras.ops.convert_to_numpy(pipeline.model.features(padded))
    np.testing.assert_allclose(whisper.log_mel(audio, speech_of(pipeline)), expected, atol=1e-5)
    longer = np.concatenate([padded, audio], axis=1)
    np.testing.assert_allclose(whisper.log_mel(longer, speech_of(pipeline)), expected, atol=1e-5)


POOLINGS = ("mean", "first", "last", "max", "mean_sqrt_length", "weighted_mean", "pooler")
ACTIVATIONS = ("linear", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid")
NORMS = (keras.layers.LayerNormalization, keras.layers.RMSNormalization)
HEADS = {
    "layers": lambda: embed(
        [dense("tanh", use_bias=False), keras.layers.Dropout(0.5), *(norm(epsilon=0.1) for norm in NORMS)],
        pooling=POOLINGS,
    ),
    **{
        f"{pooling}, {activation}": lambda pooling=pooling, activation=activation: embed(
            [dense(activation)], pooling=pooling
        )
        for pooling, activation in zip(POOLINGS, ACTIVATIONS, strict=True)
    },
    "truncated": lambda: embed([dense("tanh")], truncate_dim=3, normalize=True),
    "pooler of a head": lambda: rows.embed(pooling=["pooler", "mean"], normalize=False),
    "labels": lambda: rows.classify(labels=rows.LABELS),
    "labels, mean": lambda: rows.classify(labels=rows.LABELS, pooling="mean"),
    "several labels": rows.several_labels,
    "numbers": lambda: rows.classify(labels=rows.LABELS, problem_type="regression"),
    "scores": rows.rerank,
    "logits as scores": lambda: rows.rerank(activation="linear"),
    "tags": rows.tag,
    "tags after a layer": lambda: tag_after_a_layer(),
    "spans": rows.answer,
    "zero-shot": rows.zero_shot,
    "masks": lambda: rows.fill_mask(rows.word_pieces()),
}


def dense(activation, **options):
    function = layers.feed_forward.activation_function(activation)
    return keras.layers.Dense(4, function, bias_initializer="normal", **options)


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", HEADS)
def test_heads_equal_the_model(name):
    pipeline = HEADS[name]()
    config, encoder = pipeline.export_config(), pipeline.encoder
    random = np.random.default_rng(0)
    ids = random.integers(4, config["vocabulary_size"], (4, 5))
    mask = np.arange(5) < np.array([[5], [3], [1], [0]])
    feed = {"input_ids": np.where(mask, ids, config["pad_id"]), "attention_mask": mask}
    if config["num_segments"] > 1:
        feed["token_type_ids"] = random.integers(0, 2, ids.shape)
    arrays = [feed[tensor.name].astype("int64") for tensor in pipeline.graph_inputs(config)]
    expected = pipeline.forward(pipeline.model_inputs(*map(keras.ops.convert_to_tensor, arrays)))
    hidden = encoder(pipeline.model_inputs(*map(keras.ops.convert_to_tensor, arrays)))
    hidden = np.where(mask[..., None], keras.ops.convert_to_numpy(hidden), 0)
    found = heads.head_outputs(head_of(pipeline), hidden, mask)
    assert found.keys() == expected.keys()
    for output, values in found.items():
        values_of_model = keras.ops.convert_to_numpy(expected[output])
        real = mask if output in ("last_hidden_state", "logits") and values.ndim == 3 else slice(3)
        np.testing.assert_allclose(values[real], values_of_model[real], atol=1e-5, err_msg=output)


def embed(head=(), pooling="mean", truncate_dim=None, normalize=False, **options):
    def model(encoder):
        return models.SentenceEncoder(encoder, pooling, head)

    made = rows.bert(head=model, **options)
    return pipelines.Embedding(made, rows.BYTES, truncate_dim=truncate_dim, normalize=normalize)


def tag_after_a_layer():
    model = rows.bert(head=lambda encoder: models.TokenClassifier(encoder, 3, prediction_head=True))
    return pipelines.TokenClassification(model, rows.BYTES, rows.LABELS)


def with_relu():
    pipeline = rows.transcribe("greedy")
    pipeline.model.activation = keras.activations.relu
    return pipeline


def with_another_epsilon():
    pipeline = rows.embed()
    pipeline.model.embedding_norm.epsilon = 0.5
    return pipeline


UNSUPPORTED = {
    "one epsilon for all norms. Received: .*0.5": with_another_epsilon,
    "the activation gelu. Received: relu": with_relu,
    "a head of dense layers and norms. Received: a BatchNormalization": lambda: embed(
        [keras.layers.BatchNormalization()]
    ),
    "the activation relu, gelu.*Received: elu": lambda: embed([keras.layers.Dense(2, "elu")]),
    "embeddings of the size of the hidden states. Received: embedding_dim=4": lambda: embed(embedding_dim=4),
    "the relation Full": lambda: embed(relation=relations.SlidingWindow(3, 3)),
    "one of Transformer.*Received: a ModernBERT": lambda: pipelines.Embedding(
        models.ModernBERT(rows.BYTES.vocabulary_size, 1, 2, 8, 8, pad_id=rows.BYTES.pad_id), rows.BYTES
    ),
    "one of Transformer.*Received: a GPTClassifier": rows.classify_by_gpt,
    "one of Transformer.*Received: a EncoderDecoderClassifier": rows.classify_by_bart,
    "`generation` must be greedy search for speech in CTranslate2. Received: 'beam'": rows.transcribe,
    "BannedWords of one token each,.*Received: BannedWords of several tokens": lambda: rows.transcribe(
        "greedy", constraints=[BannedWords([[65], [66, 67]])]
    ),
    "BannedWords of one token each,.*Received: MinNewTokens": lambda: rows.transcribe(
        "greedy", constraints=[MinNewTokens(2)]
    ),
    r"`prefix_ids` must end with the id.*Received: prefix_ids=\[\]": lambda: rows.transcribe(
        "greedy", prefix_ids=[]
    ),
    r"`prefix_ids` must end with the id.*Received: prefix_ids=\[70\]": rows.transcribe_languages,
}


@pytest.mark.parametrize("message", UNSUPPORTED)
def test_unsupported_models_are_rejected_before_a_file_is_written(message, tmp_path):
    with pytest.raises(ValueError, match=message):
        exported(UNSUPPORTED[message](), tmp_path)
    assert not [*tmp_path.iterdir()]
