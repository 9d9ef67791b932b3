"""Folders of `transformers` with random settings, which `folders.py` compares.

Each folder is a family, such as BERT or Llama, and its random settings: of the tokenizer's components, flags and files,
of the model's configuration, of labels and of generation. Vocabularies and weights are small and random. A setting has
its own generator, so that a folder is written again, with some settings as the family's, by `Chance.kept`.
"""

import dataclasses
import functools
import io
import json
import os
import pathlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import published_tokenizers as published
import sentencepiece
import tokenizers
import torch
import transformers
from small_folders import DECODER, DISTILBERT, ENCODER, HEADS, MODERNBERT, SEQ2SEQ, T5, WHISPER, randomise
from tokenizers import AddedToken, models, pre_tokenizers, processors, trainers

from keras_transformer.text import WordPieceTokenizer

TEXT = [
    *published.UNICODE.strip().split("\n"),
    *(published.__doc__ or "").split("\n"),
    *["The quick brown fox jumps over the lazy dog. Don't say that you can't, I'll see you."],
    "la casa es azul y el perro come pan", "the house is blue and the dog eats bread", "said Ada Lovelace in London",
] * 3  # fmt: skip
CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
POSITIONS = 128


class Chance:
    """Random settings, each with a default that most folders keep.

    Args:
        seed: the seed of the folder.
        kept: the names of settings that have their default.
    """

    def __init__(self, seed: int, kept: Sequence[str] = ()) -> None:
        self.seed, self.kept = seed, set(kept)
        self.changed: dict[str, Any] = {}
        self.rate = random.Random(f"{seed} rate").choice([0.01, 0.03, 0.08])

    def random(self, name: str) -> random.Random:
        """Return the generator of a setting."""
        return random.Random(f"{self.seed} {name}")

    def pick(self, name: str, default: Any, *others: Any) -> Any:
        """Return the default or, at the folder's rate, another value."""
        generator = self.random(name)
        others = tuple(other for other in others if other != default)
        if name in self.kept or not others or generator.random() > self.rate:
            return default
        self.changed[name] = value = generator.choice(others)
        return value

    def any(self, name: str, *values: Any) -> Any:
        """Return one of several values that are equally usual."""
        return self.random(name).choice(values)


def special_flags(chance: Chance, name: str) -> dict[str, bool]:
    """Return the flags of an added token."""
    return {
        "lstrip": chance.pick(f"{name}.lstrip", False, True),
        "rstrip": chance.pick(f"{name}.rstrip", False, True),
        "single_word": chance.pick(f"{name}.single_word", False, True),
        "normalized": chance.pick(f"{name}.normalized", False, True),
    }


