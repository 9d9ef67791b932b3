"""Pipelines saved as folders of `transformers`: read again, they have the same settings and answers.

`benchmarks/parity/saved_pipelines.py` compares the folders with the libraries.
"""

import functools
import json

import keras
import numpy as np
import pytest

from keras_transformer import generation, pipelines, text
from keras_transformer.interop.assignment import quantize_weights
from keras_transformer.models import (
    BERT,
    GPT,
    SentenceEncoder,
    SequenceClassifier,
    TokenClassifier,
    ViT,
    Whisper,
)
from keras_transformer_cli import commands
from tests.random_weights import randomise

pytest.importorskip("safetensors")

LINES = ["to be or not to be", "la casa azul", "the blue house", "where is the dog"] * 3
TEXTS = ["the blue dog", "la casa azul", "to be"]
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16, "dropout": 0.0}
ROLES = {"pad": "<pad>", "unknown": "<unk>", "start": "<s>", "end": "</s>"}
LABELS = ["no", "yes", "maybe"]


@pytest.fixture(scope="module")
def words():
    return text.WordPieceTokenizer.train(LINES, 80)


@pytest.fixture(scope="module")
def byte_pairs():
    return text.BytePairTokenizer.train(LINES, 290, special_tokens=ROLES)


randomised = functools.partial(randomise, seed=1)


def bert(words):
    return BERT(words.vocabulary_size, **SIZES, max_length=24)


def saved(pipeline, tmp_path, **options):
    """Return the folder of a pipeline, and the pipeline that is read from it."""
    folder = pipelines.to_hugging_face(pipeline, tmp_path / "folder", **options)
    return folder, pipelines.from_hugging_face(folder)


@pytest.mark.slow_variants
@pytest.mark.parametrize("is_int8", [False, True], ids=["float32", "int8"])
def test_a_classifier_has_its_labels_and_its_tokenizer(words, is_int8, tmp_path):
    model = randomised(SequenceClassifier(bert(words), 3))
    pipeline = pipelines.TextClassification(model, words, LABELS)
    if is_int8:
        quantize_weights(model)
    folder, again = saved(pipeline, tmp_path)
    assert again.labels == LABELS
    np.testing.assert_allclose(again.scores(TEXTS), pipeline.scores(TEXTS), rtol=1e-4, atol=1e-5)
    config = json.loads((folder / "config.json").read_text())
    assert config["label2id"] == {"no": 0, "yes": 1, "maybe": 2}
    of_tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    assert of_tokenizer["model_max_length"] == 24
    assert of_tokenizer["model_input_names"] == ["input_ids", "token_type_ids", "attention_mask"]
    with pytest.raises(FileExistsError):
        pipelines.to_hugging_face(pipeline, folder)


@pytest.mark.slow
def test_labels_that_are_indices_are_not_names(words, tmp_path):
    _, again = saved(pipelines.TokenClassification(TokenClassifier(bert(words), 3), words), tmp_path)
    assert again.labels == [0, 1, 2]


