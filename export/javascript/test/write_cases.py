"""Write what the tests of the JavaScript runtime compare it with: tokenizers with ids, and exports with answers.

PYTHONPATH=. python export/javascript/test/write_cases.py export/javascript/test/cases.tar.xz
"""

import dataclasses
import json
import pathlib
import sys
import tarfile
import tempfile
import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np

import keras_transformer as kt
import keras_transformer_serving as serving
from keras_transformer import pipelines, text
from keras_transformer.export.tokenizer_examples import HARD_LINES
from keras_transformer.generation import Beam, Sample
from keras_transformer.models import GPT, Transformer
from keras_transformer.pipelines import TextGeneration, TextToText
from keras_transformer.text.pretokenizers.patterns import LLAMA_3, QWEN_2
from keras_transformer.text.tokenizers.unigram_files import sentence_piece_model
from tests.laws import pipelines as laws
from tests.laws.cases import randomise
from tests.serving.test_tokenizers import QUICK, SLOW, TOKENS, TRAINING, fuzzed, marian

LINES = [
    "the cat sat on the mat",
    "¿Dónde está la estación?",
    "",
    "  ",
    "ﬁne ½ ③",
    "1,000 👍🏽 中文",
    "naïve\tcafé\n",
]
LONG = "The cat sat. The dog, which barked, ran off!\n\nDr. Li said: “It is 3.5.” " + "word " * 30


def word_pieces(**settings: Any) -> text.WordPieceTokenizer:
    """Return BERT's tokenizer with added tokens, of which one is in normal form within texts."""
    trained = text.WordPieceTokenizer.train(TRAINING, 700)
    pieces = [*trained.vocabulary, "<x>", "<Y>"]
    return text.WordPieceTokenizer(pieces, tokens_in_text=["<x>", "<Y>"], **settings)


def unigrams(**settings: Any) -> text.MarianT5Tokenizer:
    """Return a tokenizer of unigrams that does not change texts itself, with added tokens."""
    space = "\u2581"
    pieces = [
        "<pad>",
        "</s>",
        "<unk>",
        space,
        *"abcdefghijklmnopqrstuvwxyz0123456789.,'",
        "é",
        "中",
        f"{space}the",
    ]
    pieces += ["the", f"{space}a", "er", "00", *TOKENS, "<x>", "<y>"]
    scores = [(piece, -1.0 - 0.1 * place) for place, piece in enumerate(pieces[: -len(TOKENS) - 2])]
    model = sentence_piece_model(scores, 2, ["<pad>", "</s>"], None)
    return text.MarianT5Tokenizer(model, pieces, **settings)


def incomplete_pairs() -> text.BytePairTokenizer:
    """Return a byte-level BPE tokenizer without pieces of some bytes."""
    trained = text.BytePairTokenizer.train(TRAINING, 300)
    pieces = ["" if piece in ("Á", "õ", "q", "7") else piece for piece in trained.vocabulary]
    kept = [pair for pair in trained.merges if not {"q", "7"} & {*"".join(pair)}]
    return text.BytePairTokenizer(pieces, kept)


def pairs(**settings: Any) -> text.BytePairTokenizer:
    """Return a byte-level BPE tokenizer with other settings than those of training."""
    trained = text.BytePairTokenizer.train(TRAINING, 400)
    return text.BytePairTokenizer(trained.vocabulary, trained.merges, **settings)


def llama(scheme: str, **settings: Any) -> text.LlamaTokenizer:
    """Return a BPE tokenizer of characters with the merges of a few syllables."""
    space = "\u2581"
    merges = [
        ("t", "h"),
        ("th", "e"),
        (space, "the"),
        ("e", "r"),
        ("a", "n"),
        (space, "a"),
        ("0", "0"),
        ("a", "a"),
    ]
    special = ["<unk>", "<s>", "</s>", "<x>", "<y>"]
    characters = sorted({*space, *"abcdefghijklmnopqrstuvwxyz0123456789.,'ABC", "é", "中"})
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    pieces += ["".join(pair) for pair in merges]
    return text.LlamaTokenizer(pieces, merges, prepend_scheme=scheme, **settings)


