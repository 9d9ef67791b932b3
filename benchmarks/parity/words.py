"""Small token classifiers and question answerers of `transformers` with tokenizers, and what they answer.

    .venv-bench/bin/python benchmarks/parity/words.py tests/pipelines/words

Each folder has random weights, a tokenizer that is trained here, and `expected.json`: the ids of texts and the words of
the tokenizer, with the label that the pipeline "token-classification" predicts at the first token of each word, or the
most probable answer, aligned to words as the pipeline "question-answering" of transformers 4 aligns it. Training data
has the ids of `is_split_into_words=True`. White space around words is no part of them here. Words of SentencePiece are
split around tokens of punctuation, by the places of tokens.
"""

import argparse
import itertools
import json
import os
import pathlib
import shutil
import string
import unicodedata

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = [
    "said Ada Lovelace",
    "Ada (Lovelace), it's 3.14 km!",
    "  said  Ada\n\nLovelace  lives in London. ",
    "中文句子。Ada住在北京, ok",
    "日本語のテキスト",
    "nai\u0308ve café caf\u00e9 don't O'Brien",
    "\u00a0Ada\u3000lives\tin London",
    "\U0001f600 Ada \U00020000b",
    "Who?",
]
QUESTIONS = ["Who lives in London?", "中文?", "Ada"]
SENTENCES = [["said", "Ada", "Lovelace", ",", "in", "London", "."], ["Ada's", "café", "北京"]]
SIZES = {
    "hidden_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 14,
    "max_position_embeddings": 80,
    "num_labels": 3,
    "initializer_range": 1.0,
}
COMMON = ("max_position_embeddings", "num_labels", "initializer_range")
DISTIL = {"dim": 12, "n_layers": 1, "n_heads": 2, "hidden_dim": 14}
OTHERS = {"ModernBert": {"initializer_cutoff_factor": 3.0}, "Roberta": {"type_vocab_size": 1}}
BERT_ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_ROLES = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
MAX_ANSWER_TOKENS = 30
# Words of several tokens, whose classes differ.
SPLIT_TEXTS = [
    "adave lonido kacav, sidonac!", "fedon acive londac (Adaon) onive", "caid vedac nolid salon", "avive lacon dida",
    "dolave kofe idac Lovelon adon", "kaid ondive acon veid", "lidac, Adave. fecav odon?",
]  # fmt: skip


def word_piece(lowercase: bool) -> Tokenizer:
    """Return BERT's tokenizer."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    train(tokenizer, trainers.WordPieceTrainer(vocab_size=190, special_tokens=list(BERT_ROLES.values())))
    return tokenizer


def byte_pair(add_prefix_space: bool, nfc: bool, roles: dict[str, str]) -> Tokenizer:
    """Return the tokenizer of RoBERTa or, in normal form C, of ModernBERT."""
    tokenizer = Tokenizer(models.BPE())
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = list(roles.values())
    train(tokenizer, trainers.BpeTrainer(vocab_size=330, special_tokens=special, initial_alphabet=alphabet))
    return tokenizer


def unigrams() -> Tokenizer:
    """Return the tokenizer of XLM-RoBERTa."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    train(tokenizer, trainers.UnigramTrainer(vocab_size=130, special_tokens=special, unk_token="<unk>"))
    return tokenizer


def train(tokenizer: Tokenizer, trainer: object) -> None:
    """Train a tokenizer on the texts and letters."""
    tokenizer.train_from_iterator([*TEXTS, *QUESTIONS, " ".join(string.ascii_letters)] * 3, trainer)


def with_rows(tokenizer: Tokenizer, start: str, end: str, separators: int = 1) -> Tokenizer:
    """Add the special tokens of rows."""
    ids = [(token, tokenizer.token_to_id(token)) for token in (start, end)]
    if separators == 2:
        tokenizer.post_processor = processors.RobertaProcessing(ids[1], ids[0], add_prefix_space=False)
    else:
        pair = f"{start} $A {end} $B:1 {end}:1"
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A {end}", pair=pair, special_tokens=ids
        )
    return tokenizer


