import pathlib
import unicodedata

import numpy as np
import pytest

from keras_transformer import models, pipelines, text
from keras_transformer.pipelines.example_texts import (
    accepted_texts,
    continued_texts,
    given_texts,
    texts_from_vocabulary,
)
from tests.laws.pipelines import (
    answer,
    classify_images,
    embed,
    fill_mask,
    rerank,
    translate,
    word_pieces,
    write,
    zero_shot,
)

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


def test_lines_of_a_file_are_taken_at_equal_distances(tmp_path):
    path, said = tmp_path / "texts.txt", []
    path.write_bytes(b"\xef\xbb\xbf" + b"".join(b"%d\r\n \t\n\n" % number for number in range(127)))
    assert given_texts(translate(), path, said.append) == [str(number) for number in range(0, 127, 2)]
    assert said == [f"texts: 64 of 127 lines of {path}"]
    path.write_text("one\n")
    assert given_texts(write(), path, said.append) == ["one"]


def test_lines_of_pairs_have_tabs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("a b\tc\n\nd\te\n")
    for pipeline in (rerank(), answer()):
        assert given_texts(pipeline, path, str) == [("a b", "c"), ("d", "e")]
    path.write_text("a\tb\nc\n")
    with pytest.raises(ValueError, match=r"`texts` must have 2 texts in each line.*pairs.tsv, line 2: 'c'"):
        given_texts(rerank(), path, str)


@pytest.mark.parametrize("make", [translate, write, embed, zero_shot])
def test_texts_that_are_too_long_are_cut_at_words(make):
    pipeline, said = make(), []
    long, short = "word " * 40, "word word"
    found = given_texts(pipeline, [long, short, "x" * 999], said.append)
    assert found[1] == short
    assert "word" in found[0]
    assert set(found[0].split()) == {"word"}
    assert set(found[2]) == {"x"}
    assert not any(pipeline.example_batch([(text,) for text in found]).error.numpy())
    assert said == ["texts: 2 of 3 are too long, and are cut"]


def test_the_longer_text_of_a_pair_is_cut():
    ((query, passage),) = given_texts(rerank(), [("who barks", "a dog " * 99)], str)
    assert query == "who barks"
    assert passage.startswith("a dog")


@pytest.mark.parametrize(
    ("make", "texts", "error", "message"),
    [
        (translate, "one", TypeError, "`texts` must be a list of texts, or a pathlib.Path of a file"),
        (translate, [], ValueError, "`texts` must be strings"),
        (translate, [5], ValueError, "`texts` must be strings"),
        (rerank, ["one"], ValueError, "`texts` must be pairs of strings"),
        (
            classify_images,
            ["one"],
            ValueError,
            "`texts` must be None for a ImageClassification, which reads no texts",
        ),
        (lambda: fill_mask(word_pieces()), ["a", "no mask"], ValueError, r"mask.* in texts\[0\]$"),
        (
            translate,
            pathlib.Path("none.txt"),
            FileNotFoundError,
            "`texts` must name files that exist.*none.txt",
        ),
    ],
)
def test_invalid_texts_raise(make, texts, error, message):
    with pytest.raises(error, match=message):
        given_texts(make(), texts, str)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "`texts` must have a line that is not blank"),
        (b" \n\n", "`texts` must have a line that is not blank"),
        (b"ok\ncaf\xe9\n", r"`texts` must name UTF-8 files.*line 2 holds b'\\xe9'"),
        ("naïve".encode("utf-16"), "`texts` must name files in UTF-8"),
    ],
)
def test_invalid_files_of_texts_raise(content, message, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        given_texts(translate(), path, str)


def test_graphs_of_zero_shot_classification_are_fitted_to_the_texts():
    pipeline, texts = zero_shot(candidate_labels=["a", "b"]), ["x", "y z"]
    before, after = (pipeline.example_inputs(given)["forward"] for given in (None, texts))
    assert len(after) == len(before) + 1
    expected = pipeline.example_batch([(text,) for text in texts]).inputs
    np.testing.assert_array_equal(after[-1]["input_ids"], expected["token_ids"])
