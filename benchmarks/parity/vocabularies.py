"""Compare tokenizers with real vocabularies, in TensorFlow, in Python without it, and in JavaScript.

llama.cpp's sources, which the source distribution of `llama-cpp-python` has in `vendor/llama.cpp/models`, have the
vocabularies of published models as GGUF, and for most of them 46 lines with their ids. From each file, this program
writes a folder with the tokenizer of the published model: `tokenizer.json`, for Llama 2 and Phi-3 also
`tokenizer.model`. Each runtime must give the ids of these lines, and of hard lines those of `tokenizers`, or of
SentencePiece where the folder has its model; segmentations by unigrams may be equally probable. A folder that is
refused is listed with the reason.

    python benchmarks/parity/vocabularies.py vendor/llama.cpp/models    # --help; JavaScript needs `make javascript`
"""

import base64
import dataclasses
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import measuring
import numpy as np
import published_tokenizers
import sentencepiece
import tokenizers
from published_tokenizers import LLAMA_3, QWEN_2, SPACE
from sentencepiece import sentencepiece_model_pb2

import keras_transformer_serving as serving
from keras_transformer import text

# Types of values, and of tokens, in GGUF.
_NUMBERS = dict(enumerate(("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?")))
_NUMBERS |= {10: "<u8", 11: "<i8", 12: "<f8"}
_STRING, _ARRAY = 8, 9
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_PIECES = sentencepiece_model_pb2.ModelProto.SentencePiece
_END_OF_LINE = "\n__ggml_vocab_test__\n"
_JAVASCRIPT = pathlib.Path(__file__).parents[2] / "export" / "javascript" / "dist" / "node.js"
_NODE = """
import { readFileSync, writeFileSync } from "node:fs";
const [module, name, folder] = process.argv.slice(1);
const { tokenizerOf } = await import(module);
const tokenizer = tokenizerOf(name, readFileSync(`${folder}/model`));
const calls = JSON.parse(readFileSync(`${folder}/calls.json`, "utf8"));
const ids = calls.map(([lines, special]) => lines.map((line) => tokenizer.tokenize(line, special)));
writeFileSync(`${folder}/ids.json`, JSON.stringify(ids));
"""


def read_gguf(path: pathlib.Path) -> dict[str, Any]:
    """Return the metadata of a GGUF file, version 2 or 3."""
    data, place = memoryview(path.read_bytes()), 24
    (count,) = struct.unpack_from("<Q", data, 16)

    def numbers(type_: str, length: int = 1) -> np.ndarray:
        nonlocal place
        found = np.frombuffer(data, type_, length, place)
        place += found.nbytes
        return found

    def string() -> str:
        nonlocal place
        length = int(numbers("<u8")[0])
        place += length
        return bytes(data[place - length : place]).decode(errors="replace")

    def value(type_: int) -> Any:
        if type_ == _STRING:
            return string()
        if type_ != _ARRAY:
            return numbers(_NUMBERS[type_])[0].item()
        item, length = int(numbers("<u4")[0]), int(numbers("<u8")[0])
        return [string() for _ in range(length)] if item == _STRING else numbers(_NUMBERS[item], length)

    return {string(): value(int(numbers("<u4")[0])) for _ in range(count)}