def families() -> dict[str, tuple[str, str, Tokenizer, dict[str, object]]]:
    """Return by name the prefix of the models' classes, the class of the tokenizer, the tokenizer and its settings."""
    bert = {f"{role}_token": token for role, token in BERT_ROLES.items()}
    roberta = {f"{role}_token": token for role, token in ROBERTA_ROLES.items()}
    roberta |= {"cls_token": "<s>", "sep_token": "</s>"}
    chinese = with_rows(word_piece(False), "[CLS]", "[SEP]")
    return {
        "BertChinese": ("Bert", "BertTokenizer", chinese, {**bert, "do_lower_case": False}),
        "DistilBert": (
            "DistilBert",
            "DistilBertTokenizer",
            with_rows(word_piece(True), "[CLS]", "[SEP]"),
            bert,
        ),
        "Roberta": (
            "Roberta",
            "RobertaTokenizer",
            with_rows(byte_pair(False, False, ROBERTA_ROLES), "<s>", "</s>", 2),
            {**roberta, "add_prefix_space": False},
        ),
        "RobertaWithPrefix": (
            "Roberta",
            "RobertaTokenizer",
            with_rows(byte_pair(True, False, ROBERTA_ROLES), "<s>", "</s>", 2),
            {**roberta, "add_prefix_space": True},
        ),
        "XLMRoberta": (
            "XLMRoberta",
            "XLMRobertaTokenizer",
            with_rows(unigrams(), "<s>", "</s>", 2),
            roberta,
        ),
        "ModernBert": (
            "ModernBert",
            "PreTrainedTokenizerFast",
            with_rows(byte_pair(False, True, BERT_ROLES), "[CLS]", "[SEP]"),
            bert,
        ),
    }


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a place without white space around it."""
    word = text[start:end]
    first = min(start + len(word) - len(word.lstrip()), end)
    return first, first + len(text[first:end].strip())


def is_apart(encoding: object, text: str, index: int) -> bool:
    """Return whether a token of SentencePiece is punctuation; other tokenizers have words of it."""
    token = text[slice(*encoding.offsets[index])].strip()
    is_punctuation = all(unicodedata.category(each)[0] in "PS" for each in token)
    return token != "" and is_punctuation and encoding.tokens[1].startswith("\u2581")


def words_of(encoding: object, text: str, sequence: int = 0) -> list[tuple[int, int, list[int]]]:
    """Return the start and the end of each word of a text, and the indices of its tokens."""
    tokens = zip(encoding.word_ids, encoding.sequence_ids, itertools.count(), strict=False)
    of_text = [(word, index) for word, owner, index in tokens if owner == sequence and word is not None]
    words, before = [], None
    groups: list[list[int]] = []
    for word, index in of_text:
        apart = word == before and (is_apart(encoding, text, index) or is_apart(encoding, text, index - 1))
        if word != before or (apart and encoding.tokens[index - 1] != "\u2581"):
            groups.append([])
        groups[-1].append(index)
        before = word
    for indices in groups:
        places = [encoding.offsets[index] for index in indices]
        place = trimmed(text, min(start for start, _ in places), max(end for _, end in places))
        words.append((*place, indices))
    return words


def tagged(model: torch.nn.Module, tokenizer: object) -> list[dict[str, object]]:
    """Return the ids and the words of texts, with the label of each and its probability."""
    pipeline = transformers.pipeline(
        "token-classification",
        model=model,
        tokenizer=tokenizer,
        ignore_labels=[],
        aggregation_strategy="none",
    )
    rows = []
    for text in TEXTS:
        entities = {entity["index"]: entity for entity in pipeline(text)}
        encoding = tokenizer(text).encodings[0]
        words = [
            [start, end, entities[indices[0]]["entity"], float(entities[indices[0]]["score"])]
            for start, end, indices in words_of(encoding, text)
            if end > start
        ]
        rows.append({"text": text, "ids": encoding.ids, "words": words})
    return rows


def entities(model: torch.nn.Module, tokenizer: object, aggregations: tuple[str, ...]) -> dict[str, object]:
    """Return the entities in texts for each aggregation, with labels that begin and continue entities."""
    labels = ["O", "B-PER", "I-PER"]
    model.config.id2label = dict(enumerate(labels))
    texts = [*TEXTS, *SPLIT_TEXTS]
    rows = {}
    for aggregation in aggregations:
        pipeline = transformers.pipeline(
            "token-classification", model=model, tokenizer=tokenizer, aggregation_strategy=aggregation
        )
        rows[aggregation] = [
            [
                [start, end, each["entity_group"], float(each["score"])]
                for each in pipeline(text)
                for start, end in [trimmed(text, each["start"], each["end"])]
                if end > start
            ]
            for text in texts
        ]
    return {"labels": labels, "texts": texts, "rows": rows}


def answered(model: torch.nn.Module, tokenizer: object) -> list[dict[str, object]]:
    """Return the ids and the answers to questions about texts."""
    rows = []
    for question, text in itertools.product(QUESTIONS, TEXTS):
        encoding = tokenizer(question, text).encodings[0]
        inputs = tokenizer(question, text, return_tensors="pt")
        with torch.no_grad():
            outputs = model(**inputs)
        start_logits, end_logits = outputs.start_logits[0].numpy(), outputs.end_logits[0].numpy()
        inside = np.array([owner == 1 for owner in encoding.sequence_ids])
        sums = np.where(inside[:, None] & inside, start_logits[:, None] + end_logits, -np.inf)
        length = np.arange(len(inside)) - np.arange(len(inside))[:, None] + 1
        sums = np.where((length >= 1) & (length <= MAX_ANSWER_TOKENS), sums, -np.inf)
        first, last = np.unravel_index(np.argmax(sums), sums.shape)
        places = {
            index: (start, end) for start, end, indices in words_of(encoding, text, 1) for index in indices
        }
        start, end = places[first][0], places[last][1]
        rows.append({"question": question, "text": text, "ids": encoding.ids, "start": start, "end": end})
    return rows


def main() -> None:
    """Write the folders."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    root = parser.parse_args().folder
    for name, (prefix, tokenizer_class, library, settings) in families().items():
        for task in ("TokenClassification", "QuestionAnswering"):
            folder = root / f"{name}For{task}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            library.save(str(folder / "tokenizer.json"))
            config = {"tokenizer_class": tokenizer_class, "model_max_length": 80, **settings}
            (folder / "tokenizer_config.json").write_text(json.dumps(config))
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            sizes = {**{name: SIZES[name] for name in COMMON}, **DISTIL} if prefix == "DistilBert" else SIZES
            ids = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": None, "eos_token_id": None}
            sizes = {**sizes, **OTHERS.get(prefix, {})}
            torch.manual_seed(0)
            model_config = getattr(transformers, f"{prefix}Config")(vocab_size=len(tokenizer), **ids, **sizes)
            if task == "QuestionAnswering":
                model_config.num_labels = 2
            model = getattr(transformers, f"{prefix}For{task}")(model_config).eval()
            model.save_pretrained(folder)
            expected = {"rows": (tagged if task == "TokenClassification" else answered)(model, tokenizer)}
            # Without a space before each word, byte-level BPE would train on ids that no text has.
            has_spaces = prefix not in ("Roberta", "ModernBert") or settings.get("add_prefix_space")
            if task == "TokenClassification" and has_spaces:
                split = [tokenizer(words, is_split_into_words=True).input_ids for words in SENTENCES]
                expected |= {"sentences": SENTENCES, "ids_of_sentences": split}
            # `transformers` knows the words of WordPiece only; for other tokenizers it takes those of white space.
            of_words = ("first", "average", "max") if prefix in ("Bert", "DistilBert") else ()
            if task == "TokenClassification":
                expected["entities"] = entities(model, tokenizer, ("simple", *of_words))
            (folder / "expected.json").write_text(json.dumps(expected, ensure_ascii=False))


if __name__ == "__main__":
    main()
