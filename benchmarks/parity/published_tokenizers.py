"""Folders with the tokenizer files of published models, with small vocabularies that are trained here.

The components of each `tokenizer.json`, normaliser, pre-tokenizer, model, post-processor, decoder and added tokens with
their flags, are those of the published file. `tests/text/folders` has such folders, with what `transformers` computes:

    .venv-bench/bin/python benchmarks/parity/published_tokenizers.py tests/text/folders
"""

import argparse
import io
import json
import os
import pathlib
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace("{1,3}", "")
SPACE = "\u2581"
SMALL = 1000
UNICODE = """
Dónde está la estación? ¡Qué frío, mañana! Über Straßen, Größe, ẞ. Где находится вокзал? Ελληνικά ΟΔΟΣ Σίσυφος.
العربية لغة جميلة. שָׁלוֹם עולם. हिन्दी में क्षत्रिय. ภาษาไทยไม่มีช่องว่าง.
中文分词很难。日本語のテスト、カタカナ。한국어 각각 문장.
👍🏽 🇪🇸 👨\u200d👩\u200d👧 🏳\ufe0f\u200d🌈 ☃\ufe0f e\u0301 é n\u0303 ñ A\u030a Å a\u0327\u0301 \u1112\u1161\u11ab
ﬁ ﬂ ① ½ ² Ⅷ ３ ㌔ ｶﾞ İı ſ ŉ ǅ ﬃ zero\u200bwidth\u200cand\u200djoined\u2060\ufeff soft\xadhyphen
\u200eleft\u200f\u202e a\xa0b\u2003c\u3000d\u2028e\u202ff\x85g
tab\tseparated\t\tvalues line\r\nbreaks\n\n\nand\rmore \n \n x \x0bvertical\x0c form\x1c group\x00null\x01\x7f\x9f
don't I'M we'll THEY'VE 'tis ''s 's 'S 'ſ rock'n'roll it's'll x'd!'re ' '' \''' `` ``quoted''
1,234,567.89 3.14e-10 10% -5 ٣٤٥ ४२ https://example.com/a?b=c&d=%20#e user+tag@example.co.uk C:\\path\\file.txt
/usr/bin/env --flag=value $VAR ${x} <html lang="en">
def f(x: int) -> str:\n    return f"{x!r}"  # comment\n\n\nclass A(B):\n\tpass for(int i=0;i<n;++i){a[i]+=b->c*d;}
x=>y??z a_b-c.d "invalid" \ufffd \ufffe \ue000 \U0010fffd <0x41> <0xE2><0x82> ▁ ▁▁a a▁b _ Ġ Ċ ## ##a </w> | ⁇
% %s \\n \\u00e9 &amp; --- *** ___ === ~~~
"""


def hard_lines(count: int, tokens: Sequence[str], seed: int = 0) -> list[str]:
    """Return lines on which tokenizers easily disagree.

    Args:
        count: the number of lines.
        tokens: tokens that occur inside them.
        seed: the seed of the generator.
    """
    chance = random.Random(seed)
    words = [word for line in UNICODE.split("\n")[1:-1] for word in line.split(" ")]
    spaces = ["", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\xa0", "\u3000", "\u200b", "\u2028"]
    ranges = [0, 0x80, 0x300, 0x600, 0x900, 0xE00, 0x1100, 0x2000, 0x3040, 0x4E00, 0xAC00, 0xFE00, 0x1F300]

    def part() -> str:
        kind = chance.random()
        if kind < 0.55:
            return chance.choice(words)
        if kind < 0.65 and tokens:
            return chance.choice([*tokens, *(token[:-1] for token in tokens)])
        if kind < 0.8:
            letter = chance.choice("abcXYZ0123456789 .,!?-_'\t\n\u0301中")
            return letter * chance.choice([1, 2, 3, 4, 5, 8, 17, 60])
        start = chance.choice(ranges)
        return "".join(chr(chance.randrange(start, start + 120)) for _ in range(chance.randint(1, 4)))

    lines = [
        "",
        " ",
        "  ",
        "\n",
        "\t \n",
        *UNICODE.strip("\n").split("\n"),
        "x" * 5000,
        "ab" * 1000,
        " " * 100,
    ]
    lines += [
        f"{before}{token}{after}a"
        for token in tokens
        for before in ("", "a ", " \n")
        for after in ("", " ", "\n\n")
    ]
    while len(lines) < count:
        joined = [
            part() + chance.choice(spaces if chance.random() < 0.4 else [" "])
            for _ in range(chance.randint(1, 14))
        ]
        lines.append("".join(joined))
    return lines[:count]


def special(*contents: str, **flags: bool) -> list[AddedToken]:
    """Return special tokens."""
    return [AddedToken(content, **{"special": True, "normalized": False, **flags}) for content in contents]


def ordinary(*contents: str, **flags: bool) -> list[AddedToken]:
    """Return added tokens that are not special."""
    return special(*contents, **{"special": False, **flags})


def write(folder: pathlib.Path, tokenizer: tokenizers.Tokenizer, **config: Any) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.loads(tokenizer.to_str())
    (folder / "tokenizer.json").write_text(
        json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n"
    )
    written = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(written, indent=1) + "\n")


