"""Invalid arguments of tokenizers, and files and settings of published tokenizers that are not supported."""

import functools
import json
import pathlib
import shutil

import numpy as np
import tensorflow as tf

from keras_transformer.text import (
    BytePairTokenizer,
    ByteTokenizer,
    LlamaTokenizer,
    MarianT5Tokenizer,
    OpenAIGPTTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
    from_hugging_face,
)
from keras_transformer.text.tokenizers import byte_pair
from tests.text.tokenizer_files import BERT_JSON, GPT2, GPT2_JSON, OPENAI_GPT_JSON, UNIGRAM_JSON, write

from .table import InvalidCalls, must

invalid = InvalidCalls()
FOLDERS = pathlib.Path(__file__).parents[2] / "text" / "folders"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BYTES = [*byte_pair.SPECIAL_TOKENS.values(), *byte_pair.BYTE_CHARACTERS]
PAIRS = ["<unk>", *"abc", "ab", "c</w>", "abc</w>"]
UNKNOWN_AND_END = dict.fromkeys(("unknown", "end"), "<unk>")


def characters(**options):
    """Return a SentencePiece tokenizer whose pieces are characters."""
    return SentencePieceTokenizer.train(["hello world"], 280, "char", **options)


def marian(**options):
    """Return a tokenizer with a separate vocabulary."""
    pieces = ["<pad>", "<unk>", "<s>", "</s>", "h", "e", "l", "o"]
    return MarianT5Tokenizer(characters(byte_fallback=False).model_bytes, pieces, **options)


@functools.cache
def tokenizer(class_):
    """Return a small tokenizer of a class."""
    create = {
        SentencePieceTokenizer: characters,
        WordPieceTokenizer: lambda: WordPieceTokenizer([*SPECIAL, *"abc"]),
        BytePairTokenizer: lambda: BytePairTokenizer(BYTES, []),
        ByteTokenizer: ByteTokenizer,
        OpenAIGPTTokenizer: lambda: OpenAIGPTTokenizer(PAIRS, [("a", "b")], special_tokens=UNKNOWN_AND_END),
        MarianT5Tokenizer: marian,
        LlamaTokenizer: lambda: from_hugging_face(FOLDERS / "Llama_2"),
    }
    return create[class_]()


TEXT = "be a str"
UNICODE = "be text without lone surrogates"
for class_ in (
    SentencePieceTokenizer,
    WordPieceTokenizer,
    BytePairTokenizer,
    ByteTokenizer,
    OpenAIGPTTokenizer,
    MarianT5Tokenizer,
    LlamaTokenizer,
):
    arguments, name = {"class_": class_}, class_.__name__
    invalid(
        lambda class_, id_: tokenizer(class_).id_to_piece(id_),
        arguments,
        *[({"id_": id_}, f"`id` must be in [0, … Received: id={id_}") for id_ in (-1, 100_000)],
        name=f"{name}.id_to_piece",
    )
    invalid(
        lambda class_, text: tokenizer(class_).pieces(text),
        arguments,
        must(TEXT, text=["hello"]),
        name=f"{name}.pieces",
        error=TypeError,
    )
    invalid(
        lambda class_, ids: tokenizer(class_).detokenize(np.array([[4, 4], [4, ids]])),
        arguments,
        *[({"ids": id_}, f"`ids` must be in [0, … Received: ids[1, 1]={id_}") for id_ in (-1, 10_000, 2**40)],
        name=f"{name}.detokenize",
    )
    for method in ("tokenize", "encode"):
        invalid(
            lambda class_, method, texts: getattr(tokenizer(class_), method)(texts),
            {**arguments, "method": method},
            (
                {"texts": ["ok", "a\ud800b"]},
                rf"`texts` must {UNICODE}… Received: texts[1]='a\ud800b', with '\ud800' at",
            ),
            (
                {"texts": [b"ok", b"a\xffb"]},
                r"`texts` must be UTF-8… Received: texts[1]=b'a\xffb', with b'\xff' at byte 1",
            ),
            ({"texts": b"\xff"}, r"`texts` must be UTF-8… Received: texts=b'\xff'"),
            ({"texts": tf.constant([["a"]])}, "`texts` must have a static rank of 0 or 1… Received: "),
            type_errors=[
                *[must(TEXT, texts=texts) for texts in (3, None)],
                ({"texts": ["a", None]}, f"`texts` must {TEXT}… Received: texts[1]=None"),
                ({"texts": ["a", 3]}, f"`texts` must {TEXT}… Received: texts[1]=3"),
                ({"texts": tf.constant([1])}, f"`texts` must {TEXT}… Received: texts=<tf.Tensor"),
            ],
            name=f"{name}.{method}",
        )
