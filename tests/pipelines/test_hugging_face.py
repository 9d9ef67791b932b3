"""Folders of `transformers`, tokenizer files included, as pipelines."""

import functools
import json

import keras
import numpy as np
import pytest
import sentencepiece

from keras_transformer import generation, interop, pipelines, text
from keras_transformer.interop.assignment import quantize_weights
from keras_transformer.models import (
    BERT,
    GPT,
    T5,
    EncoderDecoderClassifier,
    Gemma,
    Llama,
    MaskedLanguageModel,
    Pretraining,
    SequenceClassifier,
    SpanClassifier,
    TokenClassifier,
    Transformer,
    ViT,
)
from keras_transformer.text.tokenizers import configuration
from tests.random_weights import randomise
from tests.sentence_pieces import T5_IDS, sentence_piece

pytest.importorskip("safetensors")

TEXTS = ["to be or not to be", "la casa azul", "the blue house", "¿dónde está el perro?", "one two"] * 3
SMALL = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16, "dropout": 0.0}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


randomised = functools.partial(randomise, scale=0.7, seed=1)


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def write_t5(folder, size, **options):
    """Write a T5 folder whose model has more embedding rows than the tokenizer has pieces."""
    model = randomised(T5(size, **SMALL, key_dim=4, **options))
    interop.to_hugging_face(model, folder)
    (folder / "spiece.model").write_bytes(sentence_piece(TEXTS, 45, **T5_IDS))
    (folder / "tokenizer_config.json").write_text(json.dumps({"extra_ids": 4}))
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"activation": "geglu_tanh", "tied": False}], ids=["original", "v1.1"]
)
def test_t5_reads_sentinels_and_round_trips(options, tmp_path):
    model = write_t5(tmp_path / "t5", 60, **options)
    found = pipelines.from_hugging_face(tmp_path / "t5", max_new_tokens=4)
    assert type(found) is pipelines.TextToText
    assert found.tokenizer.vocabulary_size == model.vocabulary_size == 60
    sentinel = found.tokenizer.piece_to_id("<extra_id_0>")
    assert sentinel == len(found.tokenizer.vocabulary) - 1 < 60
    ids = found.encode(["one <extra_id_0> two"]).numpy()[0]
    one, two = found.tokenizer.tokenize(["one", "two"]).to_list()
    assert ids.tolist() == [*one, sentinel, *two, model.end_id]
    answers = found(TEXTS[:5])
    found.save(tmp_path / "it")
    assert pipelines.load(tmp_path / "it")(TEXTS[:5]) == answers
    write_t5(tmp_path / "small", 20)
    with pytest.raises(ValueError, match="`vocabulary_size` must be at least "):
        pipelines.from_hugging_face(tmp_path / "small")


@pytest.mark.slow
def test_outputs_follow_the_generation_config_of_the_folder(tmp_path):
    write_t5(tmp_path / "t5", 60)
    settings = {"num_beams": 3, "max_length": 7, "no_repeat_ngram_size": 2, "forced_eos_token_id": 1}
    (tmp_path / "t5" / "generation_config.json").write_text(json.dumps(settings))
    found = pipelines.from_hugging_face(tmp_path / "t5")
    expected = pipelines.TextToText(
        found.model,
        found.tokenizer,
        generation.Beam(3, 1.0, "length", "heuristic"),
        constraints=[generation.NoRepeatNGram(2), generation.ForcedLastToken([1])],
        max_new_tokens=6,
        skip_special_tokens=True,
    )
    assert found.generation_config() == expected.generation_config()
    answers = found(TEXTS[:5])
    assert answers == expected(TEXTS[:5])
    found.save(tmp_path / "it")
    assert pipelines.load(tmp_path / "it")(TEXTS[:5]) == answers
    greedy = pipelines.from_hugging_face(tmp_path / "t5", generation="greedy", max_new_tokens=4)
    assert greedy.sampler == generation.Greedy()
    assert greedy.max_new_tokens == 4
    assert greedy.constraints == found.constraints