def test_a_chat_has_its_templates_and_all_end_tokens(byte_pairs, tmp_path):
    model = GPT(byte_pairs.vocabulary_size, **SIZES, max_length=48, pad_id=None, end_id=byte_pairs.end_id)
    template = {"default": "{{ bos_token }}d", "tool_use": "{# #}t", "named": {"rag": "{# #}r"}}
    pipeline = pipelines.TextGeneration(
        model,
        byte_pairs,
        generation.Sample(0.7, top_p=0.9, seed=3),
        constraints=[generation.EndTokens([70, 71]), generation.NoRepeatNGram(3)],
        max_new_tokens=9,
        add_start=True,
        chat_template=template,
    )
    folder = pipelines.to_hugging_face(pipeline, tmp_path / "folder")
    config = json.loads((folder / "generation_config.json").read_text())
    assert config["eos_token_id"] == [byte_pairs.end_id, 70, 71]
    with pytest.warns(UserWarning, match="applied to generated tokens, not to the prompt: no_repeat_ngram"):
        again = pipelines.from_hugging_face(folder)
    assert again.sampler == generation.Sample(0.7, top_p=0.9)
    assert (set(again.constraints), again.max_new_tokens) == (set(pipeline.constraints), 9)
    assert again.add_start
    messages = [{"role": "user", "content": "to be"}]
    for options in ({}, {"tools": []}, {"chat_template": "rag"}):
        prompt = pipeline.apply_chat_template(messages, **options)
        assert again.apply_chat_template(messages, **options) == prompt


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "shown"),
    [
        (generation.Contrastive(), "generation="),
        (generation.Beam(2, normalization="gnmt"), "generation={'sampler': 'beam'"),
    ],
    ids=["contrastive", "another normalization"],
)
def test_unsupported_generation_settings_are_rejected(byte_pairs, sampler, shown, tmp_path):
    model = GPT(byte_pairs.vocabulary_size, **SIZES, max_length=48, pad_id=None, end_id=byte_pairs.end_id)
    pipeline = pipelines.TextGeneration(model, byte_pairs, sampler, max_new_tokens=4)
    with pytest.raises(ValueError, match=f"generation_config.json can hold. Received: {shown}"):
        pipelines.to_hugging_face(pipeline, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.slow
def test_an_embedding_has_the_modules_of_sentence_transformers(words, tmp_path):
    head = [
        keras.layers.Dense(5, "tanh", dtype="float32"),
        keras.layers.UnitNormalization(dtype="float32"),
        keras.layers.LayerNormalization(epsilon=1e-5, dtype="float32"),
    ]
    model = randomised(SentenceEncoder(bert(words), ("mean", "first"), head))
    settings = {
        "long_texts": "truncate",
        "max_length": 6,
        "prompts": {"q": "to "},
        "default_prompt_name": "q",
    }
    pipeline = pipelines.Embedding(model, words, **settings)
    folder, again = saved(pipeline, tmp_path)
    assert again.settings() == {**pipeline.settings(), "pooling": ("mean", "first")}
    np.testing.assert_allclose(again(TEXTS), pipeline(TEXTS), rtol=1e-4, atol=1e-5)
    names = [
        module["type"].rpartition(".")[2] for module in json.loads((folder / "modules.json").read_text())
    ]
    assert names == ["Transformer", "Pooling", "Dense", "Normalize", "LayerNorm", "Normalize"]


@pytest.mark.slow
def test_unsupported_modules_are_rejected(words, tmp_path):
    for model, message in (
        (SentenceEncoder(bert(words), "pooler"), "`pooling` must be one of .*pooling='pooler'"),
        (SentenceEncoder(bert(words), "mean", [keras.layers.Dropout(0.1)]), "`head` must have .* a Dropout"),
        (SentenceEncoder(bert(words), "mean", [keras.layers.Dense(3, "elu")]), "`activation` must .*'elu'"),
    ):
        with pytest.raises(ValueError, match=message):
            pipelines.to_hugging_face(pipelines.Embedding(model, words), tmp_path / "folder")


@pytest.mark.slow
def test_a_reranker_is_read_as_a_cross_encoder(words, tmp_path):
    model = randomised(SequenceClassifier(bert(words), 1))
    pipeline = pipelines.Reranking(model, words, "linear", max_length=12)
    _, again = saved(pipeline, tmp_path)
    assert type(again) is pipelines.Reranking
    assert (again.activation, again.max_length) == ("linear", 12)
    np.testing.assert_allclose(again("to be", TEXTS), pipeline("to be", TEXTS), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("resize", [False, True])
def test_images_keep_the_scale_that_the_weights_expect(resize, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3)).astype("uint8")
    pipeline = pipelines.ImageClassification(randomised(ViT(8, 4, num_classes=3, **SIZES)), LABELS, resize)
    folder, again = saved(pipeline, tmp_path)
    assert (again.labels, again.resize) == (LABELS, resize)
    np.testing.assert_allclose(again.scores(images), pipeline.scores(images), rtol=1e-5, atol=1e-6)
    preprocessor = json.loads((folder / "preprocessor_config.json").read_text())
    assert preprocessor["image_mean"] == preprocessor["image_std"] == [0.5] * 3


@pytest.mark.slow
def test_speech_has_its_prefix_and_features(byte_pairs, tmp_path):
    ids = {"pad_id": byte_pairs.pad_id, "start_id": byte_pairs.start_id, "end_id": byte_pairs.end_id}
    model = Whisper(
        byte_pairs.vocabulary_size, **SIZES, max_source_length=50, max_length=12, num_mels=9, **ids
    )
    banned = generation.BannedWords([[40]])
    pipeline = pipelines.SpeechToText(
        randomised(model), byte_pairs, "greedy", prefix_ids=[70, 71], max_new_tokens=6, constraints=[banned]
    )
    folder, again = saved(pipeline, tmp_path)
    assert {**again.settings(), "max_seconds": 1.0} == {**pipeline.settings(), "max_seconds": 1.0}
    preprocessor = json.loads((folder / "preprocessor_config.json").read_text())
    assert {key: preprocessor[key] for key in ("feature_size", "chunk_length", "nb_max_frames")} == {
        "feature_size": 9, "chunk_length": 1, "nb_max_frames": 100,
    }  # fmt: skip


@pytest.mark.slow
def test_the_command_line_writes_the_folder(words, tmp_path, capsys):
    pipeline = pipelines.TextClassification(randomised(SequenceClassifier(bert(words), 3)), words, LABELS)
    pipeline.save(tmp_path / "saved")
    command = ["export", str(tmp_path / "saved"), str(tmp_path / "folder"), "--formats", "transformers"]
    assert commands.main(command) == 0
    again = pipelines.from_hugging_face(tmp_path / "folder")
    assert again.scores(TEXTS).tolist() == pipeline.scores(TEXTS).tolist()
    for more, message in (
        (["onnx"], "`--formats` must be transformers alone"),
        (["--precisions", "int8"], "`--precisions` must be None for the format transformers"),
    ):
        capsys.readouterr()
        assert commands.main([*command, *more]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_files_of_a_tokenizer_are_copied_if_they_give_its_ids(words, tmp_path):
    pipeline = pipelines.TextClassification(randomised(SequenceClassifier(bert(words), 3)), words, LABELS)
    source = tmp_path / "source"
    source.mkdir()
    (source / "vocab.txt").write_text("\n".join(words.vocabulary))
    folder, again = saved(pipeline, tmp_path, tokenizer_folder=source)
    assert not (folder / "tokenizer.json").exists()
    assert again.scores(TEXTS).tolist() == pipeline.scores(TEXTS).tolist()
    (source / "vocab.txt").write_text("\n".join([*words.vocabulary[:5], *words.vocabulary[:4:-1]]))
    with pytest.raises(ValueError, match="must be one with the same ids.*with other pieces"):
        pipelines.to_hugging_face(pipeline, tmp_path / "other", tokenizer_folder=source)
    with pytest.raises(FileNotFoundError):
        pipelines.to_hugging_face(pipeline, tmp_path / "none", tokenizer_folder=tmp_path)


def test_unsupported_tokenizers_leave_no_folder(tmp_path):
    tokenizer = text.SentencePieceTokenizer.train(LINES, 60, byte_fallback=False)
    model = GPT(tokenizer.vocabulary_size, **SIZES, max_length=48, pad_id=0, end_id=tokenizer.end_id)
    pipeline = pipelines.TextGeneration(model, tokenizer, max_new_tokens=4)
    with pytest.raises(ValueError, match="`tokenizer` must be of a class among .*a SentencePieceTokenizer"):
        pipelines.to_hugging_face(pipeline, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