invalid(
    lambda ids: tokenizer(SentencePieceTokenizer).detokenize(ids),
    {},
    ({"ids": 5}, "`ids` must have a static rank… Received: "),
    type_errors=[
        ({"ids": ids}, "`ids` must be integers… Received: ")
        for ids in ([[1.5]], [["a"]], tf.ragged.constant([[1.0], []]))
    ],
    name="detokenize",
)
for class_ in (WordPieceTokenizer, BytePairTokenizer, ByteTokenizer, OpenAIGPTTokenizer, MarianT5Tokenizer):
    invalid(
        lambda class_, damage: class_.from_model_bytes(damage(tokenizer(class_).model_bytes)),
        {"class_": class_},
        *[
            ({"damage": damage}, "`model` must be a serialised tokenizer")
            for damage in (lambda model: b"", lambda model: model[:-10], lambda model: b"\xff")
        ],
        *[
            ({"damage": damage}, "`model` must hold … and nothing else")
            for damage in (lambda model: b"{}", lambda model: b"[1]")
        ],
        name=f"{class_.__name__}.from_model_bytes",
    )

for class_ in (WordPieceTokenizer, BytePairTokenizer, OpenAIGPTTokenizer, SentencePieceTokenizer):
    empty = "text that is not empty" if class_ is SentencePieceTokenizer else "word"
    arguments = {"class_": class_, "texts": ["abc def"], "vocabulary_size": 300}
    invalid(
        lambda class_, **options: class_.train(**options),
        arguments,
        ({"texts": ["a", "\ud800"]}, "`texts` must be text… Received: texts[1]"),
        *[
            ({"texts": texts}, f"`texts` must hold at least one {empty}… Received: ")
            for texts in ([], [""], ["", ""])
        ],
        type_errors=[
            ({"texts": "one text"}, "`texts` must be an iterable…pass [text]…pathlib.Path"),
            must("be an iterable", texts=5),
            ({"texts": ["a", 5]}, "`texts` must hold str… Received: texts[1]=5"),
        ],
        name=f"{class_.__name__}.train",
    )
for class_ in (WordPieceTokenizer, BytePairTokenizer, OpenAIGPTTokenizer):
    invalid(
        lambda class_, **options: class_.train(["abc def"], **options),
        {"class_": class_},
        ({"vocabulary_size": 6}, "`vocabulary_size` must be at least … for these texts"),
        must("be a positive integer", vocabulary_size="8k", min_frequency=0),
        name=f"{class_.__name__}.train",
    )
