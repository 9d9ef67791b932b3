"""Small tokenizer files, as Hugging Face's libraries write them."""

import json

from keras_transformer.text.tokenizers.byte_pair import BYTE_CHARACTERS

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"helowrdTÜü¿?,!",
    "##e",
    "##l",
    "##o",
    "hel",
    "##lo",
    "\u2028",
]
END = "<|endoftext|>"
MERGES = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo"), ("Ġ", "t")]
GPT2 = {piece: id_ for id_, piece in enumerate([*BYTE_CHARACTERS, *map("".join, MERGES), END])}
OPENAI_PIECES = ["<unk>", *"abc", "a</w>", "b</w>", "c</w>", "ab", "abc</w>", "bc</w>"]
OPENAI_MERGES = [("a", "b"), ("ab", "c</w>"), ("b", "c</w>")]
BERT_JSON = {
    "added_tokens": [{"id": id_, "content": PIECES[id_]} for id_ in range(5)],
    "normalizer": {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": False,
        "lowercase": True,
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {piece: id_ for id_, piece in enumerate(PIECES)},
    },
}
GPT2_JSON = {
    "added_tokens": [{"id": len(GPT2), "content": "<pad>"}],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
    "decoder": {"type": "ByteLevel"},
    "model": {
        "type": "BPE",
        "dropout": None,
        "vocab": GPT2,
        "merges": [" ".join(pair) for pair in MERGES],
    },
}
OPENAI_GPT_JSON = {
    "normalizer": {"type": "BertNormalizer", "lowercase": True, "strip_accents": None},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "model": {
        "type": "BPE",
        "end_of_word_suffix": "</w>",
        "vocab": {piece: id_ for id_, piece in enumerate(OPENAI_PIECES)},
        "merges": [list(pair) for pair in OPENAI_MERGES],
    },
}
UNIGRAM_JSON = {
    "model": {
        "type": "Unigram",
        "unk_id": 2,
        "vocab": [["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["\u2581", -1.0], ["a", -2.0]],
    },
    "added_tokens": [],
}


def write(folder, **contents):
    """Write files, whose names have "_" in place of the dot before the suffix."""
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        stem, _, suffix = name.rpartition("_")
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        (folder / f"{stem}.{suffix}").write_bytes(text.encode() if isinstance(text, str) else text)
    return folder
