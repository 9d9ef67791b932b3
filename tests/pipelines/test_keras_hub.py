"""Pipelines converted from KerasHub's task models give equal outputs."""

import numpy as np
import pytest

from keras_transformer import export, pipelines
from keras_transformer.pipelines.keras_hub import tokenizer_from_keras_hub
from keras_transformer_serving.text.subword import BYTE_CHARACTERS
from tests.random_weights import randomise
from tests.sentence_pieces import T5_IDS, sentence_piece

hub = pytest.importorskip("keras_hub").models
pytestmark = pytest.mark.filterwarnings(
    "ignore:Layer '.*' .of type T5MultiHeadAttention. was passed:UserWarning"
)

LINES = [
    "the blue house",
    "Where is the dog?",
    "Café con leche!",
    "don't  eat\tbread",
    "日本 the dog",
    "x" * 30,
]
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "blue",
    "house",
    "##s",
    "where",
    "is",
    "dog",
    "?",
    "日",
]
SIZES = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24}


def bert_tokenizer(**options):
    return hub.BertTokenizer(vocabulary=WORDS, lowercase=True, **options)


def byte_pair_tokenizer(name, *specials):
    merges = ["t h", "th e", "Ġ the", "h o", "Ġ d", "o g", "Ġd og"]
    pieces = [*specials, *BYTE_CHARACTERS, *(merge.replace(" ", "") for merge in merges)]
    return getattr(hub, name)(vocabulary={piece: i for i, piece in enumerate(pieces)}, merges=merges)


def t5_tokenizer():
    return hub.T5Tokenizer(proto=sentence_piece(LINES * 3, 60, **T5_IDS))


TOKENIZERS = {
    "GPT-2": lambda: byte_pair_tokenizer("GPT2Tokenizer", "<|endoftext|>"),
    "BERT": bert_tokenizer,
    "RoBERTa": lambda: byte_pair_tokenizer("RobertaTokenizer", "<s>", "<pad>", "</s>", "<mask>"),
    "T5": t5_tokenizer,
}


def randomized(model):
    return randomise(model, scale=0.3, seed=1)


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_and_texts_equal_keras_hub(name):
    hub_tokenizer = TOKENIZERS[name]()
    tokenizer = tokenizer_from_keras_hub(hub_tokenizer)
    found = tokenizer.tokenize(LINES).to_list()
    assert found == [np.asarray(hub_tokenizer(line)).tolist() for line in LINES]
    assert (tokenizer.end_id, tokenizer.vocabulary_size) == (
        hub_tokenizer.end_token_id,
        hub_tokenizer.vocabulary_size(),
    )
    texts = [text.decode() for text in tokenizer.detokenize(found).numpy()]
    assert texts == [str(hub_tokenizer.detokenize(row)) for row in found]


@pytest.mark.slow
def test_special_tokens_are_recognised_in_texts_as_in_keras_hub():
    hub_tokenizer = TOKENIZERS["GPT-2"]()
    tokenizer = tokenizer_from_keras_hub(hub_tokenizer)
    texts = ["the dog<|endoftext|>the", "<|endoftext|>"]
    assert tokenizer.tokenize(texts).to_list() == [np.asarray(hub_tokenizer(text)).tolist() for text in texts]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: None, r"one of KerasHub's classes \['BertTokenizer', .*Received: none"),
        (lambda: hub.BertTokenizer(), "must have a vocabulary"),
        (lambda: bert_tokenizer(sequence_length=8), "sequence_length=None. Received: sequence_length=8"),
        (
            lambda: bert_tokenizer(suffix_indicator="@@"),
            "suffix_indicator='##'. Received: suffix_indicator='@@'",
        ),
    ],
)
def test_unsupported_tokenizers_are_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        tokenizer_from_keras_hub(make())


@pytest.mark.slow
def test_text_classification_equals_keras_hub():
    backbone = hub.BertBackbone(vocabulary_size=len(WORDS), max_sequence_length=16, **SIZES)
    preprocessor = hub.BertTextClassifierPreprocessor(bert_tokenizer(), sequence_length=16)
    hub_model = randomized(hub.BertTextClassifier(backbone, 3, preprocessor, activation="softmax"))
    pipeline = pipelines.from_keras_hub(hub_model, labels=["a", "b", "c"])
    expected = hub_model.predict(LINES[:2], verbose=0)
    np.testing.assert_allclose(pipeline.scores(LINES[:2]), expected, rtol=1e-4, atol=1e-5)
    assert pipeline(LINES[:2]) == ["abc"[row.argmax()] for row in expected]


