"""Compare the ids and texts of tokenizers read from a folder with `transformers`.

For each architecture that `pipelines.from_hugging_face` supports, a folder has the tokenizer files of the published
models, with vocabularies trained here: T5's `spiece.model`, Marian's `source.spm`, `target.spm` and `vocab.json`,
GPT-1's and GPT-2's `vocab.json` and `merges.txt`, BERT's `vocab.txt`, `sentencepiece.bpe.model` or `tokenizer.json` of
mBART, mBART-50 and NLLB-200, and M2M-100's `vocab.json` and `sentencepiece.bpe.model`. Ids are compared on lines of
real text, and on as many lines of characters from all over Unicode; texts are compared for the ids of the real lines.

`published_tokenizers.py` writes a `tokenizer.json` with the components of Llama, Qwen, SmolLM, Gemma, Phi-3, Mistral,
ALBERT and ModernBERT. Their ids, with and without special tokens in texts, and their texts are compared on hard lines
and on real ones, in the graph and without TensorFlow; where there is a `tokenizer.model`, with SentencePiece's, too.

    .venv-bench/bin/python benchmarks/parity/tokenizers_of_folders.py    # needs KERAS_TRANSFORMER_DATA; --help
"""

import functools
import io
import json
import os
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import sentencepiece
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import numpy as np
import published_tokenizers
import references
from small_folders import add_languages
from tokenizers_parity import fuzzed_lines, real_lines

import keras_transformer_serving as serving
from keras_transformer import text

VOCABULARY = 8000
SPECIAL = ("<unk>", "</s>", "<pad>", "<s>", "<mask>")
HARD_LINES = 1000
TRAINING_LINES = 20_000
DIFFERENCES = (
    "lines_with_other_ids",
    "of_these_with_special_tokens",
    "of_these_equally_probable",
    "lines_that_differ_in_serving",
    "texts_that_differ",
    "lines_that_differ_in_sentencepiece",
)
# The tokenizers whose `tokenizer.json` is compared, and those of which only that file is.
FROM_JSON = ("T5", "RoBERTa", "Pegasus", "MBart", "MBart50", "XLMRoberta", "Camembert", "NLLB")
ONLY_FROM_JSON = ("RoBERTa", "Camembert")


def sentence_piece(lines: list[str], **options: Any) -> bytes:
    """Return a model trained with the options of the published models."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=VOCABULARY,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    """Return the pieces in the order of the model's ids."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.vocab_size())]


def write_t5(folder: pathlib.Path, lines: list[str]) -> None:
    """Write the files of T5: padding, end and unknown first, one hundred sentinels last."""
    (folder / "spiece.model").write_bytes(
        sentence_piece(lines, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    )
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 100})
    )


def write_marian(folder: pathlib.Path, lines: list[str]) -> None:
    """Write the files of Marian: two models and one vocabulary, in another order and with language codes."""
    half = len(lines) // 2
    models = {"source.spm": sentence_piece(lines[:half]), "target.spm": sentence_piece(lines[half:])}
    for name, model in models.items():
        (folder / name).write_bytes(model)
    both = sorted({piece for model in models.values() for piece in pieces_of(model)[3:]})
    both = both[: len(both) * 9 // 10]  # the rest are unknown tokens
    pieces = ["</s>", "<unk>", *both, ">>fra<<", ">>spa<<", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: id_ for id_, piece in enumerate(pieces)}))
    config = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "roa"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_pairs(tokenizer: Any, folder: pathlib.Path, **config: str) -> None:
    """Write the pieces and merges of a tokenizer."""
    vocabulary = {piece: id_ for id_, piece in enumerate(tokenizer.vocabulary)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, tokenizer.merges), ""]))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_gpt(folder: pathlib.Path, lines: list[str]) -> None:
    """Write the files of GPT-1."""
    roles = dict.fromkeys(("unknown", "pad", "end"), "<unk>")
    write_pairs(text.OpenAIGPTTokenizer.train(lines, VOCABULARY, special_tokens=roles), folder)


def write_gpt2(folder: pathlib.Path, lines: list[str]) -> None:
    """Write the files of GPT-2."""
    roles = dict.fromkeys(("unknown", "start", "end", "pad"), "<|endoftext|>")
    write_pairs(text.BytePairTokenizer.train(lines, VOCABULARY, special_tokens=roles), folder)


