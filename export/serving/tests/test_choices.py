"""Log-probabilities of the tokens of choices, for tokenizers of each kind."""

import io
import types

import numpy as np
import pytest
import sentencepiece
from test_text import tokenizer

import keras_transformer_serving as serving
from keras_transformer_serving.generation import Token
from keras_transformer_serving.server.choices import Choice
from keras_transformer_serving.text.subword import BYTE_CHARACTERS

TEXTS = ["La casa", "aé€😀b", " été  là ", "日本 語", "a", "é"]


def byte_pairs():
    settings = {
        "special_tokens": dict.fromkeys(("start", "end"), "<|end|>"),
        "special_tokens_in_text": False,
        "add_prefix_space": False,
    }
    pieces = ["<|end|>", *BYTE_CHARACTERS, "Ġc", "as", "ĠÃ", "Ã©"]
    # A token may have a whole character and a part of another: the space and the first byte of "é".
    merges = [["Ġ", "c"], ["a", "s"], ["Ġ", "Ã"], ["Ã", "©"]]
    return tokenizer("BytePairTokenizer", vocabulary=pieces, merges=merges, settings=settings)


def llama():
    settings = {
        "special_tokens": {"unknown": "<unk>", "start": "<s>", "end": "</s>"},
        "special_tokens_in_text": False,
        "prepend_scheme": "legacy",
    }
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"acst", "as"]
    return tokenizer("LlamaTokenizer", vocabulary=pieces, merges=[["a", "s"]], settings=settings)


def sentence_piece():
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["la casa", "la casa es"] * 9),
        model_writer=written,
        model_type="bpe",
        vocab_size=275,
        hard_vocab_limit=False,
        byte_fallback=True,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=9,
    )
    return serving.tokenizer_of(written.getvalue(), {"tokenizer_class": "SentencePieceTokenizer"})


def bytes_():
    settings = {"special_tokens": {"pad": "<pad>", "end": "</s>"}, "extra_tokens": ["<x>"]}
    return tokenizer("ByteTokenizer", settings=settings)


@pytest.fixture(
    scope="module", params=[byte_pairs, llama, sentence_piece, bytes_], ids=lambda each: each.__name__
)
def pipeline(request):
    found = request.param()
    engine = types.SimpleNamespace(end_ids=frozenset([found.end_id]))
    return types.SimpleNamespace(tokenizer=found, decode=found.detokenize, engine=engine)


def choice(pipeline, ids, stops=(), top=4):
    """Return the text and the log-probabilities of ids, and the text before each piece with its log-probabilities."""
    size = len(pipeline.tokenizer.pieces)
    logits = np.random.default_rng(0).normal(size=(len(ids), size)).astype("float32")
    tokens = (Token(id_, row) for id_, row in zip(ids, logits, strict=True))
    pieces = [*Choice(pipeline, tokens, stops, len(ids), top)]
    return "".join(text for text, _ in pieces), [each for _, logprobs in pieces for each in logprobs], pieces


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_tokens_join_to_the_text(pipeline, text):
    ids = pipeline.tokenizer.tokenize(text)
    found, logprobs, _ = choice(pipeline, [*ids, pipeline.tokenizer.end_id])
    assert found == text
    assert len(logprobs) == len(ids)
    assert b"".join(each.token.content for each in logprobs) == text.encode()
    for place, each in enumerate(logprobs):
        before = b"".join(other.token.content for other in logprobs[:place])
        assert each.offset == len(before.decode(errors="ignore"))
        try:
            assert each.token.text == each.token.content.decode()
        except UnicodeDecodeError:
            assert each.token.text == "bytes:" + "".join(f"\\x{byte:02x}" for byte in each.token.content)
        assert len(each.top) == 4


def test_tokens_that_texts_are_without_have_their_names(pipeline):
    special = pipeline.tokenizer.end_id
    ids = pipeline.tokenizer.tokenize("a")
    _, logprobs, _ = choice(pipeline, ids, top=len(pipeline.tokenizer.pieces))
    names = {each.text for each in logprobs[0].top if each.content is None}
    assert pipeline.tokenizer.pieces[special] in names
    assert names <= pipeline.tokenizer.special_token_ids.keys()


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_wait_with_the_text_of_stop_strings(pipeline, text):
    ids = pipeline.tokenizer.tokenize(text)
    for start in range(1, len(text)):
        stop = text[start : start + 3]
        found, logprobs, pieces = choice(pipeline, ids, [stop])
        assert found == text[: text.index(stop)]
        contents = [each.token.content for each in logprobs]
        assert b"".join(contents).startswith(found.encode())
        # Only the last token may go on after the end of the text.
        assert len(b"".join(contents[:-1])) < max(len(found.encode()), 1)
        sent = 0
        for piece, of_piece in pieces[:-1]:
            sent += len(piece)
            assert all(each.offset < sent for each in of_piece)