@pytest.mark.slow
def test_marian_uses_the_ids_of_its_vocabulary(tmp_path):
    models = sentence_piece(TEXTS[1::2], 45), sentence_piece(TEXTS[::2], 45)
    pieces = set()
    folder = tmp_path / "marian"
    for model in models:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces |= {processor.id_to_piece(id_) for id_ in range(3, processor.vocab_size())}
    vocabulary = {piece: id_ for id_, piece in enumerate(["</s>", "<unk>", *sorted(pieces), "<pad>"])}
    pad_id = vocabulary["<pad>"]
    model = Transformer(
        len(vocabulary), **SMALL, normalization="post", activation="silu", position_layout="halves", output_bias=True,
        epsilon=1e-5,
        pad_id=pad_id, start_id=pad_id, end_id=0,
    )  # fmt: skip
    interop.to_hugging_face(randomised(model), folder)
    for name, content in zip(("source.spm", "target.spm"), models, strict=True):
        (folder / name).write_bytes(content)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    found = pipelines.from_hugging_face(folder, max_new_tokens=4)
    cut = sentencepiece.SentencePieceProcessor(model_proto=models[0]).encode("la casa", out_type=str)
    assert found.encode(["la casa"]).numpy().tolist() == [[*(vocabulary[piece] for piece in cut), 0]]
    best = found.generate(["la casa"]).best[0]
    pieces = [found.tokenizer.id_to_piece(int(id_)) for id_ in best if id_ not in (0, 1, pad_id)]
    assert found("la casa").replace(" ⁇ ", "").strip() == "".join(pieces).replace("\u2581", " ").strip()
    (folder / "vocab.json").write_text(json.dumps({**vocabulary, "more": len(vocabulary)}))
    with pytest.raises(ValueError, match="`vocabulary_size` must be at least"):
        pipelines.from_hugging_face(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "roles", "token", "options"),
    [
        (text.OpenAIGPTTokenizer, ("unknown", "end"), "<unk>", {"normalization": "post"}),
        (text.BytePairTokenizer, ("unknown", "start", "end"), "<|endoftext|>", {}),
    ],
    ids=["gpt", "gpt2"],
)
def test_gpt_continues_a_text(cls, roles, token, options, tmp_path):
    tokenizer = cls.train(TEXTS, 300, special_tokens=dict.fromkeys(roles, token))
    options = {"hidden_dim": 32, **options}
    sizes = {**SMALL, **options}
    model = GPT(
        tokenizer.vocabulary_size, **sizes, max_length=32, pad_id=tokenizer.pad_id, end_id=tokenizer.end_id
    )
    interop.to_hugging_face(randomised(model), tmp_path / "it")
    vocabulary = {piece: id_ for id_, piece in enumerate(tokenizer.vocabulary)}
    (tmp_path / "it" / "vocab.json").write_text(json.dumps(vocabulary))
    merges = "\n".join(["#version: 0.2", *map(" ".join, tokenizer.merges)])
    (tmp_path / "it" / "merges.txt").write_text(merges)
    found = pipelines.from_hugging_face(tmp_path / "it", max_new_tokens=4)
    assert type(found) is pipelines.TextGeneration
    assert found.tokenizer.vocabulary == tokenizer.vocabulary
    assert found.tokenizer.tokenize(TEXTS).to_list() == tokenizer.tokenize(TEXTS).to_list()
    expected = pipelines.TextGeneration(model, tokenizer, max_new_tokens=4)(TEXTS[:3])
    assert found(TEXTS[:3]) == expected
    (tmp_path / "it" / "merges.txt").unlink()
    with pytest.raises(FileNotFoundError, match="must hold tokenizer.json, .* vocab.json and merges.txt"):
        pipelines.from_hugging_face(tmp_path / "it")