def write_roberta(folder: pathlib.Path, lines: list[str]) -> None:
    """Write the files of RoBERTa and BART."""
    roles = {"start": "<s>", "pad": "<pad>", "end": "</s>", "unknown": "<unk>", "mask": "<mask>"}
    write_pairs(text.BytePairTokenizer.train(lines, VOCABULARY, special_tokens=roles), folder)


def write_pegasus(folder: pathlib.Path, lines: list[str]) -> None:
    """Write the files of Pegasus."""
    model = sentence_piece(lines, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "spiece.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PegasusTokenizer"}))


def write_byt5(folder: pathlib.Path, lines: list[str]) -> None:
    """Write the files of ByT5, which has no vocabulary."""
    transformers.ByT5Tokenizer().save_pretrained(folder)


def write_bert(folder: pathlib.Path, lines: list[str]) -> None:
    """Write the files of BERT."""
    pieces = text.WordPieceTokenizer.train(lines, VOCABULARY).vocabulary
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")


def write_fairseq(folder: pathlib.Path, lines: list[str], name: str, **options: Any) -> None:
    """Write the files of mBART, mBART-50 or NLLB-200, whose ids begin with fairseq's."""
    (folder / "sentencepiece.bpe.model").write_bytes(sentence_piece(lines, **options))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))


def fairseq_ids(model: Any, lines: list[str]) -> list[list[int]]:
    """Return the ids of a SentencePiece model by fairseq's numbers."""
    return [[id_ + 1 if id_ else 3 for id_ in row] for row in model.encode(lines)]


def write_nllb(folder: pathlib.Path, lines: list[str]) -> None:
    """Write NLLB-200's `tokenizer.json`, with languages before the mask token, as in the published one."""
    write_fairseq(folder, lines, "NllbTokenizer", model_type="bpe")
    transformers.NllbTokenizer.from_pretrained(folder).save_pretrained(folder)
    (folder / "sentencepiece.bpe.model").unlink()
    add_languages(folder, ["eng_Latn", "fra_Latn", "spa_Latn", "zho_Hans"])


def write_m2m100(folder: pathlib.Path, lines: list[str]) -> None:
    """Write the files of M2M-100: a model, and a vocabulary in another order."""
    model = sentence_piece(lines, model_type="bpe")
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pieces_of(model)[3:])[:-100]]
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    (folder / "vocab.json").write_text(json.dumps({piece: id_ for id_, piece in enumerate(pieces)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "M2M100Tokenizer"}))


def contenders(lines: list[str], base: pathlib.Path) -> Iterator[tuple[str, Any, Callable[..., Any], Any]]:
    """Yield names, tokenizers of this package, functions from lines to the reference's ids, and references."""
    cases: dict[str, tuple[Any, Any, Any]] = {
        "T5": (write_t5, text.MarianT5Tokenizer, transformers.T5Tokenizer),
        "Marian": (write_marian, text.MarianT5Tokenizer, transformers.MarianTokenizer),
        "GPT-1": (write_gpt, text.OpenAIGPTTokenizer, transformers.OpenAIGPTTokenizer),
        "GPT-2": (write_gpt2, text.BytePairTokenizer, transformers.GPT2Tokenizer),
        "BERT": (write_bert, text.WordPieceTokenizer, transformers.BertTokenizer),
        "RoBERTa": (write_roberta, text.BytePairTokenizer, transformers.RobertaTokenizer),
        "Pegasus": (write_pegasus, text.MarianT5Tokenizer, transformers.PegasusTokenizer),
        "ByT5": (write_byt5, text.ByteTokenizer, transformers.ByT5Tokenizer),
        **{
            name: (
                functools.partial(write_fairseq, name=f"{name}Tokenizer"),
                text.MarianT5Tokenizer,
                getattr(transformers, f"{name}Tokenizer"),
            )
            for name in ("MBart", "MBart50", "XLMRoberta", "Camembert")
        },
        "NLLB": (write_nllb, text.MarianT5Tokenizer, transformers.NllbTokenizer),
        "M2M-100": (write_m2m100, text.MarianT5Tokenizer, transformers.M2M100Tokenizer),
    }
    for name, (write, ours, theirs) in cases.items():
        (base / name).mkdir()
        write(base / name, lines)
        reference = theirs.from_pretrained(base / name)

        def ids(batch: list[str], reference: Any = reference, **options: Any) -> list[list[int]]:
            return reference(batch, add_special_tokens=False, **options)["input_ids"]

        # Read special tokens in texts, as the reference does; tokenizers without this option read them as text.
        special = (
            {"special_tokens_in_text": True}
            if ours in (text.BytePairTokenizer, text.WordPieceTokenizer, text.OpenAIGPTTokenizer)
            else {}
        )
        saved = base / f"{name}, tokenizer.json"
        if name in FROM_JSON:
            reference.save_pretrained(saved)
            (saved / "spiece.model").unlink(missing_ok=True)
            yield saved.name, ours.from_files(saved, **special), ids, reference
        if name in ONLY_FROM_JSON:
            continue
        if (
            name == "MBart"
        ):  # version 5 of the reference does not normalize texts as the SentencePiece model does
            model = sentencepiece.SentencePieceProcessor(str(base / name / "sentencepiece.bpe.model"))
            yield name, ours.from_files(base / name), functools.partial(fairseq_ids, model), reference
        else:
            yield name, ours.from_files(base / name, **special), ids, reference
        if name == "Marian":
            target = ours.from_files(base / name, target=True)
            yield (
                "Marian, target",
                target,
                lambda batch, ids=ids, reference=reference: reference(
                    text_target=batch, add_special_tokens=False
                )["input_ids"],
                reference,
            )