invalid(
    lambda **options: SentencePieceTokenizer.train(["abc def"], **options),
    {},
    *[must("be an integer from 5", vocabulary_size=size) for size in (4, 2**31, "8k")],
    must("be one of", model="wordpiece", normalization="nfd"),
    must("be", character_coverage=0.5),
    (
        {"vocabulary_size": 6, "byte_fallback": False},
        "…at least 11 for these texts: …needs an id. Received: vocabulary_size=6, byte_fallback=False",
    ),
    (
        {"vocabulary_size": 266},
        "…at least 267 for these texts: …256 bytes …vocabulary_size=266, byte_fallback=True",
    ),
    ({"vocabulary_size": 266, "model": "bpe"}, "…at least 267 for these texts"),
    ({"vocabulary_size": 260, "model": "char"}, "…from 261 …256 bytes of `byte_fallback`"),
    ({"vocabulary_size": 260, "model": "word"}, "…from 261 …byte_fallback=True"),
    name="SentencePieceTokenizer.train",
)
invalid(
    lambda lines: SentencePieceTokenizer.train(write(pathlib.Path("texts"), bad_txt=lines) / "bad.txt", 50),
    {},
    ({"lines": b"good\nb\xffd\n"}, r"…bad.txt', whose line 2 holds b'\xff' at byte 1"),
    name="SentencePieceTokenizer.train",
)
invalid(
    lambda file: SentencePieceTokenizer.train([pathlib.Path(file)], 50),
    {},
    ({"file": "none.txt"}, "…none.txt"),
    name="SentencePieceTokenizer.train",
    error=FileNotFoundError,
)
invalid(
    SentencePieceTokenizer,
    {},
    *[({"model": model}, "`model` must be… Received: ") for model in (b"", b"not a model", "path.model")],
)

invalid(
    WordPieceTokenizer,
    {},
    (
        {"vocabulary": [*SPECIAL, "a", "a"]},
        "`vocabulary` must hold each piece once… Received: vocabulary[5]=vocabulary[6]='a'",
    ),
    ({"vocabulary": [*SPECIAL, "a\0"]}, "`vocabulary` must not hold U+0000. Received: … at 5"),
    (
        {"vocabulary": [*SPECIAL[:4], "a"]},
        "`vocabulary` must hold every special token… Received: …without {'mask': ",
    ),
    ({"vocabulary": ["[PAD]"], "special_tokens": {"pad": "[PAD]"}}, "…must have a token for 'unknown'"),
    type_errors=[
        ({"vocabulary": [*SPECIAL, 7]}, "`vocabulary` must hold strings. Received: vocabulary[5]=7")
    ],
)
invalid(
    ByteTokenizer,
    {},
    ({"special_tokens": {"unknown": "<unk>"}}, "`special_tokens` must have a token for 'pad'"),
    (
        {"special_tokens": {"pad": "<pad>"}, "extra_tokens": ["<pad>"]},
        "…vocabulary[0]=vocabulary[257]='<pad>'",
    ),
)
PAIRED = "`merges` must hold pairs of pieces whose concatenation… Received: "
invalid(
    BytePairTokenizer,
    {"merges": []},
    (
        {"vocabulary": [*BYTES[:3], "中"], "special_tokens": {"end": BYTES[2]}},
        "…must hold GPT-2's characters of bytes. Received: 4 pieces without any",
    ),
    ({"vocabulary": BYTES, "merges": [("a", "b")]}, f"{PAIRED}merges[0]=('a', 'b'), with ['ab'] not in"),
    (
        {"vocabulary": [*BYTES, "ab"], "merges": [("a", "b"), ("ab", "zz")]},
        f"{PAIRED}merges[1]=('ab', 'zz'), with ['zz', 'abzz']",
    ),
    ({"vocabulary": [*BYTES, "ab"], "merges": [("a", "b", "")]}, f"{PAIRED}merges[0]=('a', 'b', '')"),
)
invalid(
    OpenAIGPTTokenizer,
    {"vocabulary": PAIRS, "special_tokens": UNKNOWN_AND_END},
    ({"merges": [("c", "a")]}, PAIRED),
    ({"merges": [], "special_tokens": {"pad": "<unk>"}}, "`special_tokens` must have a token for 'unknown'"),
)
invalid(
    lambda **options: marian(**options),
    {},
    ({"tokens_in_text": ["<x>"]}, "`tokens_in_text` must be in the vocabulary. Received: ['<x>']"),
    must("be one of", place_in_text="end"),
    must("not be negative", unused=-1),
    ({"special_tokens": {"pad": "<pad>"}}, "`special_tokens` must have a token for 'unknown'"),
    ({"special_tokens": {"unknown": "<unk>"}}, "`special_tokens` must have a token for 'pad'"),
    name="MarianT5Tokenizer",
)
invalid(
    lambda **options: ByteTokenizer({"pad": "<pad>"}).encode(["a"], **options),
    {},
    must("be False", add_start=True, add_end=True),
    name="encode",
)
invalid(
    lambda tokens=None, **texts: WordPieceTokenizer(
        [*SPECIAL, "a"], **({"special_tokens": tokens} if tokens else {})
    ).encode_pairs(**texts),
    {"first": ["a"], "second": ["a"]},
    ({"second": ["a", "a"]}, "`first` and `second` must have the same length. Received: 1 and 2"),
    ({"first": "a", "second": "b"}, "`first` and `second` must be batches. Received: "),
    ({"tokens": {"pad": "[PAD]", "unknown": "[UNK]"}}, "…must have start and end ids…start_id=-1"),
    name="encode_pairs",
)


