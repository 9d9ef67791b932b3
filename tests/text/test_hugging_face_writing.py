"""Tokenizers written as `tokenizer.json` give the ids of the `tokenizers` library, special tokens included."""

import functools

import pytest
import sentencepiece

from keras_transformer import text
from keras_transformer.text.pretokenizers.patterns import DIGIT, GPT_2, LLAMA_3, QWEN_2
from tests.sentence_pieces import sentence_piece

tokenizers = pytest.importorskip("tokenizers")

LINES = [
    "to be or not to be",
    "la casa azul",
    "the blue house",
    "¿dónde está el perro?",
    "one two 34 567",
] * 3
TEXTS = [
    "the house, it's 12,345!",
    "  to  be\tor\nnot ",
    "La CASA dónde e\u0301 ½ ﬁ",
    "家 犬 👍🏽 \u200b",
    "be</s> or<mask> not",
    "",
]
ROLES = {"pad": "<pad>", "unknown": "<unk>", "start": "<s>", "end": "</s>", "mask": "<mask>"}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_pairs(**arguments):
    trained = text.BytePairTokenizer.train(LINES, 300, special_tokens=ROLES)
    return trained.with_arguments(special_tokens_in_text=True, **arguments)


def llama(scheme):
    pieces = ["<unk>", "<s>", "</s>", *BYTES, *"\u2581tobe", "\u2581t", "<think>"]
    special = {"unknown": "<unk>", "start": "<s>", "end": "</s>"}
    return text.LlamaTokenizer(
        pieces,
        [("\u2581", "t")],
        prepend_scheme=scheme,
        special_tokens=special,
        special_tokens_in_text=True,
        tokens_in_text=["<think>"],
    )


def unigram(roles, order, **arguments):
    """Return a tokenizer of a SentencePiece model, with `order` before and after its pieces."""
    model = sentence_piece(LINES, 60)
    proto = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [proto.id_to_piece(id_) for id_ in range(3, proto.vocab_size())]
    before, after = order
    return text.MarianT5Tokenizer(
        model,
        [*before, *pieces, *after],
        special_tokens=roles,
        special_tokens_in_text=True,
        **arguments,
    )


CASES = {
    "WordPiece": (
        lambda: text.WordPieceTokenizer.train(LINES, 100, special_tokens_in_text=True),
        {"has_segments": True},
    ),
    "cased WordPiece": (lambda: text.WordPieceTokenizer.train(LINES, 100, lowercase=False, strip_accents=False), {}),
    "GPT-2": (byte_pairs, {"add_end": False}),
    "RoBERTa": (lambda: byte_pairs(pair_separators=2, lstrip_mask=True, add_prefix_space=True), {}),
    "SmolLM": (lambda: byte_pairs(individual_digits=True), {"add_start": False, "add_end": False}),
    "Llama 3": (lambda: byte_pairs(pattern=LLAMA_3, ignore_merges=True), {"add_end": False}),
    "several patterns": (lambda: byte_pairs(pattern=[rf"{DIGIT}+", GPT_2]), {"add_start": False, "add_end": False}),
    "Qwen": (lambda: byte_pairs(pattern=QWEN_2, normalization="NFC"), {"add_start": False, "add_end": False}),
    **{
        f"Llama 2, {scheme}": (functools.partial(llama, scheme), {"add_end": False})
        for scheme in ("legacy", "first", "always", "never")
    },
    "GPT-1": (
        lambda: text.OpenAIGPTTokenizer.train(LINES, 60, special_tokens=dict.fromkeys(("unknown", "end"), "<unk>")),
        {"add_start": False, "add_end": False},
    ),
    "T5": (
        lambda: unigram(
            {"pad": "<pad>", "end": "</s>", "unknown": "<unk>", "start": "<pad>"},
            (["<pad>", "</s>", "<unk>"], ["<extra_id_0>"]), tokens_in_text=["<extra_id_0>"],
        ),
        {"add_start": False},
    ),
    "XLM-R": (
        lambda: unigram(
            ROLES, (["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"]), pair_separators=2, lstrip_mask=True
        ),
        {},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_written_ids_equal_the_tokenizers_library(name, tmp_path):
    make, options = CASES[name]
    tokenizer = make()
    text.to_hugging_face(tokenizer, tmp_path, model_max_length=17, **options)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    rows = {"add_start": True, "add_end": True, **options}
    rows.pop("has_segments", None)
    for line in TEXTS:
        expected = tokenizer.encode(line, **rows, special_tokens=True).numpy().tolist()
        assert library.encode(line).ids == expected, line
    if rows["add_start"] and rows["add_end"]:
        first, second = (tokenizer.tokenize(line).numpy().tolist() for line in TEXTS[:2])
        start, end = tokenizer.start_id, tokenizer.end_id
        pair = [start, *first, *[end] * tokenizer.pair_separators, *second, end]
        assert library.encode(*TEXTS[:2]).ids == pair
    again = text.from_hugging_face(tmp_path, vocabulary_size=tokenizer.vocabulary_size)
    assert again.special_token_ids == tokenizer.special_token_ids
    assert (
        library.decode(again.tokenize("the house").numpy().tolist())
        == again.detokenize(again.tokenize("the house")).numpy().decode()
    )


def test_byte_tokenizers_are_written_as_byt5(tmp_path):
    roles = {"pad": "<pad>", "end": "</s>", "unknown": "<unk>", "start": "<pad>"}
    tokenizer = text.ByteTokenizer(roles, ["<extra_id_0>", "<extra_id_1>"])
    text.to_hugging_face(tokenizer, tmp_path)
    again = text.from_hugging_face(tmp_path)
    assert again.vocabulary == tokenizer.vocabulary
    assert (
        again.encode(TEXTS, add_end=True).numpy().tolist()
        == tokenizer.encode(TEXTS, add_end=True).numpy().tolist()
    )
    with pytest.raises(ValueError, match=r"with the special tokens of ByT5.*Received: \['<pad>', '<unk>'"):
        text.to_hugging_face(text.ByteTokenizer(), tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: text.SentencePieceTokenizer.train(LINES, 60, byte_fallback=False),
            "Received: a SentencePieceTokenizer",
        ),
        (lambda: text.OpenAIGPTTokenizer.train(LINES, 60), "a OpenAIGPTTokenizer with other special tokens"),
        (
            lambda: unigram(ROLES, (["<s>", "<pad>", "</s>", "<unk>"], ["<mask>", "en"]), languages={"en": "en"}),
            "Received: languages=",
        ),
    ],
)  # fmt: skip
def test_unsupported_tokenizers_are_rejected(make, message, tmp_path):
    with pytest.raises(ValueError, match=f"`tokenizer` must be .*for Hugging Face's libraries.*{message}"):
        text.to_hugging_face(make(), tmp_path)