def compare(tokenizer: Any, ids: Callable[..., Any], reference: Any, lines: list[str]) -> dict[str, Any]:
    """Return the number of lines with different ids, and of ids with different texts."""
    actual = [
        row for i in range(0, len(lines), 1000) for row in tokenizer.tokenize(lines[i : i + 1000]).to_list()
    ]
    expected = [row for i in range(0, len(lines), 1000) for row in ids(lines[i : i + 1000])]
    different = [line for line, a, b in zip(lines, actual, expected, strict=True) if a != b]
    forged = [line for line in different if any(token in line for token in SPECIAL)]
    # The references of mBART-50 and NLLB-200 keep a space at the end of a text, which SentencePiece removes.
    space = tokenizer.piece_to_id("\u2581")
    rows = list(zip(lines, actual, expected, strict=True))
    ends = [line for line, a, b in rows if b == [*a, space]]
    tied = [line for line, a, b in rows if a != b and are_equally_probable(reference, a, b)]
    # The tokenizers of this package write no special tokens in texts.
    special = {tokenizer.unknown_id, *tokenizer.special_token_ids.values()}
    ids_of_text = [row for row in expected if row and not special & set(row)][:2000]
    if isinstance(tokenizer, text.WordPieceTokenizer):
        ids_of_text = []  # BERT does not generate text
    texts = [each.decode() for each in tokenizer.detokenize(ids_of_text).numpy()] if ids_of_text else []
    expected_texts = (
        reference.batch_decode(ids_of_text, clean_up_tokenization_spaces=False) if ids_of_text else []
    )
    return {
        "lines": len(lines),
        "lines_with_other_ids": len(different),
        "of_these_with_special_tokens": len(forged),
        "of_these_with_a_space_at_the_end": len(ends),
        "of_these_equally_probable": len({*tied} - {*forged, *ends}),
        "examples": [line for line in different if line not in {*forged, *ends, *tied}][:5],
        "ids": sum(map(len, expected)),
        "unknown_ids": sum(row.count(tokenizer.unknown_id) for row in expected),
        "texts": len(ids_of_text),
        "texts_that_differ": sum(a != b for a, b in zip(texts, expected_texts, strict=True)),
        "different_texts": [(a, b) for a, b in zip(texts, expected_texts, strict=True) if a != b][:3],
    }


@functools.cache
def corpora(count: int) -> dict[str, list[str]]:
    """Return real and fuzzed lines."""
    return {"real": real_lines(count), "fuzzed": fuzzed_lines(count)}


@functools.cache
def tokenizers_of(count: int) -> dict[str, tuple[Any, Callable[..., Any], Any]]:
    """Return the results of `contenders` by name."""
    warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
    with tempfile.TemporaryDirectory() as base:
        return {name: each for name, *each in contenders(corpora(count)["real"], pathlib.Path(base))}