# Settings and components of files that are not supported, and damaged files.
def loaded(class_, **files):
    """Load a tokenizer from files in the test's empty folder."""
    return class_.from_files(write(pathlib.Path("folder"), **files))


for class_ in (WordPieceTokenizer, BytePairTokenizer, ByteTokenizer, OpenAIGPTTokenizer, MarianT5Tokenizer):
    invalid(
        loaded,
        {"class_": class_},
        *[
            ({"other_txt": ""}, "`folder` must hold … with ['other.txt']"),
            ({}, "`folder` must hold … with []"),
        ],
        name=f"{class_.__name__}.from_files",
        error=FileNotFoundError,
    )
    invalid(
        lambda class_, folder: class_.from_files(folder),
        {"class_": class_},
        ({"folder": "none"}, "`folder` must hold … Received: folder='none', with []"),
        name=f"{class_.__name__}.from_files",
        error=FileNotFoundError,
    )
NO_PIECES = "…must map pieces to ids"
for class_, content, changes_of_model, changes in (
    (
        WordPieceTokenizer,
        BERT_JSON,
        [
            ({"vocab": None}, f"{NO_PIECES}. Received: None"),
            ({"vocab": {"[PAD]": 0, "a": 0}}, "…distinct ids. Received: '[PAD]' and 'a': 0"),
            ({"continuing_subword_prefix": "@"}, "… Received: …prefix='@'"),
        ],
        [
            ({"model": None}, "…must hold a model of type WordPiece"),
            ({"model": {"type": "Unigram"}}, "…must hold a model of type WordPiece. Received: 'Unigram'"),
            (
                {"normalizer": {"type": "NFC"}},
                "…normalizer that is supported with … Received: normalizer `NFC`",
            ),
            ({"normalizer": None}, "… Received: normalizer null"),
            ({"pre_tokenizer": {"type": "Whitespace"}}, "… Received: pre_tokenizer `Whitespace`"),
        ],
    ),
    (
        BytePairTokenizer,
        GPT2_JSON,
        [
            ({"dropout": 0.1}, "…must have a model `BPE` with dropout=None. Received: dropout=0.1"),
            ({"byte_fallback": True}, "… Received: byte_fallback=True"),
            ({"merges": ["x y"]}, "…merges[0]=('x', 'y'), with ['xy']"),
            ({"vocab": {"a": 0, "b": -1}}, "…integers from 0 to … Received: 'b': -1"),
            ({"vocab": {"a": 0, "b": 10**9}}, "…integers from 0 to … Received: 'b': 1000000000"),
            (
                {"vocab": {"h": 0, "e": 1, "he": 2}, "unk_token": "h"},
                "…with unk_token=None or a piece for each byte",
            ),
        ],
        [
            ({"normalizer": {"type": "NFKC"}}, "… Received: normalizer `NFKC`"),
            ({"pre_tokenizer": {"type": "Sequence"}}, "… Received: pre_tokenizer null"),
            (
                {"pre_tokenizer": {"type": "ByteLevel", "drop": 1}},
                "…must have a pre_tokenizer `ByteLevel` without settings other than … Received: drop=1",
            ),
            (
                {"added_tokens": [{"id": len(GPT2), "content": "<x>", "once": True}]},
                "…must have the added token '<x>' without settings other than … Received: once=True",
            ),
            (
                {"epilogue": None},
                "…must have an object without settings other than … Received: epilogue=None",
            ),
            (
                {"pre_tokenizer": {"type": "ByteLevel", "use_regex": False}},
                "… Received: pre_tokenizer `ByteLevel` use_regex=False",
            ),
            ({"decoder": {"type": "WordPiece"}}, "… Received: decoder `WordPiece`"),
            ({"decoder": None}, "… Received: decoder null"),
            ({"post_processor": {"type": "Foo"}}, "… Received: post_processor `Foo`"),
        ],
    ),
    (
        OpenAIGPTTokenizer,
        OPENAI_GPT_JSON,
        [
            ({"end_of_word_suffix": None}, "… with end_of_word_suffix='</w>'"),
            ({"fuse_unk": True}, "… Received: fuse_unk=True"),
        ],
        [({"pre_tokenizer": {"type": "ByteLevel"}}, "… Received: pre_tokenizer `ByteLevel`")],
    ),
    (
        MarianT5Tokenizer,
        UNIGRAM_JSON,
        [({"type": "BPE"}, "…must hold a model of type Unigram")],
        [
            (
                {"normalizer": {"type": "NFC"}},
                "…normalizer that is supported with … Received: normalizer `NFC`",
            )
        ],
    ),
):
    name = f"{class_.__name__}.from_files"
    invalid(
        lambda class_, content, **model: loaded(
            class_, tokenizer_json={**content, "model": {**content["model"], **model}}
        ),
        {"class_": class_, "content": content},
        *changes_of_model,
        name=name,
    )
    invalid(
        lambda class_, content, **components: loaded(class_, tokenizer_json={**content, **components}),
        {"class_": class_, "content": content},
        *changes,
        name=name,
    )