@dataclasses.dataclass
class Vocabulary:
    """The vocabulary of a GGUF file.

    Attributes:
        content: the metadata of the tokenizer, without the beginning of their names.
        pieces: the pieces; those that only fill the model's matrix are "".
        types: their types.
    """

    content: Mapping[str, Any]
    pieces: list[str]
    types: list[int]

    @classmethod
    def read(cls, path: pathlib.Path) -> "Vocabulary":
        """Read a file."""
        content = {
            name.removeprefix("tokenizer.ggml."): value
            for name, value in read_gguf(path).items()
            if "." in name
        }
        pieces, types = content["tokens"], [int(type_) for type_ in content["token_type"]]
        padding = [f"[PAD{id_}]" for id_ in range(len(pieces))]
        kept = ["" if piece == name else piece for piece, name in zip(pieces, padding, strict=True)]
        while not kept[-1]:
            kept.pop()
        return cls(content, kept, types[: len(kept)])

    @property
    def ids(self) -> dict[str, int]:
        """The pieces and their ids."""
        return {piece: id_ for id_, piece in enumerate(self.pieces) if piece}

    def added_tokens(self, **flags: bool) -> list[dict[str, Any]]:
        """Return the tokens that are recognised in texts, as in `tokenizer.json`."""
        defaults = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | flags
        return [
            {"id": id_, "content": piece, **defaults, "special": type_ != _USER_DEFINED}
            for id_, (piece, type_) in enumerate(zip(self.pieces, self.types, strict=True))
            if piece and type_ in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]

    @property
    def config(self) -> dict[str, Any]:
        """The content of `tokenizer_config.json`."""
        names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "cls": "cls", "mask": "mask"}
        ids = {name: self.content.get(f"{long}_token_id") for name, long in names.items()}
        ids["sep"] = self.content.get("seperator_token_id")  # its spelling in the format
        tokens = {
            f"{name}_token": self.pieces[id_]
            for name, id_ in ids.items()
            if id_ is not None
            and id_ < len(self.pieces)
            and self.types[id_] in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        }
        tokens.setdefault("eos_token", "</s>")  # of Aquila, whose file has no right id
        return {"tokenizer_class": "PreTrainedTokenizerFast", **tokens}


def split(pattern: str) -> dict[str, Any]:
    """Return a pre-tokenizer that isolates words."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def digits(individual: bool = True) -> dict[str, Any]:
    """Return a pre-tokenizer that isolates digits."""
    return {"type": "Digits", "individual_digits": individual}


def bytes_(use_regex: bool = True) -> dict[str, Any]:
    """Return the pre-tokenizer, decoder and post-processor of bytes."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


NFC = {"type": "NFC"}
QWEN_3_5 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# The letters of DeepSeek LLM's words: those with two cases, of Unicode 13.
_CASED = """
41-5A 61-7A B5-B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F-37F 386-386 388-38A 38C-38C
38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A
1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59-1F59 1F5B-1F5B 1F5D-1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE-1FBE
1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102-2102 2107-2107 210A-2113 2115-2115 2119-211D
2124-2124 2126-2126 2128-2128 212A-212D 212F-2134 2139-2139 213C-213F 2145-2149 214E-214E 2183-2184 2C00-2C7B 2C7E-2CE4
2CEB-2CEE 2CF2-2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A
10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
"""
_LETTERS = "".join("-".join(chr(int(code, 16)) for code in each.split("-")) for each in _CASED.split())
DEEPSEEK = {
    "coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"],
    "llm": ["[\r\n]", rf"\s?[{_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+"],
}
# The normaliser, and the pre-tokenizers, of vocabularies of bytes.
WORDS: dict[str, tuple[dict[str, str] | None, list[dict[str, Any]]]] = {
    "aquila": (None, [bytes_()]),
    "command-r": (NFC, [digits(), bytes_()]),
    "deepseek-coder": (None, [*map(split, DEEPSEEK["coder"]), digits(), bytes_(False)]),
    "deepseek-llm": (None, [*map(split, DEEPSEEK["llm"]), digits(), bytes_(False)]),
    "falcon": (
        None,
        [
            {"type": "Punctuation", "behavior": "Contiguous"},
            bytes_(),
            digits(False),
            split("[0-9][0-9][0-9]"),
        ],
    ),
    "gpt-2": (None, [bytes_()]),
    "gpt-neox": (NFC, [bytes_()]),
    "llama-bpe": (None, [split(LLAMA_3), bytes_(False)]),
    "mpt": (NFC, [bytes_()]),
    "qwen2": (NFC, [split(QWEN_2), bytes_(False)]),
    "qwen35": (None, [split(QWEN_3_5), bytes_(False)]),
    "refact": (None, [digits(), bytes_()]),
    "starcoder": (None, [digits(), bytes_()]),
}