def compare_published(name: str, count: int) -> dict[str, Any]:
    """Return the numbers of lines and texts that differ for a type of `tokenizer.json`."""
    real = corpora(count)["real"]
    training = [*real_lines(TRAINING_LINES), *published_tokenizers.hard_lines(HARD_LINES, [], 1)]
    with tempfile.TemporaryDirectory() as base:
        folder = pathlib.Path(base)
        published_tokenizers.WRITERS[name](folder, training, VOCABULARY)
        tokenizer = text.from_hugging_face(folder)
        reference = published_tokenizers.reference_of(folder)
        tokens = [token for token in published_tokenizers.tokens_of(folder) if token.strip()]
        model = folder / "tokenizer.model"
        processor = sentencepiece.SentencePieceProcessor(str(model)) if model.is_file() else None
    served = serving.tokenizer_of(tokenizer.model_bytes, {"tokenizer_class": type(tokenizer).__name__})
    hard = published_tokenizers.hard_lines(HARD_LINES, tokens[:20])
    figures: dict[str, Any] = {"hard_lines": len(hard), "real_lines": len(real), "examples": []}
    figures |= dict.fromkeys(DIFFERENCES, 0)
    special_ids = {*tokenizer.special_token_ids.values()}
    for lines, special in ((hard, False), (hard, True), (real, True)):
        ids = [
            row
            for i in range(0, len(lines), 1000)
            for row in tokenizer.tokenize(lines[i : i + 1000], special_tokens=special).to_list()
        ]
        expected = reference(lines, add_special_tokens=False, split_special_tokens=not special)["input_ids"]
        for line, found, other in zip(lines, ids, expected, strict=True):
            figures["lines_that_differ_in_serving"] += served.tokenize(line, special) != found
            if found == other:
                continue
            figures["lines_with_other_ids"] += 1
            if not special and any(token in line for token in tokenizer.special_token_ids):
                figures["of_these_with_special_tokens"] += 1  # pieces of ALBERT's model in `tokenizers`
            elif are_equally_probable(reference, found, other):
                figures["of_these_equally_probable"] += 1
            else:
                figures["examples"] = [*figures["examples"], line[:100]][:5]
        if processor is not None and not special:
            figures["lines_that_differ_in_sentencepiece"] = sum(
                processor.encode(line) != row for line, row in zip(lines, expected, strict=True)
            )
        rows = [row for row in expected if not special_ids.intersection(row)]
        texts = [each.decode() for each in tokenizer.detokenize(rows).numpy()]
        pairs = zip(texts, reference.batch_decode(rows), strict=True)
        figures["texts_that_differ"] += sum(ours != theirs for ours, theirs in pairs)
    return figures


@functools.cache
def scores_of(reference: Any) -> np.ndarray | None:
    """Return the log-probabilities of the pieces of a unigram model; None for another."""
    if not hasattr(reference, "backend_tokenizer"):
        return None
    model = json.loads(reference.backend_tokenizer.to_str())["model"]
    return np.array([score for _, score in model["vocab"]]) if model["type"] == "Unigram" else None


def are_equally_probable(reference: Any, found: list[int], other: list[int]) -> bool:
    """Return whether two segmentations of a unigram model have one probability, so that rounding decides."""
    scores = scores_of(reference)
    if scores is None or max([0, *found, *other]) >= len(scores):
        return False
    return bool(np.isclose(scores[found].sum(), scores[other].sum(), rtol=1e-6))


NAMES = (
    *("T5", "Marian", "Marian, target", "GPT-1", "GPT-2", "BERT", "Pegasus", "ByT5"),
    *("MBart", "MBart50", "XLMRoberta", "NLLB", "M2M-100"),
    *(f"{name}, tokenizer.json" for name in FROM_JSON),
)
REFERENCE = references.Reference(
    __file__,
    __doc__,
    {
        **{f"{name}, {kind}": (name, kind) for name in NAMES for kind in ("real", "fuzzed")},
        **{f"{name}, tokenizer.json of the published": (name, None) for name in published_tokenizers.WRITERS},
    },
    lambda run: (
        compare_published(run.case[0], run.options.lines)
        if run.case[1] is None
        else compare(*tokenizers_of(run.options.lines)[run.case[0]], corpora(run.options.lines)[run.case[1]])
    ),
    measures=(
        "lines_with_other_ids",
        "of_these_with_special_tokens",
        "of_these_with_a_space_at_the_end",
        "of_these_equally_probable",
        "texts_that_differ",
    ),
    packages=("transformers", "tokenizers", "sentencepiece"),
    name="parity_tokenizers_of_folders",
    add_options=lambda parser: parser.add_argument("--lines", type=int, default=10_000),
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