# Values of settings of the components of `tokenizer.json`.
VALUES: dict[tuple[str, str], tuple[Any, ...]] = {
    ("BertNormalizer", "lowercase"): (True, False),
    ("BertNormalizer", "strip_accents"): (None, True, False),
    ("BertNormalizer", "clean_text"): (True, False),
    ("BertNormalizer", "handle_chinese_chars"): (True, False),
    ("ByteLevel", "add_prefix_space"): (True, False),
    ("ByteLevel", "use_regex"): (True, False),
    ("ByteLevel", "trim_offsets"): (True, False),
    ("Metaspace", "prepend_scheme"): ("always", "first", "never"),
    ("Metaspace", "split"): (True, False),
    ("Metaspace", "replacement"): ("\u2581", "_"),
    ("Digits", "individual_digits"): (True, False),
    ("Split", "behavior"): ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"),
    ("Split", "invert"): (True, False),
    ("Strip", "strip_left"): (True, False),
    ("Strip", "start"): (0, 1, 2),
    ("Strip", "stop"): (0, 1),
    ("Replace", "content"): ("\u2581", " ", "x"),
    ("Prepend", "prepend"): ("\u2581", "x"),
    ("WordPiece", "cleanup"): (True, False),
    ("WordPiece", "max_input_chars_per_word"): (100, 5),
    ("BPE", "dropout"): (None, 0.0),
    ("BPE", "fuse_unk"): (True, False),
    ("BPE", "ignore_merges"): (True, False),
    ("BPE", "byte_fallback"): (True, False),
    ("BPE", "unk_token"): (None, "<unk>", "<s>"),
    ("BPE", "end_of_word_suffix"): (None, ""),
    ("Unigram", "byte_fallback"): (True, False),
}
NORMALIZERS: tuple[dict[str, Any], ...] = (
    *({"type": name} for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")),
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    {"type": "Replace", "pattern": {"String": "a"}, "content": "e"},
    {"type": "Prepend", "prepend": "\u2581"},
)  # fmt: skip
PRE_TOKENIZERS: tuple[dict[str, Any], ...] = (
    *({"type": name} for name in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts")),
    {"type": "Punctuation", "behavior": "Isolated"},
    {"type": "Digits", "individual_digits": True},
    {"type": "Digits", "individual_digits": False},
    {"type": "CharDelimiterSplit", "delimiter": "-"},
    {"type": "Split", "pattern": {"String": "e"}, "behavior": "Isolated", "invert": False},
    {"type": "Split", "pattern": {"Regex": published.LLAMA_3}, "behavior": "Isolated", "invert": False},
    {"type": "Split", "pattern": {"Regex": published.QWEN_2}, "behavior": "Isolated", "invert": False},
    {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
)  # fmt: skip
SEQUENCES = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
# Keys of `tokenizer_config.json`.
KEYS: dict[str, tuple[Any, ...]] = {
    "do_lower_case": (True, False),
    "strip_accents": (True, False),
    "tokenize_chinese_chars": (True, False),
    "keep_accents": (True, False),
    "add_prefix_space": (True, False),
    "add_bos_token": (True, False),
    "add_eos_token": (True, False),
    "legacy": (True, False),
    "clean_up_tokenization_spaces": (True, False),
    "truncation_side": ("left", "right"),
    "padding_side": ("left", "right"),
    "model_max_length": (12, 50, int(1e30)),
    "split_special_tokens": (True, False),
    "spaces_between_special_tokens": (True, False),
    "trim_offsets": (True, False),
    "errors": ("replace", "strict"),
    "extra_special_tokens": (["<e0>", "<e1>"], {"image_token": "<e0>"}),
    "additional_special_tokens": (["<e0>", "<e1>"],),
    "model_input_names": (["input_ids", "attention_mask"],),
    "some_key": (3,),
}


def steps_of(content: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """Return the components of a kind."""
    component = content.get(kind)
    if component is None:
        return []
    if component.get("type") == "Sequence":
        return list(component[SEQUENCES[kind]])
    return [component]


def with_steps(content: dict[str, Any], kind: str, steps: Sequence[dict[str, Any]]) -> None:
    """Set the components of a kind."""
    several = {"type": "Sequence", SEQUENCES[kind]: list(steps)}
    content[kind] = None if not steps else steps[0] if len(steps) == 1 else several


def change_components(chance: Chance, content: dict[str, Any]) -> None:
    """Change settings of the components of a `tokenizer.json`, and add or remove some."""
    for kind, more in (("normalizer", NORMALIZERS), ("pre_tokenizer", PRE_TOKENIZERS)):
        steps = steps_of(content, kind)
        if steps and chance.pick(f"{kind} removed", False, True):
            steps.pop(chance.any(f"{kind} which", *range(len(steps))))
        if step := chance.pick(f"{kind} added", None, *more):
            steps.insert(chance.any(f"{kind} where", 0, len(steps)), dict(step))
        with_steps(content, kind, steps)
    if chance.pick("decoder removed", False, True):
        content["decoder"] = None
    for kind in (*SEQUENCES, "model"):
        steps = steps_of(content, kind) if kind in SEQUENCES else [content["model"]]
        for step in steps:
            for (step_type, key), values in VALUES.items():
                if step.get("type") == step_type and key in step:
                    step[key] = chance.pick(f"{kind}.{step_type}.{key}", step[key], *values)
    names = [token["content"] for token in content["added_tokens"] if token["special"]]
    if names and (form := chance.pick("post_processor", None, *TEMPLATES)):
        ids = {token["content"]: token["id"] for token in content["added_tokens"]}
        first, last = names[0], names[-1]
        parts = [part.replace("S", first).replace("E", last) for part in form]
        processor = processors.TemplateProcessing(
            single=parts[0], pair=parts[1], special_tokens=[(name, ids[name]) for name in {first, last}]
        )
        post = json.loads(processor.__getstate__())
        steps = [step for step in steps_of(content, "post_processor") if step["type"] == "ByteLevel"]
        with_steps(content, "post_processor", [*steps, post])


TEMPLATES = (
    ("$A", "$A $B"),
    ("$A E", "$A E $B E"),
    ("S $A", "S $A S $B:1"),
    ("S $A E", "S $A E E $B:1 E:1"),
    ("S S $A", "S S $A $B"),
    ("S $A E", "S $A $B E"),
)


def write_json(path: pathlib.Path, content: Any) -> None:
    """Write a file."""
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Read a file, {} if there is none."""
    return json.loads(path.read_text()) if path.is_file() else {}


def save(chance: Chance, folder: pathlib.Path, tokenizer: Any) -> None:
    """Save a tokenizer with added tokens, then change components and keys."""
    for number in range(chance.pick("added tokens", 0, 1, 2)):
        name = f"added {number}"
        token = chance.any(name, "[E1]", "<hl>", "éa", "ada", "<|x|>", "New  York", "Ab")
        flags = special_flags(chance, name)
        tokenizer.add_tokens([AddedToken(token, special=chance.any(f"{name} special", False, True), **flags)])
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer.json"
    config = read_json(folder / "tokenizer_config.json")
    if file.is_file():
        content = read_json(file)
        follows_file = type(tokenizer).__name__ == "TokenizersBackend"
        # Of mBART's languages, the components of the file apply here, and in transformers those of the class.
        is_fixed = "en_XX" in tokenizer.get_vocab() and not follows_file
        if follows_file or (not is_fixed and chance.pick("tokenizer.json of other settings", False, True)):
            change_components(chance, content)
        if follows_file:
            config["tokenizer_class"] = chance.any("tokenizer_class", *CLASSES)
        for token in content["added_tokens"][:6] if follows_file else ():
            for flag in ("lstrip", "rstrip", "single_word", "normalized"):
                token[flag] = chance.pick(f"token {token['content']}.{flag}", token[flag], not token[flag])
        write_json(file, content)
    # Versions before 5 write them.
    if chance.pick("special_tokens_map.json", False, True):
        roles = {
            key: value for key, value in config.items() if key.endswith("_token") and isinstance(value, str)
        }
        write_json(folder / "special_tokens_map.json", roles)
    if chance.pick("without added_tokens_decoder", False, True):
        config.pop("added_tokens_decoder", None)
    change_keys(chance, config)
    write_json(folder / "tokenizer_config.json", config)
    # Without it, a folder of mBART's languages has its class, which has components of its own.
    needs_config = "en_XX" in tokenizer.get_vocab()
    if not needs_config and chance.pick("without tokenizer_config.json", False, True):
        (folder / "tokenizer_config.json").unlink()


def change_keys(chance: Chance, config: dict[str, Any]) -> None:
    """Change keys of `tokenizer_config.json`."""
    for key, values in KEYS.items():
        value = chance.pick(f"config.{key}", config.get(key), *values)
        if value is not None or key in config:
            config[key] = value
    # Without it, a folder of mBART-50 has the class of mBART, by the type of the model.
    needs_class = config.get("tokenizer_class") == "MBart50Tokenizer"
    if not needs_class and chance.pick("config.tokenizer_class missing", False, True):
        config.pop("tokenizer_class", None)
    for key in ("unk_token", "pad_token", "bos_token", "mask_token"):
        if config.get(key) and chance.pick(f"config.{key} missing", False, True):
            del config[key]


def legacy(chance: Chance, folder: pathlib.Path, config: dict[str, Any]) -> None:
    """Write the configuration of a folder whose vocabulary is in older files than `tokenizer.json`."""
    for number in range(chance.pick("added tokens", 0, 1, 2)):
        token = chance.any(f"added {number}", "[E1]", "<hl>", "ada", "<|x|>")
        path = folder / "added_tokens.json"
        known = read_json(path)
        write_json(
            path, {**known, token: config.pop("size") + len(known) if "size" in config else len(known)}
        )
    config.pop("size", None)
    change_keys(chance, config)
    if not chance.pick("without tokenizer_config.json", False, True):
        write_json(folder / "tokenizer_config.json", config)
    if chance.pick("special_tokens_map.json", False, True):
        flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
        roles = {
            key: value for key, value in config.items() if key.endswith("_token") and isinstance(value, str)
        }
        write_json(
            folder / "special_tokens_map.json",
            {key: {"content": value, **flags} for key, value in roles.items()},
        )


@functools.cache
def word_pieces(lowercase: bool) -> dict[str, int]:
    """Return a vocabulary of BERT."""
    # The trainer of `tokenizers` gives another vocabulary each time.
    pieces = [*WordPieceTokenizer.train(TEXT, 500, lowercase=lowercase).vocabulary]
    return {piece: id_ for id_, piece in enumerate([pieces[0], "[unused0]", *pieces[1:]])}


def write_word_piece(chance: Chance, folder: pathlib.Path) -> None:
    """Write a BERT tokenizer."""
    lowercase = chance.any("lowercase", True, False)
    vocabulary = word_pieces(lowercase)
    settings = {
        "do_lower_case": lowercase,
        "strip_accents": chance.pick("strip_accents", None, True, False),
        "tokenize_chinese_chars": chance.pick("tokenize_chinese_chars", True, False),
    }
    files = chance.pick("files", "json", "vocab.txt", "components")
    if files == "vocab.txt":
        (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in vocabulary))
        name = chance.pick(
            "class", "BertTokenizer", "DistilBertTokenizer", "BertJapaneseTokenizer", "SomeTokenizer"
        )
        legacy(chance, folder, {"tokenizer_class": name, **settings, "size": len(vocabulary)})
        return
    tokenizer = transformers.BertTokenizer(vocab=vocabulary, **settings)
    if files == "components":
        tokenizer = backend(tokenizer)
    save(chance, folder, tokenizer)


def backend(tokenizer: Any) -> Any:
    """Return a tokenizer whose components `transformers` reads from `tokenizer.json`."""
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, **tokenizer.special_tokens_map
    )


@functools.cache
def byte_pairs(missing: bool) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return a vocabulary and merges of bytes, with or without the characters of bytes that no text has."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = [] if missing else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def vocabulary_of_bytes(chance: Chance, *special: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return a vocabulary with special tokens, and merges."""
    vocabulary, merges = byte_pairs(chance.pick("bytes without a character", False, True))
    if chance.any("special tokens first", True, False):
        vocabulary = {piece: id_ + len(special) for piece, id_ in vocabulary.items()}
        return {**{token: id_ for id_, token in enumerate(special)}, **vocabulary}, merges
    return {**vocabulary, **{token: len(vocabulary) + i for i, token in enumerate(special)}}, merges


def write_pairs(
    folder: pathlib.Path, vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]]
) -> None:
    """Write `vocab.json` and `merges.txt`."""
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, merges), ""]))