def test_an_end_token_after_prompts_is_not_applied_and_named(tmp_path):
    tokenizer = text.BytePairTokenizer.train(TEXTS, 300, special_tokens={"start": "<s>", "end": "</s>"})
    model = GPT(tokenizer.vocabulary_size, **SMALL, max_length=32, pad_id=None, end_id=tokenizer.end_id)
    folder = interop.to_hugging_face(model, tmp_path / "it")
    text.to_hugging_face(tokenizer, folder, add_end=False)
    assert pipelines.from_hugging_face(folder, max_new_tokens=4).add_start
    text.to_hugging_face(tokenizer, folder)
    with pytest.warns(UserWarning, match="puts '</s>' after texts. This is not applied to prompts"):
        pipeline = pipelines.from_hugging_face(folder, max_new_tokens=4)
    rows = pipeline.preprocess(["to be"]).inputs["source_ids"].numpy().tolist()
    assert rows == [[tokenizer.start_id, *tokenizer.tokenize("to be").numpy()]]


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##x", "."]
LABELS = {"0": "no", "1": "yes", "2": "maybe"}
HEADS = {
    "masked": (MaskedLanguageModel, pipelines.FillMask, "a [MASK] c"),
    "pretraining": (Pretraining, pipelines.FillMask, "a [MASK] c"),
    "sequence": (lambda encoder: SequenceClassifier(encoder, 3), pipelines.TextClassification, "a b"),
    "token": (lambda encoder: TokenClassifier(encoder, 3), pipelines.TokenClassification, "a b"),
    "span": (SpanClassifier, pipelines.QuestionAnswering, None),
    "encoder": (lambda encoder: encoder, pipelines.Embedding, "a b"),
}


def write_bert(folder, make=lambda encoder: encoder, pieces=PIECES):
    model = randomised(make(BERT(len(PIECES), **SMALL, max_length=16)))
    interop.to_hugging_face(model, folder)
    change_config(folder, id2label=LABELS)
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return model


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("settings", "expected"),  # the model has 16 positions
    [
        ({"model_max_length": 8, "truncation_side": "left"}, (8, "left")),
        ({"truncation_side": "left"}, (16, "left")),
        ({"model_max_length": 512}, (16, "right")),
        ({"model_max_length": int(1e30)}, (16, "right")),
    ],
)
def test_settings_of_truncation_are_applied_and_written(tmp_path, settings, expected):
    write_bert(tmp_path / "bert", HEADS["sequence"][0])
    (tmp_path / "bert" / "tokenizer_config.json").write_text(json.dumps(settings))
    pipeline = pipelines.from_hugging_face(tmp_path / "bert")
    assert (pipeline.max_length, pipeline.truncation_side) == expected
    pipelines.to_hugging_face(pipeline, tmp_path / "again")
    again = pipelines.from_hugging_face(tmp_path / "again")
    assert (again.max_length, again.truncation_side) == expected
    pipeline = pipelines.from_hugging_face(tmp_path / "bert", max_length=5, truncation_side="right")
    assert (pipeline.max_length, pipeline.truncation_side) == (5, "right")


def test_an_unknown_side_of_truncation_is_rejected(tmp_path):
    write_bert(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"truncation_side": "middle"}))
    with pytest.raises(ValueError, match=r"`truncation_side` in .*json must be one of .*'middle'"):
        pipelines.from_hugging_face(tmp_path)


@pytest.mark.parametrize(
    ("names", "has_segments"),
    [(["input_ids", "attention_mask"], False), (["input_ids", "token_type_ids", "attention_mask"], True)],
)
def test_pairs_have_segments_if_the_tokenizer_gives_them(names, has_segments, tmp_path):
    model = write_bert(tmp_path, HEADS["sequence"][0])
    config = {"tokenizer_class": "BertTokenizer", "model_input_names": names}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    pipeline = pipelines.from_hugging_face(tmp_path)
    inputs = pipeline.preprocess(["a b"], ["c"]).inputs
    segments = inputs["segment_ids"] if has_segments else inputs["segment_ids"] * 0
    expected = model({"token_ids": inputs["token_ids"], "segment_ids": segments})
    np.testing.assert_allclose(pipeline.model(inputs), expected, **CLOSE)