def write_json(folder: pathlib.Path, config: Mapping[str, Any], **components: Any) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`."""
    content = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
    content = {"version": "1.0", "truncation": None, "padding": None, **content, **components}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def pair_model(vocabulary: Mapping[str, int], merges: Sequence[Any], **settings: Any) -> dict[str, Any]:
    """Return a BPE model."""
    unset = dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    flags = dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False)
    return {"type": "BPE", **unset, **flags, **settings, "vocab": vocabulary, "merges": merges}


def write_bytes(name: str, vocabulary: Vocabulary, folder: pathlib.Path) -> None:
    """Write the files of a model of bytes."""
    normalizer, steps = WORDS[name]
    added = vocabulary.added_tokens()
    # The library numbers added tokens after the pieces of the model, so that others are pieces as well.
    first = 1 + max(id_ for id_, type_ in enumerate(vocabulary.types) if type_ == _PIECES.NORMAL)
    # In published files, tokens of several spaces are recognised in normalised texts.
    added = [token | {"normalized": not token["content"].strip()} for token in added]
    model = {piece: id_ for piece, id_ in vocabulary.ids.items() if id_ < first}
    write_json(
        folder,
        vocabulary.config,
        added_tokens=added,
        normalizer=normalizer,
        pre_tokenizer={"type": "Sequence", "pretokenizers": steps},
        post_processor=bytes_(),
        decoder=bytes_(),
        model=pair_model(model, vocabulary.content["merges"], ignore_merges=name == "llama-bpe"),
    )


_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_DECODERS = [
    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]


def byte_fallback(merges: Sequence[Any], ids: Mapping[str, int], never: bool) -> dict[str, Any]:
    """Return the components of Llama 2, or of Gemma, which adds no space."""
    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, _REPLACE]}
    space = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    strip = [] if never else [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    return {
        "normalizer": _REPLACE if never else prepend,
        "pre_tokenizer": space if never else None,
        "decoder": {"type": "Sequence", "decoders": [*_DECODERS, *strip]},
        "model": pair_model(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True),
    }


def sentence_piece(vocabulary: Vocabulary, size: int) -> sentencepiece_model_pb2.ModelProto:
    """Return the SentencePiece model of a vocabulary of type BPE."""
    model = sentencepiece_model_pb2.ModelProto()
    model.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.BPE
    model.trainer_spec.byte_fallback = True
    model.normalizer_spec.remove_extra_whitespaces = False
    rows = zip(vocabulary.pieces, vocabulary.content["scores"], vocabulary.types, strict=False)
    first = {0: _PIECES.UNKNOWN, 1: _PIECES.CONTROL, 2: _PIECES.CONTROL}
    for id_, (piece, score, type_) in enumerate(list(rows)[:size]):
        model.pieces.add(piece=piece, score=float(score), type=first.get(id_, type_))
    return model


FAIRSEQ = "sentencepiece.bpe.model"
_BASE = 32_000  # the pieces of Llama 2's model, which Phi-3's has, too


def write_llama(name: str, vocabulary: Vocabulary, folder: pathlib.Path) -> None:
    """Write `tokenizer.json` of a model of Llama's type; the pieces of highest score are merged first."""
    scores = [float(score) for score in vocabulary.content["scores"]]
    normal = {
        piece
        for piece, type_ in zip(vocabulary.pieces, vocabulary.types, strict=True)
        if type_ == _PIECES.NORMAL
    }
    splits = [
        (-scores[id_], id_, place, piece)
        for id_, piece in enumerate(vocabulary.pieces)
        for place in range(1, len(piece))
        if piece in normal and piece[:place] in normal and piece[place:] in normal
    ]
    merges = [[piece[:place], piece[place:]] for *_, place, piece in sorted(splits)]
    added = vocabulary.added_tokens()
    for token in added:
        token["rstrip"] = token["id"] > _BASE or token["content"] == "</s>" if name == "phi-3" else False
    write_json(
        folder,
        vocabulary.config,
        added_tokens=added,
        **byte_fallback(merges, vocabulary.ids, never=False),
    )


def write_llama_model(name: str, vocabulary: Vocabulary, folder: pathlib.Path) -> None:
    """Write `tokenizer.model` alone."""
    model = sentence_piece(vocabulary, len(vocabulary.pieces) if name == "baichuan" else _BASE)
    (folder / "tokenizer.model").write_bytes(model.SerializeToString())
    added = {
        str(token.pop("id")): token for token in vocabulary.added_tokens() if token["id"] >= len(model.pieces)
    }
    config = {"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": added}
    (folder / "tokenizer_config.json").write_text(json.dumps({**vocabulary.config, **config}))


def write_gemma(name: str, vocabulary: Vocabulary, folder: pathlib.Path) -> None:
    """Write the files of Gemma 4."""
    merges = vocabulary.content["merges"]
    write_json(
        folder,
        vocabulary.config,
        added_tokens=vocabulary.added_tokens(),
        **byte_fallback(merges, vocabulary.ids, never=True),
    )


def write_bert(name: str, vocabulary: Vocabulary, folder: pathlib.Path) -> None:
    """Write the files of BERT; GGUF has SentencePiece's sign before pieces that begin words."""
    pieces = {
        piece
        if type_ == _CONTROL or (piece.startswith("[") and piece.endswith("]"))
        else piece.removeprefix(SPACE)
        if piece.startswith(SPACE)
        else f"##{piece}": id_
        for id_, (piece, type_) in enumerate(zip(vocabulary.pieces, vocabulary.types, strict=True))
    }
    flags = dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase"), True)
    # GGUF has a default for the end token, which BERT's tokenizer does not have.
    config = {name: token for name, token in vocabulary.config.items() if name != "eos_token"}
    write_json(
        folder,
        {**config, "tokenizer_class": "BertTokenizer", "do_lower_case": True},
        added_tokens=vocabulary.added_tokens(),
        normalizer={"type": "BertNormalizer", **flags, "strip_accents": None},
        pre_tokenizer={"type": "BertPreTokenizer"},
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        model={
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": pieces,
        },
    )


def write_unigram(name: str, vocabulary: Vocabulary, folder: pathlib.Path) -> None:
    """Write the files of XLM-RoBERTa, with the SentencePiece model, whose ids are others."""
    map_ = bytes(vocabulary.content["precompiled_charsmap"].astype(np.uint8))
    scores = map(float, vocabulary.content["scores"])
    added = [token for token in vocabulary.added_tokens() if token["content"][:1] == "<"]
    model = sentencepiece_model_pb2.ModelProto()
    model.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
    model.normalizer_spec.precompiled_charsmap = map_
    first = [("<unk>", 0.0, _UNKNOWN), ("<s>", 0.0, _CONTROL), ("</s>", 0.0, _CONTROL)]
    rows = zip(vocabulary.pieces, map(float, vocabulary.content["scores"]), vocabulary.types, strict=False)
    normal = [(piece, score, type_) for piece, score, type_ in rows if type_ == _PIECES.NORMAL]
    for piece, score, type_ in [*first, *normal]:
        model.pieces.add(piece=piece, score=score, type=type_)
    (folder / FAIRSEQ).write_bytes(model.SerializeToString())
    space = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    write_json(
        folder,
        {**vocabulary.config, "tokenizer_class": "XLMRobertaTokenizer"},
        added_tokens=added,
        normalizer={"type": "Precompiled", "precompiled_charsmap": base64.b64encode(map_).decode()},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, space]},
        decoder=space,
        model={
            "type": "Unigram",
            "unk_id": 3,
            "byte_fallback": False,
            "vocab": list(zip(vocabulary.pieces, scores, strict=False)),
        },
    )


Writer = Callable[[str, Vocabulary, pathlib.Path], None]
FOLDERS: dict[str, tuple[str, Writer]] = {
    **{name: (name, write_bytes) for name in WORDS},
    "llama-spm": ("llama-spm", write_llama),
    "llama-spm, tokenizer.model": ("llama-spm", write_llama_model),
    "phi-3": ("phi-3", write_llama),
    "phi-3, tokenizer.model": ("phi-3", write_llama_model),
    "baichuan, tokenizer.model": ("baichuan", write_llama_model),
    "gemma-4": ("gemma-4", write_gemma),
    "bert-bge": ("bert-bge", write_bert),
    "nomic-bert-moe": ("nomic-bert-moe", write_unigram),
}


Call = tuple[list[str], bool]  # lines, and whether special tokens in them are recognised
Ids = list[list[int]]


def in_tensorflow(tokenizer: text.Tokenizer, calls: Sequence[Call]) -> list[Ids]:
    """Return the ids of lines."""
    return [
        [
            row
            for start in range(0, len(lines), 500)
            for row in tokenizer.tokenize(lines[start : start + 500], special_tokens=special).to_list()
        ]
        for lines, special in calls
    ]


def without_tensorflow(tokenizer: text.Tokenizer, calls: Sequence[Call]) -> list[Ids]:
    """Return the ids of lines by the serving library."""
    served = serving.tokenizer_of(tokenizer.model_bytes, {"tokenizer_class": type(tokenizer).__name__})
    return [[served.tokenize(line, special) for line in lines] for lines, special in calls]


def in_javascript(tokenizer: text.Tokenizer, calls: Sequence[Call]) -> list[Ids]:
    """Return the ids of lines in Node."""
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder)
        (base / "model").write_bytes(tokenizer.model_bytes)
        (base / "calls.json").write_text(json.dumps(calls))
        arguments = [_JAVASCRIPT.as_uri(), type(tokenizer).__name__, folder]
        subprocess.run(["node", "--input-type=module", "-e", _NODE, *arguments], check=True)
        return json.loads((base / "ids.json").read_text())


RUNTIMES = {"TensorFlow": in_tensorflow, "Python": without_tensorflow, "JavaScript": in_javascript}


def sentence_piece_file(folder: pathlib.Path) -> pathlib.Path | None:
    """Return the SentencePiece model of a folder."""
    return next((folder / name for name in ("tokenizer.model", FAIRSEQ) if (folder / name).is_file()), None)


def expected_ids(folder: pathlib.Path, calls: Sequence[Call]) -> list[Ids]:
    """Return the ids of lines by `tokenizers`, or by SentencePiece for a folder with its model."""
    if model := sentence_piece_file(folder):
        processor = sentencepiece.SentencePieceProcessor(str(model))
        rows = [[processor.encode(line) for line in lines] for lines, _ in calls]
        if model.name != FAIRSEQ:
            return rows
        return [[[id_ + 1 if id_ else 3 for id_ in row] for row in each] for each in rows]
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = []
    for lines, special in calls:
        library.encode_special_tokens = not special
        ids.append([each.ids for each in library.encode_batch(lines, add_special_tokens=False)])
    return ids


def published_lines(path: pathlib.Path) -> tuple[list[str], Ids]:
    """Return the lines beside a GGUF file, and their ids."""
    if not path.with_name(f"{path.name}.inp").is_file():
        return [], []
    lines = path.with_name(f"{path.name}.inp").read_text(encoding="utf-8").split(_END_OF_LINE)[:-1]
    rows = path.with_name(f"{path.name}.out").read_text().split("\n")[: len(lines)]
    return lines, [list(map(int, row.split())) for row in rows]


def are_equal(found: Ids, expected: Ids, scores: np.ndarray | None) -> bool:
    """Return whether ids are equal or, by scores of unigrams, of one probability, so that rounding decides."""
    if found == expected or scores is None:
        return found == expected
    pairs = zip(found, expected, strict=True)
    return all(np.isclose(scores[one].sum(), scores[other].sum(), rtol=1e-6) for one, other in pairs)


def compare(path: pathlib.Path, name: str, count: int, javascript: bool) -> dict[str, Any]:
    """Return the figures of a vocabulary."""
    base, writer = FOLDERS[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        vocabulary = Vocabulary.read(path)
        writer(base, vocabulary, folder)
        scores = vocabulary.content["scores"] if writer is write_unigram else None
        try:
            tokenizer = text.from_hugging_face(folder)
        except ValueError as error:
            return {"refused": str(error).replace(f"{folder}/", "")}
        is_model = sentence_piece_file(folder) is not None
        tokens = sorted(tokenizer.special_token_ids, key=len)[:12]
        lines, ids = published_lines(path)
        # SentencePiece does not read special tokens in texts, and a text with U+0000 ends there.
        without = ("\0", *tokens) if is_model else ()
        hard = published_tokenizers.hard_lines(2 * count, [] if is_model else tokens)
        hard = [line for line in hard if not any(each in line for each in without)][:count]
        calls = [(lines, False), (hard, False), (hard, not is_model)]
        expected = [ids, *expected_ids(folder, calls[1:])]
    figures: dict[str, Any] = {"lines": len(lines), "hard lines": len(hard)}
    for runtime, tokenize in RUNTIMES.items():
        if runtime == "JavaScript" and not javascript:
            figures[runtime] = None
            continue
        start = time.perf_counter()
        found = tokenize(tokenizer, calls)
        of_lines = [
            line for line, *rows in zip(lines, expected[0], found[0], strict=True) if rows[0] != rows[1]
        ]
        rows = zip(hard, *expected[1:], *found[1:], strict=True)
        of_hard = [line for line, *both, one, other in rows if not are_equal([one, other], both, scores)]
        figures[runtime] = {
            "equal lines": len(lines) - len(of_lines),
            "equal hard lines": len(hard) - len(of_hard),
            "different": [*of_lines, *of_hard][:5],
            "seconds": round(time.perf_counter() - start, 1),
        }
    return figures


def row(name: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the table."""
    if "refused" in figures:
        return {"vocabulary": name, "": "refused", **{f"{each}: lines, hard": "–" for each in RUNTIMES}}
    columns = {}
    for runtime in RUNTIMES:
        found = figures[runtime]
        equal = found and [found["equal lines"], found["equal hard lines"]]
        columns[f"{runtime}: lines, hard"] = (
            f"{equal[0]} of {figures['lines']}, {equal[1]} of {figures['hard lines']}" if equal else "not run"
        )
    return {"vocabulary": name, "": "read", **columns}


def is_equal(figures: Mapping[str, Any]) -> bool:
    """Return whether no line differs."""
    return not any(
        figures[runtime] and figures[runtime]["different"] for runtime in RUNTIMES if runtime in figures
    )


def main() -> int:
    """Compare all vocabularies; return 1 if a line differs."""
    parser = measuring.parser(__doc__, "parity_vocabularies")
    parser.add_argument("folder", type=pathlib.Path, help="the folder with ggml-vocab-*.gguf")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="only vocabularies with one of these in their names"
    )
    parser.add_argument(
        "--lines", type=int, default=2000, help="the number of hard lines (default: %(default)s)"
    )
    options = parser.parse_args()
    javascript = bool(shutil.which("node")) and _JAVASCRIPT.is_file()
    if not javascript:
        print("JavaScript is not compared: it needs node, and `make javascript` before.")
    results: dict[str, Any] = {}
    for name, (base, _) in FOLDERS.items():
        path = options.folder / f"ggml-vocab-{base}.gguf"
        if path.is_file() and any(part in name for part in options.only):
            results[name] = compare(path, name, options.lines, javascript)
            measuring.progress(str(row(name, results[name])))
    if not results:
        raise SystemExit(f"`folder` must hold ggml-vocab-*.gguf. Received: folder={options.folder}")
    print(measuring.table([row(name, figures) for name, figures in results.items()]))
    for name, figures in results.items():
        if "refused" in figures:
            print(f"{name} is refused: {figures['refused']}")
    machine = measuring.machine()
    machine["versions"] |= {library.__name__: library.__version__ for library in (tokenizers, sentencepiece)}
    measuring.write_result(options.name, {**machine, "results": results}, options.output)
    return int(not all(map(is_equal, results.values())))


if __name__ == "__main__":
    sys.exit(main())
