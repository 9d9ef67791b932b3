import pytest

from keras_transformer import text
from keras_transformer.pipelines.example_texts import texts_from_vocabulary

SENTENCES = ["the old house stands near the river", "green bottles hang from every wall"] * 4
TOKENIZERS = {
    "WordPiece": lambda: text.WordPieceTokenizer.train(SENTENCES, 200),
    "SentencePiece": lambda: text.SentencePieceTokenizer.train(SENTENCES, 60, byte_fallback=False),
    "byte pairs": lambda: text.BytePairTokenizer.train(SENTENCES, 500),
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