@pytest.mark.parametrize(
    ("name", "has_segments"), [("XLMRobertaTokenizerFast", False), ("BertTokenizer", True)]
)
def test_the_class_of_a_tokenizer_gives_segments(name, has_segments, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    assert configuration.has_segments(tmp_path) == has_segments


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_the_head_of_bert_determines_the_pipeline(name, tmp_path):
    make, pipeline, given = HEADS[name]
    model = write_bert(tmp_path / "bert", make)
    found = pipelines.from_hugging_face(tmp_path / "bert")
    assert type(found) is pipeline
    model = getattr(model, "masked_language_model", model)
    classifies = pipeline in (pipelines.TextClassification, pipelines.TokenClassification)
    expected = pipeline(
        model, text.WordPieceTokenizer(PIECES), **({"labels": list(LABELS.values())} if classifies else {})
    )
    if given is None:
        assert found("a b", "c d") == expected("a b", "c d")
    elif pipeline is pipelines.Embedding:
        np.testing.assert_allclose(found(given), expected(given), **CLOSE)
    else:
        assert repr(found(given)) == repr(expected(given))


@pytest.mark.slow
def test_bart_classifies_pairs_with_the_rows_of_its_tokenizer(tmp_path):
    roles = {"start": "<s>", "pad": "<pad>", "end": "</s>", "unknown": "<unk>", "mask": "<mask>"}
    tokenizer = text.BytePairTokenizer.train(TEXTS, 280, special_tokens=roles)
    bart = Transformer(
        tokenizer.vocabulary_size,
        **SMALL,
        activation="gelu",
        normalization="post",
        epsilon=1e-5,
        position_encoding="learned",
        max_length=32,
        embedding_norm=True,
        scale_embedding=False,
        pad_id=tokenizer.pad_id,
        start_id=tokenizer.end_id,
        end_id=tokenizer.end_id,
    )
    with pytest.raises(
        ValueError, match="must be supported by BartForSequenceClassification.*decoder_input='start'"
    ):
        interop.to_hugging_face(EncoderDecoderClassifier(bart, 3, decoder_input="start"), tmp_path / "bart")
    model = randomised(EncoderDecoderClassifier(bart, 3))
    folder = interop.to_hugging_face(model, tmp_path / "bart")
    change_config(folder, id2label={"0": "contradiction", "1": "neutral", "2": "entailment"})
    vocabulary = {piece: id_ for id_, piece in enumerate(tokenizer.vocabulary)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, tokenizer.merges)]))
    names = {"bos": "start", "eos": "end", "pad": "pad", "unk": "unknown", "mask": "mask"}
    special = {f"{name}_token": roles[role] for name, role in names.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    found = pipelines.from_hugging_face(folder)
    assert type(found) is pipelines.TextClassification
    first, second = (tokenizer.tokenize(each).numpy().tolist() for each in TEXTS[:2])
    end = tokenizer.end_id
    ids = [tokenizer.start_id, *first, end, end, *second, end]
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(model(np.array([ids]))))[0]
    np.testing.assert_allclose(found.probabilities(*TEXTS[:2]), expected, **CLOSE)
    found.save(tmp_path / "saved")
    np.testing.assert_allclose(
        pipelines.load(tmp_path / "saved").probabilities(*TEXTS[:2]), expected, **CLOSE
    )


def test_a_vocabulary_of_the_wrong_size_is_rejected(tmp_path):
    write_bert(tmp_path / "bert", pieces=[*PIECES, "more"])
    with pytest.raises(
        ValueError, match="`vocabulary_size` must be at least 16, .* Received: vocabulary_size=15"
    ):
        pipelines.from_hugging_face(tmp_path / "bert")


IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3)).astype("uint8")
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def write_vit(folder, patch_size=4, **preprocessor):
    model = randomised(ViT(8, patch_size, num_classes=3, **SMALL))
    interop.to_hugging_face(model, folder)
    change_config(folder, id2label=LABELS)
    if preprocessor:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return model