for class_, rows in {
    BytePairTokenizer: [
        ({"tokenizer_json": json.dumps(GPT2_JSON)[:1000]}, "…tokenizer.json` must be JSON"),
        ({"tokenizer_json": "[]"}, "…must hold a JSON object"),
        ({"vocab_json": GPT2, "merges_txt": "#version: 0.2\nh e\nl"}, "…merges[1]=('l',)"),
    ],
    WordPieceTokenizer: [
        ({"vocab_txt": b"[PAD]\n\xff"}, "…vocab.txt must be UTF-8"),
        (
            {"vocab_txt": "[PAD]\na\nb"},
            "`vocabulary` must hold every special token… without {'unknown': '[UNK]'}",
        ),
        ({"vocab_txt": "a\nb"}, "`vocabulary` must hold every special token… without {'unknown': '[UNK]'}"),
    ],
    ByteTokenizer: [
        (
            {"tokenizer_config_json": {"tokenizer_class": "GPT2Tokenizer"}},
            "…must have tokenizer_class='ByT5Tokenizer'",
        )
    ],
    OpenAIGPTTokenizer: [
        (
            {
                "vocab_json": {piece: id_ for id_, piece in enumerate(PAIRS)},
                "merges_txt": "#version: 0.2\nc a",
            },
            PAIRED,
        )
    ],
    MarianT5Tokenizer: [
        (
            {
                "vocab_json": {"</s>": 0},
                "source_spm": b"",
                "tokenizer_config_json": {"separate_vocabs": True},
            },
            "…must have separate_vocabs=False. Received: separate_vocabs=True",
        ),
        ({"vocab_json": {}, "source_spm": b""}, NO_PIECES),
        ({"spiece_model": b"damaged"}, "…spiece.model must be a SentencePiece model… Received: "),
    ],
}.items():
    invalid(loaded, {"class_": class_}, *rows, name=f"{class_.__name__}.from_files")


