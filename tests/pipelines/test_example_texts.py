import unicodedata

import pytest

from keras_transformer import models, pipelines, text
from keras_transformer.pipelines.example_texts import accepted_texts, continued_texts, texts_from_vocabulary

SCRIPTS = {
    "Cyrillic": ["старый дом стоит около реки", "зелёные бутылки висят на стене"] * 4,
    "Arabic": ["البيت القديم يقف قرب النهر", "الزجاجات الخضراء معلقة على الجدار"] * 4,
    "Devanagari": ["पुराना मकान नदी के पास खड़ा है", "हरी बोतलें दीवार पर लटकती हैं"] * 4,
    "CJK": ["東京都の古い銀行", "京都府の古い図書館", "東京都の図書館", "京都府の銀行"] * 4,
}
SENTENCES = ["the old house stands near the river", "green bottles hang from every wall"] * 4
TOKENIZERS = {
    "WordPiece": lambda: text.WordPieceTokenizer.train(SENTENCES, 200),
    "SentencePiece": lambda: text.SentencePieceTokenizer.train(SENTENCES, 60, byte_fallback=False),
    "byte pairs": lambda: text.BytePairTokenizer.train(SENTENCES, 500),
}
CLASSES = {
    "WordPiece": (text.WordPieceTokenizer, 300, {}),
    "SentencePiece": (text.SentencePieceTokenizer, 90, {"byte_fallback": False}),
    "byte pairs": (text.BytePairTokenizer, 700, {}),
}


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
def test_the_example_of_a_pipeline_has_whole_words(tokenizer):
    example, *others = texts_from_vocabulary(tokenizer())
    assert example
    assert "##" not in example
    assert {*example.split()} <= {word for sentence in SENTENCES for word in sentence.split()}
    assert len(others) == 25


def test_the_example_of_bytes_is_of_the_vocabulary():
    assert len(texts_from_vocabulary(text.ByteTokenizer())) == 26


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("name", CLASSES)
def test_the_example_is_of_the_script_of_the_vocabulary(name, script):
    class_, size, options = CLASSES[name]
    first = texts_from_vocabulary(class_.train(SCRIPTS[script], size, **options))[0]
    assert len("".join(first.split())) >= 3
    example, sentences = without_accents(first), without_accents(" ".join(SCRIPTS[script]))
    assert {*example} <= {*sentences, " "}
    if script != "CJK":
        assert all(f" {word}" in f" {sentences}" for word in example.split())


def without_accents(string):
    """Return the letters and spaces of a text, as WordPiece reads them."""
    characters = unicodedata.normalize("NFD", string)
    return "".join(character for character in characters if unicodedata.category(character) != "Mn")


def test_the_example_of_a_mask_has_whole_words():
    tokenizer = TOKENIZERS["WordPiece"]()
    encoder = models.BERT(tokenizer.vocabulary_size, 1, 1, 8, max_length=16)
    fill = pipelines.FillMask(models.MaskedLanguageModel(encoder), tokenizer)
    *words, mask, last = fill.example_texts()[0].split()
    assert mask == fill.mask
    assert {*words, last} <= {word for sentence in SENTENCES for word in sentence.split()}
    assert all(fill.mask in text for text in fill.example_texts())


def test_texts_are_generated_without_letters_of_ascii():
    tokenizer = text.SentencePieceTokenizer.train(SCRIPTS["Cyrillic"], 60, byte_fallback=False)
    model = models.GPT(tokenizer.vocabulary_size, 1, 1, 8, end_id=tokenizer.end_id)
    anchor = tokenizer.detokenize([[pipelines.TextGeneration(model, tokenizer).anchor_id]])
    assert anchor.numpy()[0].decode().isalpha()


def test_examples_of_a_language_model_go_on_with_its_own_text():
    tokenizer = TOKENIZERS["SentencePiece"]()
    model = models.GPT(tokenizer.vocabulary_size, 1, 1, 8, max_length=32)
    write = pipelines.TextGeneration(model, tokenizer, "sample", max_new_tokens=4)
    texts, longer = accepted_texts(write), continued_texts(write)
    answers = write.with_settings("greedy")(texts)
    expected = [text + answer for text, answer in zip(texts, answers, strict=True)]
    fits = [not error for error in write.prepared(expected, {}).error.numpy()]
    assert sum(fits) > len(fits) / 2
    assert longer == [both if fit else text for text, both, fit in zip(texts, expected, fits, strict=True)]
    assert longer != texts