@pytest.mark.slow_variants
@pytest.mark.parametrize("patch_size", [4, (8, 2)])
@pytest.mark.parametrize(
    ("preprocessor", "mean", "deviation"),
    [
        ({}, 0.5, 0.5),
        ({"size": {"height": 8, "width": 8}, "image_mean": MEAN, "image_std": DEVIATION}, MEAN, DEVIATION),
        ({"size": 8, "do_normalize": False}, 0.0, 1.0),
    ],
    ids=["default", "mean and deviation", "neither"],
)
def test_vit_normalizes_images_as_its_preprocessor_does(patch_size, preprocessor, mean, deviation, tmp_path):
    model = write_vit(tmp_path / "vit", patch_size, **preprocessor)
    found = pipelines.from_hugging_face(tmp_path / "vit")
    assert found.labels == list(LABELS.values())
    normalised = (IMAGES / 255 - np.array(mean)) / np.array(deviation)
    logits = model((normalised + 1) * 127.5)  # the model maps to [−1, 1] itself
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
    np.testing.assert_allclose(found.probabilities(IMAGES), expected, rtol=1e-3, atol=1e-5)
    assert found(IMAGES[0]) == list(LABELS.values())[expected[0].argmax()]
    assert found.resize


def test_the_mean_of_images_is_part_of_weights_in_int8(tmp_path):
    write_vit(tmp_path / "vit", size=8, image_mean=MEAN, image_std=DEVIATION)
    found = pipelines.from_hugging_face(tmp_path / "vit", precision="int8").model
    expected = pipelines.from_hugging_face(tmp_path / "vit").model
    quantize_weights(expected)
    for weight, other in zip(found.weights, expected.weights, strict=True):
        assert weight.dtype == other.dtype
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (weight, other)))


@pytest.mark.slow
def test_vit_preprocessors_that_do_not_match_the_model_are_rejected(tmp_path):
    write_vit(tmp_path / "bicubic", resample=3, size=8)
    assert not pipelines.from_hugging_face(tmp_path / "bicubic").resize
    assert pipelines.from_hugging_face(tmp_path / "bicubic", resize=True).resize
    for name, changes in (
        ("size", {"size": 16}),
        ("values", {"do_rescale": False}),
        ("edge", {"size": {"shortest_edge": 8}}),
    ):
        write_vit(tmp_path / name, **changes)
        with pytest.raises(
            ValueError, match=r"must describe images of the model's size \(8, 8\) and values from 0 to 255"
        ):
            pipelines.from_hugging_face(tmp_path / name)
    write_vit(tmp_path / "mean", image_mean=[0.5, 0.4])
    with pytest.raises(
        ValueError, match=r"must have image_mean for each .*Received: image_mean=\[0.5, 0.4\]"
    ):
        pipelines.from_hugging_face(tmp_path / "mean")


def test_unsupported_architectures_are_rejected(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(ValueError, match="must have a model_type among .*Received: model_type='mamba'"):
        pipelines.from_hugging_face(tmp_path)


@pytest.mark.parametrize("kind", [Llama, Gemma])
def test_decoder_only_families_generate_texts_that_end_at_each_end_token(kind, tmp_path):
    tokenizer = text.ByteTokenizer()
    ids = {"pad_id": tokenizer.pad_id, "end_id": tokenizer.end_id}
    model = kind(tokenizer.vocabulary_size, **SMALL, num_kv_heads=1, key_dim=6, **ids)
    folder = interop.to_hugging_face(model, tmp_path / "it")
    change_config(folder, eos_token_id=[tokenizer.end_id, 70])
    pipeline = pipelines.from_hugging_face(folder, tokenizer=tokenizer)
    assert type(pipeline) is pipelines.TextGeneration
    assert pipeline.model.end_id == tokenizer.end_id
    assert pipeline.constraints == (generation.EndTokens([70]),)