def published(name, *keys, **content):
    """Load a copy of a folder in which a component of `tokenizer.json` has other content."""
    folder = pathlib.Path(shutil.copytree(FOLDERS / name, "folder"))
    components = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    component = components
    for key in keys:
        component = component[key]
    component.update(content)
    (folder / "tokenizer.json").write_text(json.dumps(components), encoding="utf-8")
    from_hugging_face(folder)


PRE_TOKENIZER = ("pre_tokenizer", "pretokenizers", 0)
for folder, keys, content, message in (
    ("Llama_3", (), {"normalizer": {"type": "Foo"}}, "normalizer `Foo`"),
    ("Qwen_2.5", ("normalizer",), {"type": "NFKC"}, "normalizer `NFKC`"),
    ("Gemma", ("normalizer",), {"content": "_"}, "normalizer `Replace` …content='_'"),
    ("ALBERT", ("normalizer", "normalizers", 2), {"type": "NFD"}, "normalizer `Replace` … and `NFD`"),
    ("Llama_3", PRE_TOKENIZER, {"type": "Foo"}, "pre_tokenizer `Foo`"),
    (
        "Llama_3",
        (*PRE_TOKENIZER, "pattern"),
        {"Regex": "x(?=y)"},
        "'(?=y' at character 1 of pattern='x(?=y)'",
    ),
    ("Llama_3", PRE_TOKENIZER, {"behavior": "Removed"}, "pre_tokenizer `Split` …behavior='Removed'"),
    ("Llama_3", PRE_TOKENIZER, {"invert": True}, "pre_tokenizer `Split` …invert=True"),
    ("SmolLM_2", PRE_TOKENIZER, {"type": "Punctuation"}, "pre_tokenizer `Punctuation`"),
    ("Mistral_0.3", ("pre_tokenizer",), {"split": True}, "pre_tokenizer `Metaspace` …split=True"),
    ("ALBERT", PRE_TOKENIZER, {"type": "Foo"}, "pre_tokenizer `Foo`"),
    ("Llama_3", ("decoder",), {"type": "Foo"}, "decoder `Foo`"),
    ("Llama_2", ("decoder", "decoders", 3), {"type": "Foo"}, "decoder `Replace` … and `Foo`"),
    ("Llama_3", ("post_processor", "processors", 1), {"type": "Foo"}, "post_processor `ByteLevel`…`Foo`"),
    ("Llama_3", ("model",), {"type": "WordLevel"}, "model type `WordLevel`"),
    ("Llama_3", ("model",), {"dropout": 0.1}, "dropout=0.1"),
    ("Llama_2", ("model",), {"ignore_merges": True}, "ignore_merges=True"),
):
    invalid(
        lambda name, keys, content: published(name, *keys, **content),
        {"name": folder, "keys": keys},
        ({"content": content}, f"… Received: {message}"),
        name=folder,
    )
invalid(
    lambda **options: from_hugging_face(FOLDERS / "Llama_3", **options),
    {},
    must("be at least 706", vocabulary_size=9),
    (
        {"roles": {"end": 9999}},
        "`roles` must be ids of the 706 pieces in the folder. Received: 'end' of 9999",
    ),
    name="from_hugging_face",
)
invalid(
    lambda vocabulary_size: from_hugging_face(
        write(pathlib.Path("folder"), tokenizer_config_json={"tokenizer_class": "ByT5Tokenizer"}),
        vocabulary_size,
    ),
    {},
    must("be at least 384", vocabulary_size=380),
    name="from_hugging_face",
)
invalid(
    lambda: from_hugging_face("."),
    {},
    ({}, "`folder` must hold tokenizer.json, …with []"),
    name="from_hugging_face",
    error=FileNotFoundError,
)