FOLDERS = pathlib.Path(__file__).parents[3] / "tests" / "interop" / "folders"
OMITTED = (
    "bytes, plain",
    "GPT-1, cased",
    "Marian, nmt_nfkc",
    "WordPiece, cased",
    "WordPiece, control characters",
)
TOKENIZERS: dict[str, Callable[[], Any]] = {
    **{name: make for name, make in {**QUICK, **SLOW}.items() if name not in OMITTED},
    # A character map has a quarter of a megabyte: one is enough, the same as in the exports.
    "T5": lambda: marian("anywhere", "identity"),
    "Marian": lambda: marian("start", "identity"),
    "Llama 3": lambda: pairs(pattern=LLAMA_3, ignore_merges=True),
    "DeepSeek": lambda: pairs(
        pattern=["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\s+$", r"\p{N}"]
    ),
    "Qwen 2": lambda: pairs(pattern=QWEN_2, normalization="NFC"),
    "SmolLM 2": lambda: pairs(individual_digits=True),
    "RoBERTa": laws.roberta_tokenizer,
    "bytes, white space": lambda: text.ByteTokenizer(
        extra_tokens=["<x>", "<y>"], lstrip_tokens=["<x>", "</s>"], rstrip_tokens=["<y>", "</s>"]
    ),
    "byte-level BPE, incomplete": incomplete_pairs,
    "WordPiece, added tokens": lambda: word_pieces(
        added_tokens=["<x>", "<Y>"],
        lstrip_tokens=["<x>"],
        rstrip_tokens=["<Y>"],
        normalized_tokens=["<Y>"],
        clean_up=True,
        clean_up_texts=True,
        skip_special_tokens=True,
    ),
    "WordPiece, separate pieces": lambda: word_pieces(
        single_word_tokens=["<x>", "<Y>"], separate_pieces=True, lowercase=False, isolate_ideographs=False
    ),
    "unigram, Metaspace": lambda: unigrams(
        tokens_in_text=["<x>", "<y>"],
        normalized_tokens=["<y>"],
        single_word_tokens=["<x>"],
        normalizers=[
            {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            {"type": "Strip", "strip_left": False, "strip_right": True},
        ],
        pre_tokenizers=[
            {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
        ],
        decoders=[{"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}],
        clean_up_texts=True,
    ),
    "unigram, first word": lambda: unigrams(
        tokens_in_text=["<x>", ">>fra<<"],
        start_tokens=[">>fra<<"],
        lstrip_tokens=["<x>"],
        pre_tokenizers=[
            {"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False},
        ],
        decoders=[{"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"}],
    ),
    "unigram, white space": lambda: unigrams(pre_tokenizers=[{"type": "WhitespaceSplit"}]),
    "languages": lambda: text.from_hugging_face(FOLDERS / "M2M100"),
    "Llama, legacy": lambda: llama("legacy", special_tokens_in_text=True),
    "Llama, always": lambda: llama("always", tokens_in_text=["<x>", "<y>"], lstrip_tokens=["<x>"]),
    "Llama, first": lambda: llama("first", tokens_in_text=["<x>"], rstrip_tokens=["<x>"]),
    "Llama, never": lambda: llama("never", tokens_in_text=["<x>"], normalized_tokens=["<x>"]),
}


def words_of(tokenizer: Any, line: str) -> list[list[Any]]:
    """Return the ids of the words of a text, and where they start and end in it."""
    words = tokenizer.tokenize_words(line)
    return [[word.ids, units(line, word.start), units(line, word.end)] for word in words]


def tokenizer_case(tokenizer: Any, file: pathlib.Path, count: int = 12) -> dict[str, Any]:
    """Write a tokenizer's file, and return its ids and texts of difficult lines."""
    name = type(tokenizer).__name__
    file.write_bytes(tokenizer.model_bytes)
    served = serving.tokenizer_of(tokenizer.model_bytes, {"tokenizer_class": name})
    special = [*list(served.special_token_ids)[:6], *TOKENS, "<x>", "<y>"]
    lines = [*HARD_LINES, *LINES, *fuzzed(count), *special]
    lines += [f" {one}x {other} {one}" for one in special for other in special[::2]]
    # Words depend on the categories of characters, which later versions of Unicode add.
    assigned = [line for line in lines if not any(unicodedata.category(each) == "Cn" for each in line)]
    random = np.random.default_rng(3)
    size = len(served.pieces)
    rows = [random.integers(0, size, random.integers(0, 9)).tolist() for _ in range(count)]
    return {
        "class": name,
        "file": file.name,
        "texts": lines,
        "ids": [served.tokenize(line) for line in lines],
        "textsOfWords": assigned,
        "words": [words_of(served, line) for line in assigned],
        "idsWithSpecialTokens": [served.tokenize(line, True) for line in lines],
        "rows": rows,
        "decoded": [served.detokenize(row) for row in rows],
        "pieces": list(served.pieces),
    }


def translator(sampler: Any = "greedy", constraints: Any = (), **options: Any) -> TextToText:
    """Return an encoder–decoder with a SentencePiece tokenizer and random weights."""
    tokenizer = text.SentencePieceTokenizer.train(
        TRAINING, 600, byte_fallback=True, normalization="nmt_nfkc_cf"
    )
    ids = {name: getattr(tokenizer, name) for name in ("pad_id", "start_id", "end_id")}
    model = randomise(Transformer(tokenizer.vocabulary_size, **laws.SIZES, **ids), 1)
    settings = {"max_new_tokens": 12, "max_source_tokens": 40, **options}
    return TextToText(model, tokenizer, sampler, constraints=constraints, **settings)


def writer(tokenizer: Any = None, sampler: Any = "greedy", **options: Any) -> TextGeneration:
    """Return a decoder-only model with random weights."""
    tokenizer = tokenizer or text.BytePairTokenizer.train(TRAINING, 400)
    ids = {"pad_id": tokenizer.pad_id, "end_id": tokenizer.end_id}
    model = randomise(GPT(tokenizer.vocabulary_size, **laws.SIZES, max_length=60, **ids), 1)
    return TextGeneration(model, tokenizer, sampler, max_new_tokens=12, **options)


@dataclasses.dataclass
class Call:
    """A call of a pipeline, or of a method of it."""

    arguments: tuple[Any, ...]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    method: str = "__call__"
    precision: str = "float32"


def calls(*arguments: Any, **options: Any) -> list[Call]:
    """Return a call with several rows, with errors returned, and of the first row alone."""
    ones = [argument[0] if isinstance(argument, list) else argument for argument in arguments]
    return [Call(arguments, {**options, "errors": "return"}), Call(tuple(ones), options)]


SOURCES = [line for line in HARD_LINES if len(line) < 60] + LINES
PROMPTS = ["a b", "the cat", " x", "¿Dónde", "1,000 👍🏽", ""]
TOO_LONG = "ab " * 60
WORDS = ["la casa azul", "el perro", "", "come pan"]
EXPORTS: dict[str, tuple[Callable[[], Any], list[Call]]] = {
    "translation": (
        translator,
        [
            *calls(SOURCES),
            *calls(LINES, max_new_tokens=5, min_new_tokens=3),
            *calls([LONG, "a b"], long_texts="split"),
            *calls([LONG, TOO_LONG, "a"]),
            *calls([LONG, TOO_LONG], truncate=True),
            Call((SOURCES,), method="encode"),
        ],
    ),
    "translation, beam": (lambda: translator(Beam(3, num_return=2)), calls(LINES)),
    "translation, NLLB": (
        lambda: pipelines.from_hugging_face(
            FOLDERS / "NLLB", max_new_tokens=8, max_source_tokens=6, truncation_side="left"
        ),
        [
            *calls(["a b c d e f g"], truncate=True, source_language="spa_Latn", target_language="eng_Latn"),
            *calls(WORDS, source_language="spa_Latn", target_language="eng_Latn"),
            *calls(WORDS, source_language="spa_Latn", target_language="xxx"),
            *calls(WORDS, source_language=["spa_Latn", "eng_Latn"] * 2, target_language="spa_Latn")[:1],
            Call(
                (WORDS,), {"source_language": "spa_Latn", "target_language": "eng_Latn"}, precision="float16"
            ),
        ],
    ),
    "translation, mBART": (
        lambda: pipelines.from_hugging_face(FOLDERS / "MBart25", max_new_tokens=8),
        [
            *calls(WORDS, source_language="es_XX", target_language="en_XX"),
            Call((WORDS,), {"source_language": "es_XX", "target_language": "en_XX"}, precision="int8"),
        ],
    ),
    "generation": (
        writer,
        [
            *calls(PROMPTS),
            *calls(PROMPTS[:3], max_new_tokens=3),
            *calls([TOO_LONG], truncate=True),
            Call((PROMPTS,), {"errors": "return"}, precision="int4"),
        ],
    ),
    "generation, sample": (
        lambda: writer(sampler=Sample(0.8, seed=7)),
        [*calls(PROMPTS[:4]), *calls(PROMPTS[:3], temperature=0.5)],
    ),
    "generation, skipped special tokens": (
        lambda: writer(sampler=Sample(3.0, seed=7), skip_special_tokens=True),
        [*calls(PROMPTS[:4])],
    ),
    "generation, no padding id": (
        laws.write_without_padding_id,
        calls(["", "<|endoftext|>", "the<|endoftext|>", "who's there?", "a"]),
    ),
    "text, window": (
        lambda: laws.classify(labels=["x", 1, "z"], long_texts="window"),
        [*calls(laws.LONGER), Call((laws.LONGER,), method="probabilities")],
    ),
    "text, pairs": (
        lambda: laws.classify(laws.word_pieces()),
        [*calls(*laws.PAIRS), *calls([TOO_LONG, "a"], ["b", TOO_LONG], truncate=True)],
    ),
    "text, GPT, pairs": (
        lambda: laws.classify_by_gpt(symmetric=True),
        calls(laws.TEXTS[:3], laws.TEXTS[2::-1]),
    ),
    "rerank": (
        lambda: laws.rerank(laws.roberta_tokenizer(), 1, activation="linear", truncation_side="left"),
        [
            *calls([*laws.TEXTS[:5]], [*laws.LINES, "a"]),
            *calls("a b", [*laws.LINES, TOO_LONG]),
            *calls("a b", [*laws.LINES, TOO_LONG], truncate=True),
            Call(("a b", ["b", "a b", "b", "", "c c"]), {"top_k": 3}, "rank"),
        ],
    ),
    "rerank, window": (
        lambda: laws.rerank(long_texts="window"),
        calls(["a b", "", "ab"], [laws.LONG * 2, "x", f"a {laws.LONG}"]),
    ),
    "tokens": (
        lambda: laws.tag(laws.word_pieces(), long_texts="window", truncation_side="left"),
        [*calls([*laws.LONGER, *laws.LINES]), *calls(laws.LONGER, truncate=True)],
    ),
    "tokens, white space": (
        lambda: laws.tag(laws.word_pieces(), words="white_space", aggregation="average"),
        calls(laws.LINES),
    ),
    "questions": (
        lambda: laws.answer(max_answer_tokens=3, long_texts="window"),
        [
            *calls(*laws.QUESTIONS),
            *calls(["a", "b", "x"], [laws.LONG, f"👍 {laws.LONG} {laws.LONG} x", "  "]),
        ],
    ),
    "questions, no answer": (
        lambda: laws.answer(long_texts="window", doc_stride=5, no_answer_threshold=-1.0),
        [
            *calls(*laws.QUESTIONS),
            *calls(["a", "b"], [laws.LONG, f"👍 {laws.LONG} {laws.LONG} x"], no_answer_threshold=-4.5),
        ],
    ),
    "fill": (
        lambda: laws.fill_mask(laws.word_pieces(), top=3),
        calls([*laws.MASKED, "no mask", "[MASK] " * 50]),
    ),
    "fill, RoBERTa": (
        lambda: laws.fill_mask(laws.roberta_tokenizer(), 0),
        calls(["a <mask> b", "<mask>  <mask>x☃", "c\u2003 <mask> d<mask> ."]),
    ),
    "embedding": (
        laws.embed_with_prompts,
        [
            *calls(laws.TEXTS),
            *calls(laws.TEXTS, prompt_name="query"),
            *calls(laws.TEXTS, prompt="z "),
            *calls(laws.TEXTS, prompt_name="other"),
            *calls(laws.TEXTS, truncate_dim=3),
        ],
    ),
}


def plain(value: Any) -> Any:
    """Return a result as JSON: errors as their messages, arrays and tuples as lists or mappings."""
    if isinstance(value, Exception):
        return {"error": str(value)}
    if hasattr(value, "_asdict"):
        return {name: plain(field) for name, field in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return plain(value.tolist()) if isinstance(value, np.ndarray | np.generic) else value


def units(text: str, place: int) -> int:
    """Return the number of units of UTF-16 before a place in a text."""
    return len(text[:place].encode("utf-16-le")) // 2


def in_units(value: Any, text: str) -> Any:
    """Return a result with places in a text counted in units of UTF-16, as JavaScript does."""
    if isinstance(value, list):
        return [in_units(item, text) for item in value]
    if not isinstance(value, dict) or "start" not in value:
        return value
    places = {name: units(text, value[name]) for name in ("start", "end")}
    return {**value, **places}


def result(model: Any, call: Call) -> Any:
    """Return the result of a call, or its error."""
    try:
        found = plain(getattr(model, call.method)(*call.arguments, **call.options))
    except (TypeError, ValueError) as error:
        return plain(error)
    texts = call.arguments[-1]
    return in_units(found, texts) if isinstance(texts, str) else [*map(in_units, found, texts)]


def write(folder: pathlib.Path) -> None:
    """Write `tokenizers.json` with the file of each, `exports.json` with calls and their results, and the exports."""
    folder.mkdir()
    (folder / "tokenizers").mkdir()
    cases = {
        name: tokenizer_case(make(), folder / "tokenizers" / f"{number}.model")
        for number, (name, make) in enumerate(TOKENIZERS.items())
    }
    (folder / "tokenizers.json").write_text(json.dumps(cases))
    exports = {}
    for name, (make, listed) in EXPORTS.items():
        place = name.replace(", ", "-").replace(" ", "-")
        precisions = [*dict.fromkeys(call.precision for call in listed)]
        kt.export.onnx(make(), folder / place, precisions=precisions)
        exports[place] = [
            {
                "method": call.method,
                "arguments": call.arguments,
                "options": call.options,
                "precision": call.precision,
                "result": result(serving.load(folder / place, precision=call.precision), call),
            }
            for call in listed
        ]
    (folder / "exports.json").write_text(json.dumps(exports))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        cases = pathlib.Path(temporary) / "cases"
        write(cases)
        with tarfile.open(sys.argv[1], "w:xz", preset=9) as archive:
            archive.add(cases, "cases")