def write_gpt2(chance: Chance, folder: pathlib.Path) -> None:
    """Write a GPT-2 tokenizer."""
    vocabulary, merges = vocabulary_of_bytes(chance, "<|endoftext|>")
    space = chance.pick("add_prefix_space", False, True)
    files = chance.pick("files", "json", "vocab.json", "components")
    if files == "vocab.json":
        write_pairs(folder, vocabulary, merges)
        config = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": space, "size": len(vocabulary)}
        legacy(chance, folder, config)
        return
    tokenizer = transformers.GPT2Tokenizer(vocab=vocabulary, merges=merges, add_prefix_space=space)
    save(chance, folder, backend(tokenizer) if files == "components" else tokenizer)


def write_roberta(chance: Chance, folder: pathlib.Path) -> None:
    """Write a RoBERTa tokenizer."""
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    vocabulary, merges = byte_pairs(chance.pick("bytes without a character", False, True))
    vocabulary = {piece: id_ + 4 for piece, id_ in vocabulary.items()}
    vocabulary = {
        **{token: i for i, token in enumerate(special[:4])},
        **vocabulary,
        "<mask>": len(vocabulary) + 4,
    }
    space = chance.pick("add_prefix_space", False, True)
    files = chance.pick("files", "json", "vocab.json", "components", "WordPiece")
    if files == "WordPiece":  # as klue/roberta-base
        pieces = word_pieces(False)
        (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
        tokenizer = transformers.BertTokenizer(vocab=pieces, do_lower_case=False)
        save(chance, folder, tokenizer)
        return
    if files == "vocab.json":
        write_pairs(folder, vocabulary, merges)
        config = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": space, "size": len(vocabulary)}
        legacy(chance, folder, config)
        return
    mask = AddedToken("<mask>", lstrip=chance.pick("<mask>.lstrip", True, False), special=True)
    tokenizer = transformers.RobertaTokenizer(
        vocab=vocabulary,
        merges=merges,
        add_prefix_space=space,
        mask_token=mask,
        trim_offsets=chance.pick("trim_offsets", True, False),
    )
    save(chance, folder, backend(tokenizer) if files == "components" else tokenizer)


def write_qwen(chance: Chance, folder: pathlib.Path) -> None:
    """Write a Qwen tokenizer."""
    vocabulary, merges = byte_pairs(False)
    tokenizer = transformers.Qwen2Tokenizer(
        vocab=vocabulary, merges=merges, eos_token=chance.any("end", "<|im_end|>", "<|endoftext|>")
    )
    tokenizer.add_tokens([AddedToken(name, special=True) for name in ("<|im_start|>", "<|im_end|>")])
    files = chance.pick("files", "json", "vocab.json", "components")
    if files == "vocab.json":
        write_pairs(folder, vocabulary, merges)
        config = {
            "tokenizer_class": "Qwen2Tokenizer",
            "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
        }
        names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
        config["added_tokens_decoder"] = {
            str(len(vocabulary) + i): {"content": name, **flags} for i, name in enumerate(names)
        }
        legacy(chance, folder, config)
        return
    save(chance, folder, backend(tokenizer) if files == "components" else tokenizer)


def write_published(chance: Chance, folder: pathlib.Path, name: str) -> None:
    """Write the tokenizer of a published model, and change it."""
    published.WRITERS[name](folder, TEXT, 600)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    if not chance.pick("tokenizer.model", False, True):
        (folder / "tokenizer.model").unlink(missing_ok=True)
        (folder / "spiece.model").unlink(missing_ok=True)
        save(chance, folder, tokenizer)
    elif (folder / "tokenizer.model").is_file():
        (folder / "tokenizer.json").unlink()
        config = read_json(folder / "tokenizer_config.json")
        config["tokenizer_class"] = "GemmaTokenizer" if name == "Gemma" else "LlamaTokenizer"
        legacy(chance, folder, config)


def write_llama(chance: Chance, folder: pathlib.Path) -> None:
    """Write a Llama 2 tokenizer of the class in `transformers`, which sets its components."""
    (folder / "tokenizer.model").write_bytes(pair_model())
    tokenizer = transformers.LlamaTokenizer.from_pretrained(folder)
    (folder / "tokenizer.model").unlink()
    save(chance, folder, tokenizer)


@functools.cache
def pair_model() -> bytes:
    """Return a SentencePiece model of Llama."""
    return published.sentence_piece(TEXT, 600)


@functools.cache
def unigram(nfkc: bool, **ids: int) -> bytes:
    """Return a SentencePiece model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for line in TEXT if line and "\0" not in line),
        model_writer=model,
        vocab_size=400,
        hard_vocab_limit=False,
        minloglevel=2,
        character_coverage=0.98,
        normalization_rule_name="nmt_nfkc" if nfkc else "identity",
        **ids,
    )
    return model.getvalue()


# The class of the tokenizer, the name of its SentencePiece model and the special ids of that.
UNIGRAM: dict[str, tuple[str, str, dict[str, Any]]] = {
    "T5": ("T5Tokenizer", "spiece.model", {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}),
    "XLM-R": ("XLMRobertaTokenizer", "sentencepiece.bpe.model", {}),
    "CamemBERT": ("CamembertTokenizer", "sentencepiece.bpe.model", {}),
    "mBART": ("MBartTokenizer", "sentencepiece.bpe.model", {}),
    "mBART-50": ("MBart50Tokenizer", "sentencepiece.bpe.model", {}),
    "NLLB": ("NllbTokenizer", "sentencepiece.bpe.model", {}),
    "Pegasus": ("PegasusTokenizer", "spiece.model", {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}),
}


def write_unigram(chance: Chance, folder: pathlib.Path, name: str) -> None:
    """Write a tokenizer of a SentencePiece model, as its files or as `tokenizer.json`."""
    class_name, file, ids = UNIGRAM[name]
    if name == "NLLB":
        (folder / file).write_bytes(published.sentence_piece(TEXT, 600, byte_fallback=False))
    else:
        (folder / file).write_bytes(unigram(chance.pick("nfkc", True, False), **ids))
    files = chance.pick("files", "json", file, "components")
    config = {"tokenizer_class": class_name}
    if files == file:
        legacy(chance, folder, config)
        return
    write_json(folder / "tokenizer_config.json", config)
    tokenizer = getattr(transformers, class_name).from_pretrained(folder)
    for path in folder.iterdir():
        path.unlink()
    save(chance, folder, backend(tokenizer) if files == "components" else tokenizer)


def write_albert(chance: Chance, folder: pathlib.Path) -> None:
    """Write an ALBERT tokenizer."""
    published.write_albert(folder, TEXT, 600)
    files = chance.pick("files", "json", "spiece.model", "components")
    if files == "spiece.model":
        (folder / "tokenizer.json").unlink()
        legacy(chance, folder, {"tokenizer_class": "AlbertTokenizer"})
        return
    (folder / "spiece.model").unlink()
    settings = {
        "do_lower_case": chance.pick("do_lower_case", True, False),
        "keep_accents": chance.pick("keep_accents", False, True),
    }
    kind = "PreTrainedTokenizerFast" if files == "components" else "AlbertTokenizer"
    tokenizer = getattr(transformers, kind).from_pretrained(
        folder, **({} if files == "components" else settings)
    )
    for path in folder.iterdir():
        path.unlink()
    save(chance, folder, tokenizer)


def write_marian(chance: Chance, folder: pathlib.Path) -> None:
    """Write a Marian tokenizer."""
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(unigram(chance.pick("nfkc", True, False)))
    model = sentencepiece.SentencePieceProcessor(str(folder / "source.spm"))
    pieces = [model.id_to_piece(i) for i in range(3, model.vocab_size())]
    pieces = ["</s>", "<unk>", *pieces[: len(pieces) * 9 // 10], ">>fra<<", "<pad>"]
    write_json(folder / "vocab.json", {piece: id_ for id_, piece in enumerate(pieces)})
    config = {
        "source_lang": "en",
        "target_lang": "roa",
        "tokenizer_class": "MarianTokenizer",
        "size": len(pieces),
    }
    legacy(chance, folder, config)


def write_m2m(chance: Chance, folder: pathlib.Path) -> None:
    """Write an M2M-100 tokenizer."""
    data = published.sentence_piece(TEXT, 600, byte_fallback=False)
    (folder / "sentencepiece.bpe.model").write_bytes(data)
    model = sentencepiece.SentencePieceProcessor(model_proto=data)
    pieces = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        *(model.id_to_piece(i) for i in range(3, model.vocab_size() - 5)),
    ]
    write_json(folder / "vocab.json", {piece: id_ for id_, piece in enumerate(pieces)})
    legacy(chance, folder, {"tokenizer_class": "M2M100Tokenizer"})


def write_byt5(chance: Chance, folder: pathlib.Path) -> None:
    """Write a ByT5 tokenizer."""
    transformers.ByT5Tokenizer(extra_ids=chance.pick("extra_ids", 125, 0, 3)).save_pretrained(folder)
    config = read_json(folder / "tokenizer_config.json")
    change_keys(chance, config)
    write_json(folder / "tokenizer_config.json", config)


def write_whisper(chance: Chance, folder: pathlib.Path) -> None:
    """Write a Whisper tokenizer."""
    vocabulary, merges = byte_pairs(False)
    tokenizer = transformers.WhisperTokenizer(vocab=vocabulary, merges=merges)
    names = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|es|>", "<|translate|>", "<|transcribe|>")
    tokenizer.add_tokens([AddedToken(name, special=True) for name in (*names, "<|notimestamps|>")])
    save(chance, folder, tokenizer)


ACTIVATIONS = (
    "gelu",
    "relu",
    "gelu_new",
    "silu",
    "gelu_fast",
    "gelu_pytorch_tanh",
    "tanh",
    "quick_gelu",
    "mish",
)


def labels(chance: Chance, head: str) -> dict[str, Any]:
    """Return settings of labels."""
    if head not in ("ForSequenceClassification", "ForTokenClassification", "ForImageClassification"):
        return {}
    count = chance.pick("num_labels", 4, 1, 2)
    names = [f"LABEL_{i}" for i in range(count)]
    if chance.any("named labels", True, False):
        names = ["O", "B-PER", "I-PER", "B-LOC"][:count]
    settings: dict[str, Any] = {"id2label": dict(enumerate(names))}
    if head == "ForSequenceClassification":
        types = ("single_label_classification", "multi_label_classification", "regression")
        settings["problem_type"] = chance.pick("problem_type", None, *types)
    return settings


def encoder(chance: Chance, family: "Family", head: str, ids: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of an encoder."""
    settings: dict[str, Any] = {**family.settings, **HEADS.get(head, {}), **ids, **labels(chance, head)}
    settings.pop("num_labels", None)
    settings["max_position_embeddings"] = chance.pick("max_position_embeddings", POSITIONS, 30)
    activation = {"DistilBert": "activation", "ModernBert": "hidden_activation"}.get(
        family.model, "hidden_act"
    )
    settings[activation] = chance.pick(activation, "gelu", *ACTIVATIONS)
    if family.model not in ("DistilBert", "ModernBert"):
        settings["layer_norm_eps"] = chance.pick("layer_norm_eps", 1e-12, 1e-5, 0.01)
        settings["type_vocab_size"] = chance.pick(
            "type_vocab_size", settings.get("type_vocab_size", 2), 1, 2, 3
        )
        settings["is_decoder"] = chance.pick("is_decoder", False, True)
    if family.model == "DistilBert":
        settings["sinusoidal_pos_embds"] = chance.pick("sinusoidal_pos_embds", False, True)
    if family.model == "Albert":
        settings["inner_group_num"] = chance.pick("inner_group_num", 1, 2)
        settings["num_hidden_groups"] = chance.pick("num_hidden_groups", 1, 2)
    if family.model == "ModernBert":
        for name in ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"):
            settings[name] = chance.pick(name, False, True)
        settings["decoder_bias"] = chance.pick("decoder_bias", True, False)
        settings["classifier_pooling"] = chance.pick("classifier_pooling", "cls", "mean")
        settings["classifier_activation"] = chance.pick("classifier_activation", "gelu", "relu", "silu")
        settings["local_attention"] = chance.pick("local_attention", 4, 8, 128)
        settings["global_attn_every_n_layers"] = chance.pick("global_attn_every_n_layers", 3, 1, 2)
        settings["norm_eps"] = chance.pick("norm_eps", 1e-5, 0.01)
    settings["num_attention_heads" if family.model != "DistilBert" else "n_heads"] = chance.pick(
        "heads", 3, 2, 4
    )
    settings["tie_word_embeddings"] = chance.pick("tie_word_embeddings", True, False)
    settings["classifier_dropout"] = chance.pick("classifier_dropout", 0.0, 0.3)
    return settings


def decoder(chance: Chance, family: "Family", head: str, ids: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a decoder-only model."""
    settings: dict[str, Any] = {**family.settings, **ids}
    settings["max_position_embeddings"] = chance.pick("max_position_embeddings", POSITIONS, 1000)
    settings["hidden_act"] = chance.pick("hidden_act", settings.get("hidden_act", "silu"), *ACTIVATIONS)
    settings["tie_word_embeddings"] = chance.pick("tie_word_embeddings", family.model == "Gemma", True, False)
    settings["num_key_value_heads"] = chance.pick("num_key_value_heads", 2, 1, 4)
    if "head_dim" in settings:
        settings["head_dim"] = chance.pick("head_dim", settings["head_dim"], 4, 6)
    settings["rms_norm_eps"] = chance.pick("rms_norm_eps", 1e-6, 0.01)
    for name in ("attention_bias", "mlp_bias"):
        settings[name] = chance.pick(name, False, True)
    settings["sliding_window"] = chance.pick("sliding_window", settings.get("sliding_window"), 4, 5)
    settings["use_sliding_window"] = chance.pick("use_sliding_window", False, True)
    settings["max_window_layers"] = chance.pick("max_window_layers", 3, 1)
    ropes = (
        {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0},
        {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0},
        {"rope_type": "yarn", "factor": 4.0, "rope_theta": 50.0, "original_max_position_embeddings": 32},
        {
            "rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        {"rope_type": "default", "rope_theta": 77.0},
        {"rope_type": "default", "rope_theta": 77.0, "partial_rotary_factor": 0.5},
    )  # fmt: skip
    if family.model not in ("Gemma3", "Phi3") and (rope := chance.pick("rope_parameters", None, *ropes)):
        settings["rope_parameters"] = rope
    if family.model in ("Gemma2", "Gemma3"):
        settings["query_pre_attn_scalar"] = chance.pick("query_pre_attn_scalar", 18, 4)
        settings["final_logit_softcapping"] = chance.pick("final_logit_softcapping", None, 3.0)
        settings["attn_logit_softcapping"] = chance.pick("attn_logit_softcapping", None, 2.0)
    return {name: value for name, value in settings.items() if value is not None or name == "pad_token_id"}


def gpt2(chance: Chance, family: "Family", head: str, ids: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a GPT-2."""
    return {
        **family.settings,
        **ids,
        "n_head": chance.pick("n_head", 3, 2),
        "n_inner": chance.pick("n_inner", None, 14),
        "activation_function": chance.pick("activation_function", "gelu_new", *ACTIVATIONS),
        "layer_norm_epsilon": chance.pick("layer_norm_epsilon", 1e-5, 0.01),
        "scale_attn_weights": chance.pick("scale_attn_weights", True, False),
        "scale_attn_by_inverse_layer_idx": chance.pick("scale_attn_by_inverse_layer_idx", False, True),
        "reorder_and_upcast_attn": chance.pick("reorder_and_upcast_attn", False, True),
        "tie_word_embeddings": chance.pick("tie_word_embeddings", True, False),
        "add_cross_attention": chance.pick("add_cross_attention", False, True),
        "n_positions": chance.pick("n_positions", POSITIONS, 40),
    }


def encoder_decoder(chance: Chance, family: "Family", head: str, ids: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of BART and its relatives."""
    settings = {**family.settings, **ids, "max_position_embeddings": POSITIONS, **labels(chance, head)}
    settings.pop("num_labels", None)
    settings["activation_function"] = chance.pick(
        "activation_function", settings.get("activation_function", "gelu"), *ACTIVATIONS
    )
    settings["scale_embedding"] = chance.pick(
        "scale_embedding", settings.get("scale_embedding", False), True, False
    )
    settings["tie_word_embeddings"] = chance.pick("tie_word_embeddings", True, False)
    settings["decoder_ffn_dim"] = chance.pick("decoder_ffn_dim", 14, 10)
    settings["decoder_attention_heads"] = chance.pick("decoder_attention_heads", 3, 2)
    settings["encoder_layers"] = chance.pick("encoder_layers", 2, 1, 3)
    if family.model == "Marian":
        settings["share_encoder_decoder_embeddings"] = chance.pick(
            "share_encoder_decoder_embeddings", True, False
        )
        settings["normalize_embedding"] = chance.pick("normalize_embedding", False, True)
        settings["static_position_embeddings"] = chance.pick("static_position_embeddings", True, False)
    return settings


def t5(chance: Chance, family: "Family", head: str, ids: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a T5."""
    projections = ("gated-gelu", "gated-silu", "gelu", "gated-relu", "gelu_new", "tanh", "gated-tanh")
    return {
        **family.settings,
        **ids,
        "decoder_start_token_id": 0,
        "feed_forward_proj": chance.pick(
            "feed_forward_proj", family.settings["feed_forward_proj"], *projections
        ),
        "tie_word_embeddings": chance.pick("tie_word_embeddings", True, False),
        "relative_attention_num_buckets": chance.pick("relative_attention_num_buckets", 8, 4, 32),
        "layer_norm_epsilon": chance.pick("layer_norm_epsilon", 1e-6, 0.01),
        "scale_decoder_outputs": chance.pick("scale_decoder_outputs", True, False),
        "num_decoder_layers": chance.pick("num_decoder_layers", 1, 2),
    }


def whisper(chance: Chance, family: "Family", head: str, ids: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a Whisper."""
    settings = {**family.settings, **ids}
    settings["activation_function"] = chance.pick("activation_function", "gelu", *ACTIVATIONS)
    settings["decoder_ffn_dim"] = chance.pick("decoder_ffn_dim", 14, 10)
    settings["scale_embedding"] = chance.pick("scale_embedding", False, True)
    settings["tie_word_embeddings"] = chance.pick("tie_word_embeddings", True, False)
    return settings


def vit(chance: Chance, family: "Family", head: str, ids: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a ViT."""
    return {
        **family.settings,
        **labels(chance, head),
        "hidden_act": chance.pick("hidden_act", "gelu", *ACTIVATIONS),
        "qkv_bias": chance.pick("qkv_bias", True, False),
        "image_size": chance.pick("image_size", 16, [16, 24]),
        "patch_size": chance.pick("patch_size", 8, 4),
        "num_channels": chance.pick("num_channels", 3, 1),
        "layer_norm_eps": chance.pick("layer_norm_eps", 1e-12, 0.01),
        "problem_type": chance.pick("problem_type", None, "multi_label_classification", "regression"),
    }


def write_processor(chance: Chance, folder: pathlib.Path) -> None:
    """Write the `preprocessor_config.json` of a ViT."""
    config = {
        "image_processor_type": "ViTImageProcessor",
        "do_normalize": chance.pick("do_normalize", True, False),
        "image_mean": chance.pick("image_mean", [0.5, 0.5, 0.5], [0.48, 0.45, 0.4]),
        "image_std": chance.pick("image_std", [0.5, 0.5, 0.5], [0.26, 0.27, 0.2]),
        "do_rescale": chance.pick("do_rescale", True, False),
        "rescale_factor": chance.pick("rescale_factor", 1 / 255, 1 / 127.5),
        "do_resize": chance.pick("do_resize", True, False),
        "resample": chance.pick("resample", 2, 3),
        "size": {"height": 16, "width": 16},
        "do_center_crop": chance.pick("do_center_crop", False, True),
    }
    write_json(folder / "preprocessor_config.json", config)


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        model: the beginning of the names of its classes in `transformers`.
        heads: the ends of these names.
        settings: the settings of its configuration.
        configure: a function that returns random ones.
        write: a function that writes the tokenizer.
    """

    model: str
    heads: tuple[str, ...]
    settings: Mapping[str, Any]
    configure: Callable[..., dict[str, Any]]
    write: Callable[[Chance, pathlib.Path], None]


ENCODERS = tuple(HEADS)
GPT2 = {"n_embd": 12, "n_layer": 2}
PHI = {**{key: value for key, value in DECODER.items() if key != "head_dim"}, "hidden_size": 16}
PHI |= {"original_max_position_embeddings": POSITIONS}
T5_RELU = {**T5, "feed_forward_proj": "relu"}
T5_GATED = {**T5, "feed_forward_proj": "gated-gelu"}
VIT = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 14,
}
GENERATES = ("ForConditionalGeneration",)
_one_segment = {"type_vocab_size": 1}
_causal = ("ForCausalLM",)


def _of(name: str, writer: Callable[..., None] = write_published) -> Callable[[Chance, pathlib.Path], None]:
    return functools.partial(writer, name=name)


FAMILIES: dict[str, Family] = {
    "BERT": Family("Bert", (*ENCODERS, "ForPreTraining"), ENCODER, encoder, write_word_piece),
    "DistilBERT": Family("DistilBert", ENCODERS, DISTILBERT, encoder, write_word_piece),
    "RoBERTa": Family("Roberta", ENCODERS, {**ENCODER, **_one_segment}, encoder, write_roberta),
    "XLM-R": Family(
        "XLMRoberta", ENCODERS, {**ENCODER, **_one_segment}, encoder, _of("XLM-R", write_unigram)
    ),
    "CamemBERT": Family(
        "Camembert", ENCODERS, {**ENCODER, **_one_segment}, encoder, _of("CamemBERT", write_unigram)
    ),
    "ALBERT": Family("Albert", ENCODERS, {**ENCODER, "embedding_size": 10}, encoder, write_albert),
    "ModernBERT": Family("ModernBert", ENCODERS, MODERNBERT, encoder, _of("ModernBERT")),
    "GPT-2": Family("GPT2", ("LMHeadModel",), GPT2, gpt2, write_gpt2),
    "Llama 2": Family("Llama", _causal, DECODER, decoder, _of("Llama 2")),
    "Llama, class": Family("Llama", _causal, DECODER, decoder, write_llama),
    "Llama 3": Family("Llama", _causal, DECODER, decoder, _of("Llama 3")),
    "SmolLM 2": Family("Llama", _causal, DECODER, decoder, _of("SmolLM 2")),
    "Mistral": Family("Mistral", _causal, DECODER, decoder, _of("Mistral 0.3")),
    "Qwen 2": Family("Qwen2", _causal, DECODER, decoder, write_qwen),
    "Qwen 3": Family("Qwen3", _causal, DECODER, decoder, write_qwen),
    "SmolLM 3": Family("SmolLM3", _causal, DECODER, decoder, _of("Llama 3")),
    "Phi-3": Family("Phi3", _causal, PHI, decoder, _of("Phi-3")),
    "Gemma": Family(
        "Gemma", _causal, {**DECODER, "hidden_act": "gelu_pytorch_tanh"}, decoder, _of("Gemma")
    ),
    "T5": Family("T5", GENERATES, T5_RELU, t5, _of("T5", write_unigram)),
    "mT5": Family("MT5", GENERATES, T5_GATED, t5, _of("T5", write_unigram)),
    "ByT5": Family("T5", GENERATES, T5_GATED, t5, write_byt5),
    "BART": Family("Bart", (*GENERATES, "ForSequenceClassification"), SEQ2SEQ, encoder_decoder, write_roberta),
    "mBART": Family(
        "MBart", GENERATES, {**SEQ2SEQ, "scale_embedding": True}, encoder_decoder, _of("mBART", write_unigram)
    ),
    "mBART-50": Family(
        "MBart", GENERATES, {**SEQ2SEQ, "scale_embedding": True}, encoder_decoder, _of("mBART-50", write_unigram)
    ),
    "M2M-100": Family("M2M100", GENERATES, {**SEQ2SEQ, "scale_embedding": True}, encoder_decoder, write_m2m),
    "NLLB": Family(
        "M2M100", GENERATES, {**SEQ2SEQ, "scale_embedding": True}, encoder_decoder, _of("NLLB", write_unigram)
    ),
    "Marian": Family(
        "Marian",
        ("MTModel",),
        {**SEQ2SEQ, "activation_function": "swish", "scale_embedding": True},
        encoder_decoder,
        write_marian,
    ),
    "Pegasus": Family(
        "Pegasus",
        GENERATES,
        {**SEQ2SEQ, "activation_function": "relu", "scale_embedding": True},
        encoder_decoder,
        _of("Pegasus", write_unigram),
    ),
    "Whisper": Family("Whisper", GENERATES, WHISPER, whisper, write_whisper),
    "ViT": Family("ViT", ("ForImageClassification",), VIT, vit, write_processor),
}  # fmt: skip
GENERATION: dict[str, tuple[Any, ...]] = {
    "num_beams": (1, 3),
    "length_penalty": (1.0, 0.0, 2.0),
    "early_stopping": (False, True, "never"),
    "repetition_penalty": (1.0, 1.3, 0.8),
    "no_repeat_ngram_size": (0, 2),
    "min_new_tokens": (None, 3),
    "max_new_tokens": (None, 4),
    "bad_words_ids": (None, [[7], [8, 9]]),
    "suppress_tokens": (None, [11, 12]),
    "begin_suppress_tokens": (None, [13]),
    "forced_eos_token_id": (None, 2),
    "do_sample": (False, True),
    "temperature": (1.0, 0.7),
    "eos_token_id": (None, [2, 8], [0, 2]),
}


def token_ids(folder: pathlib.Path, tokenizer: Any, chance: Chance, family: Family) -> dict[str, Any]:
    """Return the special ids of a configuration, and the size of its vocabulary."""
    size = len(tokenizer)
    size = max(size, 1 + max(tokenizer.get_vocab().values()))
    if family.model == "M2M100" and hasattr(tokenizer, "lang_code_to_id"):
        size = max(size, 1 + max(tokenizer.lang_code_to_id.values(), default=0))
    ids: dict[str, Any] = {"vocab_size": size + chance.pick("more ids", 0, 3)}
    for role in ("pad", "bos", "eos", "cls", "sep"):
        id_ = getattr(tokenizer, f"{role}_token_id", None)
        if role in ("cls", "sep") and family.model != "ModernBert":
            continue
        ids[f"{role}_token_id"] = id_
    if family.configure in (encoder_decoder, whisper):
        ids["decoder_start_token_id"] = (
            ids["pad_token_id"] if family.model in ("Marian", "Pegasus") else ids["eos_token_id"]
        )
    if family.model in ("Roberta", "XLMRoberta", "Camembert"):
        ids["pad_token_id"] = 1 if ids["pad_token_id"] is None else ids["pad_token_id"]
    ids = {name: value for name, value in ids.items() if value is not None or name == "pad_token_id"}
    return {
        name: value for name, value in ids.items()
        if name == "vocab_size" or not chance.pick(f"without {name}", False, True)
    }  # fmt: skip


def write(folder: pathlib.Path, family_name: str, chance: Chance) -> Any:
    """Write a folder.

    Args:
        folder: the folder, which is created.
        family_name: the name of the family.
        chance: its settings.

    Returns:
        The model of `transformers`.
    """
    family = FAMILIES[family_name]
    folder.mkdir(parents=True)
    head = chance.any("head", *family.heads)
    family.write(chance, folder)
    ids = {}
    if family.model != "ViT":
        # Which class reads the tokenizer may depend on the model's type.
        model_type = getattr(transformers, f"{family.model}{head}").config_class.model_type
        write_json(folder / "config.json", {"model_type": model_type})
        ids = token_ids(folder, transformers.AutoTokenizer.from_pretrained(folder), chance, family)
    kind = getattr(transformers, f"{family.model}{head}")
    known = kind.config_class()
    settings = {
        name: value
        for name, value in family.configure(chance, family, head, ids).items()
        if hasattr(known, name)
    }
    torch.manual_seed(chance.seed)
    model = kind(kind.config_class(**settings)).eval()
    randomise(model)
    dtype = chance.pick("dtype", "float32", "bfloat16", "float16")
    model = model.to(getattr(torch, dtype))
    if (
        head == "Model"
        and chance.pick("without pooler", False, True)
        and getattr(model, "pooler", None) is not None
    ):
        model.pooler = None
    model.save_pretrained(folder, max_shard_size=chance.pick("max_shard_size", "5GB", "10KB"))
    change_config(chance, folder, head)
    return kind


def change_config(chance: Chance, folder: pathlib.Path, head: str) -> None:
    """Change keys of `config.json` and `generation_config.json` that other programs write."""
    config = read_json(folder / "config.json")
    names = config.get("id2label")
    if names and len(names) > 1:
        form = chance.pick("id2label", None, "from 1", "missing")
        if form == "from 1":
            config["id2label"] = {str(int(id_) + 1): name for id_, name in names.items()}
        elif form == "missing":
            config.pop("id2label"), config.pop("label2id", None)
            config["num_labels"] = len(names)
    if chance.pick("architectures missing", False, True):
        config.pop("architectures", None)
    if quantization := chance.pick("quantization_config", None, {"quant_method": "gptq", "bits": 4}):
        config["quantization_config"] = quantization
    write_json(folder / "config.json", config)
    path = folder / "generation_config.json"
    generation = read_json(path)
    if not generation:
        return
    for name, values in GENERATION.items():
        if (value := chance.pick(f"generation.{name}", None, *values)) is not None:
            generation[name] = value
    write_json(path, generation)
    if chance.pick("without generation_config.json", False, True):
        path.unlink()