def byte_level(
    lines: Iterable[str],
    size: int,
    before: Sequence[Any] = (),
    use_regex: bool = True,
    alphabet: Iterable[str] = pre_tokenizers.ByteLevel.alphabet(),
    **model: Any,
) -> tokenizers.Tokenizer:
    """Return a trained tokenizer of bytes, of which those in the alphabet and in the lines have pieces."""
    tokenizer = tokenizers.Tokenizer(models.BPE(**model))
    steps = [*before, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)]
    tokenizer.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_llama_3(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write the files of Llama 3, whose merges do not reach all pieces."""
    split = pre_tokenizers.Split(Regex(LLAMA_3), "isolated")
    content = json.loads(byte_level(lines, size, [split], use_regex=False).to_str())
    content["model"]["ignore_merges"] = True
    unreachable = content["model"]["merges"][40:60:2]
    content["model"]["merges"] = [pair for pair in content["model"]["merges"] if pair not in unreachable]
    whole = {"".join(pair) for pair in unreachable}
    content["model"]["merges"] = [pair for pair in content["model"]["merges"] if not whole & set(pair)]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    names = [
        "begin_of_text",
        "end_of_text",
        "reserved_special_token_0",
        "start_header_id",
        "end_header_id",
        "eot_id",
    ]
    tokenizer.add_special_tokens(special(*(f"<|{name}|>" for name in names)))
    start = "<|begin_of_text|>"
    template = processors.TemplateProcessing(
        single=f"{start} $A",
        pair=f"{start} $A {start} $B:1",
        special_tokens=[(start, tokenizer.token_to_id(start))],
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    write(folder, tokenizer, bos_token=start, eos_token="<|eot_id|>")


def write_qwen(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write the files of Qwen 2, 2.5 and 3."""
    tokenizer = byte_level(lines, size, [pre_tokenizers.Split(Regex(QWEN_2), "isolated")], use_regex=False)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tokenizer.add_tokens(ordinary("<tool_call>", "</tool_call>", "<think>", "</think>"))
    write(folder, tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", add_bos_token=False)


def write_smollm_2(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write the files of SmolLM 2, which lack bytes that did not occur in training."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer = byte_level(lines, size, [digits], alphabet=())
    tokenizer.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"))
    roles = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"}
    write(folder, tokenizer, **roles, pad_token="<|im_end|>")


def write_modern_bert(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write the files of ModernBERT, whose runs of spaces are tokens of normalised texts, and which lack a byte."""
    tokenizer = byte_level(lines, size, alphabet={*pre_tokenizers.ByteLevel.alphabet()} - {"\u00c0"})
    tokenizer.normalizer = normalizers.NFC()
    runs = [" " * length for length in range(24, 1, -1)]
    tokenizer.add_tokens(ordinary("|||IP_ADDRESS|||", *runs, "|||EMAIL_ADDRESS|||", normalized=True))
    tokenizer.add_special_tokens(special("[UNK]", "[CLS]", "[SEP]", "[PAD]"))
    tokenizer.add_special_tokens(special("[MASK]", lstrip=True))
    tokenizer.add_tokens(ordinary("[unused0]", normalized=True))
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    names = {"cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "pad": "[PAD]", "mask": "[MASK]"}
    write(folder, tokenizer, **{f"{name}_token": token for name, token in names.items()})


def sentence_piece(lines: Sequence[str], size: int, **options: Any) -> bytes:
    """Return a SentencePiece model of type BPE, trained with the options of Llama."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for line in lines if line and "\0" not in line),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
        **{
            "model_type": "bpe",
            "byte_fallback": True,
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "split_digits": True,
            "allow_whitespace_only_pieces": True,
            "character_coverage": 0.98 if size < SMALL else 0.9995,
            **options,
        },
    )
    return model.getvalue()


def byte_fallback(model: bytes, scheme: str) -> tokenizers.Tokenizer:
    """Return the tokenizer that `transformers` converts a SentencePiece model to."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    ids = {piece.piece: id_ for id_, piece in enumerate(proto.pieces)}
    if "\t" not in ids and scheme == "never":  # as in Gemma's files
        ids = {"\t" if piece == "<0x09>" else piece: id_ for piece, id_ in ids.items()}
    splits = [
        (-proto.pieces[id_].score, id_, place, ids[piece[:place]], ids[piece[place:]])
        for piece, id_ in ids.items()
        for place in range(1, len(piece))
        if piece[:place] in ids and piece[place:] in ids
    ]
    pieces = {id_: piece for piece, id_ in ids.items()}
    merges = [(pieces[left], pieces[right]) for *_, left, right in sorted(splits)]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    replace = normalizers.Replace(" ", SPACE)
    if scheme == "legacy":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace])
    elif scheme == "never":
        tokenizer.normalizer = replace
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False)
    strip = [] if scheme == "never" else [decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def with_start(tokenizer: tokenizers.Tokenizer, start: str) -> None:
    """Begin texts with a token."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A",
        pair=f"{start} $A {start} $B:1",
        special_tokens=[(start, tokenizer.token_to_id(start))],
    )


def write_llama_2(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write the files of Llama 2, TinyLlama and Mistral 0.1, including `tokenizer.model`.

    The runs of spaces have the first ids of the trained pieces, and the lowest score.
    """
    indented = [f"{' ' * count}x y{' ' * count}z" for count in (2, 4, 8, 3) for _ in range(400)]
    proto = sentencepiece_model_pb2.ModelProto.FromString(sentence_piece([*indented, *lines], size))
    for piece in proto.pieces:
        if not piece.piece.strip(SPACE):
            piece.score = -1e9
    model = proto.SerializeToString()
    tokenizer = byte_fallback(model, "legacy")
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>"))
    with_start(tokenizer, "<s>")
    write(folder, tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    (folder / "tokenizer.model").write_bytes(model)


def write_llama_1(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write the files of Llama 1, whose special tokens are recognised in normalised texts."""
    tokenizer = byte_fallback(sentence_piece(lines, size), "legacy")
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>", normalized=True))
    with_start(tokenizer, "<s>")
    write(folder, tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def write_mistral_3(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write the files of Mistral 0.3, whose control tokens are pieces of the model."""
    names = ["[INST]", "[/INST]", "[TOOL_CALLS]"]
    tokenizer = byte_fallback(sentence_piece(lines, size, control_symbols=names), "first")
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>", *names))
    with_start(tokenizer, "<s>")
    write(folder, tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def write_phi_3(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write the files of Phi-3, whose added tokens take the white space after them."""
    tokenizer = byte_fallback(sentence_piece(lines, size), "legacy")
    tokenizer.add_special_tokens(special("<unk>", "<s>"))
    tokenizer.add_tokens(ordinary("</s>", rstrip=True))
    tokenizer.add_special_tokens(special("<|endoftext|>"))
    names = ("assistant", "placeholder1", "system", "end", "user")
    tokenizer.add_special_tokens(special(*(f"<|{name}|>" for name in names), rstrip=True))
    with_start(tokenizer, "<s>")
    roles = {
        "bos_token": "<s>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<unk>",
    }
    write(folder, tokenizer, **roles)


def write_gemma(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write the files of Gemma, whose line breaks, runs of spaces and tags of HTML are added tokens."""
    symbols = [
        "<mask>",
        "<start_of_turn>",
        "<end_of_turn>",
        "\n",
        "\n\n",
        "\n\n\n",
        SPACE * 2,
        SPACE * 3,
        "<table>",
    ]
    options = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "add_dummy_prefix": False}
    model = sentence_piece(
        lines, size, user_defined_symbols=symbols, bos_piece="<bos>", eos_piece="<eos>", **options
    )
    tokenizer = byte_fallback(model, "never")
    tokenizer.add_special_tokens(special("<pad>", "<eos>", "<bos>", "<unk>"))
    tokenizer.add_special_tokens(special("<start_of_turn>", "<end_of_turn>"))
    tokenizer.add_tokens(ordinary("<mask>", *symbols[3:]))
    with_start(tokenizer, "<bos>")
    roles = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    write(folder, tokenizer, **roles)
    (folder / "tokenizer.model").write_bytes(model)


def write_albert(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write the files of ALBERT, or with a small vocabulary also a small normalisation."""
    lower = [line.lower() for line in lines]
    options = {"model_type": "unigram", "byte_fallback": False, "remove_extra_whitespaces": True}
    options |= {"allow_whitespace_only_pieces": False, "split_digits": False}
    if size < SMALL:
        folder.mkdir(parents=True, exist_ok=True)
        table = folder / "normalization.tsv"
        table.write_text("".join(f"{code:X}\t20\n" for code in (9, 10, 13, 0x200B, 0xFEFF)) + "AD\t\n")
        options["normalization_rule_tsv"] = str(table)
    else:
        options["normalization_rule_name"] = "nmt_nfkc"
    ids = {
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": -1,
        "eos_id": -1,
        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
    }
    model = sentence_piece(lower, size, **options, **ids)
    (folder / "normalization.tsv").unlink(missing_ok=True)
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=1, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace("``", '"'),
            normalizers.Replace("''", '"'),
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")]
    )
    tokenizer.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    tokenizer.add_special_tokens(special("<pad>", "<unk>", "[CLS]", "[SEP]"))
    tokenizer.add_special_tokens(special("[MASK]", lstrip=True))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    roles = {"cls": "[CLS]", "sep": "[SEP]", "bos": "[CLS]", "eos": "[SEP]", "mask": "[MASK]"}
    roles |= {"pad": "<pad>", "unk": "<unk>"}
    write(folder, tokenizer, **{f"{name}_token": token for name, token in roles.items()})
    (folder / "spiece.model").write_bytes(model)


ADDED = [  # tokens with each flag, of which one is not recognised within words
    *special("[E1]", "<left>", "<word>", lstrip=False),
    *ordinary("<hl>", normalized=True),
    *ordinary("<l>", lstrip=True),
    *ordinary("<r>", rstrip=True, normalized=True),
    *ordinary("covid", single_word=True, normalized=True),
    *ordinary("été", single_word=True),
]
BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT_ROLES = {
    f"{role}_token": token
    for role, token in zip(("pad", "unk", "cls", "sep", "mask"), BERT_TOKENS, strict=True)
}


def word_pieces(lines: Sequence[str], size: int, **normalizer: Any) -> tokenizers.Tokenizer:
    """Return a trained tokenizer of BERT's, whose ids are those of sorted pieces: the trainer's order is random."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**normalizer)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=list(BERT_TOKENS), show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    pieces = [*BERT_TOKENS, *sorted({*tokenizer.get_vocab()} - {*BERT_TOKENS})]
    tokenizer.model = models.WordPiece({piece: id_ for id_, piece in enumerate(pieces)}, unk_token="[UNK]")
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(special(*BERT_TOKENS))
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    return tokenizer


def write_bert(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write the files of BERT with added tokens, whose configuration differs from `tokenizer.json` and is applied."""
    tokenizer = word_pieces(lines, size)
    tokenizer.add_tokens(ADDED)
    config = {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False}
    write(folder, tokenizer, tokenizer_class="BertTokenizer", **config, **BERT_ROLES)


def write_bert_backend(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write the files of BERT with added tokens, of which `tokenizer.json` is applied; texts are cleaned up."""
    tokenizer = word_pieces(lines, size, strip_accents=False)
    tokenizer.add_tokens(ADDED)
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    config = {"do_lower_case": False, "clean_up_tokenization_spaces": True}
    write(folder, tokenizer, **config, **BERT_ROLES)


def write_bert_text(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write the older files of a cased BERT: `vocab.txt`, `added_tokens.json` and `special_tokens_map.json`."""
    vocabulary = word_pieces(lines, size, lowercase=False).get_vocab(with_added_tokens=False)
    folder.mkdir(parents=True, exist_ok=True)
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    added = {token: len(pieces) + place for place, token in enumerate(("<hl>", "[E1]", "entity"))}
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "model_max_length": 512}
    config["additional_special_tokens"] = ["[E1]", "entity"]
    for name, content in (
        ("added_tokens", added),
        ("special_tokens_map", BERT_ROLES),
        ("tokenizer_config", config),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def unigrams(lines: Sequence[str], size: int, space: str = SPACE) -> tuple[Any, bytes]:
    """Return a model of unigrams, and the character map with which it was trained.

    Args:
        lines: the lines.
        size: the number of pieces.
        space: what stands for a space.
    """
    folder = pathlib.Path(tempfile.mkdtemp())
    table = folder / "normalization.tsv"
    table.write_text("".join(f"{code:X}\t20\n" for code in (9, 10, 13, 0x2581, 0xFEFF)) + "AD\t\nFF21\t41\n")
    options = {"model_type": "unigram", "byte_fallback": False, "remove_extra_whitespaces": True}
    options |= {"allow_whitespace_only_pieces": False, "split_digits": False}
    options |= (
        {"normalization_rule_name": "nmt_nfkc"} if size >= SMALL else {"normalization_rule_tsv": str(table)}
    )
    ids = {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3}
    proto = sentencepiece_model_pb2.ModelProto.FromString(sentence_piece(lines, size, **options, **ids))
    shutil.rmtree(folder)
    pieces: dict[str, float] = {}
    for piece in proto.pieces:
        if text := piece.piece.replace(SPACE, space):
            pieces.setdefault(text, piece.score)
    return models.Unigram(
        list(pieces.items()), unk_id=3, byte_fallback=False
    ), proto.normalizer_spec.precompiled_charsmap


def write_unigrams(
    folder: pathlib.Path,
    model: Any,
    steps: Sequence[Any] = (),
    splits: Sequence[Any] = (),
    decoder: Any = None,
    **config: Any,
) -> None:
    """Write the files of a tokenizer of unigrams with added tokens."""
    tokenizer = tokenizers.Tokenizer(model)
    if steps:
        tokenizer.normalizer = normalizers.Sequence(list(steps))
    if splits:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(splits))
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_special_tokens(special("<s>", "<pad>", "</s>", "<unk>"))
    tokenizer.add_special_tokens(special("<mask>", lstrip=True))
    tokenizer.add_tokens(ADDED)
    ids = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ids
    )
    roles = {
        "bos": "<s>",
        "cls": "<s>",
        "eos": "</s>",
        "sep": "</s>",
        "unk": "<unk>",
        "pad": "<pad>",
        "mask": "<mask>",
    }
    write(folder, tokenizer, **{f"{name}_token": token for name, token in roles.items()}, **config)


def write_xlm_roberta(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write the files of XLM-RoBERTa with added tokens."""
    model, charsmap = unigrams(lines, size)
    splits = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, "always")]
    decoder = decoders.Metaspace(SPACE, "always")
    steps = [normalizers.Precompiled(charsmap)]
    write_unigrams(folder, model, steps, splits, decoder, tokenizer_class="XLMRobertaTokenizer")


def write_unigram_first(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write a file with another character for spaces, which begins texts but does not split them."""
    model, charsmap = unigrams(lines, size, "_")
    steps = [normalizers.Precompiled(charsmap)]
    splits, decoder = [pre_tokenizers.Metaspace("_", "first", split=False)], decoders.Metaspace("_", "first")
    write_unigrams(folder, model, steps, splits, decoder)


def write_unigram_words(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write a file whose words have no spaces, with steps of text alone and without a decoder."""
    model, _ = unigrams(lines, size, "")
    steps = [
        normalizers.Strip(),
        normalizers.Replace("\\", "/"),
        normalizers.Replace(Regex(r"[0-9]{3,}"), "0"),
        normalizers.Lowercase(),
    ]
    write_unigrams(folder, model, steps, [pre_tokenizers.WhitespaceSplit()])


def write_unigram_always(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write a file without normaliser, in which every space counts."""
    model, _ = unigrams(lines, size)
    splits = [pre_tokenizers.Metaspace(SPACE, "always")]
    write_unigrams(folder, model, (), splits, decoders.Metaspace(SPACE, "always"))


def write_unigram_plain(folder: pathlib.Path, lines: Sequence[str], size: int) -> None:
    """Write a file without pre-tokenizer, whose pieces have spaces."""
    model, _ = unigrams(lines, size, " ")
    steps = [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(left=False, right=True)]
    write_unigrams(folder, model, steps, (), decoders.Metaspace(SPACE, "never"))


WRITERS: dict[str, Callable[[pathlib.Path, Sequence[str], int], None]] = {
    "Llama 3": write_llama_3,
    "Qwen 2.5": write_qwen,
    "SmolLM 2": write_smollm_2,
    "ModernBERT": write_modern_bert,
    "Llama 1": write_llama_1,
    "Llama 2": write_llama_2,
    "Mistral 0.3": write_mistral_3,
    "Phi-3": write_phi_3,
    "Gemma": write_gemma,
    "ALBERT": write_albert,
    "BERT": write_bert,
    "BERT, tokenizer.json": write_bert_backend,
    "BERT, vocab.txt": write_bert_text,
    "XLM-RoBERTa": write_xlm_roberta,
    "Unigram, first": write_unigram_first,
    "Unigram, words": write_unigram_words,
    "Unigram, always": write_unigram_always,
    "Unigram, plain": write_unigram_plain,
}


def tokens_of(folder: pathlib.Path) -> list[str]:
    """Return the added tokens of a folder."""
    if not (folder / "tokenizer.json").is_file():
        return [*json.loads((folder / "added_tokens.json").read_text()), *BERT_TOKENS]
    return [token["content"] for token in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]]


def reference_of(folder: pathlib.Path) -> Any:
    """Return the tokenizer of `transformers`, of the class that a folder names."""
    import transformers

    name = json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"]
    return getattr(transformers, name).from_pretrained(folder)


def expected(folder: pathlib.Path, texts: Sequence[str]) -> dict[str, Any]:
    """Return what `transformers` computes: ids, those with special tokens in texts, and their texts."""
    tokenizer = reference_of(folder)
    options = {"add_special_tokens": False, "split_special_tokens": True}
    ids = tokenizer(list(texts), **options)["input_ids"]
    with_special = tokenizer(list(texts), add_special_tokens=False, split_special_tokens=False)["input_ids"]
    return {
        "texts": texts,
        "ids": ids,
        "ids_with_special_tokens": with_special,
        "decoded": tokenizer.batch_decode(ids),
        "row": tokenizer("a b")["input_ids"],
    }


def main() -> None:
    """Write a folder for each type of tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "folder", type=pathlib.Path, help="the folder of the folders; those in it are replaced"
    )
    parser.add_argument("names", nargs="*", help="the types of tokenizers, by default all")
    arguments = parser.parse_args()
    base = arguments.folder
    lines = UNICODE.split("\n") * 3 + __doc__.split("\n") * 3
    for name in arguments.names or WRITERS:
        writer = WRITERS[name]
        folder = base / name.replace(", ", "_").replace(" ", "_")
        shutil.rmtree(folder, ignore_errors=True)
        writer(folder, lines, 700)
        tokens = [token for token in tokens_of(folder) if token.strip()]
        tokens = [*tokens[:5], *(token for token in tokens[5:] if token in {each.content for each in ADDED})]
        texts = [line for line in hard_lines(110, tokens, 2) if len(line) < 200][::3]
        content = json.dumps(expected(folder, texts), ensure_ascii=False, separators=(",", ":"))
        (folder / "expected.json").write_text(content + "\n")
        print(f"{name}: {sum(file.stat().st_size for file in folder.iterdir()):,} bytes")


if __name__ == "__main__":
    main()
