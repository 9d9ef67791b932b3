"""Configurations of `transformers` in exports, for Optimum; benchmarks/parity/optimum_export.py runs its classes."""

import json

import pytest

from keras_transformer import generation, models
from keras_transformer.export.to_onnx import optimum
from keras_transformer.pipelines import TextClassification, TextGeneration, TextToText
from keras_transformer.pipelines.hugging_face_generation import generation_config_of, settings_from
from keras_transformer.text import SentencePieceTokenizer, WordPieceTokenizer

SENTENCES = ["to be or not to be", "that is the question", "whether it is nobler in the mind"]
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 32}


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(SENTENCES, 60, byte_fallback=False)


def translator(tokenizer, model_class=models.Transformer, sampler="greedy", constraints=(), **options):
    ids = {name: getattr(tokenizer, name) for name in ("pad_id", "start_id", "end_id")}
    model = model_class(tokenizer.vocabulary_size, **SIZES, **ids, **options)
    return TextToText(model, tokenizer, sampler, constraints=constraints, max_new_tokens=9)


def writer(tokenizer, sampler="greedy", constraints=(), **options):
    ids = {"pad_id": tokenizer.pad_id, "end_id": tokenizer.end_id, "max_length": 32}
    model = models.GPT(tokenizer.vocabulary_size, **SIZES, **ids, **options)
    return TextGeneration(model, tokenizer, sampler, constraints=constraints, max_new_tokens=9)


MARIAN = {"normalization": "post", "position_layout": "halves", "output_bias": True, "epsilon": 1e-5}


def test_models_known_to_transformers_have_a_complete_configuration(tokenizer):
    config = optimum.configurations(translator(tokenizer, **MARIAN))["config.json"]
    assert (config["model_type"], config["architectures"]) == ("marian", ["MarianMTModel"])
    assert (config["d_model"], config["encoder_layers"], config["decoder_attention_heads"]) == (16, 1, 2)
    assert (config["pad_token_id"], config["decoder_start_token_id"], config["eos_token_id"]) == (0, 2, 3)


@pytest.mark.parametrize(
    ("make", "model_type", "sizes"),
    [
        (translator, "marian", {"d_model": 16, "encoder_attention_heads": 2, "decoder_start_token_id": 2}),
        (
            lambda tokenizer: writer(tokenizer, norm="rms"),
            "gpt2",
            {"n_embd": 16, "n_head": 2, "eos_token_id": 3},
        ),
    ],
)
def test_other_models_have_sizes_and_ids_but_no_architecture(tokenizer, make, model_type, sizes):
    config = optimum.configurations(make(tokenizer))["config.json"]
    assert config["model_type"] == model_type
    assert "architectures" not in config
    assert "normalize_before" not in config
    assert {name: config[name] for name in sizes} == sizes
    assert config["vocab_size"] == tokenizer.vocabulary_size


def test_classifiers_have_labels_and_no_generation_config():
    tokenizer = WordPieceTokenizer.train(SENTENCES, 60)
    model = models.SequenceClassifier(models.BERT(tokenizer.vocabulary_size, **SIZES, max_length=16), 2)
    configs = optimum.configurations(TextClassification(model, tokenizer, ["bad", "good"]))
    assert set(configs) == {"config.json"}
    config = configs["config.json"]
    assert (config["model_type"], config["architectures"]) == ("bert", ["BertForSequenceClassification"])
    assert config["id2label"] == {"0": "bad", "1": "good"}
    assert config["label2id"] == {"bad": 0, "good": 1}


def test_pipelines_that_optimum_cannot_run_have_no_configuration(tokenizer):
    plain = translator(tokenizer)
    retrieving = models.Unlimiformer(plain.model, top_k=2, chunk_length=8)
    cases = [
        writer(tokenizer, num_kv_heads=1),
        translator(tokenizer, models.T5, key_dim=4),
        plain.with_settings(model=retrieving),
    ]
    assert [optimum.configurations(each) for each in cases] == [None] * 3


SEARCHES = [
    (generation.Greedy(), []),
    (generation.Beam(4, 0.8, "length", early_stopping=True, num_return=2), [generation.MinNewTokens(2)]),
    (generation.Beam(3, 1.0, "length", early_stopping="heuristic"), [generation.ForcedPrefix([7])]),
    (generation.Beam(3, 1.0, "length", early_stopping="num_beams"), [generation.ForcedLastToken([3])]),
    (
        generation.Sample(0.7, 5, 0.9, 0.1, num_return=2),
        [
            generation.RepetitionPenalty(1.2),
            generation.NoRepeatNGram(2),
            generation.BannedWords([[5, 6], [9]]),
            generation.EndTokens([8]),
        ],
    ),
]


@pytest.mark.parametrize(("sampler", "constraints"), SEARCHES, ids=lambda value: type(value).__name__)
def test_the_generation_config_is_read_back_as_the_pipeline_settings(
    tokenizer, tmp_path, sampler, constraints
):
    pipeline = translator(tokenizer, sampler=sampler, constraints=constraints)
    config = generation_config_of(pipeline)
    assert config["suppress_tokens"] == [0, 2]  # the ids of padding and start
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    found = settings_from(tmp_path, pipeline.model, {})
    assert found["generation"] == sampler
    assert set(found["constraints"]) == set(constraints)
    assert found["max_new_tokens"] == 9


@pytest.mark.parametrize(
    "sampler", [generation.Beam(4), generation.Beam(4, diversity=0.5), generation.Contrastive()]
)
def test_settings_unknown_to_transformers_are_omitted(tokenizer, sampler):
    assert generation_config_of(translator(tokenizer, sampler=sampler)) == generation_config_of(
        translator(tokenizer)
    )