def gpt2():
    tokenizer = TOKENIZERS["GPT-2"]()
    backbone = hub.GPT2Backbone(vocabulary_size=tokenizer.vocabulary_size(), max_sequence_length=24, **SIZES)
    preprocessor = hub.GPT2CausalLMPreprocessor(tokenizer, sequence_length=12)
    return randomized(hub.GPT2CausalLM(backbone, preprocessor))


def t5():
    tokenizer = t5_tokenizer()
    backbone = hub.T5Backbone(vocabulary_size=tokenizer.vocabulary_size() + 3, **SIZES)
    preprocessor = hub.T5Seq2SeqLMPreprocessor(
        tokenizer, encoder_sequence_length=16, decoder_sequence_length=9
    )
    return randomized(hub.T5Seq2SeqLM(backbone, preprocessor))


@pytest.mark.slow
@pytest.mark.parametrize("make", [gpt2, t5])
def test_greedy_texts_equal_keras_hub(make):
    hub_model = make()
    hub_model.compile(sampler="greedy")
    prompts = ["the dog", "the blue house"]
    if make is gpt2:
        pipeline = pipelines.from_keras_hub(hub_model, max_new_tokens=12)
        assert pipeline.add_start
        expected = [
            text.removeprefix(prompt)
            for text, prompt in zip(hub_model.generate(prompts), prompts, strict=True)
        ]
        found = [text[: len(other)] for text, other in zip(pipeline(prompts), expected, strict=True)]
    else:
        pipeline = pipelines.from_keras_hub(hub_model, max_new_tokens=8)
        inputs = {"encoder_text": prompts, "decoder_text": ["", ""]}
        expected, found = hub_model.generate(inputs), pipeline(prompts)
    assert found == expected
    assert any(expected)


@pytest.mark.slow
def test_fill_mask_supports_the_mask_token_of_roberta():
    tokenizer = TOKENIZERS["RoBERTa"]()
    backbone = hub.RobertaBackbone(
        vocabulary_size=tokenizer.vocabulary_size(), max_sequence_length=24, **SIZES
    )
    hub_model = randomized(hub.RobertaMaskedLM(backbone))
    pipeline = pipelines.from_keras_hub(hub_model, tokenizer)
    assert pipeline.mask == "<mask>"
    (predictions,) = pipeline("the <mask>")
    ids = [
        tokenizer.start_token_id,
        *np.asarray(tokenizer("the ")),
        tokenizer.mask_token_id,
        tokenizer.end_token_id,
    ]
    place = ids.index(tokenizer.mask_token_id)
    inputs = {"token_ids": [ids], "padding_mask": [[1] * len(ids)], "mask_positions": [[place]]}
    logits = np.asarray(hub_model({name: np.array(value) for name, value in inputs.items()}))[0, 0]
    assert predictions[0].piece == tokenizer.id_to_token(int(logits.argmax()))


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1 / 127.5, [0.01, 0.02, 0.03]])
def test_image_classification_scales_images_as_keras_hub_does(scale):
    backbone = hub.ViTBackbone((8, 8, 3), 4, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=24)
    offset = -1 if isinstance(scale, float) else [-1, 0, 0.5]
    converter = hub.ViTImageClassifierPreprocessor.image_converter_cls(scale=scale, offset=offset)
    hub_model = randomized(hub.ViTImageClassifier(backbone, 3, hub.ViTImageClassifierPreprocessor(converter)))
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype("uint8")
    expected = np.exp(hub_model.predict(images, verbose=0))
    pipeline = pipelines.from_keras_hub(hub_model)
    np.testing.assert_allclose(
        pipeline.probabilities(images), expected / expected.sum(axis=-1, keepdims=True), rtol=1e-3, atol=1e-4
    )


@pytest.mark.slow
def test_a_converted_model_is_exported_with_generation(tmp_path, served_without_tensorflow):
    writer = pipelines.from_keras_hub(gpt2(), generation="beam", max_new_tokens=4)
    export.onnx(writer, tmp_path / "it")
    found = served_without_tensorflow(tmp_path / "it", ["the dog"])
    assert found == writer(["the dog"])
